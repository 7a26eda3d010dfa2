"""
Which key groups of a job a store holds, and how it comes to hold others (S1, S2).

Theory of operation
===================

A store that was told nothing of a job holds all key groups of it.  From the first
`HoldingKeeper.hold` on, a mark names those that it holds; of every entry it applies the
rows of these, and passes over the others.  A key group is

* **held**: an in-sync copy;
* a **copy** that is being made, or that is **complete**: entries apply to it as to what
  is held, and it is not asked yet.  See `queryablestate.store.copies`;
* or none of these: no rows of it are here, or some that are about to be removed.

**The mark comes first, then rows are removed**, some with each call, so that batches
have their turn in between, and a transaction, which remembers the pages that it has
touched, stays small.  A thread that reads rows to copy them looks at the mark in the
same snapshot, and is refused; no other asks for what is not held, and no entry applies
to it.  So rows that are left over, after a crash too, are shown by nothing, and wait
for the next call.  A copy that begins has no rows, or such; they are removed at the
latest before the first ones are put.

**What is named as in sync, and is none here**, is lost (rule W7): no answer rather than
a wrong one.  It does not happen while the leader store and this directory agree.  Rows
that are left over of it are removed at once: it is held from then on.

**Lost key groups** are a part of the mark of each state.  A key group that leaves is
not lost any more; one that is copied is as lost as its source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from msgspec.structs import replace

from queryablestate.store.groups import (
    ALL_GROUPS,
    difference,
    intersection,
    row_ranges,
    runs_from,
    union,
)
from queryablestate.store.hold_marks import (
    admitted,
    copies_under_way,
    is_older_than,
    next_mark,
    sequence_needed,
)
from queryablestate.store.marks import (
    hold_mark,
    job_states,
    position_of,
    put_hold_mark,
    put_state_mark,
)
from queryablestate.store.row_removal import has_row, remove_rows


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmdb import Transaction, _Database

    from queryablestate.store.copies import CopyMaker
    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.groups import RowRanges
    from queryablestate.store.layout import Runs
    from queryablestate.wire.job_assignment import JoiningGroup


__all__ = ["Held", "HoldingKeeper"]

_REMOVED_COUNT_MAX: Final = 50_000
"""Rows removed with each call: as many as a batch would touch."""


@final
@frozen(kw_only=True)
class Held:
    """
    What a store has of what it was told to hold.

    Attributes:
        copied: Copies that are complete, sorted.
        missing: Copies that are to be fetched, sorted.
        sequence_min: What is fetched must hold at least the entries up to this one.
    """

    copied: tuple[int, ...]
    missing: tuple[int, ...]
    sequence_min: int


@final
class HoldingKeeper:
    """Takes over what is to be held; for the writing thread."""

    def __init__(self, environment: StoreEnvironment, copies: CopyMaker) -> None:
        self._environment = environment
        self._meta = environment.meta
        self._copies = copies

    def hold(
        self,
        job_id: str,
        key_groups: Iterable[int],
        joining: Sequence[JoiningGroup],
        *,
        assignment_version: int,
        copied_version: int,
    ) -> Held:
        """See `queryablestate.store.store.StateStore.hold`."""
        named = runs_from(key_groups)
        with self._environment.reading() as transaction:
            old = hold_mark(transaction, self._meta, job_id)
            position = position_of(transaction, self._meta, job_id)
        is_older = is_older_than(old, named, copied_version)
        mark = next_mark(
            old,
            job_id,
            named,
            joining,
            sequence=position,
            version=0 if is_older else assignment_version,
        )
        had = admitted(old)
        # What is here and stays.  A copy that goes on keeps what it has.
        sound = union(
            intersection(named, had),
            runs_from(
                one.key_group
                for one in mark.copies
                if old is not None and one in old.copies
            ),
        )
        absent = difference(named, had)
        with self._environment.writing() as transaction:
            if mark != old:
                put_hold_mark(transaction, self._meta, mark)
            self._mark_lost(transaction, job_id, sound, absent)
        while not self._remove_some(job_id, absent):
            pass  # a part of it is gone
        self._copies.release(job_id, sequence_needed(mark))
        missing = copies_under_way(mark)
        return Held(
            copied=tuple(one.key_group for one in mark.copies if one.is_complete),
            missing=tuple(one.key_group for one in missing),
            sequence_min=max((one.sequence_min for one in missing), default=0),
        )

    def _mark_lost(
        self, transaction: Transaction[bytes], job_id: str, sound: Runs, absent: Runs
    ) -> None:
        """Mark as lost no key group that is not here, and all that should be."""
        for number, mark in job_states(transaction, self._meta, job_id).items():
            lost = union(intersection(mark.lost, sound), absent)
            if lost != mark.lost:
                mark = replace(mark, lost=lost)  # noqa: PLW2901 (the same, later)
                put_state_mark(transaction, self._meta, number, mark)

    def remove_unheld(self, job_id: str) -> bool:
        """See `queryablestate.store.store.StateStore.remove_unheld`."""
        with self._environment.reading() as transaction:
            mark = hold_mark(transaction, self._meta, job_id)
        if mark is None:
            return True
        begun = (one.key_group for one in mark.copies if one.fetched is not None)
        kept = union(mark.held, runs_from(begun))
        return self._remove_some(job_id, difference(ALL_GROUPS, kept))

    def _remove_some(self, job_id: str, others: Runs) -> bool:
        """Remove rows of these key groups, if there are any; return if none were."""
        ranges = row_ranges(others)
        with self._environment.reading() as transaction:
            database = self._database_with(transaction, job_id, ranges)
        if database is None:
            return True
        with self._environment.writing() as transaction:
            cursor = transaction.cursor(database)
            if has_row(cursor, row_ranges(difference(ALL_GROUPS, others))):
                remove_rows(cursor, ranges, _REMOVED_COUNT_MAX)
            else:
                transaction.drop(database, delete=False)  # in one piece
        return False

    def _database_with(
        self, transaction: Transaction[bytes], job_id: str, ranges: RowRanges
    ) -> _Database | None:
        """Return a database of the job with rows in *ranges*, or None."""
        for mark in job_states(transaction, self._meta, job_id).values():
            database = self._environment.slots[mark.slot]
            if has_row(transaction.cursor(database), ranges):
                return database
        return None
