"""
`StateBudget`: what sessions, contenders, components and the like cost; pure.

Each has a limit of its own, and so have they together: ten thousand sessions with ten
thousand subscriptions each are within every single limit.  What is added is counted at
once, what was refused after all is given back.  What has gone is seen when all is
counted again.  That happens when there is no room left: once a second, and when much
was added since.  So a flood of requests that are refused costs little, and a client
that takes and leaves without end does not pass for one that keeps all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["StateBudget"]

_PART_ADDED: Final = 8
"""All is counted again after an eighth of the limit was added."""


@final
class StateBudget:
    """
    Says whether there is room for one more.

    Args:
        bytes_max: What all together may cost.
        count: Returns what all that there is costs.
    """

    def __init__(self, bytes_max: int, count: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self._count = count
        self._cost_bytes = 0
        self._added_bytes = 0
        self._counted_ns: int | None = None

    def limit(self, bytes_max: int) -> None:
        """Admit up to *bytes_max* from now on."""
        self._bytes_max = bytes_max

    def counted(self) -> int:
        """Count all, and return what it costs."""
        self._cost_bytes = self._count()
        self._added_bytes = 0
        return self._cost_bytes

    def admits(self, cost_bytes: int, *, now_ns: int) -> bool:
        """Return whether there is room for that much; then it is counted."""
        if self._cost_bytes + cost_bytes > self._bytes_max and (
            self._counted_ns is None
            or now_ns >= self._counted_ns + NS_PER_SECOND
            or self._added_bytes * _PART_ADDED >= self._bytes_max
        ):
            self._counted_ns = now_ns
            self.counted()
        if self._cost_bytes + cost_bytes > self._bytes_max:
            return False
        self._cost_bytes += cost_bytes
        self._added_bytes += cost_bytes
        return True

    def give_back(self, cost_bytes: int) -> None:
        """Count no more what was admitted a moment ago, and came to nothing."""
        self._cost_bytes -= cost_bytes
        self._added_bytes -= cost_bytes
