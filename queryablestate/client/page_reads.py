"""
`PageReads`: questions for all that one node holds of a state; pure.

A page of a scan and a count are asked of a node by the caller's own route, whose
staleness is the caller's business.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, final

from nameservice.clock import NS_PER_MS
from nameservice.errors import RemoteProtocolError
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
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.codec import decode_count
from queryablestate.wire.questions import Ask, CountKeys, Reading, Refusal, Told
from queryablestate.wire.refusals import STALE_ROUTE, error_of


__all__ = ["PageReads"]

_HOLD_NS: Final = 20 * NS_PER_MS
_OVERLOADED: Final = "did-not-happen"
_OUTDATED: Final = frozenset({STALE_ROUTE, "unknown-job", "unknown-state"})


@final
class PageReads:
    """
    Everything that is asked of single nodes.

    Not thread-safe; a `QueryCore` owns it, and calls `tend` while there is a session.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        routes: What was seen of states, and their present routes.
    """

    def __init__(
        self, outbox: QueryOutbox, session: QuerySession, routes: StateRoutes
    ) -> None:
        self._outbox = outbox
        self._session = session
        self._routes = routes
        # What waits to be sent, and what is under way by its number.
        self._waiting: dict[NodeRead, None] = {}
        self._under_way: dict[int, NodeRead] = {}

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
        return min((read.hold_until_ns for read in self._waiting), default=NEVER_NS)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        assert self._session.secret is not None or not self._under_way

    # -- what is asked -----------------------------------------------------------------

    def ask(self, read: NodeRead) -> None:
        """Take a question."""
        self._waiting[read] = None

    def forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        self._waiting = {read: None for read in self._waiting if not read.is_done}

    def expire(self) -> None:
        """Forget what was never answered."""
        self._under_way = {n: r for n, r in self._under_way.items() if not r.is_done}

    def session_ended(self) -> None:
        """Queue whatever is under way again, before what waits already."""
        under_way = [read for read in self._under_way.values() if not read.is_done]
        self._waiting = dict.fromkeys((*under_way, *self._waiting))
        self._under_way.clear()

    def tend(self) -> None:
        """Send what is due."""
        if not self._waiting:
            return
        now_ns = self._outbox.now_ns
        for read in [r for r in self._waiting if r.hold_until_ns <= now_ns]:
            del self._waiting[read]
            number = self._outbox.next_number()
            self._under_way[number] = read
            self._ask_proxy(number, read)

    def _ask_proxy(self, number: int, read: NodeRead) -> None:
        """Ask the proxy for *read*."""
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

    # -- answers ---------------------------------------------------------------------

    def answered(self, told: Told, payload: bytes | memoryview) -> None:
        """Take the answer to a question that is under way."""
        read = self._under_way.pop(told.request_id)
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
        floor = self._floor_of(read, told.reading)
        if floor is not None:
            if told.reading.generation == floor[0]:
                read.least = later_of(read.least, floor)
            self._ask_later(read)
            return
        read.result = result
        read.next_start = told.next_start
        read.reading = told.reading
        self._outbox.finish(read)

    def _floor_of(self, read: NodeRead, reading: Reading) -> Floor | None:
        """Note what a node has answered to *read*, or return how new it should be."""
        traffic = self._routes.traffic.get(read.state)
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
        """Take the refusal of a question that is under way."""
        read = self._under_way.pop(refusal.request_id)
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
