"""
What a job becomes that is restored from a snapshot; pure.

**The chain** goes on after the entry of the snapshot, for the order of the items of a
list comes from the numbers of entries.  **Progress** is the snapshot's: a batch that
comes again is not applied again (rule W4), and the next one is.  **Runs** begin anew:
tickets of this control plane have nothing to do with those of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from queryablestate.control.job.job_changes import JobChange
from queryablestate.wire.records import QueryProgress, SnapshotRestored


if TYPE_CHECKING:
    from collections.abc import Mapping

    from queryablestate.control.job.job import Job
    from queryablestate.wire.records import AssignmentRecord, StateProgress
    from queryablestate.wire.snapshot_manifest import SnapshotState
    from queryablestate.wire.snapshot_messages import RestoreJob


__all__ = ["restored_job"]


def restored_job(
    job: Job,
    request: RestoreJob,
    *,
    load_id: str,
    numbers: Mapping[int, int],
    assignment: AssignmentRecord,
) -> JobChange:
    """
    Return what makes *job*, which has no state, the job of the snapshot.

    Args:
        job: The job.
        request: What is to be restored.
        load_id: What nodes call what they have loaded for it.
        numbers: The state numbers from now on, by those of the snapshot.
        assignment: Who has loaded what; its version and its sequence are none yet.
    """
    # Above the snapshot's, and above what nodes may have applied of this job.
    last = max(request.sequence, job.record.sequence)
    sequence = last + 1
    version = 1 if job.assignment is None else job.assignment.version + 1
    assignment = replace(
        assignment,
        version=version,
        sequence=sequence,
        since_sequences=(last,) * len(assignment.node_ids),
    )
    states = tuple(
        replace(each.state, state_number=numbers[each.state.state_number])
        for each in request.states
    )
    progress = tuple(
        _progress(each, numbers[each.state.state_number], sequence)
        for each in request.states
    )
    record = replace(
        job.record,
        max_parallelism=request.max_parallelism,
        sequence=sequence,
        sequence_first=sequence,
        progress=progress,
    )
    return JobChange(
        record=record,
        states=states,
        entry=SnapshotRestored(
            sequence=sequence,
            restore_id=load_id,
            state_numbers=tuple(
                one.state_number for one in progress if one.batch_id is not None
            ),
        ),
        assignment=assignment,
        pruned=tuple(sorted(job.entries)),
    )


def _progress(each: SnapshotState, state_number: int, sequence: int) -> StateProgress:
    """
    Return the progress of a state as it is from the entry *sequence* on.

    Writer epochs are those of another control plane, or of runs that know nothing of
    this job: whichever run comes now is younger.
    """
    queries = tuple(
        QueryProgress(
            query_id=query.query_id,
            batch_id=query.batch_id,
            writer_epoch=0,
            sequence=sequence,
        )
        for query in each.progress.queries
    )
    return replace(
        each.progress, state_number=state_number, owner_epoch=0, queries=queries
    )
