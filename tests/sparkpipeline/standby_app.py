"""
An application of which tests run several drivers.

``python -m tests.sparkpipeline.standby_app SETTINGS`` takes `StandbySettings` as JSON.
Log events go to standard output, one line of JSON each.  Every batch has `ROW_COUNT`
rows (standby_totals.py); each row adds its number to the total of its key.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from pathlib import Path

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from haservices import HAConfig
from sparkpipeline import StandbyLeadership, run_with_standby
from tests.sparkpipeline.standby_settings import StandbySettings, say
from tests.sparkpipeline.standby_sinks import SINKS


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
        .master(settings.master)
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
        # Of a cluster each driver takes one core of each worker, or the other waits.
        .config("spark.executor.cores", "1")
        .config("spark.cores.max", "2")
        .config("spark.executor.memory", "512m")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )
    config = HAConfig(**settings.services)
    directory = Path(settings.directory)

    def start(
        spark: SparkSession, leadership: StandbyLeadership
    ) -> list[StreamingQuery]:
        queries = [
            SINKS[sink](spark, leadership, settings, config, directory)
            for sink in settings.sinks
        ]
        if settings.tells_progress:
            threading.Thread(target=_tell_progress, args=queries, daemon=True).start()
        return queries

    run_with_standby(
        start,
        config,
        job_id=settings.job_id,
        address=settings.name,
        spark=spark,
        checkpoint_locations=[str(directory / sink) for sink in settings.sinks],
        stop_seconds=settings.stop_seconds,
        hand_over_seconds=settings.hand_over_seconds,
        warm_up_seconds=settings.warm_up_seconds,
    )
    spark.stop()


def _tell_progress(*queries: StreamingQuery) -> None:
    """Say how long the parts of the first batch of each query took."""
    for query in queries:
        while query.isActive:
            progress = query.lastProgress
            if progress is not None and progress["numInputRows"]:
                say("query.progressed", duration_ms=progress["durationMs"])
                break
            threading.Event().wait(0.1)


if __name__ == "__main__":
    main(StandbySettings(**json.loads(sys.argv[1])))
