"""
`QueryCore`: a client of queryable state without I/O.

Theory of operation
-------------------
The core holds what the application waits for (`Request`), and gets it answered by
the proxy that leads.  Everything that a client asks is idempotent, so whatever
goes wrong on the way has one remedy: ask again, until the request's own deadline.

Without a session (`queryablestate.client.session`) nothing is under way: what was,
waits again.  Under one, requests go

*   to the proxy itself (`Call`): one message, one answer (`CallFlights`);
*   for keys (`KeysRead`): sorted by node and packed together, by a route that is asked
    for once, and again when the proxy says that it is stale (`KeyReads`).  Where a
    ticket came with the route, the node itself is asked (`NodeWays`); whatever it
    refuses or leaves unanswered is asked of the proxy;
*   to one node, about all that it holds (`NodeRead`): by the caller's own route, whose
    staleness is the caller's business (`PageReads`).

What can be wrong with an answer, and what follows:

======================  ================================================================
``not-leader``          the session is over; greeted again after a pause, or the leader
                        that the name service tells meanwhile
``unknown-session``     greeted again
``stale-route``         the state is described again; asked by what is told then
``did-not-happen``      overload: asked again after a pause
``may-have-happened``   likewise
``illegal``             the answer would be too large: asked again for half as many
                        keys, unless there was only one
``unknown-state``       as a stale route, once: the state may have been made anew
``state-unavailable``   the keys in those key groups fail; the others are asked again,
                        after a pause if none of these is among them
older than before       asked again, for the newest batch that was seen (rule Q1)
cannot be decoded       as a stale route, once: the schema may have grown
any other refusal       is the request's error
none at all             the deadline
======================  ================================================================

**The shell's duties**, for every effect in the order returned: perform it, or tell what
came of it (`ConnectTo` leads to `ConnectionMade`, `ConnectionFailed` or
`ConnectionRefused`, and after the first of them to `ConnectionFailed` when it is over;
`ConnectNode` likewise to `NodeConnected` and `NodeFailed`; the shell never connects by
itself).  One call of `step` for each message, for each
change of the connection and of the leader, for each flush of the application, and one
when `next_deadline_ns` is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never, final

from nameservice.clock import NS_PER_SECOND
from nameservice.errors import (
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
)
from queryablestate.client.call_flights import CallFlights
from queryablestate.client.config import QueryConfig
from queryablestate.client.direct import NodeWays
from queryablestate.client.events import (
    ClientClosed,
    ConnectionFailed,
    ConnectionMade,
    ConnectionRefused,
    LeaderTold,
    MessageCame,
    NodeConnected,
    NodeFailed,
    QueryEffect,
    QueryEvent,
    RequestsAsked,
    RequestsDropped,
    SendRequest,
    TimeWent,
)
from queryablestate.client.page_reads import PageReads
from queryablestate.client.reads import KeyReads
from queryablestate.client.requests import (
    Call,
    KeysRead,
    NodeRead,
    Request,
    RouteRead,
)
from queryablestate.client.routes import ROWS
from queryablestate.client.session import QuerySession
from queryablestate.client.step import NEVER_NS, QueryOutbox
from queryablestate.wire.clients import StateDescribed, StatesListed, ToClient, Welcome
from queryablestate.wire.questions import Refusal, Told
from queryablestate.wire.refusals import NOT_LEADER, UNKNOWN_SESSION


__all__ = ["QueryCore"]

_CLOSED: Final = "this client is closed: make a new one"


@final
class QueryCore:
    """
    One client: its session, its routes, and what is asked and not answered.

    Two cores given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe: one shell drives it.

    Args:
        config: Its limits.
        now_ns: When it begins.
        first_address: Where the proxy leader is, as far as the caller knows.  The shell
            then asks the name service only when it is told to (`AskWhoLeads`).
        name_service: The URL of a name service that is still to be opened, or None.

    Attributes:
        requests: Everything that waits, in the order in which it came.
    """

    def __init__(
        self,
        config: QueryConfig | None = None,
        *,
        now_ns: int,
        first_address: str | None = None,
        name_service: str | None = None,
    ) -> None:
        self._config = QueryConfig() if config is None else config
        self._outbox = QueryOutbox(now_ns=now_ns)
        self._session = QuerySession(
            self._outbox,
            answer_timeout_ns=self._config.answer_timeout_ns,
            refused_pause_ns=self._config.refused_pause_ns,
            first_address=first_address,
            name_service=name_service,
        )
        self._ways = NodeWays(self._outbox, is_wanted=self._config.is_direct)
        self._keys = KeyReads(
            self._outbox,
            self._session,
            self._ways,
            flight_count_max=self._config.flight_count_max,
            answer_timeout_ns=self._config.answer_timeout_ns,
            route_refresh_ns=self._config.route_refresh_ns,
        )
        self._pages = PageReads(
            self._outbox, self._session, self._keys.routes, self._ways
        )
        self._calls = CallFlights(self._outbox, self._session)
        self._is_closed = False
        self.requests: Mapping[Request, None] = self._outbox.requests

    def renewed(self, *, now_ns: int) -> QueryCore:
        """
        Return a core that remembers what this one has seen, and has nothing under way.

        For a core that an exception has left amid a step.  Only what is whole at any
        moment is taken over: where the leader was, and what was seen of states.

        Args:
            now_ns: When it begins.
        """
        core = QueryCore(
            self._config,
            now_ns=now_ns,
            first_address=self._session.leader_address,
            name_service=self._session.unopened,
        )
        core._keys.routes.remember(self._keys.routes)
        return core

    # -- queries -------------------------------------------------------------------

    @property
    def key_count_max(self) -> int:
        """Return how many keys one question may have; 1 before the first session."""
        return self._session.key_count_max

    @property
    def frame_size_bytes_max(self) -> int:
        """Return how large a request the proxy takes; 1 before the first session."""
        return self._session.frame_size_bytes_max

    @property
    def request_count(self) -> int:
        """Return how many requests wait."""
        return len(self.requests)

    @property
    def flight_count(self) -> int:
        """Return how many questions are under way."""
        return (
            len(self._keys.flights)
            + self._pages.under_way_count
            + len(self._calls.under_way)
        )

    @property
    def state_count(self) -> int:
        """Return of how many states something is remembered."""
        return len(self._keys.routes.traffic)

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        if not self._outbox.requests:
            return None  # what is under way for no request may wait for the next step
        due_ns = self._outbox.expiry_ns
        if self._session.is_trusting:
            due_ns = min(due_ns, self._doubt_due_ns())
        if self._session.secret is None:
            return min(due_ns, self._session.due_ns())
        due_ns = min(due_ns, self._ways.due_ns())
        if self._keys.is_busy:
            due_ns = min(due_ns, self._keys.due_ns())
        due_ns = min(due_ns, self._pages.due_ns())
        if self._calls.waiting:
            due_ns = min(due_ns, self._calls.due_ns())
        return due_ns

    def check_invariants(self) -> None:
        """Assert what holds between any two steps; tests call it after each."""
        assert self._session.secret is None or self._session.is_connected
        if self._session.secret is None:
            assert not self._calls.under_way
        for request in self._outbox.requests:
            assert not request.is_done
            assert request.deadline_ns > self._outbox.now_ns
            assert request.deadline_ns >= self._outbox.expiry_ns
        assert not self._outbox.done
        self._keys.check_invariants()
        self._pages.check_invariants()

    # -- the step ------------------------------------------------------------------

    def step(self, event: QueryEvent, *, now_ns: int) -> Sequence[QueryEffect]:
        """Move time on to *now_ns*, then take *event*; return what to do."""
        outbox = self._outbox
        assert now_ns >= outbox.now_ns
        outbox.now_ns = now_ns
        if now_ns >= outbox.expiry_ns:
            self._expire()
        match event:
            case MessageCame(message, payload, link):
                if link:
                    self._node_said(link, message, payload)
                else:
                    self._take(message, payload)
            case RequestsAsked(requests):
                self._submit(requests)
            case TimeWent():
                pass
            case RequestsDropped(requests=requests):
                self._drop(requests)
            case LeaderTold():
                if self._session.leader_told(event):
                    self._session_ended()
            case ConnectionMade():
                self._session.made()
            case NodeConnected(link=link):
                self._ways.made(link)
            case NodeFailed(link=link, is_refused=is_refused):
                way = self._ways.failed(link, is_refused=is_refused)
                if way is not None:
                    self._keys.leave(way)
            case ConnectionFailed(problem=problem):
                if self._session.failed(problem):
                    self._session_ended()
            case ConnectionRefused(error=error):
                if self._session.failed(error):
                    self._session_ended()
                self._refused(error)
            case ClientClosed():
                self._close()
            case _:
                assert_never(event)
        self._tend()
        return outbox.take()

    def ask_now(self, read: KeysRead) -> SendRequest | None:
        """
        Take one question as a step with `RequestsAsked` would, by the shortest way.

        The time is that at which it was asked, if nothing has happened since.

        It is for a client in which no request waits for anything, and which has all
        that it takes to ask: otherwise nothing happens, and None is returned.  A
        question for one key takes a tenth of the time of its answer in here; this
        halves it.
        """
        outbox = self._outbox
        if (
            outbox.requests
            or self._session.secret is None
            or read.asking is not ROWS
            or read.least is not None
            or len(read.keys) != 1
        ):
            return None
        now_ns = outbox.now_ns
        if now_ns < read.asked_ns:
            now_ns = outbox.now_ns = read.asked_ns
        if now_ns >= read.deadline_ns:
            return None
        if now_ns >= outbox.expiry_ns:
            self._expire()
        effect = self._keys.ask_now(read)
        if effect is not None:
            outbox.requests[read] = None
            if outbox.expiry_ns > read.deadline_ns:  # noqa: PLR1730 (a call is dear)
                outbox.expiry_ns = read.deadline_ns
        return effect

    def _tend(self) -> None:
        """Do what is due."""
        if self._outbox.has_dropped:
            self._forget_dropped()
        if not self._outbox.requests:
            return
        if self._session.is_trusting and self._outbox.now_ns >= self._doubt_due_ns():
            self._session.doubt()
        if self._session.secret is None:
            if self._outbox.now_ns >= self._session.due_ns():
                self._session.seek()
            return
        self._keys.ask_late()
        if self._keys.is_busy:
            self._keys.tend()
        if self._calls.waiting:
            self._calls.send()
        for way in self._pages.tend():
            self._keys.leave(way)

    def _doubt_due_ns(self) -> int:
        """Return when what waits longest has waited for the first address too long."""
        return next(iter(self._outbox.requests)).asked_ns + self._config.patience_ns

    def _close(self) -> None:
        self._is_closed = True
        self._outbox.fail_all(tuple(self._outbox.requests), LocalProtocolError(_CLOSED))
        self._ways.close()
        if self._session.disconnect():
            self._session_ended()

    # -- requests ------------------------------------------------------------------

    def _submit(self, requests: Sequence[Request]) -> None:
        """Take what the application asks."""
        outbox = self._outbox
        waiting = outbox.requests
        count_max = self._config.request_count_max
        is_refusing = self._is_closed or self._session.refusal is not None
        reads: list[KeysRead] = []
        for request in requests:
            deadline_ns = request.deadline_ns
            # A call for each of many requests is dear.
            if is_refusing or len(waiting) >= count_max or deadline_ns <= outbox.now_ns:
                error = self._error_on_entry(request)
                waiting[request] = None
                outbox.fail(request, error)
                continue
            waiting[request] = None
            if outbox.expiry_ns > deadline_ns:  # noqa: PLR1730 (a call is dear)
                outbox.expiry_ns = deadline_ns
            match request:
                case KeysRead():
                    reads.append(request)
                case RouteRead():
                    self._keys.routes.ask(request)
                case NodeRead():
                    self._pages.ask(request)
                case Call():
                    self._calls.ask(request)
                case _:
                    assert_never(request)
        if reads:
            self._keys.ask(reads)

    def _error_on_entry(self, request: Request) -> NameServiceError:
        """Return why *request* is not even tried."""
        if self._is_closed:
            return LocalProtocolError(_CLOSED)
        if len(self._outbox.requests) >= self._config.request_count_max:
            return DidNotHappenError(
                f"{self._config.request_count_max} requests wait for answers already: "
                "wait for some of them, or ask for many keys at once with get_many"
            )
        refusal = self._session.refusal
        if refusal is None or request.deadline_ns <= self._outbox.now_ns:
            return self._error_of_silence(request)
        return refusal

    def _drop(self, requests: Sequence[Request]) -> None:
        """Forget *requests*: no caller waits for them."""
        for request in requests:
            if request in self._outbox.requests:
                del self._outbox.requests[request]
                request.is_done = True
                self._outbox.has_dropped = True

    def _forget_dropped(self) -> None:
        """Have nothing asked that no request waits for."""
        self._outbox.has_dropped = False
        self._keys.forget_dropped()
        self._pages.forget_dropped()
        self._calls.forget_dropped()

    def _expire(self) -> None:
        """Fail what is past its deadline, and find out when that is next."""
        outbox = self._outbox
        now_ns = outbox.now_ns
        for request in [r for r in outbox.requests if r.deadline_ns <= now_ns]:
            self._fail_late(request)
        self._keys.expire()
        self._pages.expire()
        self._calls.expire()
        outbox.expiry_ns = min(
            min((r.deadline_ns for r in outbox.requests), default=NEVER_NS),
            self._keys.flight_expiry_ns(),
        )

    def _fail_late(self, request: Request) -> None:
        """Fail *request* at its deadline, or finish it with what is there."""
        error = self._error_of_silence(request)
        if (
            isinstance(request, KeysRead)
            and request.is_partial
            and request.reading is not None
        ):
            request.partial_error = error
            self._outbox.has_dropped = True
            self._outbox.finish(request)
        else:
            self._outbox.fail(request, error)

    def _error_of_silence(self, request: Request) -> NameServiceError:
        waited_ns = self._outbox.now_ns - request.asked_ns
        least = request.least if isinstance(request, KeysRead | NodeRead) else None
        return self._session.error_of_silence(waited_ns / NS_PER_SECOND, least=least)

    def _refused(self, error: NameServiceError) -> None:
        """Fail whatever waits: we are not admitted, and will not be in a moment."""
        self._session.refused(error)
        self._outbox.fail_all(tuple(self._outbox.requests), error)

    def _session_ended(self) -> None:
        """Queue whatever is under way again, before what waits already."""
        self._keys.session_ended()
        self._pages.session_ended()
        self._calls.session_ended()

    # -- messages ------------------------------------------------------------------

    def _take(self, message: ToClient, payload: bytes | memoryview) -> None:
        number = message.request_id
        match message:
            case Told() if number in self._keys.flights:
                self._session.pause_ns = 0
                self._keys.answered(message, payload)
            case Welcome():
                self._session.welcomed(message)
            case Refusal():
                self._take_refusal(message)
            case _ if number in self._calls.under_way:
                self._session.pause_ns = 0
                match message:
                    case StateDescribed(description=description):
                        self._keys.routes.heard_of(description)
                    case StatesListed(states=states):
                        for description in states:
                            self._keys.routes.heard_of(description)
                self._calls.answered(message)
            case Told() if number in self._pages.under_way:
                self._session.pause_ns = 0
                self._pages.answered(message, payload)
            case StateDescribed() if self._keys.routes.is_describing(number):
                self._session.pause_ns = 0
                self._keys.described(message)
            case _:
                pass  # late, or no answer to what was asked

    def _node_said(
        self, link: int, message: ToClient, payload: bytes | memoryview
    ) -> None:
        self._ways.heard(link)
        if message.request_id in self._keys.flights:
            self._keys.node_said(link, message, payload)
        elif message.request_id in self._pages.under_way:
            self._pages.node_said(link, message, payload)

    def _take_refusal(self, refusal: Refusal) -> None:
        number = refusal.request_id
        if number == 0 and len(self._calls.under_way) == self.flight_count == 1:
            (number,) = self._calls.under_way  # what the proxy could not read
        is_keys = number in self._keys.flights or self._keys.routes.is_describing(
            number
        )
        is_page = number in self._pages.under_way
        if not (is_keys or is_page or number in self._calls.under_way):
            error = self._session.greeting_refused(refusal)
            if error is not None:
                self._outbox.fail_all(tuple(self._outbox.requests), error)
        elif refusal.code == NOT_LEADER:
            self._session.not_leader()
            self._session_ended()
        elif refusal.code == UNKNOWN_SESSION:
            self._session.unknown()
            self._session_ended()
        elif is_keys:
            self._keys.refused(refusal)
        elif is_page:
            self._pages.refused(refusal)
        else:
            self._calls.refused(refusal, number)
