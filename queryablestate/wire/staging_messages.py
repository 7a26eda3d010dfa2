"""
What writers and nodes say to each other.

Writers speak to nodes directly: they bring chunks of rows, and the node says when these
are durable.
"""

from __future__ import annotations

from msgspec import Struct

from queryablestate.wire.records import StageId
from queryablestate.wire.staging_grant import StagingGrant
from queryablestate.wire.wire_struct import WireStruct


__all__ = ["ChunkRefused", "ChunkStaged", "StageChunk", "StagedRows"]


class StageChunk(WireStruct, frozen=True, kw_only=True, tag="stage"):
    """
    Keep these rows (rule W2); `StagedRows` is the second frame.

    Attributes:
        request_id: Names the answer.
        job_id: The job.
        query_id: The streaming query.
        writer_epoch: The run.
        batch_id: The batch.
        stage_id: This execution of the task.
        chunk_index: From 0, for each (stage, node).
        assignment_version: By which the rows were sent here.
        grant: What the run was given when it was bound; empty from who has none, and
            is refused.
    """

    request_id: int
    job_id: str
    query_id: str
    writer_epoch: int
    batch_id: int
    stage_id: StageId
    chunk_index: int
    assignment_version: int
    grant: StagingGrant = b""


class StagedRows(Struct, frozen=True, array_like=True):
    """
    Rows of one state, sorted by storage key; an array on the wire, for there are many.

    Attributes:
        state_number: Which state.
        keys: Storage keys without a list index; sorted, and each once unless the
            state is a list.
        values: One for each key: the stored value, or None for a delete.
        orders: With ``order_by``, one for each key: of two rows with one key the one
            with the greater order wins, then the one with the greater value.
    """

    state_number: int
    keys: list[bytes]
    values: list[bytes | None]
    orders: list[bytes] | None = None


class ChunkStaged(WireStruct, frozen=True, kw_only=True, tag="staged"):
    """The chunk is on disk."""

    request_id: int


class ChunkRefused(WireStruct, frozen=True, kw_only=True, tag="chunk-refused"):
    """
    The chunk is not taken.

    Attributes:
        request_id: Which, or 0 if that could not be read.
        code: A code of `queryablestate.wire.refusals`.
        data: What its error carries.
    """

    request_id: int
    code: str
    data: tuple[str | int | float | bool | None, ...]
