"""
`KeyReads`: questions for keys and for routes, on their way out and back; pure.

What leaves goes through a lane (`queryablestate.client.coalescing`), by the route to
its state.  What comes back is an answer, or a refusal that says what to do next: ask by
another route, ask later, or fail the reads that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from nameservice.clock import NS_PER_MS
from nameservice.errors import NameServiceError, RemoteProtocolError
from queryablestate.client.coalescing import Flight, Lane, Part, StateTraffic
from queryablestate.client.direct import TICKET_PROBLEMS, NodeWays
from queryablestate.client.events import SendRequest
from queryablestate.client.floors import Floor, floor_of_reading, split_floor
from queryablestate.client.requests import (
    UNANSWERED,
    KeysRead,
    NodeRead,
    RouteRead,
    StateName,
)
from queryablestate.client.routes import Route
from queryablestate.client.session import QuerySession
from queryablestate.client.step import (
    NEVER_NS,
    QueryOutbox,
    longer_pause,
    milliseconds,
)
from queryablestate.client.ways import DirectRoute, NodeWay
from queryablestate.errors import (
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.clients import (
    DescribeState,
    StateDescribed,
    StateDescription,
    ToClient,
)
from queryablestate.wire.direct import AskNode, DirectAccess, ShowTicket
from queryablestate.wire.questions import Ask, Reading, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE, error_of


__all__ = ["KeyReads"]

_FIRST_PLACE: Final = [0]
_OVERLOADED: Final = "did-not-happen"
_ILLEGAL: Final = "illegal"
_UNAVAILABLE: Final = "state-unavailable"
_UNKNOWN: Final = frozenset({"unknown-job", "unknown-state"})
_DIRECT_KEY_COUNT_MAX: Final = 1_000
"""The most keys of a question that a node answers in its loop."""


@final
class KeyReads:
    """
    Everything that is asked of states, by key.

    Not thread-safe; a `QueryCore` owns it, and calls `tend` while there is a session.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        flight_count_max: Questions that may be under way.
        answer_timeout_ns: After how long a question for a route is put again.
        route_refresh_ns: How old a route may get before it is asked for in passing.
        is_direct: Whether nodes are asked without the proxy where that is possible.

    Attributes:
        flights: Questions for keys that are under way, by number; not to be changed.
        ways: The ways to nodes.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        session: QuerySession,
        *,
        flight_count_max: int,
        answer_timeout_ns: int,
        route_refresh_ns: int,
        is_direct: bool,
    ) -> None:
        self._outbox = outbox
        self._session = session
        self._flight_count_max = flight_count_max
        self._answer_timeout_ns = answer_timeout_ns
        self._route_refresh_ns = route_refresh_ns
        self._traffic: dict[StateName, StateTraffic] = {}
        self._wanting: dict[StateTraffic, None] = {}
        self._describing: dict[int, StateTraffic] = {}
        self._lanes: dict[Lane, None] = {}  # those that something waits in
        self.flights: dict[int, Flight] = {}
        self.ways = NodeWays(outbox, is_wanted=is_direct)

    # -- queries -------------------------------------------------------------------

    @property
    def flight_count(self) -> int:
        """Return how many questions for keys are under way."""
        return len(self.flights)

    @property
    def state_count(self) -> int:
        """Return of how many states something is known or asked."""
        return len(self._traffic)

    def is_describing(self, number: int) -> bool:
        """Return whether message *number* asks for a route."""
        return number in self._describing

    def due_ns(self) -> int:
        """Return when `tend` must be called again."""
        due_ns = NEVER_NS
        for traffic in self._wanting:
            due_ns = min(due_ns, traffic.describe_due_ns)
        if len(self.flights) < self._flight_count_max:
            for lane in self._lanes:
                if not lane.traffic.is_stale:
                    due_ns = min(due_ns, lane.due_ns(now_ns=self._outbox.now_ns))
        return due_ns

    def flight_expiry_ns(self) -> int:
        """Return when the first question under way expires."""
        return min((f.deadline_ns for f in self.flights.values()), default=NEVER_NS)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        if self._session.secret is None:
            assert not self.flights
            assert not self._describing
        counts: dict[Lane, int] = {}
        for flight in self.flights.values():
            counts[flight.lane] = counts.get(flight.lane, 0) + 1
            assert len(flight.keys) == len(flight.reads) == len(flight.places)
            assert flight.is_proxied or flight.way is not None
            assert not flight.is_over
        for traffic in self._traffic.values():
            for lane in traffic.lanes():
                assert lane.flight_count == counts.get(lane, 0)
                assert not lane.keys or lane in self._lanes
                assert len(lane.keys) == len(lane.reads) == len(lane.places)
            assert not traffic.is_wanting or traffic in self._wanting
        self._check_open_counts()

    def _check_open_counts(self) -> None:
        """Assert that every key of every read waits in exactly one place."""
        counts: dict[KeysRead, int] = {}
        for read, places in self._all_parts():
            count = len(read.keys) if places is None else len(places)
            counts[read] = counts.get(read, 0) + count
        for request in self._outbox.requests:
            if isinstance(request, KeysRead):
                assert request.open_count == counts.get(request, 0) > 0

    def _all_parts(self) -> Iterator[Part]:
        for flight in self.flights.values():
            yield from flight.parts()
        for traffic in self._traffic.values():
            yield from traffic.waiting
            for lane in traffic.lanes():
                yield from lane.parts()

    # -- what is asked -----------------------------------------------------------------

    def ask_now(self, read: KeysRead) -> SendRequest | None:
        """
        Ask for one key by the shortest way, or return None if that is not open.

        No other request may wait for anything.  What this sends is what `ask` and
        `tend` would, with a fifth of their calls.
        """
        traffic = self._traffic.get(read.state)
        if traffic is None or traffic.is_stale or traffic.rows_table is None:
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
            way = self.ways.way_for(direct, flight)
            if way is not None and way.shown.get(direct.ticket_id) is not direct.ticket:
                return None
        read.open_count = 1
        read.rows = [UNANSWERED]
        outbox.number = number = outbox.number + 1
        self.flights[number] = flight
        lane.flight_count = 1
        lane.sent_ns = now_ns
        if way is not None:
            assert direct is not None
            self.ways.asked(way, flight)
            ask = AskNode(
                request_id=number,
                ticket_id=direct.ticket_id,
                operation=lane.operation,  # type: ignore[arg-type]  # lanes are for keys
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

    def ask(self, reads: Sequence[KeysRead]) -> None:
        """Take *reads*; what is taken together is sent together."""
        if len(reads) == 1:
            read = reads[0]
            read.open_count = len(read.keys)
            read.rows = [UNANSWERED] * read.open_count
            self._enqueue(self._traffic_of(read.state), ((read, None),))
            return
        parts: dict[StateTraffic, list[Part]] = {}
        for read in reads:
            read.open_count = len(read.keys)
            read.rows = [UNANSWERED] * read.open_count
            traffic = self._traffic.get(read.state)
            if traffic is None:
                traffic = self._traffic_of(read.state)
            some = parts.get(traffic)
            if some is None:
                some = parts[traffic] = []
            some.append((read, None))
        for traffic, some in parts.items():
            self._enqueue(traffic, some)

    def ask_route(self, read: RouteRead) -> None:
        """Take a question for a route."""
        traffic = self._traffic_of(read.state)
        if read.stale is not None and traffic.route is read.stale:
            self._route_failed(traffic)
        traffic.route_reads.append(read)
        self._want(traffic)
        self._answer_route_reads(traffic)

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        for number, flight in tuple(self.flights.items()):
            if all(read.is_done for read in flight.reads):
                self._land(number)
        for lane in self._lanes:
            lane.purge()
        self._lanes = {lane: None for lane in self._lanes if lane.keys}
        for traffic in tuple(self._wanting):
            traffic.waiting = [part for part in traffic.waiting if not part[0].is_done]
            traffic.route_reads = [
                read for read in traffic.route_reads if not read.is_done
            ]
            self._stop_wanting(traffic)

    def expire(self) -> None:
        """Forget what was never answered."""
        now_ns = self._outbox.now_ns
        for number in [n for n, f in self.flights.items() if f.deadline_ns <= now_ns]:
            self._land(number)

    def session_ended(self) -> None:
        """Queue whatever is under way again."""
        for traffic in self._describing.values():
            traffic.describe_id = None
            traffic.describe_due_ns = self._outbox.now_ns
        self._describing.clear()
        for traffic in self._traffic.values():
            if traffic.direct is not None:
                # It may be another leader by now, whose nodes take no such ticket.
                traffic.direct = None
                traffic.refresh_due_ns = self._outbox.now_ns
        for number in tuple(self.flights):
            self._put_back(self._land(number))

    # -- what goes out -----------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether there is anything that `tend` might send, now or later."""
        return bool(self._wanting or self._lanes)

    def tend(self) -> None:
        """Send what is due."""
        if self._wanting:
            self._describe()
        if self._lanes:
            self._send_keys()

    def _describe(self) -> None:
        """Ask for the routes that are due."""
        secret = self._session.secret
        assert secret is not None
        for traffic in self._wanting:
            if self._outbox.now_ns < traffic.describe_due_ns:
                continue
            if traffic.describe_id is not None:
                del self._describing[traffic.describe_id]
            number = self._outbox.next_number()
            traffic.describe_id = number
            traffic.describe_asked_ns = self._outbox.now_ns
            traffic.describe_due_ns = self._outbox.now_ns + self._answer_timeout_ns
            self._describing[number] = traffic
            job_id, state_name = traffic.state
            self._outbox.send(
                DescribeState(
                    request_id=number,
                    session=secret,
                    job_id=job_id,
                    state_name=state_name,
                    wants_direct=self.ways.is_wanted,
                )
            )

    def _send_keys(self) -> None:
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
                and len(self.flights) < self._flight_count_max
                and lane.may_send(key_count_max, now_ns=now_ns)
            ):
                flight = lane.cut(
                    key_count_max, session.frame_size_bytes_max, now_ns=now_ns
                )
                number = outbox.next_number()
                self.flights[number] = flight
                outbox.expires_at(flight.deadline_ns)
                way = self.ways.way_for(direct, flight)
                if direct is None or way is None:
                    self._ask_proxy(number, flight)
                else:
                    self._ask_node(number, flight, direct, way)
            if not lane.keys:
                emptied.append(lane)
        for lane in emptied:
            del self._lanes[lane]

    def _ask_proxy(self, number: int, flight: Flight) -> None:
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
        self._show(way, direct)
        generation, batch_id = split_floor(lane.least)
        ask = AskNode(
            request_id=number,
            ticket_id=direct.ticket_id,
            operation=lane.operation,  # type: ignore[arg-type]  # lanes are for keys
            deadline_ms=milliseconds(flight.deadline_ns - self._outbox.now_ns),
            min_batch_id=batch_id,
            min_generation=generation,
        )
        self.ways.asked(way, flight)
        self._outbox.send_to_node(way.link, ask, flight.keys)

    def _show(self, way: NodeWay, direct: DirectRoute) -> None:
        """Show a node the ticket, unless it has been shown that one."""
        if way.shown.get(direct.ticket_id) is not direct.ticket:
            way.shown[direct.ticket_id] = direct.ticket
            show = ShowTicket(ticket_id=direct.ticket_id, ticket=direct.ticket)
            self._outbox.send_to_node(way.link, show)

    def late_due_ns(self) -> int:
        """Return when `ask_late` must be called."""
        return self.ways.due_ns()

    def ask_late(self) -> None:
        """Ask the proxy for what nodes have not answered in time (rule D4)."""
        if self.ways.due_ns() <= self._outbox.now_ns:
            self._ask_proxy_for(self.ways.take_late())

    def _ask_proxy_for(self, flights: Sequence[Flight]) -> None:
        """Ask the proxy for those of *flights* that are under way, and it was not."""
        wanted = set(flights)
        for number, flight in list(self.flights.items()):
            if flight in wanted and not flight.is_proxied:
                self._ask_proxy(number, flight)

    # -- nodes -----------------------------------------------------------------------

    def node_failed(self, link: int, *, is_refused: bool) -> None:
        """Ask the proxy for what a node was asked over a connection that is over."""
        way = self.ways.failed(link, is_refused=is_refused)
        if way is not None:
            self._leave(way)

    def _leave(self, way: NodeWay) -> None:
        """Ask the proxy for what was asked by a way that is not open any more."""
        flights = [one for one in self.flights.values() if one.way is way]
        self._ask_proxy_for(flights)
        for flight in flights:
            flight.way = None

    def node_said(
        self, link: int, message: ToClient, payload: bytes | memoryview
    ) -> None:
        """Take what a node says to one of the `flights`."""
        self.ways.heard(link)
        number = message.request_id
        flight = self.flights.get(number)
        if flight is None or not self.ways.is_of(link, flight):
            return  # late
        match message:
            case Told():
                self.ways.answered(flight)
                flight.lane.traffic.direct_pause_ns = 0
                self.answered(message, payload)
            case Refusal(code=code):
                self._node_refused(number, flight, code)
            case _:
                pass

    def _node_refused(self, number: int, flight: Flight, code: str) -> None:
        """Ask the proxy for what a node does not answer, and for a route if need be."""
        self.ways.refused(flight, code)
        if code in TICKET_PROBLEMS:
            traffic = flight.lane.traffic
            traffic.direct = None
            traffic.direct_pause_ns = longer_pause(traffic.direct_pause_ns)
            due_ns = self._outbox.now_ns + traffic.direct_pause_ns
            traffic.refresh_due_ns = min(traffic.refresh_due_ns, due_ns)
            if traffic.describe_id is None:
                traffic.describe_due_ns = due_ns
        if not flight.is_proxied:
            self._ask_proxy(number, flight)

    def _land(self, number: int) -> Flight:
        """Return a flight that is over."""
        flight = self.flights.pop(number)
        flight.is_over = True
        flight.lane.flight_count -= 1
        return flight

    def _enqueue(
        self,
        traffic: StateTraffic,
        parts: Sequence[Part],
        *,
        least: Floor | None = None,
    ) -> None:
        """Put keys into their lanes, or have them wait for a route."""
        if not parts:
            return
        traffic = self._traffic_of(traffic.state)  # it may have been forgotten
        if traffic.route is None or traffic.is_stale:
            traffic.waiting += parts
            self._want(traffic)
            return
        if self._outbox.now_ns >= traffic.refresh_due_ns:
            self._want(traffic)
        lanes, failed = traffic.enqueue(parts, least=least)
        for lane in lanes:
            self._lanes[lane] = None
        for read, error in failed:
            if not read.is_done:
                self._outbox.fail(read, error)

    def _put_back(self, flight: Flight) -> None:
        """Have what was under way asked again, as it was if possible."""
        lane = flight.lane
        traffic = self._traffic_of(lane.traffic.state)
        if lane.route is traffic.route and not traffic.is_stale:
            lane.put_back(flight)
            lane.purge()
            if lane.keys:
                self._lanes[lane] = None
        else:
            self._enqueue(lane.traffic, flight.parts())

    # -- answers ---------------------------------------------------------------------

    def answered(self, told: Told, payload: bytes | memoryview) -> None:
        """Take the answer of a node to one of the `flights`."""
        flight = self.flights.pop(told.request_id)
        flight.is_over = True
        if flight.way is not None:
            self.ways.outrun(flight)
        lane = flight.lane
        lane.flight_count -= 1
        traffic = lane.traffic
        route = lane.route
        reading = told.reading
        try:
            rows = route.decode(lane.operation, payload, len(flight.keys))
        except RemoteProtocolError as error:
            self._ask_once_more(flight, error)
            return
        if traffic.route is None or route.state_number == traffic.route.state_number:
            batch_id = reading.batch_id
            seen = (reading.generation, -1 if batch_id is None else batch_id)
            node_id = route.node_ids[lane.node_index]
            present = traffic.route
            if present is None or present is route:
                floor = traffic.floors.check(node_id, flight.keys, seen)
            else:
                groups = map(group_of, flight.keys)
                floor = traffic.floors.check_late(node_id, groups, seen, present)
            if floor is not None:
                self._too_old(flight, seen, floor)
                return
        traffic.pause_ns = 0
        lane.answered()
        reads = flight.reads
        if reads.count(reads[0]) == len(reads):
            self._take_rows(reads[0], flight.places, rows, reading)
            return
        done = self._outbox.done
        requests = self._outbox.requests
        for read, place, row in zip(reads, flight.places, rows, strict=True):
            if read.is_done:
                continue
            read.rows[place] = row
            read.reading = reading
            read.open_count -= 1
            if not read.open_count:  # as `QueryOutbox.finish`: a call per key is dear
                read.is_done = True
                del requests[read]
                done.append(read)

    def _take_rows(
        self, read: KeysRead, places: Sequence[int], rows: list[Any], reading: Reading
    ) -> None:
        """Do as `answered` where all keys are of one read, as those of `get_many`."""
        if read.is_done:
            return
        found = read.rows
        for place, row in zip(places, rows, strict=True):
            found[place] = row
        read.reading = reading
        read.open_count -= len(rows)
        if not read.open_count:
            self._outbox.finish(read)

    def floor_of_node(self, read: NodeRead, reading: Reading) -> Floor | None:
        """Take note of a node's answer to *read*, or return how new it should be."""
        traffic = self._traffic.get(read.state)
        if traffic is None:
            return None
        present = traffic.route
        if present is None or present.state_number != read.route.state_number:
            return None  # it is another state of the same name
        route, seen = read.route, floor_of_reading(reading)
        node_id = route.node_ids[read.node_index]
        if present is route:
            floor = traffic.floors.check(node_id, (), seen)
        else:
            owners = enumerate(route.owners)
            groups = (group for group, one in owners if one == read.node_index)
            floor = traffic.floors.check_late(node_id, groups, seen, present)
        if floor is None:
            traffic.pause_ns = 0
        return floor

    def refused(self, refusal: Refusal) -> None:
        """Take the refusal of a question, be it for keys or for a route."""
        if refusal.request_id in self._describing:
            traffic = self._describing.pop(refusal.request_id)
            traffic.describe_id = None
            if refusal.code == _OVERLOADED:
                self._route_failed(traffic)
            else:
                self._no_route(traffic, error_of(refusal))
            return
        flight = self._land(refusal.request_id)
        match refusal.code:
            case code if code == STALE_ROUTE:
                self._ask_by_new_route(flight.lane, flight.parts())
            case code if code == _OVERLOADED:
                self._hold(flight.lane)
                self._put_back(flight)
            case code if code == _ILLEGAL and len(flight.keys) > 1:
                flight.lane.shrink(flight)  # the answer would be too large
                self._put_back(flight)
            case code if code in _UNKNOWN:
                self._ask_once_more(flight, error_of(refusal))
            case code if code == _UNAVAILABLE:
                self._unavailable(flight, error_of(refusal))
            case _:
                self._outbox.fail_all(_reads(flight), error_of(refusal))

    def _hold(self, lane: Lane) -> None:
        """Send nothing more from *lane* for a while."""
        lane.pause_ns = longer_pause(lane.pause_ns)
        lane.hold_until_ns = self._outbox.now_ns + lane.pause_ns

    def _too_old(self, flight: Flight, seen: Floor, floor: Floor) -> None:
        """Ask again, and for no older batch than was seen before (rule Q1)."""
        lane = flight.lane
        if seen[0] == floor[0] and (lane.least is None or lane.least < floor):
            self._enqueue(lane.traffic, flight.parts(), least=floor)
        else:
            self._hold(lane)
            self._put_back(flight)

    def _ask_once_more(self, flight: Flight, error: NameServiceError) -> None:
        """Ask by a new route; fail what was asked so already."""
        again: list[Part] = []
        for part in flight.parts():
            read = part[0]
            if read.is_repeated:
                self._outbox.fail_all((read,), error)
            else:
                read.is_repeated = True
                again.append(part)
        if again:
            self._ask_by_new_route(flight.lane, again)

    def _ask_by_new_route(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Have the state described again, unless that was done meanwhile."""
        traffic = self._traffic_of(lane.traffic.state)
        if traffic.route is lane.route:
            self._route_failed(traffic)
        self._enqueue(traffic, parts)

    def _unavailable(self, flight: Flight, error: NameServiceError) -> None:
        """Fail the keys of the key groups that are named, ask again for the others."""
        if not isinstance(error, StateUnavailableError):  # its data made no sense
            self._outbox.fail_all(_reads(flight), error)
            return
        groups = [(key[0] << 8) | key[1] for key in flight.keys]
        named = set(error.key_groups or groups)
        if named.isdisjoint(groups):
            # Others have what is asked here, and will be asked for it in a moment.
            self._hold(flight.lane)
            self._put_back(flight)
            return
        lost: dict[KeysRead, list[int]] = {}
        left: dict[KeysRead, list[int]] = {}
        for read, place, group in zip(flight.reads, flight.places, groups, strict=True):
            if read.is_done:
                continue
            if group in named:
                lost.setdefault(read, []).append(group)
            else:
                left.setdefault(read, []).append(place)
        for read, lost_groups in lost.items():
            own = StateUnavailableError(
                *read.state,
                sorted(set(lost_groups)),
                error.retry_after_seconds,
                error.detail,
            )
            if not read.is_partial:
                self._outbox.fail(read, own)
                continue
            read.partial_error = own
            read.open_count -= len(lost_groups)
            if not read.open_count:
                self._outbox.finish(read)
        self._enqueue(
            flight.lane.traffic, [part for part in left.items() if not part[0].is_done]
        )

    # -- routes ----------------------------------------------------------------------

    def _traffic_of(self, state: StateName) -> StateTraffic:
        traffic = self._traffic.get(state)
        if traffic is None:
            traffic = self._traffic[state] = StateTraffic(state)
            traffic.describe_due_ns = self._outbox.now_ns
        return traffic

    def _want(self, traffic: StateTraffic) -> None:
        """Have the route asked for."""
        self._wanting[traffic] = None

    def _stop_wanting(self, traffic: StateTraffic) -> None:
        """Do not ask for a route that no request waits for."""
        if traffic.is_wanting:
            return
        self._wanting.pop(traffic, None)
        if traffic.route is None and traffic.describe_id is None:
            del self._traffic[traffic.state]

    def _route_failed(self, traffic: StateTraffic) -> None:
        """Take note that the route leads nowhere; ask for it again, after a pause."""
        traffic.is_stale = True
        if traffic.describe_id is None:
            traffic.describe_due_ns = self._outbox.now_ns + traffic.pause_ns
            traffic.pause_ns = longer_pause(traffic.pause_ns)

    def described(self, described: StateDescribed) -> None:
        """Take a route."""
        traffic = self._describing.pop(described.request_id)
        traffic.describe_id = None
        try:
            route = _route_of(traffic, described.description)
        except NameServiceError as error:
            self._no_route(traffic, error)
            return
        if route is not traffic.route:
            for lane in traffic.lanes():
                self._lanes.pop(lane, None)
        traffic.adopt(route)
        self._take_access(traffic, described.direct)
        waiting, traffic.waiting = traffic.waiting, []
        self._enqueue(traffic, [part for part in waiting if not part[0].is_done])
        self._answer_route_reads(traffic)

    def _take_access(self, traffic: StateTraffic, access: DirectAccess | None) -> None:
        """Take what came with a route, and see when to ask for it again."""
        outbox, before = self._outbox, traffic.direct
        if not traffic.ticket_id:
            traffic.ticket_id = outbox.next_number()
        asked_ns = traffic.describe_asked_ns
        traffic.direct = direct = self.ways.route(
            traffic.ticket_id, access, asked_ns=asked_ns
        )
        traffic.refresh_due_ns = outbox.now_ns + self._route_refresh_ns
        if direct is not None:
            renewal_ns = asked_ns + (direct.until_ns - asked_ns) * 2 // 3
            traffic.refresh_due_ns = min(traffic.refresh_due_ns, renewal_ns)
        if before is None or direct is None or before.ways != direct.ways:
            for way in self.ways.keep(one.direct for one in self._traffic.values()):
                self._leave(way)

    def _answer_route_reads(self, traffic: StateTraffic) -> None:
        """Tell those who wait for a route, if there is one."""
        if traffic.route is None or traffic.is_stale:
            return
        for read in traffic.route_reads:
            if not read.is_done:
                read.route = traffic.route
                self._outbox.finish(read)
        traffic.route_reads = []
        self._stop_wanting(traffic)

    def _no_route(self, traffic: StateTraffic, error: NameServiceError) -> None:
        """
        Fail what waits for a route that there is none of.

        The state is forgotten if nothing was seen of it, or if there is no such state.
        Else what was seen stays seen (rule Q1): the next question has the state
        described, and its answer is held against that.
        """
        self._outbox.fail_all(traffic.route_reads, error)
        self._outbox.fail_all([read for read, _ in traffic.waiting], error)
        for lane in traffic.lanes():
            self._outbox.fail_all(lane.reads, error)
            lane.keys, lane.reads, lane.places = [], [], []
            self._lanes.pop(lane, None)
        traffic.waiting = []
        traffic.route_reads = []
        self._wanting.pop(traffic, None)
        if traffic.route is None or isinstance(
            error, UnknownJobError | UnknownStateError
        ):
            del self._traffic[traffic.state]
        else:
            traffic.is_stale = True
            traffic.describe_due_ns = self._outbox.now_ns


def _route_of(traffic: StateTraffic, description: StateDescription) -> Route:
    """Return the route that *description* is of, the present one if it is."""
    if (description.job_id, description.state_name) != traffic.state:
        raise RemoteProtocolError("malformed", "the description of another state")
    route = traffic.route
    if route is not None and route.is_same_as(description):
        return route
    return Route(description, route)


def _reads(flight: Flight) -> list[KeysRead]:
    """Return who still waits for *flight*, each once."""
    return [read for read, _ in flight.parts()]
