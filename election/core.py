"""
`ElectionCore`: sessions, contenders and leaders without I/O.

Theory of operation
-------------------
Only this file sequences.  It owns the sessions (`liveness.py`, `sessions.py`), the
components and who leads them (`leaderships.py`, `component.py`) and the deadlines;
every step first does what time has made due, then takes the event, and returns what to
do, in order.

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

from attrs import evolve

from election.deadlines import Deadlines
from election.effects import (
    AcceptRegistration,
    ElectionEffect,
    RefuseRegistration,
    RegistrationRefusal,
    SessionEnd,
)
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
from election.leaderships import Leaderships
from election.liveness import SESSION, Liveness
from election.patience import PatientClock
from election.sessions import SessionTable


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from election.component import Component
    from election.config import ElectionConfig
    from election.epochs import EpochSource
    from election.sessions import Session
    from retrieval.information import Publication


__all__ = ["ElectionCore"]

_DECISION: Final = "decision"


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
        # The barriers are in real time, all that is waited for on the patient clock.
        self._waits = Deadlines()
        self._clock = PatientClock(now_ns, tick_ns=config.tick_ns)
        self._started = self._clock.now
        self._sessions = SessionTable()
        self._leaderships = Leaderships(
            config,
            epochs=epochs,
            recorded_epochs=recorded_epochs,
            sessions=self._sessions,
            clock=self._clock,
            waits=self._waits,
        )
        self._components = self._leaderships.components  # the same table
        self._liveness = Liveness(
            config,
            sessions=self._sessions,
            leaderships=self._leaderships,
            clock=self._clock,
            waits=self._waits,
        )
        self._step_due_ns: int | None = None
        # When the first wait or barrier is over, if no further stall makes it longer.
        self._wait_due_ns: int | None = None
        if self._leaderships.is_undecided:
            self._waits.set((_DECISION, ""), self._decision_ns())
        self._arm()

    # -- queries -------------------------------------------------------------------

    @property
    def is_undecided(self) -> bool:
        """Return whether claims are still being collected (E9)."""
        return self._leaderships.is_undecided

    @property
    def incarnation(self) -> int:
        """Return the incarnation that the next epoch will carry."""
        return self._epochs.incarnation

    @property
    def grant_count(self) -> int:
        """Return how many leaderships were granted or reinstated."""
        return self._leaderships.grant_count

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
        return self._leaderships.in_order()

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
        return self._leaderships.admits(epoch)

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
        Move time on to *now_ns*, then take *event*.

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
                effects.append(self._liveness.open(event))
            case HeartbeatReceived():
                effects += self._liveness.heartbeat(event)
            case ConnectionClosed(session_id=session_id):
                self._liveness.suspect(session_id)
            case SessionCloseRequested(session_id=session_id):
                effects += self._liveness.end(session_id, SessionEnd.CLOSED)
            case SessionExpireRequested(session_id=session_id):
                effects += self._liveness.end(
                    session_id, SessionEnd.EXPIRED_BY_OPERATOR
                )
            case ContenderRegistered():
                self._register(event, effects)
            case ContenderWithdrawn():
                effects += self._leaderships.withdraw(event)
            case LeadershipConfirmed():
                effects += self._leaderships.confirm(event)
            case RevocationAcknowledged():
                effects += self._leaderships.acknowledge_revocation(event)
            case EpochReported():
                effects += self._leaderships.take_report(event)
            case RevokeRequested(component_id=component_id):
                effects += self._leaderships.revoke(component_id)
            case ContenderPreferred():
                effects += self._leaderships.prefer(event)
            case TransferRequested():
                effects += self._leaderships.transfer(event)
            case LimitsChanged():
                config = evolve(
                    self._config,
                    session_count_max=event.session_count_max,
                    contender_count_max=event.contender_count_max,
                    contender_count_per_session_max=(
                        event.contender_count_per_session_max
                    ),
                    component_count_max=event.component_count_max,
                )
                self._config = config
                self._leaderships.config = self._liveness.config = config
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
                assert self.is_undecided or contender.claim is None
            leadership = component.leadership
            if leadership is not None:
                assert not self.is_undecided
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
        due_ns = self._leaderships.barriers.earliest_ns()
        wait_ns = self._waits.earliest_ns()
        if wait_ns is not None:
            wait_ns += now.excused_ns
            due_ns = wait_ns if due_ns is None else min(due_ns, wait_ns)
        self._wait_due_ns = due_ns
        if len(self._sessions) or self.is_undecided:
            # While undecided, claims may be on their way.
            tick_ns = self._now_ns + self._config.tick_ns
            due_ns = tick_ns if due_ns is None else min(due_ns, tick_ns)
        self._step_due_ns = due_ns

    def _let_time_pass(self, effects: list[ElectionEffect]) -> None:
        """Do what is due; a wait that a stall has made longer is put back."""
        if self._wait_due_ns is None or self._now_ns < self._wait_due_ns:
            return
        now = self._clock.now
        while (key := self._waits.pop_due(now.patient_ns)) is not None:
            kind, name = key
            if kind == SESSION:
                effects += self._liveness.review(name)
            elif kind != _DECISION:
                effects += self._leaderships.review(name)
            elif now.patient_ns < self._decision_ns():
                self._waits.set(key, self._decision_ns())
            else:
                effects += self._leaderships.decide()
        effects += self._leaderships.pass_barriers()

    def _decision_ns(self) -> int:
        """Return when, on the patient clock, it must be settled who leads."""
        undecided_ns = self._config.undecided_ns
        return self._started.due_ns(
            undecided_ns, grace_ns=undecided_ns, now=self._clock.now
        )

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
            component = self._leaderships.open(event.component_id)
        contender = known or self._leaderships.enter(session, component, event)
        effects.append(
            AcceptRegistration(
                session_id=event.session_id,
                component_id=event.component_id,
                contender_id=event.contender_id,
                ticket=contender.ticket,
            )
        )
        if known is None and event.claim is not None and not self.is_undecided:
            # Too late: taken as the report that it is.
            effects.append(component.refuse(contender, event.claim))
            effects += self._leaderships.take_report(
                EpochReported(
                    component_id=event.component_id,
                    epoch=event.claim.epoch,
                    is_ended=True,
                )
            )
        effects += self._leaderships.grant(component)

    def _refusal_of_another(
        self, session: Session, component: Component | None
    ) -> RegistrationRefusal | None:
        if len(session.contenders) >= self._config.contender_count_per_session_max:
            return RegistrationRefusal.TOO_MANY_CONTENDERS
        if component is not None:
            if len(component.contenders) >= self._config.contender_count_max:
                return RegistrationRefusal.TOO_MANY_CONTENDERS
            return None
        if not self._leaderships.has_room():
            return RegistrationRefusal.TOO_MANY_COMPONENTS
        return None
