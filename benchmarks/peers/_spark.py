"""A Spark session for the questions that need one, and streams that read files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from benchmarks.peers._interface import AbsentError


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


__all__ = ["SCHEMA", "Stream", "spark_session"]

SCHEMA: Final = "k string, id long, d double, s string"
_ROOT: Final = Path(__file__).parent.parent.parent


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Start Spark with two cores of this machine."""
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 (an extra, and slow)
    except ImportError as error:
        raise AbsentError("no pyspark: install the extra 'spark'") from error
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers unpickle functions of ours by the names of their modules.
    os.environ["PYTHONPATH"] = str(_ROOT)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        # By default Spark forks a process for each file that it looks at here.
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileSystemBasedCheckpointFileManager",
        )
        .config("spark.sql.streaming.pollingDelay", "50ms")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("FATAL")
    try:
        yield spark
    finally:
        spark.stop()


@final
class Stream:
    """One streaming query over a directory of Parquet files."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        write: Callable[[DataFrame], DataStreamWriter],
    ) -> None:
        self._source = directory / "source"
        self._source.mkdir(parents=True)
        frame = spark.readStream.schema(SCHEMA).parquet(str(self._source))
        self.query = (
            write(frame)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )

    def give(self, files: Sequence[Path]) -> None:
        """Have the query see *files*."""
        for file in files:
            os.link(file, self._source / file.name)

    def batch_ms(self, files: Sequence[Path]) -> float:
        """Process *files*; return the milliseconds that Spark's ``addBatch`` took."""
        self.give(files)
        self.query.processAllAvailable()
        newest = [one for one in self.query.recentProgress if one["numInputRows"]][-1]
        return float(newest["durationMs"]["addBatch"])
