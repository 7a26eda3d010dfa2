"""
Snapshots as the caller sees it: take one, restore one.

The nodes write and read the rows; the caller writes the manifest, last, and reads it,
first.  So the directory must be one that the nodes and the asker share: a file system
that all of them have mounted, or an object store.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, final

from attrs import frozen
from msgspec import Struct

from nameservice import ConfigurationError
from nameservice.clock import MS_PER_SECOND, US_PER_SECOND
from nameservice.parameters import check_seconds
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.wire.snapshot_messages import (
    TIMEOUT_MS_MAX,
    JobRestored,
    RestoreJob,
    SnapshotTaken,
    TakeSnapshot,
)


if TYPE_CHECKING:
    from queryablestate.client.calls import Build
    from queryablestate.wire.snapshot_manifest import SnapshotManifest


__all__ = [
    "RestoreInformation",
    "SnapshotInformation",
    "location_of",
    "restore_snapshot",
    "take_snapshot",
]

_ID_SIZE_BYTES: Final = 16
_HADOOP_URI: Final = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)", re.IGNORECASE)
"""``file:/path``, as Hadoop writes it; a path with a drive of Windows is none."""

T = TypeVar("T", bound=Struct)

Call: TypeAlias = "Callable[[type[T], Build], T]"
"""Asks the proxy leader for an answer of that type."""


@final
@frozen(kw_only=True)
class SnapshotInformation:
    """
    What a snapshot holds.

    Attributes:
        job_id: The job that it was taken of.
        snapshot_id: Drawn for it.
        uri: Where it is.
        sequence: The entry of the job's chain at which it was taken, on every node.
        taken_at_seconds: When, seconds since 1970 UTC.
        state_names: The states of the job, sorted.
        batch_ids: The last batch in it of each query, by query id.
        max_parallelism: The number of key groups of the job.
        file_count: How many files it has besides the manifest.
        row_count: How many rows they hold; an item of a list and an entry of a map is
            one.
        size_bytes: How long they are together.
    """

    job_id: str
    snapshot_id: str
    uri: str
    sequence: int
    taken_at_seconds: float
    state_names: Sequence[str]
    batch_ids: Mapping[str, int]
    max_parallelism: int
    file_count: int
    row_count: int
    size_bytes: int


@final
@frozen(kw_only=True)
class RestoreInformation:
    """
    What came of a restore.

    Attributes:
        job_id: What the job is called now.
        node_ids: The nodes that have it, sorted.
        snapshot: What it was restored from.
    """

    job_id: str
    node_ids: Sequence[str]
    snapshot: SnapshotInformation


def location_of(place: str | os.PathLike[str]) -> str:
    """
    Return the URI that *place* is; a path is made absolute.

    Raises:
        ConfigurationError: If it is empty: a shell's variable was not set; or if it
            is a URI in a form that pyarrow does not know.
    """
    text = os.fspath(place)
    if not text:
        raise ConfigurationError("name a directory for the snapshot: this one is empty")
    hadoop = _HADOOP_URI.match(text)
    if hadoop is not None:
        raise ConfigurationError(
            f"{text}: write {hadoop[1]}:// and the host, if it has one, before the "
            "path; a directory of such a name is ./" + text
        )
    return text if "://" in text else str(Path(text).absolute())


def take_snapshot(
    call: Call[SnapshotTaken], job_id: str, uri: str, *, timeout_seconds: float
) -> SnapshotInformation:
    """See `queryablestate.operations.state_operations.StateOperations.snapshot`."""
    timeout_ms = _timeout_ms(timeout_seconds)
    directory = SnapshotDirectory(uri)
    snapshot_id = secrets.token_hex(_ID_SIZE_BYTES)

    def build(request_id: int, session: bytes) -> TakeSnapshot:
        return TakeSnapshot(
            request_id=request_id,
            session=session,
            job_id=job_id,
            snapshot_id=snapshot_id,
            uri=uri,
            timeout_ms=timeout_ms,
        )

    with directory.claimed(snapshot_id):
        try:
            manifest = call(SnapshotTaken, build).manifest
            directory.write_manifest(manifest)
        except BaseException:
            # A node that is still writing may leave something: no manifest names it.
            directory.abandon(snapshot_id)
            raise
    return _information(manifest, uri)


def restore_snapshot(
    call: Call[JobRestored], job_id: str, uri: str, *, timeout_seconds: float
) -> RestoreInformation:
    """See `queryablestate.operations.state_operations.StateOperations.restore`."""
    timeout_ms = _timeout_ms(timeout_seconds)
    manifest, checksum = SnapshotDirectory(uri).read_manifest()
    restore_id = secrets.token_hex(_ID_SIZE_BYTES)

    def build(request_id: int, session: bytes) -> RestoreJob:
        return RestoreJob(
            request_id=request_id,
            session=session,
            job_id=job_id,
            restore_id=restore_id,
            uri=uri,
            manifest_checksum=checksum,
            max_parallelism=manifest.max_parallelism,
            sequence=manifest.sequence,
            states=manifest.states,
            timeout_ms=timeout_ms,
        )

    restored = call(JobRestored, build)
    return RestoreInformation(
        job_id=job_id,
        node_ids=restored.node_ids,
        snapshot=_information(manifest, uri),
    )


def _timeout_ms(timeout_seconds: float) -> int:
    """Return what the proxy is told: it takes a millisecond to a week for a time."""
    timeout_seconds = check_seconds(timeout_seconds, what="timeout_seconds")
    return max(1, min(math.ceil(timeout_seconds * MS_PER_SECOND), TIMEOUT_MS_MAX))


def _information(manifest: SnapshotManifest, uri: str) -> SnapshotInformation:
    return SnapshotInformation(
        job_id=manifest.job_id,
        snapshot_id=manifest.snapshot_id,
        uri=uri,
        sequence=manifest.sequence,
        taken_at_seconds=manifest.taken_at_us / US_PER_SECOND,
        state_names=sorted(each.state.state_name for each in manifest.states),
        batch_ids=manifest.batch_ids,
        max_parallelism=manifest.max_parallelism,
        file_count=len(manifest.files),
        row_count=manifest.row_count,
        size_bytes=manifest.size_bytes,
    )
