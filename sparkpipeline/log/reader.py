"""
What Spark asks of a log source: up to where there is something, and what it is.

Spark makes a reader in a process on the driver, which plans, and pickles it for the
tasks, which read.  A reader keeps nothing from batch to batch but, under
``availableNow``, up to where it was asked to go; everything else comes from the offset
that Spark hands it (`sparkpipeline.log.state`).

Needs Spark 4.2, which hands a source the offset where a batch begins.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

from attrs import frozen
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from nameservice import get_logger
from rescaling import LogPartitionError, LogRecordError
from sparkpipeline.failures import through_spark
from sparkpipeline.log.files import (
    LINE_SIZE_BYTES_MAX,
    find_end,
    is_gone,
    list_partitions,
    read_lines,
)
from sparkpipeline.log.records import RecordDecoder
from sparkpipeline.log.state import LogOffset, LogRange, plan_offset, plan_ranges


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


__all__ = ["LogOptions", "LogStreamReader"]

_ROW_COUNT_MAX: Final = 10_000
_BATCH_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024


@frozen(kw_only=True)
class LogOptions:
    """
    How a log is read.

    Attributes:
        path: The directory, the same on the driver and on all executors.
        parallelism: How many subtasks hold its partitions.
        glob: What the names of partitions are like.
        bytes_per_partition_max: How much of a partition one batch reads.
        bad_records: Whether a line that is no record is an error (``"fail"``) or left
            out (``"skip"``).
        removed_partitions: Whether a file that is gone is an error (``"fail"``) or
            no partition any more (``"forget"``).
    """

    path: str
    parallelism: int
    glob: str
    bytes_per_partition_max: int
    bad_records: Literal["fail", "skip"]
    removed_partitions: Literal["fail", "forget"]


@final
class SubtaskPartition(InputPartition):
    """What one subtask reads in one batch."""

    def __init__(self, operator_index: int, ranges: Sequence[LogRange]) -> None:
        super().__init__(operator_index)
        self.ranges = tuple(ranges)


@final
class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    Reads a log in micro-batches; see the module docstring.

    Args:
        options: How.
        schema: What is wanted of each record.
    """

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._ends_wanted: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's interface)
        """Return the beginning: no subtask holds anything."""
        return LogOffset().to_json()

    @through_spark
    def latestOffset(  # noqa: N802 (Spark's interface)
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next batch, which is *start* if there is nothing."""
        held = LogOffset.from_json(start)
        end = plan_offset(
            held, self._ends(held.positions), parallelism=self._options.parallelism
        )
        # To the letter, for Spark compares texts.
        return start if end == held else end.to_json()

    @through_spark
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's interface)
        """Take note of what there is now: nothing later is read."""
        self._ends_wanted = {}
        limit = max(LINE_SIZE_BYTES_MAX, self._options.bytes_per_partition_max)
        for name in self._names():
            # One that is gone already is missed when the first batch is planned.
            with suppress(LogPartitionError):
                self._ends_wanted[name] = find_end(
                    self._path(name), 0, line_size_bytes_max=limit
                )

    @through_spark
    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return what each subtask reads; nothing, if none has anything to read."""
        ranges = plan_ranges(LogOffset.from_json(start), LogOffset.from_json(end))
        if self._options.removed_partitions == "forget":
            ranges = self._without_removed(ranges)
        if not any(ranges):
            return []
        return [SubtaskPartition(index, own) for index, own in enumerate(ranges)]

    @through_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one subtask, partition by partition, in their order."""
        assert isinstance(partition, SubtaskPartition)
        decoder = RecordDecoder(self._schema)
        rows: list[dict[str, Any]] = []
        size_bytes = 0
        for own in partition.ranges:
            for row, row_size_bytes in self._rows(decoder, own):
                rows.append(row)
                size_bytes += row_size_bytes
                if len(rows) >= _ROW_COUNT_MAX or size_bytes >= _BATCH_SIZE_BYTES_MAX:
                    yield decoder.batch(rows)
                    rows, size_bytes = [], 0
        if rows:
            yield decoder.batch(rows)

    def _rows(
        self, decoder: RecordDecoder, own: LogRange
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each record with its size."""
        path = self._path(own.name)
        skipped_count = 0
        for offset, line in read_lines(path, own.begin, own.end):
            try:
                row = decoder.decode(str(path), own.name, offset, line)
            except LogRecordError:
                if self._options.bad_records == "fail":
                    raise
                skipped_count += 1
                continue
            yield row, len(line)
        if skipped_count:
            get_logger(component="log").warning(
                "records.skipped",
                path=str(path),
                offset=own.begin,
                offset_end=own.end,
                count=skipped_count,
            )

    def _ends(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return up to where each partition can be read now."""
        wanted = self._ends_wanted
        found = self._names()
        if wanted is not None:
            found = [name for name in found if name in wanted]
        if self._options.removed_partitions == "fail":
            found = sorted({*found, *positions})
        ends = {}
        for name in found:
            begin = positions.get(name, 0)
            limit = self._options.bytes_per_partition_max
            try:
                end = find_end(self._path(name), begin, size_bytes_max=limit)
            except LogPartitionError:
                if name in positions:
                    raise
                continue  # it was there a moment ago, and nothing was read of it
            ends[name] = end if wanted is None else min(end, wanted.get(name, begin))
        return ends

    def _without_removed(
        self, ranges: tuple[tuple[LogRange, ...], ...]
    ) -> tuple[tuple[LogRange, ...], ...]:
        """
        Return *ranges* without those of files that are gone, and log what is lost.

        Spark keeps a batch that it has planned, and runs it again after a failure: a
        file that has gone since would stop every run.  The driver decides this, for an
        executor may only miss the directory.
        """
        self._names()  # raises if it is the directory that is missing
        removed = {
            own
            for subtask in ranges
            for own in subtask
            if is_gone(self._path(own.name))
        }
        for own in sorted(removed, key=lambda one: one.name):
            get_logger(component="log").warning(
                "partition.forgotten",
                path=str(self._path(own.name)),
                offset=own.begin,
                offset_end=own.end,
            )
        return tuple(
            tuple(own for own in subtask if own not in removed) for subtask in ranges
        )

    def _names(self) -> list[str]:
        return list_partitions(Path(self._options.path), self._options.glob)

    def _path(self, name: str) -> Path:
        return Path(self._options.path) / name
