"""The queries of tests/sparkpipeline/standby_app.py, and what each of them writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.streaming.query import StreamingQuery

from haservices import HAConfig
from nameservice import LeadershipLostError
from sparkpipeline import (
    OperatorContext,
    OperatorFunction,
    StandbyLeadership,
    attach_state,
    publish_state,
    run_operator,
)
from tests.sparkpipeline.standby_settings import StandbySettings, say
from tests.sparkpipeline.standby_totals import (
    KEY_COUNT,
    ROW_COUNT,
    HoldPoint,
    hold_path,
    write_batch,
    write_operator_total,
)


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
    """Keep totals in SQLite, in a transaction that compares epochs and batch ids."""
    del config

    def write(batch: DataFrame, batch_id: int) -> None:
        epoch = leadership.epoch
        say("sink.called", batch_id=batch_id, epoch=epoch)
        rows = [(row.key, row.value) for row in batch.collect()]
        hold(settings, "claimed")
        written = write_batch(
            directory,
            settings.name,
            batch_id,
            epoch,
            rows,
            before_commit=lambda: hold(settings, "transaction"),
        )
        if not written.is_admitted:
            say("sink.refused", batch_id=batch_id, epoch=epoch)
            raise LeadershipLostError(settings.job_id, epoch)
        hold(settings, "written")
        say("sink.written", batch_id=batch_id, epoch=epoch, is_new=written.is_new)

    return (
        _rows(spark)
        .writeStream.foreachBatch(leadership.guard(write))
        .option("checkpointLocation", str(directory / "sqlite"))
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )


def hold(settings: StandbySettings, point: HoldPoint) -> None:
    """Wait at *point* as long as the test has a file there that says so."""
    path = hold_path(Path(settings.directory), settings.name, point)
    if path.exists():
        say("sink.held", point=point)
        while path.exists():
            threading.Event().wait(0.01)


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


def _to_operator(
    spark: SparkSession,
    leadership: StandbyLeadership,
    settings: StandbySettings,
    config: HAConfig,
    directory: Path,
) -> StreamingQuery:
    """Run an operator with state, and keep what it says after each batch."""
    del leadership, config

    def write(batch: DataFrame, batch_id: int) -> None:
        write_operator_total(
            directory, batch_id, sum(row.total for row in batch.collect())
        )
        say("operator.written", batch_id=batch_id)

    return (
        run_operator(
            _rows(spark),
            Add(),
            parallelism=2,
            sink=write,
            output_schema="total long",
        )
        .option("checkpointLocation", str(directory / "operator"))
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )


def _to_attached(
    spark: SparkSession,
    leadership: StandbyLeadership,
    settings: StandbySettings,
    config: HAConfig,
    directory: Path,
) -> StreamingQuery:
    """Attach the state of a query that does not know of Lodestar."""
    location = str(directory / "attached")

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        say("attached.written", batch_id=batch_id)

    query = (
        _totals(spark)
        .writeStream.outputMode("update")
        .foreachBatch(leadership.guard(write))
        .option("checkpointLocation", location)
        .trigger(processingTime=f"{settings.batch_seconds} seconds")
        .start()
    )
    attached = attach_state(
        spark,
        config,
        location,
        job_id=settings.job_id,
        state_name="attached",
        value_names=["total"],
    )
    leadership.when_stopping(attached.stop)
    return query


@final
class Add(OperatorFunction):
    """Keeps the sum of all that it has seen, and gives it on after each batch."""

    def open(self, context: OperatorContext) -> None:
        """Take out the state."""
        self._total = context.operator_state.list_state("total")

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the values of a batch."""
        total = sum(self._total.get())
        for batch in batches:
            total += sum(batch.column("value").to_pylist())
        self._total.update([total])
        yield pa.RecordBatch.from_pydict({"total": pa.array([total], pa.int64())})


SINKS: Final = {
    "sqlite": _to_sqlite,
    "lodestar": _to_lodestar,
    "file": _to_files,
    "operator": _to_operator,
    "attached": _to_attached,
}
"""What starts a query, by the name of its sink, and of its checkpoint."""
