"""Entries are stored packed, in values that are not too long, and come back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nameservice import StorageError
from queryablestate.control.job.entry_parts import (
    PART_SIZE_BYTES_MAX,
    decode_entry,
    entry_parts,
)
from queryablestate.control.job.leader_paths import encode_record, entry_path
from queryablestate.wire.records import (
    BatchDecided,
    BatchState,
    Entry,
    StageRecord,
    StateDropped,
)
from queryablestate.wire.stored_records import PackedBatch, PackedStage


def batch(task_count: int, node_count: int, *, node_id: str = "node") -> BatchDecided:
    """Return a decision of that many tasks on that many nodes."""
    node_ids = [f"{node_id}-{number}" for number in range(node_count)]
    return BatchDecided(
        sequence=7,
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
        stages=tuple(
            StageRecord(
                stage_id=number.to_bytes(16, "big"),
                # In an order of its own, which digests of entries depend on.
                chunk_counts=dict.fromkeys(sorted(node_ids[1:], reverse=True), 1),
                row_count=number,
                given_up=(node_ids[0],),
            )
            for number in range(task_count)
        ),
    )


@pytest.mark.parametrize(
    "entry",
    [batch(3, 4), batch(0, 1), StateDropped(sequence=7, state_number=1)],
)
def test_an_entry_comes_back_to_the_byte(entry: Entry) -> None:
    """Nodes compare digests of entries: the order of nodes in a stage matters, too."""
    (path, value), *more = entry_parts(1, entry).items()
    assert (path, more) == (entry_path(1, 7), [])
    assert encode_record(decode_entry(value)) == encode_record(entry)


def test_an_entry_of_an_earlier_version_is_read() -> None:
    """Before, it was stored as it is sent."""
    assert decode_entry(encode_record(batch(3, 4))) == batch(3, 4)


@pytest.mark.proves("B3")
def test_many_tasks_on_many_nodes_take_parts() -> None:
    """B3: 10,000 on 50; names of nodes cost nothing that counts, however long."""
    entry = batch(10_000, 51, node_id="n" * 200)
    parts = entry_parts(1, entry)
    assert sorted(parts) == list(parts)
    assert all(path.startswith(entry_path(1, 7)) for path in parts)
    assert all(len(part) <= PART_SIZE_BYTES_MAX for part in parts.values())
    whole = b"".join(parts.values())
    assert len(parts) > 1
    assert len(whole) < 1_500_000
    assert decode_entry(whole) == entry


def test_a_node_that_is_not_listed_is_an_error() -> None:
    """Somebody else was there."""
    packed = PackedBatch(
        batch=replace(batch(0, 1), stages=()),
        node_ids=("a",),
        stages=(PackedStage(stage_id=bytes(16), chunk_counts={1: 1}, row_count=1),),
    )
    with pytest.raises(StorageError, match="does not list"):
        decode_entry(encode_record(packed))
