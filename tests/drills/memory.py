"""`Memory`: how much a process takes while something goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self


__all__ = ["MEBIBYTE", "Memory"]

MEBIBYTE: Final = 1024 * 1024


class Memory:
    """The resident set of a process, watched by a thread; a context manager."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._has_ended = threading.Event()
        self.before_bytes = self.peak_bytes = self.now()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def now(self) -> int:
        """Return what it is now, in bytes."""
        return int(self._file.read_text().split()[1]) * 4_096

    def _watch(self) -> None:
        while not self._has_ended.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, self.now())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._has_ended.set()
        self._thread.join()
