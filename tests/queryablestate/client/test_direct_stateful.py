"""
`QueryCore` that asks nodes itself, where nodes and the proxy do their worst (D5).

The world is that of `test_core_stateful`, and nodes beside it: connections to them come
to nothing or break, they answer late, as of an older batch, or refuse.  Single keys,
several, and counts are asked.  What has to hold stays as it was: every request ends
once and by its deadline, and what it is told is no older than what this client was told
before, by whichever way.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from queryablestate.client.config import QueryConfig
from queryablestate.client.core import QueryCore
from queryablestate.client.events import (
    ConnectionMade,
    ConnectNode,
    DisconnectNode,
    MessageCame,
    NodeConnected,
    NodeFailed,
    QueryEffect,
    RequestsAsked,
    SendRequest,
)
from queryablestate.client.requests import NodeRead, Request, RouteRead
from queryablestate.client.routes import Route
from queryablestate.wire.clients import StateDescribed
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.direct import (
    ASK_PROXY,
    NOT_DIRECTLY,
    TICKET_REFUSED,
    AskNode,
    DirectAccess,
    ShowTicket,
)
from queryablestate.wire.questions import Ask, CountKeys, Reading, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.client.test_core_stateful import (
    MS,
    Asked,
    QueryMachine,
    Sent,
)
from tests.queryablestate.scripted_proxy import error_frame
from tests.tiers import machine_settings


NODES = ["tcp://10.0.1.1:1", "tcp://10.0.1.2:1"]
LIFE_MS = 4_000
MANY = 1_000_000


@define(eq=False)
class AskedNode:
    """
    A question on its way to a node, or at it.

    It goes by the ticket that was shown before it: a later one may have its number.
    """

    message: AskNode
    keys: list[bytes]
    link: int
    version: int


class DirectMachine(QueryMachine):
    def __init__(self) -> None:
        super().__init__()
        config = QueryConfig(request_count_max=30, flight_count_max=3, is_direct=True)
        self.core = QueryCore(config, now_ns=0)
        self.opening: dict[int, str] = {}
        self.links: dict[int, str] = {}
        self.shown: dict[tuple[int, int], bytes] = {}
        self.nodes_wire: list[AskedNode] = []
        self.route: Route | None = None

    # -- plumbing ----------------------------------------------------------------------

    def perform(self, effect: QueryEffect) -> None:
        """Do what the core says."""
        match effect:
            case ConnectNode(link=link, address=address):
                assert address in NODES
                assert address not in {*self.opening.values(), *self.links.values()}
                self.opening[link] = address
            case DisconnectNode(link=link):
                self.over(link)
            case SendRequest(message, keys, link) if link:
                assert link in self.links, "only what is open is asked"
                if isinstance(message, ShowTicket):
                    self.shown[link, message.ticket_id] = message.ticket
                    return
                assert isinstance(message, AskNode)
                version, issued_ns = self.ticket(link, message)
                assert self.now_ns < issued_ns + LIFE_MS * MS, "a ticket that is over"
                assert version <= self.state.version
                asked = AskedNode(message, list(keys or ()), link, version)
                self.nodes_wire.append(asked)
            case _:
                super().perform(effect)

    def begin_anew(self) -> None:
        """Do as a shell after a step that was broken off."""
        for link in [*self.opening, *self.links]:
            self.over(link)
        super().begin_anew()

    def ticket(self, link: int, message: AskNode) -> tuple[int, int]:
        """Return the version and the time of the ticket that a question names."""
        version, issued_ns = self.shown[link, message.ticket_id].split()
        return int(version), int(issued_ns)

    def over(self, link: int) -> None:
        """Forget a connection to a node."""
        self.opening.pop(link, None)
        self.links.pop(link, None)
        self.shown = {one: held for one, held in self.shown.items() if one[0] != link}
        self.nodes_wire = [one for one in self.nodes_wire if one.link != link]

    def described(self, number: int) -> StateDescribed:
        """Return what the proxy says of the state, with a ticket."""
        ticket = f"{self.state.version} {self.now_ns}".encode()
        return StateDescribed(
            request_id=number,
            description=self.state.description,
            direct=DirectAccess(ticket=ticket, life_ms=LIFE_MS, addresses=tuple(NODES)),
        )

    def complete(self, request: Request) -> None:
        """Hold an answer against what was true."""
        if not isinstance(request, NodeRead | RouteRead):
            super().complete(request)
            return
        assert request not in self.done, "answered twice"
        assert request not in self.dropped, "nobody waits for it"
        self.done.add(request)
        asked = self.asked.pop(request)
        assert self.now_ns <= request.deadline_ns
        if request.error is not None:
            return
        if isinstance(request, RouteRead):
            self.route = request.route
            return
        told = divmod(request.result, MANY)
        assert told <= (self.state.generation, self.batch_id)
        for group, owner in enumerate(request.route.owners):
            if owner == request.node_index:
                assert told >= asked.floors.get(group, (0, 0))
                self.seen[group] = max(self.seen.get(group, (0, 0)), told)

    # -- the application ---------------------------------------------------------------

    @rule(deadline_ms=st.integers(1, 3_000))
    def ask_route(self, deadline_ms: int) -> None:
        """Ask for the route, by which counts are asked."""
        state = (self.state.job_id, self.state.state_name)
        read = RouteRead(None, state, self.now_ns, self.now_ns + deadline_ms * MS)
        self.asked[read] = Asked(read, dict(self.seen))
        self.step(RequestsAsked((read,)))

    @precondition(lambda self: self.route is not None)
    @rule(node_index=st.integers(0, 1), deadline_ms=st.integers(1, 3_000))
    def count(self, node_index: int, deadline_ms: int) -> None:
        """Ask one node how many keys it has."""
        assert self.route is not None
        read = NodeRead(
            None,
            (self.state.job_id, self.state.state_name),
            self.route,
            node_index,
            self.route.counting(),
            self.now_ns,
            self.now_ns + deadline_ms * MS,
        )
        self.asked[read] = Asked(read, dict(self.seen))
        self.step(RequestsAsked((read,)))

    @initialize(is_begun=st.sampled_from([True, True, False]))
    def begin(self, is_begun: bool) -> None:
        """Begin with a session, a route and open ways, most of the time."""
        super().begin(is_begun)
        if is_begun:
            self.ask_route(1_000)
            self.count_all(1_000)
            while self.opening:
                self.open_way("made")
            self.answer_all(age=0)

    @precondition(lambda self: self.route is not None)
    @rule(deadline_ms=st.integers(1, 3_000))
    def count_all(self, deadline_ms: int) -> None:
        """Ask both nodes."""
        for node_index in (0, 1):
            self.count(node_index, deadline_ms)

    # -- nodes -------------------------------------------------------------------------

    @precondition(lambda self: self.opening)
    @rule(what=st.sampled_from(["made", "made", "made", "failed", "refused"]))
    def open_way(self, what: str) -> None:
        """Make a connection to a node, or not."""
        link, address = next(iter(self.opening.items()))
        del self.opening[link]
        if what == "made":
            self.links[link] = address
            self.step(NodeConnected(link=link))
        else:
            self.step(NodeFailed(link=link, is_refused=what == "refused"))

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def lose_way(self, data: st.DataObject) -> None:
        """Break a connection to a node."""
        link = data.draw(st.sampled_from(list(self.links)))
        self.over(link)
        self.step(NodeFailed(link=link))

    @precondition(lambda self: self.nodes_wire)
    @rule(
        data=st.data(),
        is_again=st.sampled_from([False, False, False, True]),
        mood=st.sampled_from(
            ["answer"] * 8
            + ["late batch"] * 4
            + ["lose", "rubbish", STALE_ROUTE, "state-unavailable"]
            + [TICKET_REFUSED, ASK_PROXY, NOT_DIRECTLY]
        ),
    )
    def node_reacts(self, data: st.DataObject, is_again: bool, mood: str) -> None:
        """Have a node react to a question."""
        index = data.draw(st.integers(0, len(self.nodes_wire) - 1))
        asked = self.nodes_wire[index]
        if not is_again:
            del self.nodes_wire[index]
        number = asked.message.request_id
        match mood:
            case "lose":
                return
            case "answer" | "late batch":
                self.node_answers(asked, age=int(mood == "late batch"))
            case "rubbish":
                reading = Reading(generation=99, batch_id=99, age_ms=0)
                told = Told(request_id=number, reading=reading)
                self.step(MessageCame(told, b"\xc1", asked.link))
            case _:
                refusal = Refusal(request_id=number, code=mood)
                self.step(MessageCame(refusal, b"", asked.link))

    def node_answers(self, asked: AskedNode, *, age: int) -> None:
        """Answer truthfully, as of some batches ago."""
        message = asked.message
        node_index = NODES.index(self.links[asked.link])
        batch_id = max(self.batch_id - age, 0)
        code = ""
        if asked.version != self.state.version:
            code = STALE_ROUTE
        elif (message.min_batch_id or 0) > batch_id:
            code = NOT_DIRECTLY
        if code:
            refusal = Refusal(request_id=message.request_id, code=code)
            self.step(MessageCame(refusal, b"", asked.link))
            return
        for key in asked.keys:
            assert self.state.owners[int.from_bytes(key[:2], "big")] == node_index
        told, payload = self.told(message.request_id, asked.keys, batch_id)
        self.step(MessageCame(told, payload, asked.link))

    def told(self, number: int, keys: list[bytes], batch_id: int) -> tuple[Told, bytes]:
        """Return an answer for keys, or a count, as of a batch."""
        generation = self.state.generation
        row = self.values.encode_row((str(generation), batch_id))
        values: Any = [row] * len(keys) if keys else generation * MANY + batch_id
        reading = Reading(generation=generation, batch_id=batch_id, age_ms=0)
        return Told(request_id=number, reading=reading), encode_payload(values)

    def answer(self, sent: Sent, number: int, *, age: int) -> None:
        """Answer as the proxy; a count as its node would."""
        effect = sent.effect
        message = effect.message if isinstance(effect, SendRequest) else None
        if not isinstance(message, Ask) or not isinstance(message.operation, CountKeys):
            super().answer(sent, number, age=age)
        elif message.session not in self.sessions:
            self.respond(error_frame("unknown-session", number))
        elif message.assignment_version != self.state.version:
            self.respond(error_frame(STALE_ROUTE, number))
        else:
            batch_id = max(self.batch_id - age, message.min_batch_id or 0, 0)
            if batch_id > self.batch_id:
                self.respond(error_frame("deadline-exceeded", number, 1.0, "it waited"))
            else:
                self.respond(*self.told(number, [], batch_id))

    def settle(self) -> None:
        """Have everything that is asked answered."""
        for _ in range(500):
            if not self.asked:
                break
            if self.opening:
                self.open_way("made")
            elif self.nodes_wire:
                self.node_answers(self.nodes_wire.pop(0), age=0)
            elif self.wire:
                self.answer_oldest(age=0)
            elif self.connected is not None:
                self.step(ConnectionMade())
                if not self.wire:
                    self.jump_to_the_deadline()
            else:
                self.jump_to_the_deadline()
        assert not self.asked
        assert self.core.request_count == 0


TestDirectCore = pytest.mark.proves("D1", "D3", "D5", "Q1", "Q3")(
    DirectMachine.TestCase
)
TestDirectCore.settings = machine_settings(examples=100, steps=60)
