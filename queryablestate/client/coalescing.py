"""
What is asked of one state: sorted by node on the way out, and back again; pure.

Theory of operation
-------------------
A *lane* holds the keys that one node is to be asked for in one way (the same operation,
the same least batch).  A *flight* is one question under way: what was cut off a lane.
The fewer and fuller flights are, the cheaper is each key, but a key that waits for
company is late.  So a lane sends at once while fewer than two of its flights are under
way, and otherwise only what fills a question; the next answer frees its place, or a
quarter of a second without one does: an answer may be lost.  A single caller is never
delayed, and many share a message without knowing of each other.

A node refuses what would make too large an answer.  Then the lane halves what it asks
at once, down to single keys if need be, and tries twice as many again after a while.

Keys are hashed and encoded as they enter a lane, all that were asked together at once.
A new route empties the lanes of the old one: the same reads are encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, final

from attrs import Factory, define

from queryablestate.client.floors import Floor, ReadFloors, later_of
from queryablestate.client.requests import KeysRead, RouteRead, StateName
from queryablestate.client.routes import ROWS, Asking, Route
from queryablestate.client.ways import DirectRoute, NodeWay
from queryablestate.wire.questions import Operation


__all__ = ["Flight", "Lane", "Part", "StateTraffic"]

Part: TypeAlias = "tuple[KeysRead, Sequence[int] | None]"
"""A read, and the places of its keys that are meant; None means all of them."""

_FLIGHT_COUNT_MAX: Final = 2
_FULL_FLIGHT_COUNT_MAX: Final = 8
_PATIENCE_NS: Final = 250_000_000
_UNLIMITED: Final = 1 << 30
_ANSWERS_BEFORE_GROWTH: Final = 64
_TABLE_COUNT_MAX: Final = 64
_KEY_SIZE_BYTES_MAX: Final = 512
"""More than any storage key takes, with what MessagePack adds."""


@final
@define(eq=False)
class Lane:
    """
    What one node is to be asked for in one way.

    Attributes:
        traffic: Of which state.
        route: By which route.
        node_index: Which node of it.
        operation: What is asked.
        least: Of least which batch, or None.
        keys: Storage keys that wait.
        reads: Whose they are, one for each.
        places: Which key of that read, one for each.
        deadline_ns: The latest of their deadlines.
        flight_count: Flights under way.
        sent_ns: When the last of them was sent.
        key_limit: How many keys of a question its answers have room for.
        answer_count: Answers since that was changed.
        hold_until_ns: Nothing is to be sent before.
        pause_ns: How long it was held the last time.
        proxied_until_ns: The proxy is asked until then: a node has refused to answer
            this by itself.
    """

    traffic: StateTraffic
    route: Route
    node_index: int
    operation: Operation
    least: Floor | None
    keys: list[bytes] = Factory(list)
    reads: list[KeysRead] = Factory(list)
    places: list[int] = Factory(list)
    deadline_ns: int = 0
    flight_count: int = 0
    sent_ns: int = 0
    key_limit: int = _UNLIMITED
    answer_count: int = 0
    hold_until_ns: int = 0
    pause_ns: int = 0
    proxied_until_ns: int = 0

    def may_send(self, key_count_max: int, *, now_ns: int) -> bool:
        """Return whether what waits should go; see the module docstring."""
        return (
            self.flight_count < _FLIGHT_COUNT_MAX
            or (
                self.flight_count < _FULL_FLIGHT_COUNT_MAX
                and len(self.keys) >= min(key_count_max, self.key_limit)
            )
            or now_ns >= self.sent_ns + _PATIENCE_NS
        )

    def due_ns(self, *, now_ns: int) -> int:
        """Return when what waits may go, if no answer comes before."""
        if now_ns < self.hold_until_ns:
            return self.hold_until_ns
        return self.sent_ns + _PATIENCE_NS

    def cut(
        self, key_count_max: int, frame_size_bytes_max: int, *, now_ns: int
    ) -> Flight:
        """Return what goes next: the first keys, as many as a question may have."""
        room = frame_size_bytes_max // _KEY_SIZE_BYTES_MAX
        key_count_max = max(1, min(key_count_max, self.key_limit, room))
        if len(self.keys) <= key_count_max:
            flight = Flight(
                self, self.keys, self.reads, self.places, now_ns, self.deadline_ns
            )
            self.keys, self.reads, self.places = [], [], []
            self.deadline_ns = 0
        else:
            flight = Flight(
                self,
                self.keys[:key_count_max],
                self.reads[:key_count_max],
                self.places[:key_count_max],
                now_ns,
                self.deadline_ns,
            )
            del self.keys[:key_count_max]
            del self.reads[:key_count_max]
            del self.places[:key_count_max]
        self.flight_count += 1
        self.sent_ns = now_ns
        return flight

    def shrink(self, flight: Flight) -> None:
        """Ask for half as much at once as *flight* did."""
        self.key_limit = max(1, min(self.key_limit, len(flight.keys) // 2))
        self.answer_count = 0

    def answered(self) -> None:
        """Take note of an answer: there may be room for more."""
        self.pause_ns = 0
        if self.key_limit != _UNLIMITED:
            self.answer_count += 1
            if self.answer_count >= _ANSWERS_BEFORE_GROWTH:
                self.key_limit = min(2 * self.key_limit, _UNLIMITED)
                self.answer_count = 0

    def put_back(self, flight: Flight) -> None:
        """Queue what was under way again, before what waits already."""
        self.keys[:0] = flight.keys
        self.reads[:0] = flight.reads
        self.places[:0] = flight.places
        self.deadline_ns = max(self.deadline_ns, flight.deadline_ns)

    def purge(self) -> None:
        """Forget the keys that no request waits for any more."""
        if any(read.is_done for read in self.reads):
            left = [index for index, read in enumerate(self.reads) if not read.is_done]
            self.keys = [self.keys[index] for index in left]
            self.places = [self.places[index] for index in left]
            self.reads = [self.reads[index] for index in left]

    def parts(self) -> list[Part]:
        """Return what waits, to be put elsewhere."""
        return _parts(self.reads, self.places)


@final
@define(eq=False)
class Flight:
    """
    One question under way.

    Attributes:
        lane: Where it came from.
        keys: The storage keys.
        reads: Whose they are, one for each.
        places: Which key of that read, one for each.
        sent_ns: When it was sent.
        deadline_ns: The latest deadline among its reads.
        way: By which a node was asked that has yet to answer, or None.
        is_proxied: Whether the proxy was asked.
        is_over: Whether nothing more is taken for an answer to it.
    """

    lane: Lane
    keys: list[bytes]
    reads: list[KeysRead]
    places: list[int]
    sent_ns: int
    deadline_ns: int
    way: NodeWay | None = None
    is_proxied: bool = False
    is_over: bool = False

    def parts(self) -> list[Part]:
        """Return what was asked, to be asked otherwise."""
        return _parts(self.reads, self.places)


@final
class StateTraffic:
    """
    All that is asked of one state, and the route by which.

    Attributes:
        state: Which state.
        route: The route, or None before there is one.
        is_stale: Whether the route was found to be wrong: nothing is sent by it.
        waiting: What waits for a route.
        route_reads: Who waits for a route.
        floors: What was seen so far.
        describe_id: The request that asks for the route, or None.
        describe_due_ns: When to ask (again).
        describe_asked_ns: When the last question for it was put for the first time.
        route_asked_ns: When the present one was asked for.
        direct: How its nodes are asked without the proxy, or None.
        direct_pause_ns: How long the last pause was before the route was asked for
            since a node had not taken the ticket.
        ticket_id: What nodes know the ticket by; 0 before the first.
        pause_ns: How long the last pause before asking again was.
        page_holds: For each kind of question about all that a node holds, until when
            the proxy is asked, and how long that was the last time.
        refresh_due_ns: When the route should be asked for in passing.
        rows_table: For each key group the lane for all that is kept under a key, if
            that was asked for by this route.
    """

    def __init__(self, state: StateName) -> None:
        self.state = state
        self.route: Route | None = None
        self.is_stale = False
        self.waiting: list[Part] = []
        self.route_reads: list[RouteRead] = []
        self.floors = ReadFloors()
        self.describe_id: int | None = None
        self.describe_due_ns = 0
        self.describe_asked_ns = 0
        self.route_asked_ns = 0
        self.direct: DirectRoute | None = None
        self.direct_pause_ns = 0
        self.ticket_id = 0
        self.pause_ns = 0
        self.page_holds: dict[type, tuple[int, int]] = {}
        self.refresh_due_ns = 0
        self.rows_table: list[Lane] | None = None
        self._tables: dict[
            tuple[Operation, Floor | None], tuple[list[Lane], Sequence[Lane]]
        ] = {}

    @property
    def is_wanting(self) -> bool:
        """Return whether somebody waits for a route."""
        return bool(self.waiting or self.route_reads)

    def lanes(self) -> Iterable[Lane]:
        """Yield every lane of the present route."""
        for _, lanes in self._tables.values():
            yield from lanes

    def empty_lanes(self) -> None:
        """Have what waits in the lanes wait for a route."""
        for lane in self.lanes():
            self.waiting += lane.parts()
            lane.keys, lane.reads, lane.places = [], [], []

    def adopt(self, route: Route) -> None:
        """Go on by *route*; what waits in the lanes of another one waits for it."""
        before = self.route
        self.is_stale = False
        if before is route:
            return
        if before is not None:
            if before.state_number == route.state_number:
                self.floors.move(before, route)
            else:
                self.floors.clear()
        self.empty_lanes()
        self._tables = {}
        self.rows_table = None
        self.route = route

    def enqueue(
        self, parts: Sequence[Part], *, least: Floor | None = None
    ) -> tuple[Sequence[Lane], Sequence[tuple[Part, Exception]]]:
        """
        Put keys into their lanes; there is a route.

        Args:
            parts: What is asked.
            least: What was seen already, above what the reads themselves say; or None.

        Returns:
            The lanes that something was put into, and what cannot be asked.
        """
        if len(parts) == 1 and len(parts[0][0].keys) == 1:
            return self._enqueue_one(parts[0], least)
        touched: dict[Lane, None] = {}
        failed: list[tuple[Part, Exception]] = []
        for run, asking, run_least in _runs(parts, least):
            self._enqueue_run(run, asking, run_least, touched, failed)
        return list(touched), failed

    def _enqueue_one(
        self, part: Part, least: Floor | None
    ) -> tuple[Sequence[Lane], Sequence[tuple[Part, Exception]]]:
        """Do as `enqueue` for a single key: this way is three times as short."""
        route = self.route
        assert route is not None
        read = part[0]
        if read.least is not None:
            least = later_of(read.least, least)
        try:
            (key,) = route.storage_keys(read.asking, read.keys)
            table, _ = self._table(route, read.asking, least)
        except Exception as error:  # noqa: BLE001 - a key is any object of the user's
            return (), ((part, error),)
        lane = table[(key[0] << 8) | key[1]]
        lane.keys.append(key)
        lane.reads.append(read)
        lane.places.append(0)
        if lane.deadline_ns < read.deadline_ns:  # noqa: PLR1730 (a call is dear)
            lane.deadline_ns = read.deadline_ns
        return (lane,), ()

    def _enqueue_run(
        self,
        run: Sequence[Part],
        asking: Asking,
        least: Floor | None,
        touched: dict[Lane, None],
        failed: list[tuple[Part, Exception]],
    ) -> None:
        """Put keys that are asked for in one way into their lanes."""
        route = self.route
        assert route is not None
        keys: list[object] = []
        reads: list[KeysRead] = []
        places: list[int] = []
        deadline_ns = 0
        for read, some in run:
            if some is not None:
                keys += [read.keys[place] for place in some]
                reads += [read] * len(some)
                places += some
            elif len(read.keys) == 1:
                keys.append(read.keys[0])
                reads.append(read)
                places.append(0)
            else:
                keys += read.keys
                reads += [read] * len(read.keys)
                places += range(len(read.keys))
            if read.deadline_ns > deadline_ns:  # noqa: PLR1730 (a call per read is dear)
                deadline_ns = read.deadline_ns
        try:
            storage_keys = route.storage_keys(asking, keys)
            table, lanes = self._table(route, asking, least)
        except Exception as error:  # noqa: BLE001 - a key is any object of the user's
            # One of them is wrong: the others are not to suffer from it.
            if len(run) == 1:
                failed.append((run[0], error))
                return
            for part in run:
                self._enqueue_run((part,), asking, least, touched, failed)
            return
        if len(lanes) == 1:
            lanes[0].keys += storage_keys
            lanes[0].reads += reads
            lanes[0].places += places
        else:
            for key, read, place in zip(storage_keys, reads, places, strict=True):
                lane = table[(key[0] << 8) | key[1]]
                lane.keys.append(key)
                lane.reads.append(read)
                lane.places.append(place)
        for lane in lanes:
            if lane.keys:
                touched[lane] = None
                lane.deadline_ns = max(lane.deadline_ns, deadline_ns)

    def _table(
        self, route: Route, asking: Asking, least: Floor | None
    ) -> tuple[list[Lane], Sequence[Lane]]:
        """Return for each key group the lane of its node, and every such lane once."""
        operation = route.operation(asking)
        known = self._tables.get((operation, least))
        if known is not None:
            return known
        if len(self._tables) >= _TABLE_COUNT_MAX:
            self._prune()
        by_node = {
            index: Lane(self, route, index, operation, least)
            for index in route.node_indexes
        }
        table = [by_node[owner] for owner in route.owners]
        made = (table, tuple(by_node.values()))
        self._tables[operation, least] = made
        if asking is ROWS and least is None:
            self.rows_table = table
        return made

    def _prune(self) -> None:
        """Forget lanes that nothing waits in and nothing comes back to."""
        self._tables = {
            name: known
            for name, known in self._tables.items()
            if known[0] is self.rows_table
            or any(lane.keys or lane.flight_count for lane in known[1])
        }


def _parts(reads: Sequence[KeysRead], places: Sequence[int]) -> list[Part]:
    """Return the keys of *reads* that somebody still waits for, together by read."""
    by_read: dict[KeysRead, list[int]] = {}
    for read, place in zip(reads, places, strict=True):
        if not read.is_done:
            by_read.setdefault(read, []).append(place)
    return list(by_read.items())


def _runs(
    parts: Sequence[Part], least: Floor | None
) -> Iterable[tuple[Sequence[Part], Asking, Floor | None]]:
    """Yield *parts*, at least one, cut where they are asked for in another way."""
    start = 0
    for index, (read, _) in enumerate(parts):
        first = parts[start][0]
        if read.asking is not first.asking or read.least != first.least:
            yield _run(parts[start:index], least)
            start = index
    yield _run(parts[start:], least)


def _run(
    run: Sequence[Part], least: Floor | None
) -> tuple[Sequence[Part], Asking, Floor | None]:
    first = run[0][0]
    return run, first.asking, later_of(first.least, least)
