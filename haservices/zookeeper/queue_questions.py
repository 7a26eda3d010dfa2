"""What a queue core has asked, why, and what it says when that fails; pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from attrs import frozen

from haservices.zookeeper.nodes import (
    NodeMissingError,
    NodeVersionError,
    TransactionFailedError,
)
from haservices.zookeeper.queue_effects import (
    CreateContender,
    ListContenders,
    ReadNode,
    ReadPublication,
    Transact,
)
from nameservice import MayHaveHappenedError


if TYPE_CHECKING:
    from haservices.zookeeper.queue_effects import Question


__all__ = ["Asked", "Failure", "Purpose", "failure_of"]


class Purpose(Enum):
    """What a question is asked for that may be asked for several reasons."""

    FIND = "find"
    PLACE = "place"
    LEAVE = "leave"
    UNPUBLISH = "unpublish"


@frozen
class Asked:
    """What is under way, since when, and what for."""

    question: Question
    asked_ns: int
    purpose: Purpose | None = None


class Failure(Enum):
    """What an error says, by what was asked."""

    UNKNOWN = "nothing is known"
    NOT_CREATED = "our node was not created, and why does not pass by itself"
    PARENTS_MISSING = "our node was not created, for those above it are missing"
    NEVER_CREATED = "our node, which was looked for, was never created"
    NODE_GONE = "our node is gone"
    NODE_GONE_ALREADY = "our node, which was to be deleted, is gone"
    PUBLICATION_GONE = "what we had published is gone, and our node is not"
    NOTHING_LEFT = "what we had published is gone, as our node is"


def failure_of(asked: Asked, error: Exception) -> Failure:
    """Return what *error* says that came in place of an answer."""
    is_missing = isinstance(error, NodeMissingError)
    failure = Failure.UNKNOWN
    match asked.question:
        case CreateContender() if is_missing:
            failure = Failure.PARENTS_MISSING
        # What may have been created is looked for.
        case CreateContender() if not isinstance(error, MayHaveHappenedError):
            failure = Failure.NOT_CREATED
        case ListContenders() | ReadNode() if is_missing:
            is_looked_for = asked.purpose is Purpose.FIND
            failure = Failure.NEVER_CREATED if is_looked_for else Failure.NODE_GONE
        case Transact() if asked.purpose is Purpose.LEAVE:
            failure = _failure_to_leave(error)
        case ReadPublication() | Transact():
            if isinstance(error, TransactionFailedError):
                error = error.error
            if isinstance(error, NodeMissingError | NodeVersionError):
                failure = Failure.NOTHING_LEFT
        case _:
            pass
    return failure


def _failure_to_leave(error: Exception) -> Failure:
    if not isinstance(error, TransactionFailedError) or not isinstance(
        error.error, NodeMissingError
    ):
        return Failure.UNKNOWN
    # Our own node comes first; see `queue_leaving.leave`.
    return Failure.PUBLICATION_GONE if error.index > 0 else Failure.NODE_GONE_ALREADY
