"""
`LogBudget`: how many lines a misbehaving peer may cause; pure.

Every peer that can send rubbish could otherwise fill a disk with lines that say so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from nameservice.clock import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["LogBudget"]


@final
class LogBudget:
    """
    Grants a number of log lines per interval, and counts those it refuses.

    Args:
        lines_max: Lines of one interval, of all kinds together.
        interval_ns: How long an interval lasts; it begins with its first line.
    """

    def __init__(
        self, *, lines_max: int = 10, interval_ns: int = 10 * NS_PER_SECOND
    ) -> None:
        self._lines_max = lines_max
        self._interval_ns = interval_ns
        self._until_ns: int | None = None
        self._line_count = 0
        self._suppressed: Counter[str] = Counter()

    def admits(self, kind: str, *, now_ns: int) -> bool:
        """Return whether a line of *kind* may be written now; a refused one counts."""
        if self._until_ns is None or now_ns >= self._until_ns:
            self._until_ns = now_ns + self._interval_ns
            self._line_count = 0
        if self._line_count < self._lines_max:
            self._line_count += 1
            return True
        self._suppressed[kind] += 1
        return False

    def take_suppressed(self, *, now_ns: int) -> Mapping[str, int]:
        """
        Return, once, how many lines of which kind an interval that is over refused.

        Empty while the interval lasts, and if there is nothing to tell.
        """
        if not self._suppressed or self._until_ns is None or now_ns < self._until_ns:
            return {}
        suppressed = dict(sorted(self._suppressed.items()))
        self._suppressed.clear()
        return suppressed
