"""Ranges of rows: whether there are any, and their removal."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from lmdb import Cursor

    from queryablestate.store.groups import RowRanges


__all__ = ["has_row", "remove_rows"]


def has_row(cursor: Cursor[bytes], ranges: RowRanges) -> bool:
    """Return whether there is a row in *ranges*."""
    for first, last in ranges:
        if (cursor.set_range(first) if first else cursor.first()) and (
            last is None or cursor.key() < last
        ):
            return True
    return False


def remove_rows(
    cursor: Cursor[bytes], ranges: RowRanges, count_max: int | None = None
) -> int:
    """Remove the rows in *ranges*, up to *count_max* of them; return how many."""
    count = 0
    for first, last in ranges:
        is_there = cursor.set_range(first) if first else cursor.first()
        while is_there and count != count_max:
            row_key = cursor.key()
            if not row_key or (last is not None and row_key >= last):
                break
            is_there = cursor.delete()
            count += 1
    return count
