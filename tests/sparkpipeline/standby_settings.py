"""What a driver of tests/sparkpipeline/standby_app.py is told, and how it answers."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, final

from attrs import asdict, frozen


@final
@frozen(kw_only=True)
class StandbySettings:
    """
    What one driver is told.

    Attributes:
        services: The settings of its `HAConfig`.
        job_id: What the drivers contend for.
        name: Of this driver; its address.
        directory: Of checkpoints and of the database; the same for all of them.
        sinks: Of ``SINKS`` (tests/sparkpipeline/standby_sinks.py).
        master: Of its Spark.
        batch_seconds: A batch begins that often.
        stop_seconds: As `run_with_standby` has it.
        hand_over_seconds: Likewise.
        warm_up_seconds: Likewise.
        tells_progress: Whether it says what Spark says of the first batch of a query.
    """

    services: dict[str, Any]
    job_id: str
    name: str
    directory: str
    sinks: list[str]
    master: str = "local[2]"
    batch_seconds: float = 0.5
    stop_seconds: float = 10.0
    hand_over_seconds: float = 5.0
    warm_up_seconds: float = 60.0
    tells_progress: bool = False

    def to_json(self) -> str:
        """Return it as the one argument of the application."""
        return json.dumps(asdict(self))


def say(event: str, **fields: Any) -> None:
    """Write an event as the application's log does."""
    # As one piece: other threads write, too, and print() writes the end by itself.
    line = json.dumps({"event": event, "timestamp": time.time(), **fields})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
