"""
`RewindWatch`: whether a query has run again from an older copy of its checkpoint; pure.

Theory of operation.  A checkpoint that was put back to an older batch, with which the
query has run again as far as it was, has the same numbers for other rows.  The file of
a commit is written once: if that of the published batch is not of the time any more at
which it was read, what is published is of a run that is undone.  Who has read nothing
yet asks whether the file is newer than the proxy's decision on that batch.  Where
clocks differ by more than a second, that may see a run that there was not, or miss one
within the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["RewindWatch"]

_CLOCKS_DIFFER_MS: Final = 1_000
"""By how much the clocks of file systems may be ahead of those of proxies."""


@final
class RewindWatch:
    """
    Compares times of one batch's commit.  For one thread.

    Args:
        committed_at_ms: Returns when a batch was committed, ms since 1970 UTC; None if
            it is purged.

    Attributes:
        is_rewound: Whether what is published is of a run that is undone.
    """

    def __init__(self, committed_at_ms: Callable[[int], int | None]) -> None:
        self.is_rewound = False
        self._committed_at_ms = committed_at_ms
        # The batch that was read last, and the time of its commit at that moment.
        self._read: tuple[int, int | None] | None = None

    def is_as_it_was(self, published: int) -> bool:
        """Return whether that batch is kept, and what was read is what is there."""
        found_ms = self._committed_at_ms(published)
        if found_ms is None:
            return False
        if self._read is not None:
            batch_id, read_ms = self._read
            if batch_id == published and read_ms not in {None, found_ms}:
                self.is_rewound = True
        return not self.is_rewound

    def compare_with_decision(self, batch_id: int, decided_at_ms: int) -> None:
        """
        Compare the published batch with when the proxy decided on it, unless we did.

        Args:
            batch_id: The batch.
            decided_at_ms: When that was, ms since 1970 UTC.
        """
        if self._read is not None and self._read[0] == batch_id:
            return
        found_ms = self._committed_at_ms(batch_id)
        self._read = batch_id, found_ms
        if found_ms is not None:
            self.is_rewound = found_ms > decided_at_ms + _CLOCKS_DIFFER_MS

    def published(self, batch_id: int, committed_at_ms: int | None) -> None:
        """
        Record that a batch is published.

        Args:
            batch_id: The batch.
            committed_at_ms: When it was committed, as found before it was read.
        """
        self._read = batch_id, committed_at_ms
        self.is_rewound = False
