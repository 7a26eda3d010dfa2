"""
`NodeWays`: the connections by which nodes are asked without the proxy; pure (D1, D3).

Theory of operation.  With the route of a state may come a ticket, and where its nodes
are.  A node is connected to when it is first to be asked, and asked by that *way* as
soon as it is open: until then, and whenever there is none, the proxy is asked.  So no
read waits for a connection, and none fails because there is no way::

    apart ──wanted──► opening ──made──► open
      ▲                  │               │
      └──────────────────┴─failed, late──┘

A way that came to nothing is tried again after a pause, which doubles; a node that does
not admit us is left alone for long.  A way is closed when no route leads over it.

A read that a node has not answered after the *hedge delay* is asked of the proxy, too
(`queryablestate.hedging`).  What waits for a tenth of the time that it had, is, in any
case: the way is then taken for broken.  Pages of scans, and counts, take their time
(`queryablestate.client.page_reads`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_MS, NS_PER_SECOND
from queryablestate.client.events import ConnectNode, DisconnectNode
from queryablestate.client.step import NEVER_NS
from queryablestate.client.ways import DirectRoute, NodeWay
from queryablestate.hedging import HedgePolicy, Verdict
from queryablestate.wire.direct import ASK_PROXY, TICKET_REFUSED, ShowTicket
from queryablestate.wire.questions import GetValues, HasRows
from queryablestate.wire.refusals import NOT_LEADER, STALE_ROUTE


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.client.coalescing import Flight
    from queryablestate.client.step import QueryOutbox
    from queryablestate.wire.direct import DirectAccess
    from queryablestate.wire.questions import Operation


__all__ = ["TICKET_PROBLEMS", "NodeWays"]

TICKET_PROBLEMS: Final = frozenset({TICKET_REFUSED, STALE_ROUTE, NOT_LEADER})
"""What nodes say to a ticket, or a route, that is over: it takes another one."""

_PAUSE_NS_MIN: Final = NS_PER_SECOND
_PAUSE_NS_MAX: Final = 30 * NS_PER_SECOND
_REFUSED_PAUSE_NS: Final = 60 * NS_PER_SECOND
_HOLD_NS_MIN: Final = 20 * NS_PER_MS
_HOLD_NS_MAX: Final = NS_PER_SECOND
_LATE_PARTS: Final = 10
_POINTS_SIZE_BYTES_MAX: Final = 32_000
_KEYS_SIZE_BYTES_MAX: Final = 1_000
"""A little less than what a node takes: see `queryablestate.node.reads`."""


@final
class NodeWays:
    """
    The ways of one client; a `QueryCore` owns them.

    Args:
        outbox: Shared with the core.
        is_wanted: Whether nodes are to be asked at all.

    Attributes:
        is_wanted: Likewise.
        direct_count: Reads that nodes were asked.
        hedged_count: Those of them that the proxy was asked, too, since they were late.
        refused_count: Those that a node has refused.
    """

    def __init__(self, outbox: QueryOutbox, *, is_wanted: bool) -> None:
        self._outbox = outbox
        self.is_wanted = is_wanted
        self._ways: dict[str, NodeWay] = {}
        self._by_link: dict[int, NodeWay] = {}
        self._link_count = 0
        self._policy = HedgePolicy()
        # Since when it is waited for flights; True at the first look at one.
        self._watched: deque[tuple[int, Flight, bool]] = deque()
        self.direct_count = 0
        self.hedged_count = 0
        self.refused_count = 0

    # -- routes ----------------------------------------------------------------------

    def route(
        self, ticket_id: int, access: DirectAccess | None, *, asked_ns: int
    ) -> DirectRoute | None:
        """
        Return how the nodes of a state are asked, or None if they are not.

        Args:
            ticket_id: The number of its ticket.
            access: What came with the route.
            asked_ns: When that was asked for: the ticket is not older.
        """
        if access is None or not self.is_wanted:
            return None
        return DirectRoute(
            ticket_id,
            access.ticket,
            asked_ns + access.life_ms * NS_PER_MS,
            tuple(
                None if address is None else self._way_to(address)
                for address in access.addresses
            ),
        )

    def keep(self, routes: Iterable[DirectRoute | None]) -> Sequence[NodeWay]:
        """Close the ways over which none of *routes* leads; return them."""
        if not self._ways:
            return ()
        kept = {
            way.address
            for route in routes
            if route is not None
            for way in route.ways
            if way is not None
        }
        closed = [way for address, way in self._ways.items() if address not in kept]
        for way in closed:
            del self._ways[way.address]
            self._close(way)
            self._forget_watched(way)
        return closed

    def close(self) -> None:
        """Close all of them."""
        self.keep(())

    def _way_to(self, address: str) -> NodeWay:
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = NodeWay(address)
        return way

    # -- asking ----------------------------------------------------------------------

    def way_for(self, route: DirectRoute | None, flight: Flight) -> NodeWay | None:
        """Return the way by which *flight* goes; None if the proxy is to be asked."""
        lane = flight.lane
        way = self.way_to(route, lane.node_index)
        if way is None or self._outbox.now_ns < lane.proxied_until_ns:
            return None
        return way if _is_small(lane.operation, flight.keys) else None

    def way_to(self, route: DirectRoute | None, node_index: int) -> NodeWay | None:
        """Return the way to a node if it may be asked; begin to open it if need be."""
        now_ns = self._outbox.now_ns
        if route is None or now_ns >= route.until_ns:
            return None
        way = route.ways[node_index]
        if way is None:
            return None
        if not way.is_open:
            if not way.link and now_ns >= way.due_ns:
                self._open(way)
            return None
        return None if now_ns < way.hold_until_ns else way

    def show(self, way: NodeWay, direct: DirectRoute) -> None:
        """Show a node the ticket, unless it has been shown that one."""
        if way.shown.get(direct.ticket_id) is not direct.ticket:
            way.shown[direct.ticket_id] = direct.ticket
            show = ShowTicket(ticket_id=direct.ticket_id, ticket=direct.ticket)
            self._outbox.send_to_node(way.link, show)

    def asked(self, way: NodeWay, flight: Flight) -> None:
        """Note that *flight* goes by *way*."""
        flight.way = way
        self.direct_count += 1
        self._policy.earn()
        self._watched.append((flight.sent_ns, flight, True))

    def heard(self, link: int) -> None:
        """Note that a node has said something."""
        now_ns = self._outbox.now_ns
        way = self._by_link.get(link)
        if way is not None:
            way.heard_ns = now_ns
        self._policy.heard(link, now_ns=now_ns)

    def answered(self, flight: Flight) -> None:
        """Note that the node has answered *flight*."""
        way = flight.way
        assert way is not None
        self._policy.took(way.link, self._outbox.now_ns - flight.sent_ns)
        way.pause_ns = 0
        way.hold_ns = 0
        flight.way = None

    def outrun(self, flight: Flight) -> None:
        """Note that the proxy has answered *flight* before its node has."""
        way = flight.way
        if way is not None and way.link:
            self._policy.took(way.link, self._outbox.now_ns - flight.sent_ns)
        flight.way = None

    def refused(self, flight: Flight, code: str) -> None:
        """
        Note that the node has refused *flight*.

        It is not asked for a while: for anything, or for what the lane of *flight*
        asks; nor at all, as it does not take the ticket.
        """
        assert flight.way is not None
        if not self.node_refused(flight.way, code) and code not in TICKET_PROBLEMS:
            flight.lane.proxied_until_ns = self._outbox.now_ns + _HOLD_NS_MAX
        flight.way = None

    def node_refused(self, way: NodeWay, code: str) -> bool:
        """Note that a node has refused; return whether it refuses everything now."""
        self.refused_count += 1
        if code != ASK_PROXY:
            return False
        way.hold_ns = min(max(_HOLD_NS_MIN, 2 * way.hold_ns), _HOLD_NS_MAX)
        way.hold_until_ns = self._outbox.now_ns + way.hold_ns
        return True

    # -- pages -----------------------------------------------------------------------

    def page_asked(self) -> None:
        """Count a page, or a count, that a node is asked for."""
        self.direct_count += 1

    def page_answered(self, way: NodeWay) -> None:
        """Note that a node has answered with a page, or a count."""
        way.pause_ns = 0
        way.hold_ns = 0

    def page_late(self, way: NodeWay, *, asked_ns: int) -> bool:
        """
        Note that the proxy is asked for a page, since its node is late.

        Returns:
            Whether the way is closed now: the node has said nothing since *asked_ns*.
        """
        self.hedged_count += 1
        if way.heard_ns > asked_ns:
            return False
        self._close(way)
        self._pause(way, is_refused=False)
        self._forget_watched(way)
        return True

    # -- what is late ----------------------------------------------------------------

    def due_ns(self) -> int:
        """Return when `take_late` must be called."""
        watched = self._watched
        while watched and not _is_waited_for(watched[0][1]):
            watched.popleft()
        return watched[0][0] + self._policy.delay_ns if watched else NEVER_NS

    def take_late(self) -> list[Flight]:
        """Return the flights that the proxy is to be asked, too."""
        late: list[Flight] = []
        now_ns = self._outbox.now_ns
        while self.due_ns() <= now_ns:
            _, flight, is_first = self._watched.popleft()
            way = flight.way
            assert way is not None
            verdict = self._policy.late(
                way.link, asked_at_ns=flight.sent_ns, now_ns=now_ns, is_first=is_first
            )
            had_ns = flight.deadline_ns - flight.sent_ns
            is_broken = verdict is Verdict.MOVE or (
                now_ns - flight.sent_ns >= had_ns // _LATE_PARTS
            )
            if verdict is Verdict.WAIT and not is_broken:
                self._watched.append((now_ns, flight, False))
                continue
            late.append(flight)
            if is_broken:
                self._close(way)
                self._pause(way, is_refused=False)
                flights = (one for _, one, _ in self._watched if one.way is way)
                late += [one for one in flights if _is_waited_for(one)]
                self._forget_watched(way)
            else:
                self._policy.spend(1)
        self.hedged_count += len(late)
        return late

    def _forget_watched(self, way: NodeWay) -> None:
        self._watched = deque(one for one in self._watched if one[1].way is not way)

    # -- connections -----------------------------------------------------------------

    def made(self, link: int) -> None:
        """Note that a way is open."""
        way = self._by_link.get(link)
        if way is not None:
            way.is_open = True

    def failed(self, link: int, *, is_refused: bool) -> NodeWay | None:
        """Note that a connection is over, or came to nothing; return whose it was."""
        way = self._by_link.pop(link, None)
        if way is None:
            return None
        self._policy.forget(link)
        way.link = 0
        way.is_open = False
        way.shown.clear()
        self._pause(way, is_refused=is_refused)
        self._forget_watched(way)
        return way

    def is_of(self, link: int, flight: Flight) -> bool:
        """Return whether *flight* waits for an answer over *link*."""
        return flight.way is not None and flight.way.link == link

    def _open(self, way: NodeWay) -> None:
        self._link_count += 1
        way.link = self._link_count
        self._by_link[way.link] = way
        self._outbox.perform(ConnectNode(link=way.link, address=way.address))

    def _close(self, way: NodeWay) -> None:
        if way.link:
            del self._by_link[way.link]
            self._policy.forget(way.link)
            self._outbox.perform(DisconnectNode(link=way.link))
        way.link = 0
        way.is_open = False
        way.shown.clear()

    def _pause(self, way: NodeWay, *, is_refused: bool) -> None:
        way.pause_ns = min(max(_PAUSE_NS_MIN, 2 * way.pause_ns), _PAUSE_NS_MAX)
        if is_refused:
            way.pause_ns = _REFUSED_PAUSE_NS
        way.due_ns = self._outbox.now_ns + way.pause_ns


def _is_waited_for(flight: Flight) -> bool:
    """Return whether only a node was asked for *flight*, and has yet to answer."""
    return flight.way is not None and not flight.is_proxied and not flight.is_over


def _is_small(operation: Operation, keys: list[bytes]) -> bool:
    """Return whether a node answers a question with this number of keys by itself."""
    if len(keys) == 1:
        return True
    size_bytes = sum(map(len, keys)) + 3 * len(keys)  # as MessagePack has them
    is_point = isinstance(operation, GetValues | HasRows)
    return size_bytes <= (_POINTS_SIZE_BYTES_MAX if is_point else _KEYS_SIZE_BYTES_MAX)
