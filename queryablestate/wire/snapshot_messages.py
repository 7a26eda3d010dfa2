"""
Snapshots of jobs: what operators ask for, and what nodes are told to do for it.

Part of the conversations of `queryablestate.wire.clients` and
`queryablestate.wire.node_messages`.
What operators ask for takes the right ``admin`` where the proxy has callers.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from queryablestate.wire.snapshot_manifest import (
    SnapshotFile,
    SnapshotManifest,
    SnapshotState,
)
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "TIMEOUT_MS_MAX",
    "DropLoaded",
    "JobRestored",
    "LoadSnapshot",
    "LoadedState",
    "RestoreJob",
    "SnapshotAnswer",
    "SnapshotCommand",
    "SnapshotLoaded",
    "SnapshotReport",
    "SnapshotRequest",
    "SnapshotTaken",
    "SnapshotWritten",
    "TakeSnapshot",
    "WriteSnapshot",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
DrawnId: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Location: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4_096)]
TIMEOUT_MS_MAX: Final = 7 * 86_400_000
"""How long a snapshot or a restore may take."""

TimeoutMilliseconds: TypeAlias = Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)]


# -- what operators ask for ------------------------------------------------------------


class TakeSnapshot(WireStruct, frozen=True, kw_only=True, tag="take-snapshot"):
    """
    Have the nodes of a job write all of its rows, as they are after one entry.

    Repeating it is harmless: who asks again under the same id waits for the same,
    or, with another leader, for another attempt.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        snapshot_id: Drawn by the caller.
        uri: The directory of the snapshot, as the nodes are to open it.
        timeout_ms: How long the nodes may take.
    """

    request_id: int
    session: bytes
    job_id: Name
    snapshot_id: DrawnId
    uri: Location
    timeout_ms: TimeoutMilliseconds


class SnapshotTaken(WireStruct, frozen=True, kw_only=True, tag="snapshot-taken"):
    """All nodes have written their part: what is left is to write the manifest."""

    request_id: int
    manifest: SnapshotManifest


class RestoreJob(WireStruct, frozen=True, kw_only=True, tag="restore-job"):
    """
    Make a job from a snapshot, on the nodes that are there now.

    Repeating it is harmless, as with `TakeSnapshot`.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: How the job is to be called; it must have no state.
        restore_id: Drawn by the caller.
        uri: The directory of the snapshot, as the nodes are to open it.
        manifest_checksum: Of its manifest: all nodes load the same.
        max_parallelism: From the manifest.
        sequence: From the manifest.
        states: From the manifest.
        timeout_ms: How long the nodes may take.
    """

    request_id: int
    session: bytes
    job_id: Name
    restore_id: DrawnId
    uri: Location
    manifest_checksum: str
    max_parallelism: Annotated[int, Meta(ge=1, le=32_768)]
    sequence: Annotated[int, Meta(ge=1, le=1 << 31)]
    states: tuple[SnapshotState, ...]
    timeout_ms: TimeoutMilliseconds


class JobRestored(WireStruct, frozen=True, kw_only=True, tag="job-restored"):
    """
    The job is there, with all of its rows.

    Attributes:
        request_id: Of the request.
        node_ids: The nodes that have it, sorted.
        sequence: The entry of its chain that it begins with.
    """

    request_id: int
    node_ids: tuple[str, ...]
    sequence: int


# -- what nodes are told ---------------------------------------------------------------


class WriteSnapshot(WireStruct, frozen=True, kw_only=True, tag="write-snapshot"):
    """
    Write rows of a job as they are right after its entry *sequence*.

    It comes before that entry, which is a `queryablestate.wire.records.SnapshotMarked`;
    the node goes on with the next one at once.

    Attributes:
        leader_epoch: Who says so.
        snapshot_id: Names the snapshot.
        job_id: The job.
        sequence: The entry.
        uri: The directory of the snapshot.
        directory: Where in it; for this node and this attempt alone.
        key_groups: Which, sorted.
    """

    leader_epoch: int
    snapshot_id: str
    job_id: str
    sequence: int
    uri: str
    directory: str
    key_groups: tuple[int, ...]


class SnapshotWritten(WireStruct, frozen=True, kw_only=True, tag="rows-written"):
    """
    The answer.

    Attributes:
        registration_id: Who says so.
        snapshot_id: Of the command.
        sequence: Of the command.
        files: What was written.
        failure: Why it was not, or None.
    """

    registration_id: str
    snapshot_id: str
    sequence: int
    files: tuple[SnapshotFile, ...]
    failure: str | None = None


class LoadedState(WireStruct, frozen=True, kw_only=True):
    """
    A state that is to be loaded.

    Attributes:
        snapshot_number: Its number in the snapshot.
        state_number: Its number from now on.
        kind: ``value``, ``list`` or ``map``.
        has_ttl: Whether stored values begin with their expiry.
        generation: Of the last batch in it.
        batch_id: The last batch in it.
        decided_at_us: When that was decided.
    """

    snapshot_number: int
    state_number: int
    kind: str
    has_ttl: bool
    generation: int
    batch_id: int
    decided_at_us: int


class LoadSnapshot(WireStruct, frozen=True, kw_only=True, tag="load-snapshot"):
    """
    Load rows of a snapshot and keep them, out of sight for now.

    They belong to the job once it has the entry
    `queryablestate.wire.records.SnapshotRestored` of the same *restore_id*.

    Attributes:
        leader_epoch: Who says so.
        restore_id: Names what is loaded, and this attempt: the id of the request and a
            number.
        job_id: The job that is to have them; what was loaded for it before is dropped.
        uri: The directory of the snapshot.
        manifest_checksum: Of the manifest there; another one is not used.
        key_groups: Which, sorted.
        states: Which, and how they are numbered.
    """

    leader_epoch: int
    restore_id: str
    job_id: str
    uri: str
    manifest_checksum: str
    key_groups: tuple[int, ...]
    states: tuple[LoadedState, ...]


class SnapshotLoaded(WireStruct, frozen=True, kw_only=True, tag="rows-loaded"):
    """
    The answer.

    Attributes:
        registration_id: Who says so.
        restore_id: Of the command.
        row_count: Rows that were loaded.
        failure: Why they were not, or None.
    """

    registration_id: str
    restore_id: str
    row_count: int
    failure: str | None = None


class DropLoaded(WireStruct, frozen=True, kw_only=True, tag="drop-loaded"):
    """What was loaded, or is being loaded, comes to nothing: drop it."""

    leader_epoch: int
    restore_id: str


SnapshotRequest: TypeAlias = TakeSnapshot | RestoreJob
"""What operators ask for."""

SnapshotAnswer: TypeAlias = SnapshotTaken | JobRestored
"""What they are told, but for refusals."""

SnapshotCommand: TypeAlias = WriteSnapshot | LoadSnapshot | DropLoaded
"""What nodes are told."""

SnapshotReport: TypeAlias = SnapshotWritten | SnapshotLoaded
"""What they answer."""
