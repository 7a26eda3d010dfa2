"""
The removal of rows that have expired.

There is no index of expiries: it would cost a second, scattered write for each row.
Instead every row with TTL is looked at in turn, a bounded number at a time.  Readers
pass over expired rows in any case; this is about the space that they take.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from queryablestate.store.cursors import rows_from
from queryablestate.store.marks import state_marks
from queryablestate.store.rows import LiveValues


if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmdb import Transaction

    from queryablestate.store.environment import StoreEnvironment


__all__ = ["ExpirySweeper"]


@final
class ExpirySweeper:
    """Goes round all rows with TTL; for the writing thread."""

    def __init__(self, environment: StoreEnvironment) -> None:
        self._environment = environment
        self._meta = environment.meta
        # Where the next sweep begins; after a restart, at the beginning.
        self._state_number = 0
        self._row_key = b""

    def sweep(self, now_us: int, limit: int) -> int:
        """See `queryablestate.store.store.StateStore.sweep_expired`."""
        assert limit >= 1
        # Looked for in a snapshot first: mostly there is nothing to write.  There is
        # one writer, so that what is found there still holds below.
        with self._environment.reading() as transaction:
            expired = self._next_expired(transaction, now_us, limit)
        if expired:
            self._environment.write(partial(self._remove, expired))
        return len(expired)

    def _remove(
        self, expired: Sequence[tuple[int, bytes]], transaction: Transaction[bytes]
    ) -> None:
        for slot, row_key in expired:
            transaction.delete(row_key, db=self._environment.slots[slot])

    def _next_expired(
        self, transaction: Transaction[bytes], now_us: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Look at up to *limit* rows, and return slot and row key of the expired."""
        live = LiveValues(has_ttl=True, now_us=now_us)
        expired: list[tuple[int, bytes]] = []
        looks_left = limit
        for state_number, mark in state_marks(transaction, self._meta).items():
            if not mark.has_ttl or state_number < self._state_number:
                continue
            cursor = transaction.cursor(self._environment.slots[mark.slot])
            is_begun = state_number == self._state_number
            for row_key, stored in rows_from(
                cursor, self._row_key if is_begun else b""
            ):
                if looks_left == 0:
                    self._state_number, self._row_key = state_number, row_key
                    return expired
                looks_left -= 1
                if live.value_of(stored) is None:
                    expired.append((mark.slot, row_key))
        self._state_number, self._row_key = 0, b""
        return expired
