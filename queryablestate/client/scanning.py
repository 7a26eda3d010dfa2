"""
`Scan`: the rows of all nodes in the order of their keys, page by page; pure.

Theory of operation.  Every node holds some key groups, and gives its rows in the order
of their keys.  A row may be told once no node can still have a smaller one: each node
that is not at its end has said where it will go on, and what is below the least of
these places is complete.

A page is read at one moment, two pages at two: a scan is no snapshot.  If key groups
move meanwhile, the scan goes on by the new route behind the last row that was told: a
key's place in the order is the same wherever it is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, TypeAlias, final

from attrs import define, frozen

from nameservice.errors import RemoteProtocolError
from queryablestate.client.routes import Route
from queryablestate.schema.key_groups import GROUP_SIZE_BYTES, group_of
from queryablestate.wire.questions import Reading, ScanRows


__all__ = [
    "PAGE_ROW_COUNT_MAX",
    "Scan",
    "ScanBounds",
    "ScannedPage",
    "ScannedRow",
    "bounds_of",
    "map_bounds_of",
    "prefix_end",
]

PAGE_ROW_COUNT_MAX: Final = 1_000
"""Rows of one page; `ScanRows` allows more, but pages are held in memory."""

ScannedRow: TypeAlias = tuple[bytes, bytes]
"""The encoded key and the value, as they are stored; `Route.decode_page` reads them."""


@final
@frozen
class ScannedPage:
    """
    Rows that are next, over all nodes.

    Attributes:
        route: The route by which they were asked for.
        rows: In the order of their encoded keys, if it is a scan; may be empty.
        readings: As of what each page was read that was fetched for them.
        is_last: Whether there are no further rows.
    """

    route: Route
    rows: Sequence[ScannedRow]
    readings: Sequence[Reading]
    is_last: bool


@final
@frozen
class ScanBounds:
    """
    What part of a state is scanned.

    Attributes:
        start: The least encoded key, included.
        stop: The end, not included; None for no end.
        key_group: The only one that has such rows, or None for any.
    """

    start: bytes
    stop: bytes | None
    key_group: int | None = None


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that begin with *prefix*; None if none are."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def bounds_of(
    route: Route,
    *,
    prefix: object | None,
    start: object | None,
    stop: object | None,
) -> ScanBounds:
    """
    Return where a scan begins, and where it ends.

    Args:
        route: Whose keys they are.
        prefix: See `KeyCodec.encode_prefix`.
        start: The first key, included.
        stop: The end, not included.

    Raises:
        WrongKeyTypeError: If one of them does not fit the key columns.
        KeyTooLargeError: If one is too long.
    """
    first = b""
    end: bytes | None = None
    if prefix is not None:
        first = route.key_codec.encode_prefix(prefix)
        end = prefix_end(first)
    if start is not None:
        first = max(first, route.key_codec.encode(start))
    if stop is not None:
        encoded = route.key_codec.encode(stop)
        end = encoded if end is None else min(end, encoded)
    return ScanBounds(first, end)


def map_bounds_of(
    route: Route, key: object, *, start: object | None, stop: object | None
) -> ScanBounds:
    """
    Return where a scan of one map begins, and where it ends.

    Args:
        route: To the state.
        key: Of the map.
        start: The first map key, included; None is the beginning.
        stop: The end, not included; None is the end of the map.

    Raises:
        LocalProtocolError: If it is no map state.
        WrongKeyTypeError: If one of them does not fit its columns.
        KeyTooLargeError: If one is too long.
    """
    route.check_map()
    codec = route.key_codec
    whole = codec.storage_key(key)
    # No key begins with another one, so what begins with this one are its entries.
    encoded = whole[GROUP_SIZE_BYTES:]
    first, end = encoded, prefix_end(encoded)
    if start is not None:
        first = codec.map_entry_key(key, start)[GROUP_SIZE_BYTES:]
    if stop is not None:
        end = codec.map_entry_key(key, stop)[GROUP_SIZE_BYTES:]
    return ScanBounds(first, end, group_of(whole))


@final
@define
class _Cursor:
    """What one node has given, and where it goes on: None at its end."""

    rows: list[ScannedRow]
    next_start: bytes | None


@final
class Scan:
    """
    One scan, from its first row to its last.

    Use: `begin` with a route; then, until `is_over`, ask nodes for what is `wanted`,
    hand in the pages with `take`, and tell the rows that `pop` returns.

    Args:
        bounds: What part of the state.
        limit: How many rows at most, or None.
        page_row_count_max: How many rows a page may have.
    """

    def __init__(
        self,
        bounds: ScanBounds,
        *,
        limit: int | None,
        page_row_count_max: int,
    ) -> None:
        self._position = bounds.start
        self._stop = bounds.stop
        self._key_group = bounds.key_group
        self._left = limit
        self._page_row_count_max = min(page_row_count_max, PAGE_ROW_COUNT_MAX)
        self._cursors: dict[int, _Cursor] = {}

    @property
    def is_over(self) -> bool:
        """Return whether every row was told."""
        if self._left is not None and self._left <= 0:
            return True
        return all(
            cursor.next_start is None and not cursor.rows
            for cursor in self._cursors.values()
        )

    def begin(self, route: Route) -> None:
        """Ask the nodes of *route*, from behind the last row that was told."""
        group = self._key_group
        indexes = route.node_indexes if group is None else (route.owners[group],)
        self._cursors = {index: _Cursor([], self._position) for index in indexes}
        if self._stop is not None and self._position >= self._stop:
            self._cursors = {}

    def wanted(self) -> Sequence[tuple[int, ScanRows]]:
        """Return which nodes are to be asked for what."""
        row_count = self._page_row_count_max
        if self._left is not None:
            row_count = min(row_count, self._left)
        return [
            (
                index,
                ScanRows(start=cursor.next_start, stop=self._stop, limit=row_count),
            )
            for index, cursor in self._cursors.items()
            if cursor.next_start is not None and 2 * len(cursor.rows) < row_count
        ]

    def take(
        self, node_index: int, rows: Sequence[ScannedRow], next_start: bytes | None
    ) -> None:
        """
        Take a page.

        Raises:
            RemoteProtocolError: If the node goes on where it has been: it never ends.
        """
        cursor = self._cursors[node_index]
        if next_start is not None and (
            cursor.next_start is None or next_start <= cursor.next_start
        ):
            raise RemoteProtocolError(
                "malformed", "a node goes on with a scan where it has been"
            )
        cursor.rows += rows
        cursor.next_start = next_start

    def pop(self) -> Sequence[ScannedRow]:
        """Return the rows that are next, in order; none if pages are wanted first."""
        bound = min(
            (c.next_start for c in self._cursors.values() if c.next_start is not None),
            default=None,
        )
        found: list[ScannedRow] = []
        for cursor in self._cursors.values():
            if bound is None:
                found += cursor.rows
                cursor.rows = []
                continue
            count = bisect_left(cursor.rows, (bound,))
            found += cursor.rows[:count]
            del cursor.rows[:count]
        found.sort()  # no two rows have the same key
        if self._left is not None:
            del found[self._left :]
            self._left -= len(found)
        if found:
            self._position = found[-1][0] + b"\0"
        return found
