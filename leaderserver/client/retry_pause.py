"""How long a client waits before it connects again; pure but for what it draws."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, final

from nameservice import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["PAUSE_NS_MAX", "PAUSE_NS_MIN", "RetryPause"]

PAUSE_NS_MIN: Final = NS_PER_SECOND // 10
PAUSE_NS_MAX: Final = 2 * NS_PER_SECOND
_STEADY_NS: Final = NS_PER_SECOND

# Of our own: a program that has seeded Python's gets the numbers that it expects.  And
# the system's, which are others in each forked child.
_RANDOM: Final = random.SystemRandom()


@final
class RetryPause:
    """
    The pauses after connections of one socket that came to nothing, or ended.

    The first is short: most often the server has been restarted.  A server that takes
    no more connections is asked less and less often, and not by all clients at once:
    each waits for a random part of its pause, half of it at least.

    A client with a claim waits for the shortest pause each time.  What refuses may be a
    load balancer, and the server behind it decides soon after it is back (E9).

    Args:
        draw: Returns a number from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float] = _RANDOM.random) -> None:
        self._draw = draw
        self._pause_ns = PAUSE_NS_MIN
        self._opened_ns: int | None = None

    def opened(self, *, now_ns: int) -> None:
        """Heed that messages can flow."""
        self._opened_ns = now_ns

    def welcomed(self) -> None:
        """Heed that the server has taken us: what ends it now is no refusal."""
        self._pause_ns = PAUSE_NS_MIN

    def ended(self, *, now_ns: int, has_claim: bool = False) -> int:
        """
        Heed that the connection is over; return how long to wait, in nanoseconds.

        Args:
            now_ns: The present.
            has_claim: Whether the client leads something, as far as it knows.
        """
        opened_ns, self._opened_ns = self._opened_ns, None
        is_steady = opened_ns is not None and now_ns - opened_ns >= _STEADY_NS
        if is_steady or has_claim:
            self._pause_ns = PAUSE_NS_MIN
        pause_ns = self._pause_ns
        self._pause_ns = min(2 * pause_ns, PAUSE_NS_MAX)
        return pause_ns - int(self._draw() * pause_ns / 2)
