"""
`StateBudget`: what sessions, contenders, components and subscriptions cost; pure.

Each has a limit of its own, and so have they together: ten thousand sessions with ten
thousand subscriptions each are within every single limit.  What is added is counted at
once; what has gone is seen when all is counted again, which happens when there is no
room left, and at most once a second: a flood of requests that are refused costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from nameservice.clock import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["StateBudget"]


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
        self._counted_ns: int | None = None

    @property
    def cost_bytes(self) -> int:
        """Return what all costs, at most."""
        return self._cost_bytes

    def limit(self, bytes_max: int) -> None:
        """Admit up to *bytes_max* from now on."""
        self._bytes_max = bytes_max

    def admits(self, cost_bytes: int, *, now_ns: int) -> bool:
        """Return whether there is room for that much; then it is counted."""
        if self._cost_bytes + cost_bytes > self._bytes_max and (
            self._counted_ns is None or now_ns >= self._counted_ns + NS_PER_SECOND
        ):
            self._counted_ns = now_ns
            self._cost_bytes = self._count()
        if self._cost_bytes + cost_bytes > self._bytes_max:
            return False
        self._cost_bytes += cost_bytes
        return True
