"""Threads of the shipped code that run one at a time, when the simulation says so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["VirtualThread"]


@final
class VirtualThread:
    """
    A thread that runs from one `resume` to its next `pause`, and never otherwise.

    Whoever resumes it waits meanwhile: a run has one order of events.

    Args:
        action: What it does; what that raises is raised by `resume`.

    Attributes:
        is_over: Whether it has done all that it does.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        # Each is held until it is somebody's turn: bare locks hand over fastest.
        self._turn = threading.Lock()
        self._back = threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._failure: BaseException | None = None
        self.is_over = False
        threading.Thread(target=self._run, daemon=True).start()

    def resume(self) -> None:
        """Have it run until it pauses, or is over."""
        if self.is_over:
            return
        self._turn.release()
        self._back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def pause(self) -> None:
        """Let others run until it is resumed; on this thread."""
        self._back.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            self._failure = error
        finally:
            self.is_over = True
            self._back.release()
