"""Where the copies of key groups are to be (S1, S4)."""

from __future__ import annotations

import time
from collections import Counter
from itertools import combinations, product
from random import Random
from typing import TYPE_CHECKING

import pytest

from queryablestate.control.assignment.placement import copy_count, place
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Sequence


def check_even(wanted: Sequence[Sequence[int]], node_count: int, copies: int) -> None:
    """Check that copies and primaries are even, and copies on different nodes."""
    held = Counter(node for nodes in wanted for node in nodes)
    asked = Counter(nodes[0] for nodes in wanted)
    for counts in (held, asked):
        of_node = [counts[node] for node in range(node_count)]
        assert max(of_node) - min(of_node) <= 1
    assert all(len(nodes) == len(set(nodes)) == copies for nodes in wanted)


def random_owners(
    random: Random, group_count: int, node_count: int, copies_max: int
) -> list[tuple[int, ...]]:
    """Return who has what, in no order at all; some may be without a copy."""
    return [
        tuple(
            random.sample(
                range(node_count), random.randint(0, min(node_count, copies_max))
            )
        )
        for _ in range(group_count)
    ]


def least_count(owners: Sequence[Sequence[int]], node_count: int, copies: int) -> int:
    """Return with how many new copies an even placement is possible, by trying all."""
    total = len(owners) * copies
    least, most = total // node_count, -(-total // node_count)
    found = []
    choices = list(combinations(range(node_count), copies))
    for wanted in product(choices, repeat=len(owners)):
        held = Counter(node for nodes in wanted for node in nodes)
        if all(least <= held[node] <= most for node in range(node_count)):
            found.append(copy_count(owners, wanted))
    return min(found)


@pytest.mark.proves("S1")
@pytest.mark.parametrize("seed", nightly_after(3, range(8)))
def test_no_even_placement_needs_fewer_copies(seed: int) -> None:
    """S1: as few as balance allows, compared with all placements of small cases."""
    random = Random(seed)
    for _ in range(50):
        node_count = random.randint(1, 4)
        group_count = random.randint(1, 6 if node_count < 4 else 4)
        replica_count = random.randint(1, 3)
        copies = min(replica_count, node_count)
        owners = random_owners(random, group_count, node_count, 3)
        wanted = place(owners, node_count=node_count, replica_count=replica_count)
        check_even(wanted, node_count, copies)
        least = least_count(owners, node_count, copies)
        assert copy_count(owners, wanted) == least


@pytest.mark.proves("S1")
@pytest.mark.parametrize("seed", nightly_after(3, range(10)))
def test_one_copy_of_each_moves_no_more_than_it_must(seed: int) -> None:
    """S1: with one copy the bound is exact: what a node has beyond its share."""
    random = Random(seed)
    for _ in range(100):
        node_count, group_count = random.randint(1, 64), random.randint(1, 256)
        owners = [(random.randrange(node_count),) for _ in range(group_count)]
        wanted = place(owners, node_count=node_count, replica_count=1)
        check_even(wanted, node_count, 1)
        share, remainder = divmod(group_count, node_count)
        counts = Counter(node for (node,) in owners)
        loads = sorted((counts[node] for node in range(node_count)), reverse=True)
        kept = sum(
            min(load, share + (rank < remainder)) for rank, load in enumerate(loads)
        )
        assert copy_count(owners, wanted) == group_count - kept


@pytest.mark.proves("S1", "S4")
@pytest.mark.parametrize("seed", nightly_after(3, range(10)))
def test_placements_of_any_size_are_even(seed: int) -> None:
    """S1 and S4: whatever there is, copies and primaries are even to within one."""
    random = Random(seed)
    for _ in range(60):
        node_count, group_count = random.randint(1, 64), random.randint(1, 256)
        replica_count = random.randint(1, 3)
        owners = random_owners(random, group_count, node_count, 3)
        begun = random_owners(random, group_count, node_count, 1)
        wanted = place(
            owners, joining=begun, node_count=node_count, replica_count=replica_count
        )
        check_even(wanted, node_count, min(replica_count, node_count))


def test_what_is_even_stays() -> None:
    """Nothing is moved for the sake of moving, and no primary changes."""
    random = Random(1)
    for _ in range(100):
        node_count, group_count = random.randint(1, 16), random.randint(1, 64)
        replica_count = random.randint(1, 3)
        owners = place(
            [()] * group_count, node_count=node_count, replica_count=replica_count
        )
        again = place(owners, node_count=node_count, replica_count=replica_count)
        assert [set(nodes) for nodes in again] == [set(nodes) for nodes in owners]
        assert [nodes[0] for nodes in again] == [nodes[0] for nodes in owners]


def test_copies_that_are_begun_are_gone_on_with() -> None:
    """Where it makes no difference otherwise."""
    owners, begun = [(0,), (0,), (0,)], [(), (2,), ()]
    wanted = place(owners, joining=begun, node_count=3, replica_count=1)
    assert wanted[1] == (2,)
    # A copy that is there outweighs one that is begun.
    wanted = place([(0,), (1,)], joining=[(1,), (0,)], node_count=2, replica_count=1)
    assert wanted == [(0,), (1,)]


def test_primaries_are_in_sync_if_they_can_be() -> None:
    """Two nodes have all; a third one copies, and is asked for as few as can be."""
    owners = [(0, 1)] * 6
    wanted = place(owners, node_count=3, replica_count=2)
    check_even(wanted, 3, 2)
    assert copy_count(owners, wanted) == 4
    assert sum(nodes[0] == 2 for nodes in wanted) == 2


@pytest.mark.proves("S2")
def test_the_same_is_placed_the_same() -> None:
    """S2: two leaders that know the same come to the same plan."""
    owners = random_owners(Random(3), 100, 7, 3)
    first = place(owners, node_count=7, replica_count=2)
    assert place(owners, node_count=7, replica_count=2) == first


@pytest.mark.parametrize("replica_count", [1, 2, 3])
def test_the_most_key_groups_there_can_be_take_no_time(replica_count: int) -> None:
    """32,768 of them on 64 nodes, and one node fewer: a bound that is generous."""
    owners = place([()] * 32_768, node_count=64, replica_count=replica_count)
    left = [tuple(node for node in nodes if node < 63) for nodes in owners]
    began = time.perf_counter()
    wanted = place(left, node_count=63, replica_count=replica_count)
    assert time.perf_counter() - began < 20
    check_even(wanted, 63, replica_count)
