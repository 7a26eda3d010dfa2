"""
Entries of a job's chain, applied to the rows of a node (rules W3, W4, W6, W7).

Theory of operation
===================

An entry is applied in one LMDB transaction: rows, marks of the states, the position in
the chain, the fence of the run, and the removal of what was staged.  A reader sees all
of it or nothing, and so does whoever opens the directory after a crash; an entry that
is applied again changes nothing, since the position is part of it.

**Chunks are put one after the other**, in the order of the winning stages: a row of a
later one takes the place of one with the same key, so that nothing need be merged, and
only one chunk is decoded in memory at a time.  The exception are rows with orders, all
of which must be known first (`OrderedRows`).

**The marks of all states of an entry move**, also of those for which this node got no
rows: what a reader is told is how far the chain is, not when its key group changed.

**Rows of a state that the entry does not name** are passed over.  A batch that comes
again may be decided for fewer states than it has rows for, because the others have it
(`queryablestate.decisions`); and no writer can stop the chain of a job, or write to a
state that it may not, by staging what its commit does not name.

**A lost state goes on being applied** (its rows are incomplete, and its view says so),
until a batch replaces it: then nothing is missing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never, cast, final

from nameservice import LocalProtocolError, StagedDataMissingError, StorageError
from queryablestate.codec import decode_rows
from queryablestate.records import BatchDecided, StateDropped
from queryablestate.store_layout import (
    SLOT_COUNT_MAX,
    StagedBatch,
    StateMark,
    batch_prefix,
    item_index_first,
)
from queryablestate.store_marks import (
    drop_state_mark,
    move_position,
    position_of,
    put_state_mark,
    raise_fence,
    state_mark,
    state_marks,
)
from queryablestate.store_rows import OrderedRows, item_rows


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lmdb import Cursor, Transaction

    from queryablestate.node_messages import StagedRows
    from queryablestate.records import BatchState, Entry
    from queryablestate.store_environment import StoreEnvironment
    from queryablestate.store_staging import StagingArea


__all__ = ["EntryApplier"]


@final
class EntryApplier:
    """Applies entries and resets; for the writing thread."""

    def __init__(self, environment: StoreEnvironment, staging: StagingArea) -> None:
        self._environment = environment
        self._meta = environment.meta
        self._staging = staging

    def apply(self, job_id: str, entry: Entry) -> None:
        """Apply the next entry; see `queryablestate.store.StateStore.apply`."""
        # There is one writer, so that what is found here still holds further down.
        with self._environment.reading() as transaction:
            position = position_of(transaction, self._meta, job_id)
            if entry.sequence <= position:
                return
            if entry.sequence > position + 1:
                raise LocalProtocolError(
                    f"entry {entry.sequence} of job {job_id!r} cannot be applied: "
                    f"{position} was the last, so bring entry {position + 1} first"
                )
            slot_count = 0
            if isinstance(entry, BatchDecided):
                prefix = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
                if self._staging.missing(transaction, prefix, entry.stages):
                    raise StagedDataMissingError(
                        entry.batch_id, (self._environment.identity.node_id,)
                    )
                numbers = set(state_marks(transaction, self._meta))
                numbers.update(state.state_number for state in entry.states)
                slot_count = len(numbers)
        self._open_slots(slot_count)
        with self._environment.writing() as transaction:
            match entry:
                case BatchDecided():
                    self._apply_batch(transaction, job_id, entry)
                case StateDropped():
                    self._drop_state(transaction, entry.state_number)
                case _:
                    assert_never(entry)
            move_position(transaction, self._meta, job_id, entry.sequence)

    def reset(self, job_id: str, sequence: int, state_numbers: Sequence[int]) -> None:
        """Begin anew; see `queryablestate.store.StateStore.reset_job`."""
        with self._environment.reading() as transaction:
            marks = state_marks(transaction, self._meta)
        gone = [number for number, mark in marks.items() if mark.job_id == job_id]
        slot_count = len(marks) - len(gone) + len(state_numbers)
        self._open_slots(slot_count)
        with self._environment.writing() as transaction:
            for state_number in gone:
                self._drop_state(transaction, state_number)
            for state_number in state_numbers:
                mark = self._new_mark(transaction, job_id, is_lost=True)
                put_state_mark(transaction, self._meta, state_number, mark)
            move_position(transaction, self._meta, job_id, sequence)

    def _open_slots(self, slot_count: int) -> None:
        """See to it that this many states find a slot: the lowest ones are taken."""
        if slot_count > SLOT_COUNT_MAX:
            raise StorageError(
                f"a node keeps at most {SLOT_COUNT_MAX:,} states, this would be "
                f"{slot_count:,}: drop states that nobody reads"
            )
        self._environment.open_slots(slot_count)

    def _apply_batch(
        self, transaction: Transaction[bytes], job_id: str, entry: BatchDecided
    ) -> None:
        writers: dict[int, _RowWriter] = {}
        for state in entry.states:
            mark = state_mark(transaction, self._meta, state.state_number)
            if mark is None:
                mark = self._new_mark(transaction, job_id, is_lost=False)
            database = self._environment.slots[mark.slot]
            if state.is_replaced:
                transaction.drop(database, delete=False)
            mark = StateMark(
                job_id=job_id,
                slot=mark.slot,
                kind=state.kind,
                has_ttl=state.has_ttl,
                generation=state.generation,
                batch_id=entry.batch_id,
                decided_at_us=entry.decided_at_us,
                is_lost=mark.is_lost and not state.is_replaced,
            )
            put_state_mark(transaction, self._meta, state.state_number, mark)
            writers[state.state_number] = _RowWriter(
                transaction.cursor(database), state, entry.sequence
            )
        prefix = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
        for payload in self._staging.payloads(transaction, prefix, entry.stages):
            rows = decode_rows(payload)
            writer = writers.get(rows.state_number)
            if writer is not None:
                writer.add(rows)
        for writer in writers.values():
            writer.finish()
        self._staging.drop(transaction, _superseded_by(job_id, entry))
        raise_fence(transaction, self._meta, entry.query_id, entry.writer_epoch)

    def _drop_state(self, transaction: Transaction[bytes], state_number: int) -> None:
        mark = drop_state_mark(transaction, self._meta, state_number)
        if mark is not None:
            # Emptied, not deleted: see `queryablestate.store_layout`.
            transaction.drop(self._environment.slots[mark.slot], delete=False)

    def _new_mark(
        self, transaction: Transaction[bytes], job_id: str, *, is_lost: bool
    ) -> StateMark:
        """Return the mark of a state that nothing was applied to, in a free slot."""
        marks = state_marks(transaction, self._meta).values()
        taken = {mark.slot for mark in marks}
        return StateMark(
            job_id=job_id,
            slot=next(slot for slot in range(SLOT_COUNT_MAX) if slot not in taken),
            kind="",
            has_ttl=False,
            generation=0,
            batch_id=None,
            decided_at_us=0,
            is_lost=is_lost,
        )


def _superseded_by(job_id: str, entry: BatchDecided) -> Callable[[StagedBatch], bool]:
    """Return what tells the batches that can no longer be decided after *entry*."""
    decided = (entry.writer_epoch, entry.batch_id)

    def is_superseded(batch: StagedBatch) -> bool:
        # Runs and the batches of a run are decided in rising order (W1, W4).
        return (
            batch.job_id == job_id
            and batch.query_id == entry.query_id
            and (batch.writer_epoch, batch.batch_id) <= decided
        )

    return is_superseded


@final
class _RowWriter:
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
