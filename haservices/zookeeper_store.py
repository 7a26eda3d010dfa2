"""
The leader store on ZooKeeper: one node per path, one transaction per commit.

Theory of operation
-------------------
Each commit is one transaction that also checks the version of the holder's own node
(zookeeper_holding.py).  ZooKeeper has no "write whatever is there": a node is either
created or set.  For operations without a version we guess which, from what this process
did last, and send the commit at once; only if a guess was wrong do we look, and send it
again.  A version is ZooKeeper's own plus one, since ours begin at 1.

Reads are preceded by a ``sync``, so that they show what was committed before they were
asked for, whichever server answers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from election.store import Put, VersionedValue
from haservices.zookeeper_entry import Commit
from haservices.zookeeper_nodes import (
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeOperation,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper_paths import decode_name
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    StaleEpochError,
    VersionMismatchError,
)


if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from election.contender import LeaderSession
    from election.store import StoreOperation
    from haservices.zookeeper_election import ZooKeeperElections
    from haservices.zookeeper_paths import ComponentPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = ["ZooKeeperStoreDriver", "cleanup_store"]

REQUEST_SIZE_BYTES_MAX: Final = 1_048_000
"""ZooKeeper's ``jute.maxbuffer`` (1,048,575), above which it closes the connection."""

_OPERATION_SIZE_BYTES_MAX: Final = 80
"""What an operation takes besides its path and its value, access list included."""

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
    ) -> None:
        self._session = session
        self._paths = paths
        self._elections = elections
        self._guesses = _Guesses()

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        node_path = self._paths.stored(path)

        def ask() -> Future[Node]:
            self._session.connection.sync()
            return self._session.connection.get(node_path)

        try:
            node = self._session.read(ask)
        except NodeMissingError:
            return None
        return VersionedValue(value=node.value, version=node.stat.version + 1)

    def list(self, prefix: str) -> list[str]:
        """Return the paths that begin with *prefix*, sorted."""
        return sorted(
            path
            for path in map(decode_name, _children(self._session, self._paths.store))
            if path.startswith(prefix)
        )

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        """Do all of *operations*, or none, while *session* leads and is our own."""
        contender = self._elections.holder_of(self._paths.component_id, session)
        if contender is None:
            raise StaleEpochError(self._paths.component_id, session.epoch, None)
        loop = self._session.loop
        for _ in range(_ATTEMPT_COUNT_MAX):
            nodes, sources = self._to_nodes(operations)
            _check_size(nodes)
            # On its way before the commit, and usually known to be there.
            loop.call(lambda: self._session.create_parents(self._paths.store))
            try:
                self._elections.ask(
                    contender, Commit(session=session, operations=nodes)
                )
            except TransactionFailedError as failure:
                self._learn(sources[failure.index], failure.error)
                if isinstance(failure.error, NodeMissingError):
                    loop.call(lambda: self._session.forget_parents(self._paths.store))
                self._look(operations)
            else:
                self._remember(operations)
                return
        message = (
            f"the store of {self._paths.component_id!r} was changed by others "
            f"{_ATTEMPT_COUNT_MAX} times while it was written"
        )
        raise DidNotHappenError(message)

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
            self._guesses.is_there(operation.path, guess=not isinstance(operation, Put))
            if version is None
            else version > 0
        )
        node_version = -1 if version is None else version - 1
        if isinstance(operation, Put):
            if is_there:
                return (
                    SetNode(path=path, value=operation.value, version=node_version),
                )
            return (CreateNode(path=path, value=operation.value),)
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
            operation.path for operation in operations if operation.version is None
        ]
        stats = self._session.read_all(
            [
                lambda path=path: self._session.connection.exists(  # type: ignore[misc]
                    self._paths.stored(path)
                )
                for path in paths
            ]
        )
        for path, stat in zip(paths, stats, strict=True):
            self._guesses.note(path, is_there=stat is not None)

    def _remember(self, operations: Sequence[StoreOperation]) -> None:
        for operation in operations:
            self._guesses.note(operation.path, is_there=isinstance(operation, Put))


@final
class _Guesses:
    """Which paths are there, as far as this process knows; bounded."""

    def __init__(self) -> None:
        self._are_there: OrderedDict[str, bool] = OrderedDict()

    def is_there(self, path: str, *, guess: bool) -> bool:
        return self._are_there.get(path, guess)

    def note(self, path: str, *, is_there: bool) -> None:
        self._are_there[path] = is_there
        while len(self._are_there) > _GUESS_COUNT_MAX:
            self._are_there.popitem(last=False)


def cleanup_store(session: ZooKeeperSession, paths: ComponentPaths) -> None:
    """
    Remove what is stored for the component of *paths*.

    The nodes above go too where nobody contends: they hold nothing then.
    """
    while names := _children(session, paths.store):
        _delete_all(
            session, [f"{paths.store}/{name}" for name in names[:_DELETE_COUNT_MAX]]
        )
    _delete_all(session, [paths.store, paths.contenders, paths.node])


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


def _children(session: ZooKeeperSession, path: str) -> Sequence[str]:
    """Return the names of the children of *path*; none if it is not there."""

    def ask() -> Future[list[str]]:
        session.connection.sync()
        return session.connection.children(path)

    try:
        return session.read(ask)
    except NodeMissingError:
        return ()


def _check_size(operations: Sequence[NodeOperation]) -> None:
    size_bytes = sum(
        _OPERATION_SIZE_BYTES_MAX
        + len(operation.path)
        + (len(operation.value) if isinstance(operation, SetNode | CreateNode) else 0)
        for operation in operations
    )
    if size_bytes > REQUEST_SIZE_BYTES_MAX:
        message = (
            f"with its paths the commit takes {size_bytes:,} bytes of ZooKeeper's "
            f"{REQUEST_SIZE_BYTES_MAX:,}: split it"
        )
        raise ConfigurationError(message)
