"""What a node is told of its part in a job; pure (rules S1 and S2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.control.assignment.assignment import (
    copied_version,
    held_by,
    key_groups_of,
    source_of,
)
from queryablestate.wire.job_assignment import (
    CopySource,
    JobAssignment,
    JoiningGroup,
    WriterFence,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from queryablestate.control.job.job import Job
    from queryablestate.control.node_table import NodeTable
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["job_assignment", "joiner_ids"]


def job_assignment(job: Job, node_id: str, nodes: NodeTable) -> JobAssignment:
    """
    Return what a node has to do with a job; nothing if it has no part in it.

    Args:
        job: One that has an assignment.
        node_id: The node.
        nodes: Who is there to copy from.
    """
    assignment = job.assignment
    assert assignment is not None
    key_groups = tuple(key_groups_of(assignment, node_id))
    primary = set(key_groups)
    joining = tuple(
        JoiningGroup(key_group=key_group, since=copy.since, version=copy.version)
        for key_group, copies in enumerate(assignment.joining)
        for copy in copies
        if assignment.node_ids[copy.node_index] == node_id
    )
    return JobAssignment(
        job_id=job.record.job_id,
        assignment_version=assignment.version,
        max_parallelism=job.record.max_parallelism,
        key_groups=key_groups,
        fences=tuple(
            WriterFence(
                job_id=job.record.job_id,
                query_id=run.query_id,
                writer_epoch=run.writer_epoch,
            )
            for run in job.record.runs
        ),
        sequence=assignment.sequence,
        copies=tuple(
            key_group
            for key_group in held_by(assignment, node_id)
            if key_group not in primary
        ),
        joining=joining,
        copied_version=copied_version(assignment, node_id),
        sources=_sources(job, [group.key_group for group in joining], nodes),
    )


def joiner_ids(assignment: AssignmentRecord, source_id: str) -> set[str]:
    """Return the nodes that make copies of what *source_id*, one of its nodes, has."""
    index = assignment.node_ids.index(source_id)
    return {
        assignment.node_ids[copy.node_index]
        for owners, joining in zip(assignment.owners, assignment.joining, strict=False)
        if index in owners
        for copy in joining
    }


def _sources(
    job: Job, key_groups: Sequence[int], nodes: NodeTable
) -> tuple[CopySource, ...]:
    """Return where each of these key groups can be had, by name."""
    if not key_groups:
        return ()  # as of most nodes, and all of them are looked through below
    assignment, job_id = job.assignment, job.record.job_id
    assert assignment is not None
    away: set[str] = set()
    lost: set[str] = set()
    losers: dict[str, Collection[int]] = {}
    for node_id, store_id in zip(
        assignment.node_ids, assignment.store_ids, strict=True
    ):
        node = nodes.present(node_id)
        if node is None:
            away.add(node_id)
        elif node.store_id != store_id or node.has_lost_all(job_id):
            lost.add(node_id)
        elif job_id in node.lost_groups:
            losers[node_id] = node.lost_groups[job_id]
    whole = set(assignment.node_ids) - away - lost
    by_source: dict[str, list[int]] = {}
    for key_group in key_groups:
        less = {name for name, groups in losers.items() if key_group in groups}
        lost_ids, sound_ids = lost | less, whole - less
        # Who has lost its rows is not asked for them while another one may have them.
        index = source_of(assignment, key_group, sound_ids)
        if assignment.node_ids[index] in lost_ids:
            index = source_of(assignment, key_group, away)
        by_source.setdefault(assignment.node_ids[index], []).append(key_group)
    sources = []
    for node_id in sorted(by_source):
        node = nodes.present(node_id)
        source = CopySource(
            node_id=node_id,
            address=None if node is None else node.address,
            key_groups=tuple(by_source[node_id]),
        )
        sources.append(source)
    return tuple(sources)
