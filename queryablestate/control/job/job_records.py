"""
How the record of a job is divided in the leader store, and put together again; pure.

Theory of operation.  A decision must not cost more because a job has had many states
and queries (rule B3).  So what it changes of each is a record of its own::

    jobs/NUMBER                     JobRecord without runs and progress: the head
    jobs/NUMBER/queries/DIGEST      QueryRecord: the newest run of a query, and how far
                                    it is with the states that it has written
    jobs/NUMBER/progress/NUMBER     StateProgress of one state, without its queries

and only those are written that have changed.  A query that writes all of its states
with each batch has one mark, however many states these are.

Earlier versions kept all of it in ``jobs/NUMBER``.  Such a job is read as it is, and
written in this way with its first change (`Job.is_in_one_record`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from election import Delete, Put
from nameservice import StorageError
from queryablestate.control.job.leader_paths import (
    encode_record,
    job_path,
    progress_path,
    query_path,
)
from queryablestate.wire.records import QueryProgress
from queryablestate.wire.stored_records import QueryMark, QueryRecord


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from election import StoreOperation
    from queryablestate.wire.records import JobRecord, StateProgress


__all__ = ["changed_records", "record_paths", "whole_record"]


def changed_records(
    before: JobRecord | None, after: JobRecord
) -> Sequence[StoreOperation]:
    """
    Return what is to be written of a record; no path is there twice.

    Args:
        before: What the store holds, or None if it holds nothing in this way.
        after: What it is to hold.
    """
    number = after.job_number
    head = replace(after, runs=(), progress=())
    operations: list[StoreOperation] = [Put(job_path(number), encode_record(head))]
    old = {} if before is None else _by_number(before)
    new = _by_number(after)
    query_ids = _changed_runs(before, after)
    for state_number, progress in new.items():
        known = old.get(state_number)
        if known is progress or known == progress:
            continue
        path = progress_path(number, state_number)
        operations.append(Put(path, encode_record(replace(progress, queries=()))))
        query_ids |= _changed_queries(known, progress)
    for state_number in sorted(old.keys() - new.keys()):
        operations.append(Delete(progress_path(number, state_number)))
        query_ids |= _changed_queries(old[state_number], None)
    known_ids = set() if before is None else _query_ids(before)
    for record in _query_records(after, query_ids):
        path = query_path(number, record.query_id)
        if record.run is not None or record.marks:
            operations.append(Put(path, encode_record(record)))
        elif record.query_id in known_ids:
            operations.append(Delete(path))
    return operations


def record_paths(record: JobRecord) -> list[str]:
    """Return where all of a record may be."""
    number = record.job_number
    return [
        job_path(number),
        *(query_path(number, query_id) for query_id in sorted(_query_ids(record))),
        *(progress_path(number, one.state_number) for one in record.progress),
    ]


def whole_record(
    head: JobRecord, queries: Iterable[QueryRecord], progress: Iterable[StateProgress]
) -> JobRecord:
    """
    Return the record of a job that is divided.

    Raises:
        StorageError: If the parts do not fit each other.
    """
    by_number = {one.state_number: one for one in progress}
    records = sorted(queries, key=lambda record: record.query_id)
    if head.runs or head.progress:
        if records or by_number:
            raise _misfit(head)
        return head
    marks: dict[int, list[QueryProgress]] = {number: [] for number in by_number}
    for record in records:
        for mark in record.marks:
            done = QueryProgress(
                query_id=record.query_id,
                batch_id=mark.batch_id,
                writer_epoch=mark.writer_epoch,
                sequence=mark.sequence,
            )
            for number in mark.state_numbers:
                if number not in marks:
                    raise _misfit(head)
                marks[number].append(done)
    for done_queries in marks.values():
        done_queries.sort(key=lambda done: done.sequence)
    runs = [record.run for record in records if record.run is not None]
    return replace(
        head,
        runs=tuple(sorted(runs, key=lambda run: run.activity)),
        progress=tuple(
            replace(by_number[number], queries=tuple(marks[number]))
            for number in sorted(by_number)
        ),
    )


def _misfit(head: JobRecord) -> StorageError:
    return StorageError(
        f"the records under jobs/{head.job_number} in the leader store of the proxies "
        "do not fit each other: did somebody else write there?"
    )


def _by_number(record: JobRecord) -> dict[int, StateProgress]:
    return {one.state_number: one for one in record.progress}


def _query_ids(record: JobRecord) -> set[str]:
    """Return the queries that a record knows of."""
    query_ids = {run.query_id for run in record.runs}
    for progress in record.progress:
        query_ids.update(one.query_id for one in progress.queries)
    return query_ids


def _changed_runs(before: JobRecord | None, after: JobRecord) -> set[str]:
    """Return the queries that have another run, or whose run did something since."""
    old = {} if before is None else {run.query_id: run for run in before.runs}
    new = {run.query_id: run for run in after.runs}
    return {
        query_id
        for query_id in old.keys() | new.keys()
        if old.get(query_id) != new.get(query_id)
    }


def _changed_queries(old: StateProgress | None, new: StateProgress | None) -> set[str]:
    """Return the queries that are otherwise far with one state."""
    before = set() if old is None else set(old.queries)
    after = set() if new is None else set(new.queries)
    return {one.query_id for one in before ^ after}


def _query_records(
    record: JobRecord, query_ids: Collection[str]
) -> Sequence[QueryRecord]:
    """Return these queries of *record*, by name."""
    if not query_ids:
        return []
    marks: dict[str, dict[tuple[int, int, int], list[int]]] = {
        query_id: {} for query_id in sorted(query_ids)
    }
    for progress in record.progress:
        for one in progress.queries:
            if one.query_id in query_ids:
                mark = (one.batch_id, one.writer_epoch, one.sequence)
                numbers = marks[one.query_id].setdefault(mark, [])
                numbers.append(progress.state_number)
    runs = {run.query_id: run for run in record.runs}
    return [
        QueryRecord(
            query_id=query_id,
            run=runs.get(query_id),
            marks=tuple(
                QueryMark(
                    batch_id=batch_id,
                    writer_epoch=writer_epoch,
                    sequence=sequence,
                    state_numbers=tuple(sorted(numbers)),
                )
                for (batch_id, writer_epoch, sequence), numbers in sorted(
                    by_mark.items()
                )
            ),
        )
        for query_id, by_mark in marks.items()
    ]
