"""Which nodes hold which key groups."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies

from nameservice import ConfigurationError
from queryablestate.assignment import first_assignment, key_groups_of, primary_indexes
from queryablestate.records import AssignmentRecord


def test_nodes_get_contiguous_ranges_in_the_order_of_their_names() -> None:
    """The same nodes are dealt the same, whoever came first."""
    assignment = first_assignment(
        {"b": "disk-2", "a": "disk-1"}, max_parallelism=5, version=3, sequence=7
    )
    assert assignment == AssignmentRecord(
        version=3,
        node_ids=("a", "b"),
        store_ids=("disk-1", "disk-2"),
        since_sequences=(7, 7),
        owners=((0,), (0,), (0,), (1,), (1,)),
    )
    assert primary_indexes(assignment) == (0, 0, 0, 1, 1)
    assert key_groups_of(assignment, "a") == (0, 1, 2)
    assert key_groups_of(assignment, "b") == (3, 4)


def test_who_is_not_assigned_has_none() -> None:
    """A node that is not named answers for nothing."""
    assignment = first_assignment({"a": "d"}, max_parallelism=1, version=1, sequence=0)
    assert key_groups_of(assignment, "b") == ()


def test_an_assignment_needs_a_node() -> None:
    """The caller is told to start one."""
    with pytest.raises(ConfigurationError, match="start one"):
        first_assignment({}, max_parallelism=1, version=1, sequence=0)


@given(
    node_count=strategies.integers(1, 40), max_parallelism=strategies.integers(1, 300)
)
def test_every_key_group_has_one_owner_and_loads_are_even(
    node_count: int, max_parallelism: int
) -> None:
    """Nothing is left out or held twice, and no node has two more than another."""
    stores = {f"node-{number:02}": "disk" for number in range(node_count)}
    assignment = first_assignment(
        stores, max_parallelism=max_parallelism, version=1, sequence=0
    )
    held = [key_groups_of(assignment, node_id) for node_id in assignment.node_ids]
    assert sorted(group for part in held for group in part) == list(
        range(max_parallelism)
    )
    counts = [len(part) for part in held]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert len(counts) == min(node_count, max_parallelism)
