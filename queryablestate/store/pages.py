"""
Pages of a scan: what is wanted of a state at once, and when there is enough of it.

A page ends early rather than grow, and rather than look for long at rows that have
expired: the next one goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice import LocalProtocolError
from queryablestate.store.bounded_answer import (
    ANSWER_SIZE_BYTES_MAX,
    ROW_OVERHEAD_SIZE_BYTES,
    Advice,
)
from queryablestate.store.rows import LiveValues


if TYPE_CHECKING:
    from queryablestate.store.state_view import StateView
    from queryablestate.store.steps import ReadWork


__all__ = ["PAGE_SIZE_BYTES_MAX", "Page", "PageRows", "ScanRead"]

PAGE_SIZE_BYTES_MAX: Final = 1 << 20
"""Of a page of a scan, but for its last row: it ends early rather than grow."""

_LOOKS_PER_ROW_MAX: Final = 4
"""A page looks at this many rows for each that is wanted; the others have expired."""

_ROW_OBJECTS_SIZE_BYTES: Final = 100


@final
@frozen
class Page:
    """
    What part of a state is wanted.

    Attributes:
        start: The least key, included; ``b""`` is the beginning.
        stop: The first key that is left out, or None for no end.
        limit: How many rows at most, at least 1.
        size_bytes_max: Of the page, `PAGE_SIZE_BYTES_MAX` at most: it ends before the
            row that is too much, unless that is its first.
        row_size_bytes_max: Of its first row, too: what is larger is no page.
    """

    start: bytes
    stop: bytes | None
    limit: int
    size_bytes_max: int = PAGE_SIZE_BYTES_MAX
    row_size_bytes_max: int = ANSWER_SIZE_BYTES_MAX


@final
@frozen(kw_only=True)
class ScanRead:
    """
    A page of a scan.

    Attributes:
        view: As of what; None if there is no such state.
        rows: Encoded key (with map key or index), value, encoded key, value, …
        next_start: Where the next page starts, or None at the end.  A page may hold
            fewer rows than asked for, even none, and yet not be the last.
        valid_until_us: When the first of these rows expires, or None.
    """

    view: StateView | None
    rows: list[bytes]
    next_start: bytes | None
    valid_until_us: int | None


@final
class PageRows:
    """The rows of a page, until it is full."""

    def __init__(
        self, view: StateView, page: Page, now_us: int, work: ReadWork
    ) -> None:
        assert page.limit >= 1
        self._view = view
        self._live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
        self._work = work
        self._rows: list[bytes] = []
        self._part_count_max = 2 * page.limit
        self._size_left = min(PAGE_SIZE_BYTES_MAX, page.size_bytes_max)
        self._row_size_bytes_max = page.row_size_bytes_max
        self.looks_left = page.limit * _LOOKS_PER_ROW_MAX
        self.is_pause_due = False

    @property
    def is_full(self) -> bool:
        """Return whether no more is looked at."""
        return self.looks_left == 0 or len(self._rows) == self._part_count_max

    def add(self, encoded_key: bytes, stored: bytes) -> bool:
        """Take a row, unless it has expired; return False if it is too much."""
        self.looks_left -= 1
        self.is_pause_due = self._work.look(len(stored))
        value = self._live.value_of(stored)
        if value is None:
            return True
        size_bytes = len(encoded_key) + len(value) + ROW_OVERHEAD_SIZE_BYTES
        self._size_left -= size_bytes
        if self._size_left < 0 and self._rows:
            return False
        if size_bytes > self._row_size_bytes_max:
            raise LocalProtocolError(
                f"the answer takes {size_bytes:,} bytes, and "
                f"{self._row_size_bytes_max:,} are sent at most: "
                f"{Advice.LARGER_ANSWERS.value}"
            )
        self._work.size_bytes += size_bytes + _ROW_OBJECTS_SIZE_BYTES
        self._rows += encoded_key, value
        return True

    def ended(self, next_start: bytes | None) -> ScanRead:
        """Return the page, and where the next one starts."""
        return ScanRead(
            view=self._view,
            rows=self._rows,
            next_start=next_start,
            valid_until_us=self._live.valid_until_us,
        )
