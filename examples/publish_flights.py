"""
Publish what a Spark job knows of every aircraft, so that anybody can ask.

Run it as ``python -m examples.publish_flights leaderserver://127.0.0.1:5170``; a second
argument says in how many micro-batches the year of flights comes (default: 100).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from examples.flights.data import write_replay
from sparkpipeline import ha_config, publish_state


COLUMNS = (
    "dep_time long, dep_delay long, arr_delay long, carrier string, tailnum string, "
    "origin string, dest string, distance long"
)


def count_flights(flights: DataFrame) -> DataFrame:
    """Return keyed state: a row for each aircraft, that changes with its flights."""
    return (
        flights.where("tailnum is not null and arr_delay is not null")
        .groupBy("tailnum")
        .agg(
            F.count("*").alias("flights"),
            F.sum("distance").alias("miles"),
            F.max("arr_delay").alias("worst_delay"),
            F.last("dest").alias("last_dest"),
        )
    )


def main(url: str, batch_count: int) -> None:
    """Replay the year; return when all of it is published."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers' Python, too
    builder = SparkSession.builder.config("spark.lodestar.url", url)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", 4)
    with (
        tempfile.TemporaryDirectory() as files,
        tempfile.TemporaryDirectory() as checkpoint,
        builder.getOrCreate() as spark,
    ):
        write_replay(Path(files), file_count=batch_count)
        one_file = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        flights = one_file.parquet(files)

        query = (
            publish_state(
                count_flights(flights),
                ha_config(spark),
                job_id="flights",
                state_name="aircraft",
                key="tailnum",
                output_mode="update",
                on_new_query="replace",
            )
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100)
