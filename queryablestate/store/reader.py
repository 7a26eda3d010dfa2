"""
Reads of a state store: points, lists, maps, scans and counts.

Everything in one answer is one snapshot, the view of the state included (rule Q1): each
call is one LMDB transaction, which costs half a microsecond, since LMDB keeps it and
renews it.  Nothing here waits for the thread that writes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import lmdb
from attrs import frozen

from queryablestate.store.bounded_answer import (
    ROW_OVERHEAD_SIZE_BYTES,
    BoundedAnswer,
)
from queryablestate.store.cursors import (
    Looks,
    has_prefix,
    is_nothing_outside,
    is_possible,
    key_count,
    merged_groups,
    row_count,
    size_without_index,
)
from queryablestate.store.layout import StateMark, decode_state, state_key
from queryablestate.store.rows import LiveValues, joined_groups


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Transaction, _Database

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.layout import Runs


__all__ = [
    "ANSWER_SIZE_BYTES_MAX",
    "PAGE_SIZE_BYTES_MAX",
    "Read",
    "ScanRead",
    "StateView",
    "StoreReader",
    "view_of",
]

ANSWER_SIZE_BYTES_MAX: Final = 16 << 20
"""Of what one call returns, unless it says: more is refused, not built in memory."""

PAGE_SIZE_BYTES_MAX: Final = 8 << 20
"""Of a page of a scan, but for its last row: it ends early rather than grow."""

_LOOKS_PER_ROW_MAX: Final = 4
"""A page looks at this many rows for each that is wanted; the others have expired."""

_KNOWN_COUNT_MAX: Final = 4096

T = TypeVar("T")


@final
@frozen(kw_only=True)
class StateView:
    """
    What a node knows of a state, as of one moment.

    Attributes:
        job_id: The job that it belongs to.
        generation: The ownership that the last applied batch belongs to; 0 before one.
        batch_id: The last batch applied, or None before the first.
        decided_at_us: When that was decided, microseconds since 1970 UTC; 0 before.
        kind: ``value``, ``list`` or ``map``; an empty string before the first batch.
        has_ttl: Whether rows carry an expiry.
        lost: Key groups whose rows were lost, and that no batch has replaced yet (W7):
            the first and the last one of each run, sorted.
    """

    job_id: str
    generation: int
    batch_id: int | None
    decided_at_us: int
    kind: str
    has_ttl: bool
    lost: Runs


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


@final
@frozen(kw_only=True)
class ScanRead:
    """
    A page of a scan.

    Attributes:
        view: As of what; None if there is no such state.
        rows: Encoded key (with map key or index), value, encoded key, value, …
        next_start: Where the next page starts, or None at the end.  A page may hold
            fewer rows than asked for, even none, and yet not be the last.
        valid_until_us: When the first of these rows expires, or None.
    """

    view: StateView | None
    rows: list[bytes]
    next_start: bytes | None
    valid_until_us: int | None


def view_of(mark: StateMark) -> StateView:
    """Return what *mark* says, but for where the rows are."""
    return StateView(
        job_id=mark.job_id,
        generation=mark.generation,
        batch_id=mark.batch_id,
        decided_at_us=mark.decided_at_us,
        kind=mark.kind,
        has_ttl=mark.has_ttl,
        lost=mark.lost,
    )


@final
class StoreReader:
    """
    Reads a store; for one thread at a time.

    Keys are storage keys; what could be none (empty, or longer than any) holds nothing.
    """

    def __init__(self, environment: StoreEnvironment) -> None:
        self._environment = environment
        self._begin = environment.environment.begin
        self._meta = environment.meta
        self._slots = environment.slots
        self._known: dict[int, tuple[bytes, tuple[StateView, _Database]]] = {}

    def get_values(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> Read[bytes]:
        """
        Return the values under these storage keys.

        Raises:
            LocalProtocolError: If that is more than *size_bytes_max*, by default
                `ANSWER_SIZE_BYTES_MAX`; reading ends before the value that is too much.
        """
        try:
            # A value is copied only when it is known that it fits.
            with self._begin(buffers=True) as transaction:
                found = self._find(transaction, state_number)
                if found is None:
                    return _nothing(keys)
                view, database = found
                answer = self._answer(view, now_us, size_bytes_max)
                get = transaction.get
                try:
                    values = answer.values(lambda key: get(key, None, database), keys)
                except lmdb.BadValsizeError:
                    answer = self._answer(view, now_us, size_bytes_max)
                    values = answer.values(
                        lambda key: (
                            get(key, None, database) if is_possible(key) else None
                        ),
                        keys,
                    )
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error
        return Read(view=view, values=values, valid_until_us=answer.valid_until_us)

    def get_items(
        self,
        state_number: int,
        keys: Sequence[bytes],
        start: int,
        stop: int | None,
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> Read[list[bytes]]:
        """
        Return the items ``[start:stop]`` of these lists, as a Python slice means it.

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
            answer = self._answer(view, now_us, size_bytes_max)
            cursor = transaction.cursor(database)
            values = answer.lists(
                lambda key: answer.items(cursor, key, start, stop), keys
            )
            return Read(view=view, values=values, valid_until_us=answer.valid_until_us)

    def get_entries(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> Read[list[bytes]]:
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
            answer = self._answer(view, now_us, size_bytes_max)
            cursor = transaction.cursor(database)
            values = answer.lists(lambda key: answer.entries(cursor, key), keys)
            return Read(view=view, values=values, valid_until_us=answer.valid_until_us)

    def has_rows(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        look_count_max: int | None = None,
    ) -> Read[bool]:
        """
        Return whether anything is kept under these storage keys; no value is read.

        Args:
            look_count_max: How many rows that have expired may be passed over.

        Raises:
            LocalProtocolError: If there are more.
        """
        try:
            # Of a value this looks at the expiry: a view of it costs no copy.
            with self._begin(buffers=True) as transaction:
                found = self._find(transaction, state_number)
                if found is None:
                    return _nothing(keys)
                view, database = found
                live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
                cursor = transaction.cursor(database)
                looks = Looks(look_count_max)
                known = {
                    key: is_possible(key) and has_prefix(cursor, key, live, looks)
                    for key in dict.fromkeys(keys)
                }
        except lmdb.Error as error:
            raise self._environment.storage_error("read", error) from error
        return Read(
            view=view,
            values=[known[key] for key in keys],
            valid_until_us=live.valid_until_us,
        )

    def scan(  # noqa: PLR0917 (a page is asked for in the order of `ScanRows`)
        self,
        state_number: int,
        groups: Sequence[int],
        start: bytes,
        stop: bytes | None,
        limit: int,
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> ScanRead:
        """
        Return a page of rows of these key groups, in the order of encoded keys.

        Args:
            groups: Each at most once, in any order.
            start: The least encoded key, included; ``b""`` is the beginning.
            stop: The first encoded key that is left out, or None for no end.
            limit: How many rows at most, at least 1.
            size_bytes_max: Of the page, `PAGE_SIZE_BYTES_MAX` at most: it ends before
                the row that is too much, unless that is its first.
        """
        assert limit >= 1
        with self._reading() as transaction:
            found = self._find(transaction, state_number)
            if found is None:
                return ScanRead(
                    view=None, rows=[], next_start=None, valid_until_us=None
                )
            view, database = found
            live = LiveValues(has_ttl=view.has_ttl, now_us=now_us)
            looks_left = limit * _LOOKS_PER_ROW_MAX
            size_left = PAGE_SIZE_BYTES_MAX
            if size_bytes_max is not None:
                size_left = min(size_left, size_bytes_max)
            rows: list[bytes] = []
            next_start = None
            cursors = (transaction.cursor(database) for _ in groups)
            for encoded_key, cursor in merged_groups(cursors, groups, start, stop):
                if looks_left == 0 or len(rows) == 2 * limit:
                    next_start = encoded_key
                    break
                looks_left -= 1
                value = live.value_of(cursor.value())
                if value is None:
                    continue
                size_left -= len(encoded_key) + len(value) + ROW_OVERHEAD_SIZE_BYTES
                if size_left < 0 and rows:
                    next_start = encoded_key
                    break
                rows += encoded_key, value
            return ScanRead(
                view=view,
                rows=rows,
                next_start=next_start,
                valid_until_us=live.valid_until_us,
            )

    def count(
        self,
        state_number: int,
        groups: Sequence[int],
        now_us: int,
        key_size_of: Callable[[bytes], int] | None = None,
    ) -> tuple[StateView | None, int]:
        """
        Return how many keys these key groups hold.

        Takes as long as to walk over them, but for a state without TTL that has a row
        for each key, and rows of no other groups: of that LMDB knows the number.

        Args:
            groups: Each at most once, in any order.
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
            if view.kind == "list":
                return view, sum(
                    key_count(cursor, first, last, size_without_index, live)
                    for first, last in ranges
                )
            if view.kind == "map" and key_size_of is not None:
                return view, sum(
                    key_count(cursor, first, last, key_size_of, live)
                    for first, last in ranges
                )
            if not view.has_ttl and is_nothing_outside(cursor, ranges):
                return view, transaction.stat(database)["entries"]
            return view, sum(
                row_count(cursor, first, last, live) for first, last in ranges
            )

    @staticmethod
    def _answer(
        view: StateView, now_us: int, size_bytes_max: int | None
    ) -> BoundedAnswer:
        return BoundedAnswer(
            LiveValues(has_ttl=view.has_ttl, now_us=now_us),
            ANSWER_SIZE_BYTES_MAX if size_bytes_max is None else size_bytes_max,
        )

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
