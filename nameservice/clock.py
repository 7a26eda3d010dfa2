"""
Where time comes from: shells read a `Clock`, cores are told.

A lease must go on running while a machine sleeps, so the clock is
``CLOCK_BOOTTIME`` where there is one.  It never follows the wall clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol, final


if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = [
    "MS_PER_SECOND",
    "NS_PER_MS",
    "NS_PER_SECOND",
    "NS_PER_US",
    "US_PER_MS",
    "US_PER_SECOND",
    "Clock",
    "ManualClock",
    "SystemClock",
    "earliest",
    "seconds_to_ns",
]

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000
US_PER_MS: Final = 1_000
US_PER_SECOND: Final = 1_000_000
MS_PER_SECOND: Final = 1_000


def seconds_to_ns(seconds: float) -> int:
    """Return *seconds* in whole nanoseconds, rounded to the nearest."""
    return round(seconds * NS_PER_SECOND)


def earliest(moments: Iterable[int | None]) -> int | None:
    """Return the least of *moments*, or None if all of them are None."""
    least: int | None = None
    for moment in moments:
        if moment is not None and (least is None or moment < least):
            least = moment
    return least


class Clock(Protocol):
    """A monotonic clock; its values compare only within one process."""

    def now_ns(self) -> int:
        """Return nanoseconds since some fixed moment; never falls."""


@final
class SystemClock:
    """The machine's clock since boot, the time asleep included."""

    _CLOCK_ID: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_ns(self) -> int:
        """Return nanoseconds since boot."""
        return time.clock_gettime_ns(self._CLOCK_ID)


@final
class ManualClock:
    """A clock that moves when it is told to, for tests and simulations."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the time that was set last."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Move time on by *duration_ns*, which is not negative."""
        assert duration_ns >= 0
        self._now_ns += duration_ns
