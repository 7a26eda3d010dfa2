"""
Rows as they are staged and stored: what is legal, who wins, what has expired.

A stored value of a state with TTL begins with 8 bytes, most significant first: when it
expires, in microseconds since 1970 UTC, 0 for never.  From that moment on it is absent
for every reader, whether or not it has been removed yet.
"""

from __future__ import annotations

import operator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar, final

from nameservice import RemoteProtocolError
from queryablestate.errors import KeyTooLargeError
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_start
from queryablestate.schema.keys import ITEM_INDEX_SIZE_BYTES, KEY_SIZE_BYTES_MAX


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from queryablestate.wire.staging_messages import StageChunk, StagedRows


__all__ = [
    "EXPIRY_SIZE_BYTES",
    "ROW_KEY_SIZE_BYTES_MAX",
    "LiveValues",
    "OrderedRows",
    "check_chunk",
    "group_end",
    "item_rows",
    "joined_groups",
    "successor",
]

EXPIRY_SIZE_BYTES: Final = 8
ROW_KEY_SIZE_BYTES_MAX: Final = (
    GROUP_SIZE_BYTES + KEY_SIZE_BYTES_MAX + ITEM_INDEX_SIZE_BYTES
)

_KEY_GROUP_MAX: Final = 2 ** (8 * GROUP_SIZE_BYTES) - 1
_CHUNK_INDEX_MAX: Final = 2**32 - 1
_NEVER: Final = bytes(EXPIRY_SIZE_BYTES)

Stored = TypeVar("Stored", bytes, memoryview)


def check_chunk(chunk: StageChunk, rows: StagedRows) -> None:
    """
    Raise unless a chunk can be applied: otherwise it would stop the chain of its job.

    Raises:
        KeyTooLargeError: If a key does not fit.
        RemoteProtocolError: If a number is out of range, the lists are not of one
            length, or the keys are not sorted.
    """
    if not 0 <= chunk.chunk_index <= _CHUNK_INDEX_MAX:
        raise RemoteProtocolError(
            "malformed", f"a chunk has the index {chunk.chunk_index}"
        )
    counts = {len(rows.keys), len(rows.values)}
    if rows.orders is not None:
        counts.add(len(rows.orders))
    if len(counts) > 1:
        raise RemoteProtocolError(
            "malformed", "a chunk has not as many values or orders as keys"
        )
    if not rows.keys:
        return
    sizes = list(map(len, rows.keys))
    if min(sizes) < GROUP_SIZE_BYTES:
        raise RemoteProtocolError("malformed", "a key has no key group")
    size_bytes = max(sizes) - GROUP_SIZE_BYTES
    if size_bytes > KEY_SIZE_BYTES_MAX:
        raise KeyTooLargeError(size_bytes, KEY_SIZE_BYTES_MAX)
    if not all(map(operator.le, rows.keys, islice(rows.keys, 1, None))):
        raise RemoteProtocolError("malformed", "the keys of a chunk are not sorted")


@final
class OrderedRows:
    """
    Rows of one state and one batch that came with orders, until all of them are known.

    Holds all of them in memory: which one wins is known with the last chunk only.
    """

    def __init__(self, *, is_list: bool) -> None:
        self._is_list = is_list
        self._winners: dict[bytes, tuple[bytes, bytes | None]] = {}
        self._items: list[tuple[bytes, bytes, bytes | None]] = []

    def add(
        self,
        keys: list[bytes],
        values: list[bytes | None],
        orders: list[bytes],
    ) -> None:
        """Take the rows of one more chunk, in the order of stages and chunks."""
        if self._is_list:
            self._items += zip(keys, orders, values, strict=True)
            return
        winners = self._winners
        added = dict(zip(keys, zip(orders, values, strict=True), strict=True))
        if len(added) == len(keys) and winners.keys().isdisjoint(added):
            winners.update(added)  # as a rule: a key comes from one task only
            return
        for key, order, value in zip(keys, orders, values, strict=True):
            best = winners.get(key)
            if best is None or _rank(order, value) > _rank(*best):
                winners[key] = (order, value)

    def settled(self) -> tuple[list[bytes], list[bytes | None]]:
        """
        Return keys and values as they are to be applied, sorted by key.

        Of rows with one key the one with the greatest order is left, then the one with
        the greatest value; a delete is less than any.  Items of lists are all left, in
        their orders, and in the order in which they were added where these are equal.
        """
        if self._is_list:
            items = sorted(self._items, key=operator.itemgetter(0, 1))
            return [item[0] for item in items], [item[2] for item in items]
        keys = sorted(self._winners)
        return keys, [self._winners[key][1] for key in keys]


def _rank(order: bytes, value: bytes | None) -> tuple[bytes, bool, bytes]:
    return (order, value is not None, value or b"")


def item_rows(
    keys: Iterable[bytes],
    values: Iterable[bytes | None],
    *,
    index_first: int,
    counts: dict[bytes, int],
) -> Iterator[tuple[bytes, bytes | None]]:
    """
    Yield what to do to lists: append an item, or clear a list.

    Args:
        index_first: Of the items that this entry of the chain brings.
        counts: How many it has brought for each key so far; counted on.

    Yields:
        Row key with index and value of an item, or storage key and None to clear.
    """
    for key, value in zip(keys, values, strict=True):
        if value is None:
            yield key, None
        else:
            count = counts.get(key, 0)
            counts[key] = count + 1
            index = index_first + count
            yield key + index.to_bytes(ITEM_INDEX_SIZE_BYTES, "big"), value


def group_end(key_group: int) -> bytes | None:
    """Return the least row key that could come after *key_group*, or None."""
    return None if key_group == _KEY_GROUP_MAX else group_start(key_group + 1)


def joined_groups(groups: Iterable[int]) -> list[tuple[bytes, bytes | None]]:
    """
    Return the ranges of row keys that *groups* take up, neighbours as one.

    Returns:
        First row key included, last excluded (None for no end); sorted, none touch.
    """
    ranges: list[tuple[bytes, bytes | None]] = []
    for key_group in sorted(groups):
        first = group_start(key_group)
        last = group_end(key_group)
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def successor(prefix: bytes) -> bytes | None:
    """Return the least key above all that begin with *prefix*, or None."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


@final
class LiveValues:
    """
    Takes the expiry off stored values, for one read at one moment.

    Attributes:
        has_ttl: Whether stored values begin with an expiry at all.
    """

    def __init__(self, *, has_ttl: bool, now_us: int) -> None:
        self.has_ttl = has_ttl
        self._now = now_us.to_bytes(EXPIRY_SIZE_BYTES, "big")
        self._first: bytes | None = None

    @property
    def valid_until_us(self) -> int | None:
        """Return when the first of the values given out expires, or None."""
        return None if self._first is None else int.from_bytes(self._first, "big")

    def values_of(self, stored: list[Stored | None]) -> list[Stored | None]:
        """Return `value_of` for each, None for None."""
        if not self.has_ttl:
            return stored
        value_of = self.value_of
        return [None if one is None else value_of(one) for one in stored]

    def value_of(self, stored: Stored) -> Stored | None:
        """Return the value, or None if it has expired."""
        if not self.has_ttl:
            return stored
        expiry = bytes(stored[:EXPIRY_SIZE_BYTES])
        if expiry != _NEVER:
            if expiry <= self._now:
                return None
            if self._first is None or expiry < self._first:
                self._first = expiry
        return stored[EXPIRY_SIZE_BYTES:]
