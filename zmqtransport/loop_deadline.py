"""`LoopDeadline`: how long a poll loop waits, and what it calls when time has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_MS


if TYPE_CHECKING:
    from nameservice import Clock


__all__ = ["LoopDeadline"]

_WAIT_MS_MAX: Final = 3_600_000
_REST_NS: Final = 100 * NS_PER_MS


@final
class LoopDeadline:
    """The one deadline of a loop, measured by *clock*; for the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_deadline_ns: Callable[[], int | None] | None = None
        self._on_deadline: Callable[[], None] | None = None
        self._held_until_ns = 0

    def set(
        self,
        next_deadline_ns: Callable[[], int | None],
        on_deadline: Callable[[], None],
    ) -> None:
        """Do as `PollLoop.set_deadline` does."""
        self._next_deadline_ns = next_deadline_ns
        self._on_deadline = on_deadline

    def wait_ms(self) -> int:
        """
        Return how long to wait, -1 for ever; call *on_deadline* first if it is due.

        Milliseconds are rounded up: waking a little early would spin.

        Raises:
            Exception: What either callback raises.  Go on with `rest`.
        """
        if self._next_deadline_ns is None:
            return -1
        now_ns = self._clock.now_ns()
        held_ns = self._held_until_ns - now_ns
        if held_ns > 0:
            return -(-held_ns // NS_PER_MS)
        deadline_ns = self._next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            assert self._on_deadline is not None
            self._on_deadline()
            deadline_ns = self._next_deadline_ns()
            now_ns = self._clock.now_ns()
        if deadline_ns is None:
            return -1
        wait_ms = -((now_ns - deadline_ns) // NS_PER_MS)
        return min(max(0, wait_ms), _WAIT_MS_MAX)

    def rest(self) -> int:
        """
        Call neither callback for a while; return how long to wait.

        What one has raised is likely to be raised again at once: that would spin, and
        flood the log.
        """
        self._held_until_ns = self._clock.now_ns() + _REST_NS
        return _REST_NS // NS_PER_MS
