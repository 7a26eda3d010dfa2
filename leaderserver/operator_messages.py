"""What operators ask a LeaderServer, and have it do, and what it answers."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from leaderserver.message_parts import (
    NAME_LENGTH_MAX,
    Count,
    Identifier,
    Name,
    PublicationRecord,
    WireStruct,
)
from nameservice.fields import IDENTIFIER_LENGTH_MAX


__all__ = [
    "ComponentRecord",
    "ComponentsReply",
    "ContenderRecord",
    "ContendersReply",
    "ContendersRequest",
    "ExpireRequest",
    "LeadersRequest",
    "RevokeRequest",
    "RevokedReply",
    "SessionRecord",
    "SessionsReply",
    "SessionsRequest",
    "StatusReply",
    "StatusRequest",
    "TransferRequest",
    "TransferredReply",
]


class ContendersRequest(WireStruct, frozen=True, kw_only=True, tag="contenders"):
    """Ask for the contenders of a component."""

    component_id: Name


class LeadersRequest(WireStruct, frozen=True, kw_only=True, tag="leaders"):
    """Ask for the components whose id begins with *prefix*, sorted, after *after*."""

    prefix: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    after: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]


class SessionsRequest(WireStruct, frozen=True, kw_only=True, tag="sessions"):
    """Ask for the sessions, sorted by id, after *after*."""

    after: Annotated[str, Meta(max_length=IDENTIFIER_LENGTH_MAX)]


class StatusRequest(WireStruct, frozen=True, kw_only=True, tag="status"):
    """Ask for the server's figures."""


class RevokeRequest(WireStruct, frozen=True, kw_only=True, tag="revoke"):
    """End the present leadership of a component; for operators."""

    component_id: Name


class TransferRequest(WireStruct, frozen=True, kw_only=True, tag="transfer"):
    """Hand the leadership of a component to a contender; for operators."""

    component_id: Name
    contender_id: Identifier


class ExpireRequest(WireStruct, frozen=True, kw_only=True, tag="expire"):
    """End a session; for operators."""

    session_id: Identifier


class ContenderRecord(WireStruct, frozen=True, kw_only=True, tag="contender"):
    """One contender, for operators."""

    contender_id: str
    session_id: str
    address: str | None
    is_leader: bool
    session_age_ns: int
    last_heard_ns: int


class ContendersReply(WireStruct, frozen=True, kw_only=True, tag="contenders-reply"):
    """The contenders of a component, in order, the leader first."""

    contenders: list[ContenderRecord]


class ComponentRecord(WireStruct, frozen=True, kw_only=True, tag="component"):
    """One component, for operators."""

    component_id: str
    publication: PublicationRecord | None
    contender_count: int
    epoch: int


class ComponentsReply(WireStruct, frozen=True, kw_only=True, tag="components"):
    """Components, for operators; ask on after the last if not complete."""

    components: list[ComponentRecord]
    is_complete: bool


class SessionRecord(WireStruct, frozen=True, kw_only=True, tag="session"):
    """One session, for operators."""

    session_id: str
    client: str
    component_ids: list[str]
    leads_component_ids: list[str]
    age_ns: int
    last_heard_ns: int
    timeout_ns: int


class SessionsReply(WireStruct, frozen=True, kw_only=True, tag="sessions-reply"):
    """Sessions, for operators; ask on after the last if not complete."""

    sessions: list[SessionRecord]
    is_complete: bool


class StatusReply(WireStruct, frozen=True, kw_only=True, tag="status-reply"):
    """The server's figures by name."""

    figures: dict[str, str | int | float]


class RevokedReply(WireStruct, frozen=True, kw_only=True, tag="revoked-reply"):
    """The leadership that an operator's request has ended."""

    leader_session_id: UUID
    epoch: Count


class TransferredReply(WireStruct, frozen=True, kw_only=True, tag="transferred"):
    """
    A contender is next to lead, or leads already.

    *epoch* and *leader_session_id* name the leadership that was ended for it: 0 and
    None if there was none to end.
    """

    leader_session_id: UUID | None
    epoch: Count
