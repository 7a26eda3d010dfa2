"""
`SnapshotDirectory`: the files of a snapshot, on any file system that pyarrow knows.

::

    DIR/manifest.json                             `SnapshotManifest`, written last
    DIR/claim                                     while it is being made
    DIR/data-SNAPSHOT/manifest.checksum           of the manifest
    DIR/data-SNAPSHOT/at-SEQUENCE/node-N/M.arrow  rows of one state, by row key

A file is an Arrow IPC file with two binary columns, ``key`` and ``value``: row keys and
stored values as they lie on the nodes, sorted by row key.  So a key group is a range of
rows, and nothing is decoded on the way.  A file ends when the state does, or when it is
large: a node that loads one has it in memory as a whole, and so can look at the
checksum before it believes a single row.

On a file system of this machine what is written is synced before that is said (rule
S5); an object store has it for good when it takes the last byte.

Every failure is a `StorageError`; only pyarrow that is missing, and a location that
makes no sense, are a `ConfigurationError`.  This is the only module that uses pyarrow,
and only once a snapshot is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import ConfigurationError, StorageError
from nameservice.durable_files import sync_tree
from queryablestate.connect.snapshot_claims import claimed
from queryablestate.schema.key_groups import group_of, group_start
from queryablestate.wire.copy_messages import CopiedRows, runs_of
from queryablestate.wire.snapshot_manifest import (
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    checksum_of,
    decode_manifest,
    encode_manifest,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


__all__ = ["FILE_SIZE_BYTES_MAX", "SnapshotDirectory"]

FILE_SIZE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Keys and values, uncompressed, after which a file is full."""

_MANIFEST_CHECKSUM_NAME: Final = "manifest.checksum"
_ROWS_PER_PAGE: Final = 10_000
_CHECKSUM_SIZE_BYTES: Final = 32
_MANIFEST_SIZE_BYTES_MAX: Final = 256 * 1024 * 1024
_READ_SIZE_BYTES: Final = 4 * 1024 * 1024


@final
class SnapshotDirectory:
    """
    The directory of one snapshot.  Not thread-safe; holds nothing open between calls.

    Args:
        uri: Where it is: an absolute path, or a URI that pyarrow knows, e.g.
            ``s3://bucket/path``.

    Raises:
        ConfigurationError: If pyarrow is not installed, or *uri* names no place.
        StorageError: If the file system cannot be had.
    """

    def __init__(self, uri: str) -> None:
        self._arrow = _arrow()
        self._uri = uri
        arrow = self._arrow
        try:
            # What it is called by is a path on that file system from here on.
            self._files, self._path = arrow.fs.FileSystem.from_uri(uri)
        except (ValueError, arrow.ArrowException) as error:
            raise ConfigurationError(
                f"{uri!r} is no place for a snapshot: give an absolute path, or a URI "
                f"like s3://bucket/path ({error})"
            ) from error
        except OSError as error:
            raise StorageError(f"cannot use {uri}: {error}") from error

    @contextmanager
    def claimed(self, snapshot_id: str) -> Iterator[None]:
        """
        Have this place to oneself, as long as it takes to make a snapshot.

        Raises:
            ConfigurationError: If there is a snapshot here, or one is being made.
            StorageError: If the file system fails.
        """
        with ExitStack() as claim:
            with self._translated("write to"):
                claim.enter_context(
                    claimed(self._arrow, self._files, self._path, snapshot_id)
                )
            if self.has_manifest():
                raise ConfigurationError(
                    f"there is a snapshot in {self._uri} already: name another "
                    "directory"
                )
            yield

    # -- the manifest ------------------------------------------------------------------

    def has_manifest(self) -> bool:
        """Return whether there is a snapshot here."""
        with self._translated("look into"):
            found = self._files.get_file_info(self._at(MANIFEST_NAME))
            return bool(found.type != self._arrow.fs.FileType.NotFound)

    def read_manifest(self) -> tuple[SnapshotManifest, str]:
        """
        Return what the snapshot consists of, and the checksum of what says so.

        Raises:
            StorageError: If there is none, or it is damaged; see `decode_manifest`.
        """
        if not self.has_manifest():
            raise StorageError(
                f"there is no snapshot in {self._uri}: it has no {MANIFEST_NAME}, "
                "which is written when all else is"
            )
        stored = self._read(MANIFEST_NAME, _MANIFEST_SIZE_BYTES_MAX)
        checksum = checksum_of(stored)
        try:
            manifest = decode_manifest(stored)
        except StorageError as error:
            raise StorageError(f"in {self._uri}: {error}") from error
        if self._written_checksum(manifest.snapshot_id) not in {None, checksum}:
            raise StorageError(
                f"{MANIFEST_NAME} in {self._uri} is damaged: it has another checksum "
                "than what was written"
            )
        return manifest, checksum

    def _written_checksum(self, snapshot_id: str) -> str | None:
        """Return the checksum of the manifest; None from a program that wrote none."""
        name = _checksum_name(snapshot_id)
        with self._translated("look into"):
            found = self._files.get_file_info(self._at(name))
            if found.type == self._arrow.fs.FileType.NotFound:
                return None
        stored = self._read(name, 2 * _CHECKSUM_SIZE_BYTES)
        return stored.decode("ascii", "replace")

    def write_manifest(self, manifest: SnapshotManifest) -> None:
        """
        Make what the nodes have written a snapshot.

        Raises:
            StorageError: If a file is not here, or not as a node says that it is; or if
                the manifest cannot be written.
        """
        self._check_present(manifest.files)
        with self._translated("write to"):
            self._files.create_dir(self._path, recursive=True)
            written = self._at(f"data-{manifest.snapshot_id}/{MANIFEST_NAME}")
            self._files.create_dir(written.rpartition("/")[0], recursive=True)
            encoded = encode_manifest(manifest)
            checksum = self._at(_checksum_name(manifest.snapshot_id))
            for name, content in (
                (checksum, checksum_of(encoded).encode("ascii")),
                (written, encoded),
            ):
                with self._files.open_output_stream(name) as stream:
                    stream.write(content)
                self._make_durable(name)
            # A reader sees all of it, or none.
            self._files.move(written, self._at(MANIFEST_NAME))
            self._make_durable(self._at(MANIFEST_NAME))

    def _check_present(self, files: Iterable[SnapshotFile]) -> None:
        wanted = {self._at(file.name): file for file in files}
        with self._translated("look into"):
            found = self._files.get_file_info(list(wanted))
        for info in found:
            file = wanted[info.path]
            if info.type != self._arrow.fs.FileType.File:
                raise StorageError(
                    f"a node has written {file.name}, and it is not in {self._uri}: "
                    "the directory must be one that all nodes and you share"
                )
            if info.size != file.size_bytes:
                raise StorageError(
                    f"{file.name} in {self._uri} has {info.size:,} bytes, and a node "
                    f"has written {file.size_bytes:,}"
                )

    # -- rows --------------------------------------------------------------------------

    def write_rows(
        self,
        directory: str,
        pages: Iterable[CopiedRows],
        *,
        file_size_bytes_max: int = FILE_SIZE_BYTES_MAX,
    ) -> tuple[SnapshotFile, ...]:
        """
        Write rows, which come state by state and sorted, and return the files.

        Args:
            directory: Where, below this one; must be no other's.
            pages: What to write; taken one by one.
            file_size_bytes_max: Keys and values after which a file is full.

        Raises:
            StorageError: If that cannot be done.  What was written is removed, if
                possible; likewise if *pages* raises something.
        """
        files: list[SnapshotFile] = []
        current: _RowFile | None = None
        try:
            with self._translated("write to"):
                self._files.create_dir(self._at(directory), recursive=True)
                for page in pages:
                    if not page.keys:
                        continue
                    if current is not None and (
                        current.state_number != page.state_number
                        or current.size_bytes >= file_size_bytes_max
                    ):
                        files.append(self._finished(current))
                        current = None
                    if current is None:
                        name = f"{directory}/{len(files)}.arrow"
                        stream = self._files.open_output_stream(self._at(name))
                        current = _RowFile(self._arrow, stream, name, page.state_number)
                    current.write(page)
                if current is not None:
                    files.append(self._finished(current))
                    current = None
        except BaseException:
            if current is not None:
                current.abandon()
            self.remove(directory)
            raise
        return tuple(files)

    def read_rows(
        self, file: SnapshotFile, key_groups: tuple[int, ...]
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """
        Yield keys and values of the rows of *key_groups*, which are sorted.

        Raises:
            StorageError: If the file is not there, or not what was written: nothing is
                yielded then.
        """
        stored = self._read(file.name, file.size_bytes)
        if checksum_of(stored) != file.checksum:
            raise StorageError(
                f"{file.name} in {self._uri} is damaged: it has another checksum than "
                "what was written"
            )
        arrow = self._arrow
        with self._translated("read"):
            reader = arrow.ipc.open_file(arrow.BufferReader(stored))
            if reader.schema != _schema(arrow):
                raise StorageError(f"{file.name} in {self._uri} has other columns")
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                for start in range(0, batch.num_rows, _ROWS_PER_PAGE):
                    page = batch.slice(start, _ROWS_PER_PAGE)
                    keys = page.column(0).to_pylist()
                    values = page.column(1).to_pylist()
                    for first, end in _ranges(keys, key_groups):
                        yield keys[first:end], values[first:end]

    # -- what is left over -------------------------------------------------------------

    def abandon(self, snapshot_id: str) -> None:
        """
        Remove what is there of a snapshot that is not reported, as far as possible.

        It may have its manifest: the disk failed after the move, or an object store
        copied it and could not delete the first one.  That goes before what it names,
        and where it stays, so does the rest: a snapshot is whole or absent.
        """
        arrow = self._arrow
        with suppress(OSError, arrow.ArrowException, StorageError):
            if self.has_manifest():
                manifest, _ = self.read_manifest()
                if manifest.snapshot_id == snapshot_id:
                    self._files.delete_file(self._at(MANIFEST_NAME))
            self._files.delete_dir(self._at(f"data-{snapshot_id}"))

    def remove(self, directory: str) -> bool:
        """Remove a directory below this one; return whether that could be done."""
        with suppress(OSError, self._arrow.ArrowException):
            self._files.delete_dir(self._at(directory))
            return True
        return False

    # -- parts -------------------------------------------------------------------------

    def _finished(self, current: _RowFile) -> SnapshotFile:
        file = current.finish()
        self._make_durable(self._at(file.name))
        return file

    def _make_durable(self, path: str) -> None:
        if isinstance(self._files, self._arrow.fs.LocalFileSystem):
            sync_tree(Path(path), below=Path(self._path))

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _read(self, name: str, size_bytes: int) -> bytes:
        """Return a file of up to *size_bytes*; what is beyond is left out."""
        parts: list[bytes] = []
        with (
            self._translated("read"),
            self._files.open_input_stream(self._at(name)) as stream,
        ):
            # Bit by bit: memory for all that is asked for would be taken at once.
            while size_bytes > 0 and (
                part := stream.read(min(size_bytes, _READ_SIZE_BYTES))
            ):
                parts.append(part)
                size_bytes -= len(part)
        return b"".join(parts)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, self._arrow.ArrowException) as error:
            raise StorageError(f"cannot {what} {self._uri}: {error}") from error


@final
class _RowFile:
    """A file that is being written."""

    def __init__(self, arrow: Any, stream: Any, name: str, state_number: int) -> None:
        self.state_number = state_number
        self.size_bytes = 0
        self._arrow = arrow
        self._name = name
        self._row_count = 0
        self._first = self._last = 0
        self._hashed = _HashedStream(stream)
        self._schema = _schema(arrow)
        self._sink = arrow.PythonFile(self._hashed, mode="w")
        is_compressed = arrow.Codec.is_available("zstd")
        options = arrow.ipc.IpcWriteOptions(
            compression="zstd" if is_compressed else None
        )
        self._writer = arrow.ipc.new_file(self._sink, self._schema, options=options)

    def write(self, page: CopiedRows) -> None:
        arrow = self._arrow
        keys, values = page.keys, page.values
        if self._row_count == 0:
            self._first = group_of(keys[0])
        self._last = group_of(keys[-1])
        columns = [arrow.array(each, type=arrow.binary()) for each in (keys, values)]
        self._writer.write_batch(arrow.record_batch(columns, schema=self._schema))
        self._row_count += len(keys)
        self.size_bytes += sum(map(len, keys)) + sum(map(len, values))

    def finish(self) -> SnapshotFile:
        self._writer.close()
        self._sink.close()
        return SnapshotFile(
            name=self._name,
            state_number=self.state_number,
            key_group_first=self._first,
            key_group_last=self._last,
            row_count=self._row_count,
            size_bytes=self._hashed.size_bytes,
            checksum=self._hashed.checksum,
        )

    def abandon(self) -> None:
        """Close what is open; what is in it will be removed."""
        with suppress(OSError, ValueError, self._arrow.ArrowException):
            self._sink.close()


@final
class _HashedStream:
    """A stream that computes the checksum of what goes through it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._digest = blake2b(digest_size=_CHECKSUM_SIZE_BYTES)
        self.size_bytes = 0

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        self._stream.write(data)
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def _checksum_name(snapshot_id: str) -> str:
    """Return where the checksum of the manifest is: a changed one may be JSON still."""
    return f"data-{snapshot_id}/{_MANIFEST_CHECKSUM_NAME}"


def _arrow() -> Any:
    """
    Return pyarrow, which only snapshots need.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        import pyarrow.fs  # noqa: PLC0415 (see the module docstring)
        import pyarrow.ipc  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "snapshots need pyarrow, which is not installed here: "
            "pip install 'spark-lodestar[snapshots]', on the nodes and where you ask "
            "for them"
        ) from error
    return pyarrow


def _schema(arrow: Any) -> Any:
    return arrow.schema(
        [
            arrow.field("key", arrow.binary(), nullable=False),
            arrow.field("value", arrow.binary(), nullable=False),
        ]
    )


def _ranges(
    keys: list[bytes], key_groups: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Yield where in *keys*, which are sorted, those of *key_groups* are."""
    if not keys:
        return
    first, last = group_of(keys[0]), group_of(keys[-1])
    wanted = tuple(group for group in key_groups if first <= group <= last)
    for run_first, run_last in runs_of(wanted):
        begin = bisect_left(keys, group_start(run_first))
        end = bisect_left(keys, group_start(run_last + 1))
        if begin < end:
            yield begin, end
