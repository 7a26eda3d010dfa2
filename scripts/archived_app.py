"""What the tests have Spark do, once of each kind; for `scripts/archive_classes`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell how many rows there are."""
    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"count": pa.array([count], pa.int64())})


def take(batch: DataFrame, _: int) -> None:
    """Have Python workers see the rows of a batch."""
    batch.mapInArrow(count_rows, "count long").collect()


def main() -> None:
    """Run a query with state twice, and read its state."""
    spark = (
        SparkSession.builder.config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        rows = spark.range(100).selectExpr(
            "id", "id % 7 AS key", "timestamp_seconds(id) AS seen"
        )
        for number in range(2):
            rows.write.mode("append").json(str(path / "rows"))
            query = (
                spark.readStream.schema(rows.schema)
                .json(str(path / "rows"))
                .withWatermark("seen", "10 minutes")
                .groupBy(F.window("seen", "10 minutes"), "key")
                .agg(F.sum("id"))
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(path / "checkpoint"))
                .trigger(availableNow=True)
                .foreachBatch(take)
                .start()
            )
            query.awaitTermination()
            state = spark.read.format("statestore").load(str(path / "checkpoint"))
            state.write.parquet(str(path / f"state-{number}"))
        spark.read.parquet(str(path / "state-*")).groupBy("partition_id").count().show()
    spark.stop()


if __name__ == "__main__":
    main()
