"""`InterruptibleEvent`: an event that signal handlers wait for, and set."""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["InterruptibleEvent"]


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
        # A queue for each: it is written in C, and its `put` is reentrant.
        self._waiters: dict[SimpleQueue[None], None] = {}

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
            waiter.put(None)

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
        waiter: SimpleQueue[None] = SimpleQueue()
        for event in events:  # before the look: `set` looks after its own
            event._waiters[waiter] = None  # noqa: SLF001 (of this class)
        try:
            if not any(event.is_set() for event in events):
                with contextlib.suppress(Empty):
                    waiter.get(timeout=timeout_seconds)
                    return True
        finally:
            for event in events:
                event._waiters.pop(waiter, None)  # noqa: SLF001 (of this class)
        return any(event.is_set() for event in events)
