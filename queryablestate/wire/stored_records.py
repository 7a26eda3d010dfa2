"""
Records of the leader store that are divided otherwise than what they make up; pure.

See `queryablestate.control.job.job_records`.  None of them crosses the wire.
"""

from __future__ import annotations

from queryablestate.wire.records import BatchDecided, RunRecord, StageId
from queryablestate.wire.wire_struct import WireStruct


__all__ = ["PackedBatch", "PackedStage", "QueryMark", "QueryRecord"]


class QueryMark(WireStruct, frozen=True, kw_only=True, array_like=True):
    """
    A batch that is the last one that a query has written of some states.

    Attributes:
        batch_id: See `QueryProgress`, as for the next two.
        writer_epoch: The run of the query that it was decided for.
        sequence: Its place in the chain.
        state_numbers: Of which states; sorted.
    """

    batch_id: int
    writer_epoch: int
    sequence: int
    state_numbers: tuple[int, ...]


class QueryRecord(WireStruct, frozen=True, kw_only=True):
    """
    One query of a job.

    Attributes:
        query_id: The query.
        run: Its newest run, or None if that is forgotten.
        marks: How far it is with the states that it has written.
    """

    query_id: str
    run: RunRecord | None
    marks: tuple[QueryMark, ...]


class PackedStage(WireStruct, frozen=True, kw_only=True, array_like=True):
    """
    A `StageRecord` that names nodes by their index in `PackedBatch.node_ids`.

    Attributes:
        stage_id: As there.
        chunk_counts: By the index of the node, in the order of the record.
        row_count: As there.
        given_up: Indexes of nodes.
    """

    stage_id: StageId
    chunk_counts: dict[int, int]
    row_count: int
    given_up: tuple[int, ...] = ()


class PackedBatch(WireStruct, frozen=True, kw_only=True, tag="packed"):
    """
    A `BatchDecided` with each name of a node once, and not once for each stage.

    Attributes:
        batch: The entry, without stages.
        node_ids: The nodes that its stages name.
        stages: The stages.
    """

    batch: BatchDecided
    node_ids: tuple[str, ...]
    stages: tuple[PackedStage, ...]
