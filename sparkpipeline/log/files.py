"""
The files of a log: which there are, and where their lines end.

Theory of operation.  A partition is a file to which whole lines are appended, and
nothing else ever happens.  What stands behind the last line end is being written: it
is not there yet.  A file that is gone, is shorter than what was read of it, or has no
line end where one was, is another file: an error, for records may be lost.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from nameservice import StorageError
from rescaling import LogPartitionError, LogRecordError


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = [
    "LINE_SIZE_BYTES_MAX",
    "find_end",
    "is_gone",
    "list_partitions",
    "read_lines",
]

LINE_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
"""A longer line is an error: it has to fit into memory, many times."""

_CHUNK_SIZE_BYTES: Final = 256 * 1024


def list_partitions(directory: Path, glob: str) -> list[str]:
    """
    Return the names of the partitions in *directory*, sorted.

    Args:
        directory: Where they are; not below.
        glob: What their names are like.  Those that begin with ``.`` or ``_`` are
            never partitions.

    Raises:
        StorageError: If the directory cannot be read, or a name is not UTF-8.
    """
    try:
        with os.scandir(directory) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith((".", "_"))
                and fnmatchcase(entry.name, glob)
                and entry.is_file()
            )
    except OSError as error:
        message = f"the directory of the log cannot be read: {error}"
        raise StorageError(message) from error
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise StorageError(
                f"the log {directory} has a file whose name is not UTF-8, "
                f"{os.fsencode(name)!r}: rename it, or choose another "
                '.option("glob", ...), which leaves it out'
            ) from None
    return names


def is_gone(path: Path) -> bool:
    """
    Return whether there is no such file.

    Raises:
        StorageError: If that cannot be told.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError as error:
        raise _unreadable(error) from error
    return False


def find_end(
    path: Path,
    begin: int,
    *,
    size_bytes_max: int | None = None,
    line_size_bytes_max: int = LINE_SIZE_BYTES_MAX,
) -> int:
    """
    Return up to where whole lines can be read.

    Args:
        path: The partition.
        begin: Up to where it was read: the beginning of a line.
        size_bytes_max: How much to read at a time, or None for all there is.  One line
            is read in any case, be it longer.
        line_size_bytes_max: How long a line may be, unless *size_bytes_max* is more.

    Returns:
        The offset behind a line end, or *begin* if there is no whole line.

    Raises:
        LogPartitionError: If the file is not the one that was read.
        LogRecordError: If the line at *begin* is too long.
        StorageError: If the file cannot be read.
    """
    # A line that could be read once it is whole is waited for until it is.
    line_limit = max(line_size_bytes_max, size_bytes_max or 0)
    with _opened(path, begin) as (file, size_bytes):
        stop = size_bytes
        if size_bytes_max is not None:
            stop = min(size_bytes, begin + size_bytes_max)
        at = stop
        while at > begin:
            chunk_begin = max(begin, at - _CHUNK_SIZE_BYTES)
            found = _read(file, path, chunk_begin, at).rfind(b"\n")
            if found >= 0:
                return chunk_begin + found + 1
            at = chunk_begin
        at = stop
        while at < size_bytes and at - begin <= line_limit:
            chunk_end = min(size_bytes, at + _CHUNK_SIZE_BYTES)
            found = _read(file, path, at, chunk_end).find(b"\n")
            if found >= 0:
                return at + found + 1
            at = chunk_end
        if at - begin > line_limit:
            detail = f"it is longer than {line_limit:,} bytes"
            raise LogRecordError(str(path), begin, detail, is_unended=True)
        return begin


def read_lines(path: Path, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """
    Yield each line with its offset, without its line end.

    Args:
        path: The partition.
        begin: The offset of the first line.
        end: Behind the last line's end.

    Raises:
        LogPartitionError: If the file is not the one that *begin* and *end* are of.
        StorageError: If the file cannot be read.
    """
    with _opened(path, begin) as (file, size_bytes):
        if size_bytes < end:
            raise LogPartitionError(str(path), end, f"has {size_bytes} bytes")
        at = begin
        rest = b""
        while at < end:
            chunk = _read(file, path, at, min(end, at + _CHUNK_SIZE_BYTES))
            first = at - len(rest)
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield first, line
                first += len(line) + 1
        if rest:
            raise LogPartitionError(str(path), end, "has no line end there")


@contextmanager
def _opened(path: Path, begin: int) -> Iterator[tuple[IO[bytes], int]]:
    """Open the very file that was read up to *begin*; yield it with its size."""
    try:
        with path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < begin:
                raise LogPartitionError(str(path), begin, f"has {size_bytes} bytes")
            if begin and _read(file, path, begin - 1, begin) != b"\n":
                raise LogPartitionError(str(path), begin, "has no line end there")
            yield file, size_bytes
    except FileNotFoundError:
        raise LogPartitionError(str(path), begin, "is gone") from None
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> StorageError:
    return StorageError(f"a partition of the log cannot be read: {error}")


def _read(file: IO[bytes], path: Path, begin: int, end: int) -> bytes:
    data = bytearray()
    file.seek(begin)
    while len(data) < end - begin:
        part = file.read(end - begin - len(data))
        if not part:
            raise LogPartitionError(str(path), end, "has become shorter meanwhile")
        data += part
    return bytes(data)
