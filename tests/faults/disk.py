"""
A disk that fails on request, for processes under test.

`disk_faults.c` is compiled with gcc when it is first needed, and loaded into a process
with ``LD_PRELOAD``.  Machines without gcc cannot run these tests, and say so.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, final

import pytest


__all__ = ["FaultyDisk"]

_SOURCE: Final = Path(__file__).with_name("disk_faults.c")
_MANY: Final = 1_000_000_000


@functools.cache
def _library() -> Path:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not there: faults of the disk cannot be injected")
    library = Path(tempfile.mkdtemp(prefix="disk-faults-")) / "disk_faults.so"
    command = [gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    command += ["-o", str(library), str(_SOURCE), "-ldl", "-pthread"]
    subprocess.run(command, check=True, timeout=120)
    return library


@final
class FaultyDisk:
    """
    The directory of a process under test, whose disk fails on request.

    Args:
        directory: Faults happen to files below it; made if it is not there.
        control: A file to write the faults to.
    """

    def __init__(self, directory: Path, control: Path) -> None:
        self.directory = directory
        self._control = control
        directory.mkdir(parents=True, exist_ok=True)
        self.heal()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that is to have this disk."""
        return {
            **os.environ,
            "LD_PRELOAD": str(_library()),
            "DISK_FAULTS_DIRECTORY": str(self.directory),
            "DISK_FAULTS_CONTROL": str(self._control),
        }

    def fail(
        self, call: str, *, after: int = 0, count: int = _MANY, code: int = errno.EIO
    ) -> None:
        """
        Fail calls from now on.

        Args:
            call: ``sync``, ``write``, ``rename`` or ``size``.
            after: How many calls go well before.
            count: How many calls fail.
            code: What they fail with.
        """
        self._write(f"{call} {after} {count} {code} 0")

    def delay(self, call: str, seconds: float) -> None:
        """Make each *call* take *seconds* longer from now on."""
        self._write(f"{call} 0 {_MANY} 0 {round(seconds * 1e6)}")

    def fill(self, *, free_bytes: int = 0, code: int = errno.ENOSPC) -> None:
        """Leave room for *free_bytes* more; what needs more fails with *code*."""
        used = sum(p.stat().st_size for p in self.directory.iterdir() if p.is_file())
        self._write(f"quota {used + free_bytes} 0 {code} 0")

    def heal(self) -> None:
        """Make everything go well from now on."""
        self._write("")

    def _write(self, rule: str) -> None:
        # Renamed into place: the process reads the file whenever it likes.
        fresh = self._control.with_suffix(".new")
        fresh.write_text(rule + "\n")
        fresh.replace(self._control)
