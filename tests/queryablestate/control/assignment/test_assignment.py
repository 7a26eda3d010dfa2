"""Which nodes hold which key groups."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies
from msgspec.structs import replace

from nameservice import ConfigurationError
from queryablestate.control.assignment.assignment import (
    check_assignment,
    destinations,
    first_assignment,
    held_by,
    key_groups_of,
    primary_indexes,
    source_of,
)
from queryablestate.wire.records import AssignmentRecord, JoiningCopy


def test_nodes_get_contiguous_ranges_in_the_order_of_their_names() -> None:
    """The same nodes are dealt the same, whichever came first."""
    assignment = first_assignment(
        {"b": "disk-2", "a": "disk-1"}, max_parallelism=5, version=3, sequence=7
    )
    assert assignment == AssignmentRecord(
        version=3,
        node_ids=("a", "b"),
        store_ids=("disk-1", "disk-2"),
        since_sequences=(7, 7),
        owners=((0,), (0,), (0,), (1,), (1,)),
        sequence=7,
        node_count=2,
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
    check_assignment(assignment)


@pytest.mark.proves("S4")
@given(
    node_count=strategies.integers(1, 12),
    max_parallelism=strategies.integers(1, 100),
    replica_count=strategies.integers(1, 4),
)
def test_every_copy_is_on_another_node(
    node_count: int, max_parallelism: int, replica_count: int
) -> None:
    """S4: as many copies as there are nodes, evenly, and the ranges as with one."""
    stores = {f"node-{number:02}": "disk" for number in range(node_count)}
    assignment = first_assignment(
        stores,
        max_parallelism=max_parallelism,
        version=1,
        sequence=0,
        replica_count=replica_count,
    )
    check_assignment(assignment)
    assert assignment.replica_count == replica_count
    # Nodes that copies lack are wanted from the start.
    assert assignment.node_count >= min(replica_count, max_parallelism)
    copies = min(replica_count, len(assignment.node_ids))
    assert {len(owners) for owners in assignment.owners} == {copies}
    for part_of in (held_by, key_groups_of):
        counts = [len(part_of(assignment, one)) for one in assignment.node_ids]
        assert max(counts) - min(counts) <= 1


MOVING = AssignmentRecord(
    version=3,
    node_ids=("a", "b", "c"),
    store_ids=("disk-a", "disk-b", "disk-c"),
    since_sequences=(0, 0, 5),
    owners=((0,), (1, 0)),
    joining=((JoiningCopy(2, 5),), ()),
    wanted=((2,), (1,)),
    sequence=5,
)


@pytest.mark.proves("S4")
def test_fewer_key_groups_than_copies_are_on_another_node_all_the_same() -> None:
    """S4: one key group with two copies is on two nodes, not on one."""
    stores = {node_id: f"disk-of-{node_id}" for node_id in "abc"}
    assignment = first_assignment(
        stores, max_parallelism=1, version=1, sequence=0, replica_count=2
    )
    check_assignment(assignment)
    assert assignment.node_ids == ("a", "b")
    assert sorted(assignment.owners[0]) == [0, 1]
    assert assignment.node_count == 2


@pytest.mark.proves("S1")
def test_who_is_brought_rows() -> None:
    """S1: those that have a copy, and those that make one."""
    assert destinations(MOVING) == ((0, 2), (1, 0))
    assert held_by(MOVING, "a") == (0, 1)
    assert held_by(MOVING, "c") == ()


def test_copies_come_from_who_is_there() -> None:
    """The primary if it is, else another, else none for now."""
    assert source_of(MOVING, 1, {"a", "b"}) == 1
    assert source_of(MOVING, 1, {"a"}) == 0
    assert source_of(MOVING, 1, ()) == 1


@pytest.mark.proves("S1")
@pytest.mark.parametrize(
    "changes",
    [
        {"owners": ((0,), ())},
        {"owners": ((0,), (1, 1))},
        {"joining": ((JoiningCopy(0, 5),), ())},
        {"joining": ((), ())},
        {"joining": ((JoiningCopy(2, 6),), ())},
        {"joining": ((JoiningCopy(1, 5),), ())},
        {"wanted": ((2,), (3,))},
        {"wanted": ((2,), ())},
        {"wanted": ((2,),)},
        {"wanted": ((0,), (1, 0)), "joining": ()},
        {"node_ids": ("a", "b", "b")},
        {"store_ids": ("disk-a",)},
        {"wanted": ((0,), (1,)), "joining": ()},
    ],
)
def test_what_is_no_assignment_is_found(changes: dict[str, object]) -> None:
    """S1: without an owner, with two copies on one node, with strangers in it."""
    check_assignment(MOVING)
    with pytest.raises((AssertionError, ValueError)):
        check_assignment(replace(MOVING, **changes))
