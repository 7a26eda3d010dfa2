"""
`JobPlan`: what the leader store holds of a job, as its nodes keep it; pure.

Nodes have the rows of a job.  What they would lack, if the name service lost its store,
is what the rows mean: names and columns of states, who owns them, which node has which
key groups.  So the proxy leader tells its nodes, whenever it changes, and a new control
plane can take over what they kept (``lodestar adopt``).

**What changes with every batch is not told.**  It follows from the entries that a node
applies: `progress_after` is what deciding that entry has made of a state's progress.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from queryablestate.wire.records import (
    AssignmentRecord,
    Entry,
    QueryProgress,
    RunRecord,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.wire_struct import WireStruct


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.wire.records import BatchDecided, BatchState


__all__ = [
    "QUERY_COUNT_MAX",
    "JobOrigin",
    "JobPlan",
    "PlannedState",
    "entry_digest",
    "progress_after",
    "remembered",
]

QUERY_COUNT_MAX: Final = 32
"""Queries that may have rows in one state."""

_DIGEST_SIZE_BYTES: Final = 8
_ENCODER: Final = msgspec.msgpack.Encoder()


class JobOrigin(WireStruct, frozen=True, kw_only=True):
    """
    What tells a job, and how far it is, from others of its name.

    Attributes:
        job_number: Of the plan that a node keeps; 0 if it keeps none.
        assignment_version: Likewise.
        entry_digest: Of the last entry that was applied; empty if that is not known.
    """

    job_number: int = 0
    assignment_version: int = 0
    entry_digest: bytes = b""


class JobHolding(WireStruct, frozen=True, kw_only=True):
    """
    Which copies of a job a data directory can have, and which have lost rows.

    Attributes:
        job_id: The job.
        version: Of the assignment that it was told last to hold.
        unfinished: Key groups that it was told to copy then, and has not copied
            completely, sorted.
        lost: Key groups of which rows of some state are lost (rule W7): the first and
            the last one of each run, sorted.
    """

    job_id: str
    version: int
    unfinished: tuple[int, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()


class PlannedState(WireStruct, frozen=True, kw_only=True):
    """A state: its name, number and columns, and how far it is."""

    state: StateRecord
    progress: StateProgress


class JobPlan(WireStruct, frozen=True, kw_only=True):
    """
    A job as of one entry of its chain.

    Attributes:
        job_id: The job.
        job_number: What names it in the leader store; another one is another job.
        max_parallelism: Its number of key groups.
        sequence: The last entry of the chain by then.
        ticket_limit: No ticket that was given out by then is as high.
        runs: The newest runs of its queries.
        fence: See `queryablestate.wire.records.JobRecord`.
        assignment: Which node has which key groups.
        states: By number.
    """

    job_id: Annotated[str, Meta(min_length=1, max_length=255)]
    job_number: int
    max_parallelism: Annotated[int, Meta(ge=1, le=32_768)]
    sequence: Annotated[int, Meta(ge=0)]
    ticket_limit: int
    runs: tuple[RunRecord, ...]
    fence: int
    assignment: AssignmentRecord
    states: tuple[PlannedState, ...]


def entry_digest(entry: Entry) -> bytes:
    """Return what tells an entry from another one of that number."""
    encoded = _ENCODER.encode(entry)
    return blake2b(encoded, digest_size=_DIGEST_SIZE_BYTES).digest()


def progress_after(
    owned: StateProgress, entry: BatchDecided, state: BatchState
) -> StateProgress:
    """
    Return the progress of a state once *entry*, which writes it, is decided.

    Args:
        owned: As it was before.
        entry: The batch.
        state: What the entry says of this state.
    """
    replaced_sequence = owned.replaced_sequence
    if state.is_replaced:
        replaced_sequence = entry.sequence
    mine = QueryProgress(
        query_id=entry.query_id,
        batch_id=entry.batch_id,
        writer_epoch=entry.writer_epoch,
        sequence=entry.sequence,
    )
    others = [one for one in owned.queries if one.query_id != entry.query_id]
    return replace(
        owned,
        query_id=entry.query_id,
        owner_epoch=entry.writer_epoch,
        generation=state.generation,
        batch_id=entry.batch_id,
        decided_at_us=entry.decided_at_us,
        queries=remembered((*others, mine), replaced_sequence),
        replaced_sequence=replaced_sequence,
        digest=state.digest,
    )


def remembered(
    queries: Sequence[QueryProgress], replaced_sequence: int
) -> tuple[QueryProgress, ...]:
    """
    Return the queries of a state that are held to what they have written.

    Beyond 32 those are forgotten that have written nothing since all rows were
    replaced, the oldest first: nothing of theirs is left that could be there twice.
    There are more than 32 only if more than that have rows there.
    """
    excess = max(0, len(queries) - QUERY_COUNT_MAX)
    gone = [one for one in queries if one.sequence < replaced_sequence][:excess]
    return tuple(one for one in queries if one not in gone)
