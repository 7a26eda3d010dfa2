"""What the log is told of an assignment that has changed; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.control.assignment.assignment import key_groups_of
from queryablestate.control.assignment.placement import copy_count
from queryablestate.control.effects import NoteAssignment


if TYPE_CHECKING:
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["note_of"]


def note_of(
    job_id: str, former: AssignmentRecord | None, assignment: AssignmentRecord
) -> NoteAssignment:
    """Return what to tell of *assignment*, which has followed *former*."""
    former_ids = () if former is None else former.node_ids
    wanted = assignment.wanted or assignment.owners
    return NoteAssignment(
        job_id=job_id,
        version=assignment.version,
        replica_count=assignment.replica_count,
        key_group_counts={
            node_id: len(key_groups_of(assignment, node_id))
            for node_id in sorted(assignment.node_ids)
        },
        joined=tuple(sorted({*assignment.node_ids} - {*former_ids})),
        left=tuple(sorted({*former_ids} - {*assignment.node_ids})),
        joining_count=sum(len(copies) for copies in assignment.joining),
        left_count=copy_count(assignment.owners, wanted),
    )
