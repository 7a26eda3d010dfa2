"""A reader, who asks all the time, and for whom each answer must be true."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

from attrs import Factory, define

from queryablestate import StateUnavailableError
from queryablestate.client.builder import entry_of
from queryablestate.client.floors import PRESENT
from queryablestate.client.requests import (
    UNANSWERED,
    KeysRead,
    NodeRead,
    RouteRead,
    StaleRouteError,
)
from queryablestate.client.routes import ENTRY, EXISTS, ROWS, Asking
from queryablestate.client.scanning import Scan, ScanBounds
from queryablestate.schema.key_groups import group_of
from queryablestate.wire.questions import CountKeys, ScanRows
from tests.simulation.timeline import MS
from tests.state_simulation.checkers import Page
from tests.state_simulation.client import Client
from tests.state_simulation.content import (
    KEYS,
    MAP_KEYS,
    entry_key,
    map_keys,
    storage_key,
    stored_value,
)
from tests.state_simulation.scenario import MAX_PARALLELISM, Profile
from tests.state_simulation.wall_clock import wall_clock_us_at


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.client.floors import Floor
    from queryablestate.client.requests import Request
    from queryablestate.client.routes import Route
    from queryablestate.wire.questions import Told
    from tests.state_simulation.checkers import Asked, Found
    from tests.state_simulation.world import World


__all__ = ["Reader"]

_DEADLINE_NS: Final = 500 * MS
_STRICT_DEADLINE_NS: Final = 6_000 * MS
_TIMES_AWAY: Final = 8
"""A greeting, a question for a route, two for rows, each there and back."""
_RESTING: Final = 4
"""How much more seldom it asks when all is over but what nodes have left to do."""
_PAGE_ROW_COUNTS: Final = (2, 5, 100)


@define(eq=False)
class _Wish:
    """
    What somebody wants to know.

    Attributes:
        asked: For the books.
        deadline_ns: When it is worth nothing any more.
        least: Of which generation and batch the answer is to be at least, or None.
        answered: The places of its keys that have an answer.
        is_scan: If it is about all rows, whether they are wanted, or their number.
        scan: The rows that are wanted, once there is a route.
        left: Nodes that were asked and have not answered.
        has_failed: Whether a node gave no answer.
        stale: A route that turned out to be of the past.
    """

    asked: Asked
    deadline_ns: int
    least: Floor | None
    answered: set[int] = Factory(set)
    is_scan: bool = False
    scan: Scan | None = None
    left: int = 0
    has_failed: bool = False
    stale: Route | None = None


@final
class Reader:
    """
    The threads of one client, each with one question at a time.

    Args:
        world: Where it happens.
        name: For the books.
        pause_ns: The mean time between an answer and the next question.
        only_group: The only key group that it asks for, or None for all.

    Attributes:
        name: For the books.
    """

    def __init__(
        self, world: World, name: str, *, pause_ns: int, only_group: int | None = None
    ) -> None:
        self._world = world
        self.name = name
        self._rng = Random(f"{world.seed}/questions of {name}")
        self._pause_ns = pause_ns
        self._only_group = only_group
        self._is_strict = world.scenario.profile is not Profile.STORM
        self._client = Client(world, name, on_told=self._told, on_done=self._done)
        for _ in range(self._rng.choice((1, 2, 3))):
            self._again()

    def leader_changed(self) -> None:
        """Hear from the name service that somebody else leads, or none does."""
        self._client.leader_changed()

    def _again(self) -> None:
        """Ask something else in a while."""
        mean_ns = self._pause_ns * (_RESTING if self._world.is_resting else 1)
        delay_ns = 1 + round(self._rng.expovariate(1.0) * mean_ns)
        self._world.timeline.after(delay_ns, self._ask)

    # -- questions -------------------------------------------------------------------

    def _ask(self) -> None:
        world, rng = self._world, self._rng
        if world.is_over:
            return
        job_id, state_name = name = rng.choice(world.state_names)
        kind = world.kind_of(*name)
        deadline_ns = _STRICT_DEADLINE_NS if self._is_strict else _DEADLINE_NS
        deadline_ns += world.network.away_ns * _TIMES_AWAY
        least = self._least(name) if rng.random() < 0.1 else None
        wish = _Wish(
            world.checker.asks(job_id, state_name, least),
            world.timeline.now_ns + deadline_ns,
            least,
        )
        if self._only_group is None and rng.random() < 0.3:
            wish.is_scan = kind != "list" and rng.random() < 0.6
            self._ask_route(wish)
            return
        asking, keys = self._keys(kind)
        read = self._client.builder.keys(
            job_id,
            state_name,
            asking,
            keys,
            deadline_ns / (1_000 * MS),
            None if least is None else least[1],
            None if least is None or least[0] == PRESENT else least[0],
            is_partial=not self._is_strict and rng.random() < 0.2,
        )
        read.waiter = wish
        self._client.ask(read)

    def _keys(self, kind: str) -> tuple[Asking, Sequence[Any]]:
        """Return what to ask, and for which keys."""
        rng = self._rng
        keys = KEYS
        if self._only_group is not None or rng.random() < 0.7:
            group = self._only_group
            if group is None:
                group = rng.randrange(MAX_PARALLELISM)
            keys = tuple(key for key in KEYS if group_of(storage_key(key)) == group)
        if rng.random() < 0.3:
            keys = (rng.choice(keys),)
        if rng.random() < 0.2:
            return EXISTS, keys
        if kind == "map" and rng.random() < 0.5:
            return ENTRY, [(key, one) for key in keys for one in MAP_KEYS]
        if kind == "list" and rng.random() < 0.3:
            return Asking.items(-2, None), keys
        return ROWS, keys

    def _least(self, name: tuple[str, str]) -> Floor | None:
        """Return which batch to wait for: the newest one, or one that is to come."""
        state = self._world.checker.newest_state(*name)
        if state is None or not state.versions:
            return None
        newest = state.versions[-1]
        later = 0 if self._is_strict else self._rng.randrange(2)
        is_present = self._rng.random() < 0.5
        generation = PRESENT if is_present else newest.generation
        return generation, newest.batch_id + later

    # -- questions for all rows ------------------------------------------------------

    def _ask_route(self, wish: _Wish) -> None:
        asked = wish.asked
        read = self._client.builder.route(
            asked.job_id, asked.state_name, wish.deadline_ns, wish.stale
        )
        read.waiter = wish
        self._client.ask(read)

    def _ask_nodes(self, wish: _Wish, route: Route) -> None:
        operations: Sequence[tuple[int, ScanRows | CountKeys]]
        wish.stale = None
        if wish.is_scan:
            if wish.scan is None:
                wish.scan = Scan(
                    ScanBounds(b"", None),
                    limit=None,
                    page_row_count_max=self._rng.choice(_PAGE_ROW_COUNTS),
                )
            wish.scan.begin(route)
            operations = wish.scan.wanted()
        else:
            operations = [(index, route.counting()) for index in route.node_indexes]
        self._ask_pages(wish, route, operations)

    def _ask_pages(
        self,
        wish: _Wish,
        route: Route,
        operations: Sequence[tuple[int, ScanRows | CountKeys]],
    ) -> None:
        reads = self._client.builder.nodes(
            route, operations, wish.deadline_ns, wish.least
        )
        wish.left = len(reads)
        for read in reads:
            read.waiter = wish
        if reads:
            self._client.ask(*reads)
        else:
            self._again()

    def _node_done(self, wish: _Wish, read: NodeRead) -> None:
        """Take what a node says; go on when all have said something."""
        wish.left -= 1
        if isinstance(read.error, StaleRouteError):
            wish.stale = read.route
        elif read.error is not None:
            self._failed(wish, read.error)
            wish.has_failed = True
        else:
            self._check_node(wish, read)
            if wish.scan is not None:
                wish.scan.take(read.node_index, read.result, read.next_start)
        if wish.left:
            return
        if wish.stale is not None:
            self._ask_route(wish)
        elif wish.scan is None or wish.has_failed:
            self._again()
        else:
            wish.scan.pop()
            if wish.scan.is_over:
                self._again()
            else:
                self._ask_pages(wish, read.route, wish.scan.wanted())

    # -- answers ---------------------------------------------------------------------

    def _done(self, request: Request) -> None:
        wish: _Wish = request.waiter
        match request:
            case NodeRead():
                self._node_done(wish, request)
            case RouteRead(route=route) if route is not None:
                self._ask_nodes(wish, route)
            case _:
                if request.error is not None:
                    self._failed(wish, request.error)
                elif isinstance(request, KeysRead):
                    self._check_entry(request)
                self._again()

    def _failed(self, wish: _Wish, error: Exception) -> None:
        """See to it that there is a reason to give no answer (rule S4)."""
        world, asked = self._world, wish.asked
        world.counts[f"readers refused: {type(error).__name__}"] += 1
        if not self._is_strict:
            return
        if isinstance(error, StateUnavailableError):
            rule = "S4 nothing is unavailable while there is a copy of it"
            may_fail = not asked.has_rows or not asked.is_acknowledged
        else:
            rule = "S4 no read fails because a node is away, or because of a move"
            may_fail = not asked.has_rows
        world.checker.require(rule, may_fail, self.name, asked, error)

    def _told(
        self,
        state_number: int,
        keys: Sequence[bytes],
        told: Told,
        reads: Sequence[KeysRead],
    ) -> None:
        """Check what the client takes of an answer for keys, at that moment."""
        reading = told.reading
        groups = tuple(sorted({group_of(key) for key in keys}))
        for read in reads:
            wish: _Wish = read.waiter
            kind = self._world.kind_of(*read.state)
            found: Found = {}
            for place, (key, row) in enumerate(zip(read.keys, read.rows, strict=True)):
                is_entry = read.asking is ENTRY
                stored = entry_key(*key) if is_entry else storage_key(key)
                if row is UNANSWERED or place in wish.answered:
                    continue
                if stored in keys:
                    wish.answered.add(place)
                    found |= _found(kind, read.asking, key, row)
            self._world.checker.told(
                self.name,
                wish.asked,
                state_number,
                reading,
                sent_us=wall_clock_us_at(self._client.sent_ns),
                now_us=self._world.wall_clock_us,
                groups=groups,
                found=found,
                items_from=read.asking.start,
            )
            self._count(state_number, groups, is_cached=reading.is_cached)

    def _check_entry(self, read: KeysRead) -> None:
        """See to it that the entry of one key is of the age that was told."""
        if len(read.keys) != 1 or read.rows[0] is None or read.rows[0] is UNANSWERED:
            return
        assert read.reading is not None
        age_seconds = entry_of(read).age_seconds
        self._world.checker.require(
            "Q2 an entry is as old as its reading",
            round(age_seconds * 1_000) == read.reading.age_ms,
            age_seconds,
            read.reading,
        )

    def _check_node(self, wish: _Wish, read: NodeRead) -> None:
        route, reading = read.route, read.reading
        assert reading is not None
        owners = enumerate(route.owners)
        groups = tuple(g for g, index in owners if index == read.node_index)
        told = partial(
            self._world.checker.told,
            self.name,
            wish.asked,
            route.state_number,
            reading,
            sent_us=wall_clock_us_at(self._client.sent_ns),
            now_us=self._world.wall_clock_us,
            groups=groups,
        )
        if isinstance(read.operation, ScanRows):
            values = [value for _, value in route.decode_page(read.result)]
            rows = [
                (encoded, _stored(value))
                for (encoded, _), value in zip(read.result, values, strict=True)
            ]
            told(page=Page(rows, read.operation.start, read.next_start))
        else:
            told(count=read.result)
        self._count(route.state_number, groups, is_cached=reading.is_cached)

    def _count(
        self, state_number: int, groups: Sequence[int], *, is_cached: bool
    ) -> None:
        world = self._world
        world.counts["readers told"] += 1
        world.counts["readers told from a cache"] += is_cached
        for key_group in groups:
            world.answered_at[state_number, key_group] = world.timeline.now_ns


def _found(kind: str, asking: Asking, key: Any, row: Any) -> Found:
    """Return what *row* says of *key*, by storage key (with map key)."""
    if asking is ENTRY:
        return {entry_key(*key): None if row is None else (_stored(row),)}
    stored = map_keys(key) if kind == "map" else [storage_key(key)]
    if asking is EXISTS:
        return {tuple(stored): row is not None}
    if row is None:
        return dict.fromkeys(stored)
    if kind == "map":
        found: Found = dict.fromkeys(stored)
        for map_key, inner in row.items():
            found[entry_key(key, map_key)] = (_stored(inner),)
        return found
    items = row if kind == "list" else (row,)
    return {stored[0]: tuple(_stored(item) for item in items)}


def _stored(row: Mapping[str, bytes]) -> bytes:
    return stored_value(row["value"])
