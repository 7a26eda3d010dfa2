"""
Copies of key groups that are being made, from other nodes' rows (rule S2).

Theory of operation
===================

A copy begins when the store is told of it (`queryablestate.store.holdings`).  **From
then on entries are kept for it**: each batch that is applied to the rest of the job is
written down in the same transaction, and its staged rows stay, whichever run superseded
them.  States that are dropped meanwhile are remembered by their numbers.

**Rows are put as they lie on another node**, as of one entry P of the chain: straight
into the slots of the states, out of sight, since no reader asks for a key group that
is not in sync.  The first page of a fetch, which is of no state, removes what an
earlier one has left of its key groups.  The store may be behind P then: entries up to P
leave these rows alone, also those that replace the whole state.

**Then the kept entries after P are applied to these key groups alone**, a few in a
transaction, so that what else waits for the writing thread gets its turn.  With one at
a time a copy might never be done: others are decided meanwhile.  The mark
says how far the copy is; with the last entry it says that the copy is complete, and
from the next entry on it is like what is held.  A store that is opened after a crash
goes on with a copy that is complete; one that is not is fetched anew.  To apply entries
once more to rows that have them already changes nothing in the end: each puts, deletes
and clears the same rows, items under the same indexes.

**What is not needed any more is released** afterwards, an entry in a transaction; after
a crash, by the next `hold`.

**States come along**: one that this store has not heard of gets a mark, which is hidden
while the store is behind P.  It may be asked for other key groups of the job, and must
not seem to be further than their rows are (rule Q1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice import LocalProtocolError
from queryablestate.errors import StagedDataMissingError
from queryablestate.store.groups import (
    difference,
    groups_in,
    intersection,
    is_in,
    row_ranges,
    runs_from,
    selected_rows,
    spans,
    union,
)
from queryablestate.store.hold_marks import admitted, copies_under_way, sequence_needed
from queryablestate.store.layout import (
    AwaitedState,
    batch_prefix,
    decode_kept,
    encode_record,
    kept_key,
    kept_prefix,
)
from queryablestate.store.marks import (
    hold_mark,
    job_states,
    position_of,
    put_hold_mark,
    put_state_mark,
    records,
    state_mark,
    state_marks,
)
from queryablestate.store.row_removal import remove_rows
from queryablestate.store.row_writer import RowWriter
from queryablestate.store.slots import new_mark, open_slots
from queryablestate.wire.codec import decode_rows


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lmdb import Transaction

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.layout import CopyMark, HoldMark, Runs
    from queryablestate.store.room import RoomKeeper
    from queryablestate.store.staging import StagingArea
    from queryablestate.wire.copy_messages import CopiedRows, CopiedState, CopiedStates
    from queryablestate.wire.records import BatchDecided


__all__ = ["CopyMaker"]

_RELEASED_COUNT_MAX: Final = 10_000
_REPLAYED_ENTRIES_MAX: Final = 16
_REPLAYED_CHUNKS_MAX: Final = 8
"""In one transaction, if there is more than one entry; a chunk has 4 MiB at most."""
"""Pieces of staged chunks that are removed in one transaction, about."""


@final
class CopyMaker:
    """Makes copies of key groups; for the writing thread."""

    def __init__(
        self, environment: StoreEnvironment, staging: StagingArea, room: RoomKeeper
    ) -> None:
        self._environment = environment
        self._meta = environment.meta
        self._staging = staging
        self._room = room

    # -- while entries are applied ---------------------------------------------------

    def keep_batch(
        self,
        transaction: Transaction[bytes],
        mark: HoldMark | None,
        entry: BatchDecided,
    ) -> None:
        """Keep *entry* with its rows if a copy has yet to get them."""
        needed = sequence_needed(mark)
        if mark is None or needed is None or entry.sequence <= needed:
            return
        key = kept_key(mark.job_id, entry.sequence)
        transaction.put(key, encode_record(entry), db=self._meta)
        prefix = batch_prefix(mark.job_id, entry.writer_epoch, entry.batch_id)
        self._staging.keep(transaction, prefix, entry.sequence)

    def keep_drop(
        self, transaction: Transaction[bytes], mark: HoldMark | None, state_number: int
    ) -> None:
        """Remember that a state was dropped, if copies may still bring it."""
        if mark is not None and copies_under_way(mark):
            dropped = (*mark.dropped, state_number)
            put_hold_mark(transaction, self._meta, replace(mark, dropped=dropped))

    def release(self, job_id: str, needed: int | None) -> None:
        """
        Drop the entries that no copy needs, with their rows.

        Args:
            needed: The entry after which all are needed; None if none is.
        """
        released = []
        with self._environment.reading() as transaction:
            prefix = kept_prefix(job_id)
            for key, stored in records(transaction, self._meta, prefix):
                entry = decode_kept(stored)
                if needed is not None and entry.sequence > needed:
                    break
                released.append((key, entry))
        while released:
            count = 0
            with self._environment.writing() as transaction:
                while released and count < _RELEASED_COUNT_MAX:
                    key, entry = released.pop()
                    transaction.delete(key, db=self._meta)
                    batch = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
                    count += self._staging.release(transaction, batch, entry.sequence)

    # -- rows of other nodes ---------------------------------------------------------

    def put(self, job_id: str, header: CopiedStates, page: CopiedRows) -> None:
        """See `queryablestate.store.store.StateStore.put_copied`."""
        with self._environment.reading() as transaction:
            mark = hold_mark(transaction, self._meta, job_id)
            copies = [
                one
                for one in copies_under_way(mark)
                if is_in(header.key_groups, one.key_group)
                and header.sequence >= one.sequence_min
            ]
            if mark is None or not copies:
                return
            numbers = set(state_marks(transaction, self._meta))
        numbers.update(one.state_number for one in header.states)
        open_slots(self._environment, len(numbers))
        with self._environment.writing() as transaction:
            # Of the same entry another source may have lost what this one has, or have
            # what that one has lost: every fetch says where it begins.
            is_first = page.state_number == 0
            # Rows that were brought further are not to be mixed with older ones.
            begun = [
                one
                for one in copies
                if is_first or not one.fetched == one.applied == header.sequence
            ]
            if begun:
                self._begin(transaction, mark, header, begun)
            groups = runs_from(one.key_group for one in copies)
            self._put_rows(transaction, page, groups)
            self._room.check_promised(transaction)

    def _begin(
        self,
        transaction: Transaction[bytes],
        mark: HoldMark,
        header: CopiedStates,
        begun: Sequence[CopyMark],
    ) -> None:
        """Remove what an earlier fetch has left; take over what states there are."""
        job_id = mark.job_id
        groups = runs_from(one.key_group for one in begun)
        ranges = row_ranges(groups)
        for number, state in job_states(transaction, self._meta, job_id).items():
            database = self._environment.slots[state.slot]
            remove_rows(transaction.cursor(database), ranges)
            sound = replace(state, lost=difference(state.lost, groups))
            put_state_mark(transaction, self._meta, number, sound)
        awaited = {one.state.state_number: one for one in mark.awaited}
        for copied in header.states:
            number = copied.state_number
            if number in mark.dropped:
                continue
            state = state_mark(transaction, self._meta, number) or new_mark(
                transaction, self._environment, job_id
            )
            lost = union(state.lost, intersection(copied.lost, groups))
            put_state_mark(transaction, self._meta, number, replace(state, lost=lost))
            awaited[number] = AwaitedState(header.sequence, copied)
        mark = replace(mark, awaited=tuple(awaited.values()))
        mark = _with_copies(
            mark,
            [
                replace(one, fetched=header.sequence, applied=header.sequence)
                for one in begun
            ],
        )
        self._settle(transaction, mark)

    def _put_rows(
        self, transaction: Transaction[bytes], page: CopiedRows, groups: Runs
    ) -> None:
        state = state_mark(transaction, self._meta, page.state_number)
        if state is None:
            return  # dropped meanwhile
        cursor = transaction.cursor(self._environment.slots[state.slot])
        for begin, end in spans(page.keys, row_ranges(groups)):
            keys, values = page.keys[begin:end], page.values[begin:end]
            is_append = not cursor.last() or cursor.key() < keys[0]
            cursor.putmulti(zip(keys, values, strict=True), append=is_append)

    def finish(
        self, job_id: str, key_groups: Sequence[int], sequence: int
    ) -> tuple[int, ...] | None:
        """See `queryablestate.store.store.StateStore.finish_copy`."""
        with self._environment.reading() as transaction:
            mark = hold_mark(transaction, self._meta, job_id)
            copies = [
                one for one in copies_under_way(mark) if one.key_group in key_groups
            ]
            if mark is None or not copies:
                return groups_in(admitted(mark), sorted(key_groups))
            position = position_of(transaction, self._meta, job_id)
            _check_finish(job_id, copies, sequence, position)
            applied = min(one.applied for one in copies)
            entries, is_last = self._next_kept(transaction, job_id, applied, position)
        with self._environment.writing() as transaction:
            for entry in entries:
                behind = [one for one in copies if one.applied < entry.sequence]
                self._replay(transaction, job_id, entry, behind)
                applied = entry.sequence
            mark = _with_copies(
                mark,
                [
                    replace(one, applied=max(applied, one.applied), is_complete=is_last)
                    for one in copies
                ],
            )
            mark = self._settle(transaction, mark)
        if not is_last:
            return None
        self.release(job_id, sequence_needed(mark))
        return groups_in(admitted(mark), sorted(key_groups))

    def _next_kept(
        self,
        transaction: Transaction[bytes],
        job_id: str,
        applied: int,
        position: int,
    ) -> tuple[Sequence[BatchDecided], bool]:
        """
        Return some entries after *applied*, in order, and whether none follows.

        Several at once, since others are decided meanwhile: with one at a time a copy
        might never be as far as the job.
        """
        node_id = self._environment.identity.node_id
        cursor = transaction.cursor(self._meta)
        end = kept_key(job_id, position + 1)
        entries: list[BatchDecided] = []
        chunk_count = 0
        is_there = cursor.set_range(kept_key(job_id, applied + 1))
        while is_there and cursor.key() < end:
            entry = decode_kept(cursor.value())
            chunk_count += sum(
                stage.chunk_counts.get(node_id, 0) for stage in entry.stages
            )
            is_full = (
                len(entries) >= _REPLAYED_ENTRIES_MAX
                or chunk_count > _REPLAYED_CHUNKS_MAX
            )
            if entries and is_full:
                return entries, False
            batch = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
            if self._staging.missing(transaction, batch, entry.stages):
                if entries:
                    return entries, False
                raise StagedDataMissingError(entry.batch_id, (node_id,))
            entries.append(entry)
            is_there = cursor.next()
        return entries, True

    def _replay(
        self,
        transaction: Transaction[bytes],
        job_id: str,
        entry: BatchDecided,
        copies: Iterable[CopyMark],
    ) -> None:
        """Apply a batch, which the job has applied, to some copies."""
        groups = runs_from(one.key_group for one in copies)
        ranges = row_ranges(groups)
        writers: dict[int, RowWriter] = {}
        for state in entry.states:
            mark = state_mark(transaction, self._meta, state.state_number)
            if mark is None:
                continue  # dropped after it
            cursor = transaction.cursor(self._environment.slots[mark.slot])
            if state.is_replaced:
                remove_rows(cursor, ranges)
                mark = replace(mark, lost=difference(mark.lost, groups))
                put_state_mark(transaction, self._meta, state.state_number, mark)
            writers[state.state_number] = RowWriter(cursor, state, entry.sequence)
        batch = batch_prefix(job_id, entry.writer_epoch, entry.batch_id)
        for payload in self._staging.payloads(transaction, batch, entry.stages):
            rows = decode_rows(payload)
            writer = writers.get(rows.state_number)
            rows_here = None if writer is None else selected_rows(rows, ranges)
            if writer is not None and rows_here is not None:
                writer.add(rows_here)
        for writer in writers.values():
            writer.finish()

    def _settle(self, transaction: Transaction[bytes], mark: HoldMark) -> HoldMark:
        """Keep *mark*, and make states known that the job is far enough for."""
        position = position_of(transaction, self._meta, mark.job_id)
        awaited: list[AwaitedState] = []
        for one in mark.awaited:
            if one.sequence > position:
                awaited.append(one)
            else:
                self._bear(transaction, one.state)
        mark = replace(mark, awaited=tuple(awaited))
        if not copies_under_way(mark):
            mark = replace(mark, awaited=(), dropped=())
        put_hold_mark(transaction, self._meta, mark)
        return mark

    def _bear(self, transaction: Transaction[bytes], copied: CopiedState) -> None:
        """Make the mark of a state say what the source says, unless it says more."""
        mark = state_mark(transaction, self._meta, copied.state_number)
        if mark is not None and not mark.kind:
            mark = replace(
                mark,
                kind=copied.kind,
                has_ttl=copied.has_ttl,
                generation=copied.generation,
                batch_id=copied.batch_id,
                decided_at_us=copied.decided_at_us,
            )
            put_state_mark(transaction, self._meta, copied.state_number, mark)


def _check_finish(
    job_id: str, copies: Iterable[CopyMark], sequence: int, position: int
) -> None:
    if position < sequence:
        raise LocalProtocolError(
            f"copies of job {job_id!r} are at entry {sequence}, and {position} was the "
            "last one applied: apply the entries up to there first"
        )
    for one in copies:
        if one.fetched != sequence or sequence < one.sequence_min:
            raise LocalProtocolError(
                f"a copy of key group {one.key_group} of job {job_id!r} is to be "
                f"finished at entry {sequence}, and what was put is at {one.fetched}: "
                f"put at least one page, of entry {one.sequence_min} or later"
            )


def _with_copies(mark: HoldMark, changed: Iterable[CopyMark]) -> HoldMark:
    """Return *mark* with these instead of the copies of the same key groups."""
    copies = {one.key_group: one for one in (*mark.copies, *changed)}
    return replace(mark, copies=tuple(copies[key] for key in sorted(copies)))
