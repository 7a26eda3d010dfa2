"""Messages name each node once, and come back as they were."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from nameservice import RemoteProtocolError
from queryablestate.wire.codec import (
    PROTOCOL_VERSION,
    decode_to_node,
    decode_to_proxy,
    encode,
)
from queryablestate.wire.node_messages import ApplyEntries, CollectStages
from queryablestate.wire.node_names import with_indexes, with_names
from queryablestate.wire.records import BatchDecided, StageRecord, StateDropped
from tests.queryablestate.control_plane import APP, commit, heartbeat


HEADER = b"LDQ" + bytes([PROTOCOL_VERSION])
STAGES = (
    StageRecord(
        stage_id=bytes(16), chunk_counts={"b": 2, "1": 0}, row_count=2, given_up=("a",)
    ),
    StageRecord(stage_id=bytes([1] * 16), chunk_counts={"1": 1, "b": 1}, row_count=3),
)
COMMIT = commit(1, 0, *STAGES)
APPLY = ApplyEntries(
    leader_epoch=1,
    job_id="j",
    entries=(
        BatchDecided(
            sequence=1,
            query_id="q",
            writer_epoch=1,
            batch_id=0,
            assignment_version=1,
            decided_at_us=1,
            states=(),
            stages=STAGES,
        ),
        StateDropped(sequence=2, state_number=1),
    ),
)


def test_they_come_back_in_the_order_of_the_nodes() -> None:
    """Digests of entries depend on it; a node may be called like an index."""
    commit_again = decode_to_proxy(encode(COMMIT))
    assert commit_again == COMMIT
    apply_again = decode_to_node(encode(APPLY))
    assert apply_again == APPLY
    assert isinstance(apply_again, ApplyEntries)
    raw = msgspec.msgpack.encode
    assert raw(apply_again.entries) == raw(APPLY.entries)


def test_names_are_indexes_on_the_way() -> None:
    """In the order in which they come."""
    sent = with_indexes(COMMIT)
    assert sent == replace(
        COMMIT,
        node_ids=("b", "1", "a"),
        stages=(
            replace(STAGES[0], chunk_counts={"0": 2, "1": 0}, given_up=("2",)),
            replace(STAGES[1], chunk_counts={"1": 1, "0": 1}),
        ),
    )
    assert with_names(sent) == COMMIT


def test_what_has_names_is_read() -> None:
    """An earlier version sends these; and most messages name no node at all."""
    assert decode_to_proxy(HEADER + msgspec.msgpack.encode(COMMIT)) == COMMIT
    assert decode_to_proxy(encode(heartbeat("a", 1))) == heartbeat("a", 1)


def test_an_index_of_nothing_is_malformed() -> None:
    """It is refused like everything else that cannot be read."""
    sent = replace(COMMIT, node_ids=("a",))
    with pytest.raises(RemoteProtocolError, match="names node 'b', and there are 1"):
        decode_to_proxy(HEADER + msgspec.msgpack.encode(sent))


@pytest.mark.proves("B3")
def test_many_tasks_on_many_nodes_fit_a_frame() -> None:
    """B3: 10,000 on 50 took 5 to 20 MB, and 16 MiB are taken; names cost nothing."""
    node_ids = [f"{number:02d}" + "n" * 200 for number in range(50)]
    stages = [
        StageRecord(
            stage_id=number.to_bytes(16, "big"),
            chunk_counts=dict.fromkeys(node_ids, 1),
            row_count=10_000,
        )
        for number in range(10_000)
    ]
    assert len(encode(commit(1, 0, *stages))) < 3_000_000
    collect = CollectStages(
        leader_epoch=1,
        verify_id=1,
        job_id=APP,
        query_id="query",
        writer_epoch=1,
        batch_id=0,
        assignment_version=2,
        stages=tuple(stages),
        sources=(),
        timeout_ms=1,
    )
    encoded = encode(collect)
    assert len(encoded) < 3_000_000
    assert decode_to_node(encoded) == collect
