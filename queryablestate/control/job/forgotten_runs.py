"""
Fences of jobs that are forgotten, at constant size; pure (rules W1 and B4).

Theory of operation.  A superseded run stays refused for ever, also when its job is
forgotten and begun anew: its driver may be a zombie that notices nothing.  Tickets rise
over all jobs.  So one number is enough for a job: every run of it that was superseded
was born before the youngest one.  That run itself may go on.

The numbers of the last 100 jobs that were forgotten are kept by job, and those before
leave one number for all, the highest.  It is right for every job, and refuses too much
at most: a run that was born before, and whose job is not known, has to be started
again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from queryablestate.wire.records import JobFence


if TYPE_CHECKING:
    from queryablestate.wire.records import CountersRecord, JobRecord


__all__ = ["fence_of_job", "with_fence_of"]

_FENCE_COUNT_MAX: Final = 100
_DIGEST_SIZE_BYTES: Final = 16


def fence_of_job(counters: CountersRecord, job_id: str) -> int:
    """Return the fence of a job that is begun: runs at it or below are over."""
    digest = _digest(job_id)
    return max(
        (one.fence for one in counters.fences if one.job_digest == digest),
        default=counters.fence,
    )


def with_fence_of(counters: CountersRecord, record: JobRecord) -> CountersRecord:
    """Return *counters* with what is to be known of a job that is forgotten."""
    born = (run.born_epoch or run.writer_epoch for run in record.runs)
    fence = max(record.fence, *(epoch - 1 for epoch in born), 0)
    if fence <= fence_of_job(counters, record.job_id):
        return counters
    digest = _digest(record.job_id)
    fences = [one for one in counters.fences if one.job_digest != digest]
    fences.append(JobFence(job_digest=digest, fence=fence))
    dropped = fences[:-_FENCE_COUNT_MAX]
    return replace(
        counters,
        fences=tuple(fences[-_FENCE_COUNT_MAX:]),
        fence=max(counters.fence, *(one.fence for one in dropped), 0),
    )


def _digest(job_id: str) -> bytes:
    return blake2b(job_id.encode(), digest_size=_DIGEST_SIZE_BYTES).digest()
