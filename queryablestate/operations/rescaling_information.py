"""What operators are told of moves of key groups, and how it is made; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import msgspec
from attrs import field, frozen

from nameservice.clock import MS_PER_SECOND


if TYPE_CHECKING:
    from queryablestate.wire.clients import NodeSummary
    from queryablestate.wire.operation_messages import JobRescaling


__all__ = [
    "DrainInformation",
    "MoveInformation",
    "RescalingInformation",
    "drain_information",
    "rescaling_information",
]


@final
@frozen(kw_only=True)
class MoveInformation:
    """
    What one node is copying of one job.

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
    failure: str | None


@final
@frozen(kw_only=True)
class RescalingInformation:
    """
    How far the key groups of a job are from where they are to be.

    Attributes:
        job_id: The job.
        assignment_version: Rises whenever a key group changes hands.
        node_count: How many nodes the job is to have, as far as there are any.
        replica_count: How many copies each key group is to have, likewise.
        key_group_counts: For each node of the job how many key groups it is asked for.
        copy_counts: For each node how many copies it has that could be asked; with one
            replica these are the same.
        planned_count: Copies that were to be made when the plan was made last.
        left_count: Copies that are still to be made.
        surplus_count: Copies that are given up when that is done.
        missing_count: Key groups with fewer copies than *replica_count*.
        moves: What is being copied, by node.
        elapsed_seconds: How long it has gone on, by the pace of the proxy that leads if
            an earlier one has begun; None if there is nothing to do, or that pace is
            not known yet.
        seconds_left: How long it may take yet, by the pace so far; None before anything
            is known, 0.0 if no copy is left to be made.
    """

    job_id: str
    assignment_version: int
    node_count: int
    replica_count: int
    key_group_counts: Mapping[str, int]
    copy_counts: Mapping[str, int]
    planned_count: int
    left_count: int
    surplus_count: int
    missing_count: int
    moves: tuple[MoveInformation, ...]
    elapsed_seconds: float | None
    seconds_left: float | None

    @property
    def is_done(self) -> bool:
        """Return whether nothing is to be copied or given up any more."""
        return not (self.left_count or self.surplus_count)


@final
@frozen(kw_only=True)
class DrainInformation:
    """
    How far a node is from being empty.

    Attributes:
        node_id: The node.
        is_draining: Whether it is to be emptied: it gets no more key groups then.
        is_away: Whether it is out of contact.
        copy_counts: For each job how many copies of key groups it still has; jobs of
            which it has none are left out.
        is_needed: Whether it has some, or batches that were begun before may have rows
            there that are fetched when they are committed.
    """

    node_id: str
    is_draining: bool
    is_away: bool
    copy_counts: Mapping[str, int] = field(factory=dict)
    is_needed: bool = False

    @property
    def left_count(self) -> int:
        """Return how many copies it still has, over all jobs."""
        return sum(self.copy_counts.values())

    @property
    def is_empty(self) -> bool:
        """Return whether it is not needed: it may end, and no reader will notice."""
        return not self.copy_counts and not self.is_needed


def rescaling_information(rescaling: JobRescaling) -> RescalingInformation:
    """Return what the proxy says of a job as operators see it."""
    fields = msgspec.structs.asdict(rescaling)
    started_ms = fields.pop("started_ms")
    elapsed_seconds = None if started_ms is None else started_ms / MS_PER_SECOND
    fields["moves"] = msgspec.convert(
        rescaling.moves, tuple[MoveInformation, ...], from_attributes=True
    )
    return RescalingInformation(
        **fields,
        elapsed_seconds=elapsed_seconds,
        seconds_left=_seconds_left(rescaling, elapsed_seconds or 0.0),
    )


def _seconds_left(rescaling: JobRescaling, elapsed_seconds: float) -> float | None:
    """Return how long the rest takes if it goes on as it went."""
    done_count = rescaling.planned_count - rescaling.left_count
    if rescaling.left_count <= 0:
        return 0.0
    if done_count <= 0 or elapsed_seconds <= 0:
        return None
    return rescaling.left_count * elapsed_seconds / done_count


def drain_information(node_id: str, node: NodeSummary | None) -> DrainInformation:
    """
    Return how far *node* is from being empty.

    Args:
        node_id: Its name.
        node: What the proxy says of it, or None if it knows it no more.
    """
    if node is None:
        return DrainInformation(node_id=node_id, is_draining=False, is_away=True)
    return DrainInformation(
        node_id=node_id,
        is_draining=node.is_draining,
        is_away=node.address is None,
        copy_counts={
            job_id: count for job_id, count in sorted(node.copy_counts.items()) if count
        },
        is_needed=node.is_needed,
    )
