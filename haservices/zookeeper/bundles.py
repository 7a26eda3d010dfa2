"""
How values of the leader store stand in nodes, and commits that are too large.

Theory of operation
-------------------
ZooKeeper takes requests of up to 1,048,575 bytes (``jute.maxbuffer``); at one more it
closes the connection.  A commit of 1,000,000 bytes in one value fits.  In many values
it may not, since each brings its path and its access list along.  The sizes are
computed to the byte (requests.py), before anything is sent.

Such a commit puts all its values into one node beforehand, a *bundle*, and writes
references to it, in the one transaction that counts; that also checks that the bundle
is there.  A value in a node is therefore marked: itself, or a reference.

Bundles that nothing refers to any more are deleted before the next one is made.  Only
the leader may (the deletion is a commit of its own), and a reader that comes too late
reads the path again: it holds another value by then.

What refers to a bundle is read node by node, and the leader may be committing on other
threads: their bundles are there, and nothing refers to them yet.  All of them commit
by the same services, which know which bundles are *under way*, and leave them.  To any
other nothing comes to refer once its commit is done, however long the look takes.
A cleanup may be another process's.  There a deletion is one transaction with the check
that nothing has been committed since before the first look.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Final

from haservices.zookeeper.nodes import (
    CheckNode,
    DeleteNode,
    NodeMissingError,
    TransactionFailedError,
    check_absent,
)
from haservices.zookeeper.packing import refer, unpack, unused_bundles
from haservices.zookeeper.reading import (
    after_sync,
    or_none,
    read_children,
    read_node,
)
from nameservice import DidNotHappenError, NameServiceError, StaleEpochError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from haservices.zookeeper.nodes import NodeOperation
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["bundled", "collect", "read_value"]

_ATTEMPT_COUNT_MAX: Final = 5


def read_value(
    session: ZooKeeperSession, paths: ComponentPaths, packed: bytes
) -> bytes:
    """
    Return the value that a node holds, or refers to.

    Raises:
        NodeMissingError: If the bundle is gone that it refers to.
        RemoteProtocolError: If it is not ours.
    """
    value = unpack(packed)
    if isinstance(value, bytes):
        return value
    bundle = read_node(session, f"{paths.bundles}/{value.name}").value
    return bundle[value.start : value.stop]


@contextlib.contextmanager
def bundled(
    session: ZooKeeperSession,
    paths: ComponentPaths,
    operations: Sequence[NodeOperation],
    transact: Callable[[Sequence[NodeOperation]], None],
    under_way: set[str],
) -> Iterator[Sequence[NodeOperation]]:
    """
    Make a bundle of the values of *operations*; it goes if the block fails.

    Args:
        session: Where to write.
        paths: Of the component.
        operations: Too large to be sent as they are, and small enough with references.
        transact: Commits as the leader.
        under_way: Bundles of these services whose commits may yet go through.

    Yields:
        The same operations with references, and one more that checks the bundle.
    """
    name = uuid.uuid4().hex
    path = f"{paths.bundles}/{name}"
    bundle, referring = refer(operations, paths, name=name)
    _collect_own(session, paths, transact, under_way)
    under_way.add(name)  # before it is there: another thread must not collect it
    try:
        _create(session, paths, path, bundle)
    except NameServiceError:
        under_way.discard(name)  # should it be there, or come, nothing will refer to it
        raise
    try:
        yield referring
    except (DidNotHappenError, StaleEpochError):
        # Whatever else went wrong, the references may have been written, or be yet.
        under_way.discard(name)
        with contextlib.suppress(NameServiceError):
            transact([DeleteNode(path=path)])
        raise
    under_way.discard(name)


def _create(
    session: ZooKeeperSession, paths: ComponentPaths, path: str, bundle: bytes
) -> None:
    """Create a bundle at *path*, and what is above it, which a cleanup may remove."""
    for _ in range(_ATTEMPT_COUNT_MAX):
        try:
            session.calls.write(lambda: session.parents.create(paths.bundles))
            session.calls.write(lambda: session.connection.create(path, bundle))
        except NodeMissingError:
            session.loop.call(lambda: session.parents.forget(paths.bundles))
        else:
            return
    message = f"others removed {paths.bundles} {_ATTEMPT_COUNT_MAX} times"
    raise DidNotHappenError(message)


def _collect_own(
    session: ZooKeeperSession,
    paths: ComponentPaths,
    transact: Callable[[Sequence[NodeOperation]], None],
    under_way: set[str],
) -> None:
    """Delete the bundles that no path refers to, nor will; *transact* is the leader."""
    names = read_children(session, paths.bundles)
    # After they were listed, and before what refers to them is: a commit that is not
    # under way now is done by then.
    names = [name for name in names if name not in under_way]
    for name in _unused(session, paths, names):
        with contextlib.suppress(TransactionFailedError):  # another was quicker
            transact([DeleteNode(path=f"{paths.bundles}/{name}")])


def collect(
    session: ZooKeeperSession,
    paths: ComponentPaths,
    transact: Callable[[Sequence[NodeOperation]], None],
) -> None:
    """Delete the bundles that no path refers to; what is in doubt stays."""
    unchanged = _unchanged_since_now(session, paths)
    names = read_children(session, paths.bundles)
    for name in _unused(session, paths, names):
        # Another may have been quicker, or something been committed.
        with contextlib.suppress(TransactionFailedError):
            transact([*unchanged, DeleteNode(path=f"{paths.bundles}/{name}")])


def _unused(
    session: ZooKeeperSession, paths: ComponentPaths, names: Sequence[str]
) -> list[str]:
    """Return to which of the bundles *names* no path refers."""
    if not names:
        return []
    connection = session.connection
    stored = read_children(session, paths.store)
    nodes = session.calls.read_all(
        [
            lambda name=name: or_none(connection.get(f"{paths.store}/{name}"))  # type: ignore[misc]
            for name in stored
        ]
    )
    return unused_bundles(names, (node.value for node in nodes if node is not None))


def _unchanged_since_now(
    session: ZooKeeperSession, paths: ComponentPaths
) -> Sequence[NodeOperation]:
    """Return what fails in a transaction if anything is committed from now on."""
    stat = session.calls.read(
        lambda: after_sync(session, lambda: session.connection.exists(paths.store))
    )
    if stat is None:
        return check_absent(paths.store)
    # Each commit sets it, too (store_core.py).
    return (CheckNode(path=paths.store, version=stat.version),)
