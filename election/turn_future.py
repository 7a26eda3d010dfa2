"""`TurnFuture`: what comes of a turn, for a thread that signals may interrupt."""

from __future__ import annotations

import _thread
from concurrent.futures import Future
from typing import TypeVar, final

from nameservice.interruptible import InterruptibleEvent


__all__ = ["TurnFuture"]

T = TypeVar("T")


@final
class TurnFuture(Future[T]):
    """
    A `Future` that what a signal handler raises does not break.

    An ordinary one takes its lock by ``Condition.__enter__``.  An exception amid that
    leaves it taken: who gives the result waits for ever, and runs the callbacks of an
    election no more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Lock()  # type: ignore[assignment]
        self._is_over = InterruptibleEvent()
        self.add_done_callback(lambda _: self._is_over.set())

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, and return it; see `Future.result`."""
        self._is_over.wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, and return it; see `Future.exception`."""
        self._is_over.wait(timeout)
        return super().exception(0)


@final
class _Lock(_thread.RLock):  # type: ignore[misc]  # it may be, in CPython
    """
    The condition of a future, as far as it is used: none waits for it.

    It is taken and given back by C functions, as a lock itself is.
    """

    def notify_all(self) -> None:
        """Do nothing: `TurnFuture` waits for an event."""

    def wait(self, timeout: float) -> None:
        """Return at once: there is a result, or time is up."""
        assert timeout == 0
