"""
`BoundedAnswer`: values, lists and maps as they are read for one answer (rule B1).

What an answer takes is counted before the next value is read, not when all of it is
there: a question may name a key a thousand times, and a list may have any length.  A
key that is named twice is read once, and counts twice: it is sent twice.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, final

from nameservice import LocalProtocolError
from queryablestate.store.cursors import is_possible, prefix_rows, rows_reversed


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor

    from queryablestate.store.rows import LiveValues


__all__ = ["ROW_OVERHEAD_SIZE_BYTES", "BoundedAnswer"]

ROW_OVERHEAD_SIZE_BYTES: Final = 10
"""What MessagePack adds to a key and a value, at most."""

_PART_OVERHEAD_SIZE_BYTES: Final = 2
# Each is an object of some fifty bytes until the answer is encoded, however short.
_PART_COUNT_MAX: Final = 400_000

T = TypeVar("T")


@final
class BoundedAnswer:
    """
    What is read for one answer.

    Args:
        live: Takes expiries off.
        size_bytes_max: How much it may be.

    Every method raises `LocalProtocolError` if it would be more.
    """

    def __init__(self, live: LiveValues, size_bytes_max: int) -> None:
        self._live = live
        self._size_bytes_max = size_bytes_max
        self._size_left = size_bytes_max
        self._parts_left = _PART_COUNT_MAX

    @property
    def valid_until_us(self) -> int | None:
        """Return when the first of what was looked at expires, or None."""
        return self._live.valid_until_us

    def values(
        self,
        get: Callable[[bytes], memoryview | None],
        keys: Sequence[bytes],
    ) -> list[bytes | None]:
        """Return what *get* gives for each key; copied once it is known to fit."""

        def value_of(key: bytes) -> bytes | None:
            stored = get(key)
            if stored is None:
                return None
            value = self._live.value_of(stored)
            if value is None:
                return None
            self._spend(len(value))
            return bytes(value)

        if len(keys) == 1:
            return [value_of(keys[0])]
        return self._each_once(value_of, keys)

    def lists(
        self, read: Callable[[bytes], list[bytes] | None], keys: Sequence[bytes]
    ) -> list[list[bytes] | None]:
        """Return what *read*, one of the methods below, gives for each key."""
        return self._each_once(read, keys)

    def items(
        self, cursor: Cursor[bytes], key: bytes, start: int, stop: int | None
    ) -> list[bytes] | None:
        """Return a slice of a list, or None if it has no items."""
        if not is_possible(key):
            return None
        start = max(-sys.maxsize, min(start, sys.maxsize))
        if stop is not None:
            stop = max(-sys.maxsize, min(stop, sys.maxsize))
        if start < 0 and (stop is None or stop < 0):
            from_end = self._values(rows_reversed(cursor, key))
            kept = self._kept(islice(from_end, -(stop or 0), -start))
            kept.reverse()
        else:
            if start < 0 or (stop is not None and stop < 0):
                # One end is counted from the end of the list, which must be found.
                count = sum(1 for _ in self._values(prefix_rows(cursor, key)))
                start, stop, _ = slice(start, stop).indices(count)
                stop = max(start, stop)
            kept = self._kept(
                islice(self._values(prefix_rows(cursor, key)), start, stop)
            )
        if not kept and next(self._values(prefix_rows(cursor, key)), None) is None:
            return None
        return kept

    def entries(self, cursor: Cursor[bytes], key: bytes) -> list[bytes] | None:
        """Return the entries of a map, or None if it has none."""
        if not is_possible(key):
            return None
        entries: list[bytes] = []
        for row_key, stored in prefix_rows(cursor, key):
            value = self._live.value_of(stored)
            if value is not None:
                map_key = row_key[len(key) :]
                self._spend(len(map_key))
                self._spend(len(value))
                entries += map_key, bytes(value)
        return entries or None

    def _each_once(
        self, read: Callable[[bytes], T | None], keys: Sequence[bytes]
    ) -> list[T | None]:
        """Return what *read* gives for each key; what is repeated is counted again."""
        known: dict[bytes, tuple[T | None, int, int]] = {}
        found: list[T | None] = []
        for key in keys:
            earlier = known.get(key)
            if earlier is None:
                size_left, parts_left = self._size_left, self._parts_left
                value = read(key)
                size_bytes = size_left - self._size_left
                known[key] = (value, size_bytes, parts_left - self._parts_left)
            else:
                value, size_bytes, part_count = earlier
                self._take(size_bytes, part_count)
            found.append(value)
        return found

    def _values(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for _, stored in rows:
            value = self._live.value_of(stored)
            if value is not None:
                yield bytes(value)

    def _kept(self, values: Iterator[bytes]) -> list[bytes]:
        kept = []
        for value in values:
            self._spend(len(value))
            kept.append(value)
        return kept

    def _spend(self, size_bytes: int) -> None:
        self._take(size_bytes + _PART_OVERHEAD_SIZE_BYTES, 1)

    def _take(self, size_bytes: int, part_count: int) -> None:
        self._size_left -= size_bytes
        self._parts_left -= part_count
        if self._size_left < 0 or self._parts_left < 0:
            raise LocalProtocolError(
                f"the answer takes more than {self._size_bytes_max:,} bytes, or has "
                f"more than {_PART_COUNT_MAX:,} values: ask for fewer keys at once, "
                "for a slice of the list, or for single entries of the map"
            )
