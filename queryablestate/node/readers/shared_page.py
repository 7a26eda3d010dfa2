"""
The file of the page by which a node binds its reader processes (`page`).

It has one name in the data directory, and is never replaced: a process of the node that
was killed may have left readers behind, and they look at the same file.  So the next
process of that node, which holds the lock of the directory by then, binds them, too.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from nameservice import StorageError
from queryablestate.node.readers.page import PAGE_SIZE_BYTES, PageWriter


__all__ = ["open_page", "page_path", "withdraw_page"]

_NAME: Final = "readers.page"


def page_path(data_dir: str | os.PathLike[str]) -> Path:
    """Return the file of the page of the node with that data directory."""
    return Path(data_dir) / _NAME


def open_page(data_dir: str | os.PathLike[str], run: str) -> PageWriter:
    """
    Return the page, made if it is not there; it says nothing yet.

    Raises:
        StorageError: If there is no room for it.
    """
    path = page_path(data_dir)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Without room on the disk a write to the page would end the process.
            os.posix_fallocate(descriptor, 0, PAGE_SIZE_BYTES)
            return PageWriter(memoryview(mmap.mmap(descriptor, PAGE_SIZE_BYTES)), run)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error}") from error


def withdraw_page(data_dir: str | os.PathLike[str]) -> None:
    """Have readers that an earlier process left behind answer no more, if any."""
    if page_path(data_dir).exists():
        open_page(data_dir, "").withdraw()
