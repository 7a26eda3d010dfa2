"""
`HoldingCore`: what a contender that is first in the queue does, and when, without I/O.

Theory of operation
-------------------
One question at a time is under way, since an answer must fit what it finds.  The
contender tells the core when it may ask the next one (`TurnCame`), and what came of the
last one (`QuestionAnswered`, `QuestionFailed`).  A heartbeat goes first when it is due:
a ``sync``, then a write of our own node that names the version it expects.  Then what
was requested, in order.

Belief follows from writes of our own node that committed, and from nothing else: it
counts from when the question was *asked*, and is bounded by `Renewals` (E4).  A confirm
is such a write; what else it writes is known to `HoldingPublication`.  One that was
never answered is looked for: who has confirmed is not ended for want of it (E3).  A
commit of the leader store begins with a check of our node's version, and so fails once
the node is gone or marked (L2).

::

    TurnCame ──due──► SendSync ──answered──► TurnCame ──► WriteNode ──committed──► Tell
       └──requested──► Transact ──committed──► AnswerRequest
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, final

import attrs
import msgspec
from attrs import frozen

from election.holder import Affirmed, Lost, Suspended
from haservices.zookeeper.holding_effects import (
    AnswerRequest,
    EndEntry,
    FailRequest,
    ForgetVersion,
    KnowVersion,
    NoteWrite,
    ReadLeaderNode,
    RefuseRequest,
    SendSync,
    Stumble,
    Tell,
    Transact,
    WatchLeaderNode,
    WriteNode,
)
from haservices.zookeeper.holding_events import (
    CommitAsked,
    ConfirmAsked,
    ConnectionRestored,
    HoldingClosed,
    LeaderNodeChanged,
    LeaderNodeWatched,
    QuestionAnswered,
    QuestionFailed,
    RequestWithdrawn,
    SessionEnded,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.holding_publication import HoldingPublication
from haservices.zookeeper.nodes import (
    CheckNode,
    NodeExistsError,
    NodeMissingError,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.records import ContenderRecord, encode_record
from haservices.zookeeper.renewals import WriteCommitted
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    SessionExpiredError,
)
from nameservice.clock import earliest


if TYPE_CHECKING:
    from election.contender import LeaderSession
    from haservices.zookeeper.holding_effects import HoldingEffect
    from haservices.zookeeper.holding_events import HoldingEvent
    from haservices.zookeeper.renewals import Renewals


__all__ = ["HEARTBEATS_PER_TIMEOUT", "HoldingCore"]

HEARTBEATS_PER_TIMEOUT: Final = 10

_ATTEMPT_COUNT_MAX: Final = 10


@attrs.define(eq=False)
class _Request:
    """A request that was not answered yet."""

    asked: ConfirmAsked | CommitAsked
    is_sent: bool = False
    attempt_count: int = 0


@frozen
class _Question:
    """What is under way, and since when."""

    effect: SendSync | WriteNode | Transact | ReadLeaderNode
    asked_ns: int
    record: ContenderRecord | None = None


@final
class HoldingCore:
    """
    One time of being first in the queue.

    Two of them given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe.

    Args:
        session: The leadership.
        record: What our own node says now.
        node: Our own node.
        leader: The leader's node.
        component: The component's node.
        renewals: What is proven of the session's renewals.
        confirm_timeout_ns: How long a grant waits to be confirmed.
    """

    def __init__(
        self,
        *,
        session: LeaderSession,
        record: ContenderRecord,
        node: str,
        leader: str,
        component: str,
        renewals: Renewals,
        confirm_timeout_ns: int,
    ) -> None:
        self._session = session
        self._record = record
        self._node = node
        self._publication = HoldingPublication(
            session, leader=leader, component=component
        )
        self._renewals = renewals
        self._confirm_timeout_ns = confirm_timeout_ns
        self._requests: dict[int, _Request] = {}
        self._question: _Question | None = None
        self._is_over = False
        self._is_leader_watched = False
        self._is_witnessed = True
        self._version = 0
        self._committed_ns = 0
        self._belief_ends_ns = 0
        self._heartbeat_due_ns = 0
        self._wake_ns: int | None = None
        self._belief_due_ns: int | None = None
        self._confirm_due_ns: int | None = None
        self._now_ns = 0

    def next_deadline_ns(self) -> int | None:
        """Return when `TimePassed` is due, or None if it need not come."""
        deadlines = (self._wake_ns, self._belief_due_ns, self._judged_ns)
        return earliest(deadlines)

    def step(self, event: HoldingEvent, *, now_ns: int) -> tuple[HoldingEffect, ...]:
        """Take *event* into account; return what to do, in order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects: list[HoldingEffect] = []
        match event:
            case TurnCame(version=version):
                self._turn(version, effects)
            case QuestionAnswered():
                self._answered(event, effects)
            case QuestionFailed(error=error):
                self._failed(error, effects)
            case ConfirmAsked() | CommitAsked():
                self._requests[event.number] = _Request(event)
            case RequestWithdrawn(number=number):
                request = self._requests.get(number)
                if request is not None and not request.is_sent:
                    del self._requests[number]
            case ConnectionRestored():
                self._is_leader_watched = False
                self._heartbeat_due_ns = 0
                self._is_witnessed = True  # the handshake is as good
            case LeaderNodeWatched(is_ours=is_ours):
                if not is_ours:
                    self._end(effects)
            case LeaderNodeChanged():
                self._is_leader_watched = False
            case TimePassed():
                self._pass_time(effects)
            case SessionEnded():
                self._abandon(effects)
            case HoldingClosed():
                self._close(effects)
            case _:
                assert_never(event)
        self.check_invariants()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps."""
        sent = [request for request in self._requests.values() if request.is_sent]
        assert len(sent) <= 1
        if self._is_over:
            assert self.next_deadline_ns() is None
            assert len(self._requests) == len(sent)

    # -- asking --------------------------------------------------------------------

    def _turn(self, version: int, effects: list[HoldingEffect]) -> None:
        assert self._question is None
        if self._is_over:
            return
        self._version = version
        if self._publication.is_confirmed and not self._is_leader_watched:
            self._is_leader_watched = True
            effects.append(WatchLeaderNode())
        if self._now_ns >= self._heartbeat_due_ns:
            if self._is_witnessed:
                record = msgspec.structs.replace(self._record, is_granted=True)
                self._ask(WriteNode(record=record, version=version), effects, record)
            else:
                self._ask(SendSync(), effects)
        elif self._publication.is_doubted:
            self._ask(ReadLeaderNode(), effects)
        elif self._requests:
            request = next(iter(self._requests.values()))
            request.is_sent = True
            request.attempt_count += 1
            match request.asked:
                case ConfirmAsked():
                    self._publish(request.asked, effects)
                case CommitAsked(number=number, operations=operations):
                    check = CheckNode(path=self._node, version=version)
                    self._ask(
                        Transact(
                            number=number,
                            operations=(check, *operations),
                            is_publication=False,
                        ),
                        effects,
                    )
                case _:
                    assert_never(request.asked)
        else:
            self._wake_ns = self._heartbeat_due_ns

    def _ask(
        self,
        effect: SendSync | WriteNode | Transact | ReadLeaderNode,
        effects: list[HoldingEffect],
        record: ContenderRecord | None = None,
    ) -> None:
        self._question = _Question(effect, self._now_ns, record)
        self._wake_ns = None
        effects.append(effect)

    def _publish(self, asked: ConfirmAsked, effects: list[HoldingEffect]) -> None:
        record = msgspec.structs.replace(self._record, address=asked.address)
        own = SetNode(
            path=self._node, value=encode_record(record), version=self._version
        )
        self._ask(
            Transact(
                number=asked.number,
                operations=(own, *self._publication.operations(asked)),
                is_publication=True,
            ),
            effects,
            record,
        )

    # -- answers -------------------------------------------------------------------

    def _take_question(self) -> _Question:
        question, self._question = self._question, None
        assert question is not None
        return question

    def _answered(self, event: QuestionAnswered, effects: list[HoldingEffect]) -> None:
        question = self._take_question()
        match question.effect:
            case SendSync():
                self._is_witnessed = True
            case WriteNode():
                self._commit(question, event.version, effects)
            case Transact(number=number, is_publication=is_publication):
                if is_publication:
                    self._publication.confirmed()
                    self._confirm_due_ns = None
                    self._commit(question, self._version + 1, effects)
                del self._requests[number]
                effects.append(AnswerRequest(number=number))
            case ReadLeaderNode():
                record = self._publication.seen(is_ours=event.is_ours)
                if record is not None:
                    self._record = record
                    self._confirm_due_ns = None
            case _:
                assert_never(question.effect)

    def _commit(
        self, question: _Question, version: int, effects: list[HoldingEffect]
    ) -> None:
        """Conclude what follows from a write of our own node that committed."""
        assert question.record is not None
        self._record = question.record
        sent_ns = question.asked_ns
        timeout_ns = self._renewals.timeout_ns
        self._heartbeat_due_ns = sent_ns + timeout_ns // HEARTBEATS_PER_TIMEOUT
        self._is_witnessed = False
        self._committed_ns = max(self._committed_ns, sent_ns)
        self._renewals.step(WriteCommitted(sent_ns=sent_ns), now_ns=self._now_ns)
        effects += (KnowVersion(version=version), NoteWrite(sent_ns=sent_ns))
        if self._is_over:
            return  # it was ended while the write was under way
        self._belief_ends_ns = max(
            self._belief_ends_ns, self._renewals.belief_ends_ns(sent_ns)
        )
        effects.append(
            Tell(event=Affirmed(session=self._session, until_ns=self._belief_ends_ns))
        )
        self._check_belief(effects)
        is_told = self._now_ns < self._belief_ends_ns
        is_confirmed = self._publication.is_confirmed
        if is_told and not is_confirmed and self._confirm_due_ns is None:
            self._confirm_due_ns = self._now_ns + self._confirm_timeout_ns

    def _failed(self, error: Exception, effects: list[HoldingEffect]) -> None:
        question = self._take_question()
        match question.effect:
            case SendSync():
                effects.append(Stumble())
            case WriteNode():
                if not self._own_node_failed(error, effects):
                    effects.append(Stumble())
            case Transact(number=number):
                request = self._requests[number]
                self._transaction_failed(request, question.record, error, effects)
            case ReadLeaderNode():
                if isinstance(error, NodeMissingError):  # or it is gone again
                    self._publication.unseen()
                else:
                    effects.append(Stumble())
            case _:
                assert_never(question.effect)

    def _own_node_failed(self, error: Exception, effects: list[HoldingEffect]) -> bool:
        """Return whether it was our own node that was not as expected."""
        if isinstance(error, NodeMissingError):
            self._end(effects)
            return True
        if isinstance(error, NodeVersionError):
            # Marked by an operator, or an answer of ours was lost: it is looked at.
            effects.append(ForgetVersion())
            return True
        return False

    def _transaction_failed(
        self,
        request: _Request,
        record: ContenderRecord | None,
        error: Exception,
        effects: list[HoldingEffect],
    ) -> None:
        if isinstance(error, ConfigurationError | LocalProtocolError):
            self._fail(request, error, effects)  # it was not sent: nothing else is hurt
            return
        if not isinstance(error, TransactionFailedError):
            if record is not None:
                self._publication.doubt(record)
            self._fail(request, _in_doubt(error), effects)
            effects.append(Stumble())
            return
        # Nothing was done, and nothing is on its way any more.
        request.is_sent = False
        asked = request.asked
        if self._is_over:
            del self._requests[asked.number]
            effects.append(RefuseRequest(number=asked.number))
        elif request.attempt_count >= _ATTEMPT_COUNT_MAX:
            message = f"others interfered {_ATTEMPT_COUNT_MAX} times: {error}"
            self._fail(request, DidNotHappenError(message), effects)
        elif error.index == 0:
            if not self._own_node_failed(error.error, effects):
                self._fail(request, error.error, effects)
        elif isinstance(asked, CommitAsked):
            # The caller counts its own operations, ours goes before them.
            counted = TransactionFailedError(error.index - 1, error.error)
            self._fail(request, counted, effects)
        elif isinstance(error.error, NodeExistsError):
            self._ask(ReadLeaderNode(), effects)
        elif not isinstance(error.error, NodeMissingError):
            self._fail(request, error.error, effects)
        elif self._publication.missed():
            self._end(effects)  # somebody has ended what we had published

    def _fail(
        self, request: _Request, error: Exception, effects: list[HoldingEffect]
    ) -> None:
        del self._requests[request.asked.number]
        effects.append(FailRequest(number=request.asked.number, error=error))

    # -- time and the end ----------------------------------------------------------

    @property
    def _judged_ns(self) -> int | None:
        """Return when it is too late to confirm, unless that was done perhaps."""
        return None if self._publication.is_doubted else self._confirm_due_ns

    def _pass_time(self, effects: list[HoldingEffect]) -> None:
        if self._wake_ns is not None and self._now_ns >= self._wake_ns:
            self._wake_ns = None  # the turn that follows finds the heartbeat due
        if self._belief_due_ns is not None and self._now_ns >= self._belief_due_ns:
            self._check_belief(effects)
        if self._judged_ns is not None and self._now_ns >= self._judged_ns:
            self._confirm_due_ns = None
            self._end(effects)

    def _check_belief(self, effects: list[HoldingEffect]) -> None:
        """Tell when belief has ended, and when nothing commits at all; come back."""
        self._belief_due_ns = self._belief_ends_ns
        if self._now_ns >= self._belief_due_ns:
            self._belief_due_ns = self._committed_ns + self._renewals.timeout_ns
            if self._now_ns >= self._belief_due_ns:
                self._belief_due_ns = None  # the next write that commits begins anew
                effects.append(Tell(event=Lost()))
            else:
                effects.append(Tell(event=Suspended()))

    def _end(self, effects: list[HoldingEffect]) -> None:
        """End the entry; the contender closes us."""
        if not self._is_over:
            effects.append(EndEntry())

    def _close(self, effects: list[HoldingEffect]) -> None:
        self._is_over = True
        self._wake_ns = self._belief_due_ns = self._confirm_due_ns = None
        for number, request in tuple(self._requests.items()):
            if not request.is_sent:
                del self._requests[number]
                effects.append(RefuseRequest(number=number))

    def _abandon(self, effects: list[HoldingEffect]) -> None:
        self._question = None
        for request in tuple(self._requests.values()):
            if request.is_sent and isinstance(request.asked, CommitAsked):
                self._fail(request, _in_doubt(SessionExpiredError()), effects)
            request.is_sent = False
        self._close(effects)


def _in_doubt(error: Exception) -> Exception:
    """Return what a request is answered that was sent when *error* came."""
    if isinstance(error, SessionExpiredError):
        doubt = MayHaveHappenedError("the session ended before the answer came")
        doubt.__cause__ = error
        return doubt
    return error
