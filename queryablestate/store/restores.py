"""
Rows of a snapshot that are loaded, and wait for the entry that shows them.

They lie where rows lie, in slots of their own, as states of a job that there is not:
no reader finds them, and no entry but `SnapshotRestored` touches them.  That
entry gives them to the job, in the transaction that applies it: not a row is moved.

What is loaded is noted in ``meta``, under ``load/`` and a digest of the restore id
(`LoadMark`): whatever comes to nothing is found by that, and dropped.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, final

import msgspec
from msgspec import Struct

from nameservice import StorageError
from queryablestate.store.groups import ALL_GROUPS, difference, row_ranges
from queryablestate.store.hold_marks import admitted
from queryablestate.store.layout import HIDDEN_JOB_PREFIX, StateMark, encode_record
from queryablestate.store.marks import (
    job_states,
    put_state_mark,
    records,
    state_mark,
    state_marks,
)
from queryablestate.store.row_removal import remove_rows
from queryablestate.store.slots import drop_state, new_mark, open_slots


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lmdb import Transaction

    from queryablestate.store.environment import StoreEnvironment
    from queryablestate.store.layout import HoldMark
    from queryablestate.store.room import RoomKeeper
    from queryablestate.wire.records import SnapshotRestored
    from queryablestate.wire.snapshot_messages import LoadedState


__all__ = ["LoadMark", "RestoreArea", "RestoredRowsMissingError"]

_LOAD_PREFIX: Final = b"load/"
_DIGEST_SIZE_BYTES: Final = 16
_OWNER_PREFIX: Final = f"{HIDDEN_JOB_PREFIX}restore "


@final
class RestoredRowsMissingError(StorageError):
    """An entry shows rows that were loaded, and they are not here any more."""

    reason = "rows_missing"


class LoadMark(Struct, frozen=True, array_like=True):
    """
    What is loaded, or is being loaded.

    Attributes:
        restore_id: Names it.
        job_id: The job that is to have it.
        began_at_us: When it was begun to load, by the wall clock: for people alone.
        is_complete: Whether all of it is here.
    """

    restore_id: str
    job_id: str
    began_at_us: int
    is_complete: bool = False


_MARK: Final = msgspec.msgpack.Decoder(LoadMark)


@final
class RestoreArea:
    """What is loaded; all methods are for the writing thread, and block."""

    def __init__(self, environment: StoreEnvironment, room: RoomKeeper) -> None:
        self._environment = environment
        self._room = room
        self._meta = environment.meta

    def begin(self, mark: LoadMark, states: Sequence[LoadedState]) -> None:
        """
        Make room for states, without rows; what was loaded for the job before goes.

        Raises:
            StorageError: If the store is full, or holds one of the states already.
        """
        self.drop(lambda other: other.job_id == mark.job_id)
        with self._environment.reading() as transaction:
            count = len(state_marks(transaction, self._meta)) + len(states)
        open_slots(self._environment, count)
        owner = _owner(mark.restore_id)
        with self._environment.writing() as transaction:
            transaction.put(_key(mark.restore_id), encode_record(mark), db=self._meta)
            for state in states:
                number = state.state_number
                if state_mark(transaction, self._meta, number) is not None:
                    raise StorageError(
                        f"the data directory holds rows of state {number} already"
                    )
                empty = new_mark(transaction, self._environment, owner)
                filled = StateMark(
                    job_id=owner,
                    slot=empty.slot,
                    kind=state.kind,
                    has_ttl=state.has_ttl,
                    generation=state.generation,
                    batch_id=state.batch_id,
                    decided_at_us=state.decided_at_us,
                    lost=(),
                )
                put_state_mark(transaction, self._meta, number, filled)

    def put(
        self,
        restore_id: str,
        state_number: int,
        keys: Iterable[bytes],
        values: Iterable[bytes],
    ) -> None:
        """
        Keep rows of one state.

        Raises:
            StorageError: If the store is full, or what is left is promised to a batch
                (rule W3), or what was begun has been dropped.
        """
        with self._environment.writing() as transaction:
            mark = state_mark(transaction, self._meta, state_number)
            if mark is None or mark.job_id != _owner(restore_id):
                raise StorageError("what was being loaded has been dropped")
            cursor = transaction.cursor(self._environment.slots[mark.slot])
            rows: Iterator[tuple[bytes, bytes]] = zip(keys, values, strict=True)
            cursor.putmulti(rows)
            self._room.check_promised(transaction)

    def finish(self, restore_id: str) -> None:
        """
        Note that all is here; only then does an entry show it.

        Raises:
            StorageError: If what was begun has been dropped.
        """
        with self._environment.writing() as transaction:
            mark = self._mark(transaction, restore_id)
            if mark is None:
                raise StorageError("what was being loaded has been dropped")
            complete = msgspec.structs.replace(mark, is_complete=True)
            transaction.put(_key(restore_id), encode_record(complete), db=self._meta)

    def drop(self, is_unwanted: Callable[[LoadMark], bool]) -> int:
        """Drop what is loaded and not wanted; return how many restores that were."""
        with self._environment.reading() as transaction:
            unwanted = [mark for mark in self._marks(transaction) if is_unwanted(mark)]
        if unwanted:
            with self._environment.writing() as transaction:
                for mark in unwanted:
                    self._drop(transaction, mark.restore_id)
        return len(unwanted)

    def drop_others(
        self, transaction: Transaction[bytes], job_id: str, restore_id: str
    ) -> None:
        """
        Drop what is loaded for a job, but for one restore.

        The job has gone past the entry that would have shown it: other nodes have its
        states by now, and their rows come here under the same numbers.
        """
        for mark in self._marks(transaction):
            if mark.job_id == job_id and mark.restore_id != restore_id:
                self._drop(transaction, mark.restore_id)

    def adopt(
        self,
        transaction: Transaction[bytes],
        job_id: str,
        entry: SnapshotRestored,
        holding: HoldMark | None,
    ) -> None:
        """
        Give what is loaded to its job.

        Raises:
            RestoredRowsMissingError: If it is not here.
        """
        load = self._mark(transaction, entry.restore_id)
        owner = _owner(entry.restore_id)
        others = row_ranges(difference(ALL_GROUPS, admitted(holding)))
        for number in entry.state_numbers:
            mark = state_mark(transaction, self._meta, number)
            if (
                load is None
                or not load.is_complete
                or mark is None
                or mark.job_id != owner
            ):
                raise RestoredRowsMissingError(
                    f"the rows of the snapshot that job {job_id!r} was restored from "
                    "are not here: drop its states, and restore it again"
                )
            if others:
                # They belonged here when they were loaded, and do not any more.
                database = self._environment.slots[mark.slot]
                remove_rows(transaction.cursor(database), others)
            given = msgspec.structs.replace(mark, job_id=job_id)
            put_state_mark(transaction, self._meta, number, given)
        self._drop(transaction, entry.restore_id)

    # -- parts ---------------------------------------------------------------------

    def _mark(
        self, transaction: Transaction[bytes], restore_id: str
    ) -> LoadMark | None:
        stored = transaction.get(_key(restore_id), db=self._meta)
        return None if stored is None else _decoded(stored)

    def _marks(self, transaction: Transaction[bytes]) -> list[LoadMark]:
        return [
            _decoded(stored)
            for _, stored in records(transaction, self._meta, _LOAD_PREFIX)
        ]

    def _drop(self, transaction: Transaction[bytes], restore_id: str) -> None:
        for number in job_states(transaction, self._meta, _owner(restore_id)):
            drop_state(transaction, self._environment, number)
        transaction.delete(_key(restore_id), db=self._meta)


def _decoded(stored: bytes) -> LoadMark:
    try:
        return _MARK.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(
            f"the mark of a restore in the data directory cannot be read ({error}): "
            "the directory is damaged; remove it, and the node is refilled"
        ) from error


def _key(restore_id: str) -> bytes:
    digest = blake2b(restore_id.encode(), digest_size=_DIGEST_SIZE_BYTES).digest()
    return _LOAD_PREFIX + digest


def _owner(restore_id: str) -> str:
    return _OWNER_PREFIX + restore_id
