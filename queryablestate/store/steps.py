"""
Reads in steps: what may take long is a generator that pauses every few hundred rows.

Its driver goes on with it when it likes, or closes it.  In between it keeps its
snapshot of the store: an answer is of one moment, however often it was interrupted
(rule Q1).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias, TypeVar, final

from attrs import define


__all__ = ["ReadWork", "Steps"]

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Yields whenever it may be interrupted, and returns what was read."""

# About a quarter of a millisecond.
_PAUSE_COST: Final = 256
_COST_SIZE_BYTES: Final = 1 << 10
_LOOKUPS_PER_COST: Final = 2


@final
@define
class ReadWork:
    """
    What one read has done so far.

    Attributes:
        row_count: Rows that it has looked at.
        size_bytes: What it holds of its answer.
    """

    row_count: int = 0
    size_bytes: int = 0
    _cost: int = 0

    def look(self, size_bytes: int = 0) -> bool:
        """
        Count one row, of which so much was copied.

        Returns:
            Whether to pause: after some hundred rows, or as many KiB.
        """
        self.row_count += 1
        return self.move(size_bytes)

    def look_up(self, row_count: int, size_bytes: int) -> bool:
        """Count rows that were looked up at once, which is quicker; likewise."""
        self.row_count += row_count
        return self.move(size_bytes, row_count // _LOOKUPS_PER_COST)

    def move(self, size_bytes: int = 0, cost: int = 1) -> bool:
        """Count what took about as long as *cost* rows, and is none; likewise."""
        self._cost += cost + size_bytes // _COST_SIZE_BYTES
        if self._cost < _PAUSE_COST:
            return False
        self._cost = 0
        return True
