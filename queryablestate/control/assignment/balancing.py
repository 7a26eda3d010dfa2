"""
Dealing items to bins evenly, at the least cost; pure.

Each item goes to a given number of different bins, and no bin gets two more than
another.  What it costs to have an item in a bin is given; of all even deals this finds
a cheapest one.

Theory of operation.  It is a minimum-cost flow from items to bins.  The first deal
gives each item its cheapest bins, whatever the loads: no deal at all is cheaper.  Then
what is too much in one bin is moved to where there is too little, always along a
cheapest path (item *x* from bin 1 to bin 2, item *y* from bin 2 to bin 3 ...): that
keeps the deal a cheapest one for the loads that it has (*successive shortest paths*),
so that it is one when the loads are even.

Items that cost the same everywhere and are in the same bins are *alike*, and moved
together: there are thousands of items, and few kinds of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, TypeAlias, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["Prices", "deal"]

Prices: TypeAlias = tuple[tuple[int, int], ...]
"""What an item costs in the bins that have a price of their own: bin and price."""

_Kind: TypeAlias = "tuple[Prices, tuple[int, ...]]"
"""Items that are alike: their prices, and the bins that they are in, sorted."""


def deal(
    items: Sequence[Prices], *, bin_count: int, degree: int, price: int | None
) -> list[tuple[int, ...]]:
    """
    Return for each item the *degree* bins that it goes to, sorted.

    Args:
        items: What each item costs where; lower is better.
        bin_count: The number of bins, at least *degree*.
        degree: In how many different bins each item is to be.
        price: What it costs in any other bin; None if it may not go there.  Then there
            must be an even deal without.
    """
    assert bin_count >= degree >= 1
    dealer = _Dealer(items, bin_count=bin_count, degree=degree, price=price)
    total = len(items) * degree
    floor, ceiling = total // bin_count, -(-total // bin_count)
    dealer.level(ceiling)  # no bin has more
    dealer.level(floor)  # no bin has less
    return dealer.bins_of_items()


@final
@frozen
class _Step:
    """A step of a path: an item of that kind goes from one bin to another."""

    kind: _Kind
    source: int
    target: int


@final
class _Dealer:
    """A deal, and how it is changed."""

    def __init__(
        self, items: Sequence[Prices], *, bin_count: int, degree: int, price: int | None
    ) -> None:
        self._price = price
        self._item_count = len(items)
        self._prices: dict[Prices, dict[int, int]] = {}
        self._items: dict[_Kind, list[int]] = {}
        self._loads = [0] * bin_count
        # For each bin the kinds of items in it, by what they cost there.
        self._kinds: list[dict[int, dict[_Kind, None]]] = [{} for _ in range(bin_count)]
        bins = [self._cheapest(prices, degree) for prices in items]
        heap = [(load, number) for number, load in enumerate(self._loads)]
        heapq.heapify(heap)
        for item, prices in enumerate(items):
            while len(bins[item]) < degree:
                bins[item].append(self._least_loaded(heap, bins[item]))
            kind = (prices, tuple(sorted(bins[item])))
            self._stack(kind).append(item)

    def _cheapest(self, prices: Prices, degree: int) -> list[int]:
        """Return the bins with a price that an item goes to first."""
        if len(prices) > degree:
            loads = self._loads
            order = sorted((cost, loads[bin_], bin_) for bin_, cost in prices)
            chosen = [bin_ for _, _, bin_ in order[:degree]]
        else:
            chosen = [bin_ for bin_, _ in prices]
        for bin_ in chosen:
            self._loads[bin_] += 1
        self._prices.setdefault(prices, dict(prices))
        return chosen

    def _least_loaded(self, heap: list[tuple[int, int]], taken: list[int]) -> int:
        """Return the bin with the least in it that is not in *taken*, and fill it."""
        passed = []
        while True:
            load, bin_ = heapq.heappop(heap)
            if bin_ not in taken:
                break
            passed.append((load, bin_))
        for entry in passed:
            heapq.heappush(heap, entry)
        heapq.heappush(heap, (load + 1, bin_))
        self._loads[bin_] += 1
        return bin_

    def bins_of_items(self) -> list[tuple[int, ...]]:
        """Return for each item the bins that it is in."""
        bins: list[tuple[int, ...]] = [()] * self._item_count
        for (_, where), items in self._items.items():
            for item in items:
                bins[item] = where
        return bins

    # -- levelling -----------------------------------------------------------------

    def level(self, bound: int) -> None:
        """
        Move items from bins with more than *bound* to bins with less.

        Until there are none of the one or of the other.
        """
        while True:
            path = self._cheapest_path(bound)
            if path is None:
                return
            # No path gets cheaper by what is moved along a cheapest one: whatever
            # costs as much may go at once.
            cost = sum(self._cost(step) for step in path)
            self._move_along(path, bound)
            self._move_directly(cost, bound)

    def _cost(self, step: _Step) -> int:
        prices = step.kind[0]
        return self._price_at(prices, step.target) - self._price_at(prices, step.source)

    def _price_at(self, prices: Prices, bin_: int) -> int:
        price = self._prices[prices].get(bin_, self._price)
        assert price is not None
        return price

    def _cheapest_path(self, bound: int) -> list[_Step] | None:
        """Return the steps from a bin with too much to one with too little, or None."""
        loads = self._loads
        sources = [bin_ for bin_, load in enumerate(loads) if load > bound]
        targets = [bin_ for bin_, load in enumerate(loads) if load < bound]
        if not sources or not targets:
            return None
        costs: list[int | None] = [None] * len(loads)
        steps: list[_Step | None] = [None] * len(loads)
        for bin_ in sources:
            costs[bin_] = 0
        waiting = deque(sources)
        is_waiting = [load > bound for load in loads]
        while waiting:
            bin_ = waiting.popleft()
            is_waiting[bin_] = False
            base = costs[bin_]
            assert base is not None
            for step, cost in self._steps_from(bin_):
                known = costs[step.target]
                if known is None or base + cost < known:
                    costs[step.target] = base + cost
                    steps[step.target] = step
                    if not is_waiting[step.target]:
                        is_waiting[step.target] = True
                        waiting.append(step.target)
        reached = [
            (total, bin_) for bin_ in targets if (total := costs[bin_]) is not None
        ]
        assert reached, "there is no even deal"
        _, cheapest = min(reached)
        path: list[_Step] = []
        last = steps[cheapest]
        while last is not None:
            path.append(last)
            last = steps[last.source]
        return path[::-1]

    def _steps_from(self, source: int) -> Iterator[tuple[_Step, int]]:
        """Yield where items of a bin can go; to each bin a cheapest step at least."""
        kinds = self._kinds[source]
        elsewhere = self._price
        unreached = set() if elsewhere is None else set(range(len(self._loads)))
        for cost in sorted(kinds, reverse=True):
            for kind in kinds[cost]:
                prices, bins = kind
                for bin_, price in prices:
                    if bin_ not in bins:
                        yield _Step(kind, source, bin_), price - cost
                if elsewhere is None or not unreached:
                    continue
                mine = self._prices[prices]
                for bin_ in sorted(unreached):
                    if bin_ not in mine and bin_ not in bins:
                        unreached.remove(bin_)
                        yield _Step(kind, source, bin_), elsewhere - cost

    def _move_along(self, path: Sequence[_Step], bound: int) -> None:
        """Move as many items along *path* as can be moved at once."""
        # No kind is in it twice.  A path that takes one from 1 to 2 and later one like
        # it from 3 to 4 costs no less than to take it from 1 to 4 at once (what lies
        # between is a cycle, and none costs less than nothing), which is found first.
        assert len({step.kind for step in path}) == len(path)
        count = min(
            self._loads[path[0].source] - bound,
            bound - self._loads[path[-1].target],
            *(len(self._items[step.kind]) for step in path),
        )
        for step in path:
            self._move(step, count)

    def _move_directly(self, cost: int, bound: int) -> None:
        """Move what can be moved at that cost from too much to too little."""
        loads = self._loads
        targets = [bin_ for bin_, load in enumerate(loads) if load < bound]
        for source in [bin_ for bin_, load in enumerate(loads) if load > bound]:
            kinds = [
                (at_source, kind)
                for at_source, alike in self._kinds[source].items()
                for kind in alike
            ]
            for at_source, kind in kinds:
                mine = self._prices[kind[0]]
                for target in targets:
                    price = mine.get(target, self._price)
                    if price is None or price - at_source != cost or target in kind[1]:
                        continue
                    count = min(
                        loads[source] - bound,
                        bound - loads[target],
                        len(self._items.get(kind, ())),
                    )
                    if count > 0:
                        self._move(_Step(kind, source, target), count)
                if loads[source] <= bound:
                    break
            targets = [bin_ for bin_ in targets if loads[bin_] < bound]

    def _move(self, step: _Step, count: int) -> None:
        """Move the last *count* items of a kind."""
        prices, bins = step.kind
        items = self._items[step.kind]
        moved = items[-count:]
        del items[-count:]
        if not items:
            self._forget(step.kind)
        left = [bin_ for bin_ in bins if bin_ != step.source]
        kind = (prices, tuple(sorted([*left, step.target])))
        self._stack(kind).extend(moved)
        self._loads[step.source] -= count
        self._loads[step.target] += count

    # -- kinds ---------------------------------------------------------------------

    def _stack(self, kind: _Kind) -> list[int]:
        """Return the items of a kind, of which there may be none yet."""
        items = self._items.get(kind)
        if items is None:
            items = self._items[kind] = []
            for bin_ in kind[1]:
                cost = self._price_at(kind[0], bin_)
                self._kinds[bin_].setdefault(cost, {})[kind] = None
        return items

    def _forget(self, kind: _Kind) -> None:
        del self._items[kind]
        for bin_ in kind[1]:
            cost = self._price_at(kind[0], bin_)
            alike = self._kinds[bin_][cost]
            del alike[kind]
            if not alike:
                del self._kinds[bin_][cost]
