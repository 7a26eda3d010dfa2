"""
A Spark application that publishes a batch a second; for drills.

``python -m tests.drills.spark_driver SETTINGS`` takes `SparkSettings` as JSON, writes
what happens as lines of JSON on standard output like tests/drills/state_driver.py, and
goes on until its standard input ends.  Every batch has a row for each key with its own
number, in a value state and a list state: what `tests.drills.state_writing` writes.

Spark tells of a batch when it is over.  So ``begun`` of a batch is reported with the
end of the one before the last: it is surely not too late, and the leader store tells
the moment of the decision more closely.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, final

from attrs import frozen
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from haservices import HAConfig
from nameservice import configure_logging
from sparkpipeline import StateSpec, publish_states
from tests.drills.state_driver import report
from tests.drills.state_writing import JOB, KEYS, LOG, MAX_PARALLELISM, ROWS


__all__ = ["SparkSettings"]

_AHEAD: Final = 2


@frozen(kw_only=True)
class SparkSettings:
    """
    What the application writes, and where to.

    Attributes:
        services: The settings of its `HAConfig`.
        checkpoint_directory: Of the streaming query.
        batch_seconds: A batch begins that often.
        commit_timeout_seconds: How long each batch may take.
    """

    services: dict[str, Any]
    checkpoint_directory: str
    batch_seconds: float
    commit_timeout_seconds: float


@final
class _Reporter(StreamingQueryListener):
    """Reports each batch that is over."""

    # ruff: noqa: N802 (Spark's names)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Report the first batches as begun."""
        for batch_id in range(_AHEAD):
            report("begun", batch_id=batch_id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch as acknowledged, and the one after the next as begun."""
        batch_id = event.progress.batchId
        report("begun", batch_id=batch_id + _AHEAD)
        report(
            "acknowledged",
            batch_id=batch_id,
            seconds=event.progress.batchDuration / 1_000,
        )

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Report a query that has failed."""
        if event.exception is not None:
            report("failed", error="StreamingQueryException", detail=event.exception)


def run(settings: SparkSettings) -> None:
    """Publish until standard input ends."""
    spark = (
        SparkSession.builder.appName("lodestar-drill")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.streams.addListener(_Reporter())
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", len(KEYS))
        .option("numPartitions", 2)
        .load()
    )
    # Row i of batch n is number n * len(KEYS) + i, also when the batch comes again.
    rows = numbers.select(
        F.format_string("key-%03d", F.col("value") % len(KEYS)).alias("key"),
        F.floor(F.col("value") / len(KEYS)).cast("bigint").alias("batch"),
    )
    query = (
        publish_states(
            rows,
            HAConfig(**settings.services),
            [
                StateSpec(
                    state_name=ROWS, key="key", columns="batch", order_by="batch"
                ),
                StateSpec(state_name=LOG, key="key", kind="list", columns="batch"),
            ],
            job_id=JOB,
            output_mode="append",
            max_parallelism=MAX_PARALLELISM,
            commit_timeout_seconds=settings.commit_timeout_seconds,
        )
        .option("checkpointLocation", settings.checkpoint_directory)
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )
    report("ready")
    sys.stdin.read()
    query.stop()
    spark.stop()


def main(arguments: list[str]) -> None:
    """Be such an application."""
    configure_logging("warning")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    run(SparkSettings(**json.loads(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
