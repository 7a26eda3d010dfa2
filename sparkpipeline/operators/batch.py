"""
One micro-batch of an operator, and the files that it leaves.

A file holds the output of one attempt of a subtask, and behind it the report.  Spark
writes and reads it, so it may be on whatever file system a checkpoint may be.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)
from pyspark.sql.types import StructType

from rescaling import OperatorCheckpointError
from sparkpipeline.operators.manifest import OperatorManifest, SubtaskReport
from sparkpipeline.operators.task import (
    ATTEMPT_COLUMN,
    INDEX_COLUMN,
    ROW_COUNT_COLUMN,
    SNAPSHOT_COLUMN,
    file_schema,
    report_schema,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from sparkpipeline.operators.checkpoint import OperatorCheckpoint


__all__ = [
    "OperatorBatch",
    "check_continuity",
    "known_batch_ids",
    "read_left",
    "read_output",
    "read_published",
    "read_reports",
]

_UNREADABLE: Final = re.compile(r"\[(PATH_NOT_FOUND|FAILED_READ_FILE\b[^\]]*)\].*")
"""What Spark says of a file that is gone, or is none that it can read; to its line's
end."""


@final
@frozen(kw_only=True)
class OperatorBatch:
    """
    One micro-batch, and where the checkpoint of its query is.

    Attributes:
        frame: Its rows.
        batch_id: Its number.
        query_id: The query.
        run_id: The run of it.
        checkpoint: Where what it leaves is kept.
        offsets_digest: See `OperatorCheckpoint.offsets_digest`.
    """

    frame: DataFrame
    batch_id: int
    query_id: str
    run_id: str
    checkpoint: OperatorCheckpoint
    offsets_digest: str | None


def known_batch_ids(batch: OperatorBatch) -> list[int]:
    """
    Return the batches that have a manifest, in rising order.

    Raises:
        OperatorCheckpointError: If there is one of a later batch than this.
    """
    known = batch.checkpoint.batch_ids()
    if known and known[-1] > batch.batch_id:
        raise OperatorCheckpointError(
            batch.checkpoint.path("manifests", str(known[-1])),
            f"it is of a later batch than {batch.batch_id}: another driver has gone on "
            "with this query, and this one must stop; or Spark's part of the "
            "checkpoint is an older copy than the operator's: restore both together",
        )
    return known


def read_published(batch: OperatorBatch) -> OperatorManifest:
    """
    Return the manifest of *batch*, which there is.

    Raises:
        OperatorCheckpointError: If it was of another query, or of other rows than the
            batch has now.
    """
    manifest = batch.checkpoint.read(batch.batch_id)
    _check_owner(batch, manifest)
    if manifest.offsets_digest != batch.offsets_digest:
        raise OperatorCheckpointError(
            batch.checkpoint.path("manifests", str(batch.batch_id)),
            f"batch {batch.batch_id} ended at other offsets than it does in Spark's "
            "offset log now, so its rows are others. Restore all of the checkpoint "
            "location from one copy; or delete this file to have the batch run anew",
        )
    return manifest


def check_continuity(batch: OperatorBatch, last: OperatorManifest) -> None:
    """
    See that this batch begins where the last one that was run has ended.

    Spark skips a batch id now and then (an offline repartition); such a batch ends
    where the one before it does.

    Args:
        batch: The batch that is to be run.
        last: The manifest of the last one that has any.

    Raises:
        OperatorCheckpointError: If the last one was of another query, or of other
            rows than Spark has for it; or if there were rows that the operator has not
            seen.
    """
    last_id = last.batch_id
    _check_owner(batch, last)
    ended = batch.checkpoint.offsets_digest(last_id)
    # Offsets that Spark has not kept tell nothing; it keeps those of a batch before.
    if None not in {ended, last.offsets_digest} and ended != last.offsets_digest:
        raise OperatorCheckpointError(
            batch.checkpoint.path("manifests", str(last_id)),
            f"batch {last_id} ended at other offsets than it does in Spark's offset "
            "log now: the operator's part of the checkpoint is of another time. "
            "Restore all of the checkpoint location from one copy, or begin with a "
            "new one",
        )
    skipped = range(last_id + 1, batch.batch_id)
    if not skipped:
        return
    known = {
        batch.checkpoint.offsets_digest(batch_id) for batch_id in (last_id, *skipped)
    }
    if len(known) > 1 or None in known:
        raise OperatorCheckpointError(
            batch.checkpoint.path("manifests", str(last_id)),
            f"it is the last one before batch {batch.batch_id}, and rows came in "
            "between: Spark has run batches of which the operator has nothing. "
            "Restore all of the checkpoint location from one copy, or begin with a "
            "new one",
        )


def _check_owner(batch: OperatorBatch, manifest: OperatorManifest) -> None:
    """See that *manifest* is of this query, whose offsets may look like another's."""
    if manifest.query_id != batch.query_id:
        raise OperatorCheckpointError(
            batch.checkpoint.path("manifests", str(manifest.batch_id)),
            f"it is of query {manifest.query_id}, and this is query {batch.query_id}. "
            "Restore all of the checkpoint location from one copy, or begin with a new "
            "one",
        )


def read_reports(
    batch: OperatorBatch, directory: str, files: Sequence[str] = ()
) -> list[SubtaskReport]:
    """Return the reports in *files*, or in all of *directory*."""
    rows = (
        _read(batch, report_schema(), directory, files)
        .where(F.col(INDEX_COLUMN).isNotNull())
        .select(
            F.col(INDEX_COLUMN).alias("operator_index"),
            F.col(ATTEMPT_COLUMN).alias("attempt_id"),
            F.col(ROW_COUNT_COLUMN).alias("row_count"),
            F.col(SNAPSHOT_COLUMN).alias("snapshot"),
            F.col("_metadata.file_name").alias("file"),
        )
        .collect()
    )
    return [
        SubtaskReport(
            operator_index=row.operator_index,
            attempt_id=row.attempt_id,
            row_count=row.row_count,
            file=row.file,
            snapshot=bytes(row.snapshot),
        )
        for row in rows
    ]


def read_left(batch: OperatorBatch, manifest: OperatorManifest) -> list[SubtaskReport]:
    """
    Return the reports in the files that an earlier batch left.

    Raises:
        OperatorCheckpointError: If one of them is gone, or cannot be read.
    """
    files = [one.file for one in manifest.subtasks]
    try:
        return read_reports(batch, manifest.directory, files)
    except (PySparkException, Py4JJavaError) as error:
        found = _UNREADABLE.search(str(error))
        if found is None:
            raise
        raise OperatorCheckpointError(
            batch.checkpoint.path(manifest.directory),
            f"files that batch {manifest.batch_id} left cannot be read: "
            f"{found.group()} Restart the query if that was for a moment; else restore "
            "them from a copy of the checkpoint, or begin with a new checkpoint "
            "location",
        ) from error


def read_output(batch: OperatorBatch, manifest: OperatorManifest) -> DataFrame:
    """Return the rows that the function gave in the attempts that count."""
    # The columns that were written, should the query have been changed since.
    schema = StructType.fromJson(json.loads(manifest.output_schema))
    files = [one.file for one in manifest.subtasks]
    return (
        _read(batch, file_schema(schema), manifest.directory, files)
        .where(F.col(INDEX_COLUMN).isNull())
        .select(*(_column(name) for name in schema.names))
    )


def _read(
    batch: OperatorBatch, schema: StructType, directory: str, files: Sequence[str]
) -> DataFrame:
    """Return what stands in *files*, or in all of *directory*."""
    paths = [batch.checkpoint.path(directory, file) for file in files]
    return (
        batch.frame.sparkSession.read.schema(schema)
        # A lost file is an error, whatever the session thinks of it.
        .option("ignoreMissingFiles", "false")
        .option("ignoreCorruptFiles", "false")
        .parquet(*map(_literal, paths or [batch.checkpoint.path(directory)]))
    )


def _literal(path: str) -> str:
    """Return *path* so that Spark's reader takes no character of it for a pattern."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", path)


def _column(name: str) -> Column:
    """Return the column that is called just that, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")
