"""
`SnapshotManifest`: what a snapshot of a job consists of; pure.

The manifest is one JSON file, written last: a directory without one holds no snapshot.
It names every file, with its size and its checksum, so that nothing that an earlier
attempt left behind is taken for a part of it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from nameservice import NameServiceError, StorageError
from queryablestate.schema.schema_json import parse_schema
from queryablestate.wire.records import StateProgress, StateRecord
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "MANIFEST_FORMAT",
    "MANIFEST_NAME",
    "SnapshotFile",
    "SnapshotManifest",
    "SnapshotState",
    "checksum_of",
    "decode_manifest",
    "encode_manifest",
    "files_with",
]

MANIFEST_FORMAT: Final = 1
"""Of the manifest and of the files; a snapshot with another one is not restored."""

MANIFEST_NAME: Final = "manifest.json"

_KEY_GROUP_COUNT_MAX: Final = 32_768
_CHECKSUM_SIZE_BYTES: Final = 32
_FILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]*(/[a-z0-9][a-z0-9.-]*){1,4}")

_YEAR_10000_US: Final = 253_402_300_800_000_000
Checksum = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * _CHECKSUM_SIZE_BYTES}}}$")]
KeyGroup = Annotated[int, Meta(ge=0, lt=_KEY_GROUP_COUNT_MAX)]


class SnapshotFile(WireStruct, frozen=True, kw_only=True):
    """
    One file with rows of one state, sorted by row key.

    Attributes:
        name: Where it is, below the directory of the snapshot.
        state_number: The state, as it was numbered when the snapshot was taken.
        key_group_first: The key group of its first row.
        key_group_last: The key group of its last row.
        row_count: How many rows it has; at least one.
        size_bytes: How long it is.
        checksum: `checksum_of` its bytes.
    """

    name: str
    state_number: int
    key_group_first: KeyGroup
    key_group_last: KeyGroup
    row_count: Annotated[int, Meta(ge=1)]
    size_bytes: Annotated[int, Meta(ge=1, le=1 << 31)]
    checksum: Checksum


class SnapshotState(WireStruct, frozen=True, kw_only=True):
    """
    One state as it was when the snapshot was taken.

    Attributes:
        state: Its name, number and columns.
        progress: Who owned it, and how far each query was with it.
    """

    state: StateRecord
    progress: StateProgress


class SnapshotManifest(WireStruct, frozen=True, kw_only=True):
    """
    A whole snapshot.

    Attributes:
        format: `MANIFEST_FORMAT`.
        snapshot_id: Drawn for it; every file lies below a directory of that name.
        job_id: The job.
        max_parallelism: Its number of key groups.
        sequence: The entry of its chain at which the snapshot was taken, on each node.
        taken_at_us: When that was, microseconds since 1970 UTC.
        states: All states of the job, by number.
        files: All files, sorted by state and key group.
    """

    format: int
    snapshot_id: str
    job_id: str
    max_parallelism: Annotated[int, Meta(ge=1, le=_KEY_GROUP_COUNT_MAX)]
    sequence: Annotated[int, Meta(ge=1)]
    taken_at_us: Annotated[int, Meta(ge=0, lt=_YEAR_10000_US)]
    states: tuple[SnapshotState, ...]
    files: tuple[SnapshotFile, ...]

    @property
    def row_count(self) -> int:
        """Return how many rows it has."""
        return sum(file.row_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Return how long its files are together."""
        return sum(file.size_bytes for file in self.files)

    @property
    def batch_ids(self) -> dict[str, int]:
        """Return the last batch that it holds of each query; of several, the newest."""
        batch_ids: dict[str, int] = {}
        for each in self.states:
            for query in each.progress.queries:
                known = batch_ids.get(query.query_id, query.batch_id)
                batch_ids[query.query_id] = max(known, query.batch_id)
        return dict(sorted(batch_ids.items()))


class _Format(Struct):
    """What every version of a manifest has."""

    format: int


_FORMAT: Final = msgspec.json.Decoder(_Format)
_MANIFEST: Final = msgspec.json.Decoder(SnapshotManifest)


def checksum_of(*parts: bytes) -> str:
    """Return the checksum of bytes that lie one after the other."""
    digest = blake2b(digest_size=_CHECKSUM_SIZE_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Return the file; people may want to read it."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode_manifest(stored: bytes) -> SnapshotManifest:
    """
    Return what the file says.

    Raises:
        StorageError: If it is damaged, was written in another format, or names what no
            snapshot of ours has: says what.
    """
    try:
        found = _FORMAT.decode(stored).format
        if found != MANIFEST_FORMAT:
            raise StorageError(
                f"the snapshot has format {found}; this program reads format "
                f"{MANIFEST_FORMAT}: restore it with the program that wrote it"
            )
        manifest = _MANIFEST.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StorageError(
            f"the manifest of the snapshot cannot be read: {error}"
        ) from error
    _check(manifest)
    return manifest


def files_with(
    manifest: SnapshotManifest, key_groups: tuple[int, ...]
) -> tuple[SnapshotFile, ...]:
    """Return the files that may hold rows of *key_groups*, which are sorted."""
    return tuple(
        file
        for file in manifest.files
        if any(
            file.key_group_first <= key_group <= file.key_group_last
            for key_group in key_groups
        )
    )


def _check(manifest: SnapshotManifest) -> None:
    numbers = {each.state.state_number for each in manifest.states}
    names = {each.state.state_name for each in manifest.states}
    if not len(numbers) == len(names) == len(manifest.states):
        raise _malformed("it names a state twice")
    for each in manifest.states:
        if each.progress.state_number != each.state.state_number:
            raise _malformed(f"state {each.state.state_name!r} has two numbers")
        try:
            parse_schema(each.state.schema)
        except NameServiceError as error:
            raise _malformed(
                f"the schema of state {each.state.state_name!r}: {error}"
            ) from error
    file_names = set()
    for file in manifest.files:
        if not _FILE_NAME.fullmatch(file.name) or ".." in file.name:
            raise _malformed(f"{file.name!r} is no name of a file of a snapshot")
        # By the id the checksum of the manifest is found, too.
        if not file.name.startswith(f"data-{manifest.snapshot_id}/"):
            raise _malformed(f"the file {file.name!r} is of another snapshot")
        if file.name in file_names:
            raise _malformed(f"it names the file {file.name!r} twice")
        file_names.add(file.name)
        if file.state_number not in numbers:
            raise _malformed(f"the file {file.name!r} belongs to no state")
        last = file.key_group_last
        if not file.key_group_first <= last < manifest.max_parallelism:
            raise _malformed(f"the file {file.name!r} has key groups of no such job")


def _malformed(detail: str) -> StorageError:
    return StorageError(f"the manifest of the snapshot makes no sense: {detail}")
