"""
What operators ask the control plane to do with nodes and assignments, and its answers.

They are part of the conversation of `queryablestate.wire.clients`; all of it takes the
right ``admin`` where the proxy has callers.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "AwayNodeForgotten",
    "DrainNode",
    "DrainStarted",
    "ForgetAwayNode",
    "ForgetJob",
    "JobForgotten",
    "JobRescaling",
    "KeyGroupMoves",
    "ListRescalings",
    "OperationAnswer",
    "OperationRequest",
    "RescaleJob",
    "RescaleStarted",
    "RescalingsListed",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]


class KeyGroupMoves(WireStruct, frozen=True, kw_only=True):
    """
    Copies that one node is making of key groups of one job.

    Attributes:
        node_id: The node that copies.
        source_ids: The nodes that it copies from, sorted.
        waiting_count: Key groups that it has yet to begin.
        copying_count: Key groups that it is copying.
        row_count: Rows that it has fetched for the job since it started.
        size_bytes: Their size.
        failure: Why its last attempt came to nothing, or None.
    """

    node_id: str
    source_ids: tuple[str, ...]
    waiting_count: int
    copying_count: int
    row_count: int
    size_bytes: int
    failure: str | None = None


class JobRescaling(WireStruct, frozen=True, kw_only=True):
    """
    How far the assignment of a job is from what is wanted.

    Attributes:
        job_id: The job.
        assignment_version: The present assignment.
        node_count: How many nodes the job is to have.
        replica_count: How many copies each key group is to have.
        key_group_counts: For each node of the job how many key groups it is asked for.
        copy_counts: For each node of the job how many in-sync copies it has.
        planned_count: Copies that were to be made when the plan was made.
        left_count: Copies that are still to be made; 0 when all is as wanted.
        surplus_count: In-sync copies that are to be given up when that is done.
        missing_count: Key groups with fewer in-sync copies than *replica_count*.
        moves: What is being copied, by node.
        started_ms: How long the plan has been carried out, by the pace of the present
            proxy leader if an earlier one has begun with it; None if there is nothing
            to be done, or that pace is not known yet.
    """

    job_id: str
    assignment_version: int
    node_count: int
    replica_count: int
    key_group_counts: dict[str, int]
    copy_counts: dict[str, int]
    planned_count: int
    left_count: int
    surplus_count: int
    missing_count: int
    moves: tuple[KeyGroupMoves, ...]
    started_ms: int | None = None


class RescaleJob(WireStruct, frozen=True, kw_only=True, tag="rescale"):
    """
    Give a job that many of the registered nodes (rule O6).

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        node_count: How many nodes; None leaves that as it is.
        replica_count: How many copies of each key group; None leaves that as it is.
    """

    request_id: int
    session: bytes
    job_id: Name
    node_count: Annotated[int, Meta(ge=1, le=32_768)] | None = None
    replica_count: Annotated[int, Meta(ge=1, le=16)] | None = None


class RescaleStarted(WireStruct, frozen=True, kw_only=True, tag="rescale-started"):
    """The plan is written down; it is carried out by this leader or the next."""

    request_id: int
    rescaling: JobRescaling


class ListRescalings(WireStruct, frozen=True, kw_only=True, tag="rescalings"):
    """Ask how far the jobs are from what is wanted: one, or all of them."""

    request_id: int
    session: bytes
    job_id: Name | None = None


class RescalingsListed(WireStruct, frozen=True, kw_only=True, tag="rescalings-list"):
    """
    The answer.

    Attributes:
        request_id: Of the request.
        rescalings: By job id, sorted.
        is_settled: Whether the proxy leader changes assignments already; not in the
            first moment of its leadership (rule S2).
    """

    request_id: int
    rescalings: tuple[JobRescaling, ...]
    is_settled: bool


class DrainNode(WireStruct, frozen=True, kw_only=True, tag="drain"):
    """
    Empty a node: its key groups go to the others, and it gets no more.

    A node that is away is given up; what only it has is unavailable until it is back.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        node_id: Which.
        is_undone: Have it take part again instead.
    """

    request_id: int
    session: bytes
    node_id: Name
    is_undone: bool = False


class DrainStarted(WireStruct, frozen=True, kw_only=True, tag="drain-started"):
    """
    It is written down.

    Attributes:
        request_id: Of the request.
        node_id: Which.
        job_ids: The jobs that it has a part in, sorted.
    """

    request_id: int
    node_id: str
    job_ids: tuple[str, ...]


class ForgetJob(WireStruct, frozen=True, kw_only=True, tag="forget-job"):
    """Forget a job and everything in it, also what nodes keep of it aside (B4)."""

    request_id: int
    session: bytes
    job_id: Name


class JobForgotten(WireStruct, frozen=True, kw_only=True, tag="job-forgotten"):
    """
    It is gone for every reader and writer; nodes that are away forget it when back.

    Attributes:
        request_id: Of the request.
        node_ids: The nodes that may have rows of it, sorted.
    """

    request_id: int
    node_ids: tuple[str, ...]


class ForgetAwayNode(WireStruct, frozen=True, kw_only=True, tag="forget-node"):
    """
    Forget the name of a node that is away for good and has no part in any job (B4).

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        node_id: Which.
    """

    request_id: int
    session: bytes
    node_id: Name


class AwayNodeForgotten(WireStruct, frozen=True, kw_only=True, tag="node-forgotten"):
    """It is not listed any more, and no proxy that begins to lead waits for it."""

    request_id: int
    node_id: str


OperationRequest: TypeAlias = (
    RescaleJob | ListRescalings | DrainNode | ForgetJob | ForgetAwayNode
)
"""What operators ask."""

OperationAnswer: TypeAlias = (
    RescaleStarted | RescalingsListed | DrainStarted | JobForgotten | AwayNodeForgotten
)
"""What they are told, but for refusals."""
