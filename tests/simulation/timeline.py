"""One line of real time, and clocks that differ from it as clocks do."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, final


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


__all__ = ["MS", "NodeClock", "Process", "Timeline"]

MS: Final = 1_000_000
_MILLION: Final = 1_000_000


@final
class Timeline:
    """
    Actions in the order of their time; equal times in the order of their entry.

    Attributes:
        now_ns: Real time, which no node can read.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, when_ns: int, action: Callable[[], object]) -> None:
        """Do *action* at *when_ns*, which is not past."""
        assert when_ns >= self.now_ns
        self._count += 1
        heapq.heappush(self._heap, (when_ns, self._count, action))

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        """Do *action* in *delay_ns*."""
        self.at(self.now_ns + delay_ns, action)

    def run_until(self, end_ns: int) -> None:
        """Move time on until *end_ns*, inclusively."""
        heap = self._heap
        while heap and heap[0][0] <= end_ns:
            self.now_ns, _, action = heapq.heappop(heap)
            action()
        self.now_ns = end_ns


@final
class NodeClock:
    """
    A clock that began somewhere and runs a little fast or slow.

    Args:
        timeline: Real time.
        parts: Its nanoseconds in a million real ones.
        offset_ns: What it showed at the beginning of real time.
    """

    def __init__(self, timeline: Timeline, *, parts: int, offset_ns: int) -> None:
        self._timeline = timeline
        self._parts = parts
        self._offset_ns = offset_ns

    def now_ns(self) -> int:
        """Return what it shows."""
        return self._offset_ns + self._timeline.now_ns * self._parts // _MILLION

    def real_ns(self, shown_ns: int) -> int:
        """Return the first real moment at which it shows *shown_ns* or later."""
        return -((self._offset_ns - shown_ns) * _MILLION // self._parts)


class Process:
    """
    Something that runs, may be paused and may die.

    A paused process does nothing.  What reached it meanwhile is done after it wakes,
    in order, in bursts with short breaks: the thread that reads a socket lags behind.

    Attributes:
        name: For traces.
        is_alive: Whether it has not been killed.
        is_paused: Whether it is stopped.
    """

    def __init__(self, name: str, timeline: Timeline, rng: Random) -> None:
        self.name = name
        self.timeline = timeline
        self.rng = rng
        self.is_alive = True
        self.is_paused = False
        self._backlog: deque[Callable[[], object]] = deque()
        self._armed_ns: int | None = None
        self._has_missed_timer = False

    def run(self, action: Callable[[], object]) -> None:
        """Do *action* now, or after the wake-up."""
        if not self.is_alive:
            return
        if self.is_paused or self._backlog:
            self._backlog.append(action)
        else:
            action()

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        """Do *action* in *delay_ns*, or after the wake-up."""
        self.timeline.after(delay_ns, lambda: self.run(action))

    def pause(self) -> None:
        """Stop."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on: with the timers first, or with what came meanwhile."""
        if not self.is_paused:
            return
        self.is_paused = False
        if self._has_missed_timer and self.rng.random() < 0.5:
            self._wake()
        self._drain()
        if self._has_missed_timer:
            self.timeline.after(self.rng.randrange(MS), self._wake)

    def kill(self) -> None:
        """Do nothing any more."""
        self.is_alive = False
        self._backlog.clear()

    def _may_run(self) -> bool:
        return self.is_alive and not self.is_paused

    def flush(self) -> None:
        """Do at once what has been waiting."""
        while self._backlog and self._may_run():
            self._backlog.popleft()()

    def _drain(self) -> None:
        if not self._may_run():
            return
        burst = self.rng.randrange(1, 20)
        while burst and self._backlog and self._may_run():
            # Taken out afterwards: what comes meanwhile goes behind it.
            self._backlog[0]()
            if self._backlog:
                self._backlog.popleft()
            burst -= 1
        if self._backlog:
            self.timeline.after(self.rng.randrange(2 * MS), self._drain)

    # -- the one timer ---------------------------------------------------------------

    def arm(self, due_ns: int | None) -> None:
        """Ask for `on_timer` at the real time *due_ns*, a little late as timers are."""
        if due_ns is None:
            return
        armed_ns = self._armed_ns
        if armed_ns is not None and armed_ns <= due_ns:
            return  # comes too early, and arms itself anew
        when_ns = max(due_ns, self.timeline.now_ns) + self.rng.randrange(MS)
        self._armed_ns = when_ns
        self.timeline.at(when_ns, lambda: self._fire(when_ns))

    def _fire(self, when_ns: int) -> None:
        if not self.is_alive or when_ns != self._armed_ns:
            return
        self._armed_ns = None
        if self.is_paused:
            self._has_missed_timer = True
        else:
            self.on_timer()

    def _wake(self) -> None:
        self._has_missed_timer = False
        if self.is_alive and not self.is_paused:
            self.on_timer()

    def on_timer(self) -> None:
        """Do what is due, and arm the timer again."""
        raise NotImplementedError
