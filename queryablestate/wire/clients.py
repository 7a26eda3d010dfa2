"""
Everything that clients and writers say to the proxy, and what it says to them.

Questions about state are in `queryablestate.wire.questions`, what nodes say and are
told in `queryablestate.wire.node_messages`.  A client opens a session first:
`Hello` with a credential, answered by `Welcome` with a secret that every later request
carries.  Identity is that secret (and the CURVE key), never the connection's routing
id.

A proxy that does not lead answers every request with the code ``not-leader``; a session
that it does not know (it restarted, or the session was idle for long) with
``unknown-session``: the client says `Hello` again and repeats its request.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, field

from queryablestate.wire.adoption_messages import AdoptionAnswer, AdoptionRequest
from queryablestate.wire.batch_digest import BatchDigest
from queryablestate.wire.direct import DirectAccess
from queryablestate.wire.kept_rows import KeptRows
from queryablestate.wire.node_messages import (
    ConnectionJoined,
    FromNode,
    JoinConnection,
    ToNode,
)
from queryablestate.wire.operation_messages import OperationAnswer, OperationRequest
from queryablestate.wire.questions import Answer, Ask, Question, Refusal, Told
from queryablestate.wire.records import StageRecord
from queryablestate.wire.schema_digest import SchemaDigest, schema_digest
from queryablestate.wire.snapshot_messages import SnapshotAnswer, SnapshotRequest
from queryablestate.wire.staging_grant import StagingGrant
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "TOKEN_LENGTH_MAX",
    "BatchCommitted",
    "BindRun",
    "BoundRun",
    "BoundState",
    "ClientRequest",
    "CommitBatch",
    "DescribeState",
    "DrawTicket",
    "DropState",
    "Hello",
    "JobsListed",
    "ListJobs",
    "ListNodes",
    "ListStates",
    "NodeAddress",
    "NodeSummary",
    "NodesListed",
    "RunBound",
    "StateDeclaration",
    "StateDescribed",
    "StateDescription",
    "StateDropDone",
    "StatesListed",
    "TicketDrawn",
    "ToClient",
    "ToNodeFrame",
    "ToProxy",
    "Welcome",
    "WriterRun",
]

TOKEN_LENGTH_MAX: Final = 1024
"""Characters of a token; a longer one is refused before it is hashed."""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
PositiveMilliseconds: TypeAlias = Annotated[int, Meta(ge=1)]


class Hello(WireStruct, frozen=True, kw_only=True, tag="hello"):
    """Open a session: *token* is the credential, or None (CURVE keys speak alone)."""

    request_id: int
    token: str | None = None


class Welcome(WireStruct, frozen=True, kw_only=True, tag="welcome"):
    """
    A session is open.

    Attributes:
        request_id: Of the `Hello`.
        session: Its secret.
        leader_epoch: The epoch of the proxy leader.
        keys_per_request_max: How many keys one question may have.
        frame_size_bytes_max: How big a frame may be.
    """

    request_id: int
    session: bytes
    leader_epoch: int
    keys_per_request_max: int
    frame_size_bytes_max: int


class StateDescription(WireStruct, frozen=True, kw_only=True):
    """
    All that is known of a state, and the route to its key groups.

    Attributes:
        job_id: The job.
        state_name: Its name.
        state_number: What names it in questions.
        schema: `queryablestate.schema.schema_json.schema_json`.
        max_parallelism: The number of key groups.
        generation: The present ownership.
        batch_id: The last batch decided in it, or None.
        query_id: The streaming query that owns it.
        age_ms: How long ago that batch was decided; None before the first.
        assignment_version: The version of the route table that follows.
        node_ids: The nodes.
        owners: For each key group the index of the node to ask.
        lost_node_ids: The present nodes that have lost their rows of it (rule W7).
    """

    job_id: str
    state_name: str
    state_number: int
    schema: str
    max_parallelism: int
    generation: int
    batch_id: int | None
    query_id: str
    age_ms: int | None
    assignment_version: int
    node_ids: tuple[str, ...]
    owners: tuple[int, ...]
    lost_node_ids: tuple[str, ...] = ()


class DescribeState(WireStruct, frozen=True, kw_only=True, tag="describe"):
    """
    Ask what a state is, and where.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        state_name: The state.
        wants_direct: Whether the client would ask nodes itself (rule D1).
    """

    request_id: int
    session: bytes
    job_id: Name
    state_name: Name
    wants_direct: bool = False


class StateDescribed(WireStruct, frozen=True, kw_only=True, tag="described"):
    """
    The answer.

    Attributes:
        request_id: Of the request.
        description: What is known.
        direct: How the client asks nodes itself; None if it is to ask the proxy.
    """

    request_id: int
    description: StateDescription
    direct: DirectAccess | None = None


class ListJobs(WireStruct, frozen=True, kw_only=True, tag="jobs"):
    """Ask which jobs have state that this caller may see."""

    request_id: int
    session: bytes


class JobsListed(WireStruct, frozen=True, kw_only=True, tag="jobs-listed"):
    """The answer, sorted."""

    request_id: int
    job_ids: tuple[str, ...]


class ListStates(WireStruct, frozen=True, kw_only=True, tag="states"):
    """Ask which states of a job this caller may see."""

    request_id: int
    session: bytes
    job_id: Name


class StatesListed(WireStruct, frozen=True, kw_only=True, tag="states-listed"):
    """The answer, sorted by name."""

    request_id: int
    states: tuple[StateDescription, ...]


class ListNodes(WireStruct, frozen=True, kw_only=True, tag="nodes"):
    """Ask which nodes there are: for operators, and programs that wait for them."""

    request_id: int
    session: bytes


class NodeSummary(WireStruct, frozen=True, kw_only=True):
    """
    One node as the proxy leader sees it.

    Attributes:
        node_id: Its name.
        address: Where writers reach it, or None while it is away.
        last_heard_ms: How long ago it was heard from, or None while it is away.
        key_group_counts: For each job how many key groups it is the primary of.
        behind_counts: For each job how many entries of the chain it has yet to apply.
        copy_counts: For each job how many in-sync copies it has, primaries included.
        is_draining: Whether it is being emptied.
        is_needed: Whether it has a part in a job, or batches that were begun before may
            have rows there: it is not to end yet.
        kept: What it keeps of other control planes, and does not use (rule W7).
    """

    node_id: str
    address: str | None
    last_heard_ms: int | None
    key_group_counts: dict[str, int]
    behind_counts: dict[str, int]
    copy_counts: dict[str, int] = field(default_factory=dict)
    is_draining: bool = False
    is_needed: bool = True
    kept: tuple[KeptRows, ...] = ()


class NodesListed(WireStruct, frozen=True, kw_only=True, tag="nodes-listed"):
    """
    The answer.

    Attributes:
        request_id: Of the request.
        nodes: Sorted by name.
        control_id: Which control plane this is; empty for who is no ``admin``.
    """

    request_id: int
    nodes: tuple[NodeSummary, ...]
    control_id: str = ""


class DropState(WireStruct, frozen=True, kw_only=True, tag="drop"):
    """Forget this state and everything in it, on every node."""

    request_id: int
    session: bytes
    job_id: Name
    state_name: Name


class StateDropDone(WireStruct, frozen=True, kw_only=True, tag="dropped"):
    """It is gone for every reader; nodes that are away drop it when they are back."""

    request_id: int


class StateDeclaration(WireStruct, frozen=True, kw_only=True):
    """
    What a writer says of a state.

    Attributes:
        state_name: Its name.
        schema: `schema_json` of it; None from who takes it for registered.
        digest: `schema_digest` of that text, in place of it.  A leader that knows no
            such state, or another schema of it, answers ``declaration-wanted``.
    """

    state_name: Name
    schema: str | None = None
    digest: SchemaDigest | None = None

    def as_registered(self) -> StateDeclaration:
        """Return the same without the text, for a leader that should know it."""
        if self.schema is None:
            return self
        return StateDeclaration(
            state_name=self.state_name, digest=schema_digest(self.schema)
        )


class WriterRun(WireStruct, frozen=True, kw_only=True):
    """
    A run of a streaming query, as the planner of its batches knows it (rule W1).

    Attributes:
        query_id: The streaming query.
        run_id: The run.
        on_new_query: ``refuse``, ``replace`` or ``continue`` (rule W5).
        born_epoch: The first ticket of the run: its epoch for life.
    """

    query_id: Name
    run_id: Name
    on_new_query: str
    born_epoch: Annotated[int, Meta(ge=1)]


class DrawTicket(WireStruct, frozen=True, kw_only=True, tag="ticket"):
    """
    The driver plans a batch (rule W1).

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        max_parallelism: How many key groups its state is to have.
        states: The states that the batch writes; none where a run wants an epoch to be
            born with: then there is a ticket, and neither a job nor an assignment.
        run: The run that writes the batch, which shows the ticket at once, as by a
            `BindRun`; None where the planner does not know it.
    """

    request_id: int
    session: bytes
    job_id: Name
    max_parallelism: Annotated[int, Meta(ge=1, le=32_768)]
    states: tuple[StateDeclaration, ...]
    run: WriterRun | None = None


class NodeAddress(WireStruct, frozen=True, kw_only=True):
    """
    A node that writers bring rows to.

    Attributes:
        node_id: Its name.
        address: Where they reach it; None while it is away.
        chunk_size_bytes_max: How large a chunk it takes; None if that is not known.
    """

    node_id: str
    address: str | None
    chunk_size_bytes_max: Annotated[int, Meta(ge=1)] | None = None


class BoundState(WireStruct, frozen=True, kw_only=True):
    """The number under which rows of a state are staged."""

    state_name: str
    state_number: int


class BoundRun(WireStruct, frozen=True, kw_only=True):
    """
    A run that may write.

    Attributes:
        writer_epoch: Under which its rows are staged.
        states: Their numbers, in the order of the request.
        batch_id: The last batch that was decided for this query, or None.
        grant: What the run shows the nodes that it brings rows to.
    """

    writer_epoch: int
    states: tuple[BoundState, ...]
    batch_id: int | None
    grant: StagingGrant = b""


class TicketDrawn(WireStruct, frozen=True, kw_only=True, tag="drawn"):
    """
    A ticket, and the assignment that the batch is pinned to.

    Attributes:
        request_id: Of the request.
        ticket: Above every earlier one.
        assignment_version: The assignment.
        nodes: Its nodes, in its order.
        owners: For each key group the indexes of the nodes that are to get its rows.
        run: The run that the request names; None if it names none.
    """

    request_id: int
    ticket: int
    assignment_version: int
    nodes: tuple[NodeAddress, ...]
    owners: tuple[tuple[int, ...], ...]
    run: BoundRun | None = None


class BindRun(WireStruct, frozen=True, kw_only=True, tag="bind"):
    """
    A run of a streaming query shows a ticket that was drawn without it (rule W1).

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        ticket: A ticket that this run's driver has drawn.
        born_epoch: The first ticket that this run has shown: its epoch for life.  None
            from who cannot know it, e.g. a task: the run may stage, and is the newest
            one when its commit says when it was born.
        query_id: The streaming query.
        run_id: The run.
        states: The states it writes, as in the `DrawTicket`.
        on_new_query: ``refuse``, ``replace`` or ``continue`` (rule W5).
    """

    request_id: int
    session: bytes
    job_id: Name
    ticket: int
    query_id: Name
    run_id: Name
    states: tuple[StateDeclaration, ...]
    on_new_query: str
    born_epoch: int | None = None


class RunBound(WireStruct, frozen=True, kw_only=True, tag="bound"):
    """The run of a `BindRun` may write."""

    request_id: int
    run: BoundRun


class CommitBatch(WireStruct, frozen=True, kw_only=True, tag="commit"):
    """
    Decide a batch, and say when it is applied (rule W3).  Repeating it is harmless.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        query_id: The streaming query.
        run_id: The run.
        writer_epoch: As bound.
        batch_id: Spark's number of the batch; None for a batch job, which writes one
            batch after its last.
        assignment_version: By which the rows were sent.
        state_numbers: The states that it writes.
        is_complete: Whether its rows are all there is (complete mode, overwrite).
        on_new_query: As in `BindRun`.
        stages: The winning executions, in the order of the partitions.
        timeout_ms: How long to wait for the nodes.
        born_epoch: Of a run that was bound without one, when it was born.
        digests: Of the rows for each of *state_numbers*: what tells a repetition from
            another batch of that number (rule W4); none where the rows were not read.
        node_ids: On the wire only: see `queryablestate.wire.node_names`.
    """

    request_id: int
    session: bytes
    job_id: Name
    query_id: Name
    run_id: Name
    writer_epoch: int
    batch_id: int | None
    assignment_version: int
    state_numbers: tuple[int, ...]
    is_complete: bool
    on_new_query: str
    stages: tuple[StageRecord, ...]
    timeout_ms: PositiveMilliseconds
    born_epoch: int | None = None
    digests: tuple[BatchDigest, ...] = ()
    node_ids: tuple[str, ...] = ()


class BatchCommitted(WireStruct, frozen=True, kw_only=True, tag="committed"):
    """
    Every owner has applied the batch.

    Attributes:
        request_id: Of the request.
        batch_id: Which batch it became.
        is_repeated: Whether it had been decided before: nothing was applied again.
    """

    request_id: int
    batch_id: int
    is_repeated: bool


ClientRequest: TypeAlias = (
    Ask
    | Hello
    | DescribeState
    | ListJobs
    | ListStates
    | ListNodes
    | DropState
    | DrawTicket
    | BindRun
    | CommitBatch
    | OperationRequest
    | SnapshotRequest
    | AdoptionRequest
)
ToProxy: TypeAlias = ClientRequest | FromNode | JoinConnection | Answer | Refusal
"""Everything that comes in at the proxy."""

ToClient: TypeAlias = (
    Told
    | Refusal
    | Welcome
    | StateDescribed
    | JobsListed
    | StatesListed
    | NodesListed
    | StateDropDone
    | TicketDrawn
    | RunBound
    | BatchCommitted
    | OperationAnswer
    | SnapshotAnswer
    | AdoptionAnswer
)
ToNodeFrame: TypeAlias = ToNode | ConnectionJoined | Question
"""Everything that the proxy sends to a node."""
