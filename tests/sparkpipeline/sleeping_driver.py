"""A driver that falls asleep between Spark's reading of the checkpoint and a batch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from sparkpipeline.batch_guard import guard_starts
from tests.recording import wait_until
from tests.sparkpipeline.state_cluster import TIMEOUT_SECONDS


if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from sparkpipeline.batch_guard import BatchFunction


__all__ = ["SleepingDriver", "is_drawn"]


@final
class SleepingDriver:
    """Runs a query, and sleeps before its first batch until it is woken."""

    def __init__(self) -> None:
        self._asleep = threading.Event()
        self._awake = threading.Event()

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start a query of ours."""
        guard_starts(self._slept)
        try:
            return writer.start()
        finally:
            guard_starts(None)

    def wait_until_asleep(self) -> None:
        """Return when the first batch is due, and the epoch of its run is drawn."""
        assert self._asleep.wait(TIMEOUT_SECONDS)
        wait_until(is_drawn)

    def wake(self) -> None:
        """Have it go on.  Idempotent."""
        self._awake.set()

    def _slept(self, function: BatchFunction) -> BatchFunction:
        def run(batch: DataFrame, batch_id: int) -> None:
            self._asleep.set()
            assert self._awake.wait(TIMEOUT_SECONDS)
            function(batch, batch_id)

        return run


def is_drawn() -> bool:
    """Return whether no epoch is being drawn for a query that was started."""
    return all(one.name != "run-birth" for one in threading.enumerate())
