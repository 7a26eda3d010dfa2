"""W7: what nodes are told to keep of their jobs, and that entries move it on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from queryablestate.control.events import LinksClosed
from queryablestate.control.job_plans import job_plan
from queryablestate.wire.job_plan import JobPlan, PlannedState, progress_after
from queryablestate.wire.records import BatchDecided, StateDropped
from tests.queryablestate.control_plane import (
    APP,
    LINK_A,
    LINK_B,
    LIST,
    VALUE,
    Plane,
    commit,
    drop,
    node_register,
)


BOTH = {"aircraft": VALUE, "log": LIST}


def moved_on(plan: JobPlan, plane: Plane) -> list[PlannedState]:
    """Return the states of *plan* after all entries that were decided since."""
    job = plane.core._control.jobs[APP]
    states = {one.state.state_number: one for one in plan.states}
    for sequence in range(plan.sequence + 1, job.record.sequence + 1):
        entry = job.entries[sequence]
        if isinstance(entry, StateDropped):
            states.pop(entry.state_number, None)
        if not isinstance(entry, BatchDecided):
            continue
        for state in entry.states:
            known = states[state.state_number]
            progress = progress_after(known.progress, entry, state)
            states[state.state_number] = replace(known, progress=progress)
    return list(states.values())


def stored(plane: Plane) -> list[PlannedState]:
    """Return the states of the job as the leader store has them."""
    job = plane.core._control.jobs[APP]
    return [
        PlannedState(state=job.states[one.state_number], progress=one)
        for one in job.record.progress
    ]


class TestTelling:
    @pytest.mark.proves("W7")
    def test_nodes_keep_what_the_leader_store_holds(self) -> None:
        """States, runs, the assignment, and how far all of it was."""
        plane = Plane()
        epoch = plane.start_job(BOTH)
        job = plane.core._control.jobs[APP]
        plan = plane.plans[LINK_A, APP]
        assert plan == plane.plans[LINK_B, APP]
        assert plan.assignment == job.assignment
        assert plan.runs == job.record.runs
        assert [run.writer_epoch for run in plan.runs] == [epoch]
        assert (plan.job_number, plan.sequence) == (1, 0)
        assert list(plan.states) == stored(plane)
        assert plan.ticket_limit > epoch

    def test_a_batch_tells_nothing(self) -> None:
        """It follows from the entry; a run that is new, or a state, is told."""
        plane = Plane()
        epoch = plane.start_job()
        plane.plans.clear()
        plane.decide(commit(epoch, 0))
        assert plane.plans == {}
        plane.new_run("run-2")
        assert plane.plans[LINK_A, APP].sequence == 1
        plane.plans.clear()
        plane.bind(plane.draw(states=BOTH), run_id="run-3", states=BOTH)
        assert len(plane.plans[LINK_B, APP].states) == 2

    def test_whoever_registers_anew_is_told_anew(self) -> None:
        """It may be another process, or another disk."""
        plane = Plane()
        plane.start_job()
        plane.plans.clear()
        plane.hear(LINK_A, node_register("a", positions={APP: 0}))
        assert list(plane.plans) == [(LINK_A, APP)]
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.plans.clear()
        plane.new_run("run-2")
        assert list(plane.plans) == [(LINK_B, APP)]

    @pytest.mark.proves("W7")
    def test_a_node_that_is_ahead_keeps_what_it_has(self) -> None:
        """What it was told before is worth more."""
        plane = Plane()
        plane.start_job()
        plane.plans.clear()
        plane.hear(LINK_A, node_register("a", positions={APP: 3}))
        assert plane.plans == {}


class TestMovingOn:
    @pytest.mark.proves("W7", "W4")
    @settings(max_examples=60)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["query", "other", "third"]),
                st.sampled_from(["continue", "replace"]),
                st.booleans(),
                st.sampled_from([(1,), (2,), (1, 2)]),
                st.binary(max_size=2),
            ),
            max_size=12,
        )
    )
    def test_entries_move_a_plan_as_decisions_move_the_store(
        self, batches: list[tuple[str, str, bool, tuple[int, ...], bytes]]
    ) -> None:
        """W4: who takes a job over knows every batch that was decided."""
        plane = Plane()
        epoch = plane.start_job(BOTH)
        plane.decide(commit(epoch, 0, state_numbers=(1, 2)))
        job = plane.core._control.jobs[APP]
        plan = job_plan(job, ticket_limit=1)
        for number, (query_id, mode, is_complete, numbers, digest) in enumerate(
            batches, 1
        ):
            run_id = f"run of {number}"
            ticket = plane.draw(states=BOTH)
            epoch = plane.bind(
                ticket,
                query_id=query_id,
                run_id=run_id,
                states=BOTH,
                on_new_query="continue",
            )
            plane.decide(
                commit(
                    epoch,
                    number,
                    query_id=query_id,
                    run_id=run_id,
                    state_numbers=numbers,
                    is_complete=is_complete,
                    on_new_query=mode,
                    digests=(digest,) * len(numbers),
                )
            )
        assert job.record.sequence == 1 + len(batches)
        assert moved_on(plan, plane) == stored(plane)
        plane.ask(drop())
        assert moved_on(plan, plane) == stored(plane)
