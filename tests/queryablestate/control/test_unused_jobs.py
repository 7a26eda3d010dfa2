"""B4: jobs that have no state go by themselves, and superseded runs stay over (W1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from attrs import evolve
from msgspec.structs import replace

from queryablestate.control.effects import AnswerWriter, SendToNode, StartOver
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.job.leader_paths import (
    COUNTERS,
    decode_counters,
    decode_node,
    node_path,
)
from queryablestate.control.limits import CONTROL_LIMITS
from queryablestate.control.unused_jobs import UNUSED_NS
from queryablestate.errors import StaleWriterError, UnknownJobError
from queryablestate.wire.clients import TicketDrawn
from queryablestate.wire.job_plan import JobOrigin
from queryablestate.wire.node_messages import (
    AssignJob,
    HeartbeatAcknowledged,
    NodeRefused,
    ResetJob,
)
from queryablestate.wire.operation_messages import ForgetJob
from queryablestate.wire.records import ForgottenJob
from tests.queryablestate.control.test_kept_jobs import kept
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    LINK_A,
    LINK_B,
    SECOND,
    SESSION,
    WALL_US,
    Plane,
    applied,
    bind,
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
    from queryablestate.control.effects import ControlEffect

OTHER: Final = LinkId(20)


def pass_time(plane: Plane, nanoseconds: int) -> list[ControlEffect]:
    """Move time on, while both nodes are heard; return what is done."""
    effects: list[ControlEffect] = []
    end_ns = plane.now_ns + nanoseconds
    while plane.now_ns < end_ns:
        plane.now_ns = min(end_ns, plane.now_ns + 5 * SECOND)
        effects += plane.hear(LINK_A, heartbeat("a", 1))
        effects += plane.hear(LINK_B, heartbeat("b", 1))
        effects += plane.settle(TimePassed())
    return [one for one in effects if not _is_acknowledgement(one)]


def _is_acknowledgement(effect: ControlEffect) -> bool:
    return isinstance(effect, SendToNode) and isinstance(
        effect.message, HeartbeatAcknowledged | NodeRefused
    )


def empty(plane: Plane) -> None:
    """Make a job of one batch, whose state was dropped."""
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.ask(drop())
    for link, node_id in ((LINK_A, "a"), (LINK_B, "b")):
        plane.hear(link, applied(node_id, 2))


def draw_over(plane: Plane, link: LinkId, job_id: str) -> None:
    """Draw a ticket that is never used."""
    request = draw(job_id=job_id)
    asked = WriterAsked(link=link, request=request, wall_clock_us=WALL_US)
    assert told(TicketDrawn, plane.settle(asked)).ticket


def job_ids(plane: Plane) -> set[str]:
    """Return the jobs that there are, those without state among them."""
    return set(plane.core._control.jobs)


class TestUnusedTickets:
    @pytest.mark.proves("B4")
    def test_a_ticket_that_is_never_used_leaves_no_job(self) -> None:
        """B4: its records go, and its nodes hold nothing of it any more."""
        plane = Plane()
        plane.start_nodes()
        plane.draw()
        effects = pass_time(plane, 2 * UNUSED_NS)
        assert not [path for path in plane.store if path.startswith("jobs/")]
        assert job_ids(plane) == set()
        for link in (LINK_A, LINK_B):
            (left,) = sent(effects, link)
            assert isinstance(left, AssignJob)
            assert (left.job.job_id, left.job.key_groups) == (APP, ())
        assert not any(isinstance(effect, StartOver) for effect in effects)

    @pytest.mark.proves("B4")
    def test_one_that_is_used_keeps_its_job(self) -> None:
        """However long its query is idle then."""
        plane = Plane()
        plane.start_job()
        pass_time(plane, 2 * UNUSED_NS)
        assert plane.view.job_ids() == [APP]

    @pytest.mark.proves("B4")
    def test_however_many_they_are_a_new_job_is_not_refused(self) -> None:
        """B4: the one who has most of them loses the oldest, and no other loses one."""
        count_max = 100
        plane = Plane()
        plane.core.limit(evolve(CONTROL_LIMITS, job_count_max=count_max))
        plane.start_nodes()
        draw_over(plane, OTHER, "other")
        for number in range(2 * count_max):
            draw_over(plane, DRIVER, f"unused-{number}")
        assert len(job_ids(plane)) == count_max
        assert "other" in job_ids(plane)
        assert "unused-0" not in job_ids(plane)
        plane.bind(plane.draw(), states=None)
        plane.bind(plane.draw(job_id="more"), job_id="more")
        assert plane.view.job_ids() == [APP, "more"]

    def test_jobs_with_state_are_never_given_up(self) -> None:
        """A limit is a limit, and the error says what can be done."""
        plane = Plane()
        plane.start_job()
        plane.core.limit(evolve(CONTROL_LIMITS, job_count_max=1))
        error = refusal(plane.ask(draw(job_id="trains")))
        assert "forget-job" in str(error)

    def test_who_comes_back_later_is_told(self) -> None:
        """The batch is planned anew."""
        plane = Plane()
        plane.start_nodes()
        ticket = plane.draw()
        pass_time(plane, 2 * UNUSED_NS)
        assert isinstance(refusal(plane.ask(bind(ticket))), UnknownJobError)
        plane.bind(plane.draw())


class TestDroppedStates:
    @pytest.mark.proves("B4")
    def test_a_job_without_states_goes(self) -> None:
        """B4: nodes begin it at 0, hold nothing of it, and there is a note."""
        plane = Plane()
        empty(plane)
        effects = pass_time(plane, 2 * UNUSED_NS)
        assert job_ids(plane) == set()
        for link in (LINK_A, LINK_B):
            reset, left = sent(effects, link)
            assert isinstance(reset, ResetJob)
            assert reset.sequence == 0
            assert isinstance(left, AssignJob)
        note = ForgottenJob(job_id=APP, job_number=1)
        assert decode_node(plane.store[node_path("b")]).forgotten == (note,)

    @pytest.mark.proves("B4", "W7")
    def test_a_node_that_was_away_is_ahead_of_nobody(self) -> None:
        """Without the note, its rows would be taken for those of a lost history."""
        plane = Plane()
        empty(plane)
        plane.settle(LinksClosed(links=(LINK_B,)))
        pass_time(plane, 2 * UNUSED_NS)
        message = node_register("b", positions={APP: 2})
        origin = JobOrigin(job_number=1)
        positions = tuple(replace(one, origin=origin) for one in message.positions)
        first = sent(plane.hear(LINK_B, replace(message, positions=positions)), LINK_B)[
            0
        ]
        assert first.forgotten == (APP,)  # type: ignore[union-attr]  # it is registered
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None
        plane.hear(LINK_B, node_register("b"))
        assert decode_node(plane.store[node_path("b")]).forgotten == ()

    @pytest.mark.proves("W7")
    def test_a_number_does_not_tell_a_forgotten_job_from_a_lost_one(self) -> None:
        """
        The danger for which notes are kept.

        A backup is restored, a job is begun, and a node comes with a job of the history
        that was lost.  Its number was given out again, and its rows are all there is.
        """
        plane = Plane()
        plane.start_nodes()
        backup = dict(plane.store)
        plane.bind(plane.draw(job_id="lost"), job_id="lost")
        assert decode_counters(plane.store[COUNTERS]).job_number == 1
        plane.store = backup
        plane.next_leader()
        plane.hear(LINK_A, node_register("a"))
        plane.hear(LINK_B, node_register("b"))
        plane.bind(plane.draw(job_id="begun"), job_id="begun")
        assert decode_counters(plane.store[COUNTERS]).job_number == 1
        message = node_register("b", positions={"lost": 5})
        origin = JobOrigin(job_number=1)
        positions = tuple(replace(one, origin=origin) for one in message.positions)
        first = sent(plane.hear(LINK_B, replace(message, positions=positions)), LINK_B)[
            0
        ]
        assert (first.forgotten, first.untouched) == ((), ("lost",))  # type: ignore[union-attr]  # it is registered
        assert plane.view.problem_of("lost", now_ns=plane.now_ns) is not None

    @pytest.mark.proves("B4", "W7")
    def test_what_nodes_keep_of_it_keeps_it(self) -> None:
        """Somebody has to decide what those rows are."""
        plane = Plane()
        empty(plane)
        plane.hear(
            LINK_B, node_register("b", positions={APP: 2}, kept=(kept(APP, "trains"),))
        )
        pass_time(plane, 2 * UNUSED_NS)
        assert job_ids(plane) == {APP}

    def test_it_is_begun_anew_by_nodes_that_know_it(self) -> None:
        """Present nodes that had applied two entries of it take the first one."""
        plane = Plane()
        empty(plane)
        pass_time(plane, 2 * UNUSED_NS)
        epoch = plane.bind(plane.draw(), run_id="run-2")
        for link, node_id in ((LINK_A, "a"), (LINK_B, "b")):
            plane.hear(link, applied(node_id, 0))
        answers = plane.decide(commit(epoch, 0, run_id="run-2", state_numbers=(2,)))
        assert any(isinstance(effect, AnswerWriter) for effect in answers)

    def test_a_commit_that_waits_for_a_job_that_goes_is_told(self) -> None:
        """It fails rather than to wait for what will not be said."""
        plane = Plane()
        epoch = plane.start_job()
        plane.ask(commit(epoch, 0, timeout_ms=10 * 3_600_000))
        plane.ask(drop())
        effects = pass_time(plane, 2 * UNUSED_NS)
        assert isinstance(refusal(effects), UnknownJobError)


class TestFences:
    @pytest.fixture(params=["expired", "forgotten"])
    def plane(self, request: pytest.FixtureRequest) -> Plane:
        """Return a plane whose job is gone; its run of before was superseded."""
        plane = Plane()
        plane.start_job()
        plane.new_run("run-2")
        if request.param == "expired":
            plane.ask(drop())
            pass_time(plane, 2 * UNUSED_NS)
        else:
            forget = ForgetJob(request_id=9, session=SESSION, job_id=APP)
            plane.ask(forget)
            plane.next_leader()
            plane.start_nodes()
        assert job_ids(plane) == set()
        return plane

    @pytest.mark.proves("W1", "B4")
    def test_a_superseded_run_stays_over(self, plane: Plane) -> None:
        """W1: also when its job is begun anew, and no run of it was bound."""
        request = bind(plane.draw(), run_id="run-1", born_epoch=1)
        assert isinstance(refusal(plane.ask(request)), StaleWriterError)

    @pytest.mark.proves("W1")
    def test_a_superseded_run_commits_nothing(self, plane: Plane) -> None:
        """W1: nor does it by what it had bound before."""
        plane.bind(plane.draw(), query_id="new", run_id="run-9")
        request = commit(1, 0, run_id="run-1", state_numbers=(2,), born_epoch=1)
        assert isinstance(refusal(plane.ask(request)), StaleWriterError)

    def test_the_newest_run_goes_on(self, plane: Plane) -> None:
        """Its query was never told to end."""
        assert plane.bind(plane.draw(), run_id="run-2", born_epoch=2)

    def test_other_jobs_are_not_concerned(self, plane: Plane) -> None:
        """A run of another job may have been born before, and not have begun."""
        ticket = plane.draw(job_id="trains")
        assert plane.bind(ticket, job_id="trains", run_id="t", born_epoch=1)

    @pytest.mark.proves("B4")
    def test_the_next_leader_knows(self, plane: Plane) -> None:
        """It is in the leader store."""
        plane.next_leader()
        plane.start_nodes()
        request = bind(plane.draw(), run_id="run-1", born_epoch=1)
        assert isinstance(refusal(plane.ask(request)), StaleWriterError)
