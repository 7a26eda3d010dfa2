"""
The leader store on ZooKeeper: one node per path, one transaction per commit.

Theory of operation
-------------------
Each commit is one transaction that also checks the version of the holder's own node
(zookeeper_holding.py).  ZooKeeper has no "write whatever is there": a node is either
created or set.  For operations without a version we guess which, from what this process
did last, and send the commit at once; only if a guess was wrong do we look, and send it
again.  A version is ZooKeeper's own plus one, since ours begin at 1.

Values that are too many for one request with all their paths are written beforehand, as
a bundle; the transaction then writes references to it (zookeeper_bundles.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from election.store import Put, VersionedValue
from haservices.zookeeper_bundles import (
    REQUEST_SIZE_BYTES_MAX,
    bundled,
    pack,
    request_size_bytes,
    unpack,
)
from haservices.zookeeper_entry import Commit
from haservices.zookeeper_nodes import (
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeOperation,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper_paths import decode_name
from haservices.zookeeper_reading import read_children, read_node
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    RemoteProtocolError,
    StaleEpochError,
    VersionMismatchError,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election.contender import LeaderSession
    from election.store import StoreOperation
    from haservices.zookeeper_election import ZooKeeperElections
    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = ["StoreGuesses", "ZooKeeperStoreDriver", "cleanup_store"]

_ATTEMPT_COUNT_MAX: Final = 5
_GUESS_COUNT_MAX: Final = 10_000
_DELETE_COUNT_MAX: Final = 500


@final
class ZooKeeperStoreDriver:
    """A `LeaderStoreDriver` over a `ZooKeeperSession`.  Thread-safe."""

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: ComponentPaths,
        elections: ZooKeeperElections,
        guesses: StoreGuesses,
    ) -> None:
        self._session = session
        self._paths = paths
        self._elections = elections
        self._guesses = guesses

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        for _ in range(_ATTEMPT_COUNT_MAX):
            try:
                node = read_node(self._session, self._paths.stored(path))
            except NodeMissingError:
                return None
            try:
                value = unpack(self._session, self._paths, node.value)
            except NodeMissingError:
                continue  # the bundle went because the value was replaced
            return VersionedValue(value=value, version=node.stat.version + 1)
        message = f"the value of {path!r} was replaced each time it was read"
        raise RemoteProtocolError("unstable-value", message)

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""
        return sorted(
            path
            for path in map(
                decode_name, read_children(self._session, self._paths.store)
            )
            if path.startswith(prefix)
        )

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*, or none, while *session* leads and is our own."""
        contender = self._elections.holder_of(self._paths.component_id, session)
        if contender is None:
            raise StaleEpochError(self._paths.component_id, session.epoch, None)

        def transact(nodes: Sequence[NodeOperation]) -> None:
            self._elections.ask(
                contender, Commit(session=session, operations=tuple(nodes))
            )

        for _ in range(_ATTEMPT_COUNT_MAX):
            nodes, sources = self._to_nodes(operations)
            try:
                if request_size_bytes(nodes) > REQUEST_SIZE_BYTES_MAX:
                    with bundled(
                        self._session, self._paths, nodes, transact
                    ) as referring:
                        self._transact(referring, transact)
                else:
                    self._transact(nodes, transact)
            except TransactionFailedError as failure:
                if failure.index >= len(sources):
                    continue  # the bundle was taken away: make another
                self._learn(sources[failure.index], failure.error)
                if isinstance(failure.error, NodeMissingError):
                    self._session.loop.call(
                        lambda: self._session.forget_parents(self._paths.store)
                    )
                self._look(operations)
            else:
                self._remember(operations)
                return
        message = (
            f"the store of {self._paths.component_id!r} was changed by others "
            f"{_ATTEMPT_COUNT_MAX} times while it was written"
        )
        raise DidNotHappenError(message)

    def _transact(
        self,
        nodes: Sequence[NodeOperation],
        transact: Callable[[Sequence[NodeOperation]], None],
    ) -> None:
        # On its way before the commit, and usually known to be there.
        self._session.loop.call(lambda: self._session.create_parents(self._paths.store))
        transact(nodes)

    def _to_nodes(
        self, operations: Sequence[StoreOperation]
    ) -> tuple[tuple[NodeOperation, ...], Sequence[StoreOperation]]:
        """Return what to do, and for each of it the operation that it is part of."""
        nodes: list[NodeOperation] = []
        sources: list[StoreOperation] = []
        for operation in operations:
            path = self._paths.stored(operation.path)
            for node in self._to_node(operation, path):
                nodes.append(node)
                sources.append(operation)
        return tuple(nodes), sources

    def _to_node(
        self, operation: StoreOperation, path: str
    ) -> tuple[NodeOperation, ...]:
        version = operation.version
        is_there = (
            self._guesses.is_there(path, guess=not isinstance(operation, Put))
            if version is None
            else version > 0
        )
        node_version = -1 if version is None else version - 1
        if isinstance(operation, Put):
            if is_there:
                return (
                    SetNode(
                        path=path, value=pack(operation.value), version=node_version
                    ),
                )
            return (CreateNode(path=path, value=pack(operation.value)),)
        if is_there:
            return (DeleteNode(path=path, version=node_version),)
        if version == 0:
            # It must not exist, and there is no check for that but to create it.
            return (CreateNode(path=path, value=b""), DeleteNode(path=path))
        return ()

    def _learn(self, operation: StoreOperation, error: Exception) -> None:
        """Raise if *operation* was refused for good; return if a guess was wrong."""
        if isinstance(error, NodeVersionError | NodeExistsError | NodeMissingError):
            if operation.version is None:
                return
            if isinstance(error, NodeMissingError) and operation.version == 0:
                return  # it is the node above that is missing
            raise VersionMismatchError(
                operation.path,
                operation.version,
                0 if isinstance(error, NodeMissingError) else None,
            ) from error
        raise error

    def _look(self, operations: Sequence[StoreOperation]) -> None:
        """Find out which of the paths without a version are there."""
        paths = [
            self._paths.stored(operation.path)
            for operation in operations
            if operation.version is None
        ]
        stats = self._session.read_all(
            [
                lambda path=path: self._session.connection.exists(path)  # type: ignore[misc]
                for path in paths
            ]
        )
        for path, stat in zip(paths, stats, strict=True):
            self._guesses.note(path, is_there=stat is not None)

    def _remember(self, operations: Sequence[StoreOperation]) -> None:
        for operation in operations:
            self._guesses.note(
                self._paths.stored(operation.path), is_there=isinstance(operation, Put)
            )


@final
class StoreGuesses:
    """Which nodes of stores are there, as far as this process knows; bounded."""

    def __init__(self) -> None:
        self._are_there: OrderedDict[str, bool] = OrderedDict()
        self._lock = threading.Lock()

    def is_there(self, node: str, *, guess: bool) -> bool:
        """Return whether *node* is there; *guess* if that is not known."""
        with self._lock:
            return self._are_there.get(node, guess)

    def note(self, node: str, *, is_there: bool) -> None:
        """Take note of whether *node* is there."""
        with self._lock:
            self._are_there[node] = is_there
            while len(self._are_there) > _GUESS_COUNT_MAX:
                self._are_there.popitem(last=False)


def cleanup_store(session: ZooKeeperSession, paths: ComponentPaths) -> None:
    """
    Remove what is stored for the component of *paths*.

    The nodes above go too where nobody contends: they hold nothing then.
    """
    for parent in (paths.store, paths.bundles):
        while names := read_children(session, parent):
            _delete_all(
                session, [f"{parent}/{name}" for name in names[:_DELETE_COUNT_MAX]]
            )
    _delete_all(session, [paths.store, paths.bundles, paths.contenders, paths.node])


def _delete_all(session: ZooKeeperSession, paths: Sequence[str]) -> None:
    """Delete the nodes at *paths* that are there and have no children."""
    futures = [
        session.request(lambda path=path: session.connection.delete(path))  # type: ignore[misc]
        for path in paths
    ]
    for path, future in zip(paths, futures, strict=True):
        try:
            future.result(session.config.connect_timeout_seconds)
        except (NodeMissingError, NodeNotEmptyError):
            continue
        except TimeoutError:
            message = f"the deletion of {path} was not answered in time"
            raise MayHaveHappenedError(message) from None
