"""
What the control plane stores: jobs, states, runs, assignments and decided batches.

Everything here is kept in the leader store of ``QUERY_PROXY``
(`queryablestate.control.job.leader_paths`) by the proxy leader, and read by the next
one.  The entries of a job's chain also go to the nodes as they are: what is decided is
said once.

**A job has one chain of entries**, numbered 1, 2, 3 …  Whatever must happen on every
node of the job in one order is an entry: a batch that was decided, a state that was
dropped, a moment at which a snapshot is taken.  A node applies them strictly in that
order.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from queryablestate.wire.kept_rows import KeptRows
from queryablestate.wire.wire_struct import WireStruct


if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = [
    "STAGE_ID_SIZE_BYTES",
    "AssignmentRecord",
    "BatchDecided",
    "BatchState",
    "CountersRecord",
    "Entry",
    "ForgottenJob",
    "JobFence",
    "JobRecord",
    "JoiningCopy",
    "NodeRecord",
    "QueryProgress",
    "RunRecord",
    "SnapshotMarked",
    "SnapshotRestored",
    "StageRecord",
    "StateDropped",
    "StateProgress",
    "StateRecord",
    "collected_stage_id",
]

STAGE_ID_SIZE_BYTES: Final = 16

StageId: TypeAlias = Annotated[
    bytes, Meta(min_length=STAGE_ID_SIZE_BYTES, max_length=STAGE_ID_SIZE_BYTES)
]


CopySecret: TypeAlias = Annotated[bytes, Meta(max_length=64)]
"""What nodes show each other; in messages only."""


class StageRecord(WireStruct, frozen=True, kw_only=True, array_like=True):
    """
    What one execution of a task brought, as far as it counts; a decision has many.

    Attributes:
        stage_id: Drawn at random by that execution (rule W2), or made from one by
            `collected_stage_id`.
        chunk_counts: How many chunks each node has of it; a node without is left out.
        row_count: Rows in all of them.
        given_up: Nodes that were away, and did not get all of their rows; other copies
            of the same key groups did.
    """

    stage_id: StageId
    chunk_counts: dict[str, int]
    row_count: int
    given_up: tuple[str, ...] = ()


def collected_stage_id(
    stage_id: bytes, assignment_version: int, key_groups: Iterable[int]
) -> bytes:
    """
    Return under which stage id nodes keep what they collect of *stage_id* (rule S2).

    A node that becomes a copy of key groups while a batch is under way fetches their
    rows from those they were brought to.  What it fetches of the same key groups is
    always the same, so that to collect twice is to collect once; of others it is
    something else: who asks for them may know nothing of what was asked for before.
    """
    digest = blake2b(digest_size=STAGE_ID_SIZE_BYTES)
    digest.update(f"collected {assignment_version} ".encode())
    digest.update(stage_id)
    digest.update(" ".join(map(str, sorted(key_groups))).encode())
    return digest.digest()


class BatchState(WireStruct, frozen=True, kw_only=True):
    """
    One state that a batch writes.

    Attributes:
        state_number: Which state; never used for another one.
        kind: ``value``, ``list`` or ``map``.
        has_ttl: Whether stored values begin with their expiry.
        generation: The ownership that the batch belongs to.
        is_replaced: Whether the rows of this batch are all that is left (rule W6,
            complete mode, and the first batch of a query that replaces another).
        digest: Of the rows of the batch; empty where it is not known.
    """

    state_number: int
    kind: str
    has_ttl: bool
    generation: int
    is_replaced: bool
    digest: bytes = b""


class BatchDecided(WireStruct, frozen=True, kw_only=True, tag="batch"):
    """
    A batch is committed (rule W3).

    Attributes:
        sequence: Its place in the chain of the job.
        query_id: The streaming query.
        writer_epoch: The run of it that won.
        batch_id: Spark's number of the batch.
        assignment_version: The assignment under which it was decided: its nodes have
            the rows, by whatever assignment these were sent.
        decided_at_us: The proxy leader's wall clock, microseconds since 1970 UTC; for
            the age of answers only.
        states: The states it writes.
        stages: The winning executions, in the order of the partitions.
    """

    sequence: int
    query_id: str
    writer_epoch: int
    batch_id: int
    assignment_version: int
    decided_at_us: int
    states: tuple[BatchState, ...]
    stages: tuple[StageRecord, ...]


class StateDropped(WireStruct, frozen=True, kw_only=True, tag="drop"):
    """A state is gone, and so is everything in it."""

    sequence: int
    state_number: int


class SnapshotMarked(WireStruct, frozen=True, kw_only=True, tag="snapshot"):
    """
    Here a snapshot of the job is taken: all that was decided before, nothing after.

    Nothing changes for anybody who asks.

    Attributes:
        sequence: Its place in the chain.
        snapshot_id: Drawn by the caller.
    """

    sequence: int
    snapshot_id: str


class SnapshotRestored(WireStruct, frozen=True, kw_only=True, tag="restore"):
    """
    The job begins with the rows of a snapshot, which its nodes have loaded.

    Attributes:
        sequence: Its place in the chain: the first entry that is kept.
        restore_id: Under which the nodes keep the rows that they have loaded.
        state_numbers: The states that have been written, sorted.
    """

    sequence: int
    restore_id: str
    state_numbers: tuple[int, ...]


Entry: TypeAlias = BatchDecided | StateDropped | SnapshotMarked | SnapshotRestored


class StateRecord(WireStruct, frozen=True, kw_only=True):
    """
    A state as it was registered.

    Attributes:
        state_name: Its name within the job.
        state_number: What names it on the nodes; never used again.
        schema: `queryablestate.schema.schema_json.schema_json`.
    """

    state_name: str
    state_number: int
    schema: str


class QueryProgress(WireStruct, frozen=True, kw_only=True):
    """
    How far one query is with one state: what tells a repeated batch (rule W4).

    Attributes:
        query_id: The query, whether or not it owns the state now.
        batch_id: The last batch of it that was decided for the state.
        writer_epoch: The run of it that this batch was decided for.
        sequence: That batch's place in the chain.
    """

    query_id: str
    batch_id: int
    writer_epoch: int
    sequence: int


class StateProgress(WireStruct, frozen=True, kw_only=True):
    """
    Who owns a state, and how far it is.

    Attributes:
        state_number: Which state.
        query_id: The query that owns it (rule W5).
        owner_epoch: The writer epoch of the run that wrote it last, or before the first
            batch of the one that wants to: only a later run of another query may take
            the state over.
        generation: 1 for the first owner, one more with each later one.
        batch_id: The last batch decided in this generation, or None before the first.
        decided_at_us: When that was.
        queries: The queries that have written it, the one that wrote last at the end;
            up to 32.  A query that comes back is held to what it had written before.
        replaced_sequence: The last entry that replaced all rows, 0 if none has: of a
            query that wrote nothing since there is nothing that could be repeated.
        digest: Of the rows of that batch; empty where it is not known.
    """

    state_number: int
    query_id: str
    owner_epoch: int
    generation: int
    batch_id: int | None
    decided_at_us: int
    queries: tuple[QueryProgress, ...] = ()
    digest: bytes = b""
    replaced_sequence: int = 0


class RunRecord(WireStruct, frozen=True, kw_only=True):
    """
    The newest run of one streaming query.

    Attributes:
        query_id: The query.
        run_id: Spark's id of the run.
        writer_epoch: The ticket under which its rows are staged (rule W1).
        batch_id: The last batch that was decided for this run, or None.
        superseded: What earlier versions kept of earlier runs; it is not looked at.
        state_numbers: The states that runs of the query have bound, sorted: who may not
            write all of them cannot bind another run of it (rule C1).
        born_epoch: The epoch that the run was born with, at most *writer_epoch*; 0 in
            records of before, where both are the same.
    """

    query_id: str
    run_id: str
    writer_epoch: int
    batch_id: int | None
    superseded: tuple[tuple[str, int], ...] = ()
    state_numbers: tuple[int, ...] = ()
    born_epoch: int = 0
    activity: int = 0


class JoiningCopy(Struct, frozen=True, array_like=True):
    """
    A copy of a key group that is being made: it is never asked (rule S1).

    Attributes:
        node_index: Where, as an index into `AssignmentRecord.node_ids`.
        since: The entry after which the node is brought the rows of the key group by
            writers; what was decided before must be copied.
        version: The version of the assignment that began it; 0 in what earlier releases
            wrote.  With *since* it names the copy: one that was given up and is begun
            anew is another one, and nothing of the first counts.  Where no entry came
            in between *since* is the same, but what was copied may have been lost at
            its source.
    """

    node_index: int
    since: int
    version: int = 0


class AssignmentRecord(WireStruct, frozen=True, kw_only=True):
    """
    Which nodes hold which key groups of a job, and which are to.

    It is the persisted phase of every move (rule S2): what is to be done next follows
    from it, and from who is there.

    Attributes:
        version: Rises with every change.
        sequence: The last entry of the chain when this version was written.
        node_ids: The nodes that have a part in the job, in an order that this version
            fixes.
        store_ids: The data directory that each node had when it was assigned.
        since_sequences: The entry of the chain after which each node joined: what was
            decided before, it has no rows of, but for those that it copies.
        owners: For each key group the indexes into *node_ids* of its in-sync copies,
            the primary first; never empty.
        joining: For each key group the copies that are being made; empty altogether if
            there are none.
        wanted: For each key group the indexes of the nodes that are to have it, the
            primary first; empty altogether if that is what *owners* say.
        node_count: How many nodes the job is to have, as far as there are any.
        replica_count: How many copies each key group is to have, as far as there are
            nodes (rule S4).
        planned_count: Copies that were to be made when *wanted* was made last; for the
            progress that is shown.
        copied_versions: For each node the newest version that began one of the copies
            that it has in sync; 0 if it had nothing to copy, and empty altogether if
            none had.  A data directory that was told of none as new is older than what
            it is assigned (rule W7).
    """

    version: int
    node_ids: tuple[str, ...]
    store_ids: tuple[str, ...]
    since_sequences: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]
    sequence: int = 0
    joining: tuple[tuple[JoiningCopy, ...], ...] = ()
    wanted: tuple[tuple[int, ...], ...] = ()
    node_count: int = 1
    replica_count: int = 1
    planned_count: int = 0
    copied_versions: tuple[int, ...] = ()


class JobRecord(WireStruct, frozen=True, kw_only=True):
    """
    What changes with every batch of a job: the head of its chain, runs and progress.

    The store has it in several records, by query and by state: see
    `queryablestate.control.job.job_records`.

    Attributes:
        job_id: The job.
        job_number: What names it in the paths of the store.
        max_parallelism: Its number of key groups, for life.
        sequence: The last entry of the chain, 0 before the first.
        sequence_first: The oldest entry that is kept, *sequence* + 1 if none is.
        runs: The queries that write, the least recently active first.
        progress: One for each state that a query has bound, by state number.
        fence: Below it, and at it, are the runs of all queries that were forgotten: no
            run of a query that is not known is younger than that.
    """

    job_id: str
    job_number: int
    max_parallelism: int
    sequence: int
    sequence_first: int
    runs: tuple[RunRecord, ...]
    progress: tuple[StateProgress, ...]
    fence: int = 0


class ForgottenJob(WireStruct, frozen=True, kw_only=True):
    """
    A job that was forgotten.

    Attributes:
        job_id: What it was called.
        job_number: What named it in the leader store; 0 if that knew nothing of it.
    """

    job_id: str
    job_number: int


class NodeRecord(WireStruct, frozen=True, kw_only=True):
    """
    A node that has been seen.

    Attributes:
        node_id: Its name.
        store_id: The data directory it had then.
        draining_id: The registration (the process) that is to be emptied, or None: it
            gets no key groups, and gives away those that it has (rule O6).
        kept: What it said last that it keeps of other control planes (rule W7).
        forgotten: Jobs of which it may have rows, and is to remove them (rule B4).
    """

    node_id: str
    store_id: str
    draining_id: str | None = None
    kept: tuple[KeptRows, ...] = ()
    forgotten: tuple[ForgottenJob, ...] = ()


class JobFence(Struct, frozen=True, array_like=True):
    """
    That runs of a job which was forgotten are over (rule W1).

    Attributes:
        job_digest: Of the job's id.
        fence: No run of the job, were it begun anew, is younger than that.
    """

    job_digest: bytes
    fence: int


class CountersRecord(WireStruct, frozen=True, kw_only=True):
    """
    Numbers that are given out once.

    Attributes:
        control_id: Drawn when this control plane began: after a name service has lost
            its store, numbers begin anew, and nodes must not mix old rows with new.
        ticket_limit: All tickets below may have been given out.
        state_number: The last one given out; a control plane begins at a random one,
            since what names a state is remembered longer than it may live.
        job_number: The last one given out.
        fences: Of jobs that were forgotten last, up to 100, the newest at the end; see
            `queryablestate.control.job.forgotten_runs`.
        fence: Of all that were forgotten before.
    """

    control_id: str
    ticket_limit: int
    state_number: int
    job_number: int
    fences: tuple[JobFence, ...] = ()
    fence: int = 0
