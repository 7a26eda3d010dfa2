"""
How operators have a control plane take over what nodes kept (``lodestar adopt``).

Two steps, each of which may be repeated.  `TakeControl` makes a control plane that has
no state yet the one that rows are kept of: nodes then use these rows again, and every
job of them is one that nodes are ahead with.  `AdoptJob` brings one such job up to what
its nodes have.  After the restore of an older backup the second step is all.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "AdoptJob",
    "AdoptedState",
    "AdoptionAnswer",
    "AdoptionRequest",
    "ControlTaken",
    "JobAdopted",
    "TakeControl",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]


class TakeControl(WireStruct, frozen=True, kw_only=True, tag="take-control"):
    """
    Be the control plane of that name from now on.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        control_id: One that nodes keep rows of.
    """

    request_id: int
    session: bytes
    control_id: Name


class ControlTaken(WireStruct, frozen=True, kw_only=True, tag="control-taken"):
    """It is; nodes register anew, with the rows that they kept."""

    request_id: int


class AdoptJob(WireStruct, frozen=True, kw_only=True, tag="adopt-job"):
    """
    Take over what nodes have of a job that they are ahead with.

    Attributes:
        request_id: Names the answer.
        session: The secret of the session.
        job_id: The job.
        is_preview: Only tell what would be taken over.
        is_forced: Do it though nodes of the job are away, and may know better.
    """

    request_id: int
    session: bytes
    job_id: Name
    is_preview: bool = False
    is_forced: bool = False


class AdoptedState(WireStruct, frozen=True, kw_only=True):
    """
    A state of a job that is taken over.

    Attributes:
        state_name: Its name.
        batch_id: The last batch, or None before the first.
        decided_at_us: When that was decided, microseconds since 1970 UTC; 0 before.
    """

    state_name: str
    batch_id: int | None
    decided_at_us: int


class JobAdopted(WireStruct, frozen=True, kw_only=True, tag="job-adopted"):
    """
    What is taken over, or would be.

    Attributes:
        request_id: Of the request.
        job_id: The job.
        known_sequence: The last entry that the leader store knew of; 0 if it did not
            know the job.
        sequence: The last entry now.
        states: By name.
        node_ids: The nodes that have it, sorted.
        away_ids: Those of them that are away, sorted.
        lost_ids: Those that lack entries that no node has any more, sorted: what only
            they have is lost (rule W7).
    """

    request_id: int
    job_id: str
    known_sequence: int
    sequence: int
    states: tuple[AdoptedState, ...]
    node_ids: tuple[str, ...]
    away_ids: tuple[str, ...]
    lost_ids: tuple[str, ...]


AdoptionRequest: TypeAlias = TakeControl | AdoptJob
AdoptionAnswer: TypeAlias = ControlTaken | JobAdopted
