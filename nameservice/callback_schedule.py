"""
`CallbackSchedule`: whose callback runs next, and on how many threads; pure.

Theory of operation.  A *lane* is one contender's or one listener's sequence of
callbacks.  Its turns run one at a time and in order; which thread runs them does not
matter.  Lanes that have something to do queue up in the order in which they were woken.

::

    IDLE ──wake──► READY ──take──► RUNNING ──done──► IDLE, or OVER
                     ▲                │
                     └─done, woken────┘   (woken again during its turn)

A callback may block for as long as it likes, and must not delay another lane.  So the
number of threads follows from what the callbacks do.  Up to *quick_count* lanes run at
once.  A lane that finds as many running waits its turn for a moment; if none of those
that run returns meanwhile, all of them are taken to be blocked, and twice as many may
run.  The same happens, less often, when turns do return, yet a lane has waited for a
while.  A thousand callbacks that block all run after some six such moments, and a
thousand that are short share a few threads.

There are never more threads than lanes, and one: who waits takes the time.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final, Generic, TypeVar, final


__all__ = ["CallbackSchedule", "LaneState"]

LaneT = TypeVar("LaneT")

QUICK_COUNT: Final = 16
STALL_NS: Final = 10_000_000
WAIT_NS: Final = 100_000_000


class LaneState(Enum):
    """What a lane is about."""

    IDLE = "idle"
    READY = "ready"
    RUNNING = "running"
    RUNNING_WOKEN = "running, and woken again"


@final
class CallbackSchedule(Generic[LaneT]):
    """
    All lanes of one process.  Not thread-safe: its owner has a lock.

    Args:
        quick_count: How many lanes run at once without further ado.
        stall_ns: If no turn begins or ends for so long, those that run are blocked.
        wait_ns: A lane that has waited for so long may run beside them in any case.
    """

    def __init__(
        self,
        *,
        quick_count: int = QUICK_COUNT,
        stall_ns: int = STALL_NS,
        wait_ns: int = WAIT_NS,
    ) -> None:
        assert quick_count >= 1
        self._quick_count = quick_count
        self._stall_ns = stall_ns
        self._wait_ns = wait_ns
        self._states: dict[LaneT, LaneState] = {}
        self._ready: OrderedDict[LaneT, int] = OrderedDict()
        self._running_count = 0
        self._running_count_max = quick_count
        self._progress_ns = 0
        self._grown_ns = 0

    def __len__(self) -> int:
        """Return how many lanes there are."""
        return len(self._states)

    @property
    def has_ready(self) -> bool:
        """Return whether some lane waits for a thread."""
        return bool(self._ready)

    def state(self, lane: LaneT) -> LaneState | None:
        """Return what *lane* is about, or None if it is over or never was."""
        return self._states.get(lane)

    def add(self, lane: LaneT) -> None:
        """Enter a new lane, which has nothing to do."""
        assert lane not in self._states
        self._states[lane] = LaneState.IDLE

    def wake(self, lane: LaneT, *, now_ns: int) -> None:
        """Give *lane* a turn that begins after this; nothing if it is over."""
        state = self._states.get(lane)
        if state is LaneState.IDLE:
            self._states[lane] = LaneState.READY
            self._ready[lane] = now_ns
        elif state is LaneState.RUNNING:
            self._states[lane] = LaneState.RUNNING_WOKEN

    def take(self, *, now_ns: int) -> LaneT | None:
        """
        Return the lane whose turn begins now, or None if none may.

        Call it again when `patience_ns` is over.
        """
        if not self._ready:
            return None
        if self._running_count >= self._running_count_max:
            if self.patience_ns(now_ns=now_ns) > 0:
                return None
            self._running_count_max = 2 * self._running_count
            self._grown_ns = now_ns
        lane, _ = self._ready.popitem(last=False)
        self._states[lane] = LaneState.RUNNING
        self._running_count += 1
        self._progress_ns = now_ns
        return lane

    def patience_ns(self, *, now_ns: int) -> int:
        """Return how long the first of the lanes that wait will go on waiting."""
        assert self._ready
        if self._running_count < self._running_count_max:
            return 0
        since_ns = next(iter(self._ready.values()))
        stalled_ns = max(self._progress_ns, since_ns) + self._stall_ns
        waited_ns = max(self._grown_ns, since_ns) + self._wait_ns
        return max(0, min(stalled_ns, waited_ns) - now_ns)

    def done(self, lane: LaneT, *, is_over: bool, now_ns: int) -> None:
        """Take note that a turn has ended; *is_over* if the lane wants no other."""
        state = self._states[lane]
        assert state in {LaneState.RUNNING, LaneState.RUNNING_WOKEN}
        self._running_count -= 1
        self._progress_ns = now_ns
        if is_over:
            del self._states[lane]
        elif state is LaneState.RUNNING_WOKEN:
            self._states[lane] = LaneState.READY
            self._ready[lane] = now_ns
        else:
            self._states[lane] = LaneState.IDLE
        if not self._ready:
            # The rush is over: those that still run may be blocked for ever.
            self._running_count_max = self._running_count + self._quick_count

    def check_invariants(self) -> None:
        """Assert what holds between any two calls; tests do after each."""
        states = list(self._states.values())
        running = (LaneState.RUNNING, LaneState.RUNNING_WOKEN)
        assert self._running_count == sum(state in running for state in states)
        ready = [lane for lane, s in self._states.items() if s is LaneState.READY]
        assert set(ready) == set(self._ready)
        assert self._running_count_max >= self._quick_count
