"""
Entries of a chain as the leader store has them: packed, and in parts if need be; pure.

A decision names for each execution of a task each node that it has brought rows to.
With the names of nodes in full, 10,000 tasks on 50 nodes took 5 to 20 MB, a hundred
times of that in the store; so each name is written once, and a node is an index.  What
is longer than one value may be has parts.  All of them are one write (rule B3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from election.store import STORE_SIZE_BYTES_MAX
from nameservice import StorageError
from queryablestate.control.job.leader_paths import (
    decode_stored_entry,
    encode_record,
    entry_path,
)
from queryablestate.wire.records import BatchDecided, Entry, StageRecord
from queryablestate.wire.stored_records import PackedBatch, PackedStage


if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["PART_SIZE_BYTES_MAX", "decode_entry", "entry_parts"]

PART_SIZE_BYTES_MAX: Final = STORE_SIZE_BYTES_MAX // 2


def entry_parts(job_number: int, entry: Entry) -> Mapping[str, bytes]:
    """Return what is stored of an entry, by path."""
    encoded = encode_record(_packed(entry))
    path = entry_path(job_number, entry.sequence)
    parts = {path: encoded[:PART_SIZE_BYTES_MAX]}
    for index, first in enumerate(
        range(PART_SIZE_BYTES_MAX, len(encoded), PART_SIZE_BYTES_MAX), 1
    ):
        parts[f"{path}/{index:04d}"] = encoded[first : first + PART_SIZE_BYTES_MAX]
    return parts


def decode_entry(encoded: bytes) -> Entry:
    """Return the entry that all of its parts, one after the other, are."""
    entry = decode_stored_entry(encoded)
    if not isinstance(entry, PackedBatch):
        return entry
    try:
        return _unpacked(entry)
    except IndexError as error:
        raise StorageError(
            "the leader store of the proxies holds a decision that names a node that "
            "it does not list: did somebody else write there?"
        ) from error


def _packed(entry: Entry) -> Entry | PackedBatch:
    if not isinstance(entry, BatchDecided) or not entry.stages:
        return entry
    node_ids: dict[str, int] = {}
    for stage in entry.stages:
        for node_id in (*stage.chunk_counts, *stage.given_up):
            node_ids.setdefault(node_id, len(node_ids))
    return PackedBatch(
        batch=replace(entry, stages=()),
        node_ids=tuple(node_ids),
        stages=tuple(
            PackedStage(
                stage_id=stage.stage_id,
                chunk_counts={
                    node_ids[node_id]: count
                    for node_id, count in stage.chunk_counts.items()
                },
                row_count=stage.row_count,
                given_up=tuple(node_ids[node_id] for node_id in stage.given_up),
            )
            for stage in entry.stages
        ),
    )


def _unpacked(packed: PackedBatch) -> BatchDecided:
    node_ids = packed.node_ids
    return replace(
        packed.batch,
        stages=tuple(
            StageRecord(
                stage_id=stage.stage_id,
                chunk_counts={
                    node_ids[index]: count
                    for index, count in stage.chunk_counts.items()
                },
                row_count=stage.row_count,
                given_up=tuple(node_ids[index] for index in stage.given_up),
            )
            for stage in packed.stages
        ),
    )
