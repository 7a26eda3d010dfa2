"""What a store remembers besides rows: states, positions of jobs, fences of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.store.layout import (
    FENCE_PREFIX,
    HOLD_PREFIX,
    JOB_PREFIX,
    STAGED_PREFIX,
    STATE_PREFIX,
    FenceMark,
    HoldMark,
    JobMark,
    StagedMark,
    StateMark,
    decode_fence,
    decode_hold,
    decode_job,
    decode_staged,
    decode_state,
    encode_record,
    fence_key,
    former_fence_key,
    hold_key,
    job_key,
    staged_key,
    state_key,
    state_number_of,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lmdb import Transaction, _Database


__all__ = [
    "add_staged_size",
    "drop_state_mark",
    "fence_of",
    "forget_marks",
    "hold_mark",
    "hold_marks",
    "job_states",
    "marked_jobs",
    "move_position",
    "position_of",
    "put_hold_mark",
    "put_staged_sizes",
    "put_state_mark",
    "raise_fence",
    "records",
    "staged_size",
    "state_mark",
    "state_marks",
]


def records(
    transaction: Transaction[bytes], meta: _Database, prefix: bytes
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records whose keys begin with *prefix*, in the order of keys."""
    cursor = transaction.cursor(meta)
    if cursor.set_range(prefix):
        for key, stored in cursor.iternext():
            if not key.startswith(prefix):
                return
            yield key, stored


def state_marks(
    transaction: Transaction[bytes], meta: _Database
) -> dict[int, StateMark]:
    """Return every state with its mark, by rising state number."""
    return {
        state_number_of(key): decode_state(stored)
        for key, stored in records(transaction, meta, STATE_PREFIX)
    }


def job_states(
    transaction: Transaction[bytes], meta: _Database, job_id: str
) -> dict[int, StateMark]:
    """Return the states of a job with their marks, by rising state number."""
    marks = state_marks(transaction, meta)
    return {number: mark for number, mark in marks.items() if mark.job_id == job_id}


def state_mark(
    transaction: Transaction[bytes], meta: _Database, state_number: int
) -> StateMark | None:
    """Return the mark of a state, or None if there is no such state."""
    stored = transaction.get(state_key(state_number), db=meta)
    return None if stored is None else decode_state(stored)


def put_state_mark(
    transaction: Transaction[bytes], meta: _Database, state_number: int, mark: StateMark
) -> None:
    """Keep the mark of a state."""
    transaction.put(state_key(state_number), encode_record(mark), db=meta)


def drop_state_mark(
    transaction: Transaction[bytes], meta: _Database, state_number: int
) -> StateMark | None:
    """Forget a state, and return its mark; None if there is no such state."""
    stored = transaction.pop(state_key(state_number), db=meta)
    return None if stored is None else decode_state(stored)


def position_of(transaction: Transaction[bytes], meta: _Database, job_id: str) -> int:
    """Return the last entry of the job that was applied, 0 before the first."""
    stored = transaction.get(job_key(job_id), db=meta)
    return 0 if stored is None else decode_job(stored).sequence


def move_position(
    transaction: Transaction[bytes],
    meta: _Database,
    job_id: str,
    sequence: int,
    digest: bytes = b"",
) -> None:
    """Note that entry *sequence* of the job was the last one applied."""
    mark = JobMark(job_id=job_id, sequence=sequence, digest=digest)
    transaction.put(job_key(job_id), encode_record(mark), db=meta)


def hold_mark(
    transaction: Transaction[bytes], meta: _Database, job_id: str
) -> HoldMark | None:
    """Return which key groups of the job are held, or None if all are."""
    stored = transaction.get(hold_key(job_id), db=meta)
    return None if stored is None else decode_hold(stored)


def hold_marks(transaction: Transaction[bytes], meta: _Database) -> list[HoldMark]:
    """Return which key groups are held of each job that a store was told of."""
    holds = records(transaction, meta, HOLD_PREFIX)
    return [decode_hold(stored) for _, stored in holds]


def put_hold_mark(
    transaction: Transaction[bytes], meta: _Database, mark: HoldMark
) -> None:
    """Keep which key groups of a job are held."""
    transaction.put(hold_key(mark.job_id), encode_record(mark), db=meta)


def fence_of(
    transaction: Transaction[bytes], meta: _Database, job_id: str, query_id: str
) -> int:
    """Return the least writer epoch of the query that may still stage, 0 for any."""
    stored = transaction.get(fence_key(job_id, query_id), db=meta)
    return 0 if stored is None else decode_fence(stored).writer_epoch


def raise_fence(
    transaction: Transaction[bytes],
    meta: _Database,
    job_id: str,
    query_id: str,
    writer_epoch: int,
) -> None:
    """Have no run of the query of that job below *writer_epoch* stage any more."""
    if fence_of(transaction, meta, job_id, query_id) < writer_epoch:
        mark = FenceMark(query_id=query_id, writer_epoch=writer_epoch, job_id=job_id)
        transaction.put(fence_key(job_id, query_id), encode_record(mark), db=meta)
        transaction.delete(former_fence_key(query_id), db=meta)


def staged_size(transaction: Transaction[bytes], meta: _Database, job_id: str) -> int:
    """Return how many bytes of the job are staged, and not decided."""
    stored = transaction.get(staged_key(job_id), db=meta)
    return 0 if stored is None else decode_staged(stored).size_bytes


def staged_sizes(transaction: Transaction[bytes], meta: _Database) -> dict[str, int]:
    """Return the same for each job of which anything is."""
    marks = [
        decode_staged(stored) for _, stored in records(transaction, meta, STAGED_PREFIX)
    ]
    return {mark.job_id: mark.size_bytes for mark in marks}


def add_staged_size(
    transaction: Transaction[bytes], meta: _Database, job_id: str, size_bytes: int
) -> None:
    """Count *size_bytes* more for the job, or less."""
    size_bytes += staged_size(transaction, meta, job_id)
    _put_staged_size(transaction, meta, job_id, size_bytes)


def put_staged_sizes(
    transaction: Transaction[bytes], meta: _Database, sizes: Mapping[str, int]
) -> None:
    """Put what has been counted in place of what there was."""
    counted = staged_sizes(transaction, meta)
    for job_id in sorted(counted.keys() | sizes.keys()):
        if counted.get(job_id, 0) != sizes.get(job_id, 0):
            _put_staged_size(transaction, meta, job_id, sizes.get(job_id, 0))


def _put_staged_size(
    transaction: Transaction[bytes], meta: _Database, job_id: str, size_bytes: int
) -> None:
    assert size_bytes >= 0
    if size_bytes:
        mark = StagedMark(job_id=job_id, size_bytes=size_bytes)
        transaction.put(staged_key(job_id), encode_record(mark), db=meta)
    else:
        transaction.delete(staged_key(job_id), db=meta)


def marked_jobs(transaction: Transaction[bytes], meta: _Database) -> set[str]:
    """Return the jobs with a position, with key groups that are held, or a fence."""
    positions = records(transaction, meta, JOB_PREFIX)
    fences = records(transaction, meta, FENCE_PREFIX)
    return {
        *(decode_job(stored).job_id for _, stored in positions),
        *(mark.job_id for mark in hold_marks(transaction, meta)),
        *(decode_fence(stored).job_id for _, stored in fences),
    }


def forget_marks(transaction: Transaction[bytes], meta: _Database, job_id: str) -> None:
    """Forget the position of a job, which key groups are held, and all fences of it."""
    fences = [
        key
        for key, stored in records(transaction, meta, FENCE_PREFIX)
        if decode_fence(stored).job_id == job_id
    ]
    for key in (job_key(job_id), hold_key(job_id), *fences):
        transaction.delete(key, db=meta)
