"""What happens to a client of a LeaderServer, and what it is to do about it."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from attrs import frozen

from election.holder import DeliverGrant, DeliverRevoke
from leaderserver.messages import (
    ReplyBody,
    RequestBody,
    ToClient,
    ToServer,
    Welcome,
)
from nameservice.errors import NameServiceError
from retrieval.core import RetrieverEvent


__all__ = [
    "AnnounceSession",
    "BroadcastsReached",
    "CallAsked",
    "ClientEffect",
    "ClientEvent",
    "CloseAsked",
    "CompleteCall",
    "ConfirmAsked",
    "ContenderAdded",
    "ContenderRemoved",
    "DeliverStoreChange",
    "DeliverToContender",
    "DeliverToRetriever",
    "FailOpening",
    "JoinTopic",
    "LeaveTopic",
    "LinkClosed",
    "LinkOpened",
    "MessageReceived",
    "ReportToContender",
    "ReportToRetriever",
    "RetrieverAdded",
    "RetrieverRemoved",
    "RevokeReturned",
    "SendFailed",
    "SendMessage",
    "TimeWentBy",
]


# -- what happened -------------------------------------------------------------------


@frozen(kw_only=True)
class TimeWentBy:
    """Nothing but time."""


@frozen(kw_only=True)
class LinkOpened:
    """The request channel is connected, and its handshake done."""


@frozen(kw_only=True)
class LinkClosed:
    """The connection of the request channel closed."""


@frozen(kw_only=True)
class BroadcastsReached:
    """Broadcasts are heard from now on; what came before was not."""


@frozen(kw_only=True)
class MessageReceived:
    """A message came, on the request channel or as a broadcast."""

    message: ToClient


@frozen(kw_only=True)
class SendFailed:
    """
    A request could not even be encoded.

    Attributes:
        number: Which request.
        error: Why, for its asker.
    """

    number: int
    error: NameServiceError


@frozen(kw_only=True)
class ContenderAdded:
    """A contender wants to lead *component_id*."""

    contender_id: str
    component_id: str
    confirm_timeout_ns: int


@frozen(kw_only=True)
class ContenderRemoved:
    """A contender has stopped; *call_id* is completed once the server knows."""

    contender_id: str
    call_id: int
    deadline_ns: int


@frozen(kw_only=True)
class ConfirmAsked:
    """A contender confirms its leadership; *call_id* waits for the answer."""

    contender_id: str
    leader_session_id: UUID
    address: str
    call_id: int
    deadline_ns: int


@frozen(kw_only=True)
class RevokeReturned:
    """A contender's revoke callback has returned."""

    contender_id: str


@frozen(kw_only=True)
class RetrieverAdded:
    """A retriever wants to hear of *component_id*."""

    retriever_id: int
    component_id: str


@frozen(kw_only=True)
class RetrieverRemoved:
    """A retriever wants to hear no more."""

    retriever_id: int


@frozen(kw_only=True)
class CallAsked:
    """
    A request of which the caller wants the answer.

    Attributes:
        call_id: Drawn by the shell; never used before.
        body: The request.
        deadline_ns: When to give up.
        is_repeatable: Whether sending it twice does what sending it once does.
    """

    call_id: int
    body: RequestBody
    deadline_ns: int
    is_repeatable: bool


@frozen(kw_only=True)
class CloseAsked:
    """Everything has stopped: end the session, and complete *call_id*."""

    call_id: int
    deadline_ns: int


ClientEvent: TypeAlias = (
    TimeWentBy
    | LinkOpened
    | LinkClosed
    | BroadcastsReached
    | MessageReceived
    | SendFailed
    | ContenderAdded
    | ContenderRemoved
    | ConfirmAsked
    | RevokeReturned
    | RetrieverAdded
    | RetrieverRemoved
    | CallAsked
    | CloseAsked
)


# -- what to do ----------------------------------------------------------------------


@frozen(kw_only=True)
class SendMessage:
    """Send *message* if the link takes it; what is lost is sent again by itself."""

    message: ToServer


@frozen(kw_only=True)
class AnnounceSession:
    """A session is open; connect to where *welcome* says that changes are published."""

    welcome: Welcome


@frozen(kw_only=True)
class FailOpening:
    """The server does not want us; the opener of the client must hear of it."""

    error: NameServiceError


@frozen(kw_only=True)
class JoinTopic:
    """Listen for broadcasts of *component_id*."""

    component_id: str


@frozen(kw_only=True)
class LeaveTopic:
    """Stop listening for broadcasts of *component_id*."""

    component_id: str


@frozen(kw_only=True)
class DeliverToContender:
    """Hand a grant or a revocation to a contender's election."""

    contender_id: str
    effect: DeliverGrant | DeliverRevoke


@frozen(kw_only=True)
class ReportToContender:
    """Tell a contender why it is not in the queue, or is there in vain."""

    contender_id: str
    error: NameServiceError


@frozen(kw_only=True)
class DeliverToRetriever:
    """Hand news to a retriever."""

    retriever_id: int
    event: RetrieverEvent


@frozen(kw_only=True)
class ReportToRetriever:
    """Tell a retriever why it hears nothing."""

    retriever_id: int
    error: NameServiceError


@frozen(kw_only=True)
class CompleteCall:
    """
    Answer a caller: with *reply*, or with *error*.

    Attributes:
        call_id: Whose call it is.
        reply: What the server answered; None where "done" is all there is to say.
        error: What to raise, or None.
    """

    call_id: int
    reply: ReplyBody | None = None
    error: NameServiceError | None = None


@frozen(kw_only=True)
class DeliverStoreChange:
    """The leader store of a component has changed since it was asked about last."""

    component_id: str


ClientEffect: TypeAlias = (
    DeliverStoreChange
    | SendMessage
    | AnnounceSession
    | FailOpening
    | JoinTopic
    | LeaveTopic
    | DeliverToContender
    | ReportToContender
    | DeliverToRetriever
    | ReportToRetriever
    | CompleteCall
)
