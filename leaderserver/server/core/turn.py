"""One call of a `LeaderService`: what it sends, and whom it answers; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from attrs import Factory, define, frozen

from leaderserver.messages import Published, ToClient
from leaderserver.server.core.audit import AuditedRequest
from leaderserver.server.core.client_table import ServedClient


if TYPE_CHECKING:
    from collections.abc import Hashable

    from leaderserver.messages import BatchedReply


__all__ = ["Broadcast", "Outgoing", "Send", "Turn"]


@frozen(kw_only=True)
class Send:
    """Send *message* to the client that is reached at *peer*."""

    peer: Hashable
    message: ToClient


@frozen(kw_only=True)
class Broadcast:
    """Send *message* once, to all who subscribed to its component."""

    message: Published


Outgoing: TypeAlias = Send | Broadcast


@define(kw_only=True)
class Turn:
    """
    One call of the service: what it sends, and whom it answers.

    Attributes:
        now_ns: When it is.
        outgoing: What to send so far.
        answer_to: The client and number of the request being handled, or None.
        batched: The answers so far while a batch is being handled, else None.
        is_overtaken: Whether newer heartbeats may have been taken before the request.
        audited: That request, if its answer is written down for operators.
    """

    now_ns: int
    outgoing: list[Outgoing] = Factory(list)
    answer_to: tuple[ServedClient, int] | None = None
    batched: list[BatchedReply] | None = None
    is_overtaken: bool = False
    audited: AuditedRequest | None = None
