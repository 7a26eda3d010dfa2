"""
`QueueCore`: one contender's place in the queue of a component, without I/O.

Theory of operation
-------------------
An *entry* is one registration: an ephemeral node whose name ends in a sequence number.
The first in the queue holds the component (holding_core.py); everybody else
watches only the one before.  A contender has one entry at a time:

::

    none ──created──► QUEUED ──is first──► HOLDING ──ended──► LEAVING ──deleted──► none
     ▲                  └─────────────deleted by others──────────┘                  │
     └────────────────────────── registers again, at the end ───────────────────────┘

An operator ends a leadership by *marking* the holder's node: its next write then fails.
Belief ends when we see that.  The entry stays first until the contender's revoke
callback has returned, or a lease has passed, and never longer than the session's
timeout.  A node that somebody deletes ends its entry likewise.

Whatever changes something is asked for one at a time; only watches are armed beside it.
After a lost connection nothing is taken for known: the node is looked up again, also
one whose creation was never answered, since a repeated request must make no second
entry (E8).

What the contender is told follows from the `HolderCore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, final

from election.holder import ConfirmRequested, Ended, RevokeDelivered, Suspended
from haservices.zookeeper.holding_core import HEARTBEATS_PER_TIMEOUT
from haservices.zookeeper.paths import in_order
from haservices.zookeeper.queue_belief import QueueBelief
from haservices.zookeeper.queue_effects import (
    AbandonHolding,
    AcceptRequest,
    BeginHolding,
    CreateContender,
    EndHolding,
    ExistsNode,
    Finish,
    LetHoldingAsk,
    ListContenders,
    LogFailure,
    MakeParents,
    NoteLeft,
    NoteRegistered,
    Question,
    QueueEffect,
    ReadNode,
    ReadPublication,
    RefuseRequest,
    RemoveNode,
    TellError,
    Transact,
    WatchOwnNode,
    WatchPredecessor,
)
from haservices.zookeeper.queue_entry import Phase, QueueEntry
from haservices.zookeeper.queue_events import (
    CommitWanted,
    ConfirmWanted,
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
    SessionRefused,
    Stumbled,
    TimePassed,
    TurnCame,
    VersionForgotten,
    VersionKnown,
)
from haservices.zookeeper.queue_leaving import leave, unpublish
from haservices.zookeeper.queue_questions import Asked, Failure, Purpose, failure_of
from haservices.zookeeper.records import ContenderRecord
from nameservice import MayHaveHappenedError, SessionExpiredError
from nameservice.clock import earliest


if TYPE_CHECKING:
    from uuid import UUID

    from election.contender import LeaderSession
    from election.holder import HolderCore, HolderEvent
    from haservices.zookeeper.nodes import NodeStat
    from haservices.zookeeper.paths import ComponentPaths


__all__ = ["QueueCore"]

_NS_PER_MS: Final = 1_000_000


@final
class QueueCore:
    """
    One contender, from the start until it has left.

    Two of them given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe but for `told`.

    Args:
        paths: Of the component.
        holder: What the contender believes and was told; stepped by this core alone.
        contender_id: What the names of its nodes begin with.
        client: Who it is, for operators.
        lease_ns: How long a revoke callback may keep the others waiting.
    """

    def __init__(
        self,
        *,
        paths: ComponentPaths,
        holder: HolderCore,
        contender_id: str,
        client: str,
        lease_ns: int,
    ) -> None:
        self._paths = paths
        self._belief = QueueBelief(holder)
        self._contender_id = contender_id
        self._client = client
        self._lease_ns = lease_ns
        self._entry: QueueEntry | None = None
        self._entry_count = 0
        self._asked: Asked | None = None
        self._is_holding = False
        self._is_closing = False
        self._is_finished = False
        self._session_id = 0
        self._timeout_ns = 0
        self._pause_due_ns: int | None = None
        self._now_ns = 0

    @property
    def told(self) -> LeaderSession | None:
        """Return the leadership that the contender holds, as far as it was told."""
        return self._belief.told

    def next_deadline_ns(self) -> int | None:
        """Return when `TimePassed` is due, or None if it need not come."""
        leave_due_ns = None if self._entry is None else self._entry.leave_due_ns
        deadlines = (self._pause_due_ns, leave_due_ns)
        return earliest(deadlines)

    def step(self, event: QueueEvent, *, now_ns: int) -> tuple[QueueEffect, ...]:
        """Take *event* into account; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[QueueEffect] = []
        match event:
            case TurnCame():
                self._turn(event, effects)
            case QuestionAnswered():
                self._answered(event, effects)
            case QuestionFailed(error=error):
                self._failed(error, effects)
            case Stumbled(error=error):
                self._stumble(error, effects)
            case ContenderCreated(number=number, path=path):
                if self._entry is None or self._entry.number != number:
                    effects.append(RemoveNode(path=path))
            case OwnNodeWatched(number=number, stat=stat):
                if self._entry is not None and self._entry.number == number:
                    self._own_node_seen(self._entry, stat, effects)
            case (
                OwnNodeChanged()
                | PredecessorChanged()
                | VersionKnown()
                | VersionForgotten()
                | PublicationSent()
            ):
                if self._entry is not None:
                    self._entry.change(event)
            case EntryEnded():
                if self._entry is not None:
                    self._end(self._entry, effects)
            case ContactRestored():
                self._session_id = event.session_id
                self._timeout_ns = event.session_timeout_ns
                self._pause_due_ns = None
                if self._entry is not None:
                    self._entry.forget()
            case ContactSuspended():
                if self._entry is not None:
                    self._entry.forget()
                self._tell_holder(Suspended(), effects)
            case SessionOver():
                self._lose_entry(effects)
            case SessionRefused(error=error):
                effects.append(TellError(error=error))
                self._lose_entry(effects)
            case ConfirmWanted():
                self._confirm(event, effects)
            case CommitWanted(session=session):
                self._accept(effects, is_ours=session == self._belief.told)
            case RevocationDelivered():
                self._tell_holder(RevokeDelivered(), effects)
            case HolderTold(event=told):
                self._tell_holder(told, effects)
            case ContenderClosed():
                self._close(effects)
            case TimePassed():
                self._pass_time()
            case _:
                assert_never(event)
        self.check_invariants()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        entry = self._entry
        if entry is None:
            assert not self._is_holding
        if self._is_holding:
            assert entry is not None
            assert entry.phase is Phase.HOLDING
            assert not self._is_closing
        if self._is_closing:
            assert self._belief.told is None
        if self._is_finished:
            assert entry is None
            assert self._asked is None

    # -- asking ----------------------------------------------------------------------

    def _turn(self, event: TurnCame, effects: list[QueueEffect]) -> None:
        """Do what comes next."""
        assert self._asked is None
        entry = self._entry
        if entry is None and self._is_closing:
            self._pause_due_ns = None
            self._is_finished = True
            effects.append(Finish())
        elif self._pause_due_ns is not None or not event.is_connected:
            return  # until it is over, or contact restored
        elif entry is None:
            self._register(event.leader_session_id, effects)
        elif entry.path is None:
            # The sync makes sure that what our former server passed on has arrived.
            self._ask(ListContenders(is_synced=True), effects, Purpose.FIND)
        elif self._is_closing or entry.may_leave:
            self._ask(leave(entry, self._paths), effects, Purpose.LEAVE)
        elif entry.phase is Phase.LEAVING:
            return  # until the contender has stopped leading
        elif not entry.is_version_known:
            self._ask(ReadNode(path=entry.path), effects)
        else:
            if not entry.is_watched:
                entry.is_watched = True
                effects.append(WatchOwnNode(number=entry.number, path=entry.path))
            if self._is_holding:
                effects.append(LetHoldingAsk(version=entry.version))
            elif not entry.is_place_known:
                self._ask(ListContenders(is_synced=False), effects, Purpose.PLACE)

    def _ask(
        self,
        question: Question,
        effects: list[QueueEffect],
        purpose: Purpose | None = None,
    ) -> None:
        self._asked = Asked(question, self._now_ns, purpose)
        effects.append(question)

    def _register(self, leader_session_id: UUID, effects: list[QueueEffect]) -> None:
        self._entry_count += 1
        self._entry = QueueEntry(
            number=self._entry_count,
            session_id=self._session_id,
            record=ContenderRecord(
                leader_session_id=leader_session_id,
                client=self._client,
                session_timeout_ms=self._timeout_ns // _NS_PER_MS,
            ),
        )
        self._ask(
            CreateContender(number=self._entry_count, record=self._entry.record),
            effects,
        )

    # -- answers ---------------------------------------------------------------------

    def _take_asked(self) -> tuple[Asked, QueueEntry | None]:
        asked, self._asked = self._asked, None
        assert asked is not None
        return asked, self._entry

    def _answered(self, event: QuestionAnswered, effects: list[QueueEffect]) -> None:
        asked, entry = self._take_asked()
        if isinstance(asked.question, MakeParents):
            return
        assert entry is not None
        match asked.question:
            case CreateContender():
                self._created(entry, event, asked.asked_ns, effects)
            case ListContenders():
                if asked.purpose is Purpose.FIND:
                    self._find(event.names, effects)
                else:
                    self._take_place(entry, event.names, effects)
            case ExistsNode(path=path):
                self._adopt(entry, path, event.stat)
            case ReadNode():
                assert event.node is not None
                if entry.read(event.node):
                    self._end(entry, effects)
            case WatchPredecessor():
                entry.is_place_known = event.stat is not None
            case ReadPublication():
                assert event.node is not None
                question = unpublish(entry, event.node, event.stat, self._paths)
                if question is None:
                    self._left(entry, effects)
                else:
                    self._ask(question, effects, Purpose.UNPUBLISH)
            case Transact():
                self._left(entry, effects)
            case _:
                assert_never(asked.question)

    def _created(
        self,
        entry: QueueEntry,
        event: QuestionAnswered,
        sent_ns: int,
        effects: list[QueueEffect],
    ) -> None:
        stat = event.stat
        assert stat is not None
        if stat.owner_session_id != entry.session_id:
            # Asked for in the session that has just ended, done in the next one.
            self._entry = None
            effects.append(RemoveNode(path=event.path))
            return
        entry.exists(event.path, stat)
        entry.version = stat.version
        entry.is_version_known = True
        effects.append(
            NoteRegistered(path=event.path, epoch=entry.epoch, sent_ns=sent_ns)
        )

    def _find(self, names: tuple[str, ...], effects: list[QueueEffect]) -> None:
        """Look whether the node whose creation was not answered is there."""
        found = [
            name for name in in_order(names) if name.startswith(self._contender_id)
        ]
        if found:
            # An earlier one is of an earlier session, and about to go.
            self._ask(ExistsNode(path=self._paths.contender(found[-1])), effects)
        else:
            self._entry = None

    def _adopt(self, entry: QueueEntry, path: str, stat: NodeStat | None) -> None:
        if stat is None or stat.owner_session_id != entry.session_id:
            self._entry = None
        else:
            entry.exists(path, stat)

    def _own_node_seen(
        self, entry: QueueEntry, stat: NodeStat | None, effects: list[QueueEffect]
    ) -> None:
        if stat is None:
            self._end(entry, effects)
        elif stat.version != entry.version:
            # Answers come in order: no write of ours can be what makes it differ.
            entry.is_version_known = False

    def _take_place(
        self, entry: QueueEntry, names: tuple[str, ...], effects: list[QueueEffect]
    ) -> None:
        """Find our place in the queue: hold the component, or watch the one before."""
        if entry.phase is not Phase.QUEUED or self._is_closing:
            return  # ended meanwhile
        queue = [self._paths.contender(name) for name in in_order(names)]
        if entry.path not in queue:
            self._end(entry, effects)
            return
        place = queue.index(entry.path)
        effects += entry.forget_predecessor()
        if place > 0:
            entry.predecessor = queue[place - 1]
            self._ask(WatchPredecessor(path=entry.predecessor), effects)
        else:
            entry.phase = Phase.HOLDING
            self._is_holding = True
            effects.append(BeginHolding(entry=entry.known()))

    # -- failures --------------------------------------------------------------------

    def _failed(self, error: Exception, effects: list[QueueEffect]) -> None:
        asked, entry = self._take_asked()
        failure = failure_of(asked, error)
        match failure:
            case Failure.UNKNOWN:
                self._stumble(error, effects)
            case Failure.NOT_CREATED:
                self._entry = None
                self._stumble(error, effects)
            case Failure.PARENTS_MISSING:
                self._entry = None
                self._ask(MakeParents(), effects)
            case Failure.NEVER_CREATED:
                self._entry = None
            case _:
                assert entry is not None
                self._heed(failure, entry, effects)

    def _heed(
        self, failure: Failure, entry: QueueEntry, effects: list[QueueEffect]
    ) -> None:
        """Go on with an entry of which something is gone."""
        match failure:
            case Failure.NODE_GONE:
                self._end(entry, effects)
            case Failure.PUBLICATION_GONE:
                entry.may_have_published = False
            case Failure.NODE_GONE_ALREADY if entry.may_have_published:
                self._ask(ReadPublication(), effects)
            case _:
                self._left(entry, effects)

    def _stumble(self, error: Exception, effects: list[QueueEffect]) -> None:
        """Try again later, whatever it was; tell the contender unless it is usual."""
        if self._entry is not None:
            self._entry.is_version_known = False
        pause_ns = self._timeout_ns
        if isinstance(error, MayHaveHappenedError | SessionExpiredError):
            pause_ns //= HEARTBEATS_PER_TIMEOUT
        else:
            effects.append(LogFailure(error=error))
            if not self._is_closing:
                effects.append(TellError(error=error))
        if self._pause_due_ns is None:
            self._pause_due_ns = self._now_ns + pause_ns

    # -- the end ---------------------------------------------------------------------

    def _end(self, entry: QueueEntry, effects: list[QueueEffect]) -> None:
        """Stop leading; leave the queue as soon as the contender has noticed."""
        if entry.phase is Phase.LEAVING:
            return
        entry.phase = Phase.LEAVING
        is_held = self._belief.epoch_claimed == entry.epoch
        self._stop_leading(entry, effects)
        if not is_held:
            entry.may_leave = True
        if not entry.may_leave:
            # Belief is over since the holder was told.  The lease is for the callback:
            # the others wait no longer for it than on a LeaderServer.
            entry.leave_due_ns = self._now_ns + min(self._lease_ns, self._timeout_ns)

    def _stop_leading(self, entry: QueueEntry, effects: list[QueueEffect]) -> None:
        self._stop_holding(effects)
        if entry.epoch > 0:
            self._tell_holder(Ended(epoch=entry.epoch), effects)

    def _stop_holding(self, effects: list[QueueEffect]) -> None:
        if self._is_holding:
            self._is_holding = False
            effects.append(EndHolding())

    def _left(self, entry: QueueEntry, effects: list[QueueEffect]) -> None:
        effects.append(NoteLeft(path=entry.node, epoch=entry.epoch))
        effects += entry.forget_watches()
        self._entry = None

    def _lose_entry(self, effects: list[QueueEffect]) -> None:
        """Take our entry for deleted: it was ephemeral."""
        self._asked = None
        entry = self._entry
        if entry is not None:
            if self._is_holding:
                effects.append(AbandonHolding())
            self._stop_leading(entry, effects)
            effects += entry.forget_watches()
            self._entry = None

    def _close(self, effects: list[QueueEffect]) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._belief.close()
            self._pause_due_ns = None
            self._stop_holding(effects)

    def _pass_time(self) -> None:
        if self._pause_due_ns is not None and self._now_ns >= self._pause_due_ns:
            self._pause_due_ns = None
        if self._entry is not None:
            self._entry.pass_time(self._now_ns)

    # -- what the contender believes, and is told ------------------------------------

    def _confirm(self, event: ConfirmWanted, effects: list[QueueEffect]) -> None:
        requested = ConfirmRequested(
            leader_session_id=event.leader_session_id, address=event.address
        )
        confirm_count = self._belief.confirm(requested, effects, now_ns=self._now_ns)
        self._accept(
            effects, is_ours=confirm_count is not None, confirm_count=confirm_count or 0
        )

    def _accept(
        self, effects: list[QueueEffect], *, is_ours: bool, confirm_count: int = 0
    ) -> None:
        """Have what is wanted done if *is_ours* and we hold the component."""
        if is_ours and self._is_holding:
            effects.append(AcceptRequest(confirm_count=confirm_count))
        else:
            effects.append(RefuseRequest(epoch=self._belief.epoch_claimed))

    def _tell_holder(self, event: HolderEvent, effects: list[QueueEffect]) -> None:
        stopped = self._belief.tell(event, effects, now_ns=self._now_ns)
        if self._entry is not None and self._entry.epoch in stopped:
            self._entry.may_leave = True
