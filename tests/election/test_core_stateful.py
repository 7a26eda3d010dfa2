from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from attrs import define, frozen
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from election.config import ElectionConfig
from election.core import ElectionCore
from election.effects import (
    AcceptConfirmation,
    AcceptRegistration,
    AcknowledgeHeartbeat,
    Affirmation,
    CloseSession,
    GrantLeadership,
    OpenSession,
    PublishLeader,
    RecordEpoch,
    RefuseConfirmation,
    RefuseRegistration,
    RegistrationRefusal,
    RevokeLeadership,
)
from election.epochs import ProcessEpochs
from election.events import (
    ConnectionClosed,
    ContenderPreferred,
    ContenderRegistered,
    ContenderWithdrawn,
    HeartbeatReceived,
    LeadershipConfirmed,
    RevocationAcknowledged,
    RevokeRequested,
    SessionCloseRequested,
    SessionExpireRequested,
    SessionRequested,
    TimePassed,
    TransferRequested,
)
from tests.tiers import machine_settings


if TYPE_CHECKING:
    from election.effects import ElectionEffect
    from election.events import ElectionEvent
    from retrieval.information import Publication


COMPONENTS = ("c/a", "c/b")
TIMEOUT_NS = 200
CONFIRM_TIMEOUT_NS = 70
SESSION_COUNT_MAX = 4
TICK_NS = 10

components = st.sampled_from(COMPONENTS)


@define
class ModelSession:
    """A session: when it was heard and answered, and when its connection closed."""

    lease_ns: int
    heard_ns: int
    answered_ns: int
    cut_ns: int | None = None
    number: int = 0

    def end_ns(self) -> int:
        """Return when it is over if nothing more is heard."""
        silent_ns = self.heard_ns + TIMEOUT_NS
        return (
            silent_ns
            if self.cut_ns is None
            else min(silent_ns, self.cut_ns + self.lease_ns)
        )

    def may_be_granted(self, now_ns: int) -> bool:
        """Return whether it is there for all that we know."""
        return self.cut_ns is None and now_ns < self.heard_ns + self.lease_ns


@frozen
class ModelContender:
    """One place in the queue of *component_id*."""

    component_id: str
    session_id: str
    contender_id: str


@define
class ModelLeadership:
    """What was granted to *contender*, and until when it may believe in it."""

    contender: ModelContender
    affirmation: Affirmation
    lease_ns: int
    affirmed_ns: int
    confirm_by_ns: int
    confirm_count: int = 0


class ElectionMachine(RuleBasedStateMachine):
    """
    Clients come, contend, fall silent and go, around a core that is never late.

    The model knows sessions with deadlines, a list of contenders for each component,
    who leads it, and until when somebody else may believe.  It foresees in each step
    which sessions end, who is revoked, and who is granted.  A twin of the core hears
    the same with less ado, and must do the same.
    """

    @initialize()
    def begin(self) -> None:
        """Start with a leader and two who wait: without one it is far to a change."""
        self.now_ns = 0
        self.core, self.twin = (
            ElectionCore(
                ElectionConfig(
                    namespace=UUID(int=1),
                    undecided_ns=0,
                    session_count_max=SESSION_COUNT_MAX,
                    tick_ns=TICK_NS,
                ),
                epochs=ProcessEpochs(),
                recorded_epochs={},
                now_ns=0,
            )
            for _ in range(2)
        )
        self.unseen_by_twin: tuple[ElectionEffect, ...] = ()
        # Everybody and everything that ever was:
        self.session_ids: list[str] = []
        self.contenders: list[ModelContender] = []
        self.granted: list[ModelLeadership] = []
        self.publications: dict[str, list[Publication]] = {c: [] for c in COMPONENTS}
        # What there is now:
        self.sessions: dict[str, ModelSession] = {}
        self.queues: dict[str, list[ModelContender]] = {c: [] for c in COMPONENTS}
        self.leaders: dict[str, ModelLeadership] = {}
        self.ended: dict[str, ModelLeadership] = {}
        self.free_ns = dict.fromkeys(COMPONENTS, 0)
        for number in range(3):
            self.open(100)
            self.arrive()
            self.register_as(
                ModelContender(
                    component_id=COMPONENTS[0],
                    session_id=self.session_ids[-1],
                    contender_id=f"contender {number}",
                )
            )

    def known_ids(self) -> list[str]:
        """Return whom rules choose from: the living, and the newest, who may not be."""
        return [*self.sessions, self.session_ids[-1]]

    def known_contenders(self) -> list[ModelContender]:
        """Return whom rules choose from: all that queue, and the newest of all."""
        return [*itertools.chain(*self.queues.values()), self.contenders[-1]]

    # -- time ----------------------------------------------------------------------

    def due_ns(self) -> list[int]:
        """Return when the model expects something to happen by itself."""
        due_ns = [session.end_ns() for session in self.sessions.values()]
        for leader in self.leaders.values():
            if not leader.confirm_count:
                session = self.sessions[leader.contender.session_id]
                due_ns += (leader.confirm_by_ns, session.heard_ns + session.lease_ns)
        for component_id, queue in self.queues.items():
            free_ns = self.free_ns[component_id]
            if queue and component_id not in self.leaders and free_ns > self.core_ns():
                due_ns.append(free_ns)
        return due_ns

    def core_ns(self) -> int:
        """Return when the core was stepped last."""
        return self.core._now_ns

    def pass_until(self, until_ns: int) -> None:
        """Move time on to *until_ns*, which the core is not told of yet."""
        while True:
            deadline_ns = self.core.next_deadline_ns()
            if deadline_ns is None or deadline_ns >= until_ns:
                break
            self.now_ns = max(self.now_ns, deadline_ns)
            effects = self.let_time_pass()
            assert self.twin.step(TimePassed(), now_ns=self.now_ns) == effects
        self.now_ns = until_ns

    def let_time_pass(self) -> tuple[ElectionEffect, ...]:
        """Step the core now, and hold what it does against the model."""
        # The core has asked to be called whenever something is due.
        assert all(due_ns >= self.now_ns for due_ns in self.due_ns())
        effects = self.core.step(TimePassed(), now_ns=self.now_ns)
        revoked = []
        # Of those due at the same instant the core takes them in this order.
        for component_id, leader in sorted(self.leaders.items()):
            session = self.sessions[leader.contender.session_id]
            if leader.confirm_count:
                continue
            if leader.confirm_by_ns <= self.now_ns:
                self.queues[component_id].remove(leader.contender)
                self.queues[component_id].append(leader.contender)
                revoked.append(self.end(component_id))
            elif session.heard_ns + session.lease_ns <= self.now_ns:
                revoked.append(self.end(component_id))
        closed = {
            session_id
            for session_id, session in self.sessions.items()
            if session.end_ns() <= self.now_ns
        }
        for session_id in closed:
            self.drop(session_id)
        assert self.compare(effects, closed=closed, revoked=revoked) == ()
        return effects

    def tell(
        self,
        event: ElectionEvent,
        *,
        closed: frozenset[str] = frozenset(),
        revoked: tuple[Affirmation, ...] = (),
    ) -> tuple[ElectionEffect, ...]:
        """Hand *event*, which the model has taken, to the core; return the answers."""
        effects = self.core.step(event, now_ns=self.now_ns)
        # Time first, then the event: in one step as in two.
        assert (
            self.twin.step(event, now_ns=self.now_ns) == self.unseen_by_twin + effects
        )
        self.unseen_by_twin = ()
        return self.compare(effects, closed=set(closed), revoked=list(revoked))

    def arrive(self) -> None:
        """Tell the core how late it is, before the model takes an event."""
        self.unseen_by_twin = self.let_time_pass()

    # -- the model -----------------------------------------------------------------

    def end(self, component_id: str, *, has_stopped: bool = False) -> Affirmation:
        """End the leadership; no other leads before the holder believes no longer."""
        leader = self.leaders.pop(component_id)
        self.ended[component_id] = leader
        self.free_ns[component_id] = (
            0 if has_stopped else leader.affirmed_ns + leader.lease_ns
        )
        return leader.affirmation

    def drop(self, session_id: str, *, has_stopped: bool = False) -> None:
        """Forget a session and all that it contends for."""
        del self.sessions[session_id]
        for component_id in COMPONENTS:
            leader = self.leaders.get(component_id)
            if leader is not None and leader.contender.session_id == session_id:
                self.end(component_id, has_stopped=has_stopped)
            self.queues[component_id] = [
                contender
                for contender in self.queues[component_id]
                if contender.session_id != session_id
            ]

    def next_in(self, component_id: str) -> ModelContender | None:
        """Return who is to be granted now, if none leads and none believes."""
        if component_id in self.leaders or self.now_ns < self.free_ns[component_id]:
            return None
        return next(
            (
                contender
                for contender in self.queues[component_id]
                if self.sessions[contender.session_id].may_be_granted(self.now_ns)
            ),
            None,
        )

    def compare(
        self,
        effects: tuple[ElectionEffect, ...],
        *,
        closed: set[str],
        revoked: list[Affirmation],
    ) -> tuple[ElectionEffect, ...]:
        """Check ends, grants and publications; return whatever else there is."""
        self.core.check_invariants()
        assert {e.session_id for e in effects if isinstance(e, CloseSession)} == closed
        told = [e for e in effects if isinstance(e, RevokeLeadership)]
        assert [effect.affirmation for effect in told] == revoked
        answers = []
        recorded = 0
        for effect in effects:
            match effect:
                case CloseSession() | RevokeLeadership():
                    pass
                case RecordEpoch(epoch=epoch):
                    recorded = epoch
                case GrantLeadership():
                    assert effect.affirmation.epoch == recorded
                    self.take_grant(effect)
                case PublishLeader(component_id=component_id, publication=publication):
                    self.publications[component_id].append(publication)
                case _:
                    answers.append(effect)
        return tuple(answers)

    def take_grant(self, effect: GrantLeadership) -> None:
        """Check that this grant is the one to be made; take note of it."""
        affirmation = effect.affirmation
        contender = self.next_in(affirmation.component_id)
        assert contender is not None
        assert (effect.session_id, affirmation.contender_id) == (
            contender.session_id,
            contender.contender_id,
        )
        assert affirmation.epoch == len(self.granted) + 1
        published = self.publications[affirmation.component_id]
        assert not published or published[-1].leader is None
        session = self.sessions[contender.session_id]
        assert effect.heartbeat_number == session.number
        leader = ModelLeadership(
            contender=contender,
            affirmation=affirmation,
            lease_ns=session.lease_ns,
            affirmed_ns=self.now_ns,
            confirm_by_ns=self.now_ns + CONFIRM_TIMEOUT_NS,
        )
        self.granted.append(leader)
        self.leaders[affirmation.component_id] = leader

    # -- time, as rules ------------------------------------------------------------

    @rule(duration_ns=st.integers(0, 60))
    def wait(self, duration_ns: int) -> None:
        """Time passes; the core is called when it wants to be."""
        self.pass_until(self.now_ns + duration_ns)

    @precondition(lambda self: bool(self.due_ns()))
    @rule(late_ns=st.sampled_from([-1, 0, 1]))
    def wait_for_the_deadline(self, late_ns: int) -> None:
        """Time passes until something is due, or one more, or one less."""
        self.pass_until(max(self.now_ns, min(self.due_ns()) + late_ns))

    @rule()
    def nothing_but_time(self) -> None:
        """A shell may call whenever it likes."""
        self.arrive()
        assert self.tell(TimePassed()) == ()

    # -- sessions ------------------------------------------------------------------

    @rule(lease_ns=st.sampled_from([50, 100]))
    def open(self, lease_ns: int) -> None:
        """A client asks for a session."""
        self.arrive()
        session_id = f"session {len(self.session_ids)}"
        event = SessionRequested(
            session_id=session_id,
            session_timeout_ns=TIMEOUT_NS,
            lease_ns=lease_ns,
            client="",
        )
        answers = self.tell(event)
        if len(self.sessions) == SESSION_COUNT_MAX:
            assert not isinstance(answers[0], OpenSession)
            return
        assert answers == (OpenSession(session_id=session_id),)
        self.session_ids.append(session_id)
        self.sessions[session_id] = ModelSession(
            lease_ns=lease_ns, heard_ns=self.now_ns, answered_ns=self.now_ns
        )

    @precondition(lambda self: bool(self.session_ids))
    @rule(data=st.data(), is_late=st.booleans(), names_an_answer=st.booleans())
    def heartbeat(
        self, data: st.DataObject, is_late: bool, names_an_answer: bool
    ) -> None:
        """A heartbeat arrives, perhaps after its connection closed, perhaps bogus."""
        self.arrive()
        session_id = data.draw(st.sampled_from(self.known_ids()), label="whose")
        session = self.sessions.get(session_id)
        if session is None:
            event = HeartbeatReceived(session_id=session_id, number=99, acknowledged=0)
            assert self.tell(event) == ()
            return
        event = HeartbeatReceived(
            session_id=session_id,
            number=session.number + 1,
            acknowledged=session.number if names_an_answer else session.number + 9,
            is_late=is_late,
        )
        if names_an_answer:
            session.heard_ns = self.now_ns
            if session.cut_ns is not None and not (
                is_late and session.answered_ns <= session.cut_ns
            ):
                session.cut_ns = None
        session.number += 1
        session.answered_ns = self.now_ns
        affirmations = set()
        for leader in self.leaders.values():
            if leader.contender.session_id == session_id:
                leader.affirmed_ns = self.now_ns
                affirmations.add(leader.affirmation)
        (answer,) = self.tell(event)
        assert isinstance(answer, AcknowledgeHeartbeat)
        assert (answer.session_id, answer.number) == (session_id, session.number)
        assert set(answer.affirmations) == affirmations
        assert not answer.is_undecided

    @precondition(lambda self: bool(self.sessions))
    @rule(data=st.data())
    def heartbeat_that_was_overtaken(self, data: st.DataObject) -> None:
        """A heartbeat arrives once more: neither contact nor answered."""
        self.arrive()
        session_id = data.draw(st.sampled_from(self.known_ids()), label="whose")
        event = HeartbeatReceived(session_id=session_id, number=0, acknowledged=0)
        assert self.tell(event) == ()

    @precondition(lambda self: bool(self.session_ids))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """The connection of a session closes, perhaps not for the first time."""
        self.arrive()
        session_id = data.draw(st.sampled_from(self.known_ids()), label="whose")
        session = self.sessions.get(session_id)
        if session is not None and session.cut_ns is None:
            session.cut_ns = self.now_ns
        assert self.tell(ConnectionClosed(session_id=session_id)) == ()

    @precondition(lambda self: bool(self.session_ids))
    @rule(data=st.data(), by_operator=st.booleans())
    def close(self, data: st.DataObject, by_operator: bool) -> None:
        """A client has stopped everything, or an operator loses patience."""
        self.arrive()
        session_id = data.draw(st.sampled_from(self.known_ids()), label="whose")
        closed = frozenset({session_id} & self.sessions.keys())
        if closed:
            self.drop(session_id, has_stopped=not by_operator)
        event: ElectionEvent = SessionCloseRequested(session_id=session_id)
        if by_operator:
            event = SessionExpireRequested(session_id=session_id)
        assert self.tell(event, closed=closed) == ()

    # -- contenders ----------------------------------------------------------------

    @precondition(lambda self: bool(self.session_ids))
    @rule(data=st.data(), component_id=components)
    def register(self, data: st.DataObject, component_id: str) -> None:
        """A session enters a contender."""
        self.arrive()
        session_id = data.draw(st.sampled_from(self.known_ids()), label="whose")
        self.register_as(
            ModelContender(
                component_id=component_id,
                session_id=session_id,
                contender_id=f"contender {len(self.contenders)}",
            )
        )

    @precondition(lambda self: bool(self.contenders))
    @rule(data=st.data())
    def register_again(self, data: st.DataObject) -> None:
        """A registration is repeated: nothing, or, after a withdrawal, another."""
        self.arrive()
        self.register_as(
            data.draw(st.sampled_from(self.known_contenders()), label="who")
        )

    def register_as(self, contender: ModelContender) -> None:
        """Register *contender*, whose session may be over."""
        event = ContenderRegistered(
            session_id=contender.session_id,
            component_id=contender.component_id,
            contender_id=contender.contender_id,
            confirm_timeout_ns=CONFIRM_TIMEOUT_NS,
        )
        if contender.session_id not in self.sessions:
            assert self.tell(event) == (
                RefuseRegistration(
                    session_id=contender.session_id,
                    component_id=contender.component_id,
                    contender_id=contender.contender_id,
                    reason=RegistrationRefusal.UNKNOWN_SESSION,
                ),
            )
            return
        queue = self.queues[contender.component_id]
        if contender not in queue:
            queue.append(contender)
        if contender not in self.contenders:
            self.contenders.append(contender)
        (answer,) = self.tell(event)
        assert isinstance(answer, AcceptRegistration)
        assert answer.contender_id == contender.contender_id

    @precondition(lambda self: bool(self.contenders))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """A contender leaves, if it is still there."""
        self.arrive()
        contender = data.draw(st.sampled_from(self.known_contenders()), label="who")
        queue = self.queues[contender.component_id]
        leader = self.leaders.get(contender.component_id)
        if leader is not None and leader.contender == contender:
            self.end(contender.component_id, has_stopped=True)
        if contender in queue:
            queue.remove(contender)
        event = ContenderWithdrawn(
            session_id=contender.session_id,
            component_id=contender.component_id,
            contender_id=contender.contender_id,
        )
        assert self.tell(event) == ()

    @precondition(lambda self: bool(self.contenders))
    @rule(data=st.data())
    def prefer(self, data: st.DataObject) -> None:
        """A test wants somebody else to lead."""
        self.arrive()
        contender = data.draw(st.sampled_from(self.known_contenders()), label="whom")
        component_id = contender.component_id
        queue = self.queues[component_id]
        leader = self.leaders.get(component_id)
        revoked: tuple[Affirmation, ...] = ()
        if contender in queue and (leader is None or leader.contender != contender):
            queue.remove(contender)
            queue.insert(0, contender)
            if leader is not None:
                revoked = (self.end(component_id),)
        event = ContenderPreferred(
            component_id=component_id, contender_id=contender.contender_id
        )
        assert self.tell(event, revoked=revoked) == ()

    @rule(data=st.data())
    def transfer(self, data: st.DataObject) -> None:
        """An operator hands leadership over; the holder queues last."""
        self.arrive()
        contender = data.draw(st.sampled_from(self.known_contenders()), label="whom")
        component_id = contender.component_id
        queue = self.queues[component_id]
        leader = self.leaders.get(component_id)
        revoked: tuple[Affirmation, ...] = ()
        if contender in queue and (leader is None or leader.contender != contender):
            queue.remove(contender)
            queue.insert(0, contender)
            if leader is not None:
                queue.remove(leader.contender)
                queue.append(leader.contender)
                revoked = (self.end(component_id),)
        event = TransferRequested(
            component_id=component_id, contender_id=contender.contender_id
        )
        assert self.tell(event, revoked=revoked) == ()

    # -- leaderships ---------------------------------------------------------------

    @precondition(lambda self: bool(self.granted))
    @rule(data=st.data(), confirm_count=st.integers(1, 3))
    def confirm(self, data: st.DataObject, confirm_count: int) -> None:
        """A contender confirms what it was granted, now or long ago."""
        self.arrive()
        # The newest three come up often enough to be still there.
        leader = data.draw(st.sampled_from(self.granted[-3:]), label="which")
        contender = leader.contender
        event = LeadershipConfirmed(
            session_id=contender.session_id,
            component_id=contender.component_id,
            contender_id=contender.contender_id,
            leader_session_id=leader.affirmation.leader_session_id,
            confirm_count=confirm_count,
            address=f"h:{confirm_count}",
        )
        present = self.leaders.get(contender.component_id)
        if present is leader:
            leader.confirm_count = max(leader.confirm_count, confirm_count)
            assert self.tell(event) == (
                AcceptConfirmation(
                    session_id=contender.session_id, component_id=contender.component_id
                ),
            )
        else:
            assert self.tell(event) == (
                RefuseConfirmation(
                    session_id=contender.session_id,
                    component_id=contender.component_id,
                    is_undecided=False,
                ),
            )

    @rule(component_id=components)
    def revoke(self, component_id: str) -> None:
        """An operator ends a leadership, if there is one."""
        self.arrive()
        leader = self.leaders.get(component_id)
        revoked: tuple[Affirmation, ...] = ()
        if leader is not None:
            revoked = (self.end(component_id),)
            self.queues[component_id].remove(leader.contender)
            self.queues[component_id].append(leader.contender)
        assert (
            self.tell(RevokeRequested(component_id=component_id), revoked=revoked) == ()
        )

    @precondition(lambda self: bool(self.granted))
    @rule(data=st.data())
    def acknowledge_revocation(self, data: st.DataObject) -> None:
        """Somebody says that it has stopped: the holder, or anybody else."""
        self.arrive()
        leader = data.draw(st.sampled_from(self.granted[-3:]), label="what")
        component_id = leader.contender.component_id
        contender = data.draw(
            st.sampled_from([leader.contender, *self.queues[component_id]]), label="who"
        )
        if (
            contender == leader.contender
            and contender in self.queues[component_id]
            and component_id not in self.leaders
            and self.ended[component_id] is leader
        ):
            self.free_ns[component_id] = 0
        event = RevocationAcknowledged(
            session_id=contender.session_id,
            component_id=component_id,
            contender_id=contender.contender_id,
            epoch=leader.affirmation.epoch,
        )
        assert self.tell(event) == ()

    # -- what always holds ---------------------------------------------------------

    @invariant()
    def one_leader_or_none(self) -> None:
        """E1: who leads is who was granted last, unless that is over."""
        for component in self.core.components:
            leader = self.leaders.get(component.component_id)
            assert (component.leadership is None) == (leader is None)
            if leader is not None:
                assert component.affirmation() == leader.affirmation
                last = max(
                    granted.affirmation.epoch
                    for granted in self.granted
                    if granted.contender.component_id == component.component_id
                )
                assert leader.affirmation.epoch == last

    @invariant()
    def queue_is_in_order(self) -> None:
        """E1, E8: none is lost, doubled or overtaken."""
        for component in self.core.components:
            assert [
                (contender.session_id, contender.contender_id)
                for contender in component.in_order()
            ] == [
                (contender.session_id, contender.contender_id)
                for contender in self.queues[component.component_id]
            ]

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """E1: each that may be granted has been, as of the core's last step."""
        if self.core_ns() == self.now_ns:
            assert [self.next_in(component_id) for component_id in COMPONENTS] == [
                None
            ] * len(COMPONENTS)

    @invariant()
    def publications_rise(self) -> None:
        """R2, R3: each outranks the last, and between two leaders there is none."""
        for component_id, published in self.publications.items():
            for before, after in itertools.pairwise(published):
                assert before.rank < after.rank
                if before.leader is not None and after.leader is not None:
                    assert before.epoch == after.epoch
            leader = self.leaders.get(component_id)
            if leader is not None and leader.confirm_count:
                last = published[-1]
                assert last.epoch == leader.affirmation.epoch
                assert last.confirm_count == leader.confirm_count
                assert last.leader is not None
                assert last.leader.address == f"h:{leader.confirm_count}"
            elif published:
                assert published[-1].leader is None


TestElectionMachine = pytest.mark.proves("E1", "E2", "E3", "E4", "E8", "R2", "R3")(
    ElectionMachine.TestCase
)
# A leadership that is granted, confirmed, affirmed, revoked and passed on takes many
# steps among all that may happen meanwhile.
TestElectionMachine.settings = machine_settings(examples=150, steps=80)
