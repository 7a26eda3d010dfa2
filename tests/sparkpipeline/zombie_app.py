"""
One of two drivers that run the same query from the same checkpoint; run by its test.

Each writes two batches.  The one that is called ``zombie`` waits in the tasks of its
second batch until the test has it go on; by then the other one has written it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from haservices import HAConfig
from nameservice import NameServiceError
from sparkpipeline import publish_state
from tests.sparkpipeline.state_cluster import Feed


WAIT_SECONDS = 120


def main(url: str, job_id: str, directory: Path, name: str) -> None:
    """Write what there is, and say how it ended."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.appName(name)
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )
    waits, may_go = str(directory / "zombie.waits"), str(directory / "zombie.go")
    is_zombie = name == "zombie"

    def hold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if is_zombie and 2 in batch.column("n").to_pylist():
                Path(waits).touch()
                for _ in range(WAIT_SECONDS * 20):
                    if Path(may_go).exists():
                        break
                    threading.Event().wait(0.05)  # a worker is not told of a file
            yield batch

    feed = Feed(spark, directory / "input", "k string, n long", is_new=is_zombie)
    if is_zombie:
        feed.add({"k": "a", "n": 1})
        feed.add({"k": "a", "n": 2})
    query = (
        publish_state(
            feed.frame().mapInArrow(hold, "k string, n long"),
            HAConfig(url=url),
            job_id=job_id,
            state_name="log",
            key="k",
            kind="list",
            output_mode="append",
        )
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(WAIT_SECONDS)
        print("done")
    except NameServiceError as error:
        print(str(error))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
