"""
What a store keeps of the plan of a job, so that a new control plane can take it over.

Theory of operation.  The proxy leader tells a plan (`queryablestate.wire.job_plan`) as
of an entry that may have yet to be applied here.  Until it is, the plan *waits*: what
is kept is always as of the last entry that was applied, or the rows would be said to
hold batches that they lack.

From then on each entry moves it, in the transaction that applies the entry: the
progress of the states that a batch writes, and of no others, is written anew.  The
newest entries are kept as they are: a node that is some entries behind another one can
be brought what it missed.

What is kept is in ``meta``:

========================  ==========================================================
``plan/`` + job           `JobPlan`, as it was told
``next/`` + job           `JobPlan` that waits for its entry
``prog/`` + state number  `_Progress` of a state of a plan
``last/`` + job + entry   an entry that was applied
========================  ==========================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

import msgspec
from attrs import frozen
from msgspec import Struct

from nameservice import StorageError
from queryablestate.store.layout import (
    JOB_PREFIX,
    decode_job,
    encode_record,
    job_key,
)
from queryablestate.store.marks import records
from queryablestate.wire.job_plan import (
    JobOrigin,
    JobPlan,
    PlannedState,
    entry_digest,
    progress_after,
)
from queryablestate.wire.records import (
    BatchDecided,
    Entry,
    StateDropped,
    StateProgress,
)


if TYPE_CHECKING:
    from lmdb import Transaction

    from queryablestate.store.environment import StoreEnvironment


__all__ = ["PlanKeeper", "ToldPlan"]

_PLAN_PREFIX: Final = b"plan/"
_NEXT_PREFIX: Final = b"next/"
_PROGRESS_PREFIX: Final = b"prog/"
_LAST_PREFIX: Final = b"last/"
_LAST_COUNT_MAX: Final = 16
"""Entries that are kept of each job: others are not that far behind."""
_LAST_SIZE_BYTES_MAX: Final = 4 << 20


T = TypeVar("T")


class _Progress(Struct, frozen=True, array_like=True):
    """The progress of a state, and the entry that it is as of."""

    sequence: int
    progress: StateProgress


_PLAN: Final = msgspec.msgpack.Decoder(JobPlan)
_PROGRESS: Final = msgspec.msgpack.Decoder(_Progress)
_ENTRY: Final = msgspec.msgpack.Decoder(Entry)


@final
@frozen(kw_only=True)
class ToldPlan:
    """
    What is kept of a job.

    Attributes:
        sequence: The last entry that was applied.
        plan: As of that entry; None if no plan was ever told.
        entries: The newest entries, in their order, the last one being *sequence*.
    """

    sequence: int
    plan: JobPlan | None
    entries: tuple[Entry, ...]


@final
class PlanKeeper:
    """Keeps plans; what writes is for the writing thread."""

    def __init__(self, environment: StoreEnvironment) -> None:
        self._environment = environment
        self._meta = environment.meta

    # -- questions -----------------------------------------------------------------

    def origins(self) -> dict[str, JobOrigin]:
        """Return what tells each job that was begun from others of its name."""
        found = {}
        with self._environment.reading() as transaction:
            for _, stored in records(transaction, self._meta, JOB_PREFIX):
                mark = decode_job(stored)
                plan = self._plan(transaction, _PLAN_PREFIX, mark.job_id)
                found[mark.job_id] = JobOrigin(
                    job_number=0 if plan is None else plan.job_number,
                    assignment_version=(0 if plan is None else plan.assignment.version),
                    entry_digest=mark.digest,
                )
        return found

    def told(self, job_id: str) -> ToldPlan | None:
        """Return what is kept of a job; None for one that was never begun."""
        with self._environment.reading() as transaction:
            stored = transaction.get(job_key(job_id), db=self._meta)
            if stored is None:
                return None
            sequence = decode_job(stored).sequence
            plan = self._plan(transaction, _PLAN_PREFIX, job_id)
            if plan is not None:
                plan = self._current(transaction, plan, sequence)
            prefix = _LAST_PREFIX + job_key(job_id)
            entries = tuple(
                _decoded(_ENTRY, stored)
                for _, stored in records(transaction, self._meta, prefix)
            )
        return ToldPlan(sequence=sequence, plan=plan, entries=entries)

    # -- what changes --------------------------------------------------------------

    def keep(self, plan: JobPlan) -> None:
        """Keep a plan that was told, as soon as its entry is applied."""
        with self._environment.writing() as transaction:
            stored = transaction.get(job_key(plan.job_id), db=self._meta)
            position = 0 if stored is None else decode_job(stored).sequence
            if position < plan.sequence:
                key = _key(_NEXT_PREFIX, plan.job_id)
                transaction.put(key, encode_record(plan), db=self._meta)
            else:
                self._take(transaction, plan)

    def apply(
        self, transaction: Transaction[bytes], job_id: str, entry: Entry
    ) -> bytes:
        """Follow an entry that is being applied; return its digest."""
        match entry:
            case BatchDecided():
                for state in entry.states:
                    known = self._progress(transaction, state.state_number)
                    if known is not None and known.sequence < entry.sequence:
                        progress = progress_after(known.progress, entry, state)
                        self._put(transaction, entry.sequence, progress)
            case StateDropped(state_number=state_number):
                transaction.delete(_progress_key(state_number), db=self._meta)
            case _:
                pass
        self._keep_entry(transaction, job_id, entry)
        self.moved(transaction, job_id, entry.sequence)
        return entry_digest(entry)

    def reset(
        self, transaction: Transaction[bytes], job_id: str, sequence: int
    ) -> None:
        """Follow a job that begins anew after an entry."""
        self._drop_entries(transaction, job_id)
        self.moved(transaction, job_id, sequence)

    def moved(
        self, transaction: Transaction[bytes], job_id: str, sequence: int
    ) -> None:
        """Take the plan that waited for *sequence*, if there is one."""
        plan = self._plan(transaction, _NEXT_PREFIX, job_id)
        if plan is not None and plan.sequence <= sequence:
            transaction.delete(_key(_NEXT_PREFIX, job_id), db=self._meta)
            self._take(transaction, plan)

    def forget(self, transaction: Transaction[bytes], job_id: str) -> None:
        """Keep nothing of a job any more."""
        plan = self._plan(transaction, _PLAN_PREFIX, job_id)
        if plan is not None:
            self._drop_progress(transaction, plan)
        for prefix in (_PLAN_PREFIX, _NEXT_PREFIX):
            transaction.delete(_key(prefix, job_id), db=self._meta)
        self._drop_entries(transaction, job_id)

    # -- parts ---------------------------------------------------------------------

    def _take(self, transaction: Transaction[bytes], plan: JobPlan) -> None:
        """Keep *plan*; what was applied since stays as far as it is."""
        before = self._plan(transaction, _PLAN_PREFIX, plan.job_id)
        if before is not None:
            gone = {one.state.state_number for one in before.states} - {
                one.state.state_number for one in plan.states
            }
            for number in gone:
                transaction.delete(_progress_key(number), db=self._meta)
        for one in plan.states:
            known = self._progress(transaction, one.state.state_number)
            if known is None or known.sequence <= plan.sequence:
                self._put(transaction, plan.sequence, one.progress)
        key = _key(_PLAN_PREFIX, plan.job_id)
        transaction.put(key, encode_record(plan), db=self._meta)

    def _current(
        self, transaction: Transaction[bytes], plan: JobPlan, sequence: int
    ) -> JobPlan:
        """Return *plan* as of the last entry that was applied."""
        states = []
        for one in plan.states:
            known = self._progress(transaction, one.state.state_number)
            if known is not None:
                states.append(PlannedState(state=one.state, progress=known.progress))
        return msgspec.structs.replace(plan, sequence=sequence, states=tuple(states))

    def _keep_entry(
        self, transaction: Transaction[bytes], job_id: str, entry: Entry
    ) -> None:
        prefix = _LAST_PREFIX + job_key(job_id)
        sizes = [
            (key, len(stored))
            for key, stored in records(transaction, self._meta, prefix)
        ]
        encoded = encode_record(entry)
        room = _LAST_SIZE_BYTES_MAX - len(encoded)
        count = 1
        for key, size_bytes in reversed(sizes):
            room -= size_bytes
            count += 1
            if room < 0 or count > _LAST_COUNT_MAX:
                transaction.delete(key, db=self._meta)
                room = -1  # without gaps: those before it go, too
        key = prefix + entry.sequence.to_bytes(8, "big")
        transaction.put(key, encoded, db=self._meta)

    def _drop_entries(self, transaction: Transaction[bytes], job_id: str) -> None:
        prefix = _LAST_PREFIX + job_key(job_id)
        for key in [key for key, _ in records(transaction, self._meta, prefix)]:
            transaction.delete(key, db=self._meta)

    def _drop_progress(self, transaction: Transaction[bytes], plan: JobPlan) -> None:
        for one in plan.states:
            key = _progress_key(one.state.state_number)
            transaction.delete(key, db=self._meta)

    def _plan(
        self, transaction: Transaction[bytes], prefix: bytes, job_id: str
    ) -> JobPlan | None:
        stored = transaction.get(_key(prefix, job_id), db=self._meta)
        return None if stored is None else _decoded(_PLAN, stored)

    def _progress(
        self, transaction: Transaction[bytes], state_number: int
    ) -> _Progress | None:
        stored = transaction.get(_progress_key(state_number), db=self._meta)
        return None if stored is None else _decoded(_PROGRESS, stored)

    def _put(
        self, transaction: Transaction[bytes], sequence: int, progress: StateProgress
    ) -> None:
        key = _progress_key(progress.state_number)
        kept = _Progress(sequence=sequence, progress=progress)
        transaction.put(key, encode_record(kept), db=self._meta)


def _key(prefix: bytes, job_id: str) -> bytes:
    return prefix + job_key(job_id)


def _progress_key(state_number: int) -> bytes:
    return _PROGRESS_PREFIX + state_number.to_bytes(8, "big")


def _decoded(decoder: msgspec.msgpack.Decoder[T], stored: bytes) -> T:
    try:
        return decoder.decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError(
            f"the plan of a job in the data directory cannot be read ({error}): the "
            "directory is damaged; remove it, and the node is refilled"
        ) from error
