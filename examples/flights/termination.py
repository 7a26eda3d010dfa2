"""SIGTERM and SIGINT as an exception that never strikes in the middle of a JVM call."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from types import FrameType
from typing import final


__all__ = ["Termination"]


@final
class Termination:
    """
    Ends the main thread with `SystemExit` on SIGTERM or SIGINT, cleanly.

    An exception inside a call of py4j leaves half an answer in its connection, and
    Spark cannot be stopped any more.  So while `deferred`, a signal is only noted.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._noted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_deferred = False
        self.install()

    def install(self) -> None:
        """Take the signals, also from a library that took them since."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def check(self) -> None:
        """
        Return unless a signal was noted.

        Raises:
            SystemExit: With the code that a shell would show.
        """
        if self._number is not None:
            raise SystemExit(128 + self._number)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note signals inside the ``with`` block; raise when it ends."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.check()

    def wait(self) -> None:
        """Return with the first signal since we began, as the end that is wanted."""
        self._is_deferred = True
        self._noted.get()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._number = number
        self._noted.put(number)
        if not self._is_deferred:
            self.check()
