"""
What nodes and the proxy leader say to each other, but for what readers ask.

A node speaks to the proxy leader over a connection of its own: it registers, sends
heartbeats, and answers what it is told to do.  Questions of readers, which come over
the same one, are in `queryablestate.wire.questions`; what writers say to nodes is in
`queryablestate.wire.staging_messages`.

Every command carries the epoch of the proxy leader that gave it; a node refuses what
comes from an older one than it has heard of (rule S2).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from queryablestate.wire.job_assignment import CopySource, JobAssignment, WriterFence
from queryablestate.wire.job_plan import JobHolding, JobOrigin, JobPlan
from queryablestate.wire.kept_rows import KeptRows
from queryablestate.wire.questions import CancelQuestions
from queryablestate.wire.records import (
    BatchState,
    CopySecret,
    Entry,
    StageId,
    StageRecord,
)
from queryablestate.wire.snapshot_messages import SnapshotCommand, SnapshotReport
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "ApplyEntries",
    "AssignJob",
    "CollectStages",
    "ConnectionJoined",
    "EntriesApplied",
    "FenceWriters",
    "FromNode",
    "HeartbeatAcknowledged",
    "JobPosition",
    "JoinConnection",
    "KeepPlan",
    "KeyGroupsCopied",
    "LeaveNode",
    "NodeEmptied",
    "NodeHeartbeat",
    "NodeRefused",
    "NodeRegistered",
    "PlanTold",
    "RegisterNode",
    "ResetJob",
    "StagesCollected",
    "StagesVerified",
    "TellPlan",
    "ToNode",
    "VerifyStages",
]


class JobPosition(WireStruct, frozen=True, kw_only=True):
    """
    How far a node has applied the chain of a job.

    Attributes:
        job_id: The job.
        sequence: The last entry applied.
        lost_state_numbers: The states whose rows it has lost, sorted (rule W7).
        origin: What tells the job, and that entry, from others.
    """

    job_id: str
    sequence: int
    lost_state_numbers: tuple[int, ...] = ()
    origin: JobOrigin = JobOrigin()


class RegisterNode(
    WireStruct, frozen=True, kw_only=True, tag="register", omit_defaults=True
):
    """
    A node asks to be part of it; again after every new connection or leader.

    What it has not is not sent: an earlier version of the proxy knows nothing of it.

    Attributes:
        token: The credential of a node, where the proxy has an access list.
        node_id: Its name; unique in the cluster.
        store_id: Its data directory; drawn when that was made.
        registration_id: Drawn for this process: tells two nodes of one name apart.
        address: Where writers reach it, ``tcp://host:port`` with a key if it has one.
        positions: How far it is, for each job it knows.
        control_id: The control plane whose rows *positions* are about, or None if there
            are none yet.
        kept: What it keeps of other control planes, and does not use.
        chunk_size_bytes_max: How large a chunk of rows it takes; None from one of an
            earlier version.
        reader_addresses: Where clients ask it without the proxy, each at one of these;
            none: at *address*.
        holdings: Which copies it can have, for each job that it was told to hold.
    """

    token: str | None
    node_id: str
    store_id: str
    registration_id: str
    address: str
    positions: tuple[JobPosition, ...]
    control_id: str | None = None
    kept: tuple[KeptRows, ...] = ()
    chunk_size_bytes_max: Annotated[int, Meta(ge=1)] | None = None
    reader_addresses: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    holdings: tuple[JobHolding, ...] = ()


class NodeRegistered(WireStruct, frozen=True, kw_only=True, tag="registered"):
    """
    The node is known; entries that it has missed follow.

    Attributes:
        leader_epoch: The epoch of the proxy leader.
        control_id: Which control plane this is; a data directory that holds rows of
            another one is not used.
        session_timeout_ms: How long the node may answer without an acknowledgement.
        jobs: What it answers for.
        copy_secret: What nodes show each other that ask for rows: one that has it was
            taken in by this proxy leader.  Without one no node is sent any.  By it they
            tell also which writers may stage (`queryablestate.wire.staging_grant`).
        untouched: Jobs of which the node has more than this control plane knows: what
            it has stays as it is, and is not asked for.
        forgotten: Jobs of which the node removes all that it has, before anything
            else (rule B4).
        direct_lease_ms: How long the node may answer clients without the proxy after
            an acknowledgement; 0: it may not.
    """

    leader_epoch: int
    control_id: str
    session_timeout_ms: int
    jobs: tuple[JobAssignment, ...]
    copy_secret: CopySecret = b""
    untouched: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    direct_lease_ms: int = 0


class NodeRefused(WireStruct, frozen=True, kw_only=True, tag="refused"):
    """
    The node is not taken.

    Attributes:
        reason: ``not-leader``, ``not-allowed``, ``name-taken``, ``malformed``,
            ``limit``, ``not-now`` (the leader store has not taken it: ask again) or
            ``unknown`` (register first).
        detail: Why, for a person.
    """

    reason: str
    detail: str


class JoinConnection(WireStruct, frozen=True, kw_only=True, tag="join"):
    """
    Say that a node, which is registered over another connection, has this one, too.

    What it answers over this one counts as if it came over that (rule B2).

    Attributes:
        node_id: The node.
        registration_id: Its process.
        copy_secret: What it was given when it registered: others do not have it.
    """

    node_id: str
    registration_id: str
    copy_secret: CopySecret


class ConnectionJoined(WireStruct, frozen=True, kw_only=True, tag="joined"):
    """The node of a `JoinConnection` may answer over it."""


class NodeHeartbeat(WireStruct, frozen=True, kw_only=True, tag="heartbeat"):
    """
    The node is there.

    Attributes:
        registration_id: Who says so.
        number: Rises with each.
        acknowledged: The newest that this leader has acknowledged, as far as the node
            knows; 0 for none.  What the leader sent before that has arrived.
    """

    registration_id: str
    number: int
    acknowledged: int = 0


class HeartbeatAcknowledged(WireStruct, frozen=True, kw_only=True, tag="acknowledged"):
    """
    The proxy leader has heard a heartbeat, and led when it answered.

    Attributes:
        leader_epoch: Its epoch.
        number: Of the heartbeat.
        leader_ms: Its monotonic clock when it answered: tickets expire by that.
    """

    leader_epoch: int
    number: int
    leader_ms: int = 0


class AssignJob(WireStruct, frozen=True, kw_only=True, tag="assign"):
    """What the node answers for has changed for one job."""

    leader_epoch: int
    job: JobAssignment


class FenceWriters(WireStruct, frozen=True, kw_only=True, tag="fence"):
    """Older runs of these queries are over (rule W1)."""

    leader_epoch: int
    fences: tuple[WriterFence, ...]


class VerifyStages(WireStruct, frozen=True, kw_only=True, tag="verify"):
    """
    Tell whether every chunk of these stages is there, durably.

    Attributes:
        leader_epoch: Who asks.
        verify_id: Names the answer.
        job_id: The job.
        writer_epoch: Under which the rows were staged.
        batch_id: Under which the rows were staged.
        stages: What is expected of this node.
        query_id: The streaming query.
        states: What it writes: the node answers only when it has room to apply that
            (rule W3).
    """

    leader_epoch: int
    verify_id: int
    job_id: str
    writer_epoch: int
    batch_id: int
    stages: tuple[StageRecord, ...]
    query_id: str
    states: tuple[BatchState, ...] = ()


class StagesVerified(WireStruct, frozen=True, kw_only=True, tag="verified"):
    """
    The answer.

    Attributes:
        registration_id: Who says so.
        verify_id: Of the question.
        missing: The stages that are not complete on this node.
        failure: Why the node could not apply the batch, were it decided, or None.
    """

    registration_id: str
    verify_id: int
    missing: tuple[StageId, ...]
    failure: str | None = None


class ApplyEntries(WireStruct, frozen=True, kw_only=True, tag="apply"):
    """
    Apply these entries of a job's chain, which are in order and without gaps.

    Those that the node has applied already are passed over.

    Attributes:
        leader_epoch: Who says so.
        job_id: The job.
        entries: The entries.
        node_ids: On the wire only: see `queryablestate.wire.node_names`.
    """

    leader_epoch: int
    job_id: str
    entries: tuple[Entry, ...]
    node_ids: tuple[str, ...] = ()


class ResetJob(WireStruct, frozen=True, kw_only=True, tag="reset"):
    """
    The node has lost what it had of a job: begin at *sequence*, with nothing (W7).

    Attributes:
        leader_epoch: Who says so.
        job_id: The job.
        sequence: The entry after which the node goes on.
        state_numbers: The states whose rows are lost: unavailable until a batch
            replaces them.
        restore_id: Of all that was loaded for the job, that of this restore is kept;
            if it is empty, nothing is, and all if it is None.
    """

    leader_epoch: int
    job_id: str
    sequence: int
    state_numbers: tuple[int, ...]
    restore_id: str | None = None


class EntriesApplied(WireStruct, frozen=True, kw_only=True, tag="applied"):
    """
    How far the node is with a job now.

    Attributes:
        registration_id: Who says so.
        job_id: The job.
        sequence: The last entry applied.
        failure: Why it cannot go on, or None.
        lost_state_numbers: The states whose rows it has lost, sorted (rule W7).
        lacks_rows: Whether it cannot go on since rows of the next entry are not there:
            to wait does not help.
    """

    registration_id: str
    job_id: str
    sequence: int
    failure: str | None
    lost_state_numbers: tuple[int, ...] = ()
    lacks_rows: bool = False


class CollectStages(WireStruct, frozen=True, kw_only=True, tag="collect"):
    """
    Fetch rows of a batch that were brought to others, and keep them (rule S2).

    The node became a copy of some key groups after the batch had begun.  It keeps what
    it fetches of each stage under its `collected_stage_id`, which follows from
    *assignment_version* and from all key groups of *sources*, in chunks numbered from
    0, durably, and answers `StagesCollected`.  A command with the same *verify_id* may
    name other sources, and takes the place of the former.

    Attributes:
        leader_epoch: Who asks.
        verify_id: Names the answer.
        job_id: The job.
        query_id: The streaming query.
        writer_epoch: Under which the rows are staged.
        batch_id: Under which the rows are staged.
        assignment_version: For which they are collected.
        stages: Of which stages; of each, only the nodes of *sources* are looked at.
        sources: Where the rows of which key groups are.
        timeout_ms: How long it is worth trying.
        node_ids: On the wire only: see `queryablestate.wire.node_names`.
    """

    leader_epoch: int
    verify_id: int
    job_id: str
    query_id: str
    writer_epoch: int
    batch_id: int
    assignment_version: int
    stages: tuple[StageRecord, ...]
    sources: tuple[CopySource, ...]
    timeout_ms: int
    node_ids: tuple[str, ...] = ()


class StagesCollected(WireStruct, frozen=True, kw_only=True, tag="collected"):
    """
    The answer.

    Attributes:
        registration_id: Who says so.
        verify_id: Of the command.
        chunk_counts: For each stage of the command, in its order, how many chunks the
            node keeps of what it fetched.
        missing: Stages of which a source lacks rows.
    """

    registration_id: str
    verify_id: int
    chunk_counts: tuple[int, ...]
    missing: tuple[StageId, ...]


class KeyGroupsCopied(WireStruct, frozen=True, kw_only=True, tag="copied"):
    """
    How far the node is with what it is to copy; sent again and again, also unasked.

    Attributes:
        registration_id: Who says so.
        job_id: The job.
        assignment_version: The assignment that it copies for.
        key_groups: Those of its `JobAssignment.joining` that it has complete, up to
            what it has applied, sorted.
        row_count: Rows that it has fetched for this job since it started.
        size_bytes: Their size.
        failure: Why the last attempt came to nothing, or None.
    """

    registration_id: str
    job_id: str
    assignment_version: int
    key_groups: tuple[int, ...]
    row_count: int
    size_bytes: int
    failure: str | None = None


class LeaveNode(WireStruct, frozen=True, kw_only=True, tag="leave"):
    """The node is about to end, and asks to be emptied first (rule S1)."""

    registration_id: str


class NodeEmptied(WireStruct, frozen=True, kw_only=True, tag="emptied"):
    """
    The node is draining and may end now.

    Attributes:
        leader_epoch: Who says so.
        reason: ``empty``: it holds nothing any more; ``nobody``: there is no other
            node that could take what it holds.
    """

    leader_epoch: int
    reason: str


class KeepPlan(WireStruct, frozen=True, kw_only=True, tag="keep-plan"):
    """Keep what the leader store holds of a job, for a time when that is lost."""

    leader_epoch: int
    plan: JobPlan


class TellPlan(WireStruct, frozen=True, kw_only=True, tag="tell-plan"):
    """Tell what is kept of a job, and answer `PlanTold`."""

    leader_epoch: int
    job_id: str


class PlanTold(WireStruct, frozen=True, kw_only=True, tag="plan"):
    """
    The answer.

    Attributes:
        registration_id: Who says so.
        job_id: The job.
        sequence: The last entry that was applied.
        plan: As of that entry; None if the node was never told one.
        entries: The newest entries that were applied, the last one being *sequence*.
        failure: Why nothing can be told, or None.
    """

    registration_id: str
    job_id: str
    sequence: int
    plan: JobPlan | None
    entries: tuple[Entry, ...]
    failure: str | None = None


ToNode: TypeAlias = (
    NodeRegistered
    | NodeRefused
    | HeartbeatAcknowledged
    | AssignJob
    | FenceWriters
    | VerifyStages
    | ApplyEntries
    | ResetJob
    | CollectStages
    | NodeEmptied
    | CancelQuestions
    | KeepPlan
    | TellPlan
    | SnapshotCommand
)
FromNode: TypeAlias = (
    RegisterNode
    | NodeHeartbeat
    | StagesVerified
    | EntriesApplied
    | StagesCollected
    | KeyGroupsCopied
    | LeaveNode
    | PlanTold
    | SnapshotReport
)
