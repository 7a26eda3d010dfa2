"""What the wall clocks show: the same, and a microsecond for each of the time line."""

from __future__ import annotations

from typing import Final


__all__ = ["wall_clock_us_at"]

_WALL_CLOCK_US: Final = 1_700_000_000_000_000


def wall_clock_us_at(at_ns: int) -> int:
    """Return what every wall clock shows at some time of the time line."""
    return _WALL_CLOCK_US + at_ns // 1_000
