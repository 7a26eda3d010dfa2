"""
`KeyFlights`: questions for keys on their way out, to nodes and to the proxy; pure.

What waits in a lane (`queryablestate.client.coalescing`) is cut into flights.  A flight
goes to its node where there is a way to it (`queryablestate.client.direct`), otherwise
to the proxy.  The proxy is asked, too, when the node has refused, is late, or is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

from nameservice.clock import NS_PER_MS
from queryablestate.client.coalescing import Flight, Lane, StateTraffic
from queryablestate.client.direct import NodeWays
from queryablestate.client.events import SendRequest
from queryablestate.client.floors import split_floor
from queryablestate.client.requests import UNANSWERED, KeysRead
from queryablestate.client.session import QuerySession
from queryablestate.client.step import (
    NEVER_NS,
    QueryOutbox,
    longer_pause,
    milliseconds,
)
from queryablestate.client.ways import DirectRoute, NodeWay
from queryablestate.wire.direct import AskNode
from queryablestate.wire.questions import Ask


__all__ = ["KeyFlights"]

_FIRST_PLACE: Final = [0]
_DIRECT_KEY_COUNT_MAX: Final = 1_000
"""The most keys of a question that a node answers in its loop."""


@final
class KeyFlights:
    """
    Lanes that something waits in, and flights that are under way.

    Not thread-safe; a `KeyReads` owns it.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        ways: Likewise.
        flight_count_max: Questions that may be under way.

    Attributes:
        under_way: By number; not to be changed.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        session: QuerySession,
        ways: NodeWays,
        *,
        flight_count_max: int,
    ) -> None:
        self._outbox = outbox
        self._session = session
        self._ways = ways
        self._flight_count_max = flight_count_max
        self._lanes: dict[Lane, None] = {}  # those that something waits in
        self.under_way: dict[int, Flight] = {}

    # -- queries -------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether there is anything that `send` might send, now or later."""
        return bool(self._lanes)

    def due_ns(self) -> int:
        """Return when `send` must be called again."""
        due_ns = NEVER_NS
        if len(self.under_way) < self._flight_count_max:
            for lane in self._lanes:
                if not lane.traffic.is_stale:
                    due_ns = min(due_ns, lane.due_ns(now_ns=self._outbox.now_ns))
        return due_ns

    def expiry_ns(self) -> int:
        """Return when the first question under way expires."""
        return min((f.deadline_ns for f in self.under_way.values()), default=NEVER_NS)

    def check_invariants(self, lanes: Iterable[Lane]) -> None:
        """Assert what holds of *lanes*, all that there are."""
        assert self._session.secret is not None or not self.under_way
        counts: dict[Lane, int] = {}
        for flight in self.under_way.values():
            counts[flight.lane] = counts.get(flight.lane, 0) + 1
            assert len(flight.keys) == len(flight.reads) == len(flight.places)
            assert flight.is_proxied or flight.way is not None
            assert not flight.is_over
        for lane in lanes:
            assert lane.flight_count == counts.get(lane, 0)
            assert not lane.keys or lane in self._lanes
            assert len(lane.keys) == len(lane.reads) == len(lane.places)

    # -- lanes -----------------------------------------------------------------------

    def add(self, lanes: Iterable[Lane]) -> None:
        """Send from *lanes*: something was put into them."""
        for lane in lanes:
            self._lanes[lane] = None

    def forget(self, lanes: Iterable[Lane]) -> None:
        """Send nothing more from *lanes*."""
        for lane in lanes:
            self._lanes.pop(lane, None)

    def hold(self, lane: Lane) -> None:
        """Send nothing more from *lane* for a while."""
        lane.pause_ns = longer_pause(lane.pause_ns)
        lane.hold_until_ns = self._outbox.now_ns + lane.pause_ns

    def put_back(self, flight: Flight) -> None:
        """Have what was under way asked again, by the route that it came by."""
        lane = flight.lane
        lane.put_back(flight)
        lane.purge()
        if lane.keys:
            self._lanes[lane] = None

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        for number, flight in tuple(self.under_way.items()):
            if all(read.is_done for read in flight.reads):
                self.land(number)
        for lane in self._lanes:
            lane.purge()
        self._lanes = {lane: None for lane in self._lanes if lane.keys}

    def land(self, number: int) -> Flight:
        """Return a flight that is over."""
        flight = self.under_way.pop(number)
        flight.is_over = True
        flight.lane.flight_count -= 1
        return flight

    def expire(self) -> None:
        """Forget what was never answered."""
        now_ns = self._outbox.now_ns
        late = [n for n, f in self.under_way.items() if f.deadline_ns <= now_ns]
        for number in late:
            self.land(number)

    # -- what goes out -----------------------------------------------------------------

    def ask_now(self, read: KeysRead, traffic: StateTraffic) -> SendRequest | None:
        """
        Ask for one key by the shortest way, or return None if that is not open.

        No other request may wait for anything.  What this sends is what `send` would,
        with a fifth of the calls.
        """
        if traffic.is_stale or traffic.rows_table is None:
            return None
        outbox = self._outbox
        now_ns = outbox.now_ns
        if now_ns >= traffic.refresh_due_ns:
            return None
        route = traffic.route
        assert route is not None
        secret = self._session.secret
        assert secret is not None
        try:
            keys = route.key_codec.storage_keys(read.keys)
        except Exception:  # noqa: BLE001 - the long way tells what is wrong with it
            return None
        lane = traffic.rows_table[(keys[0][0] << 8) | keys[0][1]]
        if lane.flight_count or now_ns < lane.hold_until_ns:
            return None
        deadline_ns = read.deadline_ns
        flight = Flight(lane, keys, [read], _FIRST_PLACE, now_ns, deadline_ns)
        direct = traffic.direct
        way = None
        if direct is not None:
            # If a way is to be opened, that is done with the next step.
            way = self._ways.way_for(direct, flight)
            if way is not None and way.shown.get(direct.ticket_id) is not direct.ticket:
                return None
        read.open_count = 1
        read.rows = [UNANSWERED]
        outbox.number = number = outbox.number + 1
        self.under_way[number] = flight
        lane.flight_count = 1
        lane.sent_ns = now_ns
        if way is not None:
            assert direct is not None
            self._ways.asked(way, flight)
            ask = AskNode(
                request_id=number,
                ticket_id=direct.ticket_id,
                operation=lane.operation,
                deadline_ms=-(-(deadline_ns - now_ns) // NS_PER_MS),
            )
            return SendRequest(ask, keys, way.link)
        flight.is_proxied = True
        return SendRequest(
            Ask(
                request_id=number,
                session=secret,
                state_number=route.state_number,
                assignment_version=route.version,
                node_index=lane.node_index,
                operation=lane.operation,
                key_count=1,
                deadline_ms=-(-(deadline_ns - now_ns) // NS_PER_MS),
            ),
            keys,
        )

    def send(self) -> None:
        """Send what may be sent."""
        session = self._session
        assert session.secret is not None
        outbox = self._outbox
        now_ns = outbox.now_ns
        emptied: list[Lane] = []
        for lane in self._lanes:
            if lane.traffic.is_stale or now_ns < lane.hold_until_ns:
                continue
            direct = lane.traffic.direct
            key_count_max = session.key_count_max
            if direct is not None and key_count_max > _DIRECT_KEY_COUNT_MAX:
                key_count_max = _DIRECT_KEY_COUNT_MAX
            while (
                lane.keys
                and len(self.under_way) < self._flight_count_max
                and lane.may_send(key_count_max, now_ns=now_ns)
            ):
                flight = lane.cut(
                    key_count_max, session.frame_size_bytes_max, now_ns=now_ns
                )
                number = outbox.next_number()
                self.under_way[number] = flight
                outbox.expires_at(flight.deadline_ns)
                way = self._ways.way_for(direct, flight)
                if direct is None or way is None:
                    self.ask_proxy(number, flight)
                else:
                    self._ask_node(number, flight, direct, way)
            if not lane.keys:
                emptied.append(lane)
        for lane in emptied:
            del self._lanes[lane]

    def ask_proxy(self, number: int, flight: Flight) -> None:
        """Ask the proxy for *flight*."""
        lane = flight.lane
        secret = self._session.secret
        assert secret is not None
        generation, batch_id = split_floor(lane.least)
        ask = Ask(
            request_id=number,
            session=secret,
            state_number=lane.route.state_number,
            assignment_version=lane.route.version,
            node_index=lane.node_index,
            operation=lane.operation,
            key_count=len(flight.keys),
            deadline_ms=milliseconds(flight.deadline_ns - self._outbox.now_ns),
            min_batch_id=batch_id,
            min_generation=generation,
        )
        flight.is_proxied = True
        self._outbox.send(ask, flight.keys)

    def _ask_node(
        self, number: int, flight: Flight, direct: DirectRoute, way: NodeWay
    ) -> None:
        """Ask a node for *flight*."""
        lane = flight.lane
        self._ways.show(way, direct)
        generation, batch_id = split_floor(lane.least)
        ask = AskNode(
            request_id=number,
            ticket_id=direct.ticket_id,
            operation=lane.operation,
            deadline_ms=milliseconds(flight.deadline_ns - self._outbox.now_ns),
            min_batch_id=batch_id,
            min_generation=generation,
        )
        self._ways.asked(way, flight)
        self._outbox.send_to_node(way.link, ask, flight.keys)

    # -- what nodes do not answer ------------------------------------------------------

    def ask_late(self) -> None:
        """Ask the proxy for what nodes have not answered in time (rule D4)."""
        if self._ways.due_ns() <= self._outbox.now_ns:
            self._ask_proxy_for(self._ways.take_late())

    def leave(self, way: NodeWay) -> None:
        """Ask the proxy for what was asked by a way that is not open any more."""
        flights = [one for one in self.under_way.values() if one.way is way]
        self._ask_proxy_for(flights)
        for flight in flights:
            flight.way = None

    def _ask_proxy_for(self, flights: Sequence[Flight]) -> None:
        """Ask the proxy for those of *flights* that are under way, and it was not."""
        wanted = set(flights)
        for number, flight in list(self.under_way.items()):
            if flight in wanted and not flight.is_proxied:
                self.ask_proxy(number, flight)
