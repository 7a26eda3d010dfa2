"""
`ProxyLoop`: the sockets, the clock and the thread around a proxy's cores.

Theory of operation.  One thread serves a ROUTER that everybody is connected to:
clients, writers and nodes.  `ReadDesk` routes questions, `ControlCore` runs the control
plane; here is what neither decides: who may speak (sessions, credentials), whether this
proxy leads, and what to do with frames that are none.

**Leading.**  The election, in its own thread, says *lead* and *stop*.  Between the two
every message is looked at only while the election believes at that very moment
(`has_leadership` is a check of the clock); otherwise it is answered ``not-leader``,
and whoever sent it looks for the leader again.  So a proxy that was paused answers
nothing out of its past (rule Q4).

**The store** is written by a `ControlDesk` in a thread of its own; what it says comes
back as an event.  If the core must start over, requests are answered ``not-leader``
until it is loaded again: all of them may be repeated.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never, final
from uuid import uuid4

import zmq

from nameservice import (
    AccessDeniedError,
    AuthenticationError,
    LocalProtocolError,
    NameServiceError,
    RemoteProtocolError,
    StorageError,
    SystemClock,
    UnknownJobError,
    UnknownStateError,
    get_logger,
)
from queryablestate import codec
from queryablestate.access import Right
from queryablestate.address import StateAddress
from queryablestate.cache import ResultCache
from queryablestate.control_core import ControlCore
from queryablestate.control_desk import ControlDesk, StoredControl
from queryablestate.control_effects import (
    AnswerWriter,
    ControlEffect,
    ForgetNode,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control_events import (
    ControlEvent,
    Link,
    LinkClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.failures import NOT_LEADER, UNKNOWN_SESSION, refusal_of
from queryablestate.messages import (
    BindRun,
    CommitBatch,
    DescribeState,
    DrawTicket,
    DropState,
    Hello,
    JobsListed,
    ListJobs,
    ListNodes,
    ListStates,
    NodesListed,
    StateDescribed,
    StateDescription,
    StatesListed,
    Welcome,
)
from queryablestate.node_messages import (
    EntriesApplied,
    NodeHeartbeat,
    NodeRefused,
    RegisterNode,
    StagesVerified,
)
from queryablestate.proxy_links import LinkTable
from queryablestate.proxy_sessions import SESSION_SIZE_BYTES, ProxySession, SessionTable
from queryablestate.questions import Answer, Ask, Refusal
from queryablestate.rate_limit import RateLimiter
from queryablestate.read_desk import Outgoing, ReadDesk, ReadLimits
from queryablestate.records import CountersRecord
from transport import (
    Authenticator,
    ConnectionClosed,
    ConnectionLimiter,
    ConnectionMonitor,
    Endpoint,
    PollLoop,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    bind_socket,
    connection_count_possible,
    load_key_pair,
    open_socket,
    secure_server,
    send_now,
)
from transport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from election import LeaderElection, LeaderSession, LeaderStore
    from nameservice import Clock
    from queryablestate.access import Caller
    from queryablestate.messages import ToProxy
    from queryablestate.proxy_config import ProxyConfig
    from transport import ConnectionEvent


__all__ = ["ProxyLoop"]

_NS_PER_MS: Final = 1_000_000
# What lies between our limit and this multiple of it is refused with a reason; ZeroMQ
# ends the connection of whoever sends more.
_FRAME_SIZE_FACTOR: Final = 2
_SEND_QUEUE_COUNT_MAX: Final = 10_000

_WriterRequest = DrawTicket | BindRun | CommitBatch | DropState
_NodeMessage = RegisterNode | NodeHeartbeat | StagesVerified | EntriesApplied


@final
class ProxyLoop:
    """
    What lives from start to close; all of it belongs to the loop's thread.

    Args:
        config: Where it listens, whom it admits, its limits.
        store: The leader store of ``QUERY_PROXY``.
        election: Asked whether this proxy leads.
        clock: What deadlines are measured by.

    Raises:
        ConfigurationError: If a port or a key cannot be used; nothing stays open then.
    """

    def __init__(
        self,
        config: ProxyConfig,
        store: LeaderStore,
        election: LeaderElection,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._election = election
        self._clock = SystemClock() if clock is None else clock
        self._log = get_logger(component="query-proxy")
        self._budget = LogBudget()
        self._counts: dict[str, int] = {}
        self._links = LinkTable()
        self._events_waiting: list[ConnectionEvent] = []
        self._session: LeaderSession | None = None
        self._core: ControlCore | None = None
        self._cache = ResultCache(
            config.cache, size_bytes_max=config.cache_size_bytes_max
        )
        self._limiter = RateLimiter(config.rate_limits)
        self._sessions = SessionTable(config.session_count_max)
        self._reads = ReadDesk(
            access=config.access,
            limiter=self._limiter,
            cache=self._cache,
            limits=_read_limits(config),
        )
        self._resources = ExitStack()
        self.loop = PollLoop(name="query-proxy", clock=self._clock)
        self.loop.at_end(self._resources.close)
        try:
            self._open(store)
        except BaseException:
            self.loop.stop()  # closes the loop and, with it, what was opened
            raise

    def _open(self, store: LeaderStore) -> None:
        config = self._config
        key_pair, allow_list = None, None
        if config.curve_secret_key_file is not None:
            assert config.curve_public_key_file is not None
            key_pair = load_key_pair(
                Path(config.curve_secret_key_file), Path(config.curve_public_key_file)
            )
            allow_list = config.access.allow_list()
        context: ZMQContext = zmq.Context()
        self._resources.callback(context.term)
        self._authenticator = Authenticator(context, allow_list)
        self._resources.callback(self._authenticator.close)
        limits = SocketLimits(
            send_queue_count_max=_SEND_QUEUE_COUNT_MAX,
            frame_size_bytes_max=config.frame_size_bytes_max * _FRAME_SIZE_FACTOR,
            heartbeat_timeout_ms=max(
                60_000, 2 * config.session_timeout_ns // _NS_PER_MS
            ),
        )
        self._router = open_socket(context, zmq.ROUTER, limits)
        self._resources.callback(self._router.close)
        secure_server(self._router, key_pair)
        self._monitor = ConnectionMonitor(self._router)
        self._resources.callback(self._monitor.close)
        self.endpoint = bind_socket(self._router, config.bind_endpoint)
        host = config.advertised_host
        published = (
            self.endpoint
            if host is None
            else Endpoint(host=host, port=self.endpoint.port)
        )
        self.address = str(
            StateAddress(
                endpoint=published,
                server_public_key=None if key_pair is None else key_pair.public_key,
            )
        )
        connection_count_max = min(
            config.connection_count_max, max(1, connection_count_possible())
        )
        self._limiter_of_connections = ConnectionLimiter(
            connection_count_max, port=self.endpoint.port
        )
        self._desk = ControlDesk(store)
        self._resources.callback(self._desk.close)
        loop = self.loop
        loop.add_readable(self._authenticator.socket, self._authenticator.handle)
        loop.add_readable(self._monitor.socket, self._watch)
        loop.add_socket(
            self._router, self._receive, frame_count_max=1 + codec.FRAME_COUNT_MAX
        )
        loop.set_deadline(self._next_deadline_ns, self._advance)

    # -- leadership, as the election's thread tells it ---------------------------------

    def lead(
        self,
        session: LeaderSession,
        on_ready: Callable[[NameServiceError | None], None],
    ) -> None:
        """Load what the last leader left; *on_ready* is told when that is done."""
        self._session = session
        self._load(session, on_ready)

    def stop_leading(self) -> None:
        """Answer nothing more as the leader."""
        self._session = None
        self._core = None
        self._send_all(self._reads.stop_leading(NOT_LEADER))

    def _load(
        self,
        session: LeaderSession,
        on_ready: Callable[[NameServiceError | None], None],
    ) -> None:
        def loaded(stored: StoredControl) -> None:
            self._call(partial(self._loaded, session, stored, on_ready))

        def failed(error: NameServiceError) -> None:
            self._call(partial(on_ready, error))

        self._desk.load(loaded, failed)

    def _loaded(
        self,
        session: LeaderSession,
        stored: StoredControl,
        on_ready: Callable[[NameServiceError | None], None],
    ) -> None:
        if self._session is session:
            counters = stored.counters
            if counters is None:
                counters = CountersRecord(
                    control_id=uuid4().hex, ticket_limit=1, state_number=0, job_number=0
                )
            core = ControlCore(
                counters=counters,
                jobs=stored.jobs,
                nodes=stored.nodes,
                leader_epoch=session.epoch,
                session_timeout_ns=self._config.session_timeout_ns,
                now_ns=self._clock.now_ns(),
            )
            self._core = core
            self._reads.lead(core.locations, leader_epoch=session.epoch)
            self._log.info(
                "control.loaded",
                epoch=session.epoch,
                job_count=len(stored.jobs),
                node_count=len(stored.nodes),
            )
        on_ready(None)

    def _leads(self) -> bool:
        """Return whether this proxy may answer as the leader, at this moment."""
        session = self._session
        return (
            session is not None
            and self._core is not None
            and self._election.has_leadership(session.leader_session_id)
        )

    # -- configuration and figures -----------------------------------------------------

    def reconfigure(self, config: ProxyConfig) -> None:
        """Go by *config* from now on; its fixed settings are those of before."""
        self._config = config
        self._authenticator.allow_list = (
            config.access.allow_list() if config.uses_curve else None
        )
        self._reads.access = config.access
        self._reads.limits = _read_limits(config)
        self._limiter.reconfigure(config.rate_limits)
        self._cache.reconfigure(
            config.cache, size_bytes_max=config.cache_size_bytes_max
        )
        self._sessions.limit(config.session_count_max)

    def figures(self) -> dict[str, str | int | float]:
        """Return the proxy's figures by name."""
        core = self._core
        nodes = () if core is None else core.node_summaries(now_ns=self._clock.now_ns())
        return {
            "leads": int(self._leads()),
            "nodes": len(nodes),
            "nodes_present": sum(node.address is not None for node in nodes),
            "jobs": 0 if core is None else len(core.job_ids()),
            "states": 0 if core is None else len(core.locations),
            "sessions": len(self._sessions),
            "connections": self._limiter_of_connections.connection_count,
            "connections_refused_total": self._limiter_of_connections.refused_count,
            "questions_pending": self._reads.pending_count,
            "questions_parked": self._reads.parked_count,
            "cache_hits_total": self._cache.hit_count,
            "cache_misses_total": self._cache.miss_count,
            "cache_size_bytes": self._cache.size_bytes,
            "failures_total": self.loop.failure_count,
            **{f"{name}_total": count for name, count in sorted(self._counts.items())},
        }

    # -- in ----------------------------------------------------------------------------

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take one message."""
        routing_id = frames[0].bytes
        try:
            link = self._links.heard(frames[0], routing_id)
            message = self._decoded(frames)
        except RemoteProtocolError as error:
            self._drop(error)
            refusal = refusal_of(error, 0)
            self._send_frames(routing_id, codec.encode(refusal), None)
            return
        payload = frames[2].bytes if len(frames) > 2 else b""
        public_key = None
        if self._config.uses_curve:
            principal = self._authenticator.principal_of(frames[0])
            if principal is None:
                self._count("unauthorized")
                return
            public_key = principal.public_key
        self._dispatch(link, message, payload, public_key)

    def _decoded(self, frames: Sequence[zmq.Frame]) -> ToProxy:
        """Return the message, or raise `RemoteProtocolError`."""
        if not 2 <= len(frames) <= 1 + codec.FRAME_COUNT_MAX:
            detail = f"a message has {len(frames) - 1} frames"
            raise RemoteProtocolError("malformed", detail)
        size_bytes = sum(len(frame) for frame in frames[1:])
        size_bytes_max = self._config.frame_size_bytes_max
        if size_bytes > size_bytes_max:
            detail = (
                f"the message has {size_bytes} bytes, at most {size_bytes_max} are "
                "taken"
            )
            raise RemoteProtocolError("oversized", detail)
        return codec.decode_to_proxy(frames[1].bytes)

    def _dispatch(
        self, link: Link, message: ToProxy, payload: bytes, public_key: str | None
    ) -> None:
        now_ns = self._clock.now_ns()
        match message:
            case Ask():
                caller = self._caller(link, message, public_key)
                if caller is not None:
                    assert self._core is not None
                    is_settled = self._core.is_settled(now_ns=now_ns)
                    self._send_all(
                        self._reads.ask(
                            link,
                            caller,
                            message,
                            payload,
                            now_ns=now_ns,
                            is_settled=is_settled,
                        )
                    )
            case Answer():
                if self._leads():
                    outgoing = self._reads.answered(
                        link, message, payload, now_ns=now_ns
                    )
                else:  # it was asked while we led, and may be a thing of the past
                    refusal = _refusal(message.question_id, NOT_LEADER)
                    outgoing = self._reads.refused(link, refusal)
                self._send_all(outgoing)
            case Refusal():
                self._send_all(self._reads.refused(link, message))
            case RegisterNode() | NodeHeartbeat() | StagesVerified() | EntriesApplied():
                self._node_spoke(link, message, public_key)
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

    def _hello(self, link: Link, hello: Hello, public_key: str | None) -> None:
        """Open a session."""
        caller = self._config.access.authenticate(
            token=hello.token, public_key=public_key
        )
        if caller is None:
            self._count("hellos_refused")
            error = AuthenticationError(
                self.address, "the credential is not one of its callers'"
            )
            self._send(link, refusal_of(error, hello.request_id))
            return
        if not self._leads():
            self._send(link, _refusal(hello.request_id, NOT_LEADER))
            return
        assert self._session is not None
        secret = secrets.token_bytes(SESSION_SIZE_BYTES)
        self._sessions.open(secret, ProxySession(caller=caller, public_key=public_key))
        welcome = Welcome(
            request_id=hello.request_id,
            session=secret,
            leader_epoch=self._session.epoch,
            keys_per_request_max=self._config.keys_per_request_max,
            frame_size_bytes_max=self._config.frame_size_bytes_max,
        )
        self._send(link, welcome)

    def _caller(
        self,
        link: Link,
        message: Ask
        | DescribeState
        | ListJobs
        | ListStates
        | ListNodes
        | _WriterRequest,
        public_key: str | None,
    ) -> Caller | None:
        """Return who asks; None if nobody is to be heard now, which is answered."""
        if not self._leads():
            self._send(link, _refusal(message.request_id, NOT_LEADER))
            return None
        session = self._sessions.find(message.session, public_key=public_key)
        if session is None:
            self._send(link, _refusal(message.request_id, UNKNOWN_SESSION))
            return None
        return session.caller

    def _request(
        self,
        link: Link,
        caller: Caller,
        message: DescribeState | ListJobs | ListStates | ListNodes | _WriterRequest,
    ) -> None:
        """Answer what is known here, or let the control plane answer."""
        core = self._core
        assert core is not None
        match message:
            case DescribeState():
                description = self._described(
                    core, caller, message.job_id, message.state_name
                )
                self._send(
                    link,
                    StateDescribed(
                        request_id=message.request_id, description=description
                    ),
                )
            case ListJobs():
                access = self._config.access
                job_ids = tuple(
                    job_id
                    for job_id in core.job_ids()
                    if any(
                        access.may(caller, Right.READ, job_id, state_name)
                        for state_name in core.state_names(job_id)
                    )
                )
                self._send(
                    link, JobsListed(request_id=message.request_id, job_ids=job_ids)
                )
            case ListStates():
                states = self._states(core, caller, message.job_id)
                self._send(
                    link, StatesListed(request_id=message.request_id, states=states)
                )
            case ListNodes():
                if not self._config.access.may(caller, Right.ADMIN):
                    raise AccessDeniedError("list nodes")
                nodes = tuple(core.node_summaries(now_ns=self._clock.now_ns()))
                self._send(
                    link, NodesListed(request_id=message.request_id, nodes=nodes)
                )
            case DrawTicket() | BindRun() | CommitBatch() | DropState():
                self._check_writer(core, caller, message)
                event = WriterAsked(
                    link=link, request=message, wall_clock_us=_wall_clock_us()
                )
                self._step(event)
            case _:
                assert_never(message)

    def _described(
        self, core: ControlCore, caller: Caller, job_id: str, state_name: str
    ) -> StateDescription:
        access = self._config.access
        if not (
            access.may(caller, Right.READ, job_id, state_name)
            or access.may(caller, Right.WRITE, job_id, state_name)
        ):
            raise AccessDeniedError(f"read {job_id}/{state_name}")
        description = core.describe(job_id, state_name, wall_clock_us=_wall_clock_us())
        if description is None:
            if job_id not in core.job_ids():
                raise UnknownJobError(job_id)
            raise UnknownStateError(job_id, state_name)
        return description

    def _states(
        self, core: ControlCore, caller: Caller, job_id: str
    ) -> tuple[StateDescription, ...]:
        """Return the states of a job that *caller* may read."""
        access = self._config.access
        if not access.may_see_job(caller, job_id):
            raise AccessDeniedError(f"read {job_id}/*")
        described = [
            core.describe(job_id, state_name, wall_clock_us=_wall_clock_us())
            for state_name in core.state_names(job_id)
            if access.may(caller, Right.READ, job_id, state_name)
        ]
        if not described:
            raise UnknownJobError(job_id)
        return tuple(state for state in described if state is not None)

    def _check_writer(
        self, core: ControlCore, caller: Caller, request: _WriterRequest
    ) -> None:
        """
        Return if *caller* may ask for that change.

        Raises:
            AccessDeniedError: If not.
        """
        access = self._config.access
        if isinstance(request, DropState):
            if not access.may(caller, Right.ADMIN):
                raise AccessDeniedError(f"drop {request.job_id}/{request.state_name}")
            return
        if isinstance(request, CommitBatch):
            found = [core.locations.get(number) for number in request.state_numbers]
            names = [
                location.state_name
                for location in found
                if location is not None and location.job_id == request.job_id
            ]
            if len(names) != len(request.state_numbers):
                names = []
        else:
            names = [state.state_name for state in request.states]
        wanted: Sequence[str | None] = names or [None]
        for name in wanted:
            if not access.may(caller, Right.WRITE, request.job_id, name):
                raise AccessDeniedError(f"write {request.job_id}/{name or '*'}")

    def _node_spoke(
        self, link: Link, message: _NodeMessage, public_key: str | None
    ) -> None:
        """Let the control plane hear a node, if it may be one."""
        if not self._leads():
            self._send(link, NodeRefused(reason="not-leader", detail="look for it"))
            return
        if isinstance(message, RegisterNode):
            access = self._config.access
            caller = access.authenticate(token=message.token, public_key=public_key)
            if caller is None or not access.may(caller, Right.NODE):
                self._count("nodes_refused")
                self._log.warning(
                    "node.refused", node_id=message.node_id, reason="not-allowed"
                )
                detail = "its credential does not let it be a node"
                self._send(link, NodeRefused(reason="not-allowed", detail=detail))
                return
        event = NodeSpoke(link=link, message=message, wall_clock_us=_wall_clock_us())
        self._step(event)

    def _watch(self) -> None:
        """Act on connections that closed; see `transport.connections`."""
        events = [*self._events_waiting, *self._monitor.receive()]
        self._events_waiting = []
        self._limiter_of_connections.observe(events)
        closed = [e.connection_id for e in events if isinstance(e, ConnectionClosed)]
        if not closed:
            return
        known = self._links.known(closed)
        self.loop.drain(self._router)
        self._events_waiting = self._monitor.receive()
        if self._events_waiting:
            self._call(self._watch)
        for link in self._links.over(
            closed, known=known, events=[*events, *self._events_waiting]
        ):
            self._reads.client_left(link)
            if self._core is not None:
                self._step(LinkClosed(link=link))

    def _drop(self, error: RemoteProtocolError) -> None:
        """Count a message that nobody will see, and say so if the log has room."""
        self._count(f"frames_{error.reason.replace('-', '_')}")
        now_ns = self._clock.now_ns()
        if self._budget.admits(error.reason, now_ns=now_ns):
            self._log.warning(
                "frame.dropped", reason=error.reason, detail=error.detail[:200]
            )
        for kind, count in self._budget.take_suppressed(now_ns=now_ns).items():
            self._log.warning("frames.dropped", reason=kind, count=count)

    # -- time --------------------------------------------------------------------------

    def _next_deadline_ns(self) -> int | None:
        times = [self._reads.next_deadline_ns()]
        if self._core is not None:
            times.append(self._core.next_deadline_ns())
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        self._send_all(self._reads.expire(now_ns=now_ns))
        if self._core is not None:
            self._step(TimePassed())

    # -- out ---------------------------------------------------------------------------

    def _step(self, event: ControlEvent) -> None:
        """Let *event* happen to the control plane, and do what it wants."""
        core = self._core
        if core is None:
            return
        now_ns = self._clock.now_ns()
        for effect in core.step(event, now_ns=now_ns):
            self._perform(effect)
        if self._core is core and self._reads.parked_count:
            is_settled = core.is_settled(now_ns=now_ns)
            self._send_all(self._reads.look_again(now_ns=now_ns, is_settled=is_settled))

    def _perform(self, effect: ControlEffect) -> None:
        match effect:
            case WriteStore():
                self._write(effect)
            case AnswerWriter(link=link, message=message):
                self._send(link, message)
            case RefuseWriter(link=link, request_id=request_id, error=error):
                self._send(link, refusal_of(error, request_id))
            case SendToNode(link=link, message=message):
                self._send(link, message)
            case ForgetNode(link=link, node_id=node_id):
                self._log.warning("node.left", node_id=node_id)
                self._send_all(self._reads.node_left(link))
            case StartOver(reason=reason):
                self._start_over(reason)
            case _:
                assert_never(effect)

    def _write(self, effect: WriteStore) -> None:
        session, core = self._session, self._core
        if session is None:
            return  # the core is gone with the leadership

        def written() -> None:
            if self._core is core:
                self._step(StoreWritten())

        def failed(error: NameServiceError, *, is_certain: bool) -> None:
            self._log.warning("store.failed", error=str(error), is_certain=is_certain)
            if self._core is core:
                self._step(StoreFailed(error=error, is_certain=is_certain))

        self._desk.write(
            effect.operations,
            session,
            lambda: self._call(written),
            lambda error: self._call(partial(failed, error, is_certain=True)),
            lambda error: self._call(partial(failed, error, is_certain=False)),
        )

    def _start_over(self, reason: NameServiceError) -> None:
        """Load the control plane anew."""
        self._log.warning("control.reloaded", reason=str(reason))
        session = self._session
        self._core = None
        self._send_all(self._reads.stop_leading(NOT_LEADER))
        if session is not None:
            self._load(session, partial(self._reloaded, session))

    def _reloaded(self, session: LeaderSession, error: NameServiceError | None) -> None:
        """Try once more if the store was out of reach, as long as this proxy leads."""
        if error is None or self._session is not session:
            return
        self._log.error("control.unreadable", error=str(error))
        if not isinstance(error, StorageError):
            self._load(session, partial(self._reloaded, session))

    def _send(self, link: Link, message: msgspec.Struct) -> None:
        routing_id = self._links.routing_id(link)
        if routing_id is not None:
            self._send_frames(routing_id, codec.encode(message), None)

    def _send_all(self, outgoing: Sequence[Outgoing]) -> None:
        for item in outgoing:
            routing_id = self._links.routing_id(item.link)
            if routing_id is not None:
                self._send_frames(routing_id, codec.encode(item.message), item.payload)

    def _send_frames(
        self, routing_id: bytes, envelope: bytes, payload: bytes | None
    ) -> None:
        frames: list[bytes | zmq.Frame] = [routing_id, envelope]
        if payload is not None:
            frames.append(payload)
        outcome = send_now(self._router, frames)
        if outcome is not SendOutcome.SENT:
            self._count(f"messages_{outcome.value}")  # whoever waits asks again

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _call(self, callback: Callable[[], None]) -> None:
        """Have *callback* called in the loop's thread, if there is one any more."""
        try:
            self.loop.call_soon_threadsafe(callback)
        except LocalProtocolError:
            self._log.debug("loop.over")  # nobody is left to be told


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
