"""
What a client shows a node to ask it without the proxy, and what it asks; pure (D1, D2).

Theory of operation.  Nodes do not know who may read what.  The proxy leader does, and
gives a client a *ticket* with the route of a state: who asks, what for, until when.  It
is authenticated by a keyed digest (BLAKE2b).  The key is the secret that the leader
gives to nodes when it takes them in (`NodeRegistered.copy_secret`), for this purpose
alone: so a node can tell whether a ticket is one, and a client that has one can make no
other.  The secret is another one with each leader, and a node goes by the newest alone.

**Time.**  A ticket expires by the clock of the leader that made it.  A node knows that
clock from the acknowledgements of its heartbeats (`HeartbeatAcknowledged.leader_ms`),
and takes it for as late as it can be.  So no two clocks need to agree.

**Whose it is.**  With CURVE a ticket names the public key of the connection to the
proxy, and is worth nothing over a connection that has not proved to hold that key.
Without CURVE it is worth as much as a session's secret: who reads the network can read
what it names, until it expires.

A client shows a ticket under a number of its own (`ShowTicket`), once on each
connection, and names that number with each question (`AskNode`).
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from queryablestate.wire.questions import Operation
from queryablestate.wire.wire_struct import WireStruct


__all__ = [
    "ASK_PROXY",
    "NAMELESS_CALLER",
    "NOT_DIRECTLY",
    "TICKET_REFUSED",
    "AskNode",
    "DirectAccess",
    "DirectTicket",
    "SealedTicket",
    "ShowTicket",
    "open_ticket",
    "seal_ticket",
]

TICKET_REFUSED: Final = "ticket-refused"
"""The ticket is none, is not the asker's, or is over: get another with a route."""

ASK_PROXY: Final = "ask-proxy"
"""The node answers no client by itself at this moment: ask the proxy for a while."""

NOT_DIRECTLY: Final = "not-directly"
"""It does not answer *that* by itself: it takes too long, or would have to wait."""

NAMELESS_CALLER: Final = "anonymous"
"""What callers are called that proved nothing, because they need not."""

_DIGEST_SIZE_BYTES: Final = 32
_SIZE_BYTES_MAX: Final = 4_096
_PURPOSE: Final = b"lodestar-direct"
"""16 bytes at most: the secret is used for other purposes, too."""

SealedTicket: TypeAlias = Annotated[bytes, Meta(max_length=_SIZE_BYTES_MAX)]
_TicketId: TypeAlias = Annotated[int, Meta(ge=1)]


class DirectTicket(WireStruct, frozen=True, kw_only=True):
    """
    What a ticket says.

    Attributes:
        caller: Who asks, as the proxy's access list calls it.
        public_key: The CURVE key that must be proved, in Z85; None without CURVE.
        job_id: The job.
        state_number: The state.
        right: What may be done with it.
        leader_epoch: The leadership that gave it.
        assignment_version: The route that it came with.
        expires_ms: Until when, by the clock of that leader.
    """

    caller: str
    public_key: str | None
    job_id: str
    state_number: int
    leader_epoch: int
    assignment_version: int
    expires_ms: int
    right: Literal["read"] = "read"


class DirectAccess(WireStruct, frozen=True, kw_only=True):
    """
    How a client asks nodes itself; it comes with a route.

    Attributes:
        ticket: What it shows them.
        life_ms: How long that is worth something, from when it was given.
        addresses: Where each node of the route is; None for one that is to be asked
            through the proxy.
    """

    ticket: SealedTicket
    life_ms: Annotated[int, Meta(ge=1)]
    addresses: tuple[str | None, ...]


class ShowTicket(WireStruct, frozen=True, kw_only=True, tag="show-ticket"):
    """A client shows a ticket under *ticket_id*, in place of an earlier one."""

    ticket_id: _TicketId
    ticket: SealedTicket


class AskNode(
    WireStruct, frozen=True, kw_only=True, tag="ask-node", omit_defaults=True
):
    """
    A client asks a node; the second frame holds the keys, if any (see `questions`).

    The answer is a `Told` or a `Refusal`.

    Attributes:
        request_id: Names the answer.
        ticket_id: By which ticket.
        operation: What is asked.
        deadline_ms: How long an answer is worth something, from now.
        min_batch_id: The answer is to be as of this batch, or a later one; None for
            any.
        min_generation: Whose batch that is; None is the present generation.
    """

    request_id: int
    ticket_id: _TicketId
    operation: Operation
    deadline_ms: Annotated[int, Meta(ge=1)]
    min_batch_id: int | None = None
    min_generation: int | None = None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(DirectTicket)


def seal_ticket(secret: bytes, ticket: DirectTicket) -> bytes:
    """Return *ticket* as it is shown; *secret* is not empty."""
    assert secret
    content = _ENCODER.encode(ticket)
    return _digest(secret, content) + content


def open_ticket(secret: bytes, sealed: bytes) -> DirectTicket | None:
    """Return what *sealed* says if it was made with *secret*, else None."""
    content = sealed[_DIGEST_SIZE_BYTES:]
    if not secret or not compare_digest(
        sealed[:_DIGEST_SIZE_BYTES], _digest(secret, content)
    ):
        return None
    try:
        return _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # it was made by a leader of another version


def _digest(secret: bytes, content: bytes) -> bytes:
    return blake2b(
        content, key=secret, digest_size=_DIGEST_SIZE_BYTES, person=_PURPOSE
    ).digest()
