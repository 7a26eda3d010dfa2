"""
Entries of a job's chain, applied to the rows of a node (rules W3, W4, W6, W7).

Theory of operation
===================

An entry is applied in one LMDB transaction: rows, marks of the states, the position in
the chain, the fence of the run, and the removal of what was staged.  A reader sees all
of it or nothing, and so does a node that opens the directory after a crash; an entry
that is applied again changes nothing, since the position is part of it.

**Chunks are put one after the other**, in the order of the winning stages: a row of a
later one takes the place of one with the same key, so that nothing need be merged, and
only one chunk is decoded in memory at a time.  The exception are rows with orders, all
of which must be known first (`OrderedRows`).

**The marks of all states of an entry move**, also of those for which this node got no
rows: what a reader is told is how far the chain is, not when its key group changed.

**Rows of a state that the entry does not name** are passed over.  A batch that comes
again may be decided for fewer states than it has rows for, because the others have it
(`queryablestate.control.job.job`); and no writer can stop the chain of a job, or write
to a state that it may not, by staging what its commit does not name.

**Rows of key groups that are not held** (`queryablestate.store.holdings`) are passed
over; they are found by bisection, since chunks are sorted.  A batch that replaces a
state leaves rows of copies that are being made alone: they may be those of a later
entry, and if not, the batch is applied to them when they are brought up to date
(`queryablestate.store.copies`).

**Lost key groups of a state go on being applied** (their rows are incomplete, and its
view says so), until a batch replaces the state: then nothing is missing any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, assert_never, final

import lmdb

from nameservice import LocalProtocolError, StorageError
from queryablestate.errors import StagedDataMissingError
from queryablestate.store.groups import (
    ALL_GROUPS,
    difference,
    intersection,
    row_ranges,
    runs_from,
    selected_rows,
)
from queryablestate.store.hold_marks import (
    admitted,
    copies_under_way,
    holding_of,
    next_mark,
)
from queryablestate.store.layout import StagedBatch, StateMark, batch_prefix
from queryablestate.store.marks import (
    hold_mark,
    job_states,
    move_position,
    position_of,
    put_hold_mark,
    put_state_mark,
    raise_fence,
    state_mark,
    state_marks,
)
from queryablestate.store.row_removal import remove_rows
from queryablestate.store.row_writer import RowWriter
from queryablestate.store.slots import drop_state, new_mark, open_slots
from queryablestate.wire.codec import decode_rows
from queryablestate.wire.records import (
    BatchDecided,
    SnapshotMarked,
    SnapshotRestored,
    StateDropped,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lmdb import Transaction, _Database

    from queryablestate.store.copies import CopyMaker
    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.layout import HoldMark, Runs
    from queryablestate.store.plans import PlanKeeper
    from queryablestate.store.restores import RestoreArea
    from queryablestate.store.room import RoomKeeper
    from queryablestate.store.staging import StagingArea
    from queryablestate.wire.job_assignment import JoiningGroup
    from queryablestate.wire.job_plan import JobHolding
    from queryablestate.wire.records import Entry


__all__ = ["EntryApplier"]


class _RehearsedError(Exception):
    """Gives up the transaction of a rehearsal that has gone well."""

    def __init__(self, row_count: int) -> None:
        super().__init__(row_count)
        self.row_count = row_count


@final
class EntryApplier:
    """Applies entries and resets; for the writing thread."""

    def __init__(
        self,
        environment: StoreEnvironment,
        staging: StagingArea,
        copies: CopyMaker,
        restores: RestoreArea,
        plans: PlanKeeper,
    ) -> None:
        self._environment = environment
        self._meta = environment.meta
        self._staging = staging
        self._copies = copies
        self._restores = restores
        self._plans = plans

    def apply(self, job_id: str, entry: Entry) -> None:
        """Apply the next entry; see `queryablestate.store.store.StateStore.apply`."""
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
            holding = hold_mark(transaction, self._meta, job_id)
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
        open_slots(self._environment, slot_count)
        write = partial(self._apply_entry, job_id, entry, holding)
        self._environment.write(write)

    def rehearse(self, job_id: str, entry: BatchDecided, room: RoomKeeper) -> None:
        """Promise room to a batch; see `StateStore.reserve` (rule W3)."""
        prefix = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
        with self._environment.reading() as transaction:
            holding = hold_mark(transaction, self._meta, job_id)
            numbers = set(state_marks(transaction, self._meta))
        numbers.update(state.state_number for state in entry.states)
        open_slots(self._environment, len(numbers))
        used_bytes = room.sizes().used_bytes

        def attempt(transaction: Transaction[bytes]) -> None:
            row_count = self._apply_batch(transaction, job_id, entry, holding)
            room.take_margin(transaction, prefix)
            raise _RehearsedError(row_count)

        try:
            self._environment.write(attempt)
        except _RehearsedError as rehearsed:
            room.promise(prefix, rehearsed.row_count)
        except StorageError as error:
            if isinstance(error.__cause__, lmdb.MapFullError):
                raise self._environment.full_error(used_bytes) from error
            raise

    def reset(
        self,
        job_id: str,
        sequence: int,
        state_numbers: Sequence[int],
        restore_id: str | None,
        *,
        key_groups: Iterable[int] | None,
        joining: Sequence[JoiningGroup],
        assignment_version: int,
    ) -> JobHolding:
        """Begin anew; see `queryablestate.store.store.StateStore.reset_job`."""
        with self._environment.reading() as transaction:
            marks = state_marks(transaction, self._meta)
            old = hold_mark(transaction, self._meta, job_id)
        lost = admitted(old) if key_groups is None else runs_from(key_groups)
        holding = next_mark(
            None, job_id, lost, joining, sequence=sequence, version=assignment_version
        )
        gone = [number for number, mark in marks.items() if mark.job_id == job_id]
        slot_count = len(marks) - len(gone) + len(state_numbers)
        open_slots(self._environment, slot_count)
        with self._environment.writing() as transaction:
            for state_number in gone:
                drop_state(transaction, self._environment, state_number)
            if restore_id is not None:
                self._restores.drop_others(transaction, job_id, restore_id)
            for state_number in state_numbers:
                mark = new_mark(transaction, self._environment, job_id, lost=lost)
                put_state_mark(transaction, self._meta, state_number, mark)
            put_hold_mark(transaction, self._meta, holding)
            self._plans.reset(transaction, job_id, sequence)
            move_position(transaction, self._meta, job_id, sequence)
            states = job_states(transaction, self._meta, job_id)
        self._copies.release(job_id, None)
        return holding_of(holding, states.values())

    def _apply_entry(
        self,
        job_id: str,
        entry: Entry,
        holding: HoldMark | None,
        transaction: Transaction[bytes],
    ) -> None:
        match entry:
            case BatchDecided():
                self._copies.keep_batch(transaction, holding, entry)
                self._apply_batch(transaction, job_id, entry, holding)
            case StateDropped(state_number=state_number):
                self._copies.keep_drop(transaction, holding, state_number)
                drop_state(transaction, self._environment, state_number)
            case SnapshotMarked():
                pass  # the position moves
            case SnapshotRestored():
                self._restores.adopt(transaction, job_id, entry, holding)
            case _:
                assert_never(entry)
        digest = self._plans.apply(transaction, job_id, entry)
        move_position(transaction, self._meta, job_id, entry.sequence, digest)

    def _apply_batch(
        self,
        transaction: Transaction[bytes],
        job_id: str,
        entry: BatchDecided,
        holding: HoldMark | None,
    ) -> int:
        """Apply the rows of a batch, and return how many there were."""
        row_count = 0
        copying = runs_from(one.key_group for one in copies_under_way(holding))
        here = row_ranges(admitted(holding))
        writers: dict[int, RowWriter] = {}
        for state in entry.states:
            mark = state_mark(transaction, self._meta, state.state_number)
            if mark is None:
                mark = new_mark(transaction, self._environment, job_id)
            database = self._environment.slots[mark.slot]
            if state.is_replaced:
                self._clear(transaction, database, copying)
            mark = StateMark(
                job_id=job_id,
                slot=mark.slot,
                kind=state.kind,
                has_ttl=state.has_ttl,
                generation=state.generation,
                batch_id=entry.batch_id,
                decided_at_us=entry.decided_at_us,
                lost=intersection(mark.lost, copying)
                if state.is_replaced
                else mark.lost,
            )
            put_state_mark(transaction, self._meta, state.state_number, mark)
            writers[state.state_number] = RowWriter(
                transaction.cursor(database), state, entry.sequence
            )
        prefix = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
        payloads = self._staging.payloads(transaction, prefix, entry.stages)
        for rows in map(decode_rows, payloads):
            writer = writers.get(rows.state_number)
            some = rows if holding is None else selected_rows(rows, here)
            if writer is not None and some is not None:
                row_count += len(some.keys)
                writer.add(some)
            del rows, some  # not to be held beside those of the next chunk
        for writer in writers.values():
            writer.finish()
        self._staging.drop(transaction, _superseded_by(job_id, entry))
        raise_fence(transaction, self._meta, job_id, entry.query_id, entry.writer_epoch)
        return row_count

    def _clear(
        self, transaction: Transaction[bytes], database: _Database, copying: Runs
    ) -> None:
        """Remove all rows, but for those of copies: they may be ahead of the entry."""
        if copying:
            others = row_ranges(difference(ALL_GROUPS, copying))
            remove_rows(transaction.cursor(database), others)
        else:
            transaction.drop(database, delete=False)


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
