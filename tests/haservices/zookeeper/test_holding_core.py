from __future__ import annotations

import uuid

import msgspec
import pytest

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
    HoldingEvent,
    LeaderNodeChanged,
    LeaderNodeWatched,
    QuestionAnswered,
    QuestionFailed,
    RequestWithdrawn,
    SessionEnded,
    TimePassed,
    TurnCame,
)
from haservices.zookeeper.nodes import (
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeMissingError,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.records import (
    ContenderRecord,
    decode_contender,
    decode_leader,
    encode_record,
)
from haservices.zookeeper.renewals import ConnectionOpened, Renewals
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    SessionExpiredError,
)


TIMEOUT_NS = 1_000
TENTH_NS = TIMEOUT_NS // 10
BELIEF_NS = TIMEOUT_NS * 2 // 3
CONFIRM_TIMEOUT_NS = 700
NODE = "/contenders/a-0000000001"
LEADER = "/leader"
COMPONENT = "/component"
SESSION = LeaderSession(leader_session_id=uuid.UUID(int=7), epoch=41)
RECORD = ContenderRecord(
    leader_session_id=SESSION.leader_session_id, client="me", session_timeout_ms=1
)
PUT = SetNode(path="/store/x", value=b"1")


class Stage:
    """A core whose time is told, just after a handshake at 1,000."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.renewals = Renewals()
        self.renewals.step(
            ConnectionOpened(
                session_id=1, session_timeout_ns=TIMEOUT_NS, sent_ns=self.now_ns
            ),
            now_ns=self.now_ns,
        )
        self.core = HoldingCore(
            session=SESSION,
            record=RECORD,
            node=NODE,
            leader=LEADER,
            component=COMPONENT,
            renewals=self.renewals,
            confirm_timeout_ns=CONFIRM_TIMEOUT_NS,
        )
        self.version = 0

    def step(self, event: HoldingEvent, *, after_ns: int = 0) -> list[HoldingEffect]:
        """Tell the core; return what it wants."""
        self.now_ns += after_ns
        effects = list(self.core.step(event, now_ns=self.now_ns))
        for effect in effects:
            if isinstance(effect, KnowVersion):
                self.version = effect.version
        return effects

    def turn(self, *, after_ns: int = 0) -> list[HoldingEffect]:
        """Have it ask the next question."""
        return self.step(TurnCame(version=self.version), after_ns=after_ns)

    def answer(self, *, after_ns: int = 0, **fields: bool) -> list[HoldingEffect]:
        """Answer what is under way."""
        return self.step(
            QuestionAnswered(version=self.version + 1, **fields), after_ns=after_ns
        )

    def hold(self) -> None:
        """Commit the first write at once."""
        self.turn()
        self.answer()

    def heartbeat(self, *, after_ns: int) -> list[HoldingEffect]:
        """Answer a sync, and commit the write that follows; return what that does."""
        assert self.turn(after_ns=after_ns) == [SendSync()]
        self.answer()
        (write,) = self.turn()
        assert isinstance(write, WriteNode)
        return self.answer()

    def lose_confirm(self) -> None:
        """Send a confirm whose answer is lost."""
        self.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
        self.turn()
        lost = MayHaveHappenedError("lost")
        failed = FailRequest(number=1, error=lost)
        assert self.step(QuestionFailed(error=lost)) == [failed, Stumble()]

    def confirm(self) -> None:
        """Publish an address."""
        self.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
        self.turn()
        self.answer()


@pytest.fixture
def stage() -> Stage:
    """Return a core that has just become first."""
    return Stage()


@pytest.fixture
def holding() -> Stage:
    """Return a core whose first write has committed."""
    stage = Stage()
    stage.hold()
    return stage


def told(effects: list[HoldingEffect]) -> list[object]:
    """Return what the contender's core is told."""
    return [effect.event for effect in effects if isinstance(effect, Tell)]


# -- belief --------------------------------------------------------------------------


@pytest.mark.proves("E4")
def test_the_first_turn_takes_the_grant(stage: Stage) -> None:
    """E4: nothing is believed before a write of our own node has committed."""
    assert stage.turn() == [
        WriteNode(record=msgspec.structs.replace(RECORD, is_granted=True), version=0)
    ]


@pytest.mark.proves("E4")
def test_belief_counts_from_the_send_of_the_write(stage: Stage) -> None:
    """E4: the answer may have waited, in us or on its way, for any time."""
    stage.turn()
    effects = stage.answer(after_ns=400)
    assert told(effects) == [Affirmed(session=SESSION, until_ns=1_000 + BELIEF_NS)]
    assert NoteWrite(sent_ns=1_000) in effects


@pytest.mark.proves("E4")
def test_belief_of_a_heartbeat_counts_from_the_write_not_from_the_sync(
    holding: Stage,
) -> None:
    """E4: and a sync that is answered moves nothing."""
    assert holding.turn(after_ns=TENTH_NS) == [SendSync()]
    assert told(holding.answer(after_ns=10)) == []
    holding.turn(after_ns=5)
    (affirmed,) = told(holding.answer(after_ns=50))
    assert affirmed == Affirmed(session=SESSION, until_ns=1_115 + BELIEF_NS)


@pytest.mark.proves("E4")
def test_a_confirm_counts_like_a_write(holding: Stage) -> None:
    """E4: it is a write of our own node, among others."""
    holding.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
    holding.turn(after_ns=20)
    (affirmed,) = told(holding.answer(after_ns=300))
    assert affirmed == Affirmed(session=SESSION, until_ns=1_020 + BELIEF_NS)


@pytest.mark.proves("E4")
def test_reads_and_commits_of_the_store_never_count(holding: Stage) -> None:
    """E4: a follower that is cut off answers reads, and a check writes nothing."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn(after_ns=10)
    assert holding.answer() == [AnswerRequest(number=1)]
    holding.step(ConfirmAsked(number=2, address="a:1", confirm_count=1))
    holding.turn()
    exists = TransactionFailedError(1, NodeExistsError("leader"))
    assert holding.step(QuestionFailed(error=exists)) == [ReadLeaderNode()]
    assert holding.answer(is_ours=True) == []
    assert holding.step(LeaderNodeWatched(is_ours=True)) == []


@pytest.mark.proves("E4")
def test_belief_is_bounded_by_proven_renewals(holding: Stage) -> None:
    """E4: after a pause a write that commits is no ground for a whole belief."""
    (affirmed,) = told(holding.heartbeat(after_ns=500))
    assert affirmed == Affirmed(session=SESSION, until_ns=1_000 + 900)


@pytest.mark.proves("E4")
def test_a_heartbeat_is_due_every_tenth_of_the_timeout(holding: Stage) -> None:
    """E4: counted from the send of the last write."""
    assert holding.turn(after_ns=TENTH_NS - 1) == []
    assert holding.core.next_deadline_ns() == 1_000 + TENTH_NS
    assert holding.step(TimePassed(), after_ns=1) == []
    assert holding.turn() == [SendSync()]


@pytest.mark.proves("E4")
def test_a_heartbeat_goes_before_what_is_requested(holding: Stage) -> None:
    """E4: no burst of commits delays it."""
    for number in range(1, 4):
        holding.step(CommitAsked(number=number, operations=(PUT,)))
    assert holding.turn(after_ns=TENTH_NS) == [SendSync()]


@pytest.mark.proves("E5")
def test_a_restored_connection_writes_at_once(holding: Stage) -> None:
    """E5: the same leadership is believed again as soon as the write commits."""
    holding.step(ConnectionRestored())
    (write,) = holding.turn(after_ns=1)
    assert isinstance(write, WriteNode)


@pytest.mark.proves("E5")
def test_the_contender_hears_when_belief_lapses_and_when_all_is_lost(
    holding: Stage,
) -> None:
    """E5: suspended with the end of belief, lost a timeout after the last write."""
    assert holding.core.next_deadline_ns() == 1_000 + BELIEF_NS
    assert told(holding.step(TimePassed(), after_ns=BELIEF_NS)) == [Suspended()]
    assert holding.core.next_deadline_ns() == 1_700  # of the confirm
    holding.step(TimePassed(), after_ns=TIMEOUT_NS - BELIEF_NS - 1)
    assert told(holding.step(TimePassed(), after_ns=1)) == [Lost()]
    assert holding.core.next_deadline_ns() is None


@pytest.mark.proves("E3")
def test_who_does_not_confirm_is_ended(holding: Stage) -> None:
    """E3: within the confirm timeout, from when the grant was believed."""
    assert EndEntry() not in holding.step(TimePassed(), after_ns=CONFIRM_TIMEOUT_NS - 1)
    assert EndEntry() in holding.step(TimePassed(), after_ns=1)


@pytest.mark.proves("E3")
def test_who_has_confirmed_is_not_ended(holding: Stage) -> None:
    """E3: the confirm timeout is for those who have not."""
    holding.confirm()
    for _ in range(20):
        effects = holding.turn(after_ns=TENTH_NS)
        assert SendSync() in effects
        holding.answer()
        holding.turn()
        assert EndEntry() not in holding.answer()
        assert EndEntry() not in holding.step(TimePassed())


# -- our own node --------------------------------------------------------------------


@pytest.mark.proves("E4")
def test_a_missing_node_ends_the_entry(holding: Stage) -> None:
    """E4: somebody has deleted it."""
    holding.turn(after_ns=TENTH_NS)
    holding.answer()
    holding.turn()
    failed = QuestionFailed(error=NodeMissingError("gone"))
    assert holding.step(failed) == [EndEntry()]


@pytest.mark.proves("E4")
def test_another_version_is_looked_at(holding: Stage) -> None:
    """E4: an operator has marked the node, or an answer of ours was lost."""
    holding.turn(after_ns=TENTH_NS)
    holding.answer()
    holding.turn()
    failed = QuestionFailed(error=NodeVersionError("other"))
    assert holding.step(failed) == [ForgetVersion()]


@pytest.mark.proves("E4")
def test_each_write_names_the_version_of_the_last(holding: Stage) -> None:
    """E4: so that it fails when anybody else has written in between."""
    for expected in range(1, 4):
        holding.turn(after_ns=TENTH_NS)
        holding.answer()
        (write,) = holding.turn()
        assert isinstance(write, WriteNode)
        assert write.version == expected
        holding.answer()


@pytest.mark.proves("E5")
@pytest.mark.parametrize("is_sync", [True, False])
def test_other_failures_are_not_ours_to_deal_with(
    holding: Stage, is_sync: bool
) -> None:
    """E5: after a lost connection the contender looks everything up again."""
    holding.turn(after_ns=TENTH_NS)
    if not is_sync:
        holding.answer()
        holding.turn()
    failed = QuestionFailed(error=MayHaveHappenedError("lost"))
    assert holding.step(failed) == [Stumble()]


# -- the leader store ----------------------------------------------------------------


def test_a_commit_begins_with_a_check_of_our_own_version(holding: Stage) -> None:
    """L2: it fails once the node is gone, or marked by an operator."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    assert holding.turn() == [
        Transact(
            number=1,
            operations=(CheckNode(path=NODE, version=1), PUT),
            is_publication=False,
        )
    ]


def test_a_commit_that_fails_counts_its_own_operations(holding: Stage) -> None:
    """L2: the check before them is ours."""
    holding.step(CommitAsked(number=1, operations=(PUT, PUT)))
    holding.turn()
    failed = TransactionFailedError(2, NodeVersionError("x"))
    (fail,) = holding.step(QuestionFailed(error=failed))
    assert isinstance(fail, FailRequest)
    assert isinstance(fail.error, TransactionFailedError)
    assert fail.error.index == 1


@pytest.mark.parametrize(
    ("error", "effect"),
    [(NodeMissingError("x"), EndEntry()), (NodeVersionError("x"), ForgetVersion())],
)
def test_a_commit_whose_check_fails_comes_again_or_is_refused(
    holding: Stage, error: Exception, effect: HoldingEffect
) -> None:
    """L2: which of both is known when our own node has been looked at."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn()
    failed = TransactionFailedError(0, error)
    assert holding.step(QuestionFailed(error=failed)) == [effect]
    assert holding.step(HoldingClosed()) == [RefuseRequest(number=1)]


def test_a_commit_without_an_answer_is_in_doubt(holding: Stage) -> None:
    """L4: it may have happened."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn()
    lost = MayHaveHappenedError("lost")
    assert holding.step(QuestionFailed(error=lost)) == [
        FailRequest(number=1, error=lost),
        Stumble(),
    ]


def test_a_commit_is_in_doubt_when_its_session_ends(holding: Stage) -> None:
    """L4: and what was not sent is refused."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.step(CommitAsked(number=2, operations=(PUT,)))
    holding.turn()
    fail, refuse = holding.step(SessionEnded())
    assert isinstance(fail, FailRequest)
    assert isinstance(fail.error, MayHaveHappenedError)
    assert refuse == RefuseRequest(number=2)


def test_an_expired_session_leaves_a_commit_in_doubt(holding: Stage) -> None:
    """L4: the name service ended it before it answered."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn()
    effects = holding.step(QuestionFailed(error=SessionExpiredError()))
    assert isinstance(effects[0], FailRequest)
    assert isinstance(effects[0].error, MayHaveHappenedError)


def test_what_could_not_be_sent_hurts_nothing_else(holding: Stage) -> None:
    """N3: a value that cannot be encoded fails its own request only."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn()
    error = ConfigurationError("too large")
    assert holding.step(QuestionFailed(error=error)) == [
        FailRequest(number=1, error=error)
    ]


@pytest.mark.proves("E3")
def test_nobody_is_interfered_with_for_ever(holding: Stage) -> None:
    """E3: after ten attempts a request is given back."""
    holding.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
    failed = TransactionFailedError(0, NodeVersionError("x"))
    for _ in range(9):
        holding.turn()
        assert holding.step(QuestionFailed(error=failed)) == [ForgetVersion()]
    holding.turn()
    (fail,) = holding.step(QuestionFailed(error=failed))
    assert isinstance(fail, FailRequest)
    assert isinstance(fail.error, DidNotHappenError)


def test_a_withdrawn_request_is_not_sent(holding: Stage) -> None:
    """L4: unless it is under way."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.step(RequestWithdrawn(number=1))
    assert holding.turn() == []
    holding.step(CommitAsked(number=2, operations=(PUT,)))
    holding.turn()
    holding.step(RequestWithdrawn(number=2))
    assert holding.answer() == [AnswerRequest(number=2)]
    holding.step(RequestWithdrawn(number=3))


# -- confirming ----------------------------------------------------------------------


@pytest.mark.proves("E3")
def test_a_confirm_writes_both_nodes_at_once(holding: Stage) -> None:
    """E3: published under the same condition as every other write."""
    holding.step(ConfirmAsked(number=1, address="a:1", confirm_count=3))
    (transact,) = holding.turn()
    assert isinstance(transact, Transact)
    assert transact.is_publication
    own, leader, component = transact.operations
    assert isinstance(own, SetNode)
    assert (own.path, own.version) == (NODE, 1)
    assert decode_contender(own.value, path=NODE).address == "a:1"
    assert isinstance(leader, CreateNode)
    assert leader.is_ephemeral
    record = decode_leader(leader.value, path=LEADER)
    assert (record.epoch, record.confirm_count) == (SESSION.epoch, 3)
    assert component == SetNode(path=COMPONENT, value=b"")
    effects = holding.answer()
    assert effects[-1] == AnswerRequest(number=1)
    assert WatchLeaderNode() in holding.turn()


@pytest.mark.proves("E3")
def test_a_second_confirm_sets_what_is_there(holding: Stage) -> None:
    """E3: under the same epoch."""
    holding.confirm()
    holding.step(ConfirmAsked(number=2, address="b:1", confirm_count=2))
    transact = holding.turn()[-1]
    assert isinstance(transact, Transact)
    assert [type(one) for one in transact.operations] == [SetNode, SetNode]
    holding.answer()
    own = msgspec.structs.replace(RECORD, is_granted=True, address="b:1")
    holding.turn(after_ns=TENTH_NS)
    holding.answer()
    (write,) = holding.turn()
    assert isinstance(write, WriteNode)
    assert encode_record(write.record) == encode_record(own)


@pytest.mark.proves("E3")
def test_a_confirm_without_an_answer_is_looked_for(holding: Stage) -> None:
    """E3: who has confirmed is not ended, whether or not it was told of that."""
    holding.lose_confirm()
    assert holding.turn() == [ReadLeaderNode()]
    assert holding.answer(is_ours=True) == []
    assert holding.turn() == [WatchLeaderNode()]
    own = msgspec.structs.replace(RECORD, is_granted=True, address="a:1")
    assert holding.turn(after_ns=TENTH_NS) == [SendSync()]
    holding.answer()
    assert holding.turn() == [WriteNode(record=own, version=holding.version)]
    holding.answer()
    assert EndEntry() not in holding.step(TimePassed(), after_ns=CONFIRM_TIMEOUT_NS)


@pytest.mark.proves("E3")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_confirm_that_was_not_done_is_still_due(
    holding: Stage, is_there: bool
) -> None:
    """E3: what somebody else has left behind is no confirm of ours."""
    holding.lose_confirm()
    assert holding.turn() == [ReadLeaderNode()]
    if is_there:
        holding.answer(is_ours=False)
    else:
        holding.step(QuestionFailed(error=NodeMissingError("leader")))
    assert holding.turn() == []
    assert EndEntry() in holding.step(TimePassed(), after_ns=CONFIRM_TIMEOUT_NS)


@pytest.mark.proves("E3")
def test_nobody_is_ended_while_its_confirm_is_in_doubt(holding: Stage) -> None:
    """E3: it is looked for as soon as there is contact, and judged then."""
    holding.lose_confirm()
    due_ns = holding.now_ns + CONFIRM_TIMEOUT_NS
    assert EndEntry() not in holding.step(TimePassed(), after_ns=CONFIRM_TIMEOUT_NS)
    holding.step(ConnectionRestored())
    holding.turn()
    holding.answer()
    assert holding.turn() == [ReadLeaderNode()]
    lost = QuestionFailed(error=MayHaveHappenedError("lost"))
    assert holding.step(lost) == [Stumble()]
    assert holding.turn() == [ReadLeaderNode()]
    holding.answer(is_ours=False)
    assert holding.core.next_deadline_ns() == due_ns
    assert holding.step(TimePassed()) == [EndEntry()]


@pytest.mark.proves("E3")
@pytest.mark.parametrize("is_ours", [True, False])
def test_what_is_published_already_is_looked_at(holding: Stage, is_ours: bool) -> None:
    """E3: ours is set; what a former leader has left behind is replaced."""
    holding.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
    holding.turn()
    exists = TransactionFailedError(1, NodeExistsError("leader"))
    assert holding.step(QuestionFailed(error=exists)) == [ReadLeaderNode()]
    holding.answer(is_ours=is_ours)
    (transact,) = holding.turn()
    assert isinstance(transact, Transact)
    kinds = [type(one) for one in transact.operations]
    assert kinds == (
        [SetNode, SetNode] if is_ours else [SetNode, DeleteNode, CreateNode, SetNode]
    )


@pytest.mark.proves("E3")
def test_what_is_gone_again_is_created(holding: Stage) -> None:
    """E3: whichever deleted it, ours comes next."""
    holding.step(ConfirmAsked(number=1, address="a:1", confirm_count=1))
    holding.turn()
    exists = TransactionFailedError(1, NodeExistsError("leader"))
    holding.step(QuestionFailed(error=exists))
    assert holding.step(QuestionFailed(error=NodeMissingError("leader"))) == []
    holding.turn()
    holding.step(QuestionFailed(error=exists))
    holding.answer(is_ours=False)
    holding.turn()
    missing = TransactionFailedError(1, NodeMissingError("leader"))
    assert holding.step(QuestionFailed(error=missing)) == []
    (transact,) = holding.turn()
    assert isinstance(transact, Transact)
    assert isinstance(transact.operations[1], CreateNode)
    holding.step(QuestionFailed(error=exists))
    lost = QuestionFailed(error=MayHaveHappenedError("lost"))
    assert holding.step(lost) == [Stumble()]


@pytest.mark.proves("E4")
def test_a_publication_that_somebody_deletes_ends_the_entry(holding: Stage) -> None:
    """E4: found by a confirm or by the watch."""
    holding.confirm()
    holding.step(ConfirmAsked(number=2, address="b:1", confirm_count=2))
    holding.turn()
    missing = TransactionFailedError(1, NodeMissingError("leader"))
    assert holding.step(QuestionFailed(error=missing)) == [EndEntry()]
    assert holding.step(LeaderNodeChanged()) == []
    assert holding.step(LeaderNodeWatched(is_ours=False)) == [EndEntry()]


@pytest.mark.proves("E3")
def test_other_failures_of_a_confirm_are_its_answer(holding: Stage) -> None:
    """E3: also those of our own node that are no news of it."""
    for number, index in ((1, 1), (2, 0)):
        holding.step(ConfirmAsked(number=number, address="a:1", confirm_count=1))
        holding.turn()
        error = DidNotHappenError("no")
        failed = TransactionFailedError(index, error)
        assert holding.step(QuestionFailed(error=failed)) == [
            FailRequest(number=number, error=error)
        ]


# -- the end -------------------------------------------------------------------------


@pytest.mark.proves("E3")
def test_what_was_not_sent_is_refused_in_the_end(holding: Stage) -> None:
    """E3: and what is under way is still answered."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.step(CommitAsked(number=2, operations=(PUT,)))
    holding.turn()
    assert holding.step(HoldingClosed()) == [RefuseRequest(number=2)]
    assert holding.answer() == [AnswerRequest(number=1)]
    assert holding.turn() == []
    assert holding.core.next_deadline_ns() is None


def test_a_transaction_that_fails_after_the_end_is_refused(holding: Stage) -> None:
    """L2: nothing was done, and the leadership is over."""
    holding.step(CommitAsked(number=1, operations=(PUT,)))
    holding.turn()
    holding.step(HoldingClosed())
    failed = TransactionFailedError(0, NodeVersionError("x"))
    assert holding.step(QuestionFailed(error=failed)) == [RefuseRequest(number=1)]


@pytest.mark.proves("E4")
def test_a_write_that_commits_after_the_end_affirms_nothing(stage: Stage) -> None:
    """E4: but it counts for when others may pass."""
    stage.turn()
    stage.step(HoldingClosed())
    effects = stage.answer()
    assert told(effects) == []
    assert NoteWrite(sent_ns=1_000) in effects


@pytest.mark.proves("E7")
def test_a_node_that_is_gone_after_the_end_is_no_news(stage: Stage) -> None:
    """E7: the entry has ended already."""
    stage.turn()
    stage.step(HoldingClosed())
    assert stage.step(QuestionFailed(error=NodeMissingError("gone"))) == []
