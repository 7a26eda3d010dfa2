"""
What to do: the outputs of `ElectionCore.step`, to be performed in their order.

Two orders carry meaning.  `RecordEpoch` comes before the grant that it protects: an
epoch that a crash forgets could be granted twice (E2).  `PublishLeader` without a
leader comes before the grant to a successor: retrievers hear of the end first (R2).
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias
from uuid import UUID

from attrs import frozen

from retrieval.information import Publication


__all__ = [
    "AcceptConfirmation",
    "AcceptRegistration",
    "AcknowledgeHeartbeat",
    "Affirmation",
    "CloseSession",
    "ElectionEffect",
    "GrantLeadership",
    "OpenSession",
    "PublishLeader",
    "RecordEpoch",
    "RefuseConfirmation",
    "RefuseEpoch",
    "RefuseRegistration",
    "RefuseSession",
    "RegistrationRefusal",
    "RevokeLeadership",
    "SessionEnd",
]


class SessionEnd(Enum):
    """Why a session ended."""

    CLOSED = "closed"
    CONNECTION_CLOSED = "connection-closed"
    SILENT = "silent"
    EXPIRED_BY_OPERATOR = "expired-by-operator"


class RegistrationRefusal(Enum):
    """Why a contender was not entered."""

    UNKNOWN_SESSION = "unknown-session"
    TOO_MANY_CONTENDERS = "too-many-contenders"
    TOO_MANY_COMPONENTS = "too-many-components"
    TAKEN_BY_ANOTHER_SESSION = "taken-by-another-session"


@frozen(kw_only=True)
class Affirmation:
    """One leadership that its session holds, as the session is told of it."""

    component_id: str
    contender_id: str
    leader_session_id: UUID
    epoch: int


@frozen(kw_only=True)
class OpenSession:
    """Tell the client that its session exists."""

    session_id: str


@frozen(kw_only=True)
class RefuseSession:
    """Tell the client that there are too many sessions already."""

    session_id: str


@frozen(kw_only=True)
class CloseSession:
    """Forget everything about a session, and tell its client if it is still there."""

    session_id: str
    reason: SessionEnd


@frozen(kw_only=True)
class AcknowledgeHeartbeat:
    """
    Answer a heartbeat.

    Attributes:
        session_id: To whom.
        number: Which heartbeat.
        affirmations: Every leadership that the session holds; one that is missing
            has ended.  Empty and without meaning while undecided.
        is_undecided: Whether the core does not know yet who led before it (E9).
    """

    session_id: str
    number: int
    affirmations: tuple[Affirmation, ...]
    is_undecided: bool


@frozen(kw_only=True)
class RecordEpoch:
    """Make *epoch* durable before anything that follows is done."""

    component_id: str
    epoch: int


@frozen(kw_only=True)
class GrantLeadership:
    """
    Tell a session that its contender leads.

    Attributes:
        session_id: To whom.
        affirmation: The leadership.
        heartbeat_number: The session's newest heartbeat: the holder believes from
            *its* send, for the grant is its answer (E4).
    """

    session_id: str
    affirmation: Affirmation
    heartbeat_number: int


@frozen(kw_only=True)
class RevokeLeadership:
    """Tell a session that its contender's leadership is over."""

    session_id: str
    affirmation: Affirmation


@frozen(kw_only=True)
class PublishLeader:
    """Tell everybody who subscribed to *component_id*."""

    component_id: str
    publication: Publication


@frozen(kw_only=True)
class AcceptRegistration:
    """Answer a registration: the contender is in the queue under *ticket*."""

    session_id: str
    component_id: str
    contender_id: str
    ticket: int


@frozen(kw_only=True)
class RefuseRegistration:
    """Answer a registration: it changed nothing."""

    session_id: str
    component_id: str
    contender_id: str
    reason: RegistrationRefusal


@frozen(kw_only=True)
class AcceptConfirmation:
    """Answer a confirmation: it is published."""

    session_id: str
    component_id: str


@frozen(kw_only=True)
class RefuseConfirmation:
    """
    Answer a confirmation: it changed nothing for anybody.

    Attributes:
        session_id: To whom.
        component_id: Of what.
        is_undecided: Whether to try again later rather than to give up (E9).
    """

    session_id: str
    component_id: str
    is_undecided: bool


@frozen(kw_only=True)
class RefuseEpoch:
    """Record that somebody reported an epoch that no clock can have made (E2)."""

    component_id: str
    epoch: int


ElectionEffect: TypeAlias = (
    OpenSession
    | RefuseSession
    | CloseSession
    | AcknowledgeHeartbeat
    | RecordEpoch
    | GrantLeadership
    | RevokeLeadership
    | PublishLeader
    | AcceptRegistration
    | RefuseRegistration
    | AcceptConfirmation
    | RefuseConfirmation
    | RefuseEpoch
)
