"""How the rows that an entry brings to a state are put (rule W6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, final

from queryablestate.store.layout import item_index_first
from queryablestate.store.rows import OrderedRows, item_rows


if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmdb import Cursor

    from queryablestate.wire.records import BatchState
    from queryablestate.wire.staging_messages import StagedRows


__all__ = ["RowWriter"]


@final
class RowWriter:
    """Puts the rows of one state that an entry brings."""

    def __init__(self, cursor: Cursor[bytes], state: BatchState, sequence: int) -> None:
        self._cursor = cursor
        self._is_list = state.kind == "list"
        self._index_first = item_index_first(sequence)
        self._counts: dict[bytes, int] = {}
        self._ordered: OrderedRows | None = None

    def add(self, rows: StagedRows) -> None:
        """Take one chunk; without orders its rows are put at once."""
        if rows.orders is None:
            self._put(rows.keys, rows.values)
            return
        if self._ordered is None:
            self._ordered = OrderedRows(is_list=self._is_list)
        self._ordered.add(rows.keys, rows.values, rows.orders)

    def finish(self) -> None:
        """Put the rows that had to wait for the last chunk."""
        if self._ordered is not None:
            self._put(*self._ordered.settled())

    def _put(self, keys: list[bytes], values: list[bytes | None]) -> None:
        rows: Iterator[tuple[bytes, bytes | None]] = zip(keys, values, strict=True)
        if self._is_list:
            rows = item_rows(
                keys, values, index_first=self._index_first, counts=self._counts
            )
        if None not in values:
            self._cursor.putmulti(cast("Iterator[tuple[bytes, bytes]]", rows))
            return
        for key, value in rows:
            if value is not None:
                self._cursor.put(key, value)
            elif self._is_list:
                self._clear_list(key)
            elif self._cursor.set_key(key):
                self._cursor.delete()

    def _clear_list(self, key: bytes) -> None:
        is_there = self._cursor.set_range(key)
        while is_there and self._cursor.key().startswith(key):
            is_there = self._cursor.delete()
