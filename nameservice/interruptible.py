"""
`InterruptibleEvent`, `InterruptibleQueue`: for threads that signals may interrupt.

Both wait for a lock of C, which one thread takes and another gives back.  So a signal
handler that comes at any moment may set the event, put into the queue, or wait for a
thread that does.  The waits of `queue.SimpleQueue` are no better: before Python 3.13
one that a signal has interrupted, with its time just over, waits for ever.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from queue import Empty
from typing import TYPE_CHECKING, Generic, TypeVar, final


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["InterruptibleEvent", "InterruptibleQueue"]

T = TypeVar("T")

_FOR_EVER = -1


@final
class InterruptibleEvent(threading.Event):
    """
    A `threading.Event` that holds no lock.  Thread-safe.

    An ordinary one holds a lock while a wait begins, and while it ends.  A signal
    handler that comes just then may set the same event, wait for it, or wait for a
    thread that sets it: it would wait for ever.
    """

    def __init__(self) -> None:
        super().__init__()  # whose lock nothing takes
        self._is_set = False
        self._waiters: dict[_Waker, None] = {}

    def __repr__(self) -> str:
        return f"<InterruptibleEvent: {'set' if self._is_set else 'unset'}>"

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and release those that wait."""
        self._is_set = True
        # To make a tuple may run finalizers, amid which other threads begin to wait.
        for waiter in list(self._waiters):
            waiter.wake()

    def clear(self) -> None:
        """Set it no more."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return True once it is set, or False after *timeout* seconds."""
        return self.wait_for_any([self], timeout)

    @staticmethod
    def wait_for_any(
        events: Sequence[InterruptibleEvent], timeout_seconds: float | None = None
    ) -> bool:
        """Return True once one of *events* is set, or False after the timeout."""
        waiter = _Waker()
        for event in events:  # before the look: `set` looks after its own
            event._waiters[waiter] = None  # noqa: SLF001 (of this class)
        try:
            if not any(event.is_set() for event in events) and waiter.wait(
                timeout_seconds
            ):
                return True
        finally:
            for event in events:
                event._waiters.pop(waiter, None)  # noqa: SLF001 (of this class)
        return any(event.is_set() for event in events)


class InterruptibleQueue(Generic[T]):
    """A `queue.SimpleQueue` whose waits end in time.  Thread-safe, and reentrant."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waker = _Waker()

    def put(self, item: T) -> None:
        """Add *item*; never blocks."""
        self._items.append(item)
        self._waker.wake()

    def get(self, timeout: float | None = None) -> T:
        """
        Return the first item, as soon as there is one.

        Raises:
            Empty: If there is none within *timeout* seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._items:
                with contextlib.suppress(Empty):  # another thread may take it
                    return self.get_nowait()
            left = None if until is None else until - time.monotonic()
            if not self._waker.wait(left):
                raise Empty

    def get_nowait(self) -> T:
        """
        Return the first item.

        Raises:
            Empty: If there is none.
        """
        try:
            item = self._items.popleft()
        except IndexError:
            raise Empty from None
        if self._items:
            self._waker.wake()  # another thread may wait, too
        return item

    def qsize(self) -> int:
        """Return how many items there are."""
        return len(self._items)


@final
class _Waker:
    """Wakes one thread, which waits or is about to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Have the next wait end at once, or the present one."""
        if self._lock.locked():
            with contextlib.suppress(RuntimeError):  # another thread does so just now
                self._lock.release()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Return True once it is woken, or False after the timeout."""
        if timeout_seconds is None:
            return self._lock.acquire(timeout=_FOR_EVER)
        seconds = min(max(timeout_seconds, 0.0), threading.TIMEOUT_MAX)
        return self._lock.acquire(timeout=seconds)
