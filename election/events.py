"""What happened: the inputs of `ElectionCore.step`."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from attrs import field, frozen, validators


__all__ = [
    "ClaimReported",
    "ConnectionClosed",
    "ContenderPreferred",
    "ContenderRegistered",
    "ContenderWithdrawn",
    "ElectionEvent",
    "EpochReported",
    "HeartbeatReceived",
    "LeadershipConfirmed",
    "LimitsChanged",
    "RevocationAcknowledged",
    "RevokeRequested",
    "SessionCloseRequested",
    "SessionExpireRequested",
    "SessionRequested",
    "TimePassed",
    "TransferRequested",
]


@frozen(kw_only=True)
class TimePassed:
    """Nothing but time."""


@frozen(kw_only=True)
class SessionRequested:
    """
    A client asks for a session.

    Attributes:
        session_id: Drawn by the shell; never used before.
        session_timeout_ns: Silence after which the session ends.
        lease_ns: At most half of *session_timeout_ns* and within the core's limit.
        client: Who it is, for operators.
    """

    session_id: str
    session_timeout_ns: int
    lease_ns: int
    client: str


@frozen(kw_only=True)
class HeartbeatReceived:
    """
    A session's heartbeat arrived.

    Attributes:
        session_id: Whose.
        number: Rises with every heartbeat of the session; the request for the
            session counts as number 0.
        acknowledged: The highest heartbeat whose acknowledgement the client had when
            it sent this; 0 for the opening of the session.
        is_late: Whether it came over a connection that is said to have closed.
    """

    session_id: str
    number: int
    acknowledged: int
    is_late: bool = False


@frozen(kw_only=True)
class ConnectionClosed:
    """The connection of a session closed: evidence of its death, no proof (E5)."""

    session_id: str


@frozen(kw_only=True)
class SessionCloseRequested:
    """The client has stopped everything and ends its session."""

    session_id: str


@frozen(kw_only=True)
class SessionExpireRequested:
    """An operator ends a session."""

    session_id: str


@frozen(kw_only=True)
class ClaimReported:
    """
    A leadership that a contender was granted before, by the server of that time (E9).

    Attributes:
        leader_session_id: Its identity.
        epoch: Its order.
        confirm_count: How often the holder confirmed it; 0 if never.
        address: What the holder confirmed last, or None.
    """

    leader_session_id: UUID
    epoch: int
    confirm_count: int
    address: str | None


@frozen(kw_only=True)
class ContenderRegistered:
    """
    A session enters a contender; repeating it changes nothing (E8).

    Attributes:
        session_id: Whose contender it is.
        component_id: What it wants to lead.
        contender_id: Its id, never used before.
        confirm_timeout_ns: How long it may take to confirm a grant.
        ticket: Its place in the queue of an earlier incarnation, or None.
        claim: A leadership that was not ended as far as it knows, or None.
    """

    session_id: str
    component_id: str
    contender_id: str
    confirm_timeout_ns: int
    ticket: int | None = None
    claim: ClaimReported | None = None


@frozen(kw_only=True)
class ContenderWithdrawn:
    """A contender leaves; if it led, it has stopped."""

    session_id: str
    component_id: str
    contender_id: str


@frozen(kw_only=True)
class LeadershipConfirmed:
    """A contender accepts its leadership and says where it is reached."""

    session_id: str
    component_id: str
    contender_id: str
    leader_session_id: UUID
    confirm_count: int
    address: str


@frozen(kw_only=True)
class RevocationAcknowledged:
    """A contender has stopped leading *epoch*, which was revoked."""

    session_id: str
    component_id: str
    contender_id: str
    epoch: int


@frozen(kw_only=True)
class EpochReported:
    """
    A client has seen *epoch* of a component, perhaps under an earlier server.

    Attributes:
        component_id: Of what.
        epoch: The highest that it has seen.
        is_ended: Whether it was told that the leadership of *epoch* is over.
    """

    component_id: str
    epoch: int
    is_ended: bool


@frozen(kw_only=True)
class RevokeRequested:
    """An operator ends the present leadership of a component."""

    component_id: str


@frozen(kw_only=True)
class ContenderPreferred:
    """A test wants this contender to lead: it goes first, the leader is revoked."""

    component_id: str
    contender_id: str


@frozen(kw_only=True)
class TransferRequested:
    """An operator hands leadership to a contender: it goes first, the holder last."""

    component_id: str
    contender_id: str


@frozen(kw_only=True)
class LimitsChanged:
    """
    There may be as many of each from now on; who is there stays.

    The names are those of `ElectionConfig`.
    """

    session_count_max: int = field(validator=validators.ge(1))
    contender_count_max: int = field(validator=validators.ge(1))
    contender_count_per_session_max: int = field(validator=validators.ge(1))
    component_count_max: int = field(validator=validators.ge(1))


ElectionEvent: TypeAlias = (
    TimePassed
    | SessionRequested
    | HeartbeatReceived
    | ConnectionClosed
    | SessionCloseRequested
    | SessionExpireRequested
    | ContenderRegistered
    | ContenderWithdrawn
    | LeadershipConfirmed
    | RevocationAcknowledged
    | EpochReported
    | RevokeRequested
    | ContenderPreferred
    | TransferRequested
    | LimitsChanged
)
