"""
Which key groups of a job a store holds, and how it comes to hold others (S1, S2).

Theory of operation
===================

A store that was told nothing of a job holds all key groups of it.  From the first
`HoldingKeeper.hold` on, a mark names those that it holds; of every entry it applies the
rows of these, and passes over the others.  A key group is

* **held**: an in-sync copy;
* a **copy** that is being made, or that is **complete**: entries apply to it as to what
  is held, and nobody is asked there yet.  See `queryablestate.store_copies`;
* or none of these: no rows of it are here, or some that are about to be removed.

**The mark comes first, then rows are removed**, so many with each call, so that batches
have their turn in between, and a transaction, which remembers the pages that it has
touched, stays small.  Whoever reads rows to copy them looks at the mark in the same
snapshot, and is refused; nobody else asks for what is not held, and no entry applies to
it.  So rows that are left over, after a crash too, are shown by nothing, and wait for
the next call.  A copy that begins has no rows, or such; they are removed at the latest
before the first ones are put.

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

from queryablestate.store_groups import (
    ALL_GROUPS,
    difference,
    intersection,
    is_in,
    row_ranges,
    runs_from,
    union,
)
from queryablestate.store_layout import CopyMark, HoldMark
from queryablestate.store_marks import (
    hold_mark,
    job_states,
    position_of,
    put_hold_mark,
    put_state_mark,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmdb import Cursor, Transaction, _Database

    from queryablestate.node_messages import JoiningGroup
    from queryablestate.store_copies import CopyMaker
    from queryablestate.store_environment import StoreEnvironment
    from queryablestate.store_groups import RowRanges
    from queryablestate.store_layout import Runs


__all__ = [
    "Held",
    "HoldingKeeper",
    "admitted",
    "copies_under_way",
    "remove_rows",
    "restart_copies",
    "sequence_needed",
]

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


def admitted(mark: HoldMark | None) -> Runs:
    """Return the key groups that entries apply to."""
    if mark is None:
        return ALL_GROUPS
    complete = runs_from(one.key_group for one in mark.copies if one.is_complete)
    return union(mark.held, complete)


def copies_under_way(mark: HoldMark | None) -> tuple[CopyMark, ...]:
    """Return the copies that are not complete."""
    return (
        () if mark is None else tuple(one for one in mark.copies if not one.is_complete)
    )


def sequence_needed(mark: HoldMark | None) -> int | None:
    """Return the entry after which all are to be kept for copies, None if none is."""
    return min((one.sequence_min for one in copies_under_way(mark)), default=None)


def restart_copies(mark: HoldMark, sequence: int) -> HoldMark:
    """Return *mark* with all copies begun anew, after the entry *sequence*."""
    copies = tuple(
        CopyMark(key_group=one.key_group, since=one.since, began=sequence)
        for one in mark.copies
    )
    return HoldMark(job_id=mark.job_id, held=mark.held, copies=copies)


def remove_rows(
    cursor: Cursor[bytes], ranges: RowRanges, count_max: int | None = None
) -> int:
    """Remove the rows in *ranges*, up to *count_max* of them; return how many."""
    count = 0
    for first, last in ranges:
        is_there = cursor.set_range(first) if first else cursor.first()
        while is_there and count != count_max:
            row_key = cursor.key()
            if not row_key or (last is not None and row_key >= last):
                break
            is_there = cursor.delete()
            count += 1
    return count


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
    ) -> Held:
        """See `queryablestate.store.StateStore.hold`."""
        named = runs_from(key_groups)
        with self._environment.reading() as transaction:
            old = hold_mark(transaction, self._meta, job_id)
            position = position_of(transaction, self._meta, job_id)
        mark = _next_mark(old, job_id, named, joining, position)
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
        """Let no key group be lost that is not here, and all that should be."""
        for number, mark in job_states(transaction, self._meta, job_id).items():
            lost = union(intersection(mark.lost, sound), absent)
            if lost != mark.lost:
                mark = replace(mark, lost=lost)  # noqa: PLW2901 (the same, later)
                put_state_mark(transaction, self._meta, number, mark)

    def remove_unheld(self, job_id: str) -> bool:
        """See `queryablestate.store.StateStore.remove_unheld`."""
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
            if _has_row(cursor, row_ranges(difference(ALL_GROUPS, others))):
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
            if _has_row(transaction.cursor(database), ranges):
                return database
        return None


def _next_mark(
    old: HoldMark | None,
    job_id: str,
    named: Runs,
    joining: Sequence[JoiningGroup],
    position: int,
) -> HoldMark:
    known = {} if old is None else {one.key_group: one for one in old.copies}
    copies: list[CopyMark] = []
    for one in sorted(joining, key=lambda group: group.key_group):
        if is_in(named, one.key_group):
            continue
        copy = known.get(one.key_group)
        if copy is None or copy.since != one.since:
            copy = CopyMark(key_group=one.key_group, since=one.since, began=position)
        copies.append(copy)
    mark = HoldMark(job_id=job_id, held=named, copies=tuple(copies))
    if old is not None and copies_under_way(mark):
        mark = replace(mark, dropped=old.dropped, awaited=old.awaited)
    return mark


def _has_row(cursor: Cursor[bytes], ranges: RowRanges) -> bool:
    for first, last in ranges:
        if (cursor.set_range(first) if first else cursor.first()) and (
            last is None or cursor.key() < last
        ):
            return True
    return False
