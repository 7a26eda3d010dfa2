"""`HealthChecker`: runs the health check of ``lodestar elect`` on its own thread."""

from __future__ import annotations

import os
import queue
import signal
import threading
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from lodestar.guarded_command import GuardedCommand
from lodestar.health import (
    CheckEnded,
    HealthCore,
    KillCheck,
    StartCheck,
    TellFailing,
    TellPassing,
    TimeWentOn,
)
from nameservice import NS_PER_SECOND, SystemClock, get_logger
from nameservice.interruptible import InterruptibleQueue


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from lodestar.health import HealthConfig, HealthEvent


__all__ = ["HealthChange", "HealthChecker"]

_SHELL: Final = "/bin/sh"

HealthChange: TypeAlias = TellPassing | TellFailing

_Item: TypeAlias = "HealthEvent | None"


@final
class HealthChecker:
    """
    Checks from when it is entered until it is left; a context manager.

    Args:
        command: A command line for the shell; it passes if it ends with 0.
        config: How it is run.
        tell: Called on the checker's thread when the check passes, or fails, and did
            not before.  It fails until it has passed once.

    Attributes:
        leadership: What the check finds in its environment beside ours.
    """

    def __init__(
        self,
        command: str,
        config: HealthConfig,
        *,
        tell: Callable[[HealthChange], None],
    ) -> None:
        self.leadership: Mapping[str, str] = {}
        self._command = command
        self._tell = tell
        self._clock = SystemClock()
        self._core = HealthCore(config, now_ns=self._clock.now_ns())
        self._events: InterruptibleQueue[_Item] = InterruptibleQueue()
        self._running: GuardedCommand | None = None
        self._unreaped: list[GuardedCommand] = []
        self._is_broken = False
        self._log = get_logger(component="elect")
        self._thread = threading.Thread(target=self._run, name="health-checker")

    @property
    def is_passing(self) -> bool:
        """Return whether the check passes now; any thread may ask."""
        return self._core.is_passing and not self._is_broken

    def __enter__(self) -> HealthChecker:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._events.put(None)
        self._thread.join()

    # -- on the checker's thread -------------------------------------------------------

    def _run(self) -> None:
        try:
            event: _Item = TimeWentOn()
            while event is not None:
                self._step(event)
                event = self._next()
        except Exception:  # noqa: BLE001 - see below
            # What is not checked any more must not be taken to be well.
            self._is_broken = True
            self._log.exception("health.broken")
            self._tell(TellFailing())
        finally:
            if self._running is not None:
                self._running.close()

    def _next(self) -> _Item:
        deadline_ns = self._core.next_deadline_ns()
        timeout_seconds = None
        if deadline_ns is not None:
            left_ns = max(deadline_ns - self._clock.now_ns(), 0)
            timeout_seconds = left_ns / NS_PER_SECOND
        try:
            return self._events.get(timeout=timeout_seconds)
        except queue.Empty:
            return TimeWentOn()

    def _step(self, event: HealthEvent) -> None:
        if isinstance(event, CheckEnded):
            self._ended(event)
        for effect in self._core.step(event, now_ns=self._clock.now_ns()):
            match effect:
                case StartCheck():
                    self._start()
                case KillCheck():
                    assert self._running is not None
                    self._log.warning("health.timed_out")
                    self._running.signal(signal.SIGKILL)
                case TellPassing():
                    self._log.info("health.passed")
                    self._tell(effect)
                case TellFailing():
                    self._log.warning(
                        "health.failed", failure_count=self._core.failure_count
                    )
                    self._tell(effect)
                case _:
                    assert_never(effect)

    def _start(self) -> None:
        self._unreaped = [each for each in self._unreaped if not each.reap()]
        try:
            self._running = GuardedCommand(
                [_SHELL, "-c", self._command],
                environment={**os.environ, **self.leadership},
                on_over=lambda code: self._events.put(CheckEnded(return_code=code)),
                is_aside=True,
            )
        except OSError as error:
            # No process can be started: a machine in that state does not lead.
            self._log.warning("health.unstarted", error=str(error))
            self._events.put(CheckEnded(return_code=-signal.SIGKILL))

    def _ended(self, event: CheckEnded) -> None:
        if event.return_code != 0:
            self._log.info("health.check_failed", return_code=event.return_code)
        running, self._running = self._running, None
        if running is not None:
            running.close()
            self._unreaped.append(running)
