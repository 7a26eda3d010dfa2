"""
`FreedMemory`: when it is worth having the C library return what was freed.

It keeps what was freed for what comes next.  Thousands of connections that come and go
leave as much as the whole limit (measured), so it counts against the limit like what is
used.  To return it takes milliseconds, in which other threads may wait for memory: so
only where a large part of the limit is taken, and again only once that has grown.
"""

from __future__ import annotations

from typing import Final, final


__all__ = ["FreedMemory"]

_LARGE_PERCENT: Final = 40
_GROWN_BYTES: Final = 8 << 20


@final
class FreedMemory:
    """What the process took when all was returned last, or least since."""

    def __init__(self) -> None:
        self._kept_bytes = 0

    def is_worth_returning(self, resident_bytes: int, limit_bytes: int | None) -> bool:
        """
        Return whether to return it now.

        Args:
            resident_bytes: What the process takes.
            limit_bytes: What it may take; None for any.
        """
        self._kept_bytes = min(self._kept_bytes, resident_bytes)
        return (
            limit_bytes is not None
            and resident_bytes * 100 > limit_bytes * _LARGE_PERCENT
            and resident_bytes > self._kept_bytes + _GROWN_BYTES
        )

    def returned(self, resident_bytes: int) -> None:
        """Record what the process takes now that it was returned."""
        self._kept_bytes = resident_bytes
