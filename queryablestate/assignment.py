"""
Which nodes hold which key groups of a job; pure.

An assignment is dealt by Flink's formula: node *i* of *n* gets the *i*-th contiguous
range of key groups, so each node has as many as any other, give or take one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import ConfigurationError
from queryablestate.records import AssignmentRecord
from rescaling import key_group_ranges


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = [
    "destinations",
    "first_assignment",
    "held_by",
    "key_groups_of",
    "primary_indexes",
]


def first_assignment(
    stores: Mapping[str, str], *, max_parallelism: int, version: int, sequence: int
) -> AssignmentRecord:
    """
    Return an assignment of all key groups to the nodes of *stores*, one copy of each.

    Args:
        stores: The data directory of each node, by node id; nodes beyond the number of
            key groups get none, and are left out.
        max_parallelism: The number of key groups.
        version: Its version; above that of any earlier assignment of the job.
        sequence: The entry of the job's chain after which it holds.

    Raises:
        ConfigurationError: If *stores* is empty.
    """
    if not stores:
        raise ConfigurationError("an assignment needs a node: start one first")
    node_ids = sorted(stores)[:max_parallelism]
    owners: list[tuple[int, ...]] = []
    ranges = key_group_ranges(max_parallelism, parallelism=len(node_ids))
    for index, key_groups in enumerate(ranges):
        owners += [(index,)] * (key_groups.last - key_groups.first + 1)
    return AssignmentRecord(
        version=version,
        node_ids=tuple(node_ids),
        store_ids=tuple(stores[node_id] for node_id in node_ids),
        since_sequences=(sequence,) * len(node_ids),
        owners=tuple(owners),
    )


def primary_indexes(assignment: AssignmentRecord) -> tuple[int, ...]:
    """Return for each key group the index of the node to ask."""
    return tuple(copies[0] for copies in assignment.owners)


def key_groups_of(assignment: AssignmentRecord, node_id: str) -> Sequence[int]:
    """Return the key groups of which *node_id* is the primary, sorted."""
    if node_id not in assignment.node_ids:
        return ()
    index = assignment.node_ids.index(node_id)
    return tuple(
        key_group
        for key_group, copies in enumerate(assignment.owners)
        if copies[0] == index
    )


def destinations(assignment: AssignmentRecord) -> tuple[tuple[int, ...], ...]:
    """Return for each key group the indexes of the nodes that are brought its rows."""
    if not assignment.joining:
        return assignment.owners
    return tuple(
        (*owners, *(copy.node_index for copy in joining))
        for owners, joining in zip(assignment.owners, assignment.joining, strict=True)
    )


def held_by(assignment: AssignmentRecord, node_id: str) -> Sequence[int]:
    """Return the key groups of which *node_id* has an in-sync copy, sorted."""
    if node_id not in assignment.node_ids:
        return ()
    index = assignment.node_ids.index(node_id)
    return tuple(
        key_group
        for key_group, owners in enumerate(assignment.owners)
        if index in owners
    )
