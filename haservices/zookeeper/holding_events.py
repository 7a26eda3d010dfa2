"""What the first contender in a queue is told: the events of `HoldingCore`."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from haservices.zookeeper.nodes import NodeOperation


__all__ = [
    "CommitAsked",
    "ConfirmAsked",
    "ConnectionRestored",
    "HoldingClosed",
    "HoldingEvent",
    "LeaderNodeChanged",
    "LeaderNodeWatched",
    "QuestionAnswered",
    "QuestionFailed",
    "RequestWithdrawn",
    "SessionEnded",
    "TimePassed",
    "TurnCame",
]


@frozen(kw_only=True)
class TurnCame:
    """Nothing is under way, and our own node is at *version*."""

    version: int


@frozen(kw_only=True)
class QuestionAnswered:
    """
    The question that was under way was answered, or what it asked for committed.

    Attributes:
        version: Of `WriteNode`: the node's version since.
        is_ours: Of `ReadLeaderNode`: whether what is published there is ours.
    """

    version: int = 0
    is_ours: bool = False


@frozen(kw_only=True)
class QuestionFailed:
    """The question that was under way came to nothing, as *error* tells."""

    error: Exception


@frozen(kw_only=True)
class ConfirmAsked:
    """The contender has confirmed, as its request *number*, under *address*."""

    number: int
    address: str
    confirm_count: int


@frozen(kw_only=True)
class CommitAsked:
    """The leader store is to do *operations* as request *number*."""

    number: int
    operations: tuple[NodeOperation, ...]


@frozen(kw_only=True)
class RequestWithdrawn:
    """Request *number* is not waited for any more."""

    number: int


@frozen(kw_only=True)
class ConnectionRestored:
    """There was a break: watches are gone, and a heartbeat is due."""


@frozen(kw_only=True)
class LeaderNodeWatched:
    """We are told when the leader's node changes; it is ours now, or it is not."""

    is_ours: bool


@frozen(kw_only=True)
class LeaderNodeChanged:
    """The leader's node was changed, by us or by somebody else."""


@frozen(kw_only=True)
class TimePassed:
    """It is later than before."""


@frozen(kw_only=True)
class SessionEnded:
    """Our session is over: no answer will come."""


@frozen(kw_only=True)
class HoldingClosed:
    """Our entry has ended; what is under way is still answered."""


HoldingEvent: TypeAlias = (
    TurnCame
    | QuestionAnswered
    | QuestionFailed
    | ConfirmAsked
    | CommitAsked
    | RequestWithdrawn
    | ConnectionRestored
    | LeaderNodeWatched
    | LeaderNodeChanged
    | TimePassed
    | SessionEnded
    | HoldingClosed
)
