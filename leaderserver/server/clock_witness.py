"""
`ClockWitness`: the highest incarnation that this machine has seen, for want of a disk.

A LeaderServer without a data directory has its epochs from the wall clock, and a clock
may be set back between two starts.  So each start leaves its incarnation in a file of
this user in the directory for temporary files, and begins above what it finds there.
That holds on one machine until its temporary files are removed, as a restart of the
machine may do; who needs more uses a data directory.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import Final, final

from election.epochs import INCARNATION_MAX, incarnation_after
from nameservice import get_logger


__all__ = ["ClockWitness"]

_FILE_NAME: Final = "incarnation"
_DIGITS_MAX: Final = 20


@final
class ClockWitness:
    """
    What the servers of this user on this machine have used.

    Args:
        directory: Where the file is; by default one of this user's own among the
            temporary files.
    """

    def __init__(self, directory: Path | None = None) -> None:
        if directory is None:
            directory = Path(tempfile.gettempdir()) / f"lodestar-{os.getuid()}"
        self._directory = directory
        self._log = get_logger(component="leaderserver")

    def next_incarnation(self, *, at_least: int) -> int:
        """
        Return, and leave behind, an incarnation above every one that was used here.

        Where no file can be kept it is *at_least*, and the log says why.
        """
        try:
            return self._next(at_least)
        except OSError as error:
            self._tell_unwitnessed(error)
            return at_least

    def _next(self, at_least: int) -> int:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise OSError(f"{self._directory} is not a directory of this user's own")
        descriptor = os.open(
            self._directory / _FILE_NAME,
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            used = self._read(descriptor)
            incarnation = incarnation_after(used, at_least=at_least)
            if used > at_least:
                self._log.warning(
                    "clock.behind",
                    incarnation=incarnation,
                    behind_seconds=used - at_least,
                )
            self._leave(descriptor, str(incarnation).encode("ascii"))
        finally:
            os.close(descriptor)
        return incarnation

    def _read(self, descriptor: int) -> int:
        """Return the earlier number, or 0 if there is none, or none that we wrote."""
        text = os.pread(descriptor, _DIGITS_MAX, 0)
        try:
            used = int(text.decode("ascii").strip() or 0)
        except ValueError as error:
            # What we leave in its place is a witness again, at the next start.
            self._tell_unwitnessed(error)
            return 0
        # Earlier versions left what a clock said that was beyond all epochs.
        return used if used < INCARNATION_MAX else 0

    def _leave(self, descriptor: int, text: bytes) -> None:
        """
        Write *text* over what was there: an earlier number is not longer.

        Nothing is emptied before: on a full disk the earlier number stays, for this
        start, which is above it all the same, and for the next one.
        """
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        except OSError as error:
            self._tell_unwitnessed(error)

    def _tell_unwitnessed(self, error: Exception) -> None:
        self._log.warning(
            "clock.unwitnessed", directory=str(self._directory), error=str(error)
        )
