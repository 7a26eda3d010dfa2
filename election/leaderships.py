"""
`Leaderships`: who leads each component, and who comes next (rules E1 to E4, E9).

The core says what has happened; what follows for a component is worked out here, and
returned in the order in which it is to be done.  Whatever may have made a grant
possible ends in `Leaderships.grant`: the first contender in the queue that was heard
from within its lease is granted, once the barrier has passed and the core is decided.

What an earlier server granted arrives as claims, until `Leaderships.decide`, and as
reports at any time.  The highest claim is reinstated unless a higher epoch is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final
from uuid import uuid5

from election.component import Component, Contender, Leadership
from election.deadlines import Deadlines
from election.effects import (
    AcceptConfirmation,
    ElectionEffect,
    GrantLeadership,
    RecordEpoch,
    RefuseConfirmation,
    RefuseEpoch,
)
from election.epochs import EVERY_COMPONENT
from election.events import EpochReported


if TYPE_CHECKING:
    from collections.abc import Mapping

    from election.config import ElectionConfig
    from election.epochs import EpochSource
    from election.events import (
        ClaimReported,
        ContenderPreferred,
        ContenderRegistered,
        ContenderWithdrawn,
        LeadershipConfirmed,
        RevocationAcknowledged,
        TransferRequested,
    )
    from election.patience import PatientClock
    from election.sessions import Session, SessionTable


__all__ = ["Leaderships"]

_COMPONENT: Final = "component"


@final
class Leaderships:
    """
    The components, their contenders and who leads.

    Args:
        config: The limits.
        epochs: Where epochs come from.
        recorded_epochs: The highest on record, as `ElectionCore` is given them.
        sessions: Whose contenders they are; only those lists of them change here.
        clock: What time it is.
        waits: What is waited for with patience: `review` is to be called when a
            deadline of a component is reached.

    Attributes:
        config: The limits of the moment.
        components: By id; to be read.
        barriers: When, in real time, `pass_barriers` is to be called.
        is_undecided: Whether claims are still being collected (E9).
        grant_count: How many leaderships were granted or reinstated.
    """

    def __init__(
        self,
        config: ElectionConfig,
        *,
        epochs: EpochSource,
        recorded_epochs: Mapping[str, int],
        sessions: SessionTable,
        clock: PatientClock,
        waits: Deadlines,
    ) -> None:
        self._epochs = epochs
        self._recorded_epochs = dict(recorded_epochs)
        self._epoch_floor = self._recorded_epochs.pop(EVERY_COMPONENT, 0)
        self._sessions = sessions
        self._clock = clock
        self._waits = waits
        self._ticket = 0
        self.config = config
        self.components: dict[str, Component] = {}
        self.barriers = Deadlines()
        self.is_undecided = config.undecided_ns > 0
        self.grant_count = 0
        for epoch in (self._epoch_floor, *self._recorded_epochs.values()):
            epochs.observe(epoch)

    def in_order(self) -> list[Component]:
        """Return the components, sorted by id."""
        return [self.components[name] for name in sorted(self.components)]

    def admits(self, epoch: int) -> bool:
        """Return whether some clock can have made *epoch*: others hide no claim."""
        return self._epochs.admits(epoch, now_ns=self._clock.now.real_ns)

    def has_room(self) -> bool:
        """Return whether one more may be opened; forget idle ones if it takes that."""
        if len(self.components) >= self.config.component_count_max:
            now_ns = self._clock.now.real_ns
            for component_id in list(self.components):
                if self.components[component_id].is_idle(now_ns):
                    # Epochs are drawn from one counter for all components, so what is
                    # granted later is above the epoch that we forget here.
                    del self.components[component_id]
                    self._waits.set((_COMPONENT, component_id), None)
                    self.barriers.set((_COMPONENT, component_id), None)
        return len(self.components) < self.config.component_count_max

    def open(self, component_id: str) -> Component:
        """Return a new component, with what is on record of it."""
        component = Component(
            component_id=component_id,
            contenders={},
            epoch_max=max(
                self._recorded_epochs.get(component_id, 0), self._epoch_floor
            ),
        )
        self.components[component_id] = component
        return component

    # -- the queues ----------------------------------------------------------------

    def enter(
        self, session: Session, component: Component, event: ContenderRegistered
    ) -> Contender:
        """Return a new contender of *session* in the queue of *component*."""
        keeps_place = self.is_undecided and event.ticket is not None
        if keeps_place and event.ticket is not None:
            ticket = event.ticket
        else:
            ticket = self._next_ticket()
        contender = Contender(
            contender_id=event.contender_id,
            session_id=session.session_id,
            ticket=ticket,
            confirm_timeout_ns=event.confirm_timeout_ns,
            claim=event.claim if self.is_undecided else None,
        )
        component.contenders[event.contender_id] = contender
        session.contenders[event.component_id, event.contender_id] = None
        return contender

    def withdraw(self, event: ContenderWithdrawn) -> tuple[ElectionEffect, ...]:
        """Take a contender out of its queue."""
        component = self.components.get(event.component_id)
        if component is None:
            return ()
        contender = component.contenders.get(event.contender_id)
        if contender is None or contender.session_id != event.session_id:
            return ()
        ended: tuple[ElectionEffect, ...] = ()
        leadership = component.leadership
        if leadership is not None and leadership.contender_id == event.contender_id:
            ended = component.end(has_stopped=True, is_told=False)
        reported = self.leave(component, event.contender_id)
        session = self._sessions.get(event.session_id)
        assert session is not None
        del session.contenders[event.component_id, event.contender_id]
        return (*ended, *reported, *self.grant(component))

    def leave(
        self, component: Component, contender_id: str
    ) -> tuple[ElectionEffect, ...]:
        """
        Take a contender out of the queue of *component*.

        What it claims is over, and was granted all the same: nothing below it may be
        reinstated or granted.
        """
        claim = component.contenders.pop(contender_id).claim
        if claim is None:
            return ()
        return self.take_report(
            EpochReported(
                component_id=component.component_id, epoch=claim.epoch, is_ended=True
            )
        )

    def prefer(self, event: ContenderPreferred) -> tuple[ElectionEffect, ...]:
        """Put a contender first; the present leader keeps its place after it."""
        component = self.components.get(event.component_id)
        if component is None or event.contender_id not in component.contenders:
            return ()
        leadership = component.leadership
        if leadership is not None and leadership.contender_id == event.contender_id:
            return ()
        first = component.in_order()[0]
        component.contenders[event.contender_id].ticket = first.ticket - 1
        ended: tuple[ElectionEffect, ...] = ()
        if leadership is not None:
            ended = component.end(has_stopped=False, is_told=True)
        return (*ended, *self.grant(component))

    def transfer(self, event: TransferRequested) -> tuple[ElectionEffect, ...]:
        """Put a contender first; the present leader queues last."""
        component = self.components.get(event.component_id)
        if component is None or event.contender_id not in component.contenders:
            return ()
        ended: tuple[ElectionEffect, ...] = ()
        leadership = component.leadership
        if leadership is not None:
            if leadership.contender_id == event.contender_id:
                return ()
            ended = component.end(has_stopped=False, is_told=True)
            self._queue_last(component, leadership.contender_id)
        first = component.in_order()[0]
        if first.contender_id != event.contender_id:
            component.contenders[event.contender_id].ticket = first.ticket - 1
        return (*ended, *self.grant(component))

    def revoke(self, component_id: str) -> tuple[ElectionEffect, ...]:
        """End a leadership for an operator; its contender queues last."""
        component = self.components.get(component_id)
        if component is None or component.leadership is None:
            return ()
        contender_id = component.leadership.contender_id
        ended = component.end(has_stopped=False, is_told=True)
        self._queue_last(component, contender_id)
        return (*ended, *self.grant(component))

    def _queue_last(self, component: Component, contender_id: str) -> None:
        component.contenders[contender_id].ticket = self._next_ticket()

    def _next_ticket(self) -> int:
        """Return a ticket after all of this incarnation and of every earlier one."""
        self._ticket += 1
        return self._epochs.incarnation << 32 | self._ticket

    # -- leaderships ---------------------------------------------------------------

    def grant(self, component: Component) -> tuple[ElectionEffect, ...]:
        """Grant leadership if it is free, its last belief is over, and one contends."""
        granted: tuple[ElectionEffect, ...] = ()
        now = self._clock.now
        if (
            component.leadership is None
            and not self.is_undecided
            and now.real_ns >= component.barrier_ns
        ):
            for contender in component.in_order():
                session = self._sessions.get(contender.session_id)
                assert session is not None
                if session.may_be_granted(now):
                    epoch = self._epochs.draw(above=component.epoch_max)
                    name = f"{component.component_id}/{epoch}"
                    component.begin(
                        contender,
                        session,
                        leader_session_id=uuid5(self.config.namespace, name),
                        epoch=epoch,
                        now=now,
                    )
                    granted = self._tell_grant(component, session)
                    break
        self._arm(component)
        return granted

    def _tell_grant(
        self, component: Component, session: Session
    ) -> tuple[ElectionEffect, ...]:
        affirmation = component.affirmation()
        self.grant_count += 1
        return (
            RecordEpoch(component_id=component.component_id, epoch=affirmation.epoch),
            GrantLeadership(
                session_id=session.session_id,
                affirmation=affirmation,
                heartbeat_number=session.heartbeat_number,
            ),
        )

    def confirm(self, event: LeadershipConfirmed) -> tuple[ElectionEffect, ...]:
        """Publish what was confirmed, or refuse it."""
        component = self.components.get(event.component_id)
        published = None if component is None else component.confirm(event)
        if component is None or published is None:
            refused = RefuseConfirmation(
                session_id=event.session_id,
                component_id=event.component_id,
                is_undecided=self.is_undecided,
            )
            return (refused,)
        self._arm(component)
        accepted = AcceptConfirmation(
            session_id=event.session_id, component_id=event.component_id
        )
        return (*published, accepted)

    def acknowledge_revocation(
        self, event: RevocationAcknowledged
    ) -> tuple[ElectionEffect, ...]:
        """Lift the barrier: the last holder has stopped."""
        component = self.components.get(event.component_id)
        if component is None:
            return ()
        contender = component.contenders.get(event.contender_id)
        if (
            contender is None
            or contender.session_id != event.session_id
            or component.leadership is not None
            or component.barrier_epoch != event.epoch
            or component.barrier_contender_id != event.contender_id
        ):
            return ()
        component.barrier_ns = 0
        return self.grant(component)

    # -- time ----------------------------------------------------------------------

    def _arm(self, component: Component) -> None:
        """Set when this component must be looked at, apart from events."""
        key = (_COMPONENT, component.component_id)
        now = self._clock.now
        wait_ns: int | None = None
        barrier_ns: int | None = None
        leadership = component.leadership
        if leadership is not None:
            if not leadership.is_confirmed:
                holder = self._sessions.get(leadership.session_id)
                assert holder is not None
                wait_ns = min(
                    leadership.confirm_deadline_ns(now), holder.silent_ns(now)
                )
        elif component.contenders and component.barrier_ns > now.real_ns:
            barrier_ns = component.barrier_ns
        self._waits.set(key, wait_ns)
        self.barriers.set(key, barrier_ns)

    def review(self, component_id: str) -> tuple[ElectionEffect, ...]:
        """End what is overdue in a component, whose leadership is not confirmed."""
        component = self.components[component_id]
        ended: tuple[ElectionEffect, ...] = ()
        leadership = component.leadership
        if leadership is not None and not leadership.is_confirmed:
            holder = self._sessions.get(leadership.session_id)
            assert holder is not None
            now = self._clock.now
            if leadership.confirm_deadline_ns(now) <= now.patient_ns:
                ended = component.end(has_stopped=False, is_told=True)
                self._queue_last(component, leadership.contender_id)
            elif not holder.is_heard(now):
                # It was silent for a lease, and keeps its place (E1).
                ended = component.end(has_stopped=False, is_told=True)
        return (*ended, *self.grant(component))

    def pass_barriers(self) -> list[ElectionEffect]:
        """Grant what waited for a barrier that has passed."""
        now_ns = self._clock.now.real_ns
        effects: list[ElectionEffect] = []
        while (key := self.barriers.pop_due(now_ns)) is not None:
            effects += self.grant(self.components[key[1]])
        return effects

    # -- what was before us --------------------------------------------------------

    def decide(self) -> list[ElectionEffect]:
        """Settle who leads: all that may believe have had time to say so (E9)."""
        self.is_undecided = False
        effects: list[ElectionEffect] = []
        for component in self.in_order():
            claims = component.take_claims()
            # max() keeps the first of equals: the earliest in the queue.
            best = max(
                (pair for pair in claims if self.admits(pair[1].epoch)),
                key=lambda pair: pair[1].epoch,
                default=None,
            )
            if best is not None and not component.is_outranked(best[1]):
                claims.remove(best)
                effects += self._reinstate(component, *best)
            elif component.epoch_max:
                component.is_epoch_max_ended = True
                effects += component.publish_nobody(component.epoch_max)
            effects += (component.refuse(*pair) for pair in claims)
            effects += self.grant(component)
        self._recorded_epochs.clear()
        return effects

    def _reinstate(
        self, component: Component, contender: Contender, claim: ClaimReported
    ) -> tuple[ElectionEffect, ...]:
        session = self._sessions.get(contender.session_id)
        assert session is not None
        self._epochs.observe(claim.epoch)
        component.begin(
            contender,
            session,
            leader_session_id=claim.leader_session_id,
            epoch=claim.epoch,
            is_reinstated=True,
            is_recorded=self._recorded_epochs.get(component.component_id)
            == claim.epoch,
            now=self._clock.now,
        )
        granted = self._tell_grant(component, session)
        if claim.address is None:
            return granted
        published = component.publish(
            confirm_count=claim.confirm_count, address=claim.address
        )
        return (*granted, *published)

    def take_report(self, event: EpochReported) -> tuple[ElectionEffect, ...]:
        """Heed that somebody has seen an epoch, which may outrank what we granted."""
        if not self.admits(event.epoch):
            return (RefuseEpoch(component_id=event.component_id, epoch=event.epoch),)
        component = self.components.get(event.component_id)
        if component is None:
            if not self.has_room():
                return ()  # the epochs that we draw are above it all the same
            component = self.open(event.component_id)
        self._epochs.observe(event.epoch)
        effects: list[ElectionEffect] = []
        known = (component.epoch_max, component.is_epoch_max_ended)
        if (event.epoch, event.is_ended) > known:
            leadership = component.leadership
            is_ending = leadership is not None and self._ends(leadership, event)
            if is_ending:
                # Somebody has seen a higher epoch than the present one, or has been
                # told that the present one is over: neither would take our news.  The
                # holder keeps its place and is granted afresh.
                effects += component.end(has_stopped=False, is_told=True)
            if leadership is None or is_ending:
                component.epoch_max = event.epoch
                component.is_epoch_max_ended = event.is_ended or not self.is_undecided
        if not self.is_undecided:
            published = component.publication
            if published is None or published.epoch < event.epoch:
                # The client that reports holds a leader of an earlier server's time,
                # whose end we have not published, and hears of no other.
                known_max = max(event.epoch, self._epoch_floor)
                effects += component.publish_nobody(known_max)
            effects += self.grant(component)
        return tuple(effects)

    def _ends(self, leadership: Leadership, event: EpochReported) -> bool:
        """
        Return whether a report that outranks the present *leadership* ends it.

        Where all epochs are on record there is no higher one.  What was reinstated and
        is not on record is no proof of that: the data directory of an earlier server
        was lost, and a later claimant may not have come in time.  What we have granted
        ourselves is over when we say so; of what an earlier server granted, others may
        have heard the end.
        """
        if event.epoch > leadership.epoch:
            return not (self.config.is_durable and leadership.is_recorded)
        return leadership.is_reinstated
