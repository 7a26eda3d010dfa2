"""What a store that is not in use holds: the jobs that have rows, and how far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.store.hold_marks import admitted
from queryablestate.store.layout import JOB_PREFIX, decode_job
from queryablestate.store.marks import hold_mark, job_states, records
from queryablestate.wire.kept_rows import KeptJob, KeptRows


if TYPE_CHECKING:
    from queryablestate.store.environment import StoreEnvironment


__all__ = ["kept_rows"]


def kept_rows(environment: StoreEnvironment) -> KeptRows | None:
    """Return the jobs of which batches were applied; None if there are none."""
    identity = environment.identity
    if identity.control_id is None:
        return None
    jobs = []
    with environment.reading() as transaction:
        for _, stored in records(transaction, environment.meta, JOB_PREFIX):
            mark = decode_job(stored)
            states = job_states(transaction, environment.meta, mark.job_id).values()
            written = [
                (state.decided_at_us, state.batch_id)
                for state in states
                if state.batch_id is not None
            ]
            if not written:
                continue
            decided_at_us, batch_id = max(written)
            holding = hold_mark(transaction, environment.meta, mark.job_id)
            jobs.append(
                KeptJob(
                    job_id=mark.job_id,
                    sequence=mark.sequence,
                    batch_id=batch_id,
                    decided_at_us=decided_at_us,
                    key_groups=admitted(holding),
                )
            )
    if not jobs:
        return None
    return KeptRows(
        control_id=identity.control_id,
        store_id=identity.store_id,
        jobs=tuple(sorted(jobs, key=lambda job: job.job_id)),
    )
