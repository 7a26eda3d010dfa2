"""The record of a job is divided; what a change costs does not grow with the job."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from election import Delete, Put, StoreOperation
from nameservice import StorageError
from queryablestate.control.job.job_records import (
    changed_records,
    record_paths,
    whole_record,
)
from queryablestate.control.job.leader_paths import (
    decode_job,
    decode_progress,
    decode_query,
    job_path,
    progress_path,
    query_path,
)
from queryablestate.wire.records import (
    JobRecord,
    QueryProgress,
    RunRecord,
    StateProgress,
)


QUERY_IDS: Final = [f"{number:036d}" for number in range(32)]


def record(state_count: int, query_count: int, *, sequence: int = 100) -> JobRecord:
    """Return a job whose states have all been written by all of its queries."""
    numbers = range(1, state_count + 1)
    return JobRecord(
        job_id="flights",
        job_number=1,
        max_parallelism=128,
        sequence=sequence,
        sequence_first=1,
        runs=tuple(
            RunRecord(
                query_id=query_id,
                run_id="r" * 36,
                writer_epoch=order,
                batch_id=4,
                state_numbers=tuple(numbers),
                activity=order,
            )
            for order, query_id in enumerate(QUERY_IDS[:query_count], 1)
        ),
        progress=tuple(
            progress(number, query_count, sequence=sequence) for number in numbers
        ),
    )


def progress(number: int, query_count: int, *, sequence: int = 100) -> StateProgress:
    """Return the progress of a state with that many queries."""
    return StateProgress(
        state_number=number,
        query_id=QUERY_IDS[query_count - 1],
        owner_epoch=query_count,
        generation=query_count,
        batch_id=4,
        decided_at_us=10**15,
        digest=b"d" * 16,
        queries=tuple(
            QueryProgress(
                query_id=query_id,
                batch_id=4,
                writer_epoch=order,
                sequence=sequence - query_count + order,
            )
            for order, query_id in enumerate(QUERY_IDS[:query_count], 1)
        ),
    )


def stored(
    operations: list[StoreOperation], values: dict[str, bytes] | None = None
) -> dict[str, bytes]:
    """Return what is there once *operations* are done to *values*."""
    values = {} if values is None else dict(values)
    paths = [operation.path for operation in operations]
    assert len(paths) == len(set(paths))
    for operation in operations:
        if isinstance(operation, Put):
            values[operation.path] = operation.value
        else:
            del values[operation.path]
    return values


def read(values: dict[str, bytes]) -> JobRecord:
    """Return the record that is stored."""
    return whole_record(
        decode_job(values["jobs/1"]),
        [decode_query(value) for path, value in values.items() if "/queries/" in path],
        [
            decode_progress(value)
            for path, value in values.items()
            if "/progress/" in path
        ],
    )


def decided(before: JobRecord, state_numbers: range) -> JobRecord:
    """Return *before* after a batch of the last query, as `Job.decide` makes it."""
    newest = before.runs[-1]
    sequence = before.sequence + 1
    mine = QueryProgress(
        query_id=newest.query_id, batch_id=5, writer_epoch=1, sequence=sequence
    )
    return replace(
        before,
        sequence=sequence,
        runs=(*before.runs[:-1], replace(newest, batch_id=5)),
        progress=tuple(
            replace(one, batch_id=5, queries=(*one.queries[:-1], mine))
            if one.state_number in state_numbers
            else one
            for one in before.progress
        ),
    )


def size_bytes(operations: list[StoreOperation]) -> int:
    """Return how much is written."""
    return sum(len(one.value) for one in operations if isinstance(one, Put))


class TestWhole:
    @pytest.mark.parametrize(
        ("state_count", "query_count"), [(0, 0), (1, 1), (3, 1), (5, 32)]
    )
    def test_it_comes_back(self, state_count: int, query_count: int) -> None:
        """The next leader knows what this one knew, orders included."""
        whole = record(state_count, query_count)
        values = stored([*changed_records(None, whole)])
        assert read(values) == whole
        assert sorted(record_paths(whole)) == sorted(values)

    def test_each_change_comes_back(self) -> None:
        """What is not written again is as it was."""
        first = record(5, 4)
        second = decided(first, range(2, 4))
        third = replace(  # one query and one state are gone, another query is newest
            second,
            fence=1,
            runs=(second.runs[2], second.runs[3], replace(second.runs[1], activity=9)),
            progress=tuple(
                replace(one, queries=one.queries[1:]) for one in second.progress[1:]
            ),
        )
        values = stored([*changed_records(None, first)])
        for before, after in ((first, second), (second, third)):
            values = stored([*changed_records(before, after)], values)
            assert read(values) == after
        assert Delete(progress_path(1, 1)) in changed_records(second, third)
        assert Delete(query_path(1, QUERY_IDS[0])) in changed_records(second, third)

    def test_a_query_that_has_written_outlives_its_run(self) -> None:
        """W4: what it wrote is remembered as long as the state lives."""
        whole = replace(record(1, 2), runs=())
        assert read(stored([*changed_records(None, whole)])) == whole

    def test_one_record_of_an_earlier_version_is_read(self) -> None:
        """It is as it was, and is not mixed with what came later."""
        whole = record(3, 2)
        assert whole_record(whole, [], []) == whole
        with pytest.raises(StorageError, match="do not fit"):
            whole_record(whole, [], [progress(1, 1)])

    def test_what_names_a_state_that_is_not_there_is_an_error(self) -> None:
        """Somebody else was there."""
        values = stored([*changed_records(None, record(2, 1))])
        del values[progress_path(1, 2)]
        with pytest.raises(StorageError, match=r"jobs/1 .* do not fit"):
            read(values)


@pytest.mark.proves("B3")
class TestCost:
    """B3: a batch costs by what it writes, not by what the job has had."""

    def test_states_that_are_not_written_cost_nothing(self) -> None:
        """The head, the state, its query: three records of a few hundred bytes."""
        for state_count, query_count in ((1, 1), (300, 32)):
            before = record(state_count, query_count)
            operations = [*changed_records(before, decided(before, range(1, 2)))]
            assert [operation.path for operation in operations] == [
                job_path(1),
                progress_path(1, 1),
                query_path(1, before.runs[-1].query_id),
            ]
            # A run names its states, in three bytes at most here, and so do marks.
            assert size_bytes(operations) < 1_000 + 6 * state_count

    def test_queries_that_do_not_write_cost_nothing(self) -> None:
        """As many as there may be: what all states cost is the same."""
        costs = []
        for query_count in (1, 32):
            before = record(300, query_count)
            operations = [*changed_records(before, decided(before, range(1, 301)))]
            assert len(operations) == 302
            costs.append(size_bytes(operations))
        assert costs[1] < 1.02 * costs[0]
        assert costs[0] < 300 * 250
