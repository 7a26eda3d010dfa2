"""
The throw-away query by which a standby is warm before it leads.

It uses what an application is likely to use: a streaming aggregation over the session's
state store, ``foreachBatch``, Python workers over Arrow.  Five batches are enough:
after them no batch was faster than the one before (measured with pyspark 4.3).
"""

from __future__ import annotations

import importlib
import tempfile
import threading
from typing import TYPE_CHECKING, Final, final

from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["WarmUp"]

_BATCH_COUNT: Final = 5
_ROW_COUNT: Final = 100
# Spark's own default is 200, each with a state store: a minute of two processors, and
# no more classes and plans than two have.
_PARTITION_COUNT: Final = 2


@final
class WarmUp:
    """
    A warm-up that can be ended from another thread.

    Args:
        spark: What to warm.
        more: What the application warms besides.
    """

    def __init__(
        self, spark: SparkSession, more: Callable[[SparkSession], object] | None
    ) -> None:
        self._spark = spark
        self._more = more
        self._lock = threading.Lock()
        self._query: StreamingQuery | None = None
        self._is_abandoned = False

    def run(self) -> None:
        """Warm up; return when it is done or abandoned.  Raises what fails."""
        # Tasks of a local session see the driver's files.  Others need no state store
        # for a warm-up, and might not see a checkpoint that is made here.
        is_local = (self._spark.sparkContext.master or "").startswith("local")
        with tempfile.TemporaryDirectory(
            prefix="lodestar-warm-up-", ignore_cleanup_errors=True
        ) as directory:
            self._run_query(directory, has_state=is_local)
        if self._more is not None and not self._is_abandoned:
            self._more(self._spark)

    def abandon(self) -> None:
        """End it; idempotent."""
        with self._lock:
            self._is_abandoned = True
            query = self._query
        if query is not None:
            query.stop()

    def _run_query(self, directory: str, *, has_state: bool) -> None:
        is_done = InterruptibleEvent()

        def work(batch: DataFrame, batch_id: int) -> None:
            batch.mapInArrow(_pass_on, batch.schema).collect()
            if batch_id + 1 >= _BATCH_COUNT:
                is_done.set()

        # Its own, so that the application's settings stay what they are.
        spark = self._spark.newSession()
        for name, value in self._spark.conf.getAll.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        spark.conf.set("spark.sql.shuffle.partitions", _PARTITION_COUNT)
        rows = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", _ROW_COUNT)
            .option("numPartitions", _PARTITION_COUNT)
            .load()
            .select((F.col("value") % _ROW_COUNT).alias("key"), F.col("value"))
        )
        if has_state:
            rows = rows.groupBy("key").agg(F.max("value").alias("value"))
        writer = rows.writeStream.outputMode(
            "update" if has_state else "append"
        ).foreachBatch(work)
        if has_state:
            writer = writer.option("checkpointLocation", directory)
        with self._lock:
            if self._is_abandoned:
                return
            self._query = query = writer.start()
        try:
            while not is_done.wait(0.1) and query.isActive:
                pass
        finally:
            query.stop()
        if not is_done.is_set() and not self._is_abandoned:
            error = query.exception()
            if error is not None:
                raise error


def _pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # What tasks of Lodestar's sinks use: half a second of each worker's first batch.
    importlib.import_module("sparkpipeline.state.staging")
    yield from batches
