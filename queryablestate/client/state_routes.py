"""
`StateRoutes`: the routes of a client, and how they are asked for; pure.

A route is asked for when the first read of a state wants it, in passing when it is old
or its ticket is (`queryablestate.client.direct`), and after a pause when it was found
to lead nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from nameservice.errors import NameServiceError, RemoteProtocolError
from queryablestate.client.coalescing import StateTraffic
from queryablestate.client.direct import NodeWays
from queryablestate.client.requests import Request, RouteRead, StateName
from queryablestate.client.routes import Route
from queryablestate.client.session import QuerySession
from queryablestate.client.step import NEVER_NS, QueryOutbox, longer_pause
from queryablestate.client.ways import NodeWay
from queryablestate.errors import UnknownJobError, UnknownStateError
from queryablestate.wire.clients import DescribeState, StateDescription
from queryablestate.wire.direct import DirectAccess


__all__ = ["StateRoutes", "route_of"]


@final
class StateRoutes:
    """
    What is known of states, and asked.

    Not thread-safe; a `KeyReads` owns it.

    Args:
        outbox: Shared with the core.
        session: Likewise.
        ways: Likewise.
        answer_timeout_ns: After how long a question for a route is put again.
        route_refresh_ns: How old a route may get before it is asked for in passing.

    Attributes:
        traffic: Of each state that is known or asked; not to be changed.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        session: QuerySession,
        ways: NodeWays,
        *,
        answer_timeout_ns: int,
        route_refresh_ns: int,
    ) -> None:
        self._outbox = outbox
        self._session = session
        self._ways = ways
        self._answer_timeout_ns = answer_timeout_ns
        self._route_refresh_ns = route_refresh_ns
        self._traffic: dict[StateName, StateTraffic] = {}
        self.traffic: Mapping[StateName, StateTraffic] = self._traffic
        self._wanting: dict[StateTraffic, None] = {}
        self._describing: dict[int, StateTraffic] = {}

    # -- queries -------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether there is a route that `describe` might ask for."""
        return bool(self._wanting)

    def is_describing(self, number: int) -> bool:
        """Return whether message *number* asks for a route."""
        return number in self._describing

    def due_ns(self) -> int:
        """Return when `describe` must be called again."""
        return min((one.describe_due_ns for one in self._wanting), default=NEVER_NS)

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        assert self._session.secret is not None or not self._describing
        for traffic in self._traffic.values():
            assert not traffic.is_wanting or traffic in self._wanting

    # -- what is wanted --------------------------------------------------------------

    def remember(self, before: StateRoutes) -> None:
        """
        Remember what another one has seen (rule Q1); each route is asked for anew.

        Args:
            before: Has no state in common with this one, and is used no more.
        """
        for state, seen in tuple(before.traffic.items()):
            if seen.route is not None:
                traffic = self.traffic_of(state)
                traffic.route, traffic.floors = seen.route, seen.floors
                traffic.is_stale = True

    def traffic_of(self, state: StateName) -> StateTraffic:
        """Return what is known of a state; it is new if that is nothing."""
        traffic = self._traffic.get(state)
        if traffic is None:
            traffic = self._traffic[state] = StateTraffic(state)
            traffic.describe_due_ns = self._outbox.now_ns
        return traffic

    def want(self, traffic: StateTraffic) -> None:
        """Have the route asked for."""
        self._wanting[traffic] = None

    def want_newer(self, traffic: StateTraffic) -> None:
        """Have the route asked for at once, though it leads somewhere."""
        if traffic.describe_id is None:
            traffic.describe_due_ns = self._outbox.now_ns
        self.want(traffic)

    def ask(self, read: RouteRead) -> None:
        """Take a question for a route."""
        traffic = self.traffic_of(read.state)
        if read.stale is not None and traffic.route is read.stale:
            self.failed(traffic)
        traffic.route_reads.append(read)
        self.want(traffic)
        self.answer(traffic)

    def failed(self, traffic: StateTraffic) -> None:
        """Ask for the route again, after a pause: it leads nowhere."""
        traffic.is_stale = True
        if traffic.describe_id is None:
            traffic.describe_due_ns = self._outbox.now_ns + traffic.pause_ns
            traffic.pause_ns = longer_pause(traffic.pause_ns)

    def heard_of(self, description: StateDescription) -> None:
        """
        Ask for a route that has other columns than a caller was told of.

        What is read next would lack a column that the caller knows, as if it were null.
        """
        traffic = self._traffic.get((description.job_id, description.state_name))
        route = None if traffic is None else traffic.route
        if (
            traffic is None
            or route is None
            or route.description.schema == description.schema
        ):
            return
        traffic.is_stale = True
        if traffic.describe_id is None:
            traffic.describe_due_ns = self._outbox.now_ns

    def ticket_refused(self, traffic: StateTraffic) -> None:
        """Ask for another ticket in a while: a node does not take this one."""
        traffic.direct = None
        traffic.direct_pause_ns = longer_pause(traffic.direct_pause_ns)
        due_ns = self._outbox.now_ns + traffic.direct_pause_ns
        traffic.refresh_due_ns = min(traffic.refresh_due_ns, due_ns)
        if traffic.describe_id is None:
            traffic.describe_due_ns = due_ns

    def forget_dropped(self) -> None:
        """Ask for no route that no request waits for."""
        for traffic in tuple(self._wanting):
            traffic.waiting = [part for part in traffic.waiting if not part[0].is_done]
            traffic.route_reads = [
                read for read in traffic.route_reads if not read.is_done
            ]
            self._stop_wanting(traffic)

    def _stop_wanting(self, traffic: StateTraffic) -> None:
        """Do not ask for a route that no request waits for."""
        if traffic.is_wanting:
            return
        self._wanting.pop(traffic, None)
        if traffic.route is None and traffic.describe_id is None:
            del self._traffic[traffic.state]

    def session_ended(self) -> None:
        """Ask again for what was asked; no ticket is worth anything any more."""
        for traffic in self._describing.values():
            traffic.describe_id = None
            traffic.describe_due_ns = self._outbox.now_ns
        self._describing.clear()
        for traffic in self._traffic.values():
            if traffic.direct is not None:
                # It may be another leader by now, whose nodes take no such ticket.
                traffic.direct = None
                traffic.refresh_due_ns = self._outbox.now_ns

    # -- questions and answers ---------------------------------------------------------

    def describe(self) -> None:
        """Ask for the routes that are due."""
        secret = self._session.secret
        assert secret is not None
        for traffic in self._wanting:
            if self._outbox.now_ns < traffic.describe_due_ns:
                continue
            number = traffic.describe_id
            if number is None:
                number = traffic.describe_id = self._outbox.next_number()
                traffic.describe_asked_ns = self._outbox.now_ns
                self._describing[number] = traffic
            # Else a late answer counts, too: to what was asked first, for all we know.
            traffic.describe_due_ns = self._outbox.now_ns + self._answer_timeout_ns
            job_id, state_name = traffic.state
            self._outbox.send(
                DescribeState(
                    request_id=number,
                    session=secret,
                    job_id=job_id,
                    state_name=state_name,
                    wants_direct=self._ways.is_wanted,
                )
            )

    def told(self, number: int) -> StateTraffic:
        """Return whose route message *number* has asked for; it is asked no more."""
        traffic = self._describing.pop(number)
        traffic.describe_id = None
        return traffic

    def take_access(
        self, traffic: StateTraffic, access: DirectAccess | None
    ) -> Sequence[NodeWay]:
        """
        Take what came with a route, and see when to ask for it again.

        Returns:
            The ways that are closed now, since no route leads over them.
        """
        outbox, before = self._outbox, traffic.direct
        if not traffic.ticket_id:
            traffic.ticket_id = outbox.next_number()
        asked_ns = traffic.describe_asked_ns
        traffic.direct = direct = self._ways.route(
            traffic.ticket_id, access, asked_ns=asked_ns
        )
        traffic.refresh_due_ns = outbox.now_ns + self._route_refresh_ns
        if direct is not None:
            renewal_ns = asked_ns + (direct.until_ns - asked_ns) * 2 // 3
            traffic.refresh_due_ns = min(traffic.refresh_due_ns, renewal_ns)
        if before is None or direct is None or before.ways != direct.ways:
            return self._ways.keep(one.direct for one in self._traffic.values())
        return ()

    def answer(self, traffic: StateTraffic) -> None:
        """Tell those who wait for a route, if there is one."""
        if traffic.route is None or traffic.is_stale:
            return
        reads, traffic.route_reads = traffic.route_reads, []
        for read in reads:
            if read.is_done:
                continue
            if read.is_new and read.asked_ns > traffic.route_asked_ns:
                traffic.route_reads.append(read)
                self.want_newer(traffic)
            else:
                read.route = traffic.route
                self._outbox.finish(read)
        self._stop_wanting(traffic)

    def lost(self, traffic: StateTraffic, error: NameServiceError) -> None:
        """
        Fail what waits for a route that there is none of.

        That is what was asked before the question for the route.  A batch may have been
        committed since then, the first of a state even, and a refusal is never older
        than the last known commit (rule Q3).  So the question is put again for what was
        asked later.

        The state is forgotten if nothing was seen of it, or if there is no such state.
        Else what was seen stays seen (rule Q1): the next question has the state
        described, and its answer is held against that.
        """
        asked_ns = traffic.describe_asked_ns
        route_reads, traffic.route_reads = traffic.route_reads, []
        waiting, traffic.waiting = traffic.waiting, []
        requests: list[Request] = [*route_reads, *(read for read, _ in waiting)]
        early = [one for one in requests if one.asked_ns <= asked_ns]
        self._outbox.fail_all(early, error)
        self._wanting.pop(traffic, None)
        if traffic.route is None or isinstance(
            error, UnknownJobError | UnknownStateError
        ):
            del self._traffic[traffic.state]
        else:
            traffic.is_stale = True
            traffic.describe_due_ns = self._outbox.now_ns
        if all(one.is_done for one in requests):
            return
        traffic = self.traffic_of(traffic.state)
        traffic.route_reads = [read for read in route_reads if not read.is_done]
        traffic.waiting = [part for part in waiting if not part[0].is_done]
        self.want(traffic)


def route_of(traffic: StateTraffic, description: StateDescription) -> Route:
    """
    Return the route that *description* is of, the present one if it is.

    Raises:
        NameServiceError: If it is none, or the description of another state.
    """
    if (description.job_id, description.state_name) != traffic.state:
        raise RemoteProtocolError("malformed", "the description of another state")
    route = traffic.route
    if route is not None and route.is_same_as(description):
        return route
    return Route(description, route)
