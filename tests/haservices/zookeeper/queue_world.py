"""
ZooKeeper as contenders in a queue see it, without a server: for `QueueCore` alone.

Requests of a client are executed in order, and answered in order, with notifications
between the answers.  What is on its way is lost when the connection breaks, and whether
it was executed before is up to the test.  A session's nodes go with it.
"""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from election.holder import Affirmed, DeliverGrant, DeliverRevoke, HolderCore
from haservices.zookeeper.nodes import (
    CheckNode,
    DeleteNode,
    Node,
    NodeMissingError,
    NodeStat,
    NodeVersionError,
    TransactionFailedError,
)
from haservices.zookeeper.paths import ZooKeeperPaths, in_order
from haservices.zookeeper.queue_core import QueueCore
from haservices.zookeeper.queue_effects import (
    BeginHolding,
    CreateContender,
    Deliver,
    EndHolding,
    ExistsNode,
    Finish,
    LetHoldingAsk,
    ListContenders,
    MakeParents,
    Question,
    QueueEffect,
    ReadNode,
    ReadPublication,
    RemoveNode,
    TellError,
    Transact,
    UnwatchOwnNode,
    UnwatchPredecessor,
    WatchOwnNode,
    WatchPredecessor,
)
from haservices.zookeeper.queue_events import (
    ContactRestored,
    ContactSuspended,
    ContenderClosed,
    ContenderCreated,
    EntryEnded,
    HolderTold,
    OwnNodeChanged,
    OwnNodeWatched,
    PredecessorChanged,
    PublicationSent,
    QuestionAnswered,
    QuestionFailed,
    QueueEvent,
    RevocationDelivered,
    SessionOver,
    TimePassed,
    TurnCame,
    VersionForgotten,
    VersionKnown,
)
from haservices.zookeeper.records import (
    LeaderRecord,
    decode_contender,
    decode_leader,
    encode_record,
)
from nameservice import MayHaveHappenedError


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices.zookeeper.entry import Entry


__all__ = ["LEASE_NS", "PATHS", "TIMEOUT_NS", "Client", "Tree"]

TIMEOUT_NS: Final = 1_000_000_000
LEASE_NS: Final = 700_000_000
PATHS: Final = ZooKeeperPaths("", "test").component("job")


class Tree:
    """The nodes of one component, and who is told of their next change."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.zxid = 100
        self.sequence = 0
        self.component_version = 0
        self.watches: list[tuple[str, Client, QueueEvent]] = []

    @property
    def queue(self) -> list[str]:
        """Return the paths of the contenders' nodes, in order."""
        names = [path.rpartition("/")[2] for path in self.nodes]
        return [PATHS.contender(name) for name in in_order(names)]

    def create(self, path: str, value: bytes, owner: int) -> Node:
        """Create a node; tell who waits for it."""
        self.zxid += 1
        stat = NodeStat(
            version=0,
            owner_session_id=owner,
            created_zxid=self.zxid,
            children_zxid=self.zxid,
        )
        self.nodes[path] = Node(value=value, stat=stat)
        self.changed(path)
        return self.nodes[path]

    def set(self, path: str, value: bytes) -> int:
        """Set a node that is there; return its version."""
        node = self.nodes[path]
        version = node.stat.version + 1
        stat = attrs.evolve(node.stat, version=version)
        self.nodes[path] = Node(value=value, stat=stat)
        self.changed(path)
        return version

    def delete(self, path: str) -> None:
        """Delete a node that is there."""
        del self.nodes[path]
        self.changed(path)

    def changed(self, path: str) -> None:
        """Tell once that the node at *path* has changed."""
        told = [watch for watch in self.watches if watch[0] == path]
        self.watches = [watch for watch in self.watches if watch[0] != path]
        for _, client, event in told:
            client.inbox.append(functools.partial(client.step, event))

    def end_session(self, session_id: int) -> None:
        """Delete what was of that session."""
        for path, node in tuple(self.nodes.items()):
            if node.stat.owner_session_id == session_id:
                self.delete(path)


class Client:
    """A core with a connection to the tree that the test drives."""

    def __init__(self, tree: Tree, number: int) -> None:
        self.tree = tree
        self.number = number
        self.contender_id = f"{number:032x}"
        self.holder = HolderCore(clears_on_suspended=number % 2 == 1)
        self.core = QueueCore(
            paths=PATHS,
            holder=self.holder,
            contender_id=self.contender_id,
            client=f"client {number}",
            lease_ns=LEASE_NS,
        )
        self.now_ns = 0
        self.session_id = number * 1_000
        self.is_session_over = False
        self.is_connected = False
        # Requests that were not executed, and what comes back.
        self.outbox: list[Callable[[], None]] = []
        self.inbox: list[Callable[[], None]] = []
        self.question: object | None = None
        # What executes it: no more in the outbox when that was done.
        self.execution: Callable[[], None] | None = None
        self.entry: Entry | None = None
        self.turn_version: int | None = None
        self.id_count = 0
        self.revokes_under_way = 0
        self.stopped_ns: int | None = None
        self.errors: list[Exception] = []
        self.is_closed = False
        self.is_finished = False

    # -- the shell ---------------------------------------------------------------------

    def step(self, event: QueueEvent) -> None:
        """Tell the core, do what it wants, and give it its turn."""
        self._step(event)
        self.turn()

    def turn(self) -> None:
        """Tell the core that nothing is under way, if so."""
        if self.question is None and not self.is_finished:
            self.id_count += 1
            self._step(
                TurnCame(
                    is_connected=self.is_connected,
                    leader_session_id=uuid.UUID(int=self.number << 32 | self.id_count),
                )
            )

    def _step(self, event: QueueEvent) -> None:
        for effect in self.core.step(event, now_ns=self.now_ns):
            self.perform(effect)

    def perform(self, effect: QueueEffect) -> None:
        """Do one thing, or check it."""
        match effect:
            case RemoveNode(path=path):
                self.outbox.append(lambda: self.remove(path))
            case WatchOwnNode():
                self.outbox.append(lambda: self.watch_own_node(effect))
            case UnwatchOwnNode(path=path):
                self.unwatch(path, OwnNodeChanged())
            case UnwatchPredecessor(path=path):
                self.unwatch(path, PredecessorChanged())
            case BeginHolding(entry=entry):
                assert self.entry is None
                self.entry = entry
            case LetHoldingAsk(version=version):
                assert self.entry is not None
                self.turn_version = version
            case EndHolding():
                assert self.entry is not None
                self.entry = self.turn_version = None
            case Deliver(news=DeliverGrant()):
                assert self.entry is not None
                self.stopped_ns = None
            case Deliver(news=DeliverRevoke()):
                self.revokes_under_way += 1
                self.stopped_ns = self.now_ns
            case TellError(error=error):
                self.errors.append(error)
            case Finish():
                assert self.is_closed
                self.is_finished = True
            case (
                CreateContender()
                | MakeParents()
                | ListContenders()
                | ExistsNode()
                | ReadNode()
                | WatchPredecessor()
                | ReadPublication()
                | Transact()
            ):
                self.ask(effect)
            case _:
                pass

    def ask(self, question: Question) -> None:
        """Put *question* on its way."""
        assert self.question is None
        assert self.is_connected
        if isinstance(question, Transact) and isinstance(
            question.operations[0], DeleteNode
        ):
            # E4: the entry stays until the callback has returned, or for a lease.
            assert self.is_closed or (
                self.core.told is None
                and (
                    self.revokes_under_way == 0
                    or self.stopped_ns is None
                    or self.now_ns >= self.stopped_ns + min(LEASE_NS, TIMEOUT_NS)
                )
            )
        self.question = question

        def execute() -> None:
            session_id = self.session_id
            event = self.outcome(question)

            def answer() -> None:
                if isinstance(question, CreateContender):
                    assert isinstance(event, QuestionAnswered)
                    self._step(
                        ContenderCreated(number=question.number, path=event.path)
                    )
                if self.question is question and self.session_id == session_id:
                    self.question = None
                    self._step(event)
                self.turn()

            self.inbox.append(answer)

        self.execution = execute
        self.outbox.append(execute)

    # -- what ZooKeeper does -----------------------------------------------------------

    def outcome(self, question: Question) -> QuestionAnswered | QuestionFailed:
        """Do *question*; return what comes of it."""
        tree = self.tree
        match question:
            case CreateContender(record=record):
                name = f"{self.contender_id}-{tree.sequence:010d}"
                tree.sequence += 1
                path = PATHS.contender(name)
                node = tree.create(path, encode_record(record), self.session_id)
                return QuestionAnswered(path=path, stat=node.stat)
            case MakeParents():
                return QuestionAnswered()
            case ListContenders():
                names = [path.rpartition("/")[2] for path in tree.queue]
                return QuestionAnswered(names=tuple(reversed(names)))
            case ExistsNode(path=path):
                return QuestionAnswered(stat=self.stat(path))
            case WatchPredecessor(path=path):
                self.watch(path, PredecessorChanged())
                return QuestionAnswered(stat=self.stat(path))
            case ReadNode(path=path):
                if path not in tree.nodes:
                    return QuestionFailed(error=NodeMissingError(path))
                return QuestionAnswered(node=tree.nodes[path])
            case ReadPublication():
                if PATHS.leader not in tree.nodes:
                    return QuestionFailed(error=NodeMissingError(PATHS.leader))
                component = NodeStat(
                    version=tree.component_version,
                    owner_session_id=0,
                    created_zxid=1,
                    children_zxid=1,
                )
                return QuestionAnswered(node=tree.nodes[PATHS.leader], stat=component)
            case Transact():
                return self.transact(question)

    def transact(self, question: Transact) -> QuestionAnswered | QuestionFailed:
        """Do all of a transaction, or nothing."""
        for index, operation in enumerate(question.operations):
            if isinstance(operation, CheckNode):
                if operation.version != self.tree.component_version:
                    error: Exception = NodeVersionError(operation.path)
                    return QuestionFailed(error=TransactionFailedError(index, error))
            elif operation.path not in self.tree.nodes:
                error = NodeMissingError(operation.path)
                return QuestionFailed(error=TransactionFailedError(index, error))
        for operation in question.operations:
            if isinstance(operation, DeleteNode):
                if operation.path == PATHS.leader:
                    # None deletes what another has published.
                    owner = self.tree.nodes[PATHS.leader].stat.owner_session_id
                    assert owner == self.session_id
                self.tree.delete(operation.path)
        return QuestionAnswered()

    def stat(self, path: str) -> NodeStat | None:
        """Return what is known of the node at *path*, or None."""
        node = self.tree.nodes.get(path)
        return None if node is None else node.stat

    def remove(self, path: str) -> None:
        """Delete the node at *path*, if it is there."""
        if path in self.tree.nodes:
            self.tree.delete(path)

    def watch(self, path: str, event: QueueEvent) -> None:
        """Tell once of the next change of *path*."""
        self.unwatch(path, event)
        self.tree.watches.append((path, self, event))

    def unwatch(self, path: str, event: QueueEvent) -> None:
        """Tell no more."""
        self.tree.watches = [
            watch
            for watch in self.tree.watches
            if not (watch[0] == path and watch[1] is self and watch[2] == event)
        ]

    def watch_own_node(self, effect: WatchOwnNode) -> None:
        """Arm the watch, and answer what is there now."""
        self.watch(effect.path, OwnNodeChanged())
        event = OwnNodeWatched(number=effect.number, stat=self.stat(effect.path))
        self.inbox.append(lambda: self.step(event))

    # -- the holding -------------------------------------------------------------------

    def write(self, *, is_publication: bool) -> None:
        """Have the holding write its own node, and publish, if it is its turn."""
        entry, version = self.entry, self.turn_version
        if entry is None or version is None or self.question is not None:
            return
        self.question = token = object()
        if is_publication:
            self._step(PublicationSent())
        asked_ns, session_id = self.now_ns, self.session_id

        def execute() -> None:
            events = self.written(entry, version, asked_ns, is_publication)

            def answer() -> None:
                if self.question is token and self.session_id == session_id:
                    self.question = None
                    for event in events if self.entry is entry else ():
                        self._step(event)
                self.turn()

            self.inbox.append(answer)

        self.execution = execute
        self.outbox.append(execute)

    def written(
        self, entry: Entry, version: int, asked_ns: int, is_publication: bool
    ) -> tuple[QueueEvent, ...]:
        """Write the own node; return what the holding tells then."""
        tree = self.tree
        node = tree.nodes.get(entry.path)
        if node is None:
            return (EntryEnded(),)
        if node.stat.version != version:
            return (VersionForgotten(),)
        record = msgspec.structs.replace(
            decode_contender(node.value, path=entry.path), is_granted=True
        )
        written = tree.set(entry.path, encode_record(record))
        if is_publication:
            assert tree.queue[0] == entry.path
            if PATHS.leader in tree.nodes:
                tree.delete(PATHS.leader)
            publication = LeaderRecord(
                epoch=entry.epoch,
                confirm_count=1,
                leader_session_id=entry.leadership.leader_session_id,
                address="a:1",
            )
            tree.create(PATHS.leader, encode_record(publication), self.session_id)
            tree.component_version += 1
        until_ns = asked_ns + TIMEOUT_NS * 2 // 3
        affirmed = Affirmed(session=entry.leadership, until_ns=until_ns)
        return (VersionKnown(version=written), HolderTold(event=affirmed))

    # -- the connection ----------------------------------------------------------------

    def connect(self) -> None:
        """Open a connection, in another session if the last one is over."""
        if self.is_session_over:
            self.session_id += 1
            self.is_session_over = False
            # Nothing that was asked in a session is executed in another.
            self.outbox.clear()
            self.question = None
            self._step(SessionOver())
        self.is_connected = True
        self.step(
            ContactRestored(session_id=self.session_id, session_timeout_ns=TIMEOUT_NS)
        )

    def disconnect(self, *, is_executed: bool, is_kept: bool) -> None:
        """
        Break the connection; all that is under way goes unanswered.

        Args:
            is_executed: Whether ZooKeeper has executed it.
            is_kept: Whether it is sent again over the next connection; what was
                executed before is not.
        """
        if not self.is_connected:
            return
        if is_executed:
            self.execute_all()
        self.is_connected = False
        self.inbox.clear()
        self.tree.watches = [
            watch for watch in self.tree.watches if watch[1] is not self
        ]
        self._step(ContactSuspended())
        if not is_kept or is_executed:
            self.outbox.clear()
        elif self.question is None or self.execution in self.outbox:
            return
        question, self.question = self.question, None
        error = MayHaveHappenedError("the connection broke")
        if isinstance(
            question,
            CreateContender
            | MakeParents
            | ListContenders
            | ExistsNode
            | ReadNode
            | WatchPredecessor
            | ReadPublication
            | Transact,
        ):
            self._step(QuestionFailed(error=error))
        self.turn()

    def execute(self) -> bool:
        """Have ZooKeeper do the next thing; return whether there was one."""
        if not self.is_connected or not self.outbox:
            return False
        self.outbox.pop(0)()
        return True

    def execute_all(self) -> None:
        """Have ZooKeeper do all that it was asked for."""
        while self.execute():
            pass

    def receive(self) -> bool:
        """Take the next thing that came back; return whether there was one."""
        if not self.is_connected or not self.inbox:
            return False
        self.inbox.pop(0)()
        return True

    # -- the contender -----------------------------------------------------------------

    def close(self) -> None:
        """Leave the election."""
        self.is_closed = True
        self.step(ContenderClosed())

    def return_from_revoke(self) -> bool:
        """Return from a revoke callback; return whether there was one."""
        if self.revokes_under_way == 0:
            return False
        self.revokes_under_way -= 1
        self.step(RevocationDelivered())
        return True

    def pass_time(self, now_ns: int) -> None:
        """Move time on to *now_ns*; tell at each deadline in between."""
        while True:
            due_ns = self.core.next_deadline_ns()
            if due_ns is None or due_ns > now_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.step(TimePassed())
        self.now_ns = now_ns

    # -- when all is quiet -------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """Return the paths of our nodes."""
        return [
            path
            for path in self.tree.queue
            if path.rpartition("/")[2].startswith(self.contender_id)
        ]

    def check_publication(self) -> None:
        """Check that what is published is of this client's present entry."""
        node = self.tree.nodes.get(PATHS.leader)
        if node is not None:
            assert self.entry is not None
            record = decode_leader(node.value, path="leader")
            assert record.epoch == self.entry.epoch
