"""
`PageReads`: questions for all that one node holds of a state; pure.

A page of a scan and a count are asked of a node by the caller's own route, whose
staleness is the caller's business.

Where there is a way to the node (`queryablestate.client.direct`), it is asked without
the proxy, for a part of the time that there is: a node that has no answer by then drops
the question, and says so.  Then, or when nothing was said a moment later, the proxy is
asked: so one node never reads the same twice, and what takes longer goes through the
proxy for a while.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, final

from attrs import define

from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from nameservice.errors import RemoteProtocolError
from queryablestate.client.coalescing import StateTraffic
from queryablestate.client.direct import TICKET_PROBLEMS, NodeWays
from queryablestate.client.floors import (
    Floor,
    floor_of_reading,
    later_of,
    split_floor,
)
from queryablestate.client.requests import NodeRead, StaleRouteError
from queryablestate.client.session import QuerySession
from queryablestate.client.state_routes import StateRoutes
from queryablestate.client.step import NEVER_NS, QueryOutbox, milliseconds
from queryablestate.client.ways import DirectRoute, NodeWay
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.clients import ToClient
from queryablestate.wire.codec import decode_count
from queryablestate.wire.direct import ASK_PROXY, AskNode
from queryablestate.wire.questions import Ask, CountKeys, Reading, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE, error_of


__all__ = ["PageReads"]

_HOLD_NS: Final = 20 * NS_PER_MS
_PROXIED_NS_MIN: Final = NS_PER_SECOND
_PROXIED_NS_MAX: Final = 30 * NS_PER_SECOND
_NODE_PARTS: Final = 12
"""What part of the time a node is given."""
_LATE_PARTS: Final = 10
"""After what part of it the proxy is asked."""
_OVERLOADED: Final = "did-not-happen"
_OUTDATED: Final = frozenset({STALE_ROUTE, "unknown-job", "unknown-state"})


@final
@define(eq=False)
class _Flight:
    """
    One question under way.

    Attributes:
        read: What is asked.
        sent_ns: When it was sent.
        traffic: What was known of the state then, or None; the state may be forgotten
            before the answer is there, and what was seen of it counts.
        way: By which a node was asked, or None.
        link: The connection that it was asked over.
        late_ns: When the proxy is asked, too.
        is_proxied: Whether it was.
    """

    read: NodeRead
    sent_ns: int
    traffic: StateTraffic | None
    way: NodeWay | None = None
    link: int = 0
    late_ns: int = NEVER_NS
    is_proxied: bool = False


@final
class PageReads:
    """
    Everything that is asked of single nodes.

    Not thread-safe; a `QueryCore` owns it, and calls `tend` while there is a session.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        routes: What was seen of states, and their present routes.
        ways: The ways to nodes.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        session: QuerySession,
        routes: StateRoutes,
        ways: NodeWays,
    ) -> None:
        self._outbox = outbox
        self._session = session
        self._routes = routes
        self._ways = ways
        # What waits to be sent, and what is under way by its number.
        self._waiting: dict[NodeRead, None] = {}
        self._under_way: dict[int, _Flight] = {}
        self._direct: dict[int, _Flight] = {}  # those that only a node was asked

    # -- queries -------------------------------------------------------------------

    @property
    def under_way(self) -> Container[int]:
        """Return the numbers of the questions that are under way."""
        return self._under_way.keys()

    @property
    def under_way_count(self) -> int:
        """Return how many questions are under way."""
        return len(self._under_way)

    def due_ns(self) -> int:
        """Return when `tend` must be called again."""
        due_ns = NEVER_NS
        for asked in self._direct.values():
            due_ns = min(due_ns, asked.late_ns)
        for read in self._waiting:
            due_ns = min(due_ns, read.hold_until_ns)
        return due_ns

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        assert self._session.secret is not None or not self._under_way
        for number, flight in self._under_way.items():
            assert flight.is_proxied or self._direct[number] is flight
        assert self._direct.keys() <= self._under_way.keys()

    # -- what is asked -----------------------------------------------------------------

    def ask(self, read: NodeRead) -> None:
        """Take a question."""
        self._waiting[read] = None

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        self._waiting = {read: None for read in self._waiting if not read.is_done}

    def expire(self) -> None:
        """Forget what was never answered."""
        for number in [n for n, f in self._under_way.items() if f.read.is_done]:
            self._land(number)

    def session_ended(self) -> None:
        """Queue whatever is under way again, before what waits already."""
        under_way = [f.read for f in self._under_way.values() if not f.read.is_done]
        self._waiting = dict.fromkeys((*under_way, *self._waiting))
        self._under_way.clear()
        self._direct.clear()

    def tend(self) -> Sequence[NodeWay]:
        """Send what is due; return the ways that were closed since nothing came."""
        closed = self._ask_late() if self._direct else ()
        if self._waiting:
            self._send()
        return closed

    def _send(self) -> None:
        now_ns = self._outbox.now_ns
        for read in [r for r in self._waiting if r.hold_until_ns <= now_ns]:
            del self._waiting[read]
            number = self._outbox.next_number()
            traffic = self._routes.traffic.get(read.state)
            flight = self._under_way[number] = _Flight(read, now_ns, traffic)
            direct, way = self._way_for(read)
            if direct is None or way is None:
                self._ask_proxy(number, flight)
            else:
                self._ask_node(number, flight, direct, way)

    def _way_for(self, read: NodeRead) -> tuple[DirectRoute | None, NodeWay | None]:
        """Return by which ticket and way its node is asked; None if the proxy is."""
        traffic = self._routes.traffic.get(read.state)
        if traffic is None or traffic.route is not read.route or traffic.is_stale:
            return None, None
        now_ns = self._outbox.now_ns
        if now_ns >= traffic.refresh_due_ns:
            self._routes.want(traffic)
        until_ns, _ = traffic.page_holds.get(type(read.operation), (0, 0))
        if now_ns < until_ns:
            return None, None
        direct = traffic.direct
        return direct, self._ways.way_to(direct, read.node_index)

    def _ask_node(
        self, number: int, flight: _Flight, direct: DirectRoute, way: NodeWay
    ) -> None:
        """Ask the node of *flight*."""
        read, now_ns = flight.read, self._outbox.now_ns
        self._ways.show(way, direct)
        self._ways.page_asked()
        left_ns = read.deadline_ns - now_ns
        generation, batch_id = split_floor(read.least)
        ask = AskNode(
            request_id=number,
            ticket_id=direct.ticket_id,
            operation=read.operation,
            deadline_ms=milliseconds(left_ns // _NODE_PARTS),
            min_batch_id=batch_id,
            min_generation=generation,
        )
        flight.way, flight.link = way, way.link
        flight.late_ns = now_ns + left_ns // _LATE_PARTS
        self._direct[number] = flight
        self._outbox.send_to_node(way.link, ask, ())

    def _ask_late(self) -> Sequence[NodeWay]:
        """Ask the proxy for what nodes were asked that are late, or gone."""
        now_ns = self._outbox.now_ns
        closed: list[NodeWay] = []
        for number, flight in list(self._direct.items()):
            way = flight.way
            assert way is not None
            if way.link == flight.link:
                if now_ns < flight.late_ns:
                    continue
                self._hold(flight.read)
                if self._ways.page_late(way, asked_ns=flight.sent_ns):
                    closed.append(way)
            if not flight.read.is_done:
                self._ask_proxy(number, flight)
            else:
                self._land(number)
        return closed

    def _hold(self, read: NodeRead) -> None:
        """Ask the proxy for questions of this kind for a while."""
        traffic = self._routes.traffic.get(read.state)
        if traffic is not None:
            kind = type(read.operation)
            _, hold_ns = traffic.page_holds.get(kind, (0, 0))
            hold_ns = min(max(_PROXIED_NS_MIN, 2 * hold_ns), _PROXIED_NS_MAX)
            traffic.page_holds[kind] = (self._outbox.now_ns + hold_ns, hold_ns)

    def _ask_proxy(self, number: int, flight: _Flight) -> None:
        """Ask the proxy for *flight*."""
        flight.is_proxied = True
        self._direct.pop(number, None)
        read = flight.read
        secret = self._session.secret
        assert secret is not None
        operation = read.operation
        generation, batch_id = split_floor(read.least)
        ask = Ask(
            request_id=number,
            session=secret,
            state_number=read.route.state_number,
            assignment_version=read.route.version,
            node_index=read.node_index,
            operation=operation,
            key_count=1 if isinstance(operation, CountKeys) else operation.limit,
            deadline_ms=milliseconds(read.deadline_ns - self._outbox.now_ns),
            min_batch_id=batch_id,
            min_generation=generation,
        )
        self._outbox.send(ask, ())

    def _ask_later(self, read: NodeRead) -> None:
        read.hold_until_ns = self._outbox.now_ns + _HOLD_NS
        self._waiting[read] = None

    def _land(self, number: int) -> NodeRead:
        """Return what is not under way any more."""
        self._direct.pop(number, None)
        return self._under_way.pop(number).read

    # -- answers ---------------------------------------------------------------------

    def node_said(
        self, link: int, message: ToClient, payload: bytes | memoryview
    ) -> None:
        """Take what a node says to a question that is under way."""
        number = message.request_id
        flight = self._under_way[number]
        way = flight.way
        if way is None or way.link != link or flight.link != link:
            return  # late
        read = flight.read
        traffic = self._routes.traffic.get(read.state)
        match message:
            case Told():
                self._ways.page_answered(way)
                if traffic is not None:
                    traffic.direct_pause_ns = 0
                    traffic.page_holds.pop(type(read.operation), None)
                self.answered(message, payload)
            case Refusal(code=code):
                flight.way = None
                self._node_refused(number, flight, way, traffic, code)
            case _:
                pass

    def _node_refused(
        self,
        number: int,
        flight: _Flight,
        way: NodeWay,
        traffic: StateTraffic | None,
        code: str,
    ) -> None:
        """Ask the proxy for what a node does not answer, and for a route if need be."""
        self._ways.node_refused(way, code)
        if code in TICKET_PROBLEMS:
            if traffic is not None:
                self._routes.ticket_refused(traffic)
        elif code != ASK_PROXY:
            self._hold(flight.read)
        if flight.read.is_done:
            self._land(number)
        elif not flight.is_proxied:
            self._ask_proxy(number, flight)

    def answered(self, told: Told, payload: bytes | memoryview) -> None:
        """Take the answer to a question that is under way."""
        known = self._under_way[told.request_id].traffic
        read = self._land(told.request_id)
        if read.is_done:
            return
        try:
            result = (
                decode_count(payload)
                if isinstance(read.operation, CountKeys)
                else read.route.page_rows(payload)
            )
        except RemoteProtocolError as error:
            self._outbox.fail(read, error)
            return
        floor = self._floor_of(read, told.reading, known)
        if floor is not None:
            if told.reading.generation == floor[0]:
                read.least = later_of(read.least, floor)
            self._ask_later(read)
            return
        read.result = result
        read.next_start = told.next_start
        read.reading = told.reading
        self._outbox.finish(read)

    def _floor_of(
        self, read: NodeRead, reading: Reading, known: StateTraffic | None
    ) -> Floor | None:
        """Note what a node has answered to *read*, or return how new it should be."""
        traffic = self._routes.traffic.get(read.state)
        if traffic is None or traffic.route is None:
            traffic = known
        if traffic is None:
            return None
        present = traffic.route
        if present is None or present.state_number != read.route.state_number:
            return None  # it is another state of the same name
        route, seen = read.route, floor_of_reading(reading)
        node_id = route.node_ids[read.node_index]
        owners = enumerate(route.owners)
        groups = (group for group, one in owners if one == read.node_index)
        if present is route:
            floor = traffic.floors.check(node_id, groups, seen)
        else:
            floor = traffic.floors.check_late(node_id, groups, seen, present)
        if floor is None:
            traffic.pause_ns = 0
        return floor

    def refused(self, refusal: Refusal) -> None:
        """Take the refusal of a question that is under way."""
        read = self._land(refusal.request_id)
        if read.is_done:
            return
        if refusal.code == _OVERLOADED:
            self._ask_later(read)
            return
        error = StaleRouteError() if refusal.code in _OUTDATED else error_of(refusal)
        if isinstance(error, StateUnavailableError):
            error = StateUnavailableError(
                *read.state, error.key_groups, error.retry_after_seconds, error.detail
            )
        self._outbox.fail(read, error)
