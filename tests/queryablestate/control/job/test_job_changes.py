"""What is written of a job is what was decided."""

from __future__ import annotations

from election import Delete, Put
from queryablestate.control.assignment.assignment import first_assignment
from queryablestate.control.job.job import Job
from queryablestate.control.job.job_changes import JobChange
from queryablestate.control.job.leader_paths import (
    assignment_path,
    encode_record,
    entry_path,
    job_path,
    state_path,
)
from queryablestate.wire.records import JobRecord, StateDropped, StateRecord
from tests.queryablestate.control_plane import APP, LIST


RECORD = JobRecord(
    job_id=APP,
    job_number=3,
    max_parallelism=4,
    sequence=9,
    sequence_first=3,
    runs=(),
    progress=(),
)


JOB = Job(
    record=RECORD,
    entries={
        number: StateDropped(sequence=number, state_number=number) for number in (1, 2)
    },
)


def test_all_that_changes_is_written_at_once() -> None:
    """One write of the leader store holds all of it, versions of assignments too."""
    assignment = first_assignment({"a": "x"}, max_parallelism=4, version=2, sequence=0)
    state = StateRecord(state_name="log", state_number=5, schema=LIST)
    entry = StateDropped(sequence=9, state_number=6)
    change = JobChange(
        record=RECORD,
        states=(state,),
        dropped=(6,),
        entry=entry,
        assignment=assignment,
        forgotten=(1,),
        pruned=(1, 2),
    )
    assert JOB.operations(change) == [
        Put(job_path(3), encode_record(RECORD)),
        Put(state_path(3, 5), encode_record(state)),
        Delete(state_path(3, 6)),
        Put(entry_path(3, 9), encode_record(entry)),
        Put(assignment_path(3, 2), encode_record(assignment)),
        Delete(assignment_path(3, 1)),
        Delete(entry_path(3, 1)),
        Delete(entry_path(3, 2)),
    ]


def test_what_does_not_change_is_not_written() -> None:
    """A binding costs a record, and one for each state that is new."""
    change = JobChange(record=RECORD)
    assert JOB.operations(change) == [Put(job_path(3), encode_record(RECORD))]
