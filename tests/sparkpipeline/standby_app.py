"""
An application of which tests run several drivers.

``python -m tests.sparkpipeline.standby_app SETTINGS`` takes `StandbySettings` as JSON.
Log events go to standard output, one line of JSON each.  Every batch has `ROW_COUNT`
rows; each row adds its number to the total of its key.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any, Final, final

import structlog
from attrs import asdict, frozen
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.query import StreamingQuery

from haservices import HAConfig
from sparkpipeline import StandbyLeadership, publish_state, run_with_standby
from tests.sparkpipeline.standby_totals import KEY_COUNT, ROW_COUNT


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
        sinks: Of ``sqlite``, ``lodestar`` and ``file``.
        batch_seconds: A batch begins that often.
        stop_seconds: As `run_with_standby` has it.
        warm_up_seconds: Likewise.
    """

    services: dict[str, Any]
    job_id: str
    name: str
    directory: str
    sinks: list[str]
    batch_seconds: float = 0.5
    stop_seconds: float = 10.0
    warm_up_seconds: float = 60.0

    def to_json(self) -> str:
        """Return it as the one argument of the application."""
        return json.dumps(asdict(self))


def main(settings: StandbySettings) -> None:
    """Be one of the drivers."""
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stdout),
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("standby-app")
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
            "true",
        )
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )
    config = HAConfig(**settings.services)
    directory = Path(settings.directory)

    def start(
        spark: SparkSession, leadership: StandbyLeadership
    ) -> list[StreamingQuery]:
        return [
            _SINKS[sink](spark, leadership, settings, config, directory)
            for sink in settings.sinks
        ]

    run_with_standby(
        start,
        config,
        job_id=settings.job_id,
        address=settings.name,
        spark=spark,
        checkpoint_locations=[str(directory / sink) for sink in settings.sinks],
        stop_seconds=settings.stop_seconds,
        warm_up_seconds=settings.warm_up_seconds,
    )
    spark.stop()


def _rows(spark: SparkSession) -> DataFrame:
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROW_COUNT)
        .option("numPartitions", 2)
        .load()
    )
    return numbers.select(
        F.format_string("k%d", F.col("value") % KEY_COUNT).alias("key"), "value"
    )


def _totals(spark: SparkSession) -> DataFrame:
    return _rows(spark).groupBy("key").agg(F.sum("value").alias("total"))


def _to_sqlite(
    spark: SparkSession,
    leadership: StandbyLeadership,
    settings: StandbySettings,
    config: HAConfig,
    directory: Path,
) -> StreamingQuery:
    """Keep totals in SQLite, each with the epoch under which it was written."""
    del config

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [(row.key, row.value) for row in batch.collect()]
        _say("sink.called", batch_id=batch_id, epoch=leadership.epoch)
        with sqlite3.connect(directory / "totals.sqlite", timeout=60.0) as database:
            database.execute("BEGIN IMMEDIATE")
            done = database.execute(
                "SELECT 1 FROM batches WHERE batch_id = ?", (batch_id,)
            ).fetchone()
            database.execute(
                "INSERT INTO calls (batch_id, epoch) VALUES (?, ?)",
                (batch_id, leadership.epoch),
            )
            if done is None:
                database.execute(
                    "INSERT INTO batches (batch_id, epoch, name) VALUES (?, ?, ?)",
                    (batch_id, leadership.epoch, settings.name),
                )
                database.executemany(
                    "INSERT INTO totals (key, total) VALUES (?, ?) ON CONFLICT (key) "
                    "DO UPDATE SET total = total + excluded.total",
                    rows,
                )
        _say("sink.written", batch_id=batch_id, epoch=leadership.epoch)

    return (
        _rows(spark)
        .writeStream.foreachBatch(leadership.guard(write))
        .option("checkpointLocation", str(directory / "sqlite"))
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )


def _to_lodestar(
    spark: SparkSession,
    leadership: StandbyLeadership,
    settings: StandbySettings,
    config: HAConfig,
    directory: Path,
) -> StreamingQuery:
    """Publish the totals that Spark's own state has."""
    del leadership
    return (
        publish_state(
            _totals(spark),
            config,
            job_id=settings.job_id,
            state_name="totals",
            key="key",
            output_mode="update",
        )
        .option("checkpointLocation", str(directory / "lodestar"))
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )


def _to_files(
    spark: SparkSession,
    leadership: StandbyLeadership,
    settings: StandbySettings,
    config: HAConfig,
    directory: Path,
) -> StreamingQuery:
    """Write the rows with Spark's own sink, which no guard is around."""
    del leadership, config
    return (
        _rows(spark)
        .writeStream.format("parquet")
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "file"))
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )


_SINKS: Final = {"sqlite": _to_sqlite, "lodestar": _to_lodestar, "file": _to_files}


def _say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


if __name__ == "__main__":
    main(StandbySettings(**json.loads(sys.argv[1])))
