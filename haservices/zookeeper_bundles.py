"""
How values of the leader store stand in nodes, and commits that are too large.

Theory of operation
-------------------
ZooKeeper takes requests of up to 1,048,575 bytes (``jute.maxbuffer``); at one more it
closes the connection.  A commit of 1,000,000 bytes in one value fits.  In many values
it may not, since each brings its path and its access list along.

Such a commit puts all its values into one node beforehand, a *bundle*, and writes
references to it, in the one transaction that counts; that also checks that the bundle
is there.  A value in a node is therefore marked: itself, or a reference.

Bundles that nothing refers to any more are deleted before the next one is made.  Only
the leader may (the deletion is a commit of its own), and a reader that comes too late
reads the path again: it holds another value by then.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Final

import attrs

from haservices.zookeeper_nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeOperation,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper_reading import or_none, read_children, read_node
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    NameServiceError,
    RemoteProtocolError,
    StaleEpochError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = [
    "REQUEST_SIZE_BYTES_MAX",
    "bundled",
    "pack",
    "request_size_bytes",
    "unpack",
]

REQUEST_SIZE_BYTES_MAX: Final = 1_048_000

# What an operation takes besides its path and its value, access list included.
_OPERATION_SIZE_BYTES_MAX: Final = 80
_ITSELF: Final = b"="
_REFERENCE: Final = b"@"


def pack(value: bytes) -> bytes:
    """Return *value* as a node holds it itself."""
    return _ITSELF + value


def unpack(session: ZooKeeperSession, paths: ComponentPaths, packed: bytes) -> bytes:
    """
    Return the value that a node holds, or refers to.

    Raises:
        NodeMissingError: If the bundle is gone that it refers to.
        RemoteProtocolError: If it is not ours.
    """
    if packed.startswith(_ITSELF):
        return packed[1:]
    reference = _Reference.parse(packed)
    if reference is None:
        raise RemoteProtocolError("malformed-node", "a node of the store is not ours")
    bundle = read_node(session, f"{paths.bundles}/{reference.name}").value
    return bundle[reference.start : reference.stop]


def request_size_bytes(operations: Sequence[NodeOperation]) -> int:
    """Return what *operations* take in a request, or a little more."""
    return sum(
        _OPERATION_SIZE_BYTES_MAX
        + len(operation.path)
        + (len(operation.value) if isinstance(operation, SetNode | CreateNode) else 0)
        for operation in operations
    )


@contextlib.contextmanager
def bundled(
    session: ZooKeeperSession,
    paths: ComponentPaths,
    operations: Sequence[NodeOperation],
    transact: Callable[[Sequence[NodeOperation]], None],
) -> Iterator[Sequence[NodeOperation]]:
    """
    Make a bundle of the values of *operations*; it goes if the block fails.

    Args:
        session: Where to write.
        paths: Of the component.
        operations: Too many to be sent as they are.
        transact: Commits as the leader.

    Yields:
        The same operations with references, and one more that checks the bundle.

    Raises:
        ConfigurationError: If they are too large even so.
    """
    name = uuid.uuid4().hex
    bundle = bytearray()
    referring: list[NodeOperation] = []
    for operation in operations:
        if isinstance(operation, SetNode | CreateNode):
            start = len(bundle)
            bundle += operation.value[1:]
            reference = _Reference(name=name, start=start, stop=len(bundle))
            referring.append(attrs.evolve(operation, value=reference.format()))
        else:
            referring.append(operation)
    path = f"{paths.bundles}/{name}"
    referring.append(CheckNode(path=path))
    size_bytes = request_size_bytes(referring)
    if size_bytes > REQUEST_SIZE_BYTES_MAX:
        message = (
            f"the commit takes {size_bytes:,} bytes of ZooKeeper's "
            f"{REQUEST_SIZE_BYTES_MAX:,} for its paths alone: split it"
        )
        raise ConfigurationError(message)
    _collect(session, paths, transact)
    session.write(lambda: session.create_parents(paths.bundles))
    session.write(lambda: session.connection.create(path, bytes(bundle)))
    try:
        yield referring
    except (DidNotHappenError, StaleEpochError):
        # Whatever else went wrong, the references may have been written.
        with contextlib.suppress(NameServiceError):
            transact([DeleteNode(path=path)])
        raise


def _collect(
    session: ZooKeeperSession,
    paths: ComponentPaths,
    transact: Callable[[Sequence[NodeOperation]], None],
) -> None:
    """Delete the bundles that no path refers to."""
    unused = set(read_children(session, paths.bundles))
    if not unused:
        return
    nodes = session.read_all(
        [
            lambda name=name: or_none(  # type: ignore[misc]
                session.connection.get(f"{paths.store}/{name}")
            )
            for name in read_children(session, paths.store)
        ]
    )
    for node in nodes:
        reference = None if node is None else _Reference.parse(node.value)
        if reference is not None:
            unused.discard(reference.name)
    for name in sorted(unused):
        # Another leader may have been quicker.
        with contextlib.suppress(TransactionFailedError):
            transact([DeleteNode(path=f"{paths.bundles}/{name}")])


@attrs.frozen(kw_only=True)
class _Reference:
    """Where in which bundle a value is; *stop* is not part of it."""

    name: str
    start: int
    stop: int

    def format(self) -> bytes:
        return _REFERENCE + f"{self.name} {self.start} {self.stop}".encode("ascii")

    @classmethod
    def parse(cls, packed: bytes) -> _Reference | None:
        """Return the reference that *packed* is, or None if it is none."""
        if not packed.startswith(_REFERENCE):
            return None
        try:
            name, start, stop = packed[1:].decode("ascii").split(" ")
            return cls(name=name, start=int(start), stop=int(stop))
        except ValueError:
            return None
