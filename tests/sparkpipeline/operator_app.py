"""
A driver that runs an operator, and kills itself in the middle of a batch.

It dies in the sink of its second batch: the manifest is there, and Spark knows nothing
of it yet.  The test that runs it goes on from its checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sparkpipeline import OperatorContext, OperatorFunction, run_operator
from tests.sparkpipeline.state_cluster import Feed


WAIT_SECONDS = 120


class Remember(OperatorFunction):
    """Keeps every number that it sees, and gives on what it saw where and when."""

    SCHEMA = "n long, operator_index int, batch_id long"

    def open(self, context: OperatorContext) -> None:
        """Take out the states."""
        self.context = context
        store = context.operator_state
        self.seen = store.list_state("seen")
        first_seen_by = store.union_list_state("first_seen_by")
        if not len(first_seen_by):
            first_seen_by.add(("subtask", context.operator_index))
        store.broadcast_state("newest").put("batch_id", context.batch_id)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Keep the numbers."""
        for batch in batches:
            numbers = batch.column("n").to_pylist()
            for number in numbers:
                self.seen.add((number, {"batch": self.context.batch_id}))
            count = len(numbers)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(numbers, pa.int64()),
                    pa.array([self.context.operator_index] * count, pa.int32()),
                    pa.array([self.context.batch_id] * count, pa.int64()),
                ],
                names=["n", "operator_index", "batch_id"],
            )


def main(directory: Path) -> None:
    """Run until the second batch."""
    spark = (
        SparkSession.builder.appName("operator")
        .master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
        .getOrCreate()
    )

    def sink(batch: DataFrame, batch_id: int) -> None:
        print(batch_id, sorted(row.n for row in batch.collect()), flush=True)
        if batch_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    feed = Feed(spark, directory / "input", "n long", is_new=False)
    query = (
        run_operator(
            feed.frame(),
            Remember(),
            parallelism=2,
            sink=sink,
            output_schema=Remember.SCHEMA,
        )
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(WAIT_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
