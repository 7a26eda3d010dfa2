"""
`MemoryBound`: what a process may take for one statement, held by the kernel.

Theory of operation.  The engine counts what it keeps in tables, sorts and hash tables.
Texts of a result, Arrow batches, values as Python has them and messages are counted by
none.  `RLIMIT_DATA` counts them all: private memory that can be written to, whether it
was touched or not.  What exceeds it is not given, and whatever asked for it fails.

Only Linux counts like this; elsewhere the engine's own bound is all there is.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final, final


__all__ = ["ENVIRONMENT", "MemoryBound"]

ENVIRONMENT: Final = {
    # Others reserve a gigabyte at once, or keep what was freed: both count as taken.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "DUCKDB_JE_MALLOC_CONF": "retain:false",
    # Arrow loads numpy, which would start threads with buffers; nothing computes there.
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables that a process has from its start whose memory is bounded."""

_STATM: Final = Path("/proc/self/statm")
_RESIDENT: Final = 1
_DATA: Final = 5
_LOST_BYTES_MIN: Final = 64 * 1024 * 1024


@final
class MemoryBound:
    """
    The bound of this process; made when it has all that statements share.

    Args:
        limit_bytes: What a statement may take beside what the process has.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._first_bytes = _bytes_of(_RESIDENT) or 0
        self._lost_bytes_max = max(limit_bytes // 2, _LOST_BYTES_MIN)
        _, self._hard = resource.getrlimit(resource.RLIMIT_DATA)

    def begin(self) -> None:
        """Bound a statement, by what the process has now."""
        taken = _bytes_of(_DATA)
        if taken is not None:
            self._set(taken + self._limit_bytes)

    def end(self) -> bool:
        """Lift the bound, and return whether nearly all that was taken is back."""
        self._set(self._hard)
        lost_bytes = (_bytes_of(_RESIDENT) or 0) - self._first_bytes
        return lost_bytes <= self._lost_bytes_max

    def _set(self, soft: int) -> None:
        if self._hard != resource.RLIM_INFINITY:
            soft = min(soft, self._hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._hard))


def _bytes_of(field: int) -> int | None:
    try:
        fields = _STATM.read_text(encoding="ascii").split()
    except OSError:
        return None
    return int(fields[field]) * resource.getpagesize()
