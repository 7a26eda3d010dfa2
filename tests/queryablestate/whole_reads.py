"""A reader of a store that takes all steps of a read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from queryablestate.store.pages import Page, ScanRead
from queryablestate.store.reader import Read
from queryablestate.store.rows import joined_groups
from queryablestate.store.state_view import StateView
from queryablestate.store.steps import ReadWork, Steps
from queryablestate.store.store import StateStore


T = TypeVar("T")


def finish(steps: Steps[T]) -> T:
    """Take all steps, and return what was read."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


@final
class WholeReader:
    """
    `StoreReader`, read to the end.

    Attributes:
        reader: The reader.
        work: Of the last read.
    """

    def __init__(self, store: StateStore) -> None:
        self.reader = store.reader()
        self.work = ReadWork()

    def get_values(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> Read[bytes]:
        """Return the values under these storage keys, by the short way likewise."""
        self.work = ReadWork()
        found = finish(
            self.reader.get_values(
                state_number, keys, now_us, self.work, size_bytes_max=size_bytes_max
            )
        )
        short = self.reader.get_short_values(
            state_number, keys, now_us, size_bytes_max=size_bytes_max or 1 << 20
        )
        if short is not None and short.view == found.view:  # no batch came in between
            assert short == found
        return found

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
        """Return a slice of these lists."""
        self.work = ReadWork()
        return finish(
            self.reader.get_items(
                state_number,
                keys,
                (start, stop),
                now_us,
                self.work,
                size_bytes_max=size_bytes_max,
            )
        )

    def get_entries(
        self,
        state_number: int,
        keys: Sequence[bytes],
        now_us: int,
        *,
        size_bytes_max: int | None = None,
    ) -> Read[list[bytes]]:
        """Return the entries of these maps."""
        self.work = ReadWork()
        return finish(
            self.reader.get_entries(
                state_number, keys, now_us, self.work, size_bytes_max=size_bytes_max
            )
        )

    def has_rows(
        self, state_number: int, keys: Sequence[bytes], now_us: int
    ) -> Read[bool]:
        """Return whether anything is under these storage keys."""
        self.work = ReadWork()
        return finish(self.reader.has_rows(state_number, keys, now_us, self.work))

    def scan(  # noqa: PLR0917 (as the operation has them)
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
        """Return a page in the order of encoded keys."""
        self.work = ReadWork()
        page = _page(start, stop, limit, size_bytes_max)
        return finish(
            self.reader.scan(state_number, sorted(groups), page, now_us, self.work)
        )

    def walk(  # noqa: PLR0917 (as the operation has them)
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
        """Return a page in the order of storage keys."""
        self.work = ReadWork()
        page = _page(start, stop, limit, size_bytes_max)
        ranges = joined_groups(groups)
        return finish(self.reader.walk(state_number, ranges, page, now_us, self.work))

    def count(
        self,
        state_number: int,
        groups: Sequence[int],
        now_us: int,
        key_size_of: Callable[[bytes], int] | None = None,
    ) -> tuple[StateView | None, int]:
        """Return how many keys there are."""
        self.work = ReadWork()
        return finish(
            self.reader.count(state_number, groups, now_us, self.work, key_size_of)
        )


def _page(
    start: bytes, stop: bytes | None, limit: int, size_bytes_max: int | None
) -> Page:
    if size_bytes_max is None:
        return Page(start, stop, limit)
    return Page(start, stop, limit, size_bytes_max)
