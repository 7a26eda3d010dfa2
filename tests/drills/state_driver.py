"""
A process that writes batch after batch, as a Spark driver does; for drills.

``python -m tests.drills.state_driver SETTINGS`` takes `DriverSettings` as JSON, writes
what happens as lines of JSON on standard output, each with its time, and goes on until
its standard input ends.  Like a streaming query it keeps in its checkpoint which batch
was committed last, goes on with the next one when it is started again, and is started
again with a new run when a batch has failed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from haservices import HAConfig
from nameservice import NS_PER_SECOND, NameServiceError, SystemClock, configure_logging
from tests.drills.state_writing import JOB, DrillQuery


__all__ = ["DriverSettings", "report"]

_clock: Final = SystemClock()


@frozen(kw_only=True)
class DriverSettings:
    """
    Who writes, and where to.

    Attributes:
        services: The settings of its `HAConfig`.
        query_id: The streaming query.
        checkpoint_file: Holds the last batch that was acknowledged.
        commit_timeout_seconds: How long each step of a batch may take.
        pause_seconds: Between two batches.
        is_complete_every: Each batch whose number this divides holds all rows there
            are; 0 for none.
        job_id: What it writes.
        token: What it shows the proxy.
    """

    services: dict[str, Any]
    query_id: str
    checkpoint_file: str
    commit_timeout_seconds: float
    pause_seconds: float
    is_complete_every: int
    job_id: str = JOB
    token: str | None = None


def report(name: str, **fields: Any) -> None:
    """Write one line, whole."""
    line = json.dumps({"name": name, "at_ns": _clock.now_ns()} | fields) + "\n"
    os.write(1, line.encode())


def read_checkpoint(path: Path) -> int:
    """Return the last batch that was acknowledged, -1 before the first."""
    return int(path.read_text("utf-8")) if path.exists() else -1


def write_checkpoint(path: Path, batch_id: int) -> None:
    """Keep that *batch_id* was acknowledged; all of it or nothing."""
    part = path.with_suffix(".part")
    part.write_text(str(batch_id), "utf-8")
    part.replace(path)


def run(settings: DriverSettings, is_over: threading.Event) -> None:
    """Write until *is_over*."""
    checkpoint = Path(settings.checkpoint_file)
    query = DrillQuery(
        HAConfig(**settings.services),
        query_id=settings.query_id,
        commit_timeout_seconds=settings.commit_timeout_seconds,
        job_id=settings.job_id,
        token=settings.token,
    )
    report("ready")
    while not is_over.is_set():
        batch_id = read_checkpoint(checkpoint) + 1
        began_ns = _clock.now_ns()
        try:
            query.write(
                batch_id,
                is_complete=bool(settings.is_complete_every)
                and batch_id % settings.is_complete_every == 0,
                on_commit=lambda number=batch_id: (  # type: ignore[misc]
                    report("begun", batch_id=number)
                ),
            )
        except NameServiceError as error:
            report(
                "failed",
                batch_id=batch_id,
                error=type(error).__name__,
                detail=str(error),
                seconds=(_clock.now_ns() - began_ns) / NS_PER_SECOND,
            )
            query.begin_run()
        else:
            report(
                "acknowledged",
                batch_id=batch_id,
                seconds=(_clock.now_ns() - began_ns) / NS_PER_SECOND,
            )
            write_checkpoint(checkpoint, batch_id)
        is_over.wait(settings.pause_seconds)


def main(arguments: list[str]) -> None:
    """Be such a process."""
    configure_logging("warning")
    settings = DriverSettings(**json.loads(arguments[0]))
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, name="end", daemon=True).start()
    run(settings, is_over)


if __name__ == "__main__":
    main(sys.argv[1:])
