"""
Files and directories that outlive a loss of power, their names included.

What is in a file and what it is called are two things to a file system: `fsync` of the
file sees to the first, and only that of the directory to the second.  A directory is a
name in the one above it.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from pathlib import Path


__all__ = [
    "make_directory",
    "rename",
    "replace_text",
    "sync_directory",
    "sync_file",
    "sync_tree",
]

# What says of a directory that it cannot be synced: some file systems in user space,
# and one that we may only pass through.
_NOT_FOR_DIRECTORIES: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EACCES})


def make_directory(path: Path, *, mode: int = 0o777) -> None:
    """
    Make a directory, and those above it, unless they are there.

    Args:
        path: The directory.
        mode: Of the directory itself, without what the umask takes away.

    Raises:
        OSError: If it cannot be made, or is no directory.
    """
    path = path.absolute()
    lacking = [path]
    while not lacking[-1].parent.exists():
        lacking.append(lacking[-1].parent)
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    # The one that was asked for even if it is there: who made it may have been killed.
    for made in lacking:
        sync_directory(made.parent)


def replace_text(path: Path, text: str) -> None:
    """
    Have *path* hold *text*, at any time all of it or what it held before.

    Another file meanwhile has the suffix ``.new`` in place of that of *path*.

    Raises:
        OSError: If it cannot be written.
    """
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    rename(fresh, path)


def rename(fresh: Path, path: Path) -> None:
    """
    Give a file that is durable its name, in place of the file that has it.

    Raises:
        OSError: If that cannot be done.
    """
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """
    Make the names in a directory durable, where the file system can do that.

    Raises:
        OSError: If the disk says that it cannot be done.
    """
    try:
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise


def sync_file(file: Path) -> None:
    """
    Make what is in a file durable.

    Raises:
        OSError: If the disk says that it cannot be done.
    """
    _sync(file, os.O_RDONLY)


def sync_tree(file: Path, *, below: Path) -> None:
    """
    Make a file durable, and the directories that lead to it.

    Args:
        file: The file.
        below: The directory that all of this is in; its own name is made durable, too.

    Raises:
        OSError: If the disk says that it cannot be done.
    """
    sync_file(file)
    for directory in file.parents:
        sync_directory(directory)
        if directory == below.parent:
            return


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
