"""`write_new_file`: keys and tokens in files that replace no other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nameservice.durable_files import sync_directory
from nameservice.errors import ConfigurationError


if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["write_new_file"]

_OWNER_ONLY: Final = 0o600


def write_new_file(path: Path, text: str, *, mode: int = _OWNER_ONLY) -> None:
    """
    Create *path*, and have *text* on the disk; only its owner can read it meanwhile.

    A file that exists is never overwritten: somebody may depend on it.

    Args:
        path: The file.
        text: All of it.
        mode: Its permissions afterwards, whatever the umask is.

    Raises:
        ConfigurationError: If it exists or cannot be written; then it is not left.
    """
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY
        )
    except FileExistsError as error:
        raise ConfigurationError(
            f"{path} exists and is not overwritten: choose another name, or remove it "
            "if it is not in use"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}"
        ) from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 (O_EXCL)
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        sync_directory(path.absolute().parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}"
        ) from error
