"""`HoldingCore` against a node that is written, marked and deleted."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from election.contender import LeaderSession
from election.holder import Affirmed, Lost, Suspended
from haservices.zookeeper.holding_core import HoldingCore
from haservices.zookeeper.holding_effects import (
    AnswerRequest,
    EndEntry,
    FailRequest,
    ForgetVersion,
    HoldingEffect,
    KnowVersion,
    ReadLeaderNode,
    RefuseRequest,
    SendSync,
    Tell,
    Transact,
    WriteNode,
)
from haservices.zookeeper.holding_events import (
    CommitAsked,
    ConfirmAsked,
    ConnectionRestored,
    HoldingClosed,
    HoldingEvent,
    QuestionAnswered,
    QuestionFailed,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    NodeExistsError,
    NodeMissingError,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.records import ContenderRecord
from haservices.zookeeper.renewals import ConnectionOpened, Renewals
from nameservice import MayHaveHappenedError
from tests.tiers import machine_settings


TIMEOUT_NS = 1_000
NODE = "/contenders/a-0000000001"
LEADER = "/leader"
SESSION = LeaderSession(leader_session_id=uuid.UUID(int=7), epoch=41)

Question = SendSync | WriteNode | Transact | ReadLeaderNode


class HoldingMachine(RuleBasedStateMachine):
    """
    One node, at a version, and a core that asks one question at a time.

    The model is the node itself: whether a question can commit is looked up there.
    """

    @initialize()
    def begin(self) -> None:
        """Begin as the first in the queue, just after a handshake."""
        self.now_ns = 1_000
        self.renewals = Renewals()
        self.connect()
        self.core = HoldingCore(
            session=SESSION,
            record=ContenderRecord(
                leader_session_id=SESSION.leader_session_id,
                client="me",
                session_timeout_ms=1,
            ),
            node=NODE,
            leader=LEADER,
            component="/component",
            renewals=self.renewals,
            confirm_timeout_ns=10 * TIMEOUT_NS,
        )
        # ZooKeeper.
        self.version: int | None = 0
        self.is_published = False
        # What the contender knows.
        self.known: int | None = 0
        self.question: Question | None = None
        self.asked_ns = 0
        # What was asked for and came of it.
        self.number = 0
        self.waiting: set[int] = set()
        self.is_over = False
        self.written_ns: int | None = None
        self.believed_ns = 0

    def connect(self) -> None:
        """Answer a handshake at once."""
        self.renewals.step(
            ConnectionOpened(
                session_id=1, session_timeout_ns=TIMEOUT_NS, sent_ns=self.now_ns
            ),
            now_ns=self.now_ns,
        )

    def step(self, event: HoldingEvent, *, may_affirm: bool = False) -> None:
        """Tell the core, and do what it wants."""
        for effect in self.core.step(event, now_ns=self.now_ns):
            self.perform(effect, may_affirm=may_affirm)

    def perform(self, effect: HoldingEffect, *, may_affirm: bool) -> None:
        """Do one thing, or check it."""
        match effect:
            case SendSync() | WriteNode() | Transact() | ReadLeaderNode():
                assert self.question is None
                assert not self.is_over
                self.question = effect
                self.asked_ns = self.now_ns
                if isinstance(effect, Transact):
                    first = effect.operations[0]
                    assert isinstance(first, CheckNode | SetNode)
                    assert (first.path, first.version) == (NODE, self.known)
            case Tell(event=Affirmed(session=session, until_ns=until_ns)):
                assert session == SESSION
                assert may_affirm, "only a write of our own node is a ground"
                assert until_ns <= max(
                    self.believed_ns, self.asked_ns + TIMEOUT_NS * 2 // 3
                )
                self.believed_ns = until_ns
            case Tell(event=Suspended()):
                assert self.now_ns >= self.believed_ns
            case Tell(event=Lost()):
                assert self.written_ns is not None
                assert self.now_ns >= self.written_ns + TIMEOUT_NS
            case KnowVersion(version=version):
                self.known = version
            case ForgetVersion():
                self.known = None
            case EndEntry():
                self.step(HoldingClosed())
                self.is_over = True
            case AnswerRequest() | FailRequest() | RefuseRequest():
                self.waiting.remove(effect.number)
            case _:
                pass

    # -- the contender -----------------------------------------------------------------

    @precondition(lambda self: self.question is None and not self.is_over)
    @rule()
    def turn(self) -> None:
        """Look at the node if need be, then have the core ask."""
        if self.known is None:
            self.known = self.version
        if self.known is None:
            return
        self.step(TurnCame(version=self.known))
        assert self.question is not None or (
            self.written_ns is not None
            and self.now_ns < self.written_ns + TIMEOUT_NS // 10
        ), "a heartbeat was due"

    @precondition(lambda self: not self.is_over)
    @rule(is_confirm=st.booleans())
    def request(self, is_confirm: bool) -> None:
        """Confirm, or commit to the store."""
        self.number += 1
        self.waiting.add(self.number)
        if is_confirm:
            self.step(
                ConfirmAsked(
                    number=self.number, address="a:1", confirm_count=self.number
                )
            )
        else:
            put = SetNode(path="/store/x", value=b"1")
            self.step(CommitAsked(number=self.number, operations=(put,)))

    @rule(passed_ns=st.integers(min_value=1, max_value=300))
    def pass_time(self, passed_ns: int) -> None:
        """Move time on, and tell at each deadline in between."""
        end_ns = self.now_ns + passed_ns
        while True:
            due_ns = self.core.next_deadline_ns()
            if due_ns is None or due_ns > end_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            self.step(TimePassed())
        self.now_ns = end_ns

    @rule()
    def close(self) -> None:
        """End the entry."""
        self.step(HoldingClosed())
        self.is_over = True

    # -- ZooKeeper ---------------------------------------------------------------------

    @rule()
    def mark(self) -> None:
        """Have an operator set the node."""
        if self.version is not None:
            self.version += 1

    @rule()
    def delete(self) -> None:
        """Have somebody delete it."""
        self.version = None

    @precondition(lambda self: self.question is not None)
    @rule(is_answer_lost=st.booleans())
    def answer(self, is_answer_lost: bool) -> None:
        """Do what is under way; its answer comes, or the connection breaks."""
        question, self.question = self.question, None
        event, is_write = self.outcome(question)
        if is_answer_lost:
            self.known = None
            self.step(QuestionFailed(error=MayHaveHappenedError("lost")))
            self.connect()
            self.step(ConnectionRestored())
            return
        if is_write:
            self.written_ns = self.asked_ns
        self.step(event, may_affirm=is_write)

    def outcome(self, question: Question | None) -> tuple[HoldingEvent, bool]:
        """Do *question*; return what comes of it, and whether our node was written."""
        match question:
            case SendSync():
                return QuestionAnswered(), False
            case WriteNode(version=version):
                if self.version is None:
                    return QuestionFailed(error=NodeMissingError(NODE)), False
                if self.version != version:
                    return QuestionFailed(error=NodeVersionError(NODE)), False
                self.version += 1
                return QuestionAnswered(version=self.version), True
            case ReadLeaderNode():
                return QuestionAnswered(is_ours=True), False
            case Transact(operations=operations, is_publication=is_publication):
                error = self.transaction_error(operations[0], operations[1])
                if error is not None:
                    return QuestionFailed(error=error), False
                if is_publication:
                    assert self.version is not None
                    self.version += 1
                    self.is_published = True
                return QuestionAnswered(), is_publication
        raise AssertionError(question)

    def transaction_error(
        self, first: object, second: object
    ) -> TransactionFailedError | None:
        """Return why a transaction fails, if it does."""
        assert isinstance(first, CheckNode | SetNode)
        if self.version is None:
            return TransactionFailedError(0, NodeMissingError(NODE))
        if first.version != self.version:
            return TransactionFailedError(0, NodeVersionError(NODE))
        if isinstance(second, CreateNode) and self.is_published:
            return TransactionFailedError(1, NodeExistsError(LEADER))
        if (
            isinstance(second, SetNode)
            and second.path == LEADER
            and not self.is_published
        ):
            return TransactionFailedError(1, NodeMissingError(LEADER))
        return None

    @invariant()
    def nothing_waits_in_silence(self) -> None:
        """L4: after the end only what is under way waits."""
        if getattr(self, "is_over", False):
            assert len(self.waiting) <= 1
            assert not self.waiting or isinstance(self.question, Transact)


TestHolding = pytest.mark.proves("E3", "E4")(HoldingMachine.TestCase)
TestHolding.settings = machine_settings()
