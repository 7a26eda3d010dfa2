"""Where records are, and that they come back as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct

from election.store import check_store_path
from nameservice import StorageError
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.job.entry_parts import decode_entry
from queryablestate.wire.records import (
    AssignmentRecord,
    BatchDecided,
    BatchState,
    CountersRecord,
    JobRecord,
    NodeRecord,
    QueryProgress,
    RunRecord,
    StateDropped,
    StateProgress,
    StateRecord,
)
from tests.queryablestate.control_plane import LIST, stage


RECORDS: list[tuple[Struct, Callable[[bytes], Struct]]] = [
    (
        CountersRecord(control_id="c", ticket_limit=1, state_number=2, job_number=3),
        paths.decode_counters,
    ),
    (NodeRecord(node_id="n", store_id="s"), paths.decode_node),
    (
        JobRecord(
            job_id="j",
            job_number=1,
            max_parallelism=4,
            sequence=5,
            sequence_first=2,
            runs=(
                RunRecord(
                    query_id="q",
                    run_id="r",
                    writer_epoch=4,
                    batch_id=2,
                    superseded=(("p", 3),),
                ),
            ),
            progress=(
                StateProgress(
                    state_number=1,
                    query_id="q",
                    owner_epoch=4,
                    generation=1,
                    batch_id=2,
                    decided_at_us=9,
                    queries=(
                        QueryProgress(
                            query_id="q", batch_id=2, writer_epoch=4, sequence=5
                        ),
                    ),
                ),
            ),
        ),
        paths.decode_job,
    ),
    (
        AssignmentRecord(
            version=1,
            node_ids=("a",),
            store_ids=("s",),
            since_sequences=(0,),
            owners=((0,),),
        ),
        paths.decode_assignment,
    ),
    (
        StateRecord(state_name="n", state_number=1, schema=LIST),
        paths.decode_state,
    ),
    (
        BatchDecided(
            sequence=1,
            query_id="q",
            writer_epoch=2,
            batch_id=3,
            assignment_version=4,
            decided_at_us=5,
            states=(
                BatchState(
                    state_number=1,
                    kind="list",
                    has_ttl=True,
                    generation=1,
                    is_replaced=False,
                ),
            ),
            stages=(stage(1, a=2),),
        ),
        decode_entry,
    ),
    (StateDropped(sequence=1, state_number=2), decode_entry),
]


@pytest.mark.parametrize(("record", "decode"), RECORDS)
def test_a_record_comes_back(record: Struct, decode: Callable[[bytes], Struct]) -> None:
    """The next leader reads what this one wrote."""
    assert decode(paths.encode_record(record)) == record


@pytest.mark.parametrize(("record", "decode"), RECORDS)
@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x81\xa1a\x01", b"\xa2\xff\xff"])
def test_what_is_no_record_is_said_to_be_none(
    record: Struct, decode: Callable[[bytes], Struct], value: bytes
) -> None:
    """A damaged store, or one of another version, is a `StorageError`."""
    with pytest.raises(StorageError, match="another version"):
        decode(value)


def test_every_path_is_one_of_the_store() -> None:
    """L1: 1 to 255 printable characters, however long names are."""
    for path in (
        paths.COUNTERS,
        paths.node_path("n/\n" * 255),
        paths.job_path(10**18),
        paths.assignment_path(10**18, 10**15),
        paths.state_path(10**18, 10**18),
        paths.query_path(10**18, "q/\n" * 255),
        paths.progress_path(10**18, 10**18),
        paths.entry_path(10**18, 10**18),
    ):
        check_store_path(path)


def test_entries_sort_as_they_follow() -> None:
    """A list of paths is the chain in its order."""
    numbers = [1, 9, 10, 99, 100, 10**15]
    listed = [paths.entry_path(1, number) for number in numbers]
    assert sorted(listed) == listed
