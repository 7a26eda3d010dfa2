"""
`BoundedAnswer`: values, lists and maps as they are read for one answer (rule B1).

What an answer takes is counted before the next value is read, not when all of it is
there: a question may name a key a thousand times, and a list may have any length.  A
key that is named twice is read once, and counts twice: it is sent twice.
"""

from __future__ import annotations

import sys
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import LocalProtocolError
from queryablestate.store.cursors import (
    is_possible,
    look_up,
    prefix_rows,
    rows_reversed,
)
from queryablestate.wire.slices import SLICE_SIZE_BYTES, copy_in_slices


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor, _Database

    from queryablestate.store.rows import LiveValues
    from queryablestate.store.steps import ReadWork, Steps


__all__ = [
    "ANSWER_SIZE_BYTES_MAX",
    "ROW_OVERHEAD_SIZE_BYTES",
    "Advice",
    "BoundedAnswer",
    "fewer_than",
]

ANSWER_SIZE_BYTES_MAX: Final = 16 << 20
"""Of what one call returns, unless it says: more is refused, not built in memory."""

ROW_OVERHEAD_SIZE_BYTES: Final = 10
"""What MessagePack adds to a key and a value, at most."""

_PART_OVERHEAD_SIZE_BYTES: Final = 2
# Each is an object of some fifty bytes until the answer is encoded, however short.
_PART_COUNT_MAX: Final = 400_000
_OBJECT_SIZE_BYTES: Final = 50
_LOOKUP_COUNT: Final = 256


@final
class Advice(Enum):
    """What to ask where an answer would be too large."""

    FEWER_KEYS = "ask for fewer keys at once"
    LARGER_ANSWERS = "it is one row: raise answer_size_bytes_max of the node"
    LIST_SLICE = "ask for a slice of the list: get_list with start and stop"
    MAP_PAGES = (
        "read the map in pages (scan_map, or lodestar scan --key), or single entries "
        "of it (get_map_entry, or lodestar get --map-key)"
    )


def fewer_than(keys: Sequence[bytes]) -> Advice:
    """Return what to ask where the values under *keys* are too much."""
    return Advice.FEWER_KEYS if len(keys) > 1 else Advice.LARGER_ANSWERS


def _copies(
    views: Sequence[memoryview | None],
) -> Steps[list[bytes | bytearray | None]]:
    """Return what is in *views*: they are the store's, and end with the transaction."""
    copies: list[bytes | bytearray | None] = []
    for view in views:
        if view is None:
            copies.append(None)
        elif len(view) <= SLICE_SIZE_BYTES:
            copies.append(bytes(view))
        else:
            copies.append((yield from copy_in_slices(view)))
    return copies


@final
class BoundedAnswer:
    """
    What is read for one answer.

    Args:
        live: Takes expiries off.
        size_bytes_max: How much it may be.
        work: Is told what was read, and says when to pause.
        advice: What is advised if it would be more.

    Every method raises `LocalProtocolError` if it would be more.
    """

    def __init__(
        self,
        live: LiveValues,
        size_bytes_max: int,
        work: ReadWork,
        advice: Advice,
    ) -> None:
        self._live = live
        self._size_bytes_max = size_bytes_max
        self._size_left = size_bytes_max
        self._parts_left = _PART_COUNT_MAX
        self._work = work
        self._advice = advice

    @property
    def valid_until_us(self) -> int | None:
        """Return when the first of what was looked at expires, or None."""
        return self._live.valid_until_us

    def values(
        self, get: Callable[..., Any], database: _Database, keys: Sequence[bytes]
    ) -> Steps[list[bytes | None]]:
        """
        Return the value of each key.

        Args:
            get: `lmdb.Transaction.get`; views are copied once it is known that they
                fit.
            database: Where the rows are.
            keys: Any number.
        """
        is_distinct = len(keys) == 1 or len(set(keys)) == len(keys)
        distinct = keys if is_distinct else list(dict.fromkeys(keys))
        known: list[bytes | None] = []
        for first in range(0, len(distinct), _LOOKUP_COUNT):
            live = look_up(get, database, distinct[first : first + _LOOKUP_COUNT])
            if self._live.has_ttl:
                live = self._live.values_of(live)
            there = [one for one in live if one is not None] if None in live else live
            size_bytes = sum(map(len, there))
            self._spend(size_bytes, len(there))
            self._hold(size_bytes, len(there))
            if there and type(there[0]) is not bytes:
                live = yield from _copies(live)
            known += live
            if self._work.look_up(len(live), size_bytes):
                yield
        if is_distinct:
            return known
        found = dict(zip(distinct, known, strict=True))
        for key, count in Counter(keys).items():
            value = found[key]
            if value is not None:
                self._spend((count - 1) * len(value), count - 1)
        return [found[key] for key in keys]

    def lists(
        self,
        read: Callable[[bytes], Steps[list[bytes] | None]],
        keys: Sequence[bytes],
    ) -> Steps[list[list[bytes] | None]]:
        """Return what *read*, one of the methods below, gives for each key."""
        known: dict[bytes, tuple[list[bytes] | None, int, int]] = {}
        found: list[list[bytes] | None] = []
        for key in keys:
            earlier = known.get(key)
            if earlier is None:
                size_left, parts_left = self._size_left, self._parts_left
                value = yield from read(key)
                size_bytes = size_left - self._size_left
                known[key] = (value, size_bytes, parts_left - self._parts_left)
            else:
                value, size_bytes, part_count = earlier
                self._take(size_bytes, part_count)
            found.append(value)
        return found

    def items(
        self, cursor: Cursor[bytes], key: bytes, start: int, stop: int | None
    ) -> Steps[list[bytes] | None]:
        """Return a slice of a list, or None if it has no items."""
        if not is_possible(key):
            return None
        start = max(-sys.maxsize, min(start, sys.maxsize))
        if stop is not None:
            stop = max(-sys.maxsize, min(stop, sys.maxsize))
        if start < 0 and (stop is None or stop < 0):
            from_end = rows_reversed(cursor, key)
            kept = yield from self._kept(from_end, -(stop or 0), -start)
            kept.reverse()
        else:
            if start < 0 or (stop is not None and stop < 0):
                # One end is counted from the end of the list, which must be found.
                count = yield from self._count(prefix_rows(cursor, key), None)
                start, stop, _ = slice(start, stop).indices(count)
                stop = max(start, stop)
            kept = yield from self._kept(prefix_rows(cursor, key), start, stop)
        if not kept and not (yield from self._count(prefix_rows(cursor, key), 1)):
            return None
        return kept

    def entries(self, cursor: Cursor[bytes], key: bytes) -> Steps[list[bytes] | None]:
        """Return the entries of a map, or None if it has none."""
        if not is_possible(key):
            return None
        entries: list[bytes] = []
        for row_key, stored in prefix_rows(cursor, key):
            value = self._live.value_of(stored)
            if value is not None:
                map_key = row_key[len(key) :]
                size_bytes = len(map_key) + len(value)
                self._spend(size_bytes, 2)
                self._hold(size_bytes, 2)
                entries += map_key, bytes(value)
            if self._work.look(len(stored)):
                yield
        return entries or None

    def _count(
        self, rows: Iterator[tuple[bytes, bytes]], count_max: int | None
    ) -> Steps[int]:
        """Return how many of *rows* have not expired, up to *count_max*."""
        count = 0
        for _, stored in rows:
            if self._live.value_of(stored) is not None:
                count += 1
                if count == count_max:
                    break
            if self._work.look(len(stored)):
                yield
        return count

    def _kept(
        self, rows: Iterator[tuple[bytes, bytes]], start: int, stop: int | None
    ) -> Steps[list[bytes]]:
        """Return a slice of what has not expired of *rows*; no end is negative."""
        kept: list[bytes] = []
        index = 0
        while stop is None or index < stop:
            row = next(rows, None)
            if row is None:
                break
            value = self._live.value_of(row[1])
            if value is not None:
                if index >= start:
                    self._spend(len(value), 1)
                    self._hold(len(value), 1)
                    kept.append(value)
                index += 1
            if self._work.look(len(row[1])):
                yield
        return kept

    def _hold(self, size_bytes: int, part_count: int) -> None:
        self._work.size_bytes += size_bytes + part_count * _OBJECT_SIZE_BYTES

    def _spend(self, size_bytes: int, part_count: int) -> None:
        self._take(size_bytes + part_count * _PART_OVERHEAD_SIZE_BYTES, part_count)

    def _take(self, size_bytes: int, part_count: int) -> None:
        self._size_left -= size_bytes
        self._parts_left -= part_count
        if self._size_left < 0 or self._parts_left < 0:
            raise LocalProtocolError(
                f"the answer takes more than {self._size_bytes_max:,} bytes, or has "
                f"more than {_PART_COUNT_MAX:,} values: {self._advice.value}"
            )
