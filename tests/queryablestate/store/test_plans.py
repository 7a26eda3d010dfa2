"""W7: a store keeps the plan of a job as of the last entry that it has applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from queryablestate.store.store import StateStore
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.job_plan import (
    JobOrigin,
    JobPlan,
    PlannedState,
    entry_digest,
)
from queryablestate.wire.records import (
    AssignmentRecord,
    BatchDecided,
    BatchState,
    Entry,
    SnapshotMarked,
    StateDropped,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.staging_messages import StageChunk


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Return an empty store."""
    with StateStore.open(tmp_path / "rows", node_id="n", is_durable=False) as store:
        yield store


def planned(number: int, batch_id: int | None = None) -> PlannedState:
    """Return a state that was written up to that batch."""
    return PlannedState(
        state=StateRecord(state_name=f"s{number}", state_number=number, schema="{}"),
        progress=StateProgress(
            state_number=number,
            query_id="q",
            owner_epoch=1,
            generation=1,
            batch_id=batch_id,
            decided_at_us=0,
        ),
    )


def plan(*states: PlannedState, sequence: int = 0, version: int = 1) -> JobPlan:
    """Return a plan as it is told."""
    return JobPlan(
        job_id="job",
        job_number=5,
        max_parallelism=1,
        sequence=sequence,
        ticket_limit=1_001,
        runs=(),
        fence=0,
        assignment=AssignmentRecord(
            version=version,
            node_ids=("n",),
            store_ids=("s",),
            since_sequences=(0,),
            owners=((0,),),
        ),
        states=states,
    )


def batch(sequence: int, *numbers: int, size: int = 0) -> BatchDecided:
    """Return an entry without rows; its batch is called as the entry is."""
    return BatchDecided(
        sequence=sequence,
        query_id="q" * max(1, size),
        writer_epoch=1,
        batch_id=sequence,
        assignment_version=1,
        decided_at_us=sequence,
        states=tuple(
            BatchState(
                state_number=number,
                kind="value",
                has_ttl=False,
                generation=1,
                is_replaced=False,
                digest=b"d",
            )
            for number in numbers
        ),
        stages=(),
    )


def batches(store: StateStore) -> dict[int, int | None]:
    """Return the last batch of each state of the plan that is kept."""
    told = store.told_plan("job")
    assert told is not None
    assert told.plan is not None
    assert told.plan.sequence == told.sequence
    return {one.state.state_number: one.progress.batch_id for one in told.plan.states}


class TestKeeping:
    @pytest.mark.proves("W7")
    def test_entries_move_it_on(self, store: StateStore) -> None:
        """Of states that an entry writes, and of no others."""
        store.keep_plan(plan(planned(1), planned(2)))
        store.apply("job", batch(1, 1))
        store.apply("job", batch(2, 2))
        store.apply("job", batch(3, 1))
        assert batches(store) == {1: 3, 2: 2}
        told = store.told_plan("job")
        assert told is not None
        assert told.plan is not None
        assert [one.progress.digest for one in told.plan.states] == [b"d", b"d"]
        assert [entry.sequence for entry in told.entries] == [1, 2, 3]

    def test_a_state_that_is_dropped_is_gone(self, store: StateStore) -> None:
        """A new control plane does not find it again."""
        store.keep_plan(plan(planned(1), planned(2)))
        store.apply("job", batch(1, 1, 2))
        store.apply("job", StateDropped(sequence=2, state_number=1))
        store.apply("job", SnapshotMarked(sequence=3, snapshot_id="0" * 32))
        assert batches(store) == {2: 1}

    @pytest.mark.proves("W7", "W4")
    def test_a_plan_that_is_ahead_waits(self, store: StateStore) -> None:
        """W4: or a batch would be taken for applied whose rows are not there."""
        store.keep_plan(plan(planned(1)))
        store.apply("job", batch(1, 1))
        store.keep_plan(plan(planned(1, 2), planned(2), sequence=2, version=7))
        assert batches(store) == {1: 1}
        assert store.origins()["job"].assignment_version == 1
        store.apply("job", batch(2, 1))
        assert batches(store) == {1: 2, 2: None}
        assert store.origins()["job"].assignment_version == 7

    def test_a_plan_that_is_behind_takes_nothing_back(self, store: StateStore) -> None:
        """What was applied since is known better here."""
        store.keep_plan(plan(planned(1)))
        for sequence in (1, 2):
            store.apply("job", batch(sequence, 1))
        store.keep_plan(plan(planned(1, 1), sequence=1, version=2))
        assert batches(store) == {1: 2}

    def test_a_job_that_begins_anew_takes_the_plan_that_waits(
        self, store: StateStore
    ) -> None:
        """The entries of before are not of this beginning."""
        store.keep_plan(plan(planned(1)))
        store.apply("job", batch(1, 1))
        store.keep_plan(plan(planned(1, 9), sequence=9))
        store.reset_job("job", 9, [1])
        assert batches(store) == {1: 9}
        told = store.told_plan("job")
        assert told is not None
        assert told.entries == ()

    def test_without_a_plan_there_is_none(self, store: StateStore) -> None:
        """A directory of an earlier version knows how far it is, and no names."""
        assert store.told_plan("job") is None
        store.apply("job", batch(1, 1))
        told = store.told_plan("job")
        assert told is not None
        assert (told.sequence, told.plan) == (1, None)

    def test_what_tells_a_job_from_others(self, store: StateStore) -> None:
        """Its number, and the last entry that was applied."""
        store.keep_plan(plan(planned(1)))
        entry: Entry = batch(1, 1)
        store.apply("job", entry)
        digest = entry_digest(entry)
        assert store.origins() == {
            "job": JobOrigin(job_number=5, assignment_version=1, entry_digest=digest)
        }
        assert digest != entry_digest(replace(entry, decided_at_us=99))
        store.reset_job("job", 4, [])
        assert store.origins()["job"].entry_digest == b""


class TestEntries:
    def test_only_the_newest_are_kept(self, store: StateStore) -> None:
        """A node that is further behind is refilled."""
        for sequence in range(1, 41):
            store.apply("job", batch(sequence, 1))
        told = store.told_plan("job")
        assert told is not None
        assert [entry.sequence for entry in told.entries] == list(range(25, 41))

    def test_large_ones_are_fewer(self, store: StateStore) -> None:
        """They go to the proxy in one message; and never with a gap."""
        for sequence, size in enumerate([1, 3 << 20, 1, 2 << 20, 1], 1):
            store.apply("job", batch(sequence, 1, size=size))
        told = store.told_plan("job")
        assert told is not None
        assert [entry.sequence for entry in told.entries] == [3, 4, 5]


@pytest.mark.proves("B4")
def test_of_a_forgotten_job_nothing_is_left(store: StateStore) -> None:
    """B4: no rows, marks, fences, stages or plans; and what others have stays."""
    for job_id, number in (("job", 1), ("other", 2)):
        store.keep_plan(replace(plan(planned(number)), job_id=job_id))
        store.fence([WriterFence(job_id=job_id, query_id="q", writer_epoch=1)])
        chunk = StageChunk(
            request_id=1,
            job_id=job_id,
            query_id="q",
            writer_epoch=1,
            batch_id=9,
            stage_id=bytes(16),
            chunk_index=0,
            assignment_version=1,
        )
        store.stage([(chunk, b"rows")], 1)
        store.apply(job_id, batch(1, number))
        store.hold(job_id, [0], ())
    store.forget_job("job")
    assert store.told_plan("job") is None
    assert set(store.positions()) == {"other"} == set(store.origins())
    assert {job_id for job_id, _ in store.fences()} == {"other"}
    assert store.state(1) is None
    assert store.state(2) is not None
    assert store.drop_stages_older_than(2) == 1  # the other one's
    store.keep_plan(plan(planned(1)))
    store.apply("job", batch(1, 1))
    assert batches(store) == {1: 1}
