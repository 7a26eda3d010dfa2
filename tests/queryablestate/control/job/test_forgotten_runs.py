"""W1, B4: fences of forgotten jobs, at constant size."""

from __future__ import annotations

import pytest

from queryablestate.control.job.forgotten_runs import fence_of_job, with_fence_of
from queryablestate.control.job.leader_paths import encode_record
from queryablestate.wire.records import CountersRecord, JobRecord, RunRecord


COUNTERS = CountersRecord(
    control_id="control", ticket_limit=1, state_number=0, job_number=0
)


def job(job_id: str, *born_epochs: int, fence: int = 0) -> JobRecord:
    """Return a job with a query for each of these epochs."""
    return JobRecord(
        job_id=job_id,
        job_number=1,
        max_parallelism=4,
        sequence=0,
        sequence_first=1,
        runs=tuple(
            RunRecord(
                query_id=f"query-{epoch}",
                run_id=f"run-{epoch}",
                writer_epoch=epoch,
                batch_id=None,
            )
            for epoch in born_epochs
        ),
        progress=(),
        fence=fence,
    )


@pytest.mark.proves("W1")
def test_all_but_the_youngest_run_are_fenced() -> None:
    """W1: whatever was superseded was born before it."""
    assert fence_of_job(with_fence_of(COUNTERS, job("a", 5, 9)), "a") == 8
    assert fence_of_job(with_fence_of(COUNTERS, job("a", 5, fence=7)), "a") == 7


def test_a_job_without_runs_leaves_nothing() -> None:
    """A thousand tickets that are never used push no fence out."""
    assert with_fence_of(COUNTERS, job("a")) == COUNTERS


@pytest.mark.proves("W1", "B4")
def test_fences_never_fall_and_never_grow_in_number() -> None:
    """B4: ten thousand jobs take as much as a hundred; each is fenced as it was."""
    counters = COUNTERS
    sizes = []
    for number in range(10_000):
        counters = with_fence_of(counters, job(f"job-{number}", number + 2))
        sizes.append(len(encode_record(counters)))
    assert len(counters.fences) == 100
    assert max(sizes[200:]) <= sizes[200] + 1_000
    for number in (0, 1, 9_899, 9_900, 9_999):
        assert fence_of_job(counters, f"job-{number}") >= number + 1
    assert fence_of_job(counters, "another") == counters.fence == 9_900


def test_a_job_that_is_forgotten_again_keeps_the_higher_fence() -> None:
    """Its place is that of the newest."""
    counters = with_fence_of(COUNTERS, job("a", 9))
    counters = with_fence_of(counters, job("b", 5))
    assert with_fence_of(counters, job("a", 3)) == counters
    counters = with_fence_of(counters, job("a", 12))
    assert [one.fence for one in counters.fences] == [4, 11]
