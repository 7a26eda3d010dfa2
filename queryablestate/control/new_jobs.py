"""
Jobs that are begun: by the first ticket, or by a restore; pure.

A job that is begun has a number of its own, and a fence: what is over of an earlier job
of that name (`queryablestate.control.job.forgotten_runs`).  Where there is no room for
another job, one that is not in use goes with the same write
(`queryablestate.control.unused_jobs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen
from msgspec.structs import replace

from queryablestate.control.job.forgotten_runs import fence_of_job
from queryablestate.control.job.job import Job
from queryablestate.control.unused_jobs import room_for_job
from queryablestate.wire.records import JobRecord


if TYPE_CHECKING:
    from queryablestate.control.state import ControlState
    from queryablestate.control.unused_jobs import Removal
    from queryablestate.wire.records import CountersRecord


__all__ = ["NewJob", "new_job"]


@final
@frozen(kw_only=True)
class NewJob:
    """
    A job that is begun.

    Attributes:
        job: The job, without an assignment, states or entries.
        counters: As they are from then on.
        gone: What makes room for it, or None.
    """

    job: Job
    counters: CountersRecord
    gone: Removal | None


def new_job(control: ControlState, job_id: str, *, max_parallelism: int) -> NewJob:
    """
    Return the job of that name, which there is none of.

    Raises:
        ConfigurationError: If there is no room for it, and nothing makes any.
    """
    gone = room_for_job(control, job_id)
    counters = control.counters if gone is None else gone.counters
    counters = replace(counters, job_number=counters.job_number + 1)
    record = JobRecord(
        job_id=job_id,
        job_number=counters.job_number,
        max_parallelism=max_parallelism,
        sequence=0,
        sequence_first=1,
        runs=(),
        progress=(),
        fence=fence_of_job(counters, job_id),
    )
    return NewJob(job=Job(record=record), counters=counters, gone=gone)
