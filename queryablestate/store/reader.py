"""
Reads of a state store: points, lists, maps, scans and counts.

Everything in one answer is one snapshot, the view of the state included (rule Q1): each
read is one LMDB transaction, from its first step to its last.  That costs half a
microsecond, since LMDB keeps it and renews it.  Nothing here waits for the thread that
writes.
"""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, final

import lmdb
from attrs import frozen

from queryablestate.schema.key_groups import GROUP_SIZE_BYTES
from queryablestate.store.bounded_answer import (
    ANSWER_SIZE_BYTES_MAX,
    Advice,
    BoundedAnswer,
    fewer_than,
)
from queryablestate.store.cursors import (
    GroupMerge,
    has_prefix,
    is_nothing_outside,
    is_possible,
    key_count,
    least_keys,
    look_up,
    occupied_ranges,
    row_count,
    size_without_index,
)
from queryablestate.store.layout import decode_state, state_key
from queryablestate.store.pages import PageRows, ScanRead
from queryablestate.store.rows import (
    ROW_KEY_SIZE_BYTES_MAX,
    LiveValues,
    joined_groups,
)
from queryablestate.store.state_view import StateView, view_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Transaction, _Database

    from nameservice import StorageError
    from queryablestate.store.groups import RowRanges
    from queryablestate.store.pages import Page
    from queryablestate.store.steps import ReadWork, Steps


__all__ = ["Read", "ReadEnvironment", "StoreReader"]

_KNOWN_COUNT_MAX: Final = 4096
_SHORT_COUNT_MAX: Final = (4 << 20) // mmap.PAGESIZE
"""Rows that are looked up in a millisecond: 1,024 where a page has 4 KiB."""

T = TypeVar("T")


@final
@frozen(kw_only=True)
class Read(Generic[T]):
    """
    What some keys hold.

    Attributes:
        view: As of what; None if there is no such state.
        values: One for each key, in the order of the keys; None where there is nothing.
        valid_until_us: When the first of what was looked at expires, or None.
    """

    view: StateView | None
    values: list[T | None]
    valid_until_us: int | None


_NO_STATE: Final = ScanRead(view=None, rows=[], next_start=None, valid_until_us=None)


class ReadEnvironment(Protocol):
    """What is read from: an open data directory, for writing or not."""

    environment: lmdb.Environment
    meta: _Database

    @property
    def slots(self) -> Sequence[_Database]:
        """Return the databases of rows."""

    def storage_error(self, what: str, error: lmdb.Error | OSError) -> StorageError:
        """Return what to raise instead of *error*."""


@final
class StoreReader:
    """
    Reads a store in steps; for one thread at a time.

    Keys are storage keys; what could be none (empty, or longer than any) holds nothing.
    """

    def __init__(self, environment: ReadEnvironment) -> None:
        self._environment = environment
        self._begin: Callable[..., Transaction[Any]] = environment.environment.begin
        self._meta = environment.meta
        self._slots = environment.slots
        self._known: dict[int, tuple[bytes, tuple[StateView, _Database]]] = {}
        # As of which transaction; to ask LMDB takes as long as three short reads.
        self._row_sizes: dict[_Database, tuple[int, float | None]] = {}

    def get_values(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        work: ReadWork,
        *,
        size_bytes_max: int | None = None,
    ) -> Steps[Read[bytes]]:
        """
        Return the values under these storage keys.

        Raises:
            LocalProtocolError: If that is more than *size_bytes_max*, by default
                `ANSWER_SIZE_BYTES_MAX`; reading ends before the value that is too much.
        """
        advice = fewer_than(keys)
        is_view = False
        try:
            while True:
                with self._begin(buffers=is_view) as transaction:
                    found = self._find(transaction, state_number)
                    if found is None:
                        return _nothing(keys)
                    view, database = found
                    if not is_view and (
                        self._short_row_size_bytes(transaction, database) is None
                    ):
                        # Of more than half a page: none is copied before it fits.
                        is_view = True
                        continue
                    answer = self._answer(view, now_us, work, size_bytes_max, advice)
                    values = yield from answer.values(transaction.get, database, keys)
                valid_until_us = answer.valid_until_us
                return Read(view=view, values=values, valid_until_us=valid_until_us)
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error

    def get_short_values(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        size_bytes_max: int,
    ) -> Read[bytes] | None:
        """
        Return what `get_values` does, but at once, or None if it may take long.

        It takes a moment where keys are a thousand at most, none is named twice, the
        state has no value above half a page, and as many rows as there are keys seem to
        be *size_bytes_max* at most: then there is nothing to count, and nowhere to
        pause.  What is returned may be more than it seemed, 2 MiB at most.
        """
        try:
            with self._begin() as transaction:
                found = self._find(transaction, state_number)
                if found is None:
                    return _nothing(keys)
                view, database = found
                row_size_bytes = self._short_row_size_bytes(transaction, database)
                count = len(keys)
                if (
                    row_size_bytes is None
                    or count > _SHORT_COUNT_MAX
                    or count * row_size_bytes > size_bytes_max
                    or (count > 1 and len(set(keys)) < count)
                ):
                    return None
                values = look_up(transaction.get, database, keys)
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error
        if not view.has_ttl:
            return Read(view=view, values=values, valid_until_us=None)
        live = LiveValues(has_ttl=True, now_us=now_us)
        values = live.values_of(values)
        return Read(view=view, values=values, valid_until_us=live.valid_until_us)

    def get_items(
        self,
        state_number: int,
        keys: Sequence[bytes],
        part: tuple[int, int | None],
        now_us: int,
        work: ReadWork,
        *,
        size_bytes_max: int | None = None,
    ) -> Steps[Read[list[bytes]]]:
        """
        Return the items of these lists from *part*, as a Python slice means it.

        A list that has items, but none in the slice, is an empty list, not None.  A
        slice that is counted from the end at both ends is read from the end: the last
        ten items are ten reads, however long the list is.

        Raises:
            LocalProtocolError: As `get_values`.
        """
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return _nothing(keys)
            view, database = found
            answer = self._answer(view, now_us, work, size_bytes_max, Advice.LIST_SLICE)
            cursor = transaction.cursor(database)
            values = yield from answer.lists(
                lambda key: answer.items(cursor, key, *part), keys
            )
        return Read(view=view, values=values, valid_until_us=answer.valid_until_us)

    def get_entries(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        work: ReadWork,
        *,
        size_bytes_max: int | None = None,
    ) -> Steps[Read[list[bytes]]]:
        """
        Return map key, value, map key, … of these maps, in the order of map keys.

        Raises:
            LocalProtocolError: As `get_values`.
        """
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return _nothing(keys)
            view, database = found
            answer = self._answer(view, now_us, work, size_bytes_max, Advice.MAP_PAGES)
            cursor = transaction.cursor(database)
            values = yield from answer.lists(
                lambda key: answer.entries(cursor, key), keys
            )
        return Read(view=view, values=values, valid_until_us=answer.valid_until_us)

    def has_rows(
        self, state_number: int, keys: Sequence[bytes], now_us: int, work: ReadWork
    ) -> Steps[Read[bool]]:
        """Return whether anything is under these storage keys; no value is read."""
        try:
            # Of a value this looks at the expiry: a view of it costs no copy.
            with self._begin(buffers=True) as transaction:
                found = self._find(transaction, state_number)
                if found is None:
                    return _nothing(keys)
                view, database = found
                live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
                cursor = transaction.cursor(database)
                known: dict[bytes, bool] = {}
                for key in keys:
                    if key not in known:
                        known[key] = is_possible(key) and (
                            yield from has_prefix(cursor, key, live, work)
                        )
                        if work.look():
                            yield
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error
        return Read(
            view=view,
            values=[known[key] for key in keys],
            valid_until_us=live.valid_until_us,
        )

    def scan(
        self,
        state_number: int,
        groups: Sequence[int],
        page: Page,
        now_us: int,
        work: ReadWork,
    ) -> Steps[ScanRead]:
        """
        Return a page of rows of these key groups, in the order of encoded keys.

        Takes a look at each key group that has rows, and one at each row.

        Args:
            state_number: Of which state.
            groups: Each at most once, sorted.
            page: Where it begins and ends, by encoded keys.
            now_us: What has expired by then is not there.
            work: Of this read.
        """
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return _NO_STATE
            view, database = found
            rows = PageRows(view, page, now_us, work)
            # Cut to what LMDB can look for; longer than any key, it sorts alike.
            start = page.start[: ROW_KEY_SIZE_BYTES_MAX + 1]
            ahead = yield from least_keys(
                transaction.cursor(database),
                groups,
                start,
                page.stop,
                rows.looks_left + 1,
                work,
            )
            merge = GroupMerge(partial(transaction.cursor, database), ahead, page.stop)
            while (encoded_key := merge.next_key) is not None:
                if rows.is_full or not rows.add(encoded_key, merge.value()):
                    return rows.ended(encoded_key)
                merge.advance()
                if rows.is_pause_due:
                    yield
            return rows.ended(None)

    def walk(
        self,
        state_number: int,
        ranges: RowRanges,
        page: Page,
        now_us: int,
        work: ReadWork,
    ) -> Steps[ScanRead]:
        """
        Return a page of rows of these key groups, one key group after the other.

        Takes as long as what it returns: this is the order in which they are stored.

        Args:
            state_number: Of which state.
            ranges: Of the key groups, sorted (`queryablestate.store.groups`).
            page: Where it begins and ends, by storage keys, as does `next_start`.
            now_us: What has expired by then is not there.
            work: Of this read.
        """
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return _NO_STATE
            view, database = found
            rows = PageRows(view, page, now_us, work)
            cursor = transaction.cursor(database)
            start = page.start[: ROW_KEY_SIZE_BYTES_MAX + 1]
            for _, last in occupied_ranges(cursor, ranges, start):
                if work.move():
                    yield
                is_there = True
                while is_there:
                    row_key = cursor.key()
                    if last is not None and row_key >= last:
                        break
                    if rows.is_full or not rows.add(
                        row_key[GROUP_SIZE_BYTES:], cursor.value()
                    ):
                        return rows.ended(row_key)
                    if rows.is_pause_due:
                        yield
                    is_there = cursor.next()
            return rows.ended(None)

    def count(
        self,
        state_number: int,
        groups: Sequence[int],
        now_us: int,
        work: ReadWork,
        key_size_of: Callable[[bytes], int] | None = None,
    ) -> Steps[tuple[StateView | None, int]]:
        """
        Return how many keys these key groups hold.

        Takes as long as to walk over them, but for a state without TTL that has a row
        for each key, and rows of no other groups: of that LMDB knows the number.

        Args:
            state_number: Of which state.
            groups: Each at most once, in any order.
            now_us: What has expired by then is not there.
            work: Of this read.
            key_size_of: For map states: how many bytes of an encoded key with map key
                are the key.  Without it the entries of maps are counted, not the maps.
        """
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return None, 0
            view, database = found
            live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
            cursor = transaction.cursor(database)
            ranges = joined_groups(groups)
            size_of: Callable[[bytes], int] | None = None
            if view.kind == "list":
                size_of = size_without_index
            elif view.kind == "map":
                size_of = key_size_of
            if (
                size_of is None
                and not view.has_ttl
                and (yield from is_nothing_outside(cursor, ranges, work))
            ):
                return view, transaction.stat(database)["entries"]
            count = 0
            for _, last in occupied_ranges(cursor, ranges):
                if size_of is None:
                    count += yield from row_count(cursor, last, live, work)
                else:
                    count += yield from key_count(cursor, last, size_of, live, work)
                if work.move():
                    yield
            return view, count

    @staticmethod
    def _answer(
        view: StateView,
        now_us: int,
        work: ReadWork,
        size_bytes_max: int | None,
        advice: Advice,
    ) -> BoundedAnswer:
        if size_bytes_max is None:
            size_bytes_max = ANSWER_SIZE_BYTES_MAX
        live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
        return BoundedAnswer(live, size_bytes_max, work, advice)

    def _short_row_size_bytes(
        self, transaction: Transaction[bytes], database: _Database
    ) -> float | None:
        """Return what a row takes on average, or None if one is above half a page."""
        snapshot = transaction.id()
        known = self._row_sizes.get(database)
        if known is not None and known[0] == snapshot:
            return known[1]
        pages = transaction.stat(database)
        size_bytes: float | None = None
        if not pages["overflow_pages"]:
            size_bytes = pages["leaf_pages"] * pages["psize"] / max(1, pages["entries"])
        self._row_sizes[database] = (snapshot, size_bytes)
        return size_bytes

    @contextmanager
    def _reading(self) -> Iterator[Transaction[bytes]]:
        try:
            with self._begin() as transaction:
                yield transaction
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error

    def _find(
        self, transaction: Transaction[Any], state_number: int
    ) -> tuple[StateView, _Database] | None:
        stored = transaction.get(state_key(state_number), None, self._meta)
        if stored is None:
            return None
        stored = bytes(
            stored
        )  # a view of the database does not outlive its transaction
        known = self._known.get(state_number)
        if known is not None and known[0] == stored:
            return known[1]
        mark = decode_state(stored)
        if mark.is_hidden:
            return None
        found = (view_of(mark), self._slots[mark.slot])
        if len(self._known) >= _KNOWN_COUNT_MAX:
            self._known.clear()
        self._known[state_number] = (stored, found)
        return found


def _nothing(keys: Sequence[bytes]) -> Read[T]:
    return Read(view=None, values=[None] * len(keys), valid_until_us=None)
