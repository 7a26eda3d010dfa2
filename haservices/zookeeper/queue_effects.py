"""What a contender in a queue of ZooKeeper does: the effects of `QueueCore`."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from election.holder import DeliverGrant, DeliverRevoke
from haservices.zookeeper.entry import Entry
from haservices.zookeeper.nodes import NodeOperation
from haservices.zookeeper.records import ContenderRecord


__all__ = [
    "AbandonHolding",
    "AcceptRequest",
    "BeginHolding",
    "CreateContender",
    "Deliver",
    "EndHolding",
    "ExistsNode",
    "Finish",
    "LetHoldingAsk",
    "ListContenders",
    "LogFailure",
    "MakeParents",
    "NoteLeft",
    "NoteRegistered",
    "Question",
    "QueueEffect",
    "ReadNode",
    "ReadPublication",
    "RefuseRequest",
    "RemoveNode",
    "TellError",
    "Transact",
    "UnwatchOwnNode",
    "UnwatchPredecessor",
    "WatchOwnNode",
    "WatchPredecessor",
]


@frozen(kw_only=True)
class CreateContender:
    """Create the node of entry *number*, and those above it that may be missing."""

    number: int
    record: ContenderRecord


@frozen(kw_only=True)
class MakeParents:
    """Create the nodes above ours, though they were thought to be there."""


@frozen(kw_only=True)
class ListContenders:
    """List the nodes in the queue; after a ``sync`` if *is_synced*."""

    is_synced: bool


@frozen(kw_only=True)
class ExistsNode:
    """Look what ZooKeeper knows of the node at *path*."""

    path: str


@frozen(kw_only=True)
class ReadNode:
    """Read the node at *path*."""

    path: str


@frozen(kw_only=True)
class WatchPredecessor:
    """Look whether the node at *path* is there; be told of its next change."""

    path: str


@frozen(kw_only=True)
class ReadPublication:
    """Read the leader's node, and look at the component's."""


@frozen(kw_only=True)
class Transact:
    """Do *operations*, all or none."""

    operations: tuple[NodeOperation, ...]


Question: TypeAlias = (
    CreateContender
    | MakeParents
    | ListContenders
    | ExistsNode
    | ReadNode
    | WatchPredecessor
    | ReadPublication
    | Transact
)


@frozen(kw_only=True)
class RemoveNode:
    """Delete the node at *path*, which is of no use, beside all questions."""

    path: str


@frozen(kw_only=True)
class WatchOwnNode:
    """Be told of the next change of entry *number*'s node, beside all questions."""

    number: int
    path: str


@frozen(kw_only=True)
class UnwatchOwnNode:
    """Be told no more of the node at *path*."""

    path: str


@frozen(kw_only=True)
class UnwatchPredecessor:
    """Be told no more of the node at *path*."""

    path: str


@frozen(kw_only=True)
class NoteRegistered:
    """The write that created our node was sent at *sent_ns*."""

    path: str
    epoch: int
    sent_ns: int


@frozen(kw_only=True)
class NoteLeft:
    """Our node is gone."""

    path: str
    epoch: int


@frozen(kw_only=True)
class BeginHolding:
    """We are first: hold the component under *entry*."""

    entry: Entry


@frozen(kw_only=True)
class LetHoldingAsk:
    """It is the turn of the holding; our own node is at *version*."""

    version: int


@frozen(kw_only=True)
class AbandonHolding:
    """No answer will come to what the holding has asked."""


@frozen(kw_only=True)
class EndHolding:
    """Hold no more; what is under way is still answered."""


@frozen(kw_only=True)
class AcceptRequest:
    """Have the holding do what is wanted; of a confirm, as the *confirm_count*-th."""

    confirm_count: int = 0


@frozen(kw_only=True)
class RefuseRequest:
    """Answer that the leadership is over; *epoch* is the one that we claim, if any."""

    epoch: int | None


@frozen(kw_only=True)
class Deliver:
    """Tell the contender."""

    news: DeliverGrant | DeliverRevoke


@frozen(kw_only=True)
class LogFailure:
    """Write down what went wrong."""

    error: Exception


@frozen(kw_only=True)
class TellError:
    """Tell the contender what went wrong."""

    error: Exception


@frozen(kw_only=True)
class Finish:
    """Nothing of the contender is left, nor will be."""


QueueEffect: TypeAlias = (
    Question
    | RemoveNode
    | WatchOwnNode
    | UnwatchOwnNode
    | UnwatchPredecessor
    | NoteRegistered
    | NoteLeft
    | BeginHolding
    | LetHoldingAsk
    | AbandonHolding
    | EndHolding
    | AcceptRequest
    | RefuseRequest
    | Deliver
    | LogFailure
    | TellError
    | Finish
)
