"""Drivers of tests/sparkpipeline/standby_app.py as processes that a test can fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

from haservices import HAConfig
from tests.drills.processes import Process
from tests.sparkpipeline.standby_settings import StandbySettings


WAIT_SECONDS: Final = 150.0


@final
class StandbyDriver(Process):
    """
    One driver: Python and its JVM, which are one process group.

    Args:
        config: The name service.
        directory: What all drivers share.
        name: Of this one.
        job_id: What they contend for.
        sinks: What it writes.
        settings: Others of `StandbySettings`.
    """

    def __init__(
        self,
        config: HAConfig,
        directory: Path,
        name: str,
        *,
        job_id: str,
        sinks: Sequence[str] = ("sqlite",),
        **settings: Any,
    ) -> None:
        told = StandbySettings(
            services=config.to_settings(),
            job_id=job_id,
            name=name,
            directory=str(directory),
            sinks=list(sinks),
            **settings,
        )
        self.name = name
        super().__init__(
            [
                sys.executable,
                "-u",
                "-m",
                "tests.sparkpipeline.standby_app",
                told.to_json(),
            ],
            log_file=directory / f"{name}.log",
        )

    def events(self) -> list[dict[str, Any]]:
        """Return what it has said so far."""
        return _events(self.lines)

    def wait_for(
        self, event: str, count: int = 1, timeout_seconds: float = WAIT_SECONDS
    ) -> list[dict[str, Any]]:
        """Return all of one event as soon as there are *count*."""

        def found(lines: list[str]) -> list[dict[str, Any]]:
            return [one for one in _events(lines) if one["event"] == event]

        return found(
            self.wait_for_line(
                lambda lines: len(found(lines)) >= count, timeout_seconds
            )
        )

    def count(self, event: str) -> int:
        """Return how often it has said *event*."""
        return sum(one["event"] == event for one in self.events())

    def kill(self) -> int:
        """End Python and the JVM with SIGKILL.  Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return super().kill()

    def pause(self) -> None:
        """Stop Python and the JVM (SIGSTOP)."""
        os.killpg(self.pid, signal.SIGSTOP)
        super().pause()

    def resume(self) -> int:
        """Make both go on (SIGCONT)."""
        resumed_ns = super().resume()
        os.killpg(self.pid, signal.SIGCONT)
        return resumed_ns

    def wait_until_ended(self) -> int:
        """Return the exit code of Python."""
        return self._process.wait(WAIT_SECONDS)


def _events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]
