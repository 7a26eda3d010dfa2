"""
What publishing adds to a micro-batch, and how fresh is what is read.

Workload: streams of Parquet files (string key, long, double, 32-character string) into
Spark's noop sink, into two nodes of Lodestar by ``publish_state``, and into Redis by
pipelines of ``HSET`` from ``foreachPartition``; ``local[2]``; batches of 10 to
1,000,000 rows, by turns.  Unit: milliseconds of Spark's ``addBatch``, that of the noop
sink among them.  Bad: more than 250 ms of processor, or not 3 times as fast as Redis,
for 100,000.

Freshness: one row is written; until a client that asks again and again gets it.  Flink
gets the row over a socket and no file, so most of what the others wait for is Spark.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from benchmarks._state_cluster import StateCluster
from benchmarks.peers._install import clients_directory
from benchmarks.peers._interface import Row, Rows, opened
from benchmarks.peers._sizes import Sizes
from benchmarks.peers._spark import Stream, spark_session
from benchmarks.peers.flink import flink_reader
from benchmarks.peers.redis import redis_module, redis_server
from queryablestate import QueryableStateClient
from sparkpipeline import publish_state


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


__all__ = ["ask"]

_STATE: Final = "state"
_KEY: Final = "fresh"
_FRESHNESS: Final = "from an event to the answer"
_PER_PIPELINE: Final = 1_000
_FLOOR: Final = "floor: Spark's noop sink"
_LODESTAR: Final = "Lodestar"
_REDIS: Final = "Redis 7, redis-py"
_FLINK: Final = "Flink 1.10.3"
_WARM_UP_COUNT: Final = 2

Sink: TypeAlias = "Callable[[DataFrame], DataStreamWriter]"
Sinks: TypeAlias = dict[str, Callable[[str], Sink]]
"""A sink for each peer, by the name of a stream."""


def _publish_to_redis(port: int, directory: str) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch``."""

    def publish_partition(rows: Iterator[Any]) -> None:
        import sys  # noqa: PLC0415 (runs in Spark's worker)

        if directory not in sys.path:
            sys.path.append(directory)
        import importlib  # noqa: PLC0415 (as above)

        client = importlib.import_module("redis").Redis(port=port)
        pipeline = client.pipeline(transaction=False)
        for index, row in enumerate(rows, 1):
            values = {"id": row.id, "d": row.d, "s": row.s}
            pipeline.hset(row.k, mapping=values)
            if index % _PER_PIPELINE == 0:
                pipeline.execute()
        pipeline.execute()
        client.close()

    def publish(frame: DataFrame, _: int) -> None:
        frame.foreachPartition(publish_partition)

    return publish


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    with ExitStack() as stack:
        question = f"publish {sizes.publishings[0][0]:,} rows"
        found = opened(stack, [(_LODESTAR, spark_session)], rows, question)
        if not found:
            return rows.rows()
        spark = found[_LODESTAR]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(StateCluster(node_count=2))
        sinks: Sinks = {
            _FLOOR: lambda _: _to_noop,
            _LODESTAR: partial(_to_lodestar, cluster.url),
        }
        ports = {}
        if is_asked(_REDIS):
            servers = opened(stack, [(_REDIS, redis_server)], rows, question)
            ports = {name: port for name, (port, _) in servers.items()}
        for name, port in ports.items():
            sinks[name] = partial(_to_redis, port)
        for count, round_count in sizes.publishings:
            _publish(
                spark, directory, sinks, rows, count=count, round_count=round_count
            )
        del sinks[_FLOOR]
        ask_row: dict[str, Callable[[], object]] = {}
        client = stack.enter_context(QueryableStateClient(cluster.url))
        ask_row[_LODESTAR] = lambda: (
            found["id"] if (found := client.get("fresh", _STATE, _KEY)) else None
        )
        for name, port in ports.items():
            redis = stack.enter_context(redis_module().Redis(port=port))
            ask_row[name] = partial(_id_in_redis, redis)
        _freshen(spark, directory, sinks, ask_row, rows, count=sizes.fresh_count)
    if is_asked(_FLINK):
        _freshen_flink(rows, sizes.fresh_count)
    return rows.rows()


def _id_in_redis(redis: Any) -> int:
    return int(redis.hget(_KEY, "id") or -1)


def _to_noop(frame: DataFrame) -> DataStreamWriter:
    return frame.writeStream.format("noop").outputMode("update")


def _to_lodestar(url: str, name: str) -> Sink:
    def write(frame: DataFrame) -> DataStreamWriter:
        return publish_state(
            frame, url, job_id=name, state_name=_STATE, key="k", output_mode="update"
        )

    return write


def _to_redis(port: int, _: str) -> Sink:
    publish = _publish_to_redis(port, str(clients_directory()))

    def write(frame: DataFrame) -> DataStreamWriter:
        return frame.writeStream.foreachBatch(publish).outputMode("update")

    return write


def _publish(
    spark: SparkSession,
    directory: Path,
    sinks: Sinks,
    rows: Rows,
    *,
    count: int,
    round_count: int,
) -> None:
    """Publish batches of *count* rows by turns."""
    question = f"publish {count:,} rows"
    place = directory / str(count)
    streams = {
        name: Stream(spark, place / str(index), sink(f"publish-{count}"))
        for index, (name, sink) in enumerate(sinks.items())
    }
    for number in range(-_WARM_UP_COUNT, round_count):
        files = _files(spark, place / f"batch-{number}", number, count)
        for name, stream in streams.items():
            taken_ms = stream.batch_ms(files)
            if number >= 0:
                at = ("publishing", "rows", count)
                rows.add(question, name, "ms", [taken_ms], at=at)
    for stream in streams.values():
        stream.query.stop()


def _files(spark: SparkSession, path: Path, number: int, count: int) -> list[Path]:
    """Write the files of one batch aside."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (an extra)

    first = (number + _WARM_UP_COUNT) * count
    spark.range(first, first + count, numPartitions=2).select(
        F.concat(F.lit("key-"), F.col("id").cast("string")).alias("k"),
        F.col("id"),
        (F.col("id") * 1.5).alias("d"),
        F.md5(F.col("id").cast("string")).alias("s"),
    ).write.parquet(str(path))
    return sorted(path.glob("*.parquet"))


def _freshen(
    spark: SparkSession,
    directory: Path,
    sinks: Sinks,
    ask_row: dict[str, Callable[[], object]],
    rows: Rows,
    *,
    count: int,
) -> None:
    """Write one row at a time, and ask until it is answered."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 (an extra)

    place = directory / "fresh"
    streams = {
        name: Stream(spark, place / str(index), sink("fresh"))
        for index, (name, sink) in enumerate(sinks.items())
    }
    for number in range(-_WARM_UP_COUNT, count):
        path = place / f"event-{number}"
        event = number + _WARM_UP_COUNT
        spark.range(event, event + 1, numPartitions=1).select(
            F.lit(_KEY).alias("k"),
            F.col("id"),
            F.lit(1.5).alias("d"),
            F.lit("s").alias("s"),
        ).write.parquet(str(path))
        files = sorted(path.glob("*.parquet"))
        for name, stream in streams.items():
            if number == -_WARM_UP_COUNT:
                # Before the first batch there is no such state.
                stream.batch_ms(files)
                continue
            began = time.perf_counter()
            stream.give(files)
            while ask_row[name]() != event:
                pass
            if number >= 0:
                taken = time.perf_counter() - began
                rows.add(_FRESHNESS, name, "ms", [1_000 * taken])
    for stream in streams.values():
        stream.query.stop()


def _freshen_flink(rows: Rows, count: int) -> None:
    with ExitStack() as stack:
        readers = opened(stack, [(_FLINK, flink_reader)], rows, _FRESHNESS)
        for name, reader in readers.items():
            reader.load(1)
            rows.note(_FRESHNESS, name, "the event comes over a socket")
            for number in range(count):
                began_ns = time.monotonic_ns()
                reader.update(_KEY, str(number))
                taken_ns = int(reader.order("until", _KEY, number)) - began_ns
                rows.add(_FRESHNESS, name, "ms", [taken_ns / 1_000_000])
