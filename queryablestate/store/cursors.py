"""
Walks over the rows of a `queryablestate.store.store.StateStore`, one LMDB cursor each.

A walk positions the cursor that it is given; two that run at once need two cursors.
"""

from __future__ import annotations

import heapq
from itertools import takewhile
from typing import TYPE_CHECKING, Final, final

from nameservice import LocalProtocolError
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_start
from queryablestate.schema.keys import KEY_SIZE_BYTES_MAX
from queryablestate.store.rows import (
    INDEX_SIZE_BYTES,
    ROW_KEY_SIZE_BYTES_MAX,
    LiveValues,
    successor,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lmdb import Cursor


__all__ = [
    "Looks",
    "has_prefix",
    "is_nothing_outside",
    "is_possible",
    "key_count",
    "merged_groups",
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


@final
class Looks:
    """
    How many rows that have expired a walk may pass over.

    Args:
        count_max: How many; None is any number.
    """

    def __init__(self, count_max: int | None) -> None:
        self._left = count_max

    def take(self) -> None:
        """
        Pass over one more.

        Raises:
            LocalProtocolError: If it is one too many.
        """
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise LocalProtocolError("too many rows have expired to look at each")


def has_prefix(
    cursor: Cursor[memoryview], prefix: bytes, live: LiveValues, looks: Looks
) -> bool:
    """Return whether a row whose key begins with *prefix* has not expired."""
    is_there = cursor.set_range(prefix)
    while is_there and bytes(cursor.key()[: len(prefix)]) == prefix:
        if live.value_of(cursor.value()) is not None:
            return True
        looks.take()
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


def merged_groups(
    cursors: Iterable[Cursor[bytes]],
    key_groups: Sequence[int],
    start: bytes,
    stop: bytes | None,
) -> Iterator[tuple[bytes, Cursor[bytes]]]:
    """
    Yield the encoded keys of a part of some key groups, in their order.

    With each comes the cursor that stands on its row, until the next one is asked for:
    of what lies ahead in the other key groups only the keys are read.

    Args:
        cursors: One for each key group.
        key_groups: Each at most once, in any order.
        start: The least encoded key, included.
        stop: The first encoded key that is left out, or None for no end.
    """
    ahead: list[tuple[bytes, int, Cursor[bytes]]] = []
    # Cut to what LMDB can look for; still longer than any key, so that it sorts alike.
    start = start[: ROW_KEY_SIZE_BYTES_MAX + 1]
    for key_group, cursor in zip(key_groups, cursors, strict=True):
        if cursor.set_range(group_start(key_group) + start):
            encoded = _encoded(cursor, key_group, stop)
            if encoded is not None:
                ahead.append((encoded, key_group, cursor))
    heapq.heapify(ahead)
    while ahead:
        encoded_key, key_group, cursor = ahead[0]
        yield encoded_key, cursor
        encoded = _encoded(cursor, key_group, stop) if cursor.next() else None
        if encoded is None:
            heapq.heappop(ahead)
        else:
            heapq.heapreplace(ahead, (encoded, key_group, cursor))


def _encoded(cursor: Cursor[bytes], key_group: int, stop: bytes | None) -> bytes | None:
    """Return the encoded key under *cursor*, or None beyond *stop* or *key_group*."""
    row_key = cursor.key()
    if not row_key.startswith(group_start(key_group)):
        return None
    encoded = row_key[GROUP_SIZE_BYTES:]
    return None if stop is not None and encoded >= stop else encoded


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
