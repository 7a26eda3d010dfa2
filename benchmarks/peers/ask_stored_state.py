"""
How long it takes to read state that Spark keeps: one key, and all of them.

Workload: a query that counts by key (10,000 keys, RocksDB) has run to its end; Spark's
own ``statestore`` reader is asked for one key and for all, and Lodestar, which holds
the same keys, likewise.  Unit: milliseconds.  Bad: one key less than 1,000 times as
fast.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._state_cluster import JOB, STATE, StateCluster
from benchmarks.peers._interface import VALUE, Row, Rows, key_of, opened
from benchmarks.peers._sizes import Sizes
from benchmarks.peers._spark import spark_session
from queryablestate import QueryableStateClient


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["ask"]

_ONE: Final = "state of a query, one key"
_ALL: Final = "state of a query, all keys"
_LODESTAR: Final = "Lodestar"
_SPARK: Final = "Spark's statestore reader"


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    del is_asked  # the two are what is compared
    rows = Rows()
    count = sizes.key_count
    with ExitStack() as stack:
        sessions = opened(stack, [(_SPARK, spark_session)], rows, _ONE)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(StateCluster(node_count=1))
        keys = [key_of(number) for number in range(count)]
        cluster.write(keys, VALUE, rows_per_batch=count)
        client = stack.enter_context(QueryableStateClient(cluster.url))
        one: dict[str, Callable[[], int]] = {
            _LODESTAR: lambda: client.get(JOB, STATE, keys[-1]) is not None
        }
        every: dict[str, Callable[[], int]] = {
            _LODESTAR: lambda: client.table(JOB, STATE).num_rows
        }
        for spark in sessions.values():
            checkpoint = str(directory / "checkpoint")
            _count(spark, directory, checkpoint, count)
            one[_SPARK] = partial(_read_one, spark, checkpoint, keys[-1])
            every[_SPARK] = partial(_read_all, spark, checkpoint)
        for number in range(-1, sizes.stored_count):
            for question, asked, expected in ((_ONE, one, 1), (_ALL, every, count)):
                for name, action in asked.items():
                    is_short = name == _LODESTAR and question == _ONE
                    for _ in range(sizes.get_count if is_short else 1):
                        began = time.perf_counter()
                        found = action()
                        taken_ms = 1_000 * (time.perf_counter() - began)
                        assert found == expected
                        if number >= 0:
                            rows.add(question, name, "ms", [taken_ms])
    return rows.rows()


def _read_one(spark: SparkSession, checkpoint: str, key: str) -> int:
    state = spark.read.format("statestore").load(checkpoint)
    return len(state.where(f"key.k = '{key}'").collect())


def _read_all(spark: SparkSession, checkpoint: str) -> int:
    return int(spark.read.format("statestore").load(checkpoint).toArrow().num_rows)


def _count(spark: SparkSession, directory: Path, checkpoint: str, count: int) -> None:
    """Run a query that keeps state for *count* keys."""
    source = str(directory / "source")
    spark.range(count).selectExpr("format_string('key-%09d', id) AS k").write.parquet(
        source
    )
    query = (
        spark.readStream.schema("k string")
        .parquet(source)
        .groupBy("k")
        .count()
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
