"""
What of a job a node answers for, and where it gets copies from.

`queryablestate.control.node_parts` makes it of the assignment of the job;
`NodeRegistered` and `AssignJob` (`queryablestate.wire.node_messages`) bring it.
"""

from __future__ import annotations

from msgspec import Struct

from queryablestate.wire.wire_struct import WireStruct


__all__ = ["CopySource", "JobAssignment", "JoiningGroup", "WriterFence"]


class WriterFence(WireStruct, frozen=True, kw_only=True):
    """
    Rows of runs of a query of a job below *writer_epoch* are refused from now on.

    Of another job they are not: who may write there need not be known here (rule C1).
    """

    job_id: str
    query_id: str
    writer_epoch: int


class JoiningGroup(Struct, frozen=True, array_like=True):
    """A key group that a node is to copy: a `JoiningCopy` of the records."""

    key_group: int
    since: int
    version: int = 0


class CopySource(WireStruct, frozen=True, kw_only=True):
    """
    Where copies of key groups can be had.

    Attributes:
        node_id: A node that has an in-sync copy of each.
        address: Where it listens for writers and other nodes, or None while it is away.
        key_groups: Which, sorted.
    """

    node_id: str
    address: str | None
    key_groups: tuple[int, ...]


class JobAssignment(WireStruct, frozen=True, kw_only=True):
    """
    What of a job a node answers for, and what it holds.

    Attributes:
        job_id: The job.
        assignment_version: The assignment that says so.
        max_parallelism: The number of its key groups.
        key_groups: Those for which this node is the primary, sorted.
        fences: The runs that may write.
        sequence: The entry that the node must have applied before it answers.
        copies: Those of which it has an in-sync copy and is not the primary, sorted.
        joining: Those that it is to copy, sorted; it says when it has
            (`queryablestate.wire.node_messages.KeyGroupsCopied`).
        sources: Where from; each key group of *joining* in one of them.
        copied_version: The newest version that began one of the copies that it has in
            sync, 0 if it copied none: a directory that was not told of it is older.
    """

    job_id: str
    assignment_version: int
    max_parallelism: int
    key_groups: tuple[int, ...]
    fences: tuple[WriterFence, ...]
    sequence: int = 0
    copies: tuple[int, ...] = ()
    joining: tuple[JoiningGroup, ...] = ()
    sources: tuple[CopySource, ...] = ()
    copied_version: int = 0

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Return the key groups of which it has an in-sync copy, sorted."""
        return tuple(sorted(self.key_groups + self.copies))
