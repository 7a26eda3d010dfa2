"""
A Spark driver of which the demo runs two: one leads, and the other one stands by.

``python -m examples.flights.driver --name N --input D --checkpoint C`` publishes what
each carrier has flown, from the files in D; the name service comes in the environment.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.job import PROJECT_DIRECTORY, read_replay
from examples.flights.states import CARRIERS, start_state_stream
from haservices import HAConfig
from nameservice import configure_logging
from sparkpipeline import StandbyLeadership, run_with_standby


__all__ = ["DRIVER_JOB_ID"]

DRIVER_JOB_ID: Final = "flights-standby"

_STATE_STORE: Final = "spark.sql.streaming.stateStore"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state"


def main() -> None:
    """Lead or stand by until told to end."""
    parser = argparse.ArgumentParser(description="Be one of two Spark drivers.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--files-per-batch", type=int, required=True)
    arguments = parser.parse_args()
    configure_logging("warning")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName("flights")
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.executorEnv.PYTHONPATH", str(PROJECT_DIRECTORY))
        .config(f"{_STATE_STORE}.checkpointFormatVersion", "2")
        .config(
            f"{_STATE_STORE}.providerClass", f"{_ROCKSDB}.RocksDBStateStoreProvider"
        )
        .getOrCreate()
    )

    def application(
        spark: SparkSession, _leadership: StandbyLeadership
    ) -> StreamingQuery:
        replay = read_replay(
            spark, arguments.input, files_per_batch=arguments.files_per_batch
        )
        return start_state_stream(
            replay,
            CARRIERS,
            HAConfig.load(),
            arguments.checkpoint,
            job_id=DRIVER_JOB_ID,
            goes_on=True,
        )

    run_with_standby(
        application,
        job_id=DRIVER_JOB_ID,
        address=arguments.name,
        spark=spark,
        checkpoint_locations=[str(arguments.checkpoint)],
    )
    spark.stop()


def _end_with_parent() -> None:
    """End as after SIGTERM when standard input does, which is our parent's."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
