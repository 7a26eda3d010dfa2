"""A client's process: the shipped `ClientCore`, and what a shell does around it."""

from __future__ import annotations

import itertools
from functools import partial
from random import Random
from typing import TYPE_CHECKING, final

from election.holder import DeliverGrant, DeliverRevoke
from leaderserver import codec
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.core.core import ClientCore
from leaderserver.client.core.events import (
    AnnounceSession,
    CallAsked,
    ClientEffect,
    ClientEvent,
    CloseAsked,
    CompleteCall,
    DeliverToContender,
    DeliverToRetriever,
    FailOpening,
    JoinTopic,
    LeaveTopic,
    LinkClosed,
    LinkOpened,
    MessageReceived,
    ReportToContender,
    ReportToRetriever,
    RetrieverRemoved,
    SendMessage,
    TimeWentBy,
)
from leaderserver.messages import (
    Request,
    RequestBody,
    RevocationFinishedRequest,
    SessionEnded,
)
from leaderserver.store_messages import CommitRequest, PutRecord
from nameservice.errors import EpochAheadError, SeveralServersError
from tests.simulation.application import Election, Listener
from tests.simulation.network import Path
from tests.simulation.timeline import NodeClock, Process


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from election.contender import LeaderSession
    from leaderserver.messages import ReplyBody, ToServer
    from nameservice.errors import NameServiceError
    from tests.simulation.scenario import ClientPlan
    from tests.simulation.server import ServerProcess
    from tests.simulation.world import World


__all__ = ["ClientProcess"]

_SPIN_COUNT_MAX = 8


@final
class ClientProcess(Process):
    """
    One client.

    Attributes:
        world: Everything else.
        plan: Its configuration and habits.
        clock: What it takes for time.
        core: The shipped core.
        elections: Its contenders.
        listeners: Its retrievers.
        topics: Which broadcasts it hears.
        path: What lies between it and the server.
        peer: The name of its present connection, or None while it has none.
        server: The process at the other end of it.
        is_link_known: Whether it has been told that it is connected.
        connected_ns: When it was connected last, on the clock of the world.
        is_attached: Whether it hears the broadcasts of the present server.
        is_deaf: Whether it is cut off for good and need not agree with anybody.
        is_leaving: Whether it closes everything and ends.
        is_session_closing: Whether it has closed everything but its session.
    """

    def __init__(self, world: World, name: str, plan: ClientPlan) -> None:
        rng = Random(f"{world.scenario.seed}/{name}")
        super().__init__(name, world.timeline, rng)
        self.world = world
        self.plan = plan
        self.checker = world.checker
        self.clock: NodeClock = world.make_clock()
        self.core = ClientCore(
            ClientConfig(
                target="leaderserver://simulation",
                client=name,
                session_timeout_ns=plan.session_timeout_ns,
                lease_ns=plan.lease_ns,
                clears_on_suspended=plan.clears_on_suspended,
                seed=rng.randbytes(32),
            ),
            now_ns=self.clock.now_ns(),
        )
        self.elections: dict[str, Election] = {}
        self.listeners: dict[int, Listener] = {}
        self.topics: set[str] = set()
        self.path = Path()
        self.peer: str | None = None
        self.server: ServerProcess | None = None
        self.is_link_known = False
        self.connected_ns = 0
        self.is_attached = False
        self.is_deaf = False
        self.is_leaving = False
        self.is_session_closing = False
        self._ids = itertools.count(1)
        self._calls: dict[
            int, Callable[[ReplyBody | None, NameServiceError | None], None]
        ] = {}
        self._beliefs: dict[str, tuple[UUID, int] | None] = {}
        self._stepped_ns = -1
        self._spin_count = 0

    def start(self) -> None:
        """Begin to live."""
        self.step(TimeWentBy())
        for component_id in self.plan.contends_for:
            self.contend(component_id)
        for component_id in self.plan.retrieves:
            self.listen(component_id)

    @property
    def is_busy(self) -> bool:
        """Return whether it waits for an answer, or closes an election."""
        return bool(self._calls) or any(
            election.is_closing for election in self.elections.values()
        )

    # -- the application -----------------------------------------------------------

    def contend(self, component_id: str) -> None:
        """Enter a contender."""
        if self.is_leaving:
            return
        contender_id = f"{self.name}.{next(self._ids)}"
        election = Election(self, contender_id, component_id)
        self.elections[contender_id] = election
        election.start()

    def listen(self, component_id: str) -> None:
        """Enter a retriever."""
        if self.is_leaving:
            return
        retriever_id = next(self._ids)
        listener = Listener(self, retriever_id, component_id)
        self.listeners[retriever_id] = listener
        listener.start()

    def forget(self, retriever_id: int) -> None:
        """Take a retriever out."""
        del self.listeners[retriever_id]
        self.step(RetrieverRemoved(retriever_id=retriever_id))

    def leave(self) -> None:
        """Close everything, then the session, then exit."""
        self.is_leaving = True
        for retriever_id in tuple(self.listeners):
            self.forget(retriever_id)
        for election in tuple(self.elections.values()):
            election.close(reopens=False)
        self.leave_when_closed()

    def leave_when_closed(self) -> None:
        """End the session once the last election is closed, if that is wanted."""
        if not self.is_leaving or self.elections or self.is_session_closing:
            return
        self.is_session_closing = True
        self.call(
            lambda call_id, deadline_ns: CloseAsked(
                call_id=call_id, deadline_ns=deadline_ns
            ),
            lambda _, __: self.world.client_dies(self, report_ns=0),
        )

    def callback_ns(self) -> int:
        """Return how long a callback takes."""
        mean_ns = self.plan.callback_ns
        if self.world.is_calm:
            mean_ns = min(mean_ns, self.world.scenario.lease_ns_max // 50)
        duration_ns = round(self.rng.expovariate(1.0) * mean_ns)
        return (
            duration_ns if self.world.is_calm else self.world.within_faults(duration_ns)
        )

    def request(
        self,
        body: RequestBody,
        *,
        is_repeatable: bool = True,
        on_answer: Callable[[NameServiceError | None], None] | None = None,
    ) -> None:
        """Ask the server something, whatever it answers."""
        if self.is_leaving:
            return

        def answered(reply: ReplyBody | None, error: NameServiceError | None) -> None:
            kind = "answered" if error is None else type(error).__name__
            self.world.counts[f"{type(body).__name__}: {kind}"] += 1
            if on_answer is not None:
                on_answer(error)

        self.call(
            lambda call_id, deadline_ns: CallAsked(
                call_id=call_id,
                body=body,
                deadline_ns=deadline_ns,
                is_repeatable=is_repeatable,
            ),
            answered,
        )

    def commit(self, component_id: str, session: LeaderSession) -> None:
        """Write to the store under *session*, which may be over or somebody else's."""
        token = f"{self.name}/{next(self._ids)}"
        value = f"{token}|{session.leader_session_id}|{session.epoch}".encode()
        self.request(
            CommitRequest(
                component_id=component_id,
                leader_session_id=session.leader_session_id,
                epoch=session.epoch,
                operations=[PutRecord(path="p", value=value, version=None)],
            ),
            is_repeatable=False,
            on_answer=partial(self.checker.store.answered, token),
        )

    def call(
        self,
        event_of: Callable[[int, int], ClientEvent],
        answered: Callable[[ReplyBody | None, NameServiceError | None], None],
    ) -> None:
        """Ask something of the core that completes a call."""
        call_id = next(self._ids)
        self._calls[call_id] = answered
        patience_ns = max(2 * self.plan.session_timeout_ns, 1)
        self.step(event_of(call_id, self.clock.now_ns() + patience_ns))

    # -- the shell -----------------------------------------------------------------

    def step(self, event: ClientEvent) -> None:
        """Take one step of the core, and do what it says."""
        now_ns = self.clock.now_ns()
        effects = self.core.step(event, now_ns=now_ns)
        if self.world.is_traced:
            self.trace_step(event, effects)
        self.core.check_invariants()
        self._check_beliefs()
        self._check_progress(event, now_ns)
        for effect in effects:
            self._perform(effect)
        self._arm()

    def on_timer(self) -> None:
        """Take a step if one is due."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= self.clock.now_ns():
            self.step(TimeWentBy())
        else:
            self._arm()

    def _arm(self) -> None:
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.arm(self.clock.real_ns(deadline_ns))

    def _check_progress(self, event: ClientEvent, now_ns: int) -> None:
        if isinstance(event, TimeWentBy) and now_ns == self._stepped_ns:
            self._spin_count += 1
        else:
            self._spin_count = 0
        self._stepped_ns = now_ns
        self.checker.require(
            "a client's deadlines move on",
            self._spin_count < _SPIN_COUNT_MAX,
            f"{self.name} spins at {now_ns}",
        )

    def _check_beliefs(self) -> None:
        for election in self.elections.values():
            if election.is_closing:
                continue
            contender_id = election.contender_id
            belief = self.core.holder(contender_id)._belief
            if belief == self._beliefs.get(contender_id):
                continue
            self._beliefs[contender_id] = belief
            component_id = election.component_id
            if belief is None:
                self.checker.disbelieves(component_id, contender_id)
            else:
                self.checker.believes(
                    component_id,
                    contender_id,
                    belief[0],
                    now_ns=self.timeline.now_ns,
                    until_ns=self.clock.real_ns(belief[1]),
                )

    def _perform(self, effect: ClientEffect) -> None:
        match effect:
            case SendMessage(message=message):
                self._check_sent(message)
                self._send(codec.encode(message))
            case AnnounceSession() | FailOpening():
                pass
            case JoinTopic(component_id=component_id):
                self.topics.add(component_id)
            case LeaveTopic(component_id=component_id):
                self.topics.discard(component_id)
            case DeliverToContender(contender_id=contender_id, effect=delivered):
                election = self.elections.get(contender_id)
                if election is not None:
                    self._check_delivered(contender_id, delivered)
                    election.deliver(delivered)
            case ReportToContender(contender_id=contender_id, error=error):
                self._take_report(self.elections.get(contender_id), error)
            case ReportToRetriever(retriever_id=retriever_id, error=error):
                self._take_report(self.listeners.get(retriever_id), error)
            case DeliverToRetriever(retriever_id=retriever_id, event=event):
                listener = self.listeners.get(retriever_id)
                if listener is not None:
                    listener.deliver(event)
            case CompleteCall(call_id=call_id, reply=reply, error=error):
                answered = self._calls.pop(call_id, None)
                self.checker.require(
                    "a call is answered once", answered is not None, str(call_id)
                )
                assert answered is not None
                # Its caller is another thread, which wakes up a little later.
                self.after(self.rng.randrange(100_000), lambda: answered(reply, error))

    def _take_report(
        self, reported: Election | Listener | None, error: NameServiceError
    ) -> None:
        self.checker.require(
            "N1 one server is not taken for two",
            not isinstance(error, SeveralServersError),
            str(error),
        )
        self.world.counts["refusals reported"] += 1
        if reported is not None and isinstance(error, EpochAheadError):
            reported.ahead = error

    def _check_sent(self, message: ToServer) -> None:
        if not isinstance(message, Request):
            return
        body = message.body
        if isinstance(body, RevocationFinishedRequest):
            election = self.elections.get(body.contender_id)
            self.checker.require(
                "E4 a revocation is acknowledged when its callback has returned",
                election is None or not election.is_busy_with(body.epoch),
                f"{body.contender_id} epoch {body.epoch}",
            )

    def _check_delivered(
        self, contender_id: str, delivered: DeliverGrant | DeliverRevoke
    ) -> None:
        if isinstance(delivered, DeliverGrant):
            self.checker.require(
                "E4 a grant is delivered only while its lease runs",
                self.core.holder(contender_id).believes(
                    delivered.session.leader_session_id, now_ns=self.clock.now_ns()
                ),
                f"{contender_id} {delivered}",
            )

    def _check_session_ended(self) -> None:
        """E5: whose session the server has ended holds nothing, and is told."""
        told = [listener.core.told for listener in self.listeners.values()]
        claims = [
            self.core.holder(election.contender_id).claim
            for election in self.elections.values()
        ]
        self.checker.require(
            "E5 an ended session takes everything with it",
            not any(told) and not any(claims),
            f"{self.name} holds {claims} and is told {told}",
        )

    def _send(self, payload: bytes) -> None:
        """Send what the link takes now; the server may be gone without our knowing."""
        server, peer = self.server, self.peer
        if not self.is_link_known or server is None or peer is None:
            return
        self.world.network.transmit(
            self.path.to_server,
            lambda: server.run(lambda: server.receive(payload, peer)),
        )

    # -- the world -----------------------------------------------------------------

    def receive(self, payload: bytes) -> None:
        """Take what the server sent."""
        message = codec.decode_to_client(payload)
        session_id = self.core.session_id
        self.step(MessageReceived(message=message))
        if isinstance(message, SessionEnded) and message.session_id == session_id:
            self._check_session_ended()

    def link_opened(self) -> None:
        """Hear that the connection is there."""
        self.is_link_known = True
        self.step(LinkOpened())

    def link_closed(self) -> None:
        """Hear that it closed."""
        if self.is_link_known:
            self.is_link_known = False
            self.step(LinkClosed())

    def kill(self) -> None:
        """Die, and believe nothing any more."""
        super().kill()
        for election in self.elections.values():
            self.checker.disbelieves(election.component_id, election.contender_id)

    def trace(self, what: str, detail: str = "") -> None:
        """Write a line of the trace, if there is one."""
        self.world.trace(self.name, what, detail)

    def trace_step(self, event: ClientEvent, effects: Iterable[object]) -> None:
        """Write what happened and what follows."""
        self.world.trace_step(self.name, self.clock.now_ns(), event, effects)
