"""
`claimed`: one snapshot at a time into one place; and what makes a file durable.

On a file system of this machine's kernel a claim is a file that only one can create.
pyarrow offers no such thing for object stores.  There everybody who wants the place
writes a claim of his own, and then looks for those of others: of two at once each may
find the other, and both are refused; that both go on cannot be.

A claim whose writer was killed stays.  The error names it: an operator may remove it.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["claimed", "make_durable"]

_CLAIM: Final = "claim"
_NOT_FOR_DIRECTORIES: Final = frozenset({errno.EINVAL, errno.ENOTSUP})


@contextmanager
def claimed(arrow: Any, files: Any, path: str, snapshot_id: str) -> Iterator[None]:
    """
    Keep others from making a snapshot in one place meanwhile.

    Args:
        arrow: pyarrow.
        files: The file system.
        path: The directory on it; made if it is not there.
        snapshot_id: Whose claim it is.

    Raises:
        ConfigurationError: If somebody else has a claim.
        OSError: If the file system fails.
    """
    files.create_dir(path, recursive=True)
    if isinstance(files, arrow.fs.LocalFileSystem):
        claim = f"{path}/{_CLAIM}"
        try:
            descriptor = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError as error:
            raise _taken(claim) from error
        os.close(descriptor)
    else:
        claim = f"{path}/{_CLAIM}-{snapshot_id}"
        with files.open_output_stream(claim) as stream:
            stream.write(snapshot_id.encode())
    try:
        for other in _claims(arrow, files, path):
            if other != claim:
                raise _taken(other)
        yield
    finally:
        with suppress(OSError, arrow.ArrowException):
            files.delete_file(claim)


def make_durable(path: Path, *, below: Path) -> None:
    """
    Have a file, and the directories that lead to it, outlive a loss of power.

    Args:
        path: The file.
        below: The directory that all of this is in; its own entry is made durable, too.

    Raises:
        OSError: If the disk says that it cannot be done.
    """
    _sync(path, os.O_RDONLY)
    for directory in path.parents:
        try:
            _sync(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            # Some file systems in user space do not know this for directories.
            if error.errno not in _NOT_FOR_DIRECTORIES:
                raise
        if directory == below.parent:
            return


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _claims(arrow: Any, files: Any, path: str) -> list[str]:
    selector = arrow.fs.FileSelector(path, recursive=False)
    return [
        info.path
        for info in files.get_file_info(selector)
        if info.base_name.startswith(_CLAIM)
    ]


def _taken(claim: str) -> ConfigurationError:
    return ConfigurationError(
        f"another snapshot is being made in {claim.rpartition('/')[0]}: name another "
        f"directory; if its writer is gone, remove {claim}"
    )
