"""How long questions took, counted in buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice.observation import Latencies


pytestmark = pytest.mark.proves("F1")


def test_nothing_was_counted() -> None:
    """Kinds are there once one of them was counted."""
    assert Latencies().buckets() == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20_000_000_000))))
def test_buckets_are_what_was_counted(durations: list[tuple[str, int]]) -> None:
    """Each duration is in the first bucket whose bound it does not exceed."""
    latencies = Latencies()
    for kind, duration_ns in durations:
        latencies.add(kind, duration_ns)
    found = latencies.buckets()
    assert [one.kind for one in found] == sorted({kind for kind, _ in durations})
    for one in found:
        own = [duration_ns for kind, duration_ns in durations if kind == one.kind]
        assert one.sum_seconds == pytest.approx(sum(own) / 1e9)
        assert sum(one.counts) == len(own)
        for place, bound in enumerate(Latencies.BOUNDS_SECONDS):
            below = sum(duration_ns <= round(bound * 1e9) for duration_ns in own)
            assert sum(one.counts[: place + 1]) == below
