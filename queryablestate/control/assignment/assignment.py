"""
Which nodes hold which key groups of a job; pure.

The first one is dealt by Flink's formula: node *i* of *n* is the primary of the *i*-th
contiguous range of key groups, so each node has as many as any other, give or take one.
Further copies are dealt evenly over the other nodes.  How an assignment changes from
then on is in `queryablestate.control.assignment.reassignment`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice import ConfigurationError
from queryablestate.control.assignment.placement import node_count_max, place
from queryablestate.wire.records import AssignmentRecord
from rescaling import key_group_ranges


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


__all__ = [
    "check_assignment",
    "copied_version",
    "destinations",
    "first_assignment",
    "held_by",
    "key_groups_of",
    "primary_indexes",
    "source_of",
]


def first_assignment(
    stores: Mapping[str, str],
    *,
    max_parallelism: int,
    version: int,
    sequence: int,
    replica_count: int = 1,
) -> AssignmentRecord:
    """
    Return an assignment of all key groups of a job without rows to nodes.

    Args:
        stores: The data directory of each node, by node id; nodes beyond the number of
            key groups, or of copies if that is more, get none, and are left out.
        max_parallelism: The number of key groups.
        version: Its version; above that of any earlier assignment of the job.
        sequence: The entry of the job's chain after which it holds.
        replica_count: How many copies of each key group, as far as there are nodes.

    Raises:
        ConfigurationError: If *stores* is empty.
    """
    if not stores:
        raise ConfigurationError("an assignment needs a node: start one first")
    count_max = node_count_max(max_parallelism, replica_count=replica_count)
    node_ids = sorted(stores)[:count_max]
    owners: list[tuple[int, ...]] = []
    asked_count = min(len(node_ids), max_parallelism)
    ranges = key_group_ranges(max_parallelism, parallelism=asked_count)
    for index, key_groups in enumerate(ranges):
        owners += [(index,)] * (key_groups.last - key_groups.first + 1)
    if replica_count > 1 and len(node_ids) > 1:
        owners = place(owners, node_count=len(node_ids), replica_count=replica_count)
    return AssignmentRecord(
        version=version,
        node_ids=tuple(node_ids),
        store_ids=tuple(stores[node_id] for node_id in node_ids),
        since_sequences=(sequence,) * len(node_ids),
        owners=tuple(owners),
        sequence=sequence,
        # With fewer nodes than copies, the next ones to come are missed already.
        node_count=max(len(node_ids), replica_count),
        replica_count=replica_count,
    )


def check_assignment(assignment: AssignmentRecord) -> None:
    """
    Check what holds of every assignment.

    Every key group has a primary, and only one; no node has two copies of one, be they
    in sync or joining; what is wanted is among the nodes; and no other node is there.
    """
    count = len(assignment.node_ids)
    assert len(set(assignment.node_ids)) == count
    assert len(assignment.store_ids) == count
    assert len(assignment.since_sequences) == count
    assert len(assignment.copied_versions) in {0, count}
    assert all(version <= assignment.version for version in assignment.copied_versions)
    group_count = len(assignment.owners)
    parts: set[int] = set()
    for owners, nodes in zip(assignment.owners, destinations(assignment), strict=True):
        assert owners
        assert len(set(nodes)) == len(nodes)
        parts.update(nodes)
    if assignment.joining:
        assert len(assignment.joining) == group_count
        assert any(assignment.joining)
    if assignment.wanted:
        assert len(assignment.wanted) == group_count
        assert assignment.wanted != assignment.owners
        for wanted in assignment.wanted:
            assert wanted
            assert len(set(wanted)) == len(wanted)
            parts.update(wanted)
    assert parts == set(range(count))
    for owners, joining in zip(assignment.wanted, assignment.joining, strict=False):
        assert {copy.node_index for copy in joining} <= set(owners)
        assert all(copy.since <= assignment.sequence for copy in joining)
        assert all(copy.version <= assignment.version for copy in joining)


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


def copied_version(assignment: AssignmentRecord, node_id: str) -> int:
    """Return the newest version that began a copy of *node_id*, 0 if it made none."""
    if not assignment.copied_versions or node_id not in assignment.node_ids:
        return 0
    return assignment.copied_versions[assignment.node_ids.index(node_id)]


def source_of(
    assignment: AssignmentRecord, key_group: int, present_ids: Collection[str]
) -> int:
    """
    Return the index of the node that a key group is to be copied from.

    The primary if that is there, or else another one with an in-sync copy; the primary
    too if none is there.
    """
    owners = assignment.owners[key_group]
    for index in owners:
        if assignment.node_ids[index] in present_ids:
            return index
    return owners[0]
