"""
What a retriever believes, without I/O.

Theory of operation
-------------------
News of one component comes over several ways (a snapshot, a broadcast, an answer to
a heartbeat) and may be lost, repeated or late.  `Publication.rank` orders it; only
what ranks higher is taken, so nothing older ever follows something newer (R3).

Contact with the name service is judged elsewhere and told here.  What the listener
should hold follows from both: the leader of the newest publication while there is
contact, else none.  It is told only when that differs from what it holds (R2).

::

    LOST ──ContactRestored──► CONNECTED ──ContactSuspended──► SUSPENDED
      ▲                         ▲    │                          │   │
      │                         └────┼───ContactRestored────────┘   │
      └──────────ContactLost─────────┴──────────ContactLost─────────┘
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, assert_never, final

from attrs import frozen


if TYPE_CHECKING:
    from retrieval.information import LeaderInformation, Publication


__all__ = [
    "ContactLost",
    "ContactRestored",
    "ContactSuspended",
    "NotifyLeader",
    "PublicationReceived",
    "RetrieverCore",
    "RetrieverEvent",
]


@frozen(kw_only=True)
class PublicationReceived:
    """The name service published something; perhaps not for the first time."""

    publication: Publication


@frozen(kw_only=True)
class ContactSuspended:
    """The name service has not been heard from for a while."""


@frozen(kw_only=True)
class ContactLost:
    """The session with the name service is over."""


@frozen(kw_only=True)
class ContactRestored:
    """
    The name service was asked anew, and has answered.

    Attributes:
        publication: Its answer, or None if there never was a leader.
    """

    publication: Publication | None


RetrieverEvent: TypeAlias = (
    PublicationReceived | ContactSuspended | ContactLost | ContactRestored
)


@frozen(kw_only=True)
class NotifyLeader:
    """Tell the listener; None means that there is no leader now."""

    leader: LeaderInformation | None


class _Contact(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@final
class RetrieverCore:
    """
    What one retriever of one component believes.

    Not thread-safe: one shell drives it.  Time plays no part in it.

    Args:
        clears_on_suspended: Whether the listener is told None as soon as contact is
            suspended (``on_suspended="clear"``) rather than when it is lost (R4).
    """

    def __init__(self, *, clears_on_suspended: bool) -> None:
        self._clears_on_suspended = clears_on_suspended
        self._contact = _Contact.LOST
        self._newest: Publication | None = None
        self._told: LeaderInformation | None = None

    @property
    def newest(self) -> Publication | None:
        """Return the highest publication taken so far."""
        return self._newest

    @property
    def told(self) -> LeaderInformation | None:
        """Return what the listener holds."""
        return self._told

    def step(self, event: RetrieverEvent) -> tuple[NotifyLeader, ...]:
        """Record *event*; return what to tell the listener."""
        match event:
            case PublicationReceived(publication=publication):
                self._take(publication)
            case ContactSuspended():
                if self._contact is _Contact.CONNECTED:
                    self._contact = _Contact.SUSPENDED
            case ContactLost():
                self._contact = _Contact.LOST
            case ContactRestored(publication=answer):
                self._contact = _Contact.CONNECTED
                if answer is not None:
                    self._take(answer)
            case _:
                assert_never(event)
        return self._tell()

    def _take(self, publication: Publication) -> None:
        if self._newest is None or publication.rank > self._newest.rank:
            self._newest = publication

    def _tell(self) -> tuple[NotifyLeader, ...]:
        leader = self._current()
        if _identity(leader) == _identity(self._told):
            return ()
        self._told = leader
        return (NotifyLeader(leader=leader),)

    def _current(self) -> LeaderInformation | None:
        if self._newest is None or self._contact is _Contact.LOST:
            return None
        if self._contact is _Contact.SUSPENDED and self._clears_on_suspended:
            return None
        return self._newest.leader


def _identity(leader: LeaderInformation | None) -> tuple[object, ...] | None:
    """Return what two values must share to be the same to a listener (R2)."""
    if leader is None:
        return None
    return (leader.address, leader.leader_session_id)
