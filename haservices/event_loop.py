"""
`EventLoop`: one thread that owns some state, and does one thing after the other.

Whatever happens elsewhere (an answer, a watch, a call of the application) is handed to
it as a function.  State that only its functions touch needs no lock.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from typing import TYPE_CHECKING, Final, TypeVar, final

from nameservice import NS_PER_SECOND, get_logger
from nameservice.answer import Answer
from nameservice.interruptible import InterruptibleQueue


if TYPE_CHECKING:
    from collections.abc import Callable

    from nameservice import Clock


__all__ = ["EventLoop", "Timer"]

T = TypeVar("T")

_TIMER_COUNT_MIN: Final = 64


@final
class Timer:
    """Something to be done later, unless it is cancelled on the loop before."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    @property
    def is_over(self) -> bool:
        """Return whether it was done or cancelled."""
        return self._action is None

    def cancel(self) -> None:
        """Have it not done.  Idempotent."""
        self._action = None

    def fire(self) -> None:
        """Do it, once; the loop's to call."""
        action, self._action = self._action, None
        if action is not None:
            action()


@final
class EventLoop:
    """
    One daemon thread; it runs from `start` until `stop`.

    Args:
        name: The thread's name.
        clock: What timers go by.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._log = get_logger(component=name)
        # It may be put into from anywhere, also by an interrupted thread that is
        # putting already; it has no bound, but its producers wait for answers.
        self._actions: InterruptibleQueue[Callable[[], object] | None] = (
            InterruptibleQueue()
        )
        self._timers: list[tuple[int, int, Timer]] = []
        self._timer_numbers = itertools.count()
        # Above it, cancelled ones are cleared away; it is never below twice the rest.
        self._timer_count_max = _TIMER_COUNT_MIN
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def is_current(self) -> bool:
        """Return whether the caller is on the loop's own thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def call(self, action: Callable[[], object]) -> None:
        """Do *action* on the loop, after what it was handed before; from anywhere."""
        self._actions.put(action)

    def submit(self, action: Callable[[], T]) -> Answer[T]:
        """Do *action* on the loop; its result is the answer.  From anywhere."""
        answer: Answer[T] = Answer()

        def act() -> None:
            try:
                result = action()
            except BaseException as error:  # noqa: BLE001 - told by the answer
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self.call(act)
        return answer

    def call_at(self, at_ns: int, action: Callable[[], None]) -> Timer:
        """Do *action* once the clock says *at_ns*; on the loop only."""
        assert self.is_current
        timer = Timer(action)
        heapq.heappush(self._timers, (at_ns, next(self._timer_numbers), timer))
        if len(self._timers) > self._timer_count_max:
            self._timers = [item for item in self._timers if not item[2].is_over]
            heapq.heapify(self._timers)
            self._timer_count_max = max(_TIMER_COUNT_MIN, 2 * len(self._timers))
        return timer

    def stop(self) -> None:
        """Do what was handed in until now, then end.  From any other thread."""
        self._actions.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            try:
                action = self._actions.get(timeout=self._seconds_to_timer())
            except queue.Empty:
                action = _nothing
            if action is None:
                return
            self._perform(action)
            while self._timers and self._timers[0][0] <= self._clock.now_ns():
                self._perform(heapq.heappop(self._timers)[2].fire)

    def _perform(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - the loop goes on for all else it carries
            self._log.exception("loop.failed")

    def _seconds_to_timer(self) -> float | None:
        if not self._timers:
            return None
        return max(0, self._timers[0][0] - self._clock.now_ns()) / NS_PER_SECOND


def _nothing() -> None:
    """Do nothing: it was only time that passed."""
