"""How far the assignment of a job is from what is wanted, for operators; pure (O6)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Self, final

from attrs import frozen

from nameservice.clock import NS_PER_MS
from queryablestate.control.assignment.assignment import source_of
from queryablestate.control.assignment.placement import copy_count
from queryablestate.wire.operation_messages import JobRescaling, KeyGroupMoves


if TYPE_CHECKING:
    from collections.abc import Collection

    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["MoveBegun", "job_rescaling"]


@final
@frozen
class MoveBegun:
    """
    When this leader began with the plan of a job.

    Attributes:
        at_ns: When that was.
        left_count: Copies that were still to be made then.
    """

    at_ns: int
    left_count: int

    @classmethod
    def of(cls, assignment: AssignmentRecord, *, now_ns: int) -> Self:
        """Return that it begins now."""
        return cls(now_ns, _left_count(assignment))

    def elapsed_ms(self, assignment: AssignmentRecord, *, now_ns: int) -> int | None:
        """
        Return how long the plan has been carried out, or None if that is not known.

        An earlier leader may have made some of its copies, in a time that is not known:
        these count as if they had been made at the pace of those that were made since.
        """
        planned_count, left_count = assignment.planned_count, _left_count(assignment)
        elapsed_ns = now_ns - self.at_ns
        if self.left_count < planned_count:
            since_count = self.left_count - left_count
            if since_count <= 0:
                return None
            elapsed_ns = elapsed_ns * (planned_count - left_count) // since_count
        return elapsed_ns // NS_PER_MS


def job_rescaling(
    job: Job, nodes: NodeTable, *, started_ms: int | None
) -> JobRescaling:
    """
    Return how far a job is.

    Args:
        job: One that has an assignment.
        nodes: Who is there, and what they say of their copying.
        started_ms: How long the plan has been carried out.
    """
    assignment = job.assignment
    assert assignment is not None
    owners = assignment.owners
    wanted = assignment.wanted or owners
    asked: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    surplus_count = missing_count = 0
    for group_owners, group_wanted in zip(owners, wanted, strict=True):
        asked[group_owners[0]] += 1
        in_sync.update(group_owners)
        waiting.update(index for index in group_wanted if index not in group_owners)
        surplus_count += sum(index not in group_wanted for index in group_owners)
        missing_count += len(group_owners) < assignment.replica_count
    left_count = waiting.total()
    sources: dict[int, set[int]] = {}
    for key_group, joining in enumerate(assignment.joining):
        for copy in joining:
            waiting[copy.node_index] -= 1
            source = source_of(assignment, key_group, nodes.present_ids)
            sources.setdefault(copy.node_index, set()).add(source)
    copying = Counter(
        copy.node_index for joining in assignment.joining for copy in joining
    )
    node_ids = assignment.node_ids
    return JobRescaling(
        job_id=job.record.job_id,
        assignment_version=assignment.version,
        node_count=assignment.node_count,
        replica_count=assignment.replica_count,
        key_group_counts={
            node_id: asked[index] for index, node_id in enumerate(node_ids)
        },
        copy_counts={node_id: in_sync[index] for index, node_id in enumerate(node_ids)},
        planned_count=assignment.planned_count,
        left_count=left_count,
        surplus_count=surplus_count,
        missing_count=missing_count,
        moves=tuple(
            _moves(
                job,
                nodes,
                node_id,
                sources=sources.get(index, ()),
                waiting_count=waiting[index],
                copying_count=copying[index],
            )
            for index, node_id in enumerate(node_ids)
            if waiting[index] or copying[index]
        ),
        started_ms=started_ms,
    )


def _left_count(assignment: AssignmentRecord) -> int:
    """Return how many copies are still to be made."""
    owners = assignment.owners
    return copy_count(owners, assignment.wanted or owners)


def _moves(
    job: Job,
    nodes: NodeTable,
    node_id: str,
    *,
    sources: Collection[int],
    waiting_count: int,
    copying_count: int,
) -> KeyGroupMoves:
    assert job.assignment is not None
    node = nodes.present(node_id)
    report = None if node is None else node.copies.get(job.record.job_id)
    return KeyGroupMoves(
        node_id=node_id,
        source_ids=tuple(sorted(job.assignment.node_ids[index] for index in sources)),
        waiting_count=waiting_count,
        copying_count=copying_count,
        row_count=0 if report is None else report.row_count,
        size_bytes=0 if report is None else report.size_bytes,
        failure=None if report is None else report.failure,
    )
