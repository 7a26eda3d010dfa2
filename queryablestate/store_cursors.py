"""
Walks over the rows of a `queryablestate.store.StateStore`, one LMDB cursor each.

A walk positions the cursor that it is given; two that run at once need two cursors.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from queryablestate.key_codec import KEY_SIZE_BYTES_MAX
from queryablestate.store_rows import (
    GROUP_SIZE_BYTES,
    INDEX_SIZE_BYTES,
    ROW_KEY_SIZE_BYTES_MAX,
    LiveValues,
    group_end,
    group_start,
    successor,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor


__all__ = [
    "group_rows",
    "is_nothing_outside",
    "is_possible",
    "key_count",
    "prefix_rows",
    "row_count",
    "rows_from",
    "rows_reversed",
    "size_without_index",
]

_INDEX_BEYOND: Final = b"\xff" * INDEX_SIZE_BYTES


def is_possible(key: bytes) -> bool:
    """Return whether there can be a row with that storage key: LMDB is particular."""
    return 0 < len(key) <= GROUP_SIZE_BYTES + KEY_SIZE_BYTES_MAX


def prefix_rows(cursor: Cursor[bytes], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys begin with *prefix*, in their order."""
    if cursor.set_range(prefix):
        for row in cursor.iternext():
            if not row[0].startswith(prefix):
                return
            yield row


def rows_from(cursor: Cursor[bytes], start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows from *start* on, included; ``b""`` is the first one."""
    if cursor.set_range(start) if start else cursor.first():
        yield from cursor.iternext()


def rows_reversed(cursor: Cursor[bytes], key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a list, the last one first."""
    beyond = key + _INDEX_BEYOND
    if cursor.prev() if cursor.set_range(beyond) else cursor.last():
        for row in cursor.iterprev():
            if not row[0].startswith(key):
                return
            yield row


def group_rows(
    cursor: Cursor[bytes], key_group: int, start: bytes, stop: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield encoded key and stored value of a part of a key group."""
    group = group_start(key_group)
    # Cut to what LMDB can look for; still longer than any key, so that it sorts alike.
    first = group + start[: ROW_KEY_SIZE_BYTES_MAX + 1]
    end = group_end(key_group) if stop is None else group + stop
    if cursor.set_range(first):
        for row_key, stored in cursor.iternext():
            if end is not None and row_key >= end:
                return
            yield row_key[GROUP_SIZE_BYTES:], stored


def row_count(
    cursor: Cursor[bytes], first: bytes, last: bytes | None, live: LiveValues
) -> int:
    """Return how many rows that have not expired lie in a range."""
    if not cursor.set_range(first):
        return 0
    if live.has_ttl:
        rows = takewhile(lambda row: last is None or row[0] < last, cursor.iternext())
        return sum(live.value_of(stored) is not None for _, stored in rows)
    keys = cursor.iternext(values=False)
    return sum(1 for _ in (keys if last is None else takewhile(last.__gt__, keys)))


def key_count(
    cursor: Cursor[bytes],
    first: bytes,
    last: bytes | None,
    key_size_of: Callable[[bytes], int],
    live: LiveValues,
) -> int:
    """Return how many keys have a row in a range that has not expired."""
    count = 0
    is_there = cursor.set_range(first)
    while is_there:
        row_key = cursor.key()
        if last is not None and row_key >= last:
            break
        if live.value_of(cursor.value()) is None:
            is_there = cursor.next()
            continue
        count += 1
        key_size_bytes = key_size_of(row_key[GROUP_SIZE_BYTES:])
        beyond = successor(row_key[: GROUP_SIZE_BYTES + key_size_bytes])
        is_there = beyond is not None and cursor.set_range(beyond)
    return count


def size_without_index(encoded: bytes) -> int:
    """Return how long the key is that the row of an item begins with."""
    return len(encoded) - INDEX_SIZE_BYTES


def is_nothing_outside(
    cursor: Cursor[bytes], ranges: Sequence[tuple[bytes, bytes | None]]
) -> bool:
    """Return whether all rows lie in *ranges*, which are sorted and do not touch."""
    begin: bytes | None = b""
    for first, last in ranges:
        assert begin is not None
        if _has_row(cursor, begin, first):
            return False
        begin = last
    return begin is None or not _has_row(cursor, begin, None)


def _has_row(cursor: Cursor[bytes], first: bytes, last: bytes | None) -> bool:
    is_there = cursor.set_range(first) if first else cursor.first()
    return is_there and (last is None or cursor.key() < last)
