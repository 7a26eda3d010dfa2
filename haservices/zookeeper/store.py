"""
The leader store on ZooKeeper: one node per path, one transaction per commit.

A thin shell: what a commit asks of ZooKeeper, and what follows, is decided by
`CommitCore` (store_core.py).  Each commit is one transaction that also checks
the version of the holder's own node (holding_core.py).  Commits of this process that
share a path go one after another (store_turns.py).

Values that are too many for one request with all their paths are written beforehand, as
a bundle; the transaction then writes references to it (bundles.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, assert_never, final

from attrs import Factory, frozen

from election.store import VersionedValue
from haservices.zookeeper.bundles import bundled, collect, read_value
from haservices.zookeeper.entry import Commit
from haservices.zookeeper.nodes import (
    ANY_VERSION,
    NodeMissingError,
    NodeNotEmptyError,
    NodeOperation,
    TransactionFailedError,
)
from haservices.zookeeper.paths import decode_name
from haservices.zookeeper.reading import read_children, read_node
from haservices.zookeeper.requests import REQUEST_SIZE_BYTES_MAX, request_size_bytes
from haservices.zookeeper.store_core import (
    CommitCore,
    CommitFailed,
    Committed,
    FailCommit,
    Finish,
    ForgetParents,
    Look,
    Looked,
    NoteNode,
    SendCommit,
    Started,
)
from haservices.zookeeper.store_turns import CommitTurns
from nameservice import MayHaveHappenedError, RemoteProtocolError, StaleEpochError
from nameservice.uninterrupted import detached


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from election.contender import LeaderSession
    from election.store import StoreOperation
    from haservices.zookeeper.election import ZooKeeperElections
    from haservices.zookeeper.paths import ComponentPaths
    from haservices.zookeeper.session import ZooKeeperSession
    from haservices.zookeeper.store_core import CommitEvent


__all__ = ["OwnCommits", "ZooKeeperStoreDriver", "cleanup_store"]

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
        own: OwnCommits,
    ) -> None:
        self._session = session
        self._paths = paths
        self._elections = elections
        self._own = own

    def get(self, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        for _ in range(_ATTEMPT_COUNT_MAX):
            try:
                node = read_node(self._session, self._paths.stored(path))
            except NodeMissingError:
                return None
            try:
                value = read_value(self._session, self._paths, node.value)
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
        # Others of this process wait for its turn to end, whatever a handler raises.
        detached(lambda: self._commit(operations, session))

    def _commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        self._session.calls.check_open()
        contender = self._elections.holder_of(self._paths.component_id, session)
        if contender is None:
            raise StaleEpochError(self._paths.component_id, session.epoch, None)

        def transact(nodes: Sequence[NodeOperation]) -> None:
            self._elections.ask(
                contender, Commit(session=session, operations=tuple(nodes))
            )

        acl_size_bytes = self._session.connection.acl_size_bytes
        stored = [self._paths.stored(operation.path) for operation in operations]
        seconds = self._session.config.connect_timeout_seconds
        with self._own.turns.turn(stored, timeout_seconds=seconds):
            core = CommitCore(
                operations,
                paths=self._paths,
                known=self._own.guesses.known(stored),
                size_of=lambda nodes: request_size_bytes(
                    nodes, acl_size_bytes=acl_size_bytes
                ),
                size_bytes_max=REQUEST_SIZE_BYTES_MAX,
            )
            event: CommitEvent | None = Started()
            while event is not None:
                event = self._follow(core, event, transact)

    def _follow(
        self,
        core: CommitCore,
        event: CommitEvent,
        transact: Callable[[Sequence[NodeOperation]], None],
    ) -> CommitEvent | None:
        """Have *core* decide, and do so; return what came of it, or None at the end."""
        followed: CommitEvent | None = None
        for effect in core.step(event):
            match effect:
                case SendCommit():
                    followed = self._send(effect, transact)
                case ForgetParents():
                    self._forget_parents()
                case Look(paths=paths):
                    followed = self._look(paths)
                case NoteNode(path=path, is_there=is_there):
                    self._own.guesses.note(path, is_there=is_there)
                case FailCommit(error=error):
                    raise error
                case Finish():
                    pass
                case _:
                    assert_never(effect)
        return followed

    def _send(
        self,
        effect: SendCommit,
        transact: Callable[[Sequence[NodeOperation]], None],
    ) -> Committed | CommitFailed:
        try:
            if effect.is_bundled:
                with bundled(
                    self._session,
                    self._paths,
                    effect.nodes,
                    transact,
                    self._own.bundles_under_way,
                ) as referring:
                    self._transact([*referring, effect.mark], transact)
            else:
                self._transact([*effect.nodes, effect.mark], transact)
        except TransactionFailedError as failure:
            return CommitFailed(index=failure.index, error=failure.error)
        return Committed()

    def _forget_parents(self) -> None:
        self._session.loop.call(lambda: self._session.parents.forget(self._paths.store))

    def _transact(
        self,
        nodes: Sequence[NodeOperation],
        transact: Callable[[Sequence[NodeOperation]], None],
    ) -> None:
        # On its way before the commit, and usually known to be there.
        self._session.loop.call(lambda: self._session.parents.create(self._paths.store))
        transact(nodes)

    def _look(self, paths: Sequence[str]) -> Looked:
        """Find out which of *paths* are there."""
        stats = self._session.calls.read_all(
            [
                lambda path=path: self._session.connection.exists(path)  # type: ignore[misc]
                for path in paths
            ]
        )
        return Looked(are_there=tuple(stat is not None for stat in stats))


@final
class StoreGuesses:
    """Which nodes of stores are there, as far as this process knows; bounded."""

    def __init__(self) -> None:
        self._are_there: OrderedDict[str, bool] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, nodes: Iterable[str]) -> dict[str, bool]:
        """Return for each of *nodes* of which that is known whether it is there."""
        with self._lock:
            return {
                node: self._are_there[node] for node in nodes if node in self._are_there
            }

    def note(self, node: str, *, is_there: bool) -> None:
        """Record whether *node* is there."""
        with self._lock:
            self._are_there[node] = is_there
            while len(self._are_there) > _GUESS_COUNT_MAX:
                self._are_there.popitem(last=False)


@final
@frozen
class OwnCommits:
    """
    What services know of the commits that go by them.  Thread-safe.

    Attributes:
        guesses: Which nodes are there, as far as they know.
        turns: Which commits wait for which.
        bundles_under_way: Bundles whose commits may yet go through.
    """

    guesses: StoreGuesses = Factory(StoreGuesses)
    turns: CommitTurns = Factory(CommitTurns)
    bundles_under_way: set[str] = Factory(set)


def cleanup_store(session: ZooKeeperSession, paths: ComponentPaths) -> None:
    """
    Remove what is stored for the component of *paths*.

    The nodes above go too where no contender is: they hold nothing then.
    """
    while names := read_children(session, paths.store):
        _delete_all(
            session, [f"{paths.store}/{name}" for name in names[:_DELETE_COUNT_MAX]]
        )
    # Not those of values that a leader has written meanwhile.
    collect(
        session,
        paths,
        lambda nodes: session.calls.write(lambda: session.connection.transact(nodes)),
    )
    _delete_all(session, [paths.store, paths.bundles, paths.contenders, paths.node])
    # Where a leader has written meanwhile the node is still there: tell who watches it.
    with contextlib.suppress(NodeMissingError):
        session.calls.write(
            lambda: session.connection.set(paths.store, b"", ANY_VERSION)
        )


def _delete_all(session: ZooKeeperSession, paths: Sequence[str]) -> None:
    """Delete the nodes at *paths* that are there and have no children."""
    answers = [
        session.calls.request(lambda path=path: session.connection.delete(path))  # type: ignore[misc]
        for path in paths
    ]
    for path, answer in zip(paths, answers, strict=True):
        try:
            answer.result(session.config.connect_timeout_seconds)
        except (NodeMissingError, NodeNotEmptyError):
            continue
        except TimeoutError:
            message = f"the deletion of {path} was not answered in time"
            raise MayHaveHappenedError(message) from None
