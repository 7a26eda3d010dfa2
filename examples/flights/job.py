"""
The Spark job: replays the flights as a stream, and delivers each partition's summary.

The tasks know nothing of collectors, hosts or ports: they ask
``get_leader_retriever("flights")``, and the configuration of the name service has come
with the job.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights.collector import JOB_ID
from examples.flights.delivery import deliver
from examples.flights.messages import CarrierSummary, PartitionSummary, Receipt
from retrieval import LeaderRetriever
from sparkpipeline import get_leader_retriever


__all__ = [
    "StreamSettings",
    "deliver_from_driver",
    "deliver_from_executors",
    "open_spark",
    "read_replay",
    "start_stream",
    "summarise",
]

PROJECT_DIRECTORY: Final = Path(__file__).parent.parent.parent

_DELIVERY_TIMEOUT_SECONDS: Final = 60.0
_SCHEMA: Final = (
    "dep_time long, dep_delay long, arr_delay long, carrier string, tailnum string, "
    "origin string, dest string, distance long"
)
_RECEIPT_SCHEMA: Final = "receipt string"

DeliverBatch: TypeAlias = Callable[
    [DataFrame, str, int, Callable[[int], None]], Sequence[Receipt]
]


@frozen(kw_only=True)
class StreamSettings:
    """
    What is replayed, and how.

    Attributes:
        stream_id: Names the stream whose batch ids are counted; new with a new
            checkpoint.
        input_directory: Where the files are.
        checkpoint_directory: Where Spark keeps how far it is.
        files_per_batch: How many files make one micro-batch.
    """

    stream_id: str
    input_directory: Path
    checkpoint_directory: Path
    files_per_batch: int


@contextlib.contextmanager
def open_spark(
    settings: Mapping[str, str], *, core_count: int, log_file: Path
) -> Iterator[SparkSession]:
    """
    Start a local Spark whose tasks run in Python workers of their own; stop it on exit.

    Args:
        settings: The ``spark.lodestar.*`` settings.
        core_count: How many tasks run at a time.
        log_file: Where Spark and its workers write what they have to say.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.appName("lodestar-flights")
        # One core per task; a task is tried three times before its batch fails.
        .master(f"local[{core_count},3]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.sql.shuffle.partitions", str(core_count))
        # The workers import this package, wherever the driver was started.
        .config("spark.executorEnv.PYTHONPATH", str(PROJECT_DIRECTORY))
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _stderr_to(log_file):
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def start_stream(
    spark: SparkSession,
    settings: StreamSettings,
    *,
    deliver_batch: DeliverBatch,
    on_begun: Callable[[int], None],
    on_delivered: Callable[[int, Sequence[Receipt]], None],
) -> StreamingQuery:
    """
    Start to replay the files; the query ends by itself when it has read them all.

    Args:
        spark: Where it runs.
        settings: What is replayed.
        deliver_batch: `deliver_from_executors` or `deliver_from_driver`.
        on_begun: Is told of a batch just before its first delivery.
        on_delivered: Is told of a batch when all its deliveries are acknowledged.
    """

    def run_batch(batch: DataFrame, batch_id: int) -> None:
        receipts = deliver_batch(batch, settings.stream_id, batch_id, on_begun)
        on_delivered(batch_id, receipts)

    replay = read_replay(
        spark, settings.input_directory, files_per_batch=settings.files_per_batch
    )
    return (
        replay.writeStream.foreachBatch(run_batch)
        .option("checkpointLocation", str(settings.checkpoint_directory))
        .trigger(availableNow=True)
        .start()
    )


def read_replay(
    spark: SparkSession, directory: Path, *, files_per_batch: int
) -> DataFrame:
    """Return the replayed flights as a stream, some files to a micro-batch."""
    return (
        spark.readStream.schema(_SCHEMA)
        .option("maxFilesPerTrigger", files_per_batch)
        .parquet(str(directory))
    )


def deliver_from_executors(
    batch: DataFrame, stream_id: str, batch_id: int, on_begun: Callable[[int], None]
) -> Sequence[Receipt]:
    """Have each task summarise its partition and deliver it to the leader."""
    on_begun(batch_id)
    task = functools.partial(_deliver_partition, stream_id, batch_id)
    rows = batch.mapInArrow(task, _RECEIPT_SCHEMA).collect()
    return sorted(
        (msgspec.json.decode(row.receipt, type=Receipt) for row in rows),
        key=lambda receipt: receipt.partition_id,
    )


def deliver_from_driver(
    batch: DataFrame, stream_id: str, batch_id: int, on_begun: Callable[[int], None]
) -> Sequence[Receipt]:
    """
    Deliver the same summaries from here.

    For the embedded backend, which does not reach beyond the driver's process.
    """
    table = batch.withColumn("partition_id", spark_partition_id()).toArrow()
    partition_ids = table.column("partition_id")
    retriever = _retriever()
    on_begun(batch_id)
    return [
        deliver(
            PartitionSummary(
                stream_id=stream_id,
                batch_id=batch_id,
                partition_id=partition_id,
                carriers=summarise(
                    table.filter(pa.compute.equal(partition_ids, partition_id))
                ),
            ),
            retriever,
            timeout_seconds=_DELIVERY_TIMEOUT_SECONDS,
        )
        for partition_id in sorted(partition_ids.unique().to_pylist())
    ]


def summarise(flights: pa.Table) -> dict[str, CarrierSummary]:
    """Return *flights* added up by carrier."""
    groups = flights.group_by("carrier").aggregate(
        [
            ([], "count_all"),
            ("dep_time", "count"),
            ("dep_delay", "sum"),
            ("arr_delay", "sum"),
            ("distance", "sum"),
        ]
    )
    return {
        group["carrier"]: CarrierSummary(
            flight_count=group["count_all"],
            cancelled_count=group["count_all"] - group["dep_time_count"],
            # The sum of nothing but unknown delays is unknown, and adds nothing.
            departure_delay_minutes=group["dep_delay_sum"] or 0,
            arrival_delay_minutes=group["arr_delay_sum"] or 0,
            distance_miles=group["distance_sum"] or 0,
        )
        for group in groups.sort_by("carrier").to_pylist()
    }


def _deliver_partition(
    stream_id: str, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run inside a task: add up what it is given, and deliver that."""
    task = TaskContext.get()
    assert task is not None
    held = list(batches)
    summary = PartitionSummary(
        stream_id=stream_id,
        batch_id=batch_id,
        partition_id=task.partitionId(),
        carriers=summarise(pa.Table.from_batches(held)) if held else {},
    )
    receipt = deliver(summary, _retriever(), timeout_seconds=_DELIVERY_TIMEOUT_SECONDS)
    yield pa.RecordBatch.from_pydict(
        {"receipt": [msgspec.json.encode(receipt).decode()]}
    )


def _retriever() -> LeaderRetriever:
    """Return a retriever that has been told of a leader, now or earlier."""
    retriever = get_leader_retriever(JOB_ID)
    retriever.wait_for_leader(_DELIVERY_TIMEOUT_SECONDS)
    return retriever


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Make what is started meanwhile, the JVM and its workers, write to *path*."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
