"""
A data directory around its database: the lock, the mark of use, and the reserve.

=======================  ==============================================================
``lock``                 keeps a second server out while one runs
``format``               says that there was a database here: one that is missing or
                         empty is a loss then, and not a beginning
``reserve``              room on the disk that is given back when it is full, so that
                         something can be deleted: to delete takes room as well
=======================  ==============================================================
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from nameservice import ConfigurationError
from nameservice.durable_files import make_directory, replace_text
from zmqtransport import close_in_child, keep_in_child


if TYPE_CHECKING:
    from contextlib import ExitStack


__all__ = ["DataDirectory", "Reserve", "restoring_file", "way_out"]

LOCK_FILE_NAME: Final = "lock"
MARK_FILE_NAME: Final = "format"
RESERVE_FILE_NAME: Final = "reserve"
RESERVE_SIZE_BYTES: Final = 4 << 20
_PROBE_FILE_NAME: Final = "probe"
_RESERVE_PART_MIN_BYTES: Final = 64 << 10
_MARK: Final = "A data directory of a Lodestar LeaderServer, format 1.\n"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def way_out(directory: Path) -> str:
    """Return what to do about a database that is lost or damaged."""
    return (
        f"restore it from a backup, or move {directory} away to begin with an empty "
        "one: leader stores are lost then, and epochs go on above the earlier ones by "
        "the clock"
    )


def restoring_file(database: Path) -> Path:
    """Return what *database* is called while it is being made of a backup."""
    return database.with_name(f"{database.name}.restoring")


@final
class Reserve:
    """
    Room on the disk that nothing uses, until it is given back.

    Args:
        file: What holds it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_possible = True
        try:
            self._size_bytes = file.stat().st_size
        except FileNotFoundError:
            self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Return how much it holds."""
        return self._size_bytes

    @property
    def is_whole(self) -> bool:
        """Return whether it holds as much as it can be made to hold."""
        return self._size_bytes >= RESERVE_SIZE_BYTES or not self._is_possible

    def restore(self) -> None:
        """
        Take back what it is to hold, or a part of it that the disk has room for.

        Where that is not possible for another reason there is no reserve.
        """
        if self.is_whole:
            return
        try:
            descriptor = os.open(
                self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            self._is_possible = error.errno in _NO_ROOM
            return
        try:
            size_bytes = RESERVE_SIZE_BYTES
            while size_bytes > self._size_bytes:
                if self._allocate(descriptor, size_bytes):
                    return
                size_bytes //= 2
                if size_bytes < _RESERVE_PART_MIN_BYTES:
                    return
        finally:
            os.close(descriptor)

    def _allocate(self, descriptor: int, size_bytes: int) -> bool:
        """Return whether it need not be tried with less."""
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            os.ftruncate(descriptor, self._size_bytes)
            self._is_possible = error.errno in _NO_ROOM
            return not self._is_possible
        self._size_bytes = size_bytes
        return True

    def give_back(self) -> bool:
        """Give all of it back to the disk; return whether there was any."""
        if self._size_bytes == 0:
            return False
        try:
            os.truncate(self._file, 0)
        except FileNotFoundError:
            pass  # somebody needed room, and removed it
        except OSError:
            return False
        self._size_bytes = 0
        return True


@final
class DataDirectory:
    """
    A directory that is locked.

    Args:
        path: Made if it is not there.
        stack: Releases it.

    Raises:
        ConfigurationError: If another server uses it.
        OSError: If it cannot be used.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        make_directory(path)
        self._lock(stack)
        self.reserve = Reserve(path / RESERVE_FILE_NAME)

    def _lock(self, stack: ExitStack) -> None:
        descriptor = os.open(
            self.path / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        stack.callback(os.close, descriptor)
        close_in_child(descriptor)
        stack.callback(keep_in_child, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = (
                f"the data directory {self.path} is in use by another "
                "LeaderServer: stop that one, or choose another directory"
            )
            raise ConfigurationError(message) from error
        # A forked child has the descriptor too, and may live longer than the server:
        # to close our own would leave the lock with it.
        stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)

    @property
    def is_marked(self) -> bool:
        """Return whether there was a database once."""
        return (self.path / MARK_FILE_NAME).exists()

    def is_new(self, database: Path) -> bool:
        """
        Return whether *database* is still to be made.

        Raises:
            ConfigurationError: If it was there before, and is gone or empty; or if it
                was about to be there again.
        """
        if database.exists():
            if database.is_file() and database.stat().st_size == 0:
                message = f"the database {database} is empty: {way_out(self.path)}"
                raise ConfigurationError(message)
            return False
        log = database.with_name(database.name + "-wal")
        if self.is_marked or log.exists():
            message = f"the database {database} is gone: {way_out(self.path)}"
            raise ConfigurationError(message)
        half = restoring_file(database)
        if half.exists():
            message = (
                f"a backup was being restored to {self.path}, and that was cut short: "
                f"repeat 'lodestar restore-backup', or remove {half} to begin with an "
                "empty store"
            )
            raise ConfigurationError(message)
        return True

    def mark(self) -> None:
        """Take note, durably, that there is a database."""
        if self.is_marked:
            return
        replace_text(self.path / MARK_FILE_NAME, _MARK)

    def is_full(self) -> bool:
        """Return whether the disk, or a quota on it, has no room for a little more."""
        probe = self.path / _PROBE_FILE_NAME
        try:
            descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                probe.unlink()  # it takes room until it is closed, and no longer
                os.posix_fallocate(descriptor, 0, _RESERVE_PART_MIN_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            return error.errno in _NO_ROOM
        return False
