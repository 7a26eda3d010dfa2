"""
`CallbackLane`: the callbacks of one contender or listener, on threads that all share.

A thread for each of them would be simple, and two thousand threads in one process are
slow to start, slow to wake and slow to end.  So all lanes of a process share a pool;
who runs when is `CallbackSchedule`'s business, and this file is the threads around it.

The pool has threads while there is something to do, and a moment longer.  The last one
stays for as long as there are lanes: in a process that may have no more threads a
revocation is delivered all the same.  A thread carries the name of the lane that it
runs, for logs and debuggers.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final, final

from nameservice.callback_schedule import CallbackSchedule
from nameservice.clock import NS_PER_SECOND
from nameservice.interruptible import InterruptibleEvent
from nameservice.lane_waits import callback_waits
from nameservice.log import get_logger
from nameservice.uninterrupted import detached, uninterrupted


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["CallbackLane"]

_IDLE_SECONDS: Final = 0.05


@final
class CallbackLane:
    """
    Calls *turn* on some thread, one call at a time, whenever it was woken.

    Args:
        name: Of the thread, while it runs this lane.
        turn: Does one thing, such as one callback, and returns whether the lane is
            over; it must not raise.  It is called again if the lane was woken since
            its call began.
    """

    def __init__(self, name: str, turn: Callable[[], bool]) -> None:
        self.name = name
        self.turn = turn
        self.over = InterruptibleEvent()
        self.thread_id: int | None = None
        self.is_entered = False
        self._pool = _pool_of_this_process()

    def wake(self) -> None:
        """Ask for a turn that begins after this.  Thread-safe; never blocks."""
        self._pool.wake(self)

    def join(self) -> None:
        """
        Wait until the lane is over.

        Return at once inside its own turn, and inside one for whose end it waits.
        """
        if callback_waits.wait((self,), self.over):
            self._pool.join_if_unused()


@final
class _CallbackPool:
    """
    The threads of all lanes of one process; *idle_name* is theirs between turns.

    What a signal handler raises could leave its lock taken, and threads counted that do
    not run: all callbacks of the process would stop.
    """

    def __init__(self, idle_name: str = "callbacks") -> None:
        self._idle_name = idle_name
        self.pid = os.getpid()
        self._log = get_logger(component="callbacks")
        self._changed = threading.Condition()
        self._schedule: CallbackSchedule[CallbackLane] = CallbackSchedule()
        self._threads: dict[threading.Thread, None] = {}
        self._waiting_count = 0

    def wake(self, lane: CallbackLane) -> None:
        uninterrupted(lambda: self._wake(lane))

    def join_if_unused(self) -> None:
        """Wait for the threads to end, if there is no lane that they are for."""
        if self._threads and not len(self._schedule):
            detached(self._join_if_unused)

    def _join_if_unused(self) -> None:
        threads = self._dismiss()
        if threading.get_ident() in [thread.ident for thread in threads]:
            return
        for thread in threads:
            # A lane that is opened meanwhile may keep it for as long as it lives.
            while thread.is_alive() and not len(self._schedule):
                thread.join(_IDLE_SECONDS)

    def _wake(self, lane: CallbackLane) -> None:
        with self._changed:
            if not lane.is_entered:
                lane.is_entered = True
                self._schedule.add(lane)
            self._schedule.wake(lane, now_ns=time.monotonic_ns())
            is_needed = self._schedule.has_ready and not self._waiting_count
            thread = self._new_thread() if is_needed else None
            self._changed.notify()
        if thread is not None:
            self._start(thread)

    def _dismiss(self) -> tuple[threading.Thread, ...]:
        """Have the threads end if there is no lane; return those."""
        with self._changed:
            threads = () if len(self._schedule) else tuple(self._threads)
            self._changed.notify(len(threads))
        return threads

    def _new_thread(self) -> threading.Thread:
        """Return a thread that counts as one that waits; the lock is held."""
        thread = threading.Thread(target=self._work, name=self._idle_name, daemon=True)
        self._threads[thread] = None
        self._waiting_count += 1
        return thread

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads.  Those that there are go on, and the lane
            # that is woken next tries again.
            self._log.exception("callbacks.starved")
            with self._changed:
                del self._threads[thread]
                self._waiting_count -= 1

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                lane = self._take()
                self._waiting_count -= 1
                if lane is None:
                    del self._threads[me]
                    return
                # Who takes the time for those that wait still, or runs them.
                is_needed = self._schedule.has_ready and not self._waiting_count
                thread = self._new_thread() if is_needed else None
            if thread is not None:
                self._start(thread)
            is_over = self._run(lane, me)
            with self._changed:
                self._schedule.done(lane, is_over=is_over, now_ns=time.monotonic_ns())
                self._waiting_count += 1
                if not len(self._schedule):
                    self._changed.notify_all()  # the one that stays need not, either
            if is_over:
                lane.over.set()
            del lane  # a thread that waits must not keep what it worked on last

    def _take(self) -> CallbackLane | None:
        """Return a lane to run, or None if this thread should end; the lock is held."""
        while True:
            lane = self._schedule.take(now_ns=time.monotonic_ns())
            if lane is not None:
                return lane
            if not len(self._schedule):
                return None
            if self._schedule.has_ready:
                wait_ns = self._schedule.patience_ns(now_ns=time.monotonic_ns())
                self._changed.wait(wait_ns / NS_PER_SECOND)
            elif self._waiting_count == 1:
                self._changed.wait()
            elif not self._changed.wait(_IDLE_SECONDS) and self._is_dispensable:
                return None

    @property
    def _is_dispensable(self) -> bool:
        """Return whether one that waits may end; the lock is held."""
        # Another that waited beside it may have ended since it began to.
        return not self._schedule.has_ready and self._waiting_count > 1

    def _run(self, lane: CallbackLane, me: threading.Thread) -> bool:
        me.name = lane.name
        lane.thread_id = me.ident
        try:
            return lane.turn()
        except Exception:  # noqa: BLE001 - a mistake of ours: the others must go on
            self._log.exception("callbacks.failed", lane=lane.name)
            return False
        finally:
            lane.thread_id = None
            me.name = self._idle_name


_pool = _CallbackPool()


def _pool_of_this_process() -> _CallbackPool:
    global _pool  # noqa: PLW0603 - "of this process": a forked child has no threads
    if _pool.pid != os.getpid():
        _pool = _CallbackPool()
    return _pool
