"""
Walks over the rows of a `queryablestate.store.store.StateStore`, one LMDB cursor each.

A walk positions the cursor that it is given; two that run at once need two cursors.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import lmdb

from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_of, group_start
from queryablestate.schema.keys import ITEM_INDEX_SIZE_BYTES, KEY_SIZE_BYTES_MAX
from queryablestate.store.rows import (
    ROW_KEY_SIZE_BYTES_MAX,
    LiveValues,
    successor,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor, _Database

    from queryablestate.store.steps import ReadWork, Steps


__all__ = [
    "GroupMerge",
    "has_prefix",
    "is_nothing_outside",
    "is_possible",
    "key_count",
    "least_keys",
    "look_up",
    "occupied_ranges",
    "prefix_rows",
    "row_count",
    "rows_from",
    "rows_reversed",
    "size_without_index",
]

Range: TypeAlias = "tuple[bytes, bytes | None]"
"""The first row key, and the first one behind: None for no end."""

_INDEX_BEYOND: Final = b"\xff" * ITEM_INDEX_SIZE_BYTES
_BEYOND_ALL: Final = b"\xff" * (ROW_KEY_SIZE_BYTES_MAX + 1)
# A cursor takes about a kilobyte.
_CURSOR_COUNT_MAX: Final = 1_000
_LEAST_COUNT_MIN: Final = 1_000
_COUNT_STEP: Final = 256


def is_possible(key: bytes) -> bool:
    """Return whether there can be a row with that storage key: LMDB is particular."""
    return 0 < len(key) <= GROUP_SIZE_BYTES + KEY_SIZE_BYTES_MAX


def look_up(
    get: Callable[..., Any], database: _Database, keys: Sequence[bytes]
) -> list[Any]:
    """Return what *get* of a transaction returns for each key, None for nothing."""
    try:
        return [get(key, None, database) for key in keys]
    except lmdb.BadValsizeError:
        return [get(key, None, database) if is_possible(key) else None for key in keys]


def prefix_rows(cursor: Cursor[bytes], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows whose keys begin with *prefix*, in their order."""
    if cursor.set_range(prefix):
        for row in cursor.iternext():
            if not row[0].startswith(prefix):
                return
            yield row


def has_prefix(
    cursor: Cursor[memoryview], prefix: bytes, live: LiveValues, work: ReadWork
) -> Steps[bool]:
    """Return whether a row whose key begins with *prefix* has not expired."""
    is_there = cursor.set_range(prefix)
    while is_there and bytes(cursor.key()[: len(prefix)]) == prefix:
        if live.value_of(cursor.value()) is not None:
            return True
        if work.look():
            yield
        is_there = cursor.next()
    return False


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


def occupied_ranges(
    cursor: Cursor[bytes], ranges: Sequence[Range], start: bytes = b""
) -> Iterator[Range]:
    """
    Yield those of *ranges* that have a row; the cursor stands on the first one.

    What lies between two rows is passed over by one look, however many ranges it is.

    Args:
        cursor: May be moved in between.
        ranges: Sorted; none overlap.
        start: Rows below are left out.
    """
    index = bisect_right(ranges, start, key=_end_of)
    while index < len(ranges):
        first, last = ranges[index]
        if not cursor.set_range(max(first, start)):
            return
        row_key = cursor.key()
        if last is None or row_key < last:
            yield first, last
            index += 1
        else:  # the next one that ends behind that row
            index = bisect_right(ranges, row_key, index + 1, key=_end_of)


def _end_of(one: Range) -> bytes:
    return _BEYOND_ALL if one[1] is None else one[1]


def least_keys(  # noqa: PLR0917 (as `merged_groups`)
    cursor: Cursor[bytes],
    key_groups: Sequence[int],
    start: bytes,
    stop: bytes | None,
    count_max: int,
    work: ReadWork,
) -> Steps[list[tuple[bytes, int]]]:
    """
    Return the least encoded key of each key group that has one, and the key group.

    Takes one look for each key group that has rows: the others lie between two rows.

    Args:
        cursor: Is moved.
        key_groups: Each at most once, sorted.
        start: The least encoded key, included.
        stop: The first encoded key that is left out, or None for no end.
        count_max: How many are wanted, the least of them.
        work: Of this read.
    """
    found: list[tuple[bytes, int]] = []
    index = 0
    while index < len(key_groups):
        if work.move():
            yield
        key_group = key_groups[index]
        if not cursor.set_range(group_start(key_group) + start):
            break
        row_key = cursor.key()
        group_found = group_of(row_key)
        if group_found != key_group:
            index = bisect_left(key_groups, group_found, index + 1)
            continue
        index += 1
        encoded = row_key[GROUP_SIZE_BYTES:]
        if stop is None or encoded < stop:
            found.append((encoded, key_group))
            if len(found) >= 2 * count_max + _LEAST_COUNT_MIN:
                found = heapq.nsmallest(count_max, found)
    return found


@final
class GroupMerge:
    """
    A walk over several key groups at once, in the order of encoded keys.

    Of what lies ahead in the other key groups only the keys are read.

    Args:
        new_cursor: Makes a cursor.
        ahead: `least_keys`; is used up.
        stop: The first encoded key that is left out, or None for no end.
    """

    def __init__(
        self,
        new_cursor: Callable[[], Cursor[bytes]],
        ahead: list[tuple[bytes, int]],
        stop: bytes | None,
    ) -> None:
        self._new_cursor = new_cursor
        self._ahead = ahead
        self._stop = stop
        self._cursors: dict[int, Cursor[bytes]] = {}
        self._shared: Cursor[bytes] | None = None
        heapq.heapify(ahead)

    @property
    def next_key(self) -> bytes | None:
        """Return the encoded key of the next row, or None at the end."""
        return self._ahead[0][0] if self._ahead else None

    def value(self) -> bytes:
        """Return what is stored in the next row."""
        return self._cursor().value()

    def advance(self) -> None:
        """Go behind the next row."""
        _, key_group = self._ahead[0]
        cursor = self._cursor()
        if cursor.next():
            row_key = cursor.key()
            encoded = row_key[GROUP_SIZE_BYTES:]
            if row_key.startswith(group_start(key_group)) and (
                self._stop is None or encoded < self._stop
            ):
                heapq.heapreplace(self._ahead, (encoded, key_group))
                return
        heapq.heappop(self._ahead)
        self._cursors.pop(key_group, None)

    def _cursor(self) -> Cursor[bytes]:
        """Return a cursor that stands on the next row."""
        encoded, key_group = self._ahead[0]
        cursor = self._cursors.get(key_group)
        if cursor is not None:
            return cursor
        if len(self._cursors) < _CURSOR_COUNT_MAX:
            cursor = self._cursors[key_group] = self._new_cursor()
        else:
            if self._shared is None:
                self._shared = self._new_cursor()
            cursor = self._shared
        cursor.set_key(group_start(key_group) + encoded)
        return cursor


def row_count(
    cursor: Cursor[bytes], last: bytes | None, live: LiveValues, work: ReadWork
) -> Steps[int]:
    """Return how many rows that have not expired follow, up to *last*, excluded."""
    count = 0
    if live.has_ttl:
        rows = cursor.iternext()
        if last is not None:
            end = last
            rows = takewhile(lambda row: row[0] < end, rows)
        for _, stored in rows:
            count += live.value_of(stored) is not None
            if work.look():
                yield
        return count
    keys: Iterator[bytes] = cursor.iternext(values=False)
    if last is not None:
        keys = takewhile(last.__gt__, keys)
    while found := sum(1 for _ in islice(keys, _COUNT_STEP)):
        count += found
        work.row_count += found
        if work.move(found << 8):  # a row without its value takes a quarter as long
            yield
    return count


def key_count(
    cursor: Cursor[bytes],
    last: bytes | None,
    key_size_of: Callable[[bytes], int],
    live: LiveValues,
    work: ReadWork,
) -> Steps[int]:
    """Return how many keys have a row that has not expired, up to *last*, excluded."""
    count = 0
    is_there = True
    while is_there:
        row_key = cursor.key()
        if last is not None and row_key >= last:
            break
        if work.look():
            yield
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
    return len(encoded) - ITEM_INDEX_SIZE_BYTES


def is_nothing_outside(
    cursor: Cursor[bytes], ranges: Sequence[Range], work: ReadWork
) -> Steps[bool]:
    """Return whether all rows lie in *ranges*, which are sorted and do not touch."""
    begin: bytes | None = b""
    for first, last in ranges:
        assert begin is not None
        if work.move():
            yield
        if _has_row(cursor, begin, first):
            return False
        begin = last
    return begin is None or not _has_row(cursor, begin, None)


def _has_row(cursor: Cursor[bytes], first: bytes, last: bytes | None) -> bool:
    is_there = cursor.set_range(first) if first else cursor.first()
    return is_there and (last is None or cursor.key() < last)
