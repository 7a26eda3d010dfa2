"""Dealing items to bins evenly, at the least cost (S1)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from random import Random
from typing import TYPE_CHECKING

import pytest

from queryablestate.control.assignment.balancing import Prices, deal
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def cost_of(
    items: Sequence[Prices], bins: Sequence[Sequence[int]], price: int | None
) -> int:
    """Return what a deal costs."""
    total = 0
    for prices, where in zip(items, bins, strict=True):
        for bin_ in where:
            cost = dict(prices).get(bin_, price)
            assert cost is not None
            total += cost
    return total


def is_even(bins: Sequence[Sequence[int]], bin_count: int) -> bool:
    """Return whether no bin has two items more than another."""
    loads = Counter(bin_ for where in bins for bin_ in where)
    counts = [loads[bin_] for bin_ in range(bin_count)]
    return max(counts) - min(counts) <= 1


def even_deals(
    item_count: int, bin_count: int, degree: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all even deals there are."""
    choices = list(combinations(range(bin_count), degree))
    for bins in product(choices, repeat=item_count):
        if is_even(bins, bin_count):
            yield bins


@pytest.mark.proves("S1")
@pytest.mark.parametrize("seed", nightly_after(3, range(8)))
def test_no_even_deal_is_cheaper(seed: int) -> None:
    """S1: compared with all there are, for small cases."""
    random = Random(seed)
    for _ in range(60):
        bin_count = random.randint(1, 4)
        item_count = random.randint(1, 5 if bin_count < 4 else 4)
        degree = random.randint(1, bin_count)
        price = random.randint(0, 9)
        items = [
            tuple(
                (bin_, random.randint(0, 9))
                for bin_ in random.sample(
                    range(bin_count), random.randint(0, bin_count)
                )
            )
            for _ in range(item_count)
        ]
        # What has no price is never cheaper than what has one.
        items = [
            tuple((bin_, min(cost, price)) for bin_, cost in prices) for prices in items
        ]
        found = deal(items, bin_count=bin_count, degree=degree, price=price)
        assert is_even(found, bin_count)
        assert all(len(set(where)) == degree for where in found)
        least = min(
            cost_of(items, bins, price)
            for bins in even_deals(item_count, bin_count, degree)
        )
        assert cost_of(items, found, price) == least


@pytest.mark.parametrize("seed", nightly_after(2, range(4)))
def test_items_stay_where_they_may_be(seed: int) -> None:
    """A bin without a price is none that an item may go to."""
    random = Random(seed)
    for _ in range(60):
        bin_count = random.randint(2, 4)
        spread = deal(
            [()] * random.randint(1, 5), bin_count=bin_count, degree=2, price=0
        )
        items = [tuple((bin_, random.randint(0, 9)) for bin_ in two) for two in spread]
        found = deal(items, bin_count=bin_count, degree=1, price=None)
        assert is_even(found, bin_count)
        least = min(
            cost_of(items, bins, None)
            for bins in product(*[[(bin_,) for bin_ in two] for two in spread])
            if is_even(bins, bin_count)
        )
        assert cost_of(items, found, None) == least


def test_what_is_moved_together_is_consecutive() -> None:
    """Items that are alike go from the end of a bin."""
    items = [((0, 0),)] * 8
    found = deal(items, bin_count=2, degree=1, price=1)
    assert found == [(0,)] * 4 + [(1,)] * 4


def test_items_make_way_for_each_other() -> None:
    """Bins whose items can go elsewhere at no cost."""
    items: list[Prices] = [
        ((0, 0), (1, 0), (2, 0), (3, 0)),
        ((0, 0), (1, 0)),
        ((0, 0), (2, 0)),
        ((0, 0), (2, 0)),
    ]
    found = deal(items, bin_count=4, degree=2, price=5)
    assert is_even(found, 4)
    least = min(cost_of(items, bins, 5) for bins in even_deals(4, 4, 2))
    assert cost_of(items, found, 5) == least


def test_nothing_is_dealt_evenly() -> None:
    """Bins without items."""
    assert deal([], bin_count=3, degree=2, price=1) == []
