"""What the first contender in a queue does: the effects of `HoldingCore`."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from election.holder import HolderEvent
from haservices.zookeeper.nodes import NodeOperation
from haservices.zookeeper.records import ContenderRecord


__all__ = [
    "AnswerRequest",
    "EndEntry",
    "FailRequest",
    "ForgetVersion",
    "HoldingEffect",
    "KnowVersion",
    "NoteWrite",
    "ReadLeaderNode",
    "RefuseRequest",
    "SendSync",
    "Stumble",
    "Tell",
    "Transact",
    "WatchLeaderNode",
    "WriteNode",
]


@frozen(kw_only=True)
class SendSync:
    """Ask the leader of the ensemble to answer."""


@frozen(kw_only=True)
class WriteNode:
    """Set our own node to *record*, if it is at *version*."""

    record: ContenderRecord
    version: int


@frozen(kw_only=True)
class Transact:
    """Do *operations* for request *number*; *is_publication* tells a confirm."""

    number: int
    operations: tuple[NodeOperation, ...]
    is_publication: bool


@frozen(kw_only=True)
class ReadLeaderNode:
    """Look whose the leader's node is."""


@frozen(kw_only=True)
class WatchLeaderNode:
    """Ask to be told of the next change of the leader's node, beside all questions."""


@frozen(kw_only=True)
class NoteWrite:
    """A write of our own node that was sent at *sent_ns* has committed."""

    sent_ns: int


@frozen(kw_only=True)
class KnowVersion:
    """Our own node is at *version* since."""

    version: int


@frozen(kw_only=True)
class ForgetVersion:
    """Look at our own node again before the next turn."""


@frozen(kw_only=True)
class Tell:
    """Tell the contender's `HolderCore`."""

    event: HolderEvent


@frozen(kw_only=True)
class EndEntry:
    """Stop leading, and leave the queue."""


@frozen(kw_only=True)
class AnswerRequest:
    """Request *number* was done."""

    number: int


@frozen(kw_only=True)
class FailRequest:
    """Request *number* came to nothing, or may have, as *error* tells."""

    number: int
    error: Exception


@frozen(kw_only=True)
class RefuseRequest:
    """Request *number* is of a leadership that is over."""

    number: int


@frozen(kw_only=True)
class Stumble:
    """The last question failed for a reason that is not ours to deal with."""


HoldingEffect: TypeAlias = (
    SendSync
    | WriteNode
    | Transact
    | ReadLeaderNode
    | WatchLeaderNode
    | NoteWrite
    | KnowVersion
    | ForgetVersion
    | Tell
    | EndEntry
    | AnswerRequest
    | FailRequest
    | RefuseRequest
    | Stumble
)
