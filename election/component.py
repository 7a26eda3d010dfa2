"""
One component: its queue of contenders, its leadership, what is published of it.

::

    vacant ──grant──► granted ──confirm──► confirmed
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

from election.effects import (
    Affirmation,
    ElectionEffect,
    PublishLeader,
    RevokeLeadership,
)
from retrieval.information import LeaderInformation, Publication


if TYPE_CHECKING:
    from election.events import ClaimReported, LeadershipConfirmed
    from election.patience import Moment
    from election.sessions import Session


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
        last_affirmed_ns: When the holder was last told that it leads, in real time:
            its belief ends however long the core did not run.
        began: When it was granted.
        confirm_timeout_ns: How long after that it may take to confirm.
        is_reinstated: Whether an earlier server had granted it.
        is_recorded: Whether its epoch is on record, where epochs are recorded at all.
        confirm_count: How often it has been confirmed.
        address: What was confirmed last, or None.
        affirmation: How its session is told of it, once it was.
    """

    contender_id: str
    session_id: str
    leader_session_id: UUID
    epoch: int
    lease_ns: int
    last_affirmed_ns: int
    began: Moment
    confirm_timeout_ns: int
    is_reinstated: bool = False
    is_recorded: bool = True
    confirm_count: int = 0
    address: str | None = None
    affirmation: Affirmation | None = None

    @property
    def is_confirmed(self) -> bool:
        """Return whether retrievers may see it."""
        return self.address is not None

    @property
    def barrier_ns(self) -> int:
        """Return when its holder believes no longer, whatever happens."""
        return self.last_affirmed_ns + self.lease_ns

    def confirm_deadline_ns(self, now: Moment) -> int:
        """Return when, on the patient clock, it is revoked if it has not confirmed."""
        return self.began.due_ns(
            self.confirm_timeout_ns, grace_ns=self.lease_ns, now=now
        )


@final
@define(kw_only=True)
class Component:
    """
    One component; `ElectionCore` says when, its methods what follows.

    Attributes:
        component_id: What is being led.
        contenders: By contender id, in no particular order; see `in_order`.
        leadership: The present one, or None.
        epoch_max: The highest epoch granted, recorded or reported; 0 for none.
        is_epoch_max_ended: Whether somebody was told that *epoch_max* is over.
        barrier_ns: There is no grant before this, in real time.
        barrier_epoch: Which epoch's acknowledgement ends the barrier.
        barrier_contender_id: And whose: who held that epoch.
        publication: What was published last, or None.
    """

    component_id: str
    contenders: dict[str, Contender]
    leadership: Leadership | None = None
    epoch_max: int = 0
    is_epoch_max_ended: bool = False
    barrier_ns: int = 0
    barrier_epoch: int = 0
    barrier_contender_id: str = ""
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
        if leadership.affirmation is None:
            leadership.affirmation = Affirmation(
                component_id=self.component_id,
                contender_id=leadership.contender_id,
                leader_session_id=leadership.leader_session_id,
                epoch=leadership.epoch,
            )
        return leadership.affirmation

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

    # -- transitions ---------------------------------------------------------------

    def begin(
        self,
        contender: Contender,
        session: Session,
        *,
        leader_session_id: UUID,
        epoch: int,
        now: Moment,
        is_reinstated: bool = False,
        is_recorded: bool = True,
    ) -> None:
        """Give leadership to *contender*, whose session is *session*."""
        assert self.leadership is None
        self.epoch_max = epoch
        self.is_epoch_max_ended = False
        self.leadership = Leadership(
            contender_id=contender.contender_id,
            session_id=session.session_id,
            leader_session_id=leader_session_id,
            epoch=epoch,
            lease_ns=session.lease_ns,
            last_affirmed_ns=now.real_ns,
            began=now,
            confirm_timeout_ns=contender.confirm_timeout_ns,
            is_reinstated=is_reinstated,
            is_recorded=is_recorded,
        )

    def confirm(self, event: LeadershipConfirmed) -> tuple[ElectionEffect, ...] | None:
        """
        Take a confirmation.

        Returns:
            What follows; nothing if it was taken before; None if it is refused,
            because that leadership is not the present one.
        """
        leadership = self.leadership
        if (
            leadership is None
            or leadership.session_id != event.session_id
            or leadership.contender_id != event.contender_id
            or leadership.leader_session_id != event.leader_session_id
        ):
            return None
        if event.confirm_count <= leadership.confirm_count:
            return ()
        return self.publish(confirm_count=event.confirm_count, address=event.address)

    def publish(
        self, *, confirm_count: int, address: str
    ) -> tuple[ElectionEffect, ...]:
        """Tell retrievers of the present leadership, at *address*."""
        assert self.leadership is not None
        self.leadership.confirm_count = confirm_count
        self.leadership.address = address
        self.publication = self.present()
        return (self._publish_leader(self.publication),)

    def end(self, *, has_stopped: bool, is_told: bool) -> tuple[ElectionEffect, ...]:
        """
        End the present leadership.

        Args:
            has_stopped: Whether the holder itself says that it leads no longer: then
                there is nothing to wait for.
            is_told: Whether the holder must be told.
        """
        leadership = self.leadership
        assert leadership is not None
        affirmation = self.affirmation()
        self.leadership = None
        self.is_epoch_max_ended = True
        self.barrier_ns = 0 if has_stopped else leadership.barrier_ns
        self.barrier_epoch = leadership.epoch
        self.barrier_contender_id = leadership.contender_id
        effects = (
            self.publish_nobody(leadership.epoch) if leadership.is_confirmed else ()
        )
        if is_told:
            effects = (
                *effects,
                RevokeLeadership(
                    session_id=leadership.session_id, affirmation=affirmation
                ),
            )
        return effects

    def publish_nobody(self, epoch: int) -> tuple[ElectionEffect, ...]:
        """
        Tell retrievers that no leader is confirmed, unless they know or one is.

        Args:
            epoch: One that was reported, or is on record.  No server would know of any
                other after a crash (rule E2).
        """
        if self.leadership is not None and epoch >= self.leadership.epoch:
            # It would outrank what the leadership publishes once it is confirmed.  A
            # lower epoch would be news to no one who knows this one.
            return ()
        publication = Publication(epoch=epoch, confirm_count=0, leader=None)
        if self.publication is not None and publication.rank <= self.publication.rank:
            return ()
        self.publication = publication
        return (self._publish_leader(publication),)

    def _publish_leader(self, publication: Publication) -> ElectionEffect:
        return PublishLeader(component_id=self.component_id, publication=publication)

    # -- claims --------------------------------------------------------------------

    def take_claims(self) -> list[tuple[Contender, ClaimReported]]:
        """Return who claims what, in the order of the queue, and forget it."""
        claims = [
            (contender, contender.claim)
            for contender in self.in_order()
            if contender.claim is not None
        ]
        for contender in self.contenders.values():
            contender.claim = None
        return claims

    def is_outranked(self, claim: ClaimReported) -> bool:
        """Return whether a higher epoch than *claim*'s is known, or its end."""
        return (claim.epoch, False) < (self.epoch_max, self.is_epoch_max_ended)

    def refuse(self, contender: Contender, claim: ClaimReported) -> ElectionEffect:
        """Return how *contender* hears that what it claims is over."""
        return RevokeLeadership(
            session_id=contender.session_id,
            affirmation=Affirmation(
                component_id=self.component_id,
                contender_id=contender.contender_id,
                leader_session_id=claim.leader_session_id,
                epoch=claim.epoch,
            ),
        )
