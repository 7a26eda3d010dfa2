"""
`ProxyLoop`: the thread of a proxy, and who does what in it.

Theory of operation.  One thread serves a port that everybody is connected to: clients,
writers and nodes.  A message goes to one of these, and what they return goes out again:

=================  ===================================================================
`ProxyPort`        the socket: who may come in, what is no message, whose connection
                   is over
`ReadRouter`         what readers ask, on its way to a node and back
`RequestHandler`      what the proxy answers by itself, and who may ask for a change
`ProxyControl`     the control plane, and the leader store behind it
`SessionTable`     who speaks
=================  ===================================================================

**Leading.**  The election, in its own thread, says *lead* and *stop*.  Between the two
every message is looked at only while the election believes at that very moment
(`has_leadership` is a check of the clock); otherwise it is answered ``not-leader``,
and its sender looks for the leader again.  So a proxy that was paused answers
nothing out of its past (rule Q4).
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    SystemClock,
    get_logger,
)
from nameservice.observation import JobStanding, Observation, StateFreshness
from nameservice.version import package_version
from queryablestate.control.direct_readers import direct_lease_ns
from queryablestate.control.events import NodeSpoke, RightsReplaced, WriterAsked
from queryablestate.proxy.cache import ResultCache
from queryablestate.proxy.direct_tickets import DirectTickets
from queryablestate.proxy.leadership import ProxyControl
from queryablestate.proxy.node_connections import (
    NODE_ID_LENGTH_MAX,
    NODE_NOT_ALLOWED,
    NODE_UNKNOWN,
    NodeConnections,
    is_registration,
)
from queryablestate.proxy.port import ProxyPort
from queryablestate.proxy.rate_limit import RateLimiter
from queryablestate.proxy.read_answers import Outgoing
from queryablestate.proxy.requests import ChangeRequest, LookupRequest, RequestHandler
from queryablestate.proxy.router import ReadLimits, ReadRouter
from queryablestate.proxy.sessions import SESSION_SIZE_BYTES, ProxySession, SessionTable
from queryablestate.wire.clients import (
    CommitBatch,
    DescribeState,
    Hello,
    ListJobs,
    ListNodes,
    ListStates,
    StateDescribed,
    Welcome,
)
from queryablestate.wire.node_messages import (
    ConnectionJoined,
    EntriesApplied,
    JoinConnection,
    KeyGroupsCopied,
    LeaveNode,
    NodeHeartbeat,
    NodeRefused,
    PlanTold,
    RegisterNode,
    StagesCollected,
    StagesVerified,
)
from queryablestate.wire.operation_messages import ListRescalings
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CancelQuestions,
    Question,
    Refusal,
    Told,
)
from queryablestate.wire.refusals import NOT_LEADER, UNKNOWN_SESSION, refusal_of
from queryablestate.wire.snapshot_messages import (
    SnapshotLoaded,
    SnapshotReport,
    SnapshotWritten,
)
from zmqtransport import PollLoop


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import msgspec

    from election import LeaderElection, LeaderSession, LeaderStore
    from nameservice import Clock
    from queryablestate.control.core import ControlCore
    from queryablestate.control.events import LinkId
    from queryablestate.proxy.access import Caller
    from queryablestate.proxy.config import ProxyConfig
    from queryablestate.wire.clients import ToProxy
    from queryablestate.wire.codec import Head


__all__ = ["ProxyLoop"]

_NodeMessage = (
    RegisterNode
    | NodeHeartbeat
    | StagesVerified
    | StagesCollected
    | EntriesApplied
    | KeyGroupsCopied
    | LeaveNode
    | PlanTold
    | SnapshotReport
)

_NODE_NOT_LEADER: Final = NodeRefused(reason="not-leader", detail="look for it")


@final
class ProxyLoop:
    """
    What lives from start to close; all of it belongs to the loop's thread.

    Args:
        config: Where it listens, whom it admits, its limits.
        store: The leader store of ``QUERY_PROXY``.
        election: Asked whether this proxy leads.
        clock: What deadlines are measured by.
        on_failure: Is told, in the loop's thread, that the loop cannot go on.

    Attributes:
        loop: The thread.
        port: The socket.
        control: The control plane.

    Raises:
        ConfigurationError: If a port or a key cannot be used; nothing stays open then.
    """

    def __init__(
        self,
        config: ProxyConfig,
        store: LeaderStore,
        election: LeaderElection,
        *,
        clock: Clock | None = None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        self._config = config
        self._clock = SystemClock() if clock is None else clock
        self._log = get_logger(component="query-proxy")
        self._cache = ResultCache(
            config.cache, size_bytes_max=config.cache_size_bytes_max
        )
        self._limiter = RateLimiter(config.rate_limits)
        self._sessions = SessionTable(config.session_count_max)
        self._nodes = NodeConnections(config.access)
        self._tickets = DirectTickets(
            config, sessions=self._sessions, limiter=self._limiter, cache=self._cache
        )
        self._epoch_last = 0
        self._reads = ReadRouter(
            access=config.access,
            limiter=self._limiter,
            cache=self._cache,
            limits=_read_limits(config),
            asks_copies=config.replica_reads,
        )
        self._requests = RequestHandler(config.access)
        self.loop = PollLoop(
            name="query-proxy", clock=self._clock, on_failure=on_failure
        )
        self._version = package_version()
        resources = ExitStack()
        self.loop.at_end(resources.close)
        try:
            self.control = ProxyControl(
                store,
                election,
                session_timeout_ns=config.session_timeout_ns,
                waiting_count_max=config.pending_count_max,
                limits=config.control_limits,
                direct_reads=config.direct_reads,
                direct_lease_ns=direct_lease_ns(config.session_timeout_ns),
                clock=self._clock,
                call=self._call,
                send=self._send,
                on_core=self._core_changed,
                on_node_left=self._node_left,
                on_routes=self._routes_changed,
            )
            # Closed last: it may wait for the name service, and no client should be
            # connected to us meanwhile.
            resources.callback(self.control.close)
            self.port = ProxyPort(
                config,
                loop=self.loop,
                clock=self._clock,
                on_message=self._dispatch,
                on_closed=self._links_closed,
                why_not=self._why_not,
            )
            resources.callback(self.port.close)
            self.loop.set_deadline(self._next_deadline_ns, self._advance)
        except BaseException:
            self.loop.stop()  # closes the loop and, with it, what was opened
            raise

    # -- leadership, as the election's thread tells it ---------------------------------

    def lead(self, session: LeaderSession, on_ready: Callable[[], None]) -> None:
        """Load what the last leader left; *on_ready* is told once that is done."""
        self.control.lead(session, on_ready)

    def stop_leading(self) -> None:
        """Answer nothing more as the leader."""
        self.control.stop()

    def _core_changed(self, core: ControlCore | None) -> None:
        """Route by the tables of *core*, or not at all."""
        if core is None:
            self._send_all(self._reads.stop_leading(NOT_LEADER))
        else:
            self._nodes.secret_renewed()
            epoch = self.control.leader_epoch
            self._reads.lead(
                core.locations, leader_epoch=epoch, takes_for_away=core.takes_for_away
            )
            if epoch == self._epoch_last:
                # Nodes are not told of a leader that is the same, and has started over.
                for link in self._nodes.links:
                    self._send(link, NODE_UNKNOWN)
            self._epoch_last = epoch

    # -- configuration and figures -----------------------------------------------------

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go by *config* from now on; its fixed settings are those of before."""
        self._config = config
        self.port.admit(config)
        self._send_all(self._current(self._reads.replace_access(config.access)))
        self._reads.limits = _read_limits(config)
        self._reads.nodes.questions.asks_copies = config.replica_reads
        self._requests.access = config.access
        self._limiter.reconfigure(config.rate_limits)
        self._cache.reconfigure(
            config.cache, size_bytes_max=config.cache_size_bytes_max
        )
        self._sessions.keep(config.access.knows)
        self._sessions.limit(config.session_count_max)
        self._tickets.config = config
        self._nodes.access = config.access
        self.control.step(RightsReplaced())
        self.control.limit(
            config.control_limits, waiting_count_max=config.pending_count_max
        )
        # What waits was judged by what its callers might do, and by who might be asked.
        self._send_all(
            self._current(self._reads.look_at_all(now_ns=self._clock.now_ns()))
        )
        dismissed = self._nodes.dismissed()
        self.control.links_closed(dismissed)
        for link in dismissed:
            self._send(link, NODE_NOT_ALLOWED)
        if self._nodes.knows_secret_wrongly():
            # By it one would copy rows of other nodes, and make tickets for any state.
            self.control.renew_secret()

    def figures(self) -> dict[str, str | int | float]:
        """Return the proxy's figures by name."""
        core = self.control.core
        nodes = (
            ()
            if core is None
            else core.view.node_summaries(now_ns=self._clock.now_ns())
        )
        return {
            "version": self._version,
            "leads": int(self.control.leads),
            "nodes": len(nodes),
            "nodes_present": sum(node.address is not None for node in nodes),
            "jobs": 0 if core is None else len(core.view.job_ids()),
            "states": 0 if core is None else len(core.locations),
            "sessions": len(self._sessions),
            "batches_decided_total": self.control.tally.decided_count,
            "changes_waiting": self.control.waiting_count,
            "questions_pending": self._reads.pending_count,
            "questions_parked": self._reads.parked_count,
            "hedged_total": self._reads.nodes.hedged_count,
            "hedges_won_total": self._reads.nodes.hedge_won_count,
            "reads_moved_total": self._reads.nodes.moved_count,
            "nodes_unresponsive": self._reads.nodes.unresponsive_count,
            "direct_tickets_total": self._tickets.count,
            "cache_hits_total": self._cache.hit_count,
            "cache_misses_total": self._cache.miss_count,
            "cache_size_bytes": self._cache.size_bytes,
            "failures_total": self.loop.failure_count,
            **self.port.figures(),
        }

    def observe(self, state_count_max: int) -> Observation:
        """Return what metrics and health are made of."""
        core = self.control.core
        states: Sequence[StateFreshness] = ()
        jobs: Sequence[JobStanding] = ()
        state_count = 0
        if core is not None and self.control.leads:
            state_count = len(core.locations)
            states = core.view.freshness(
                state_count_max, wall_clock_us=_wall_clock_us()
            )
            jobs = core.view.standings(state_count_max)
        return Observation(
            role="proxy",
            figures=self.figures(),
            problem=None if self.control.leads else "it does not lead: it stands by",
            states=states,
            states_left_out=state_count - len(states),
            jobs=jobs,
            latencies=[
                *self._reads.nodes.latencies.buckets(),
                *self.control.tally.latencies.buckets(),
            ],
        )

    # -- in ----------------------------------------------------------------------------

    def _dispatch(
        self,
        link: LinkId,
        message: ToProxy,
        payload: bytes | memoryview,
        public_key: str | None,
    ) -> None:
        match message:
            case Ask():
                assert isinstance(payload, bytes)
                caller = self._caller(link, message, public_key)
                if caller is not None:
                    now_ns = self._clock.now_ns()
                    outgoing = self._reads.ask(
                        link, caller, message, payload, now_ns=now_ns
                    )
                    self._send_all(outgoing)
            case Answer():
                if self.control.leads:
                    now_ns = self._clock.now_ns()
                    outgoing = self._reads.nodes.answered(
                        self._nodes.first_of(link), message, payload, now_ns=now_ns
                    )
                else:  # it was asked while we led, and may be a thing of the past
                    refusal = _refusal(message.question_id, NOT_LEADER)
                    now_ns = self._clock.now_ns()
                    outgoing = self._reads.nodes.refused(
                        self._nodes.first_of(link), refusal, now_ns=now_ns
                    )
                self._send_all(outgoing)
            case Refusal():
                now_ns = self._clock.now_ns()
                outgoing = self._reads.nodes.refused(
                    self._nodes.first_of(link), message, now_ns=now_ns
                )
                self._send_all(self._current(outgoing))
            case (
                RegisterNode()
                | NodeHeartbeat()
                | StagesVerified()
                | StagesCollected()
                | EntriesApplied()
                | KeyGroupsCopied()
                | LeaveNode()
                | PlanTold()
                | SnapshotWritten()
                | SnapshotLoaded()
            ):
                self._node_spoke(link, message, public_key)
            case JoinConnection():
                self._join(link, message)
            case Hello():
                self._hello(link, message, public_key)
            case _:
                caller = self._caller(link, message, public_key)
                if caller is None:
                    return
                try:
                    self._request(link, caller, message)
                except NameServiceError as error:
                    self._send(link, refusal_of(error, message.request_id))

    def _why_not(
        self, link: LinkId, head: Head, public_key: str | None
    ) -> msgspec.Struct | None:
        """Return what a large message is refused with before it is decoded, or None."""
        if self._nodes.has(link):
            return None
        if head.registration_id:
            if self._hears_no_node(is_joining=is_registration(head)):
                return _NODE_NOT_LEADER
            refused = self._nodes.why_not(head, public_key)
            if refused is not None:
                self._note_refused(head.node_id, refused)
            return refused
        if not self.control.leads:
            return _refusal(head.request_id, NOT_LEADER)
        if self._sessions.find(head.session, public_key=public_key) is not None:
            return None
        self.port.count("sessions_unknown")
        return _refusal(head.request_id, UNKNOWN_SESSION)

    def _hello(self, link: LinkId, hello: Hello, public_key: str | None) -> None:
        """Open a session."""
        if not self.control.leads:
            # The leader may know other callers: this one's list need not be up to date.
            self._send(link, _refusal(hello.request_id, NOT_LEADER))
            return
        caller = self._config.access.authenticate(
            token=hello.token, public_key=public_key
        )
        if caller is None:
            self.port.count("hellos_refused")
            error = AuthenticationError(
                self.port.address,
                "neither a token nor a CURVE key of one of its callers was shown",
            )
            self._send(link, refusal_of(error, hello.request_id))
            return
        self.port.admitted(link)
        secret = self._sessions.open(
            secrets.token_bytes(SESSION_SIZE_BYTES),
            ProxySession(
                caller=caller,
                public_key=public_key,
                greeting=(link, hello.request_id),
            ),
        )
        welcome = Welcome(
            request_id=hello.request_id,
            session=secret,
            leader_epoch=self.control.leader_epoch,
            keys_per_request_max=self._config.keys_per_request_max,
            frame_size_bytes_max=self._config.frame_size_bytes_max,
        )
        self._send(link, welcome)

    def _caller(
        self,
        link: LinkId,
        message: Ask | LookupRequest | ChangeRequest,
        public_key: str | None,
    ) -> Caller | None:
        """Return who asks; None if no caller is to be heard now, which is answered."""
        if not self.control.leads:
            self._send(link, _refusal(message.request_id, NOT_LEADER))
            return None
        session = self._sessions.find(message.session, public_key=public_key)
        if session is None:
            self.port.count("sessions_unknown")
            self._send(link, _refusal(message.request_id, UNKNOWN_SESSION))
            return None
        self.port.admitted(link)  # a session goes on over another connection
        return session.caller

    def _request(
        self, link: LinkId, caller: Caller, message: LookupRequest | ChangeRequest
    ) -> None:
        """Answer what is known here, or have the control plane answer."""
        core = self.control.core
        assert core is not None
        if isinstance(
            message,
            DescribeState | ListJobs | ListStates | ListNodes | ListRescalings,
        ):
            now_ns = self._clock.now_ns()
            answer = self._requests.answer(
                core, caller, message, now_ns=now_ns, wall_clock_us=_wall_clock_us()
            )
            if isinstance(message, DescribeState) and message.wants_direct:
                assert isinstance(answer, StateDescribed)
                direct = self._tickets.give(
                    core, caller, message, answer, now_ns=now_ns
                )
                answer = replace(answer, direct=direct)
            if not self._send(link, answer):
                self._refuse_unread(link, message.request_id)
            return
        self._requests.check_change(core, caller, message, now_ns=self._clock.now_ns())
        if isinstance(message, CommitBatch):
            timeout_ms_max = round(self._config.commit_timeout_seconds_max * 1_000)
            if message.timeout_ms > timeout_ms_max:
                message = replace(message, timeout_ms=timeout_ms_max)
        self.control.ask(
            WriterAsked(
                link=link,
                request=message,
                wall_clock_us=_wall_clock_us(),
                writable=self._requests.writable(core, caller, message),
            )
        )

    def _node_spoke(
        self, link: LinkId, message: _NodeMessage, public_key: str | None
    ) -> None:
        """Tell the control plane what a node says, if it may be one."""
        if self._hears_no_node(is_joining=isinstance(message, RegisterNode)):
            self._send(link, _NODE_NOT_LEADER)
            return
        if isinstance(message, RegisterNode):
            refused = self._nodes.admit(link, message, public_key)
            if refused is not None:
                self._note_refused(message.node_id, refused)
                self._send(link, refused)
                return
            self.port.admitted(link)
        self.control.step(NodeSpoke(link=link, message=message))

    def _hears_no_node(self, *, is_joining: bool) -> bool:
        """Return whether nodes are to look for another proxy."""
        return not self.control.leads and (is_joining or not self.control.is_suspended)

    def _note_refused(self, node_id: str, refused: NodeRefused) -> None:
        self.port.count("nodes_refused")
        if self.port.may_log("node-refused"):
            self._log.warning(
                "node.refused",
                node_id=node_id[:NODE_ID_LENGTH_MAX],
                reason=refused.reason,
            )

    def _join(self, link: LinkId, message: JoinConnection) -> None:
        """
        Take what comes over *link* for what comes over that of a node (rule B2).

        It says whose the connection is, which holds while the leadership is in doubt.
        """
        core = self.control.core
        node = None if core is None else core.view.link_of(message)
        if node is None:
            self.port.count("connections_not_joined")
            return  # the node goes on without it, and asks again
        self.port.admitted(link)
        self._nodes.join(link, node)
        self._send(link, ConnectionJoined())

    def _links_closed(self, links: Sequence[LinkId]) -> None:
        for link in links:
            self._nodes.closed(link)
            self._send_all(self._current(self._reads.client_left(link)))
        self.control.links_closed(links)

    # -- time --------------------------------------------------------------------------

    def _next_deadline_ns(self) -> int | None:
        reads = self._reads
        reads_ns = reads.next_deadline_ns()
        control_ns = self.control.next_deadline_ns(
            is_anybody_parked=reads.parked_count > 0
        )
        if reads_ns is None or control_ns is None:
            return control_ns if reads_ns is None else reads_ns
        return min(reads_ns, control_ns)

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        self._send_all(self._current(self._reads.expire(now_ns=now_ns)))
        self.control.advance(now_ns=now_ns)

    # -- out ---------------------------------------------------------------------------

    def _routes_changed(self) -> None:
        """Look again at what waits for nodes: they have come, or will not."""
        if self._reads.parked_count:
            outgoing = self._reads.look_again(now_ns=self._clock.now_ns())
            self._send_all(self._current(outgoing))

    def _node_left(self, link: LinkId) -> None:
        """Ask others, or answer, what waits for a node that is gone."""
        outgoing = self._reads.nodes.node_left(link, now_ns=self._clock.now_ns())
        self._send_all(self._current(outgoing))

    def _current(self, outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
        """Return what may be sent now: while we do not lead, that is ``not-leader``."""
        if not outgoing or self.control.leads:
            return outgoing
        return [
            item
            if isinstance(item.message, Question | CancelQuestions)
            else Outgoing(item.link, _refusal(item.message.request_id, NOT_LEADER))
            for item in outgoing
        ]

    def _send(self, link: LinkId, message: msgspec.Struct) -> bool:
        return self.port.send(link, message)

    def _send_all(self, outgoing: Iterable[Outgoing]) -> None:
        for item in outgoing:
            is_sent = self.port.send(item.link, item.message, item.payload)
            if is_sent:
                continue
            if isinstance(item.message, Question):
                self._not_asked(item.link, item.message.question_id)
            elif isinstance(item.message, Told):
                self._refuse_unread(item.link, item.message.request_id)

    def _refuse_unread(self, link: LinkId, request_id: int) -> None:
        """Say instead of an answer that others have to be read first (rule B1)."""
        error = DidNotHappenError(
            "too much waits to be read over this connection: read it, and ask again"
        )
        self._send(link, refusal_of(error, request_id))

    def _not_asked(self, node: LinkId, question_id: int) -> None:
        """Answer the asker of what a node could not be asked."""
        error = DidNotHappenError("its node takes no more questions: ask again")
        refusal = refusal_of(error, question_id)
        now_ns = self._clock.now_ns()
        outgoing = self._reads.nodes.not_asked(node, refusal, now_ns=now_ns)
        self._send_all(self._current(outgoing))

    def _call(self, callback: Callable[[], None]) -> None:
        """Have *callback* called in the loop's thread, if there is one any more."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except LocalProtocolError:
            self._log.debug("loop.over")  # there is no thread to tell


def _read_limits(config: ProxyConfig) -> ReadLimits:
    return ReadLimits(
        deadline_ns_default=round(config.deadline_seconds_default * 1_000_000_000),
        deadline_ns_max=round(config.deadline_seconds_max * 1_000_000_000),
        pending_count_max=config.pending_count_max,
        keys_per_request_max=config.keys_per_request_max,
    )


def _refusal(request_id: int, code: str) -> Refusal:
    return Refusal(request_id=request_id, code=code)


def _wall_clock_us() -> int:
    return time.time_ns() // 1_000
