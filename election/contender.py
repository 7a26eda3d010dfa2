"""Who wants to lead, and what it is granted."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from attrs import frozen


__all__ = ["ContenderInformation", "LeaderContender", "LeaderSession"]


@frozen(kw_only=True)
class LeaderSession:
    """
    One leadership, as its holder is granted it and shows it to the leader store.

    Attributes:
        leader_session_id: Its identity; says "same or not" and carries no order.
        epoch: Its order, at least 1 and above every earlier one of the component:
            the fencing token (rule E2).  Epochs of different backends do not compare.
    """

    leader_session_id: UUID
    epoch: int


class LeaderContender(Protocol):
    """
    Competes to lead one component.

    Its methods are called one at a time, in order, on a thread of the election, and
    never under a lock of ours.  Grant and revoke strictly alternate (rule E6).  What
    one of them raises goes to its own `handle_error`.
    """

    def grant_leadership(self, session: LeaderSession) -> None:
        """
        Become the leader under *session*.

        Prepare what leading needs, then call ``LeaderElection.confirm_leadership``,
        here or later on any thread: a leader that has not confirmed is not found.
        """

    def revoke_leadership(self) -> None:
        """
        Stop leading; the successor waits for the return, but not for ever.

        The election believes no longer when this is called.  On ``close`` the leader
        store still takes writes meanwhile.
        """

    def handle_error(self, error: Exception) -> None:
        """Record *error*: the election's, or one that a callback raised."""


@frozen(kw_only=True)
class ContenderInformation:
    """
    One contender as operators see it.

    Attributes:
        contender_id: Its id, unique for ever.
        session_id: The session with the name service that it belongs to.
        address: The address that it confirmed, or None while it has confirmed none.
        is_leader: Whether it has been granted leadership and still holds it.
        session_age_seconds: How long its session has existed.
        last_heard_seconds: How long ago its session was last heard from; None where
            the name service does not tell.
    """

    contender_id: str
    session_id: str
    address: str | None
    is_leader: bool
    session_age_seconds: float | None
    last_heard_seconds: float | None
