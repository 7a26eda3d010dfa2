"""Stateful queries whose state is attached, and Spark's own word on what is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.recording import wait_until
from tests.sparkpipeline.state_cluster import TIMEOUT_SECONDS, run_to_end


_STREAMING = "spark.sql.streaming"
_STATE = "org.apache.spark.sql.execution.streaming.state"
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_CHANGE = re.compile(r"(\d+)(?:_[^/]*)?\.(?:changelog|delta|zip|snapshot)")


def keep_state(
    spark: SparkSession, *, in_rocksdb: bool = True, has_changelog: bool = True
) -> None:
    """Have the queries of a session keep their state like that, and quickly."""
    provider = "RocksDBStateStoreProvider"
    if not in_rocksdb:
        provider = "HDFSBackedStateStoreProvider"
    settings = {
        "stateStore.providerClass": f"{_STATE}.{provider}",
        "stateStore.rocksdb.changelogCheckpointing.enabled": str(has_changelog).lower(),
        # A log file costs the default one 35 ms on a local disk.
        "checkpointFileManagerClass": (
            f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager"
        ),
    }
    for name, value in settings.items():
        spark.conf.set(f"{_STREAMING}.{name}", value)


@frozen
class Attached:
    """A checkpoint: of a query that keeps state, and writes nothing."""

    spark: SparkSession
    checkpoint: Path
    options: dict[str, Any] = field(factory=dict)

    def writer(self, frame: DataFrame, output_mode: str = "update") -> DataStreamWriter:
        """Return what would run *frame*, if it is started."""
        return (
            frame.writeStream.outputMode(output_mode)
            .format("noop")
            .option("checkpointLocation", str(self.checkpoint))
        )

    def run(self, frame: DataFrame, output_mode: str = "update") -> int:
        """Run *frame* until it has read everything; return the last batch."""
        run_to_end(self.writer(frame, output_mode), self.checkpoint)
        return self.newest()

    @contextmanager
    def running(self, frame: DataFrame) -> Iterator[StreamingQuery]:
        """Run *frame* as long as the block."""
        query = self.writer(frame).start()
        try:
            yield query
        finally:
            query.stop()
            assert query.awaitTermination(TIMEOUT_SECONDS) is not None

    def committed(self) -> list[int]:
        """Return the batches that are committed and kept."""
        names = [path.name for path in (self.checkpoint / "commits").glob("[0-9]*")]
        return sorted(map(int, names))

    def newest(self) -> int:
        """Return the last committed batch."""
        return self.committed()[-1]

    def run_until_read(self, frame: DataFrame, file_count: int) -> int:
        """
        Run *frame* until it has read that many files; return the last batch.

        For queries with timers or a TTL: they go on with empty batches for ever.
        """
        with self.running(frame) as query:

            def has_read() -> bool:
                assert query.exception() is None
                if not self.committed():
                    return False
                offsets = self.checkpoint / "offsets" / str(self.newest())
                last = json.loads(offsets.read_text().splitlines()[-1])
                return bool(last["logOffset"] == file_count - 1)

            wait_until(has_read, timeout_seconds=TIMEOUT_SECONDS)
        return self.newest()

    def rows(self, batch_id: int, **options: Any) -> list[Row]:
        """Return what Spark's own reader says was there after a batch."""
        reader = self.spark.read.format("statestore").options(
            batchId=batch_id, **self.options, **options
        )
        return reader.load(str(self.checkpoint)).collect()

    @contextmanager
    def unreadable_until(self, batch_id: int) -> Iterator[None]:
        """Take away what a reading of the whole state would need, for the block."""
        hidden = [
            path
            for path in (self.checkpoint / "state").rglob("*.*")
            if (match := _CHANGE.fullmatch(path.name)) and int(match[1]) <= batch_id + 1
        ]
        assert hidden
        for path in hidden:
            path.rename(path.with_name(f"{path.name}.hidden"))
        try:
            yield
        finally:
            for path in hidden:
                path.with_name(f"{path.name}.hidden").rename(path)


def plan_count(spark: SparkSession) -> int:
    """Return the number of the last plan that Spark has executed."""
    return max((number for number, _ in _plans(spark, -1)), default=-1)


def state_scans(spark: SparkSession, checkpoint: Path, after: int) -> list[str]:
    """Return what plans after number *after* have read of the state, as Spark says."""
    return [
        scan
        for _, plan in _plans(spark, after)
        for scan in re.findall(r"^StateScan (\[.*)$", plan, flags=re.MULTILINE)
        if f"[stateCkptLocation=file:{checkpoint}/state]" in scan
    ]


def _plans(spark: SparkSession, after: int) -> Iterator[tuple[int, str]]:
    """Yield the newest plans, with their numbers."""
    state = spark._jsparkSession.sharedState()
    executions = state.statusStore().executionsList()
    for index in range(executions.size() - 1, -1, -1):
        execution = executions.apply(index)
        number = int(execution.executionId())
        if number <= after:
            return
        yield number, str(execution.physicalPlanDescription())
