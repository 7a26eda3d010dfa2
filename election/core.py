"""
`ElectionCore`: sessions, contenders and leaders without I/O.

Theory of operation
-------------------
Only this file sequences.  It owns a table of sessions (`sessions.py`), the components
(`component.py`) and their deadlines; every step first lets time do its work, then
takes the event, and returns what to do, in order.

*A leadership begins* when a component has no leadership, its barrier has passed, the
core is decided, and some contender has been heard from within its lease: the first
such in the order of registration (E1).  The epoch is recorded before the grant.

*A leadership ends* by the core's decision: its contender withdrew, its session ended,
it did not confirm in time, it was silent and unconfirmed for a lease, an operator
revoked it, or a higher epoch was reported.  From that step on it is affirmed no more.
The next grant waits for the barrier (E4).

*The core is undecided* for the longest lease after a start: somebody may still
believe that it leads under the core's predecessor.  Claims are collected meanwhile;
then the highest is reinstated, unless a higher epoch is known (E9).

*A stall* is a step that comes later than `next_deadline_ns` asked for by more than a
tick, the server's own setting: heartbeats may wait unread.  All patience with clients
is counted on a clock that stands still meanwhile (`patience.py`); barriers are counted
in real time.  While there are sessions the core asks to be stepped every tick, so that
no stall goes unseen.

Easy to get wrong: acknowledgements that arrive in another order than they were sent,
heartbeats that are older than they look, and a successor that expires in the same
instant as its predecessor.  The simulation looks for all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never, final
from uuid import UUID, uuid5

from attrs import evolve, field, frozen, validators

from election.component import Component, Contender, Leadership
from election.deadlines import Deadlines
from election.effects import (
    AcceptConfirmation,
    AcceptRegistration,
    AcknowledgeHeartbeat,
    CloseSession,
    ElectionEffect,
    GrantLeadership,
    OpenSession,
    RecordEpoch,
    RefuseConfirmation,
    RefuseEpoch,
    RefuseRegistration,
    RefuseSession,
    RegistrationRefusal,
    SessionEnd,
)
from election.epochs import EVERY_COMPONENT
from election.events import (
    ConnectionClosed,
    ContenderPreferred,
    ContenderRegistered,
    ContenderWithdrawn,
    ElectionEvent,
    EpochReported,
    HeartbeatReceived,
    LeadershipConfirmed,
    LimitsChanged,
    RevocationAcknowledged,
    RevokeRequested,
    SessionCloseRequested,
    SessionExpireRequested,
    SessionRequested,
    TimePassed,
    TransferRequested,
)
from election.patience import PatientClock
from election.sessions import Session, SessionTable
from retrieval.information import Publication


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from election.epochs import EpochSource
    from election.events import ClaimReported


__all__ = ["ElectionConfig", "ElectionCore"]

_TICK_NS: Final = 10_000_000
_COMPONENT: Final = "component"
_DECISION: Final = "decision"
_SESSION: Final = "session"


@frozen(kw_only=True)
class ElectionConfig:
    """
    The limits of an `ElectionCore`.

    Attributes:
        namespace: Random; what the core's leader session ids are derived from.
        undecided_ns: How long after its start the core neither grants nor affirms:
            the longest lease that it or its predecessor admits.
        session_count_max: How many sessions there may be.
        contender_count_max: How many contenders one component may have.
        contender_count_per_session_max: How many contenders one session may have: the
            answer to its heartbeats names every leadership.
        component_count_max: How many components may have contenders.
        is_durable: Whether all epochs that were granted are on record: then no report
            of a higher one ends a leadership, it only raises the next epoch (E9).
        tick_ns: How often the core asks to be stepped while anybody could suffer from
            a stall, and what is later by more than that is one: a fifth of the
            shortest lease that the server admits, whichever leases its clients have.
    """

    namespace: UUID
    undecided_ns: int = field(validator=validators.ge(0))
    session_count_max: int = field(default=10_000, validator=validators.ge(1))
    contender_count_max: int = field(default=1_000, validator=validators.ge(1))
    contender_count_per_session_max: int = field(
        default=1_000, validator=validators.ge(1)
    )
    component_count_max: int = field(default=100_000, validator=validators.ge(1))
    is_durable: bool = False
    tick_ns: int = field(default=_TICK_NS, validator=validators.ge(1))


@final
class ElectionCore:
    """
    Sessions, contenders and leaders: events and time in, effects out.

    Two cores given the same sequence of ``(event, now_ns)`` return the same effects
    and end in the same state.  Not thread-safe: one shell drives it.

    Args:
        config: Its limits.
        epochs: Where its epochs come from.
        recorded_epochs: The highest epoch on record for each component; the one for
            `EVERY_COMPONENT` is over, and so is every lower one, also where nothing
            is on record: a data directory was restored from a backup.
        now_ns: When it starts.
    """

    def __init__(
        self,
        config: ElectionConfig,
        *,
        epochs: EpochSource,
        recorded_epochs: Mapping[str, int],
        now_ns: int,
    ) -> None:
        self._config = config
        self._epochs = epochs
        self._now_ns = now_ns
        self._sessions = SessionTable()
        self._components: dict[str, Component] = {}
        self._recorded_epochs = dict(recorded_epochs)
        self._epoch_floor = self._recorded_epochs.pop(EVERY_COMPONENT, 0)
        # The barriers are in real time, all that is waited for on the patient clock.
        self._barriers = Deadlines()
        self._waits = Deadlines()
        self._clock = PatientClock(now_ns, tick_ns=config.tick_ns)
        self._started = self._clock.now
        self._ticket = 0
        self._is_undecided = config.undecided_ns > 0
        self._step_due_ns: int | None = None
        self._grant_count = 0
        if self._is_undecided:
            self._waits.set((_DECISION, ""), self._decision_ns())
        for epoch in (self._epoch_floor, *self._recorded_epochs.values()):
            epochs.observe(epoch)
        self._arm()

    # -- queries -------------------------------------------------------------------

    @property
    def is_undecided(self) -> bool:
        """Return whether claims are still being collected (E9)."""
        return self._is_undecided

    @property
    def incarnation(self) -> int:
        """Return the incarnation that the next epoch will carry."""
        return self._epochs.incarnation

    @property
    def grant_count(self) -> int:
        """Return how many leaderships were granted or reinstated."""
        return self._grant_count

    @property
    def stall_count(self) -> int:
        """Return how often the shell was found late."""
        return self._clock.stall_count

    @property
    def excused_ns(self) -> int:
        """Return for how long it was late in sum."""
        return self._clock.excused_ns

    @property
    def components(self) -> Sequence[Component]:
        """Return the components, sorted by id; to be read, never changed."""
        return [self._components[name] for name in sorted(self._components)]

    @property
    def sessions(self) -> Sequence[Session]:
        """Return the sessions, oldest first; to be read, never changed."""
        return tuple(self._sessions)

    def component(self, component_id: str) -> Component | None:
        """Return one component, to be read, or None if nothing is known of it."""
        return self._components.get(component_id)

    def session(self, session_id: str) -> Session | None:
        """Return one session, to be read, or None if it is over."""
        return self._sessions.get(session_id)

    def admits(self, epoch: int) -> bool:
        """Return whether some clock can have made *epoch*, as of the last step."""
        return self._is_possible(epoch)

    def may_be_granted(self, session_id: str) -> bool:
        """Return whether a session was heard from lately, as of the last step."""
        session = self._sessions.get(session_id)
        return session is not None and session.may_be_granted(self._clock.now)

    def publication(self, component_id: str) -> Publication | None:
        """Return what was published last of a component, or None."""
        component = self._components.get(component_id)
        return None if component is None else component.publication

    def leads(
        self, session_id: str, component_id: str, leader_session_id: UUID, epoch: int
    ) -> bool:
        """Return whether that leadership is the present one, and that session's own."""
        component = self._components.get(component_id)
        leadership = None if component is None else component.leadership
        return (
            leadership is not None
            and leadership.session_id == session_id
            and leadership.leader_session_id == leader_session_id
            and leadership.epoch == epoch
        )

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        return self._step_due_ns

    # -- the step ------------------------------------------------------------------

    def step(self, event: ElectionEvent, *, now_ns: int) -> tuple[ElectionEffect, ...]:
        """
        Let time pass until *now_ns*, then take *event*.

        Returns:
            What to do, to be done in this order.
        """
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        self._clock.advance(now_ns, due_ns=self._step_due_ns)
        effects: list[ElectionEffect] = []
        self._let_time_pass(effects)  # first: a late heartbeat must not revive
        match event:
            case TimePassed():
                pass
            case SessionRequested():
                self._open_session(event, effects)
            case HeartbeatReceived():
                self._heartbeat(event, effects)
            case ConnectionClosed(session_id=session_id):
                self._suspect(session_id)
            case SessionCloseRequested(session_id=session_id):
                self._end_session(session_id, SessionEnd.CLOSED, effects)
            case SessionExpireRequested(session_id=session_id):
                self._end_session(session_id, SessionEnd.EXPIRED_BY_OPERATOR, effects)
            case ContenderRegistered():
                self._register(event, effects)
            case ContenderWithdrawn():
                self._withdraw(event, effects)
            case LeadershipConfirmed():
                self._confirm(event, effects)
            case RevocationAcknowledged():
                self._acknowledge_revocation(event, effects)
            case EpochReported():
                self._take_report(event, effects)
            case RevokeRequested(component_id=component_id):
                self._revoke(component_id, effects)
            case ContenderPreferred():
                self._prefer(event, effects)
            case TransferRequested():
                self._transfer(event, effects)
            case LimitsChanged():
                self._config = evolve(
                    self._config,
                    session_count_max=event.session_count_max,
                    contender_count_max=event.contender_count_max,
                    contender_count_per_session_max=(
                        event.contender_count_per_session_max
                    ),
                    component_count_max=event.component_count_max,
                )
            case _:
                assert_never(event)
        self._arm()
        return tuple(effects)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        for session in self._sessions:
            for component_id, contender_id in session.contenders:
                contender = self._components[component_id].contenders[contender_id]
                assert contender.session_id == session.session_id
        for component in self._components.values():
            for contender in component.contenders.values():
                owner = self._sessions.get(contender.session_id)
                assert owner is not None
                assert (component.component_id, contender.contender_id) in (
                    owner.contenders
                )
                assert self._is_undecided or contender.claim is None
            leadership = component.leadership
            if leadership is not None:
                assert not self._is_undecided
                holder = component.contenders[leadership.contender_id]
                assert holder.session_id == leadership.session_id
                assert leadership.epoch == component.epoch_max
                assert not component.is_epoch_max_ended
                if leadership.is_confirmed:
                    assert component.publication == component.present()
            elif component.publication is not None:
                assert component.publication.leader is None
            if component.publication is not None:
                assert component.publication.epoch <= component.epoch_max

    # -- time ----------------------------------------------------------------------

    def _arm(self) -> None:
        """Work out when to be called again."""
        now = self._clock.now
        due_ns = self._barriers.earliest_ns()
        wait_ns = self._waits.earliest_ns()
        if wait_ns is not None:
            wait_ns += now.excused_ns
            due_ns = wait_ns if due_ns is None else min(due_ns, wait_ns)
        if len(self._sessions) or self._is_undecided:
            # While undecided, claims may be on their way.
            tick_ns = self._now_ns + self._config.tick_ns
            due_ns = tick_ns if due_ns is None else min(due_ns, tick_ns)
        self._step_due_ns = due_ns

    def _let_time_pass(self, effects: list[ElectionEffect]) -> None:
        """Do what is due; a wait that a stall has made longer is put back."""
        now = self._clock.now
        while (key := self._waits.pop_due(now.patient_ns)) is not None:
            kind, name = key
            if kind == _SESSION:
                self._review_session(name, effects)
            elif kind == _COMPONENT:
                self._review(self._components[name], effects)
            elif now.patient_ns < self._decision_ns():
                self._waits.set(key, self._decision_ns())
            else:
                self._decide(effects)
        while (key := self._barriers.pop_due(self._now_ns)) is not None:
            self._grant(self._components[key[1]], effects)

    def _decision_ns(self) -> int:
        """Return when, on the patient clock, it must be settled who leads."""
        undecided_ns = self._config.undecided_ns
        return self._started.due_ns(
            undecided_ns, grace_ns=undecided_ns, now=self._clock.now
        )

    def _arm_session(self, session: Session) -> None:
        deadline_ns = session.deadline_ns(self._clock.now)
        self._waits.set((_SESSION, session.session_id), deadline_ns)

    def _arm_component(self, component: Component) -> None:
        """Set when this component must be looked at, apart from events."""
        key = (_COMPONENT, component.component_id)
        wait_ns: int | None = None
        barrier_ns: int | None = None
        leadership = component.leadership
        if leadership is not None:
            if not leadership.is_confirmed:
                holder = self._sessions.get(leadership.session_id)
                assert holder is not None
                now = self._clock.now
                wait_ns = min(
                    leadership.confirm_deadline_ns(now), holder.silent_ns(now)
                )
        elif component.contenders and component.barrier_ns > self._now_ns:
            barrier_ns = component.barrier_ns
        self._waits.set(key, wait_ns)
        self._barriers.set(key, barrier_ns)

    def _review(self, component: Component, effects: list[ElectionEffect]) -> None:
        """End what is overdue in *component*, whose leadership is not confirmed."""
        leadership = component.leadership
        if leadership is not None and not leadership.is_confirmed:
            holder = self._sessions.get(leadership.session_id)
            assert holder is not None
            now = self._clock.now
            if leadership.confirm_deadline_ns(now) <= now.patient_ns:
                effects += component.end(has_stopped=False, is_told=True)
                self._queue_last(component, leadership.contender_id)
            elif not holder.is_heard(now):
                # It was silent for a lease, and keeps its place (E1).
                effects += component.end(has_stopped=False, is_told=True)
        self._grant(component, effects)

    def _review_session(self, session_id: str, effects: list[ElectionEffect]) -> None:
        """End a session that nothing was heard of for too long."""
        session = self._sessions.get(session_id)
        assert session is not None
        now = self._clock.now
        if now.patient_ns < session.deadline_ns(now):
            self._arm_session(session)
        elif session.close_evidence is None:
            self._end_session(session_id, SessionEnd.SILENT, effects)
        else:
            self._end_session(session_id, SessionEnd.CONNECTION_CLOSED, effects)

    # -- sessions ------------------------------------------------------------------

    def _open_session(
        self, event: SessionRequested, effects: list[ElectionEffect]
    ) -> None:
        if len(self._sessions) >= self._config.session_count_max:
            effects.append(RefuseSession(session_id=event.session_id))
            return
        session = self._sessions.open(
            event.session_id,
            client=event.client,
            session_timeout_ns=event.session_timeout_ns,
            lease_ns=event.lease_ns,
            now=self._clock.now,
        )
        self._arm_session(session)
        effects.append(OpenSession(session_id=event.session_id))

    def _heartbeat(
        self, event: HeartbeatReceived, effects: list[ElectionEffect]
    ) -> None:
        session = self._sessions.get(event.session_id)
        if session is None:
            return
        if not self._sessions.heartbeat(
            session,
            number=event.number,
            acknowledged=event.acknowledged,
            is_late=event.is_late,
            now=self._clock.now,
        ):
            return
        self._arm_session(session)
        affirmations = []
        vacant = []
        for component_id in dict.fromkeys(name for name, _ in session.contenders):
            component = self._components[component_id]
            leadership = component.leadership
            if leadership is None:
                vacant.append(component)
            elif leadership.session_id == session.session_id:
                leadership.last_affirmed_ns = self._now_ns
                # Its deadline is later now. It is not armed anew, which would cost a
                # step for each leadership: a look at the old deadline sees the new one.
                affirmations.append(component.affirmation())
        effects.append(
            AcknowledgeHeartbeat(
                session_id=session.session_id,
                number=event.number,
                affirmations=tuple(affirmations),
                is_undecided=self._is_undecided,
            )
        )
        for component in vacant:
            self._grant(component, effects)

    def _suspect(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.close_evidence is None:
            session.close_evidence = self._clock.now
            self._arm_session(session)

    def _end_session(
        self, session_id: str, reason: SessionEnd, effects: list[ElectionEffect]
    ) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        has_stopped = reason is SessionEnd.CLOSED
        left = [self._components[name] for name, _ in session.contenders]
        for component in left:
            leadership = component.leadership
            if leadership is not None and leadership.session_id == session_id:
                effects += component.end(has_stopped=has_stopped, is_told=False)
        for component_id, contender_id in session.contenders:
            del self._components[component_id].contenders[contender_id]
        self._sessions.close(session_id)
        self._waits.set((_SESSION, session_id), None)
        effects.append(CloseSession(session_id=session_id, reason=reason))
        for component in left:
            self._grant(component, effects)

    # -- contenders ----------------------------------------------------------------

    def _register(
        self, event: ContenderRegistered, effects: list[ElectionEffect]
    ) -> None:
        session = self._sessions.get(event.session_id)
        component = self._components.get(event.component_id)
        known = (
            None if component is None else component.contenders.get(event.contender_id)
        )
        refusal: RegistrationRefusal | None = None
        if session is None:
            refusal = RegistrationRefusal.UNKNOWN_SESSION
        elif known is not None and known.session_id != event.session_id:
            refusal = RegistrationRefusal.TAKEN_BY_ANOTHER_SESSION
        elif known is None:
            refusal = self._refusal_of_another(session, component)
        if refusal is not None:
            effects.append(
                RefuseRegistration(
                    session_id=event.session_id,
                    component_id=event.component_id,
                    contender_id=event.contender_id,
                    reason=refusal,
                )
            )
            return
        assert session is not None
        if component is None:
            component = self._component(event.component_id)
        contender = known or self._enter(session, component, event)
        effects.append(
            AcceptRegistration(
                session_id=event.session_id,
                component_id=event.component_id,
                contender_id=event.contender_id,
                ticket=contender.ticket,
            )
        )
        if known is None and event.claim is not None and not self._is_undecided:
            # Too late: taken as the report that it is.
            effects.append(component.refuse(contender, event.claim))
            self._take_report(
                EpochReported(
                    component_id=event.component_id,
                    epoch=event.claim.epoch,
                    is_ended=True,
                ),
                effects,
            )
        self._grant(component, effects)

    def _refusal_of_another(
        self, session: Session, component: Component | None
    ) -> RegistrationRefusal | None:
        if len(session.contenders) >= self._config.contender_count_per_session_max:
            return RegistrationRefusal.TOO_MANY_CONTENDERS
        if component is not None:
            if len(component.contenders) >= self._config.contender_count_max:
                return RegistrationRefusal.TOO_MANY_CONTENDERS
            return None
        self._forget_idle()
        if len(self._components) >= self._config.component_count_max:
            return RegistrationRefusal.TOO_MANY_COMPONENTS
        return None

    def _enter(
        self, session: Session, component: Component, event: ContenderRegistered
    ) -> Contender:
        keeps_place = self._is_undecided and event.ticket is not None
        if keeps_place and event.ticket is not None:
            ticket = event.ticket
        else:
            ticket = self._next_ticket()
        contender = Contender(
            contender_id=event.contender_id,
            session_id=session.session_id,
            ticket=ticket,
            confirm_timeout_ns=event.confirm_timeout_ns,
            claim=event.claim if self._is_undecided else None,
        )
        component.contenders[event.contender_id] = contender
        session.contenders[event.component_id, event.contender_id] = None
        return contender

    def _next_ticket(self) -> int:
        """Return a ticket after all of this incarnation and of every earlier one."""
        self._ticket += 1
        return self._epochs.incarnation << 32 | self._ticket

    def _withdraw(
        self, event: ContenderWithdrawn, effects: list[ElectionEffect]
    ) -> None:
        component = self._components.get(event.component_id)
        if component is None:
            return
        contender = component.contenders.get(event.contender_id)
        if contender is None or contender.session_id != event.session_id:
            return
        leadership = component.leadership
        if leadership is not None and leadership.contender_id == event.contender_id:
            effects += component.end(has_stopped=True, is_told=False)
        del component.contenders[event.contender_id]
        session = self._sessions.get(event.session_id)
        assert session is not None
        del session.contenders[event.component_id, event.contender_id]
        self._grant(component, effects)

    def _queue_last(self, component: Component, contender_id: str) -> None:
        component.contenders[contender_id].ticket = self._next_ticket()

    # -- leaderships ---------------------------------------------------------------

    def _grant(self, component: Component, effects: list[ElectionEffect]) -> None:
        """Grant leadership if nobody has it, may believe so, and somebody is there."""
        if (
            component.leadership is None
            and not self._is_undecided
            and self._now_ns >= component.barrier_ns
        ):
            for contender in component.in_order():
                session = self._sessions.get(contender.session_id)
                assert session is not None
                if session.may_be_granted(self._clock.now):
                    self._grant_to(component, contender, session, effects)
                    break
        self._arm_component(component)

    def _grant_to(
        self,
        component: Component,
        contender: Contender,
        session: Session,
        effects: list[ElectionEffect],
    ) -> None:
        epoch = self._epochs.draw(above=component.epoch_max)
        name = f"{component.component_id}/{epoch}"
        component.begin(
            contender,
            session,
            leader_session_id=uuid5(self._config.namespace, name),
            epoch=epoch,
            now=self._clock.now,
        )
        self._tell_grant(component, session, effects)

    def _tell_grant(
        self, component: Component, session: Session, effects: list[ElectionEffect]
    ) -> None:
        affirmation = component.affirmation()
        self._grant_count += 1
        effects += (
            RecordEpoch(component_id=component.component_id, epoch=affirmation.epoch),
            GrantLeadership(
                session_id=session.session_id,
                affirmation=affirmation,
                heartbeat_number=session.heartbeat_number,
            ),
        )

    def _confirm(
        self, event: LeadershipConfirmed, effects: list[ElectionEffect]
    ) -> None:
        component = self._components.get(event.component_id)
        published = None if component is None else component.confirm(event)
        if component is None or published is None:
            effects.append(
                RefuseConfirmation(
                    session_id=event.session_id,
                    component_id=event.component_id,
                    is_undecided=self._is_undecided,
                )
            )
            return
        self._arm_component(component)
        effects += published
        effects.append(
            AcceptConfirmation(
                session_id=event.session_id, component_id=event.component_id
            )
        )

    def _acknowledge_revocation(
        self, event: RevocationAcknowledged, effects: list[ElectionEffect]
    ) -> None:
        component = self._components.get(event.component_id)
        if component is None:
            return
        contender = component.contenders.get(event.contender_id)
        if (
            contender is not None
            and contender.session_id == event.session_id
            and component.leadership is None
            and component.barrier_epoch == event.epoch
            and component.barrier_contender_id == event.contender_id
        ):
            component.barrier_ns = 0
            self._grant(component, effects)

    def _revoke(self, component_id: str, effects: list[ElectionEffect]) -> None:
        component = self._components.get(component_id)
        if component is None or component.leadership is None:
            return
        contender_id = component.leadership.contender_id
        effects += component.end(has_stopped=False, is_told=True)
        self._queue_last(component, contender_id)
        self._grant(component, effects)

    def _prefer(self, event: ContenderPreferred, effects: list[ElectionEffect]) -> None:
        component = self._components.get(event.component_id)
        if component is None or event.contender_id not in component.contenders:
            return
        leadership = component.leadership
        if leadership is not None and leadership.contender_id == event.contender_id:
            return
        first = component.in_order()[0]
        component.contenders[event.contender_id].ticket = first.ticket - 1
        if leadership is not None:
            effects += component.end(has_stopped=False, is_told=True)
        self._grant(component, effects)

    def _transfer(
        self, event: TransferRequested, effects: list[ElectionEffect]
    ) -> None:
        component = self._components.get(event.component_id)
        if component is None or event.contender_id not in component.contenders:
            return
        leadership = component.leadership
        if leadership is not None:
            if leadership.contender_id == event.contender_id:
                return
            effects += component.end(has_stopped=False, is_told=True)
            self._queue_last(component, leadership.contender_id)
        first = component.in_order()[0]
        if first.contender_id != event.contender_id:
            component.contenders[event.contender_id].ticket = first.ticket - 1
        self._grant(component, effects)

    # -- what was before us --------------------------------------------------------

    def _decide(self, effects: list[ElectionEffect]) -> None:
        """Settle who leads: whoever may believe has had time to say so (E9)."""
        self._is_undecided = False
        for component in self.components:
            claims = component.take_claims()
            # max() keeps the first of equals: the earliest in the queue.
            best = max(
                (pair for pair in claims if self._is_possible(pair[1].epoch)),
                key=lambda pair: pair[1].epoch,
                default=None,
            )
            if best is not None and not component.is_outranked(best[1]):
                claims.remove(best)
                self._reinstate(component, *best, effects)
            elif component.epoch_max:
                component.is_epoch_max_ended = True
                effects += component.publish_nobody()
            effects += (component.refuse(*pair) for pair in claims)
            self._grant(component, effects)
        self._recorded_epochs.clear()

    def _is_possible(self, epoch: int) -> bool:
        """Return whether some clock can have made *epoch*: others hide no claim."""
        return self._epochs.admits(epoch, now_ns=self._now_ns)

    def _reinstate(
        self,
        component: Component,
        contender: Contender,
        claim: ClaimReported,
        effects: list[ElectionEffect],
    ) -> None:
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
        self._tell_grant(component, session, effects)
        if claim.address is not None:
            effects += component.publish(
                confirm_count=claim.confirm_count, address=claim.address
            )

    def _take_report(self, event: EpochReported, effects: list[ElectionEffect]) -> None:
        if not self._is_possible(event.epoch):
            effects.append(
                RefuseEpoch(component_id=event.component_id, epoch=event.epoch)
            )
            return
        component = self._components.get(event.component_id)
        if component is None:
            self._forget_idle()
            if len(self._components) >= self._config.component_count_max:
                return  # the epochs that we draw are above it all the same
            component = self._component(event.component_id)
        self._epochs.observe(event.epoch)
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
                component.is_epoch_max_ended = event.is_ended or not self._is_undecided
        if not self._is_undecided:
            published = component.publication
            if published is None or published.epoch < event.epoch:
                # Whoever reports holds a leader of an earlier server's time, whose
                # end we have not published, and hears of no other.
                effects += component.publish_nobody()
            self._grant(component, effects)

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
            return not (self._config.is_durable and leadership.is_recorded)
        return leadership.is_reinstated

    def _component(self, component_id: str) -> Component:
        """Return a new component, with what is on record of it."""
        component = Component(
            component_id=component_id,
            contenders={},
            epoch_max=max(
                self._recorded_epochs.get(component_id, 0), self._epoch_floor
            ),
        )
        self._components[component_id] = component
        return component

    def _forget_idle(self) -> None:
        """Forget components that nobody contends for once there are too many."""
        if len(self._components) < self._config.component_count_max:
            return
        for component_id in list(self._components):
            component = self._components[component_id]
            if component.is_idle(self._now_ns):
                # Epochs are drawn from one counter for all components, so what is
                # granted later is above the epoch that we forget here.
                del self._components[component_id]
                self._waits.set((_COMPONENT, component_id), None)
                self._barriers.set((_COMPONENT, component_id), None)
