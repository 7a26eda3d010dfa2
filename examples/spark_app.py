"""
A Spark app whose tasks find the leader of job ``flights``.

Run it as ``python examples/spark_app.py leaderserver://127.0.0.1:5170``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from sparkpipeline import get_leader_retriever


def deliver(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run inside a task: the configuration has come with the job."""
    leader = get_leader_retriever("flights").wait_for_leader(timeout_seconds=10)
    for batch in batches:
        text = f"{batch.num_rows} rows go to {leader.address}, epoch {leader.epoch}"
        yield pa.RecordBatch.from_pydict({"what": [text]})


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python too
    builder = SparkSession.builder.config("spark.lodestar.url", sys.argv[1])
    with builder.getOrCreate() as spark:
        spark.range(100).mapInArrow(deliver, "what string").show(truncate=False)
