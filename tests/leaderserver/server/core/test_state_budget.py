"""What sessions, contenders, components and subscriptions cost together (N3)."""

from __future__ import annotations

import pytest

from leaderserver.server.core.state_budget import StateBudget
from nameservice import NS_PER_SECOND


@pytest.mark.proves("N3")
def test_what_is_added_is_counted_at_once() -> None:
    """N3: the limit holds between two counts."""
    budget = StateBudget(100, lambda: 100)
    assert budget.admits(60, now_ns=0)
    assert budget.admits(40, now_ns=0)
    assert not budget.admits(1, now_ns=0)


@pytest.mark.proves("N3")
def test_what_has_gone_is_seen_when_there_is_no_room() -> None:
    """N3: room that is free again is given again."""
    left = 100
    budget = StateBudget(100, lambda: left)
    assert budget.admits(100, now_ns=0)
    left = 30
    assert budget.admits(70, now_ns=0)
    left = 100
    assert not budget.admits(1, now_ns=0)


@pytest.mark.proves("N3")
def test_what_was_refused_after_all_is_given_back() -> None:
    """N3: and does not count as added."""
    budget = StateBudget(100, lambda: 100)
    for _ in range(10):
        assert budget.admits(100, now_ns=0)
        budget.give_back(100)
    assert budget.admits(100, now_ns=0)


@pytest.mark.proves("N3")
def test_what_was_added_since_has_all_counted_again() -> None:
    """N3: it may have gone by now, though all was counted within this second."""
    left = 50
    budget = StateBudget(100, lambda: left)
    for _ in range(20):
        assert budget.admits(30, now_ns=0)
    left = 95
    assert not budget.admits(30, now_ns=0)
    assert budget.admits(5, now_ns=0)
    left = 70  # too little was added since for a count of all
    assert not budget.admits(30, now_ns=0)
    assert budget.admits(30, now_ns=NS_PER_SECOND)


@pytest.mark.proves("N3")
def test_a_flood_of_refusals_counts_once_a_second() -> None:
    """N3: what is refused costs little."""
    counts: list[None] = []

    def count() -> int:
        counts.append(None)
        return 100

    budget = StateBudget(100, count)
    assert budget.admits(100, now_ns=0)
    for number in range(1_000):
        assert not budget.admits(1, now_ns=number)
    assert len(counts) == 1
    assert not budget.admits(1, now_ns=NS_PER_SECOND)
    assert len(counts) == 2
