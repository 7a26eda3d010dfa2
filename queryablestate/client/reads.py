"""
`KeyReads`: questions for keys, and what comes back; pure.

What leaves goes through a lane (`queryablestate.client.coalescing`), by the route to
its state (`StateRoutes`), as a flight (`KeyFlights`).  What comes back is an answer, or
a refusal that says what to do next: ask by another route, ask later, or fail the reads
that it is about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final

from nameservice.errors import NameServiceError, RemoteProtocolError
from queryablestate.client.coalescing import Flight, Lane, Part, StateTraffic
from queryablestate.client.direct import TICKET_PROBLEMS, NodeWays
from queryablestate.client.events import SendRequest
from queryablestate.client.floors import Floor
from queryablestate.client.key_flights import KeyFlights
from queryablestate.client.requests import UNANSWERED, KeysRead
from queryablestate.client.session import QuerySession
from queryablestate.client.state_routes import StateRoutes, route_of
from queryablestate.client.step import QueryOutbox
from queryablestate.client.ways import NodeWay
from queryablestate.errors import StateUnavailableError
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.clients import StateDescribed, ToClient
from queryablestate.wire.questions import Reading, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE, error_of


__all__ = ["KeyReads"]

_OVERLOADED: Final = "did-not-happen"
_ILLEGAL: Final = "illegal"
_UNAVAILABLE: Final = "state-unavailable"
_UNKNOWN: Final = frozenset({"unknown-job", "unknown-state"})


@final
class KeyReads:
    """
    Everything that is asked of states, by key.

    Not thread-safe; a `QueryCore` owns it, and calls `tend` while there is a session.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        ways: Likewise.
        flight_count_max: Questions that may be under way.
        answer_timeout_ns: After how long a question for a route is put again.
        route_refresh_ns: How old a route may get before it is asked for in passing.

    Attributes:
        routes: The routes to states.
        flights: Questions for keys that are under way, by number; not to be changed.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        session: QuerySession,
        ways: NodeWays,
        *,
        flight_count_max: int,
        answer_timeout_ns: int,
        route_refresh_ns: int,
    ) -> None:
        self._outbox = outbox
        self._ways = ways
        self.routes = StateRoutes(
            outbox,
            session,
            ways,
            answer_timeout_ns=answer_timeout_ns,
            route_refresh_ns=route_refresh_ns,
        )
        self._flights = KeyFlights(
            outbox, session, ways, flight_count_max=flight_count_max
        )
        self.flights: Mapping[int, Flight] = self._flights.under_way

    # -- queries -------------------------------------------------------------------

    def due_ns(self) -> int:
        """Return when `tend` must be called again."""
        return min(self.routes.due_ns(), self._flights.due_ns())

    def flight_expiry_ns(self) -> int:
        """Return when the first question under way expires."""
        return self._flights.expiry_ns()

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        self.routes.check_invariants()
        self._flights.check_invariants(self._lanes())
        self._check_open_counts()

    def _check_open_counts(self) -> None:
        """Assert that every key of every read waits in exactly one place."""
        counts: Counter[KeysRead] = Counter()
        for flight in self.flights.values():
            counts.update(flight.reads)
        for traffic in self.routes.traffic.values():
            for read, places in traffic.waiting:
                counts[read] += len(read.keys if places is None else places)
        for lane in self._lanes():
            if lane.reads:
                counts.update(lane.reads)
        for request in self._outbox.requests:
            if isinstance(request, KeysRead):
                assert request.open_count == counts[request] > 0

    def _lanes(self) -> Iterator[Lane]:
        for traffic in self.routes.traffic.values():
            yield from traffic.lanes()

    # -- what is asked -----------------------------------------------------------------

    def ask_now(self, read: KeysRead) -> SendRequest | None:
        """Ask for one key by the shortest way: see `KeyFlights.ask_now`."""
        traffic = self.routes.traffic.get(read.state)
        return None if traffic is None else self._flights.ask_now(read, traffic)

    def ask(self, reads: Sequence[KeysRead]) -> None:
        """Take *reads*; what is taken together is sent together."""
        if len(reads) == 1:
            read = reads[0]
            read.open_count = len(read.keys)
            read.rows = [UNANSWERED] * read.open_count
            self._enqueue(self.routes.traffic_of(read.state), ((read, None),))
            return
        parts: dict[StateTraffic, list[Part]] = {}
        for read in reads:
            read.open_count = len(read.keys)
            read.rows = [UNANSWERED] * read.open_count
            traffic = self.routes.traffic.get(read.state)
            if traffic is None:
                traffic = self.routes.traffic_of(read.state)
            some = parts.get(traffic)
            if some is None:
                some = parts[traffic] = []
            some.append((read, None))
        for traffic, some in parts.items():
            self._enqueue(traffic, some)

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        self._flights.forget_dropped()
        self.routes.forget_dropped()

    def expire(self) -> None:
        """Forget what was never answered."""
        self._flights.expire()

    def session_ended(self) -> None:
        """Queue whatever is under way again."""
        self.routes.session_ended()
        for number in tuple(self.flights):
            self._put_back(self._flights.land(number))

    @property
    def is_busy(self) -> bool:
        """Return whether there is anything that `tend` might send, now or later."""
        return self.routes.is_busy or self._flights.is_busy

    def tend(self) -> None:
        """Send what is due."""
        if self.routes.is_busy:
            self.routes.describe()
        if self._flights.is_busy:
            self._flights.send()

    def ask_late(self) -> None:
        """Ask the proxy for what nodes have not answered in time (rule D4)."""
        self._flights.ask_late()

    def leave(self, way: NodeWay) -> None:
        """Ask the proxy for what was asked by a way that is not open any more."""
        self._flights.leave(way)

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
        traffic = self.routes.traffic_of(traffic.state)  # it may have been forgotten
        if traffic.route is None or traffic.is_stale:
            traffic.waiting += parts
            self.routes.want(traffic)
            return
        if self._outbox.now_ns >= traffic.refresh_due_ns:
            self.routes.want(traffic)
        lanes, failed = traffic.enqueue(parts, least=least)
        self._flights.add(lanes)
        for part, error in failed:
            read = part[0]
            if read.asked_ns > traffic.route_asked_ns and isinstance(
                error, NameServiceError
            ):
                # Another state may have the name since, of which that is no error: it
                # would be older than the last known commit (rule Q3).
                traffic.waiting.append(part)
                self.routes.want_newer(traffic)
            elif not read.is_done:
                self._outbox.fail(read, error)

    def _put_back(self, flight: Flight) -> None:
        """Have what was under way asked again, as it was if possible."""
        lane = flight.lane
        traffic = self.routes.traffic_of(lane.traffic.state)
        if lane.route is traffic.route and not traffic.is_stale:
            self._flights.put_back(flight)
        else:
            self._enqueue(lane.traffic, flight.parts())

    # -- answers ---------------------------------------------------------------------

    def node_said(
        self, link: int, message: ToClient, payload: bytes | memoryview
    ) -> None:
        """Take what a node says to one of the `flights`."""
        number = message.request_id
        flight = self.flights[number]
        if not self._ways.is_of(link, flight):
            return  # late
        match message:
            case Told():
                self._ways.answered(flight)
                flight.lane.traffic.direct_pause_ns = 0
                self.answered(message, payload)
            case Refusal(code=code):
                self._ways.refused(flight, code)
                if code in TICKET_PROBLEMS:
                    self.routes.ticket_refused(flight.lane.traffic)
                if not flight.is_proxied:
                    self._flights.ask_proxy(number, flight)
            case _:
                pass

    def answered(self, told: Told, payload: bytes | memoryview) -> None:
        """Take the answer of a node to one of the `flights`."""
        flight = self._flights.land(told.request_id)
        if flight.way is not None:
            self._ways.outrun(flight)
        lane = flight.lane
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
            groups = map(group_of, flight.keys)
            if present is None or present is route:
                floor = traffic.floors.check(node_id, groups, seen)
            else:
                floor = traffic.floors.check_late(node_id, groups, seen, present)
            if floor is not None:
                self._too_old(flight, seen, floor)
                return
        traffic.pause_ns = 0
        lane.answered()
        reads = flight.reads
        if len(reads) > 1 and reads.count(reads[0]) == len(reads):
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

    def refused(self, refusal: Refusal) -> None:
        """Take the refusal of a question, be it for keys or for a route."""
        if self.routes.is_describing(refusal.request_id):
            traffic = self.routes.told(refusal.request_id)
            if refusal.code == _OVERLOADED:
                self.routes.failed(traffic)
            else:
                self._no_route(traffic, error_of(refusal))
            return
        flight = self._flights.land(refusal.request_id)
        match refusal.code:
            case code if code == STALE_ROUTE:
                self._ask_by_new_route(flight.lane, flight.parts())
            case code if code == _OVERLOADED:
                self._flights.hold(flight.lane)
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

    def _too_old(self, flight: Flight, seen: Floor, floor: Floor) -> None:
        """Ask again, and for no older batch than was seen before (rule Q1)."""
        lane = flight.lane
        if seen[0] == floor[0] and (lane.least is None or lane.least < floor):
            self._enqueue(lane.traffic, flight.parts(), least=floor)
        else:
            self._flights.hold(lane)
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
        traffic = self.routes.traffic_of(lane.traffic.state)
        if traffic.route is lane.route:
            self.routes.failed(traffic)
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
            self._flights.hold(flight.lane)
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

    def described(self, described: StateDescribed) -> None:
        """Take a route."""
        traffic = self.routes.told(described.request_id)
        try:
            route = route_of(traffic, described.description)
        except NameServiceError as error:
            self._no_route(traffic, error)
            return
        if route is not traffic.route:
            self._flights.forget(traffic.lanes())
        traffic.adopt(route)
        traffic.route_asked_ns = traffic.describe_asked_ns
        for way in self.routes.take_access(traffic, described.direct):
            self._flights.leave(way)
        waiting, traffic.waiting = traffic.waiting, []
        self._enqueue(traffic, [part for part in waiting if not part[0].is_done])
        self.routes.answer(traffic)

    def _no_route(self, traffic: StateTraffic, error: NameServiceError) -> None:
        """Fail what waits for a route that there is none of; see `StateRoutes.lost`."""
        traffic.empty_lanes()
        self._flights.forget(traffic.lanes())
        self.routes.lost(traffic, error)


def _reads(flight: Flight) -> list[KeysRead]:
    """Return who still waits for *flight*, each once."""
    return [read for read, _ in flight.parts()]
