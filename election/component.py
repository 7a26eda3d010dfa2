"""
One component: its queue of contenders, its leadership, what is published of it.

::

    nobody ──grant──► granted ──confirm──► confirmed
      ▲                 │                      │
      │                 └────────end───────────┤
      └──barrier passed, or holder is out──────┘

Between the end of a leadership and the next grant stands the *barrier*: one lease
after the last affirmation, before which the old holder might still believe.  It falls
early when the holder has closed or has acknowledged its revocation (rule E4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final
from uuid import UUID

from attrs import define

from election.effects import Affirmation
from retrieval.information import LeaderInformation, Publication


if TYPE_CHECKING:
    from election.events import ClaimReported


__all__ = ["Component", "Contender", "Leadership"]


@define(kw_only=True)
class Contender:
    """
    One place in the queue.

    Attributes:
        contender_id: Its id.
        session_id: Whose it is.
        ticket: Its place: the lower, the earlier.
        confirm_timeout_ns: How long it may take to confirm.
        claim: What it claimed while the core is undecided, else None.
    """

    contender_id: str
    session_id: str
    ticket: int
    confirm_timeout_ns: int
    claim: ClaimReported | None = None


@define(kw_only=True)
class Leadership:
    """
    What one contender was granted.

    Attributes:
        contender_id: Whose it is.
        session_id: The session of that contender.
        leader_session_id: Its identity.
        epoch: Its order.
        lease_ns: How long the holder believes at the most after an affirmation.
        last_affirmed_ns: When the holder was last told that it leads.
        confirm_deadline_ns: When it is revoked if it has not confirmed.
        confirm_count: How often it has been confirmed.
        address: What was confirmed last, or None.
    """

    contender_id: str
    session_id: str
    leader_session_id: UUID
    epoch: int
    lease_ns: int
    last_affirmed_ns: int
    confirm_deadline_ns: int
    confirm_count: int = 0
    address: str | None = None

    @property
    def is_confirmed(self) -> bool:
        """Return whether retrievers may see it."""
        return self.address is not None

    @property
    def barrier_ns(self) -> int:
        """Return when its holder believes no longer, whatever happens."""
        return self.last_affirmed_ns + self.lease_ns


@final
@define(kw_only=True)
class Component:
    """
    One component.  Plain data; `ElectionCore` alone changes it.

    Attributes:
        component_id: What is being led.
        contenders: By contender id, in no particular order; see `in_order`.
        leadership: The present one, or None.
        epoch_max: The highest epoch granted, recorded or reported; 0 for none.
        is_epoch_max_ended: Whether somebody was told that *epoch_max* is over.
        barrier_ns: Nobody is granted before this.
        barrier_epoch: Whose acknowledgement lets the barrier fall.
        publication: What was published last, or None.
    """

    component_id: str
    contenders: dict[str, Contender]
    leadership: Leadership | None = None
    epoch_max: int = 0
    is_epoch_max_ended: bool = False
    barrier_ns: int = 0
    barrier_epoch: int = 0
    publication: Publication | None = None

    def in_order(self) -> list[Contender]:
        """Return the contenders in the order in which they are granted."""
        return sorted(
            self.contenders.values(),
            key=lambda contender: (contender.ticket, contender.contender_id),
        )

    def affirmation(self) -> Affirmation:
        """Return the present leadership as its session is told of it."""
        leadership = self.leadership
        assert leadership is not None
        return Affirmation(
            component_id=self.component_id,
            contender_id=leadership.contender_id,
            leader_session_id=leadership.leader_session_id,
            epoch=leadership.epoch,
        )

    def present(self) -> Publication:
        """Return what the present leadership publishes; it must be confirmed."""
        leadership = self.leadership
        assert leadership is not None
        assert leadership.address is not None
        return Publication(
            epoch=leadership.epoch,
            confirm_count=leadership.confirm_count,
            leader=LeaderInformation(
                address=leadership.address,
                leader_session_id=leadership.leader_session_id,
                epoch=leadership.epoch,
            ),
        )

    def is_idle(self, now_ns: int) -> bool:
        """Return whether forgetting it would lose nothing but its last epoch."""
        return (
            not self.contenders
            and self.leadership is None
            and now_ns >= self.barrier_ns
        )
