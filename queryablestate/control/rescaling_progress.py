"""How far the assignment of a job is from what is wanted, for operators; pure (O6)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from queryablestate.control.assignment.assignment import source_of
from queryablestate.wire.operation_messages import JobRescaling, KeyGroupMoves


if TYPE_CHECKING:
    from collections.abc import Collection

    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable


__all__ = ["job_rescaling"]


def job_rescaling(
    job: Job, nodes: NodeTable, *, started_ms: int | None
) -> JobRescaling:
    """
    Return how far a job is.

    Args:
        job: One that has an assignment.
        nodes: Who is there, and what they say of their copying.
        started_ms: How long ago this proxy leader began with the plan.
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
