"""
The manifest of a batch: which files are its output and its snapshots.

Theory of operation.  Tasks may run twice, batches may run twice, and two drivers may
run one batch at a time: each run writes files of its own.  What counts is what the
manifest names, and there is one manifest of a batch, for it is created if absent and
never changed.  The second to come uses the one that is there (rule O3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
from attrs import frozen

from rescaling import OperatorCheckpointError


if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = [
    "FORMAT_VERSION",
    "OperatorManifest",
    "SubtaskFile",
    "SubtaskReport",
    "choose_attempts",
    "decode_manifest",
    "encode_manifest",
]

FORMAT_VERSION: Final = 1


class SubtaskFile(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """
    What the winning attempt of one subtask left.

    Attributes:
        file: The name of its file in the manifest's directory.
        attempt_id: Drawn by that attempt.
        row_count: How many rows of output are in the file.
        snapshot_size_bytes: How large the snapshot in it is.
    """

    file: str
    attempt_id: str
    row_count: int
    snapshot_size_bytes: int


class OperatorManifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """
    What one batch left; in JSON, for people too.

    Attributes:
        format_version: Of this very structure.
        query_id: The streaming query.
        run_id: The run of it whose files these are.
        batch_id: The batch.
        directory: Where the files are, relative to the operator's own directory: the
            checkpoint may be moved.
        offsets_digest: Of what Spark's sources gave to the batch, by its offset log; or
            None if that could not be told.
        output_schema: The columns of the output, as Spark writes schemas in JSON.
        subtasks: The winning attempts, by operator index: their number is the
            parallelism of the batch.
    """

    format_version: int
    query_id: str
    run_id: str
    batch_id: int
    directory: str
    offsets_digest: str | None
    output_schema: str
    subtasks: tuple[SubtaskFile, ...]

    @property
    def parallelism(self) -> int:
        """How many subtasks the batch had."""
        return len(self.subtasks)


@frozen(kw_only=True)
class SubtaskReport:
    """
    The last row of a file: what an attempt says of itself.

    Attributes:
        operator_index: The subtask.
        attempt_id: Drawn by the attempt.
        row_count: How many rows of output stand before this one.
        file: The name of the file.
        snapshot: The subtask's states afterwards, encoded.
    """

    operator_index: int
    attempt_id: str
    row_count: int
    file: str
    snapshot: bytes


def choose_attempts(
    reports: Iterable[SubtaskReport], parallelism: int, *, path: str
) -> tuple[SubtaskReport, ...]:
    """
    Return the one attempt of each subtask that counts, by operator index.

    Spark commits one attempt of a task; should a file system have kept the files of
    more, the first by name counts.

    Args:
        reports: All that were found.
        parallelism: How many subtasks there were.
        path: Where they were found.

    Raises:
        OperatorCheckpointError: If a subtask has left nothing.
    """
    chosen: dict[int, SubtaskReport] = {}
    for report in sorted(reports, key=lambda one: one.file):
        chosen.setdefault(report.operator_index, report)
    missing = sorted(set(range(parallelism)) - chosen.keys())
    if missing or len(chosen) != parallelism:
        raise OperatorCheckpointError(
            path,
            f"of {parallelism} subtasks, {sorted(chosen)} have left a file: another "
            "number of tasks ran than was asked for. Restart the query",
        )
    return tuple(chosen[index] for index in range(parallelism))


def encode_manifest(manifest: OperatorManifest) -> bytes:
    """Return *manifest* as it is written."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes, *, batch_id: int, path: str) -> OperatorManifest:
    """
    Return the manifest that `encode_manifest` made *data* of.

    Args:
        data: What was read.
        batch_id: The batch that it should be of.
        path: Where it was read.

    Raises:
        OperatorCheckpointError: If it is damaged, of another batch, or of a version
            that is not known here.
    """

    def refuse(detail: str) -> NoReturn:
        raise OperatorCheckpointError(
            path,
            f"{detail}. Restore it from a copy of the checkpoint, or begin with a new "
            "checkpoint location",
        )

    try:
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        refuse(f"this is no manifest ({error})")
    if manifest.format_version != FORMAT_VERSION:
        refuse(f"format version {manifest.format_version} is not known here")
    if manifest.batch_id != batch_id:
        refuse(f"this is the manifest of batch {manifest.batch_id}, not {batch_id}")
    if not manifest.subtasks:
        refuse("this manifest names no files")
    return manifest


_decoder: Final = msgspec.json.Decoder(OperatorManifest)
