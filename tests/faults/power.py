"""
A disk that loses its power, under processes under test.

What a process has written, and never synced, may be lost when the power goes, in any
part and in any order.  Killing a process shows nothing of that: the kernel writes the
rest.  `power_loss.c`, compiled with gcc when it is first needed, keeps what each write
replaces; here it is put back.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pytest
from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


__all__ = ["UnsyncedDisk"]

_SOURCE: Final = Path(__file__).with_name("power_loss.c")
_HEAD: Final = struct.Struct("=5Q")


@functools.cache
def _library() -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not there: the loss of power cannot be simulated")
    library = Path(tempfile.mkdtemp(prefix="power-loss-")) / "power_loss.so"
    command = [gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    command += ["-o", str(library), str(_SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True, timeout=120)
    return library


@final
@frozen
class _Write:
    """A write that may not be on the disk: where, how long, and what it replaced."""

    path: Path
    offset: int
    size: int
    old: bytes

    def take_back(self) -> None:
        """Put back what was there; zeros where nothing was."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            file.write(self.old + bytes(self.size - len(self.old)))


@final
class UnsyncedDisk:
    """
    The directory of a process whose disk has a cache.

    Args:
        directory: Of the files that are looked at.
        journal: A file that says what is in the cache only.
    """

    def __init__(self, directory: Path, journal: Path) -> None:
        self._directory = directory
        self._journal = journal

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to have this disk."""
        return {
            **os.environ,
            "LD_PRELOAD": str(_library()),
            "POWER_LOSS_DIRECTORY": str(self._directory),
            "POWER_LOSS_JOURNAL": str(self._journal),
        }

    def lose_power(self, draw: Random) -> int:
        """
        Take back some of what was not synced, once no process has the files open.

        Args:
            draw: Says which of it; all of it every other time.

        Returns:
            How many writes there were, with those that were synced.
        """
        unsynced: dict[Path, list[_Write]] = {}
        count = 0
        for path, write in self._written():
            count += write is not None
            if write is None:
                unsynced.pop(path, None)
            else:
                unsynced.setdefault(path, []).append(write)
        self._journal.unlink(missing_ok=True)
        is_all = draw.random() < 0.5
        for writes in unsynced.values():
            # Two writes to one place are lost together, or they might change places.
            lost = {one.offset: is_all or draw.random() < 0.5 for one in writes}
            for one in reversed(writes):
                if lost[one.offset]:
                    one.take_back()
        return count

    def _written(self) -> Iterator[tuple[Path, _Write | None]]:
        """Yield each write, and None for each sync of a file."""
        text = self._journal.read_bytes() if self._journal.exists() else b""
        at = 0
        while at + _HEAD.size <= len(text):
            kind, length, offset, size, old_size = _HEAD.unpack_from(text, at)
            at += _HEAD.size
            if at + length + old_size > len(text):
                return  # the process was killed before it wrote anything
            path = Path(os.fsdecode(text[at : at + length]))
            at += length
            old = text[at : at + old_size]
            at += old_size
            is_write = kind == ord("W")
            yield path, _Write(path, offset, size, old) if is_write else None
