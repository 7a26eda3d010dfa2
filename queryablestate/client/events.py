"""
What happens to a client of queryable state, and what it is to do about it.

Of those that every question needs, none is ever changed, but they are not frozen:
making a frozen one costs three times as much, and a single get needs four.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from attrs import define, frozen

from nameservice.errors import NameServiceError
from queryablestate.client.requests import Request
from queryablestate.wire.clients import ClientRequest, ToClient
from queryablestate.wire.direct import AskNode, ShowTicket


__all__ = [
    "TIME_WENT",
    "AskWhoLeads",
    "ClientClosed",
    "CompleteRequests",
    "ConnectNode",
    "ConnectTo",
    "ConnectionFailed",
    "ConnectionMade",
    "ConnectionRefused",
    "Disconnect",
    "DisconnectNode",
    "LeaderTold",
    "MessageCame",
    "NodeConnected",
    "NodeFailed",
    "QueryEffect",
    "QueryEvent",
    "RequestsAsked",
    "RequestsDropped",
    "SayHello",
    "SendRequest",
    "TimeWent",
]


# -- what happened -------------------------------------------------------------------


@frozen
class TimeWent:
    """Nothing but time."""


TIME_WENT: Final = TimeWent()


@define
class RequestsAsked:
    """The application asks; what is given together is sent together."""

    requests: Sequence[Request]


@frozen(kw_only=True)
class RequestsDropped:
    """No caller waits for these requests any more."""

    requests: Sequence[Request]


@frozen(kw_only=True)
class LeaderTold:
    """
    The name service says who is the proxy leader.

    Attributes:
        address: Where, or None if no proxy leads.
        epoch: Of that leadership; 0 if no proxy leads.
        problem: Why the name service could not be asked, or None.
        is_known: False if the name service is open, and has told of no leader so far.
    """

    address: str | None
    epoch: int = 0
    problem: NameServiceError | None = None
    is_known: bool = True


@frozen
class ConnectionMade:
    """The proxy that was to be connected to is, and messages can flow."""


@frozen(kw_only=True)
class ConnectionFailed:
    """
    There is no connection, or no longer; the shell has closed its socket.

    Attributes:
        problem: What was seen, or None.
    """

    problem: NameServiceError | None = None


@frozen(kw_only=True)
class ConnectionRefused:
    """We are not admitted, and trying again at once would not help; likewise closed."""

    error: NameServiceError


@define
class MessageCame:
    """
    The proxy, or a node, sent a message.

    Attributes:
        message: The message.
        payload: Its second frame, empty if it has none.
        link: The connection to the node (`ConnectNode`); 0 if it was the proxy.
    """

    message: ToClient
    payload: bytes | memoryview = b""
    link: int = 0


@frozen(kw_only=True)
class NodeConnected:
    """The node that was to be connected to is, and messages can flow."""

    link: int


@frozen(kw_only=True)
class NodeFailed:
    """
    There is no connection to a node, or no longer; the shell has closed its socket.

    Attributes:
        link: Which connection.
        is_refused: Whether trying again soon would not help.
    """

    link: int
    is_refused: bool = False


@frozen
class ClientClosed:
    """The application is done: whatever waits is answered now."""


QueryEvent: TypeAlias = (
    ClientClosed
    | ConnectionFailed
    | ConnectionMade
    | ConnectionRefused
    | LeaderTold
    | MessageCame
    | NodeConnected
    | NodeFailed
    | RequestsAsked
    | RequestsDropped
    | TimeWent
)


# -- what to do ----------------------------------------------------------------------


@frozen
class AskWhoLeads:
    """Ask the name service: the address that was given first does not do."""


@frozen(kw_only=True)
class ConnectTo:
    """Open a socket to this address; what comes of it is an event."""

    address: str


@frozen
class Disconnect:
    """Close the socket; nothing is to be heard of it."""


@frozen(kw_only=True)
class ConnectNode:
    """
    Open a socket to a node; what comes of it is an event.

    Attributes:
        link: What the connection is called: no other one ever is.
        address: Where the node is.
    """

    link: int
    address: str


@frozen(kw_only=True)
class DisconnectNode:
    """Close the socket to a node; nothing is to be heard of it."""

    link: int


@frozen(kw_only=True)
class SayHello:
    """Send a `Hello` with the credential, which only the shell knows."""

    request_id: int


@define
class SendRequest:
    """
    Send a message.

    Attributes:
        message: The envelope.
        keys: The second frame, to be encoded; None if there is none.
        link: The connection to the node that it goes to; 0 for the proxy.
    """

    message: ClientRequest | ShowTicket | AskNode
    keys: Sequence[bytes] | None = None
    link: int = 0


@define
class CompleteRequests:
    """These requests are done: tell those who wait."""

    requests: Sequence[Request]


QueryEffect: TypeAlias = (
    AskWhoLeads
    | CompleteRequests
    | ConnectNode
    | ConnectTo
    | Disconnect
    | DisconnectNode
    | SayHello
    | SendRequest
)
