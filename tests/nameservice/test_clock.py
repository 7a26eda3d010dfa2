from __future__ import annotations

import time

import pytest

from nameservice.clock import (
    NS_PER_SECOND,
    ManualClock,
    SystemClock,
    earliest,
    seconds_to_ns,
)


class TestSecondsToNs:
    @pytest.mark.parametrize(
        ("seconds", "expected_ns"),
        [
            (0.0, 0),
            (1.0, NS_PER_SECOND),
            (0.5, 500_000_000),
            (0.1, 100_000_000),
            (0.3, 300_000_000),
            (1e-9, 1),
            (3600.0, 3_600_000_000_000),
        ],
    )
    def test_is_the_nearest_nanosecond(self, seconds: float, expected_ns: int) -> None:
        """Settings given as decimal seconds become the nanoseconds they look like."""
        assert seconds_to_ns(seconds) == expected_ns


class TestSystemClock:
    def test_never_falls(self) -> None:
        """E4: a later reading is never smaller."""
        clock = SystemClock()
        readings = [clock.now_ns() for _ in range(1_000)]
        assert readings == sorted(readings)

    def test_counts_the_time_asleep_where_the_system_can(self) -> None:
        """E4: it reads CLOCK_BOOTTIME where there is one."""
        clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        before_ns = time.clock_gettime_ns(clock_id)
        now_ns = SystemClock().now_ns()
        assert before_ns <= now_ns <= time.clock_gettime_ns(clock_id)


class TestManualClock:
    def test_moves_when_told_to(self) -> None:
        """It stands still between two orders."""
        clock = ManualClock(5)
        assert clock.now_ns() == 5
        clock.advance(0)
        assert clock.now_ns() == 5
        clock.advance(7)
        assert clock.now_ns() == 12

    def test_starts_at_zero(self) -> None:
        """Without an argument it starts at 0."""
        assert ManualClock().now_ns() == 0

    def test_never_goes_back(self) -> None:
        """A negative duration is our own mistake."""
        with pytest.raises(AssertionError):
            ManualClock().advance(-1)


class TestEarliest:
    def test_is_the_least_of_those_that_are_set(self) -> None:
        """Zero is a moment, too."""
        assert earliest((None, 3, 0, None, 2)) == 0
        assert earliest(moment for moment in (7, None)) == 7

    def test_is_none_where_none_is_set(self) -> None:
        """Nothing to wait for."""
        assert earliest((None, None)) is None
        assert earliest(()) is None
