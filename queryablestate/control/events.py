"""What can happen to the control plane: the events of `ControlCore`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NewType, TypeAlias

from attrs import frozen

from nameservice import NameServiceError
from queryablestate.wire.adoption_messages import AdoptionRequest
from queryablestate.wire.clients import BindRun, CommitBatch, DrawTicket, DropState
from queryablestate.wire.node_messages import FromNode
from queryablestate.wire.operation_messages import (
    DrainNode,
    ForgetAwayNode,
    ForgetJob,
    RescaleJob,
)
from queryablestate.wire.snapshot_messages import SnapshotRequest


__all__ = [
    "ControlEvent",
    "LinkId",
    "LinksClosed",
    "NodeSpoke",
    "RightsReplaced",
    "StoreFailed",
    "StoreWritten",
    "TimePassed",
    "WriterAsked",
]

LinkId = NewType("LinkId", int)
"""The number of a connection to the proxy, which the shell gives; never used twice."""


@frozen(kw_only=True)
class WriterAsked:
    """
    A writer, or an operator, asked for a change; its right to do so is checked.

    Attributes:
        link: Over which connection.
        request: What for.
        wall_clock_us: The wall clock, microseconds since 1970 UTC.
        writable: The states of the job that the caller may write, by name; None if
            that is every state that the job could have.  A query that writes others
            is not theirs to bind (rule C1).
    """

    link: LinkId
    request: (
        DrawTicket
        | BindRun
        | CommitBatch
        | DropState
        | RescaleJob
        | DrainNode
        | ForgetJob
        | ForgetAwayNode
        | SnapshotRequest
        | AdoptionRequest
    )
    wall_clock_us: int
    writable: frozenset[str] | None = None


@frozen(kw_only=True)
class NodeSpoke:
    """A node said something; its right to be a node is checked."""

    link: LinkId
    message: FromNode


@frozen(kw_only=True)
class LinksClosed:
    """
    Connections are over.

    All those that are known to be over by now, in one event: what follows is worked out
    once, though many nodes die together (rule B2).
    """

    links: Sequence[LinkId]


@frozen(kw_only=True)
class RightsReplaced:
    """Callers may do other things than before: what `WriterAsked` says is outdated."""


@frozen(kw_only=True)
class StoreWritten:
    """The leader store has taken the operations of the last `WriteStore`."""


@frozen(kw_only=True)
class StoreFailed:
    """
    The leader store has not taken them, or has not said so.

    Attributes:
        error: Why.
        is_certain: Whether nothing was written, for sure.
    """

    error: NameServiceError
    is_certain: bool


@frozen(kw_only=True)
class TimePassed:
    """Nothing happened but time."""


ControlEvent: TypeAlias = (
    WriterAsked
    | NodeSpoke
    | LinksClosed
    | RightsReplaced
    | StoreWritten
    | StoreFailed
    | TimePassed
)
