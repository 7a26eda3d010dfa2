"""Who gets which key groups next, and when that is written (S1, S2, S4, O6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from nameservice import ConfigurationError, DidNotHappenError
from queryablestate import StateUnavailableError, UnknownJobError
from queryablestate.control.effects import (
    AnswerWriter,
    ControlEffect,
    NoteAssignment,
    SendToNode,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.wire.clients import BatchCommitted, TicketDrawn
from queryablestate.wire.job_assignment import CopySource, JobAssignment, JoiningGroup
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    KeyGroupsCopied,
    LeaveNode,
    NodeEmptied,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    ResetJob,
)
from queryablestate.wire.operation_messages import (
    AwayNodeForgotten,
    DrainNode,
    DrainStarted,
    ForgetAwayNode,
    JobRescaling,
    ListRescalings,
    RescaleJob,
    RescaleStarted,
)
from queryablestate.wire.records import AssignmentRecord
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    EPOCH,
    GRACE_NS,
    KNOWS_ALL,
    LINK_A,
    LINK_B,
    OPERATOR,
    SECOND,
    SESSION,
    TIMEOUT_NS,
    WALL_US,
    Plane,
    applied,
    commit,
    draw,
    drop,
    heartbeat,
    node_register,
    refusal,
    sent,
    told,
)


if TYPE_CHECKING:
    from collections.abc import Iterable


LINK_C: Final = LinkId(3)
LINKS: Final = {"a": LINK_A, "b": LINK_B, "c": LINK_C}
GROUPS: Final = (0, 1, 2, 3)


def rescale(
    node_count: int | None = None,
    replica_count: int | None = None,
    *,
    job_id: str = APP,
) -> RescaleJob:
    """Return an operator's request for nodes and copies."""
    return RescaleJob(
        request_id=5,
        session=SESSION,
        job_id=job_id,
        node_count=node_count,
        replica_count=replica_count,
    )


def drain(node_id: str, *, is_undone: bool = False) -> DrainNode:
    """Return an operator's request to empty a node."""
    return DrainNode(
        request_id=6, session=SESSION, node_id=node_id, is_undone=is_undone
    )


def leave(node_id: str) -> LeaveNode:
    """Return that a node wants to end."""
    return LeaveNode(registration_id=f"process-{node_id}")


def copied(
    node_id: str, version: int, *key_groups: int, failure: str | None = None
) -> KeyGroupsCopied:
    """Return how far a node is with its copies."""
    return KeyGroupsCopied(
        registration_id=f"process-{node_id}",
        job_id=APP,
        assignment_version=version,
        key_groups=key_groups,
        row_count=10 * len(key_groups),
        size_bytes=100 * len(key_groups),
        failure=failure,
    )


def emptied(reason: str) -> NodeEmptied:
    """Return that a node may end."""
    return NodeEmptied(leader_epoch=EPOCH, reason=reason)


def assignment(plane: Plane) -> AssignmentRecord:
    """Return the present one."""
    found = plane.core._control.job(APP).assignment
    assert found is not None
    return found


def owners(plane: Plane) -> list[str]:
    """Return the in-sync copies of each key group, the primary first."""
    record = assignment(plane)
    return [
        "".join(record.node_ids[index] for index in nodes) for nodes in record.owners
    ]


def parts(effects: Iterable[ControlEffect], link: LinkId) -> list[JobAssignment]:
    """Return what a node is told of its part."""
    return [
        message.job for message in sent(effects, link) if isinstance(message, AssignJob)
    ]


def notes(effects: Iterable[ControlEffect]) -> list[NoteAssignment]:
    """Return what the log is told of assignments."""
    return [effect for effect in effects if isinstance(effect, NoteAssignment)]


def answers(effects: Iterable[ControlEffect]) -> list[AnswerWriter]:
    """Return what writers are answered."""
    return [effect for effect in effects if isinstance(effect, AnswerWriter)]


def start(node_ids: str, *, replica_count: int = 1) -> tuple[Plane, int]:
    """Start nodes and a job on all of them; return the writer epoch too."""
    plane = Plane()
    plane.core.limit(ControlLimits(replica_count=replica_count))
    for node_id in node_ids:
        plane.hear(LINKS[node_id], node_register(node_id))
    return plane, plane.bind(plane.draw())


def join(
    plane: Plane, node_id: str, *, registration_id: str | None = None
) -> list[ControlEffect]:
    """Register one more node."""
    return plane.hear(
        LINKS[node_id], node_register(node_id, registration_id=registration_id)
    )


class TestMove:
    """A key group goes from one node to another."""

    @pytest.mark.proves("S1", "S2")
    def test_from_one_node_to_two(self) -> None:
        """S1, S2: join, copy, switch: each is one write, and is told to everybody."""
        plane, epoch = start("a")
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        assert parts(join(plane, "b"), LINK_B) == []
        effects = plane.ask(rescale(2))
        began = told(RescaleStarted, effects).rescaling
        assert (began.planned_count, began.left_count, began.started_ms) == (2, 2, 0)
        (part,) = parts(effects, LINK_A)
        assert (part.assignment_version, part.key_groups) == (2, GROUPS)
        part_b, reset = sent(effects, LINK_B)
        assert isinstance(part_b, AssignJob)
        assert part_b.job == JobAssignment(
            job_id=APP,
            assignment_version=2,
            max_parallelism=4,
            key_groups=(),
            fences=part.fences,
            sequence=1,
            joining=(JoiningGroup(2, 1, 2), JoiningGroup(3, 1, 2)),
            sources=(CopySource(node_id="a", address="tcp://a:1", key_groups=(2, 3)),),
        )
        # It begins where it joins, with nothing, and nothing of it is lost.
        assert reset == ResetJob(
            leader_epoch=EPOCH,
            job_id=APP,
            sequence=1,
            state_numbers=(),
            restore_id="",
        )
        plane.hear(LINK_B, applied("b", 1))
        assert owners(plane) == ["a"] * 4
        effects = plane.hear(LINK_B, copied("b", 2, 2, 3))
        (part,) = parts(effects, LINK_A)
        assert (part.assignment_version, part.key_groups) == (3, (0, 1))
        (part,) = parts(effects, LINK_B)
        assert (part.assignment_version, part.key_groups) == (3, (2, 3))
        assert (part.joining, part.sources) == ((), ())
        assert plane.core.locations[1].key_groups == ((0, 1), (2, 3))
        assert plane.core.next_deadline_ns() == TIMEOUT_NS  # nodes may fall silent

    @pytest.mark.proves("O6")
    def test_the_log_is_told_of_each_version(self) -> None:
        """O6: who has how much, who has come and gone, and how much is left to do."""
        plane = Plane()
        for node_id in "ab":
            plane.hear(LINKS[node_id], node_register(node_id))
        (first,) = notes(plane.ask(draw()))
        assert first == NoteAssignment(
            job_id=APP,
            version=1,
            replica_count=1,
            key_group_counts={"a": 2, "b": 2},
            joined=("a", "b"),
            left=(),
            joining_count=0,
            left_count=0,
        )
        assert notes(plane.ask(draw())) == []  # the same assignment
        plane.core.limit(ControlLimits(joining_key_groups_max=1))
        join(plane, "c")
        effects = plane.ask(drain("a"))
        (began,) = notes(effects)
        assert effects.index(began) < effects.index(
            next(one for one in effects if isinstance(one, SendToNode))
        )
        assert (began.version, began.joined, began.left) == (2, ("c",), ())
        assert began.key_group_counts == {"a": 2, "b": 2, "c": 0}
        assert (began.joining_count, began.left_count) == (1, 2)
        (half,) = notes(plane.hear(LINK_C, copied("c", 2, 0)))
        assert half.key_group_counts == {"a": 1, "b": 2, "c": 1}
        assert (half.joining_count, half.left_count) == (1, 1)
        (done,) = notes(plane.hear(LINK_C, copied("c", 3, 1)))
        assert (done.version, done.joined, done.left) == (4, (), ("a",))
        assert done.key_group_counts == {"b": 2, "c": 2}
        assert (done.joining_count, done.left_count) == (0, 0)

    @pytest.mark.proves("S2")
    def test_writers_bring_rows_to_who_copies(self) -> None:
        """S2: whatever is decided from then on is there already."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        effects = plane.ask(draw())
        ticket = told(TicketDrawn, effects)
        assert ticket.owners == ((0,), (0,), (0, 1), (0, 1))
        assert ticket.assignment_version == 2

    @pytest.mark.proves("S1")
    def test_a_batch_that_is_applied_waits_for_nobody_who_copies(self) -> None:
        """S1: only in-sync copies count; those of the next version do from then on."""
        plane, epoch = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.ask(commit(epoch, 0, assignment_version=2))
        effects = plane.hear(LINK_A, applied("a", 1))
        assert told(BatchCommitted, effects).batch_id == 0

    @pytest.mark.proves("S2")
    def test_what_was_copied_for_another_version_does_not_count(self) -> None:
        """S2: the node says so again, when it knows of the present one."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        for stale in (copied("b", 1, 2, 3), copied("b", 3, 2, 3)):
            assert plane.hear(LINK_B, stale) == []
        assert owners(plane) == ["a"] * 4
        other = KeyGroupsCopied(
            registration_id="process-b",
            job_id="other",
            assignment_version=2,
            key_groups=(2,),
            row_count=0,
            size_bytes=0,
        )
        assert plane.hear(LINK_B, other) == []

    @pytest.mark.proves("S1")
    def test_key_groups_that_are_not_copied_here_are_passed_over(self) -> None:
        """S1: none becomes an owner who was not to be one."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.hear(LINK_B, copied("b", 2, 0, 1))
        assert owners(plane) == ["a"] * 4

    def test_each_wave_is_one_write(self) -> None:
        """What is copied is switched, and the next begins, at once."""
        plane, _ = start("a")
        plane.core.limit(ControlLimits(joining_key_groups_max=1))
        join(plane, "b")
        plane.ask(rescale(2))
        effects = plane.hear(LINK_B, copied("b", 2, 2))
        (part,) = parts(effects, LINK_B)
        assert (part.key_groups, part.joining) == ((2,), (JoiningGroup(3, 0, 3),))

    def test_a_source_with_another_address(self) -> None:
        """Who copies from a node that was restarted is told where it is now."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.settle(LinksClosed(links=(LINK_A,)))
        message = node_register("a", registration_id="later", positions={APP: 0})
        effects = plane.hear(LinkId(9), message)
        (part,) = parts(effects, LINK_B)
        assert part.sources[0].address == "tcp://a:1"
        assert part.assignment_version == 2

    def test_sources_are_nodes_that_are_there(self) -> None:
        """A node that is restarted is told of another source, or of none."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.settle(LinksClosed(links=(LINK_A,)))
        effects = plane.hear(LinkId(9), node_register("b", positions={APP: 0}))
        registered = sent(effects, LinkId(9))[0]
        assert isinstance(registered, NodeRegistered)
        (source,) = registered.jobs[0].sources
        assert (source.node_id, source.address) == ("a", None)

    @pytest.mark.proves("S2")
    def test_the_next_leader_goes_on(self) -> None:
        """S2: the store says how far a move is; the nodes say the rest again."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.next_leader()
        assert plane.core.next_deadline_ns() == TIMEOUT_NS
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        effects = plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        registered = sent(effects, LINK_B)[0]
        assert isinstance(registered, NodeRegistered)
        assert registered.jobs[0].joining == (
            JoiningGroup(2, 0, 2),
            JoiningGroup(3, 0, 2),
        )
        plane.hear(LINK_B, copied("b", 2, 2, 3))
        assert owners(plane) == ["a", "a", "b", "b"]


class TestReplicas:
    """Key groups with two copies (S4)."""

    @pytest.mark.proves("S4")
    def test_the_death_of_a_node(self) -> None:
        """S4: one write, and the other copies are asked."""
        plane, epoch = start("ab", replica_count=2)
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        assert [one.copy_counts for one in plane.view.node_summaries(now_ns=0)] == [
            {APP: 4},
            {APP: 4},
        ]
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        # The commit waits for a copy that is gone: it need not any more.
        effects = plane.lose(LINK_B)
        assert parts(effects, LINK_A)[-1].key_groups == GROUPS
        assert owners(plane) == ["a"] * 4
        # What it missed was not acknowledged before.
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_B, applied("b", 1))
        effects = plane.lose(LINK_A)
        assert told(BatchCommitted, effects).batch_id == 0

    @pytest.mark.proves("S4")
    def test_it_copies_when_it_is_back(self) -> None:
        """S4: the replica count restores itself."""
        plane, _ = start("ab", replica_count=2)
        plane.lose(LINK_B)
        effects = plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        (part,) = parts(effects, LINK_B)
        assert [group.key_group for group in part.joining] == list(GROUPS)
        assert part.copies == part.key_groups == ()
        effects = plane.hear(LINK_B, copied("b", part.assignment_version, *GROUPS))
        (part,) = parts(effects, LINK_B)
        assert sorted((*part.key_groups, *part.copies)) == list(GROUPS)
        assert len(part.key_groups) == 2

    @pytest.mark.proves("S1", "S4")
    def test_a_connection_that_broke_for_a_moment(self) -> None:
        """S1, S4: the node is sent what it missed, and copies nothing."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        effects = plane.settle(LinksClosed(links=(LINK_B,)))
        # The other copy is asked meanwhile.  What it missed is not acknowledged.
        assert owners(plane) == ["ab"] * 4
        assert not answers(effects)
        plane.now_ns = GRACE_NS - 1
        plane.settle(TimePassed())
        assert owners(plane) == ["ab"] * 4
        effects = plane.hear(LINK_C, node_register("b", positions={APP: 0}))
        # It is not asked before it has what the other one has.
        assert owners(plane) == ["ab"] * 4
        assert not any(part.joining for part in parts(effects, LINK_C))
        (missed,) = [m for m in sent(effects, LINK_C) if isinstance(m, ApplyEntries)]
        assert [entry.sequence for entry in missed.entries] == [1]
        effects = plane.hear(LINK_C, applied("b", 1))
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.now_ns = 2 * GRACE_NS
        plane.settle(TimePassed())
        assert owners(plane) == ["ab", "ab", "ba", "ba"]

    @pytest.mark.proves("S1", "W3")
    def test_a_node_that_comes_and_goes_ends_no_commit(self) -> None:
        """S1, W3: it is not expected for longer than it was at first."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns = GRACE_NS - SECOND // 2
        plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        plane.now_ns = GRACE_NS - 1
        assert not answers(plane.settle(LinksClosed(links=(LINK_B,))))
        plane.now_ns = GRACE_NS
        effects = plane.settle(TimePassed())
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S1")
    def test_a_commit_does_not_wait_for_who_has_applied_it(self) -> None:
        """S1: it has missed nothing, and is in sync when it is back."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_B, applied("b", 1))
        plane.settle(LinksClosed(links=(LINK_B,)))
        effects = plane.hear(LINK_A, applied("a", 1))
        assert told(BatchCommitted, effects).batch_id == 0
        effects = plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]

    @pytest.mark.proves("Q4", "S1")
    def test_a_silent_node_is_not_expected_beyond_its_session(self) -> None:
        """Q4: the session timeout after it was heard last it is away."""
        plane, _ = start("ab", replica_count=2)
        plane.now_ns = TIMEOUT_NS - SECOND
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert owners(plane) == ["ab"] * 4
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S1")
    def test_who_waits_for_its_turn_to_register_is_back(self) -> None:
        """S1: a write of the leader store that takes long costs no copy."""
        plane, _ = start("ab", replica_count=2)
        _, write = plane.step(LinksClosed(links=(LINK_B,)))
        assert isinstance(write, WriteStore)
        event = NodeSpoke(link=LINK_C, message=node_register("b", positions={APP: 0}))
        assert plane.step(event) == ()
        plane.now_ns = 2 * GRACE_NS
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.write(write)
        plane.settle_rest(plane.step(StoreWritten()))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        # One that gives up meanwhile is gone.
        _, write = plane.step(LinksClosed(links=(LINK_C,)))
        assert isinstance(write, WriteStore)
        plane.step(NodeSpoke(link=LINK_B, message=node_register("b")))
        plane.now_ns = 4 * GRACE_NS
        plane.step(LinksClosed(links=(LINK_B,)))
        plane.write(write)
        plane.settle_rest(plane.step(StoreWritten()))
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S4")
    def test_another_node_makes_up_for_it(self) -> None:
        """S4: also one that has had no part so far."""
        plane, _ = start("ab", replica_count=2)
        join(plane, "c")
        assert assignment(plane).node_ids == ("a", "b")
        effects = plane.lose(LINK_B)
        (part,) = parts(effects, LINK_C)
        assert len(part.joining) == 4

    @pytest.mark.proves("S4")
    def test_copies_that_were_asked_for_outlive_the_states(self) -> None:
        """S4: who drops the last state, and begins anew, has as many as before."""
        plane, _ = start("ab")
        plane.ask(rescale(replica_count=2))
        plane.ask(drop())
        join(plane, "c")
        plane.draw()
        assert assignment(plane).node_ids == ("a", "b", "c")
        assert assignment(plane).replica_count == 2
        assert {len(nodes) for nodes in owners(plane)} == {2}

    @pytest.mark.proves("S4")
    def test_a_job_that_began_with_too_few_nodes_has_its_copies_later(self) -> None:
        """S4: the first batch may come before the second node."""
        plane, _ = start("a", replica_count=2)
        assert owners(plane) == ["a"] * 4
        effects = join(plane, "b")
        (part,) = parts(effects, LINK_B)
        assert len(part.joining) == 4
        plane.hear(LINK_B, copied("b", part.assignment_version, *GROUPS))
        assert sorted(owners(plane)) == ["ab", "ab", "ba", "ba"]
        # A third one is for those who ask for it.
        assert parts(join(plane, "c"), LINK_C) == []

    @pytest.mark.proves("S3")
    def test_a_source_that_goes_is_replaced(self) -> None:
        """S3: one that copies from it goes on with another one."""
        plane, _ = start("ab", replica_count=2)
        join(plane, "c")
        plane.ask(rescale(3))
        effects = plane.settle(LinksClosed(links=(LINK_A,)))
        (part,) = parts(effects, LINK_C)
        assert [source.node_id for source in part.sources] == ["b"]

    @pytest.mark.proves("Q4")
    def test_silence_is_death(self) -> None:
        """Q4: a node that is not heard from is taken out when its time is over."""
        plane, _ = start("ab", replica_count=2)
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_A, NodeHeartbeat(registration_id="process-a", number=1))
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S1", "S3")
    def test_copies_are_not_given_up_for_one_that_is_silent(self) -> None:
        """S3: where power is cut, the first that is back has what it had."""
        plane, epoch = start("ab", replica_count=2)
        plane.now_ns = SECOND
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.ask(commit(epoch, 0))
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        assert owners(plane) == ["ba"] * 4  # who may be there is asked
        plane.now_ns = TIMEOUT_NS + SECOND
        plane.settle(TimePassed())
        assert {len(one) for one in owners(plane)} == {2}
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        assert owners(plane) == ["a"] * 4
        assert told(BatchCommitted, plane.hear(LINK_A, applied("a", 1))).batch_id == 0

    @pytest.mark.proves("S1")
    def test_one_that_was_silent_speaks(self) -> None:
        """S1: then a commit waits for the other one no longer."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.now_ns = SECOND
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.now_ns = TIMEOUT_NS
        assert not answers(plane.settle(TimePassed()))
        effects = plane.hear(LINK_B, applied("b", 1))
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["b"] * 4

    @pytest.mark.proves("S1", "S3")
    def test_one_that_is_back_asks_once_more(self) -> None:
        """S1, S3: it is behind as before, and is expected no longer than before."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns = GRACE_NS // 2
        for link in (LINK_B, LINK_B, LINK_C):
            plane.hear(link, node_register("b", positions={APP: 0}))
            assert owners(plane) == ["ab"] * 4
        plane.settle(LinksClosed(links=(LINK_C,)))
        plane.now_ns = GRACE_NS
        effects = plane.settle(TimePassed())
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S1")
    def test_one_that_has_been_back_for_long_is_expected_again(self) -> None:
        """S1: though it has asked once more a moment ago."""
        plane, _ = start("ab", replica_count=2)
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        plane.now_ns = 2 * GRACE_NS
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns += GRACE_NS - 1
        plane.settle(TimePassed())
        assert owners(plane) == ["ab"] * 4

    @pytest.mark.proves("S1", "W7")
    def test_one_that_has_lost_its_rows_comes_again(self) -> None:
        """S1: it has nothing, though it has begun anew before anybody heeded that."""
        plane, epoch = start("ab", replica_count=2)
        for batch_id in range(103):
            plane.decide(commit(epoch, batch_id))
        plane.next_leader()
        # It is further behind than entries are kept.
        plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        plane.hear(LINK_B, applied("b", 103))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.hear(LINK_C, node_register("b", positions={APP: 103}))
        plane.hear(LINK_A, node_register("a", positions={APP: 103}))
        assert owners(plane) == ["a"] * 4
        assert [len(joining) for joining in assignment(plane).joining] == [1] * 4

    @pytest.mark.proves("W7", "S1")
    def test_an_empty_disk_begins_anew(self) -> None:
        """S1: it is never asked for what it has not; nothing is lost (W7)."""
        plane, epoch = start("ab", replica_count=2)
        plane.decide(commit(epoch, 0))
        plane.lose(LINK_B)
        effects = plane.hear(LINK_B, node_register("b", store_id="new"))
        told_b = sent(effects, LINK_B)
        assert isinstance(told_b[0], NodeRegistered)
        assert told_b[0].jobs == ()
        assert isinstance(told_b[1], AssignJob)
        assert told_b[2] == ResetJob(
            leader_epoch=EPOCH,
            job_id=APP,
            sequence=1,
            state_numbers=(),
            restore_id="",
        )
        assert len(told_b) == 3

    @pytest.mark.proves("S1")
    def test_an_empty_disk_while_nobody_looked(self) -> None:
        """S1: a new leader finds another directory than was assigned."""
        plane, epoch = start("ab", replica_count=2)
        plane.decide(commit(epoch, 0))
        plane.next_leader()
        plane.hear(LINK_B, node_register("b", store_id="new"))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        assert owners(plane) == ["a"] * 4
        record = assignment(plane)
        assert record.store_ids == ("disk-of-a", "new")
        assert [len(joining) for joining in record.joining] == [1] * 4

    @pytest.mark.proves("S1")
    def test_rows_that_are_missing(self) -> None:
        """S1: what was lost of a decided batch is copied from who has it."""
        plane, epoch = start("ab", replica_count=2)
        for batch_id in range(103):
            plane.decide(commit(epoch, batch_id))
        plane.settle(LinksClosed(links=(LINK_B,)))
        # It is further behind than entries are kept.
        effects = plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert owners(plane) == ["a"] * 4
        assert len(parts(effects, LINK_B)[-1].joining) == 4


class TestFailing:
    """A node that says that it cannot go on (S1)."""

    def test_its_copies_count_for_nothing(self) -> None:
        """Where there are others; it is tried again after a session timeout."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        effects = plane.hear(LINK_B, applied("b", 0, failure="disk full"))
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["a"] * 4
        assert assignment(plane).node_ids == ("a",)
        assert plane.core.next_deadline_ns() == TIMEOUT_NS
        plane.now_ns = TIMEOUT_NS - 1
        for node_id, link in (("a", LINK_A), ("b", LINK_B)):
            beat = NodeHeartbeat(registration_id=f"process-{node_id}", number=1)
            plane.hear(link, beat)
        assert assignment(plane).node_ids == ("a",)
        plane.now_ns = TIMEOUT_NS
        effects = plane.settle(TimePassed())
        assert len(parts(effects, LINK_B)[0].joining) == 4

    @pytest.mark.proves("S1")
    @pytest.mark.parametrize("link", [LINK_B, LINK_C])
    def test_to_ask_again_mends_nothing(self, link: LinkId) -> None:
        """S1: the copies of one that is away are not given up for it."""
        plane, epoch = start("ab", replica_count=2)
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_A, applied("a", 1))
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_B, applied("b", 0, failure="disk full"))
        plane.now_ns = GRACE_NS
        plane.settle(TimePassed())
        plane.hear(link, node_register("b", positions={APP: 0}))
        plane.hear(link, applied("b", 0, failure="disk full"))
        assert {len(one) for one in owners(plane)} == {2}
        effects = plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        assert told(BatchCommitted, effects).batch_id == 0
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S1")
    def test_what_was_mended_before_it_asks_again(self) -> None:
        """S1: a node that has everything has no reason to say so again."""
        plane, epoch = start("ab", replica_count=2)
        plane.decide(commit(epoch, 0))
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_B, applied("b", 0, failure="disk full"))
        plane.now_ns = GRACE_NS
        plane.settle(TimePassed())
        plane.hear(LINK_C, node_register("b", positions={APP: 1}))
        assert owners(plane) == ["b"] * 4

    def test_a_failure_that_is_over(self) -> None:
        """It has the only copies, and nothing has changed meanwhile."""
        plane, _ = start("ab")
        plane.hear(LINK_B, applied("b", 0, failure="disk full"))
        plane.hear(LINK_B, applied("b", 0))
        assert assignment(plane).version == 1

    @pytest.mark.proves("S1")
    def test_who_fails_copies_nothing(self) -> None:
        """S1: its copies are given up; the plan is made without it."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.hear(LINK_B, applied("b", 0, failure="disk full"))
        assert assignment(plane).node_ids == ("a",)


@pytest.mark.proves("S2")
class TestSettling:
    """A new leader changes nothing at first (S2)."""

    def test_nothing_is_changed_until_the_timeout(self) -> None:
        """S2: at the moment itself, not before."""
        plane, _ = start("ab", replica_count=2)
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        assert plane.core.next_deadline_ns() == TIMEOUT_NS
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_A, NodeHeartbeat(registration_id="process-a", number=1))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        error = refusal(plane.ask(rescale(1)))
        assert isinstance(error, StateUnavailableError)
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        assert owners(plane) == ["a"] * 4
        assert plane.core.next_deadline_ns() == 2 * TIMEOUT_NS - 1

    def test_nothing_is_changed_until_all_have_come(self) -> None:
        """S2: the last one makes it settle."""
        plane, _ = start("abc", replica_count=2)
        plane.lose(LINK_C)
        plane.next_leader()
        for node_id in "abc":
            assert not plane.core.takes_for_away("a", plane.now_ns)
            plane.hear(LINKS[node_id], node_register(node_id))
        assert plane.core.takes_for_away("a", plane.now_ns)
        assert assignment(plane).wanted


class TestStore:
    """Each change is one write (S2)."""

    def test_a_write_that_did_not_happen_is_tried_again(self) -> None:
        """After a pause; none is told anything before."""
        plane, _ = start("ab", replica_count=2)
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns = GRACE_NS
        (write,) = plane.step(TimePassed())
        assert isinstance(write, WriteStore)
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        assert plane.step(failed) == ()
        assert owners(plane) == ["ab"] * 4
        assert plane.core.next_deadline_ns() == GRACE_NS + SECOND // 2
        assert plane.step(TimePassed()) == ()
        plane.now_ns = GRACE_NS + SECOND // 2
        plane.settle(TimePassed())
        assert owners(plane) == ["a"] * 4

    def test_what_happens_during_a_write_is_looked_at_after_it(self) -> None:
        """A node that dies meanwhile is not left in."""
        plane, _ = start("abc", replica_count=2)
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns = GRACE_NS
        (write,) = plane.step(TimePassed())
        assert isinstance(write, WriteStore)
        assert plane.step(LinksClosed(links=(LINK_C,)))[1:] == ()
        plane.now_ns = 2 * GRACE_NS
        assert plane.step(TimePassed()) == ()
        plane.write(write)
        plane.settle_rest(plane.step(StoreWritten()))
        # Only the last one has some of it, and is to be copied from when it is back.
        assert set(owners(plane)) == {"a", "c"}
        record = assignment(plane)
        joining = [copy for copies in record.joining for copy in copies]
        assert {record.node_ids[copy.node_index] for copy in joining} == {"a"}

    @pytest.mark.proves("S2")
    def test_an_answer_comes_after_the_write(self) -> None:
        """S2: the operator is told of what is written down."""
        plane, _ = start("a")
        join(plane, "b")
        asked = WriterAsked(link=OPERATOR, request=rescale(2), wall_clock_us=WALL_US)
        (write,) = plane.step(asked)
        assert isinstance(write, WriteStore)
        *_, answer = plane.step(StoreWritten())
        assert isinstance(answer, AnswerWriter)
        assert answer.link == OPERATOR


class TestRescale:
    """What operators ask (O6)."""

    @pytest.mark.proves("O6")
    def test_there_must_be_so_many_nodes(self) -> None:
        """O6: it starts none; draining ones do not count."""
        plane, _ = start("ab")
        plane.ask(drain("b"))
        error = refusal(plane.ask(rescale(2)))
        assert isinstance(error, ConfigurationError)
        assert "being drained: 1;" in str(error)
        assert "lodestar node" in str(error)

    def test_there_must_be_so_many_key_groups(self) -> None:
        """A fifth node would have nothing to do."""
        plane, _ = start("abc")
        for number in range(2):
            plane.hear(LinkId(30 + number), node_register(f"more-{number}"))
        error = refusal(plane.ask(rescale(5)))
        assert "4 key groups" in str(error)

    @pytest.mark.proves("S4")
    def test_copies_of_one_key_group_are_worth_a_node(self) -> None:
        """S4: a job of one key group has two nodes for two copies, and no third one."""
        plane = Plane()
        for node_id in "ab":
            plane.hear(LINKS[node_id], node_register(node_id))
        plane.bind(told(TicketDrawn, plane.ask(draw(max_parallelism=1))).ticket)
        assert "1 key groups" in str(refusal(plane.ask(rescale(2))))
        plane.ask(rescale(2, 2))
        plane.hear(LINK_B, copied("b", assignment(plane).version, 0))
        assert [set(one) for one in owners(plane)] == [{"a", "b"}]

    @pytest.mark.proves("S4")
    @pytest.mark.parametrize("request_", [rescale(1, 2), rescale(None, 3)])
    def test_copies_need_nodes(self, request_: RescaleJob) -> None:
        """S4: two copies on one node are one."""
        plane, _ = start("ab")
        error = refusal(plane.ask(request_))
        assert isinstance(error, ConfigurationError)
        assert "copies of each key group" in str(error)

    def test_there_must_be_such_a_job(self) -> None:
        """A typing error is told."""
        plane, _ = start("a")
        assert isinstance(refusal(plane.ask(rescale(1, job_id="x"))), UnknownJobError)
        with pytest.raises(UnknownJobError):
            plane.core.rescalings(
                ListRescalings(request_id=1, session=SESSION, job_id="x"), now_ns=0
            )

    @pytest.mark.proves("O6")
    def test_a_job_whose_states_were_dropped_is_none(self) -> None:
        """O6: none is shown, or can move, key groups that nothing is in."""
        plane, _ = start("a")
        plane.ask(drop())
        assert isinstance(refusal(plane.ask(rescale(1))), UnknownJobError)
        for_all = ListRescalings(request_id=1, session=SESSION)
        assert plane.core.rescalings(for_all, now_ns=0).rescalings == ()
        with pytest.raises(UnknownJobError):
            plane.core.rescalings(
                ListRescalings(request_id=1, session=SESSION, job_id=APP), now_ns=0
            )

    def test_what_is_so_already_is_answered(self) -> None:
        """No version is spent on it."""
        plane, _ = start("ab")
        answer = told(RescaleStarted, plane.ask(rescale(2, 1)))
        assert (answer.rescaling.assignment_version, answer.rescaling.left_count) == (
            1,
            0,
        )
        assert told(RescaleStarted, plane.ask(rescale())).request_id == 5

    @pytest.mark.proves("S4")
    def test_more_copies(self) -> None:
        """S4: for a job that is there."""
        plane, _ = start("ab")
        plane.ask(rescale(replica_count=2))
        version = assignment(plane).version
        plane.hear(LINK_A, copied("a", version, *GROUPS))
        version = assignment(plane).version
        plane.hear(LINK_B, copied("b", version, *GROUPS))
        assert [set(one) for one in owners(plane)] == [{"a", "b"}] * 4

    @pytest.mark.proves("S4")
    def test_fewer_copies(self) -> None:
        """S4: none goes before a node that is to stay has said that it is there."""
        plane, _ = start("ab", replica_count=2)
        plane.ask(rescale(replica_count=1))
        assert [set(one) for one in owners(plane)] == [{"a", "b"}] * 4
        plane.hear(LINK_A, heartbeat("a", 1))
        assert [len(one) for one in owners(plane)] == [1, 1, 2, 2]
        plane.hear(LINK_B, heartbeat("b", 1))
        assert owners(plane) == ["a", "a", "b", "b"]

    @pytest.mark.proves("O6")
    def test_progress(self) -> None:
        """O6: how far it is, and what holds it up."""
        plane, _ = start("a")
        join(plane, "b")
        plane.core.limit(ControlLimits(joining_key_groups_max=1))
        plane.ask(rescale(2, 2))
        plane.now_ns = 3 * SECOND
        plane.hear(LINK_B, copied("b", 2, failure="refused"))
        listed = plane.core.rescalings(
            ListRescalings(request_id=8, session=SESSION), now_ns=plane.now_ns
        )
        assert (listed.request_id, listed.is_settled) == (8, True)
        (one,) = listed.rescalings
        assert (one.job_id, one.assignment_version) == (APP, 2)
        assert (one.node_count, one.replica_count) == (2, 2)
        assert one.key_group_counts == {"a": 4, "b": 0}
        assert one.copy_counts == {"a": 4, "b": 0}
        assert (one.planned_count, one.left_count) == (4, 4)
        assert (one.surplus_count, one.missing_count) == (0, 4)
        assert one.started_ms == 3_000
        (move,) = one.moves
        assert (move.node_id, move.source_ids) == ("b", ("a",))
        assert (move.waiting_count, move.copying_count) == (3, 1)
        assert (move.row_count, move.size_bytes) == (0, 0)
        assert move.failure == "refused"

    @pytest.mark.proves("O6")
    def test_the_pace_is_that_of_the_present_leader(self) -> None:
        """
        O6: what an earlier one has done took this one no time.

        A leader took over half of a plan, and said a moment later that the other half
        would take a moment.
        """
        plane, _ = start("a")
        join(plane, "b")
        plane.core.limit(ControlLimits(joining_key_groups_max=1))
        plane.ask(rescale(2, 2))
        plane.now_ns = 300 * SECOND
        plane.hear(LINK_B, copied("b", 2, 0))
        plane.hear(LINK_B, copied("b", 3, 1))
        plane.next_leader()
        for node_id in "ab":
            registered = node_register(node_id, holding=KNOWS_ALL)
            plane.hear(LINKS[node_id], registered)
        plane.core.limit(ControlLimits(joining_key_groups_max=1))

        def rescaling() -> JobRescaling:
            request = ListRescalings(request_id=8, session=SESSION)
            return plane.core.rescalings(request, now_ns=plane.now_ns).rescalings[0]

        plane.now_ns += SECOND
        assert (rescaling().planned_count, rescaling().left_count) == (4, 2)
        assert rescaling().started_ms is None
        plane.now_ns += 99 * SECOND
        plane.hear(LINK_B, copied("b", rescaling().assignment_version, 2))
        assert rescaling().left_count == 1
        # One in 100 s, as if the two before it had taken as long.
        assert rescaling().started_ms == 300_000

    @pytest.mark.proves("O6")
    def test_progress_of_what_is_done(self) -> None:
        """O6: nothing is left, and no time is taken."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(rescale(2))
        plane.hear(LINK_B, copied("b", 2, 2, 3))
        request = ListRescalings(request_id=8, session=SESSION, job_id=APP)
        (one,) = plane.core.rescalings(request, now_ns=0).rescalings
        assert (one.planned_count, one.left_count, one.moves) == (2, 0, ())
        assert one.started_ms is None


class TestDrain:
    """Nodes that are to be emptied (O6)."""

    @pytest.mark.proves("S1")
    def test_a_node_that_leaves(self) -> None:
        """S1: it ends when the others have what it had."""
        plane, epoch = start("ab")
        plane.ask(commit(epoch, 0))
        effects = plane.hear(LINK_B, leave("b"))
        assert emptied("empty") not in sent(effects, LINK_B)
        (one,) = [n for n in plane.view.node_summaries(now_ns=0) if n.is_draining]
        assert one.node_id == "b"
        # To ask again changes nothing.
        assert plane.hear(LINK_B, leave("b")) == []
        effects = plane.hear(LINK_A, copied("a", 2, 2, 3))
        assert owners(plane) == ["a"] * 4
        gone, end = sent(effects, LINK_B)
        assert isinstance(gone, AssignJob)
        assert gone.job.key_groups == gone.job.copies == ()
        assert end == emptied("empty")
        # It has not heard, and is told again.
        assert sent(plane.hear(LINK_B, leave("b")), LINK_B) == [emptied("empty")]

    def test_leaving_that_is_not_written_down(self) -> None:
        """The node asks again by itself, and is not told anything before."""
        plane, _ = start("ab")
        said = NodeSpoke(link=LINK_B, message=leave("b"))
        (write,) = plane.step(said)
        assert isinstance(write, WriteStore)
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        assert plane.step(failed) == ()
        assert not any(one.is_draining for one in plane.view.node_summaries(now_ns=0))
        (write,) = plane.step(said)
        assert isinstance(write, WriteStore)

    @pytest.mark.proves("O6")
    def test_an_operator_drains_a_node(self) -> None:
        """O6: it is told like one that leaves."""
        plane, epoch = start("ab")
        plane.ask(commit(epoch, 0))
        join(plane, "c")
        assert told(DrainStarted, plane.ask(drain("b"))) == DrainStarted(
            request_id=6, node_id="b", job_ids=(APP,)
        )
        assert assignment(plane).node_ids == ("a", "b", "c")
        effects = plane.hear(LINK_C, copied("c", 2, 2, 3))
        assert emptied("empty") in sent(effects, LINK_B)

    @pytest.mark.proves("S4")
    def test_a_node_is_not_emptied_for_one_that_is_silent(self) -> None:
        """S4: that one may be gone, which is not known before its session is over."""
        plane, _ = start("ab", replica_count=2)
        plane.now_ns = TIMEOUT_NS // 2
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.ask(drain("b"))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.hear(LINK_A, heartbeat("a", 1))
        assert owners(plane) == ["a"] * 4
        # Or it is gone: who was to be emptied keeps what only it has.
        plane, _ = start("ab", replica_count=2)
        plane.now_ns = TIMEOUT_NS // 2
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.ask(drain("b"))
        plane.now_ns = TIMEOUT_NS
        plane.hear(LINK_B, heartbeat("b", 3))
        assert owners(plane) == ["b"] * 4

    @pytest.mark.proves("S4")
    @pytest.mark.parametrize("is_leaving", [False, True])
    def test_a_node_is_emptied_for_one_that_has_spoken_since(
        self, *, is_leaving: bool
    ) -> None:
        """S4: the other one was cut off a moment ago, and it may be long until then."""
        plane, _ = start("ab", replica_count=2)
        if is_leaving:
            plane.hear(LINK_B, leave("b"))
            plane.hear(LINK_B, leave("b"))
        else:
            plane.ask(drain("b"))
        plane.hear(LINK_B, heartbeat("b", 1))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.now_ns = TIMEOUT_NS // 2
        plane.hear(LINK_B, heartbeat("b", 2))
        plane.now_ns = TIMEOUT_NS
        plane.hear(LINK_B, heartbeat("b", 3))
        assert owners(plane) == ["b"] * 4
        # Or it is there, and says so.
        plane, _ = start("ab", replica_count=2)
        plane.hear(LINK_B, leave("b"))
        plane.hear(LINK_A, heartbeat("a", 1))
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S4")
    def test_a_new_leader_goes_on_with_a_drain(self) -> None:
        """S4: who is to stay may have been cut off since it registered."""
        plane, _ = start("ab", replica_count=2)
        plane.ask(drain("b"))
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.now_ns = SECOND
        plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.hear(LINK_A, heartbeat("a", 2))
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S4")
    def test_who_asked_to_be_taken_in_before_has_not_spoken_since(self) -> None:
        """S4: its turn may come late, when it has been cut off."""
        plane, _ = start("ab", replica_count=2)
        (write,) = plane.step(NodeSpoke(link=LINK_B, message=leave("b")))
        assert isinstance(write, WriteStore)
        again = node_register("a", positions={APP: 0})
        assert plane.step(NodeSpoke(link=LINK_C, message=again)) == ()
        plane.write(write)
        plane.settle_rest(plane.step(StoreWritten()))
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.hear(LINK_C, heartbeat("a", 1))
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S4")
    def test_a_store_that_does_not_take_it(self) -> None:
        """S4: who had spoken may be cut off when it is tried again."""
        plane, _ = start("ab", replica_count=2)
        plane.ask(drain("b"))
        said = NodeSpoke(link=LINK_A, message=heartbeat("a", 1))
        assert isinstance(plane.step(said)[-1], WriteStore)
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        assert plane.step(failed) == ()
        plane.now_ns = SECOND
        plane.settle(TimePassed())
        assert owners(plane) == ["ab", "ab", "ba", "ba"]
        plane.hear(LINK_A, heartbeat("a", 2))
        assert owners(plane) == ["a"] * 4

    @pytest.mark.proves("S2")
    def test_a_node_that_a_batch_may_need_stays(self) -> None:
        """S2: its rows may be there only, until it is decided."""
        plane, epoch = start("ab")
        plane.hear(LINK_B, leave("b"))
        effects = plane.hear(LINK_A, copied("a", 2, 2, 3))
        assert owners(plane) == ["a"] * 4
        assert emptied("empty") not in sent(effects, LINK_B)
        (one,) = [n for n in plane.view.node_summaries(now_ns=0) if n.is_draining]
        assert (one.copy_counts, one.is_needed) == ({}, True)
        effects = plane.ask(commit(epoch, 0, assignment_version=1))
        assert emptied("empty") in sent(effects, LINK_B)
        (one,) = [n for n in plane.view.node_summaries(now_ns=0) if n.is_draining]
        assert not one.is_needed

    @pytest.mark.proves("S2")
    def test_a_node_that_a_batch_may_need_keeps_its_place(self) -> None:
        """S2: though it is away: no other node is taken for it until that is over."""
        plane, epoch = start("ab")
        plane.core.limit(ControlLimits(node_count_max=2))
        plane.hear(LINK_B, leave("b"))
        plane.hear(LINK_A, copied("a", 2, 2, 3))
        plane.settle(LinksClosed(links=(LINK_B,)))
        (refused,) = sent(join(plane, "c"), LINK_C)
        assert isinstance(refused, NodeRefused)
        plane.ask(commit(epoch, 0, assignment_version=1))
        plane.hear(LINK_B, node_register("b"))
        plane.settle(LinksClosed(links=(LINK_B,)))
        registered, *_ = sent(join(plane, "c"), LINK_C)
        assert isinstance(registered, NodeRegistered)

    @pytest.mark.proves("B4")
    def test_a_node_that_a_batch_may_need_is_not_forgotten(self) -> None:
        """B4: its rows may be there only; once that is decided it can be forgotten."""
        plane, epoch = start("ab")
        plane.hear(LINK_B, leave("b"))
        plane.hear(LINK_A, copied("a", 2, 2, 3))
        plane.settle(LinksClosed(links=(LINK_B,)))
        forget = ForgetAwayNode(request_id=7, session=SESSION, node_id="b")
        assert isinstance(refusal(plane.ask(forget)), DidNotHappenError)
        plane.ask(commit(epoch, 0, assignment_version=1))
        plane.hear(LINK_B, node_register("b"))
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert told(AwayNodeForgotten, plane.ask(forget)).node_id == "b"

    @pytest.mark.proves("O6")
    def test_a_drain_is_taken_back(self) -> None:
        """O6: it takes part again."""
        plane, _ = start("ab")
        plane.ask(drain("b"))
        plane.ask(drain("b", is_undone=True))
        record = assignment(plane)
        assert (record.joining, record.wanted) == ((), ())
        assert not any(one.is_draining for one in plane.view.node_summaries(now_ns=0))

    @pytest.mark.proves("S1")
    def test_nobody_can_take_over(self) -> None:
        """S1: a node need not wait for what cannot be."""
        plane, epoch = start("ab")
        plane.ask(commit(epoch, 0))
        plane.hear(LINK_B, leave("b"))
        effects = plane.hear(LINK_A, leave("a"))
        assert emptied("nobody") in sent(effects, LINK_A)
        assert emptied("nobody") in sent(effects, LINK_B)
        assert assignment(plane).joining == ()
        # Somebody comes: then they are emptied after all.
        effects = join(plane, "c")
        (part,) = parts(effects, LINK_C)
        effects = plane.hear(LINK_C, copied("c", part.assignment_version, *GROUPS))
        assert sent(effects, LINK_A)[-1] == emptied("empty")

    @pytest.mark.proves("S4")
    def test_who_is_expected_may_take_over(self) -> None:
        """S4: its connection broke for a moment; then it has what is in sync."""
        plane, _ = start("ab", replica_count=2)
        plane.settle(LinksClosed(links=(LINK_A,)))
        effects = plane.hear(LINK_B, leave("b"))
        assert emptied("nobody") not in sent(effects, LINK_B)
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        plane.hear(LINK_A, heartbeat("a", 1))
        assert owners(plane) == ["a"] * 4
        # Or it is not back in time, or is to be emptied itself.
        plane, _ = start("ab", replica_count=2)
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.hear(LINK_B, leave("b"))
        plane.now_ns = GRACE_NS
        assert emptied("nobody") in sent(plane.settle(TimePassed()), LINK_B)
        plane, _ = start("ab", replica_count=2)
        plane.hear(LINK_A, leave("a"))
        plane.settle(LinksClosed(links=(LINK_A,)))
        assert emptied("nobody") in sent(plane.hear(LINK_B, leave("b")), LINK_B)

    @pytest.mark.proves("S2")
    def test_not_before_the_leader_has_settled(self) -> None:
        """S2: those who could take over may still be coming."""
        plane, _ = start("ab")
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        assert plane.hear(LINK_A, leave("a")) == []
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_A, NodeHeartbeat(registration_id="process-a", number=1))
        plane.now_ns = TIMEOUT_NS
        end = NodeEmptied(leader_epoch=EPOCH + 1, reason="nobody")
        assert end in sent(plane.settle(TimePassed()), LINK_A)

    def test_a_node_without_a_part_may_end_at_once(self) -> None:
        """There is nothing to wait for."""
        plane, _ = start("a")
        join(plane, "b")
        assert sent(plane.hear(LINK_B, leave("b")), LINK_B) == [emptied("empty")]

    @pytest.mark.proves("O6")
    def test_the_same_process_is_told_again(self) -> None:
        """O6: after another connection, and by another leader."""
        plane, _ = start("a")
        join(plane, "b")
        plane.ask(drain("b"))
        effects = plane.hear(LinkId(9), node_register("b"))
        assert sent(effects, LinkId(9))[-1] == emptied("empty")
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        effects = plane.hear(LINK_B, node_register("b"))
        assert sent(effects, LINK_B)[-1] == NodeEmptied(
            leader_epoch=EPOCH + 1, reason="empty"
        )

    @pytest.mark.proves("O6")
    def test_a_new_process_takes_part(self) -> None:
        """O6: one that starts a node wants to have it."""
        plane, _ = start("ab")
        plane.hear(LINK_B, leave("b"))
        plane.hear(LINK_A, copied("a", 2, 2, 3))
        plane.settle(LinksClosed(links=(LINK_B,)))
        effects = join(plane, "b", registration_id="later")
        assert emptied("empty") not in sent(effects, LINK_B)
        assert len(parts(effects, LINK_B)[0].joining) == 2

    @pytest.mark.proves("O6")
    def test_a_node_that_is_away_is_given_up(self) -> None:
        """O6: another one is to have what it had, as soon as it is back."""
        plane, _ = start("ab")
        join(plane, "c")
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert assignment(plane).version == 1
        plane.ask(drain("b"))
        record = assignment(plane)
        assert owners(plane) == ["a", "a", "b", "b"]
        assert {record.node_ids[index] for one in record.wanted for index in one} == {
            "a",
            "c",
        }
        # Also by a leader that has never seen it.
        plane.next_leader()
        plane.now_ns = TIMEOUT_NS
        told(DrainStarted, plane.ask(drain("b")))

    @pytest.mark.proves("O6")
    def test_a_node_that_is_late_is_drained_when_it_is_here(self) -> None:
        """O6: a new leader does not know which process of it is meant."""
        plane, _ = start("ab")
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        assert isinstance(refusal(plane.ask(drain("b"))), DidNotHappenError)
        told(DrainStarted, plane.ask(drain("b", is_undone=True)))
        plane.hear(LINK_B, node_register("b", positions={APP: 0}))
        told(DrainStarted, plane.ask(drain("b")))
        (one,) = [n for n in plane.view.node_summaries(now_ns=0) if n.is_draining]
        assert one.node_id == "b"

    def test_there_must_be_such_a_node(self) -> None:
        """The known ones are named."""
        plane, _ = start("ab")
        error = refusal(plane.ask(drain("x")))
        assert isinstance(error, ConfigurationError)
        assert "known are: a, b" in str(error)

    @pytest.mark.proves("O6")
    def test_a_job_is_not_given_to_who_is_leaving(self) -> None:
        """O6: nor is there a job, if no other is there."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a"))
        plane.ask(drain("a"))
        assert isinstance(refusal(plane.ask(draw())), StateUnavailableError)
        plane.hear(LINK_B, node_register("b"))
        plane.ask(draw())
        assert assignment(plane).node_ids == ("b",)

    def test_leaving_is_said_again_by_who_was_away(self) -> None:
        """What waits for its turn is of a registration that is over."""
        plane, _ = start("ab")
        plane.hear(LINK_A, leave("a"))
        held = NodeSpoke(link=LINK_B, message=leave("b"))
        (write,) = plane.step(
            WriterAsked(
                link=DRIVER, request=drain("a", is_undone=True), wall_clock_us=WALL_US
            )
        )
        assert isinstance(write, WriteStore)
        assert plane.step(held) == ()
        plane.step(LinksClosed(links=(LINK_B,)))
        plane.write(write)
        plane.settle_rest(plane.step(StoreWritten()))
        assert not any(one.is_draining for one in plane.view.node_summaries(now_ns=0))
