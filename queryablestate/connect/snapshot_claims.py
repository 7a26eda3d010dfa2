"""
`claimed`: one snapshot at a time into one place.

On a file system of this machine's kernel a claim is a file that only one can create.
pyarrow offers no such thing for object stores.  There everybody who wants the place
writes a claim of his own, and then looks for those of others: of two at once each may
find the other, and both are refused; that both go on cannot be.

A claim whose writer was killed stays.  The error names it: an operator may remove it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nameservice import ConfigurationError
from nameservice.durable_files import make_directory


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["claimed"]

_CLAIM: Final = "claim"


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
    if isinstance(files, arrow.fs.LocalFileSystem):
        make_directory(Path(path))
        claim = f"{path}/{_CLAIM}"
        try:
            descriptor = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError as error:
            raise _taken(claim) from error
        os.close(descriptor)
    else:
        files.create_dir(path, recursive=True)
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
