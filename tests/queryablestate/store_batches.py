"""Batches for a store: keys, chunks and decisions, with little to say for each."""

from __future__ import annotations

from collections.abc import Sequence

from queryablestate.store.layout import (
    STAGED_PREFIX,
    batch_prefix,
    decode_staged,
    decode_staged_batch,
)
from queryablestate.store.marks import records
from queryablestate.store.rows import check_chunk
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.records import BatchDecided, BatchState, StageRecord
from queryablestate.wire.staging_messages import StageChunk, StagedRows


NODE = "node-1"
JOB = "flights"
QUERY = "query-1"
NOW_US = 1_000_000

Row = tuple[bytes, bytes | None] | tuple[bytes, bytes | None, bytes]


def key(key_group: int, text: str = "") -> bytes:
    """Return a storage key that is no other one's prefix."""
    return key_group.to_bytes(2, "big") + b"\x01" + text.encode() + b"\0\0"


def stage_id(name: str) -> bytes:
    """Return a stage id that is told apart by *name*."""
    return name.encode().ljust(16, b"-")


def expiring(value: bytes, expires_at_us: int) -> bytes:
    """Return a stored value of a state with TTL."""
    return expires_at_us.to_bytes(8, "big") + value


def chunk(
    rows: Sequence[Row],
    *,
    state_number: int = 1,
    stage: str = "a",
    index: int = 0,
    batch_id: int = 0,
    writer_epoch: int = 1,
    job_id: str = JOB,
    query_id: str = QUERY,
) -> tuple[StageChunk, bytes]:
    """Return a chunk of *rows* (key, value and order if there are orders), checked."""
    envelope = StageChunk(
        request_id=1,
        job_id=job_id,
        query_id=query_id,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        stage_id=stage_id(stage),
        chunk_index=index,
        assignment_version=1,
    )
    ordered = sorted(rows, key=lambda row: row[0])  # stable
    orders = [row[2] for row in ordered if len(row) == 3]
    staged = StagedRows(
        state_number=state_number,
        keys=[row[0] for row in ordered],
        values=[row[1] for row in ordered],
        orders=orders or None,
    )
    check_chunk(envelope, staged)
    return envelope, encode_payload(staged)


def state(
    state_number: int = 1,
    *,
    kind: str = "value",
    has_ttl: bool = False,
    generation: int = 1,
    is_replaced: bool = False,
) -> BatchState:
    """Return what a batch says of a state."""
    return BatchState(
        state_number=state_number,
        kind=kind,
        has_ttl=has_ttl,
        generation=generation,
        is_replaced=is_replaced,
    )


def decided(
    sequence: int,
    stages: dict[str, int],
    *,
    states: Sequence[BatchState] = (),
    batch_id: int = 0,
    writer_epoch: int = 1,
    query_id: str = QUERY,
    decided_at_us: int = 77,
) -> BatchDecided:
    """Return a decision: *stages* are the winners, with how many chunks are here."""
    return BatchDecided(
        sequence=sequence,
        query_id=query_id,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        assignment_version=1,
        decided_at_us=decided_at_us,
        states=tuple(states) or (state(),),
        stages=tuple(
            StageRecord(
                stage_id=stage_id(name), chunk_counts={NODE: count}, row_count=0
            )
            for name, count in stages.items()
        ),
    )


def counted_sizes(store: StateStore) -> dict[str, int]:
    """Return how many bytes of each job count as staged."""
    environment = store._environment
    with environment.reading() as transaction:
        marks = [
            decode_staged(stored)
            for _, stored in records(transaction, environment.meta, STAGED_PREFIX)
        ]
    return {mark.job_id: mark.size_bytes for mark in marks}


def staged_sizes(store: StateStore) -> dict[str, int]:
    """Return how many bytes of each job are staged, and no entry names: by looking."""
    environment = store._environment
    sizes: dict[str, int] = {}
    with environment.reading() as transaction:
        size = len(batch_prefix("", 0, 0))
        found = dict(transaction.cursor(environment.staged))
        heads = {at: decode_staged_batch(found[at]) for at in found if len(at) == size}
        for at, piece in found.items():
            head = heads[at[:size]]
            if at not in heads and not head.kept_sequence:
                sizes[head.job_id] = sizes.get(head.job_id, 0) + len(piece)
    return sizes


def write(
    store: StateStore,
    rows: Sequence[Row],
    *,
    batch_state: BatchState | None = None,
    job_id: str = JOB,
) -> None:
    """Stage *rows* as the next batch of the job, one for each entry, and apply it."""
    sequence = store.positions().get(job_id, 0) + 1
    batch_state = batch_state or state()
    brought = chunk(
        rows,
        state_number=batch_state.state_number,
        batch_id=sequence,
        job_id=job_id,
        query_id=job_id,
    )
    store.stage([brought], NOW_US)
    entry = decided(
        sequence, {"a": 1}, states=[batch_state], batch_id=sequence, query_id=job_id
    )
    store.apply(job_id, entry)
