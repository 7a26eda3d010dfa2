"""`StageCore` by itself: what it says to every event, without sockets and clocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from nameservice import NS_PER_SECOND
from queryablestate import (
    AccessDeniedError,
    DeadlineExceededError,
    StaleWriterError,
    StateUnavailableError,
)
from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged
from queryablestate.writer.rows import StateRows
from queryablestate.writer.sending import NO_PART, StageLimits
from queryablestate.writer.stage_core import StageCore
from queryablestate.writer.stage_events import (
    CallerReturned,
    ChunkAnswered,
    ChunkTurnedAway,
    CloseLink,
    FailStage,
    GrantRenewed,
    LinkLost,
    LinkOpened,
    LookForNode,
    NodeLookedFor,
    OpenLink,
    RenewGrant,
    SendChunk,
    StageEffect,
    StageEvent,
    TimeWent,
)
from tests.queryablestate.writer.test_stager import some_rows, write_run


LIMITS = StageLimits(
    chunk_size_bytes_max=200,
    window_count=2,
    waiting_count_max=4,
    timeout_seconds=10.0,
    give_up_seconds=2.0,
    busy_seconds=30.0,
)
FIRST, SECOND = "tcp://10.0.0.1:1", "tcp://10.0.0.2:1"
BOTH = [(0, 1)] * 4


class Stage:
    """A core, and what it said last."""

    def __init__(
        self,
        *,
        owners: Sequence[tuple[int, ...]] = BOTH,
        addresses: tuple[str | None, ...] = (FIRST, SECOND),
        finds_nodes: bool = True,
        renews_grants: bool = True,
    ) -> None:
        self.now_ns = NS_PER_SECOND
        self.core = StageCore(
            write_run(addresses, owners),
            5,
            stage_id=bytes(16),
            request_ids=itertools.count(1),
            limits=LIMITS,
            finds_nodes=finds_nodes,
            renews_grants=renews_grants,
        )

    def add(self, rows: StateRows) -> list[StageEffect]:
        """Give it rows, whether there is room or not."""
        cuts = self.core.cut(1, rows, is_list=False)
        return [effect for cut in cuts for effect in self.step(cut)]

    def step(self, event: StageEvent) -> tuple[StageEffect, ...]:
        """Have something happen."""
        effects = self.core.step(event, now_ns=self.now_ns)
        self.core.check_invariants()
        return effects

    def wait(self) -> tuple[StageEffect, ...]:
        """Move on to the next deadline."""
        due_ns = self.core.next_deadline_ns()
        assert due_ns is not None
        self.now_ns = max(self.now_ns, due_ns)
        return self.step(TimeWent())

    def answer_all(self, node: int, chunks: list[SendChunk]) -> None:
        """Have *node* keep all that it is sent, from *chunks* on."""
        waiting = list(chunks)
        while waiting:
            effect = waiting.pop(0)
            reply = ChunkStaged(request_id=effect.message.request_id)
            waiting += sent(self.step(ChunkAnswered(node, reply)))


def sent(effects: tuple[StageEffect, ...]) -> list[SendChunk]:
    """Return the chunks that are sent."""
    return [effect for effect in effects if isinstance(effect, SendChunk)]


def refused(effect: SendChunk, code: str, *data: str | int) -> ChunkAnswered:
    """Return how a node refuses a chunk."""
    reply = ChunkRefused(request_id=effect.message.request_id, code=code, data=data)
    return ChunkAnswered(effect.node, reply)


@pytest.mark.proves("W2")
def test_nothing_is_staged_before_its_node_has_said_so() -> None:
    """W2: what was sent is not on disk; the message waits for the last answer."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    assert stage.add(some_rows(40)) == [OpenLink(0, FIRST)]
    assert not stage.core.has_room
    first, second = sent(stage.step(LinkOpened(0)))
    assert (first.message.chunk_index, second.message.chunk_index) == (0, 1)
    reply = ChunkStaged(request_id=first.message.request_id)
    (third,) = sent(stage.step(ChunkAnswered(0, reply)))
    assert third.message.chunk_index == 2
    assert not stage.core.is_staged
    stage.answer_all(0, [second, third])
    assert stage.core.is_staged
    assert stage.core.is_settled(0)
    assert stage.core.next_deadline_ns() is None
    count = stage.core.message().stage.chunk_counts["n0"]
    assert count > 4


@pytest.mark.proves("W2")
def test_what_was_not_answered_goes_again() -> None:
    """W2: over the next connection, under the same numbers, wherever its node is."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    stage.add(some_rows(20))
    before = [one.message.chunk_index for one in sent(stage.step(LinkOpened(0)))]
    assert stage.step(LinkLost(0)) == ()
    assert stage.wait() == (LookForNode(0, "n0"),)
    assert stage.step(NodeLookedFor(0, SECOND)) == (OpenLink(0, SECOND),)
    after = sent(stage.step(LinkOpened(0)))
    assert [one.message.chunk_index for one in after] == before


@pytest.mark.proves("W2")
def test_what_a_node_or_a_queue_did_not_take_goes_again() -> None:
    """W2: a moment later; an answer that nothing waits for changes nothing."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    stage.add(some_rows(20))
    first, second = sent(stage.step(LinkOpened(0)))
    assert stage.step(refused(first, "did-not-happen", "busy")) == ()
    (again,) = sent(stage.wait())
    assert again.message.chunk_index == first.message.chunk_index
    assert stage.step(ChunkTurnedAway(0, second.message.request_id)) == ()
    late = ChunkStaged(request_id=second.message.request_id)
    stage.step(ChunkAnswered(0, late))
    (again,) = sent(stage.wait())
    assert again.message.chunk_index == second.message.chunk_index


@pytest.mark.proves("S4")
def test_who_is_away_is_given_up_if_others_have_its_rows() -> None:
    """S4: the stage says so, and the node that is left is never given up."""
    stage = Stage(addresses=(None, SECOND))
    effects = stage.add(some_rows(4))
    assert effects == [LookForNode(0, "n0"), OpenLink(1, SECOND)]
    stage.answer_all(1, sent(stage.step(LinkOpened(1))))
    began_ns = stage.now_ns
    effects = [*stage.step(NodeLookedFor(0, None))]
    while not stage.core.is_staged:
        effects = [*stage.wait()]
        if effects == [LookForNode(0, "n0")]:
            stage.step(NodeLookedFor(0, None))
    assert stage.now_ns - began_ns >= LIMITS.give_up_seconds * NS_PER_SECOND
    message = stage.core.message()
    assert message.stage.given_up == ("n0",)
    assert message.stage.chunk_counts == {"n1": 1}


@pytest.mark.proves("S4")
def test_who_has_no_part_any_more_is_given_up_at_once() -> None:
    """S4: it has died, and each task of the batch would wait for it."""
    stage = Stage(addresses=(None, SECOND))
    assert stage.add(some_rows(4)) == [LookForNode(0, "n0"), OpenLink(1, SECOND)]
    stage.answer_all(1, sent(stage.step(LinkOpened(1))))
    stage.step(NodeLookedFor(0, NO_PART))
    assert stage.core.is_staged
    assert stage.core.message().stage.given_up == ("n0",)
    # Unless it is needed: another node may have its part, which the plan does not know.
    stage = Stage(addresses=(None, SECOND), owners=[(0,), (0, 1), (0, 1), (0, 1)])
    stage.add(some_rows(4))
    stage.step(NodeLookedFor(0, NO_PART))
    assert stage.wait() == (LookForNode(0, "n0"),)
    assert OpenLink(0, FIRST) in stage.step(NodeLookedFor(0, FIRST))


@pytest.mark.proves("W2", "S4")
def test_who_alone_has_a_key_group_is_waited_for_until_time_is_up() -> None:
    """W2: one node of each key group gets all of its rows, or the stage fails."""
    stage = Stage(owners=[(0, 1), (0,), (0, 1), (0, 1)])
    stage.add(some_rows(4))
    stage.step(LinkLost(0))
    failed = None
    while failed is None:
        for effect in stage.wait():
            if isinstance(effect, LookForNode):
                stage.step(NodeLookedFor(effect.node, None))
            elif isinstance(effect, FailStage):
                failed = effect.error
            else:
                assert isinstance(effect, OpenLink | CloseLink)
                if isinstance(effect, OpenLink) and effect.node == 0:
                    stage.step(LinkLost(0))
                elif isinstance(effect, OpenLink):
                    for chunk in sent(stage.step(LinkOpened(1))):
                        stage.answer_all(1, [chunk])
    assert isinstance(failed, StateUnavailableError)
    assert stage.step(TimeWent()) == ()


@pytest.mark.proves("C1")
@pytest.mark.parametrize("renews_grants", [True, False])
def test_a_grant_of_an_earlier_leader_is_renewed(*, renews_grants: bool) -> None:
    """C1: once, however many chunks were refused; or the refusal is final."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,), renews_grants=renews_grants)
    stage.add(some_rows(20))
    first, second = sent(stage.step(LinkOpened(0)))
    effects = stage.step(refused(first, "access-denied", "stage rows"))
    if not renews_grants:
        (failed,) = effects
        assert isinstance(failed, FailStage)
        assert isinstance(failed.error, AccessDeniedError)
        return
    assert effects == (RenewGrant(0),)
    assert stage.step(refused(second, "access-denied", "stage rows")) == ()
    stage.step(GrantRenewed(0, b"another"))
    assert {one.message.grant for one in sent(stage.wait())} == {b"another"}


@pytest.mark.proves("W2")
def test_a_node_that_refuses_for_ever_fails_its_stage() -> None:
    """W2: it answers each time, and takes nothing: a batch does not wait for ever."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    stage.add(some_rows(1))
    effects: tuple[StageEffect, ...] = stage.step(LinkOpened(0))
    began_ns = stage.now_ns
    while not isinstance(effects[0], FailStage):
        (chunk,) = sent(effects)
        effects = stage.step(refused(chunk, "did-not-happen", "busy")) or stage.wait()
        assert stage.now_ns - began_ns <= 2 * LIMITS.busy_seconds * NS_PER_SECOND
    assert isinstance(effects[0].error, StateUnavailableError)
    assert "busy" in str(effects[0].error)
    assert stage.now_ns - began_ns >= LIMITS.busy_seconds * NS_PER_SECOND


@pytest.mark.proves("S4")
def test_a_node_that_refuses_for_ever_is_given_up_if_others_have_its_rows() -> None:
    """S4: as one that is away."""
    stage = Stage()
    stage.add(some_rows(1))
    stage.answer_all(1, sent(stage.step(LinkOpened(1))))
    effects = stage.step(LinkOpened(0))
    while not stage.core.is_staged:
        (chunk,) = sent(effects)
        effects = stage.step(refused(chunk, "did-not-happen", "busy"))
        if not stage.core.is_staged:
            effects = stage.wait()
    assert effects == (CloseLink(0),)
    assert stage.core.message().stage.given_up == ("n0",)


@pytest.mark.proves("W2")
@pytest.mark.parametrize("is_refused", [True, False])
def test_while_no_one_has_listened_no_node_was_silent(*, is_refused: bool) -> None:
    """W2: a task may compute for long between rows; then time counts again."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    stage.add(some_rows(4))
    (chunk, *_) = sent(stage.step(LinkOpened(0)))
    if is_refused:
        stage.step(refused(chunk, "did-not-happen", "busy"))
    stage.now_ns += 1_000 * NS_PER_SECOND
    assert stage.step(CallerReturned()) == ()
    assert not any(isinstance(one, FailStage) for one in stage.add(some_rows(4)))
    # What has happened to the connection is no reason to fail, either.
    assert stage.step(LinkLost(0)) == ()
    began_ns = stage.now_ns
    (looked,) = stage.wait()
    assert looked == LookForNode(0, "n0")
    stage.step(NodeLookedFor(0, FIRST))
    effects: tuple[StageEffect, ...] = ()
    while not (effects and isinstance(effects[0], FailStage)):
        effects = stage.wait()
        for effect in effects:
            if isinstance(effect, LookForNode):
                stage.step(NodeLookedFor(0, FIRST))
    waited_ns = stage.now_ns - began_ns
    assert waited_ns == pytest.approx(LIMITS.timeout_seconds * NS_PER_SECOND, rel=0.1)


@pytest.mark.proves("W1")
def test_a_stage_of_a_run_that_is_over_fails_at_once() -> None:
    """W1: and says nothing else."""
    stage = Stage()
    stage.add(some_rows(4))
    (first,) = sent(stage.step(LinkOpened(0)))
    (failed,) = stage.step(refused(first, "stale-writer", "query", 5, 9))
    assert isinstance(failed, FailStage)
    assert isinstance(failed.error, StaleWriterError)
    assert stage.step(LinkOpened(1)) == ()


def test_a_leader_that_cannot_be_asked_is_no_news_of_a_node() -> None:
    """What is not known is not taken for away: the old address is tried again."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,))
    stage.add(some_rows(4))
    stage.step(LinkLost(0))
    assert stage.wait() == (LookForNode(0, "n0"),)
    assert stage.step(NodeLookedFor(0, DeadlineExceededError(1.0))) == (
        OpenLink(0, FIRST),
    )


def test_a_connection_that_is_never_made_is_closed() -> None:
    """A machine that is gone refuses none."""
    stage = Stage(owners=[(0,)] * 4, addresses=(FIRST,), finds_nodes=False)
    stage.add(some_rows(4))
    assert stage.wait() == (CloseLink(0),)
    assert stage.now_ns == (1 + LIMITS.open_timeout_seconds) * NS_PER_SECOND
    assert stage.wait() == (OpenLink(0, FIRST),)


def test_two_cores_told_the_same_say_the_same() -> None:
    """What comes out depends on what goes in, and on nothing else."""
    stages = [Stage(), Stage()]
    told = [[one.add(some_rows(12)), one.step(LinkOpened(0))] for one in stages]
    assert told[0] == told[1]
