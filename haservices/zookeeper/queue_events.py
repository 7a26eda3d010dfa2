"""What a contender in a queue of ZooKeeper is told: the events of `QueueCore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from election.holder import HolderEvent
from haservices.zookeeper.nodes import Node, NodeStat


if TYPE_CHECKING:
    from uuid import UUID

    from election.contender import LeaderSession


__all__ = [
    "CommitWanted",
    "ConfirmWanted",
    "ContactRestored",
    "ContactSuspended",
    "ContenderClosed",
    "ContenderCreated",
    "EntryEnded",
    "HolderTold",
    "OwnNodeChanged",
    "OwnNodeWatched",
    "PredecessorChanged",
    "PublicationSent",
    "QuestionAnswered",
    "QuestionFailed",
    "QueueEvent",
    "RevocationDelivered",
    "SessionOver",
    "SessionRefused",
    "Stumbled",
    "TimePassed",
    "TurnCame",
    "VersionForgotten",
    "VersionKnown",
]


@frozen(kw_only=True)
class TurnCame:
    """
    Nothing is under way.

    Attributes:
        is_connected: Whether a question would be sent at once.
        leader_session_id: The identity of an entry, should one begin now.
    """

    is_connected: bool
    leader_session_id: UUID


@frozen(kw_only=True)
class QuestionAnswered:
    """
    The question that was under way was answered, or what it asked for committed.

    Attributes:
        path: Of `CreateContender`: the node.
        stat: Of `CreateContender`: the node's; of `ExistsNode` and `WatchPredecessor`:
            the node's, or None if it is not there; of `ReadPublication`: the
            component's, likewise.
        names: Of `ListContenders`: the children.
        node: Of `ReadNode`: the node; of `ReadPublication`: the leader's.
    """

    path: str = ""
    stat: NodeStat | None = None
    names: tuple[str, ...] = ()
    node: Node | None = None


@frozen(kw_only=True)
class QuestionFailed:
    """The question that was under way came to nothing, as *error* tells."""

    error: Exception


@frozen(kw_only=True)
class Stumbled:
    """A question of the holding failed for a reason that is not its own."""

    error: Exception


@frozen(kw_only=True)
class ContenderCreated:
    """The node of entry *number* was created, which may be over since."""

    number: int
    path: str


@frozen(kw_only=True)
class OwnNodeWatched:
    """We are told when the node of entry *number* changes; now it is at *stat*."""

    number: int
    stat: NodeStat | None


@frozen(kw_only=True)
class OwnNodeChanged:
    """Our own node was changed or deleted, by us or by somebody else."""


@frozen(kw_only=True)
class PredecessorChanged:
    """The node before ours was changed or deleted."""


@frozen(kw_only=True)
class ContactRestored:
    """Requests are answered, in session *session_id*; watches are gone."""

    session_id: int
    session_timeout_ns: int


@frozen(kw_only=True)
class ContactSuspended:
    """Nothing can be asked for the moment."""


@frozen(kw_only=True)
class SessionOver:
    """The session has ended: our node is gone, and no answer will come."""


@frozen(kw_only=True)
class SessionRefused:
    """We are not taken any more, as *error* tells."""

    error: Exception


@frozen(kw_only=True)
class ConfirmWanted:
    """The contender confirms *leader_session_id* under *address*."""

    leader_session_id: UUID
    address: str


@frozen(kw_only=True)
class CommitWanted:
    """Something is to be committed to the leader store under *session*."""

    session: LeaderSession


@frozen(kw_only=True)
class RevocationDelivered:
    """The contender's revoke callback has returned."""


@frozen(kw_only=True)
class HolderTold:
    """The holding has something to tell the contender's `HolderCore`."""

    event: HolderEvent


@frozen(kw_only=True)
class VersionKnown:
    """A write by the holding has brought our own node to *version*."""

    version: int


@frozen(kw_only=True)
class VersionForgotten:
    """Our own node was not as the holding expected."""


@frozen(kw_only=True)
class PublicationSent:
    """From now on the leader's node may be ours."""


@frozen(kw_only=True)
class EntryEnded:
    """The holding has seen that our entry is over."""


@frozen(kw_only=True)
class ContenderClosed:
    """The contender leaves the election."""


@frozen(kw_only=True)
class TimePassed:
    """It is later than before."""


QueueEvent: TypeAlias = (
    TurnCame
    | QuestionAnswered
    | QuestionFailed
    | Stumbled
    | ContenderCreated
    | OwnNodeWatched
    | OwnNodeChanged
    | PredecessorChanged
    | ContactRestored
    | ContactSuspended
    | SessionOver
    | SessionRefused
    | ConfirmWanted
    | CommitWanted
    | RevocationDelivered
    | HolderTold
    | VersionKnown
    | VersionForgotten
    | PublicationSent
    | EntryEnded
    | ContenderClosed
    | TimePassed
)
