"""
`ServerLoop`: the sockets, the clock and the thread around a `LeaderService`.

Theory of operation.  One thread serves, in this order of precedence within a turn:

=================  ===================================================================
authenticator      says who may connect (`transport.authentication`)
request monitor    connections of the request port that opened and closed
requests           ROUTER: frames in, answers out
publish monitor    connections of the publishing port
topics             XPUB: who subscribes to what; changes go out here
deadline           `LeaderService.next_deadline_ns`
=================  ===================================================================

Nothing here decides who leads.  What this file does decide is what never reaches the
service: frames that are malformed, oversized, truncated or of another version, and
requests of clients that the allow-list has no more.  They are counted, logged within a
`LogBudget`, and dropped; only a peer of another version is answered, because nobody
else can tell its user why nothing works.

Nothing waits, either.  An answer that the peer's queue has no room for, or whose peer
is gone, is dropped and counted: clients ask again.  A change that a slow subscriber
has no room for is dropped by ZeroMQ; the gap shows in the revisions (rule N1).

A broadcast is ``[topic, header, payload]``, the topic being the component id in UTF-8
and a zero byte, so that no topic is the beginning of another.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never, final
from uuid import uuid4

import msgspec
import zmq

from election.core import ElectionConfig
from election.epochs import IncarnationEpochs
from leaderserver import codec
from leaderserver.config import ServerConfig
from leaderserver.messages import (
    Failure,
    Hello,
    RefusedHello,
    Reply,
    StatusReply,
)
from leaderserver.peers import PeerTable
from leaderserver.service import (
    Broadcast,
    LeaderService,
    Outgoing,
    Send,
    ServiceConfig,
)
from leaderserver.storage import LeaderStorage, MemoryStorage, SQLiteStorage
from leaderserver.topics import TopicTable
from nameservice import (
    Clock,
    RemoteProtocolError,
    get_logger,
)
from nameservice.clock import NS_PER_SECOND
from transport import (
    Authenticator,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    ConnectionLimiter,
    ConnectionMonitor,
    CurveKeyPair,
    Endpoint,
    PollLoop,
    SendOutcome,
    SocketLimits,
    WrongVersionError,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connection_count_possible,
    connection_of,
    framing,
    load_allow_list,
    load_key_pair,
    open_socket,
    secure_server,
    send_now,
)
from transport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from election.events import ElectionEvent
    from leaderserver.messages import ToClient, ToServer
    from transport import ConnectionEvent


__all__ = ["ServerLoop", "publication_topic"]

# Seconds between 1970 and 2020, when the incarnations of our servers begin (rule E2).
_INCARNATION_ORIGIN_SECONDS: Final = 1_577_836_800
# By how much the wall clock and the clock of leases may go apart within a second while
# the former is being adjusted; the kernel allows itself a thousandth.
_CLOCKS_APART_NS: Final = NS_PER_SECOND // 50
# Frames between our limit and this multiple of it are seen, counted and dropped by us;
# ZeroMQ ends the connection of a peer that sends a larger one.
_FRAME_SIZE_FACTOR: Final = 2
# One byte, a component id of 511 four-byte characters, a zero byte; and CURVE's own.
_SUBSCRIPTION_SIZE_BYTES_MAX: Final = 4_096


def publication_topic(component_id: str) -> bytes:
    """Return the topic that changes of *component_id* are published under."""
    return component_id.encode("utf-8") + b"\0"


@final
class ServerLoop:
    """
    What lives from start to close; all of it belongs to the loop's thread.

    Raises:
        ConfigurationError: See `LeaderServer.start`; nothing stays open then.
    """

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._log = get_logger(component="leaderserver")
        self._budget = LogBudget()
        self._peers = PeerTable()
        self._topics = TopicTable(
            topics_per_connection_max=config.subscriptions_per_session_max,
            topics_max=config.components_max,
        )
        self._events_waiting: list[ConnectionEvent] = []
        self._resources = ExitStack()
        self.loop = PollLoop(name="leaderserver", clock=clock)
        self.loop.at_end(self._resources.close)
        try:
            self._open()
        except BaseException:
            self.loop.stop()  # closes the loop and, with it, what was opened
            raise

    def _open(self) -> None:
        config = self._config
        key_pair, allow_list = None, None
        if config.curve_secret_key_file is not None:
            assert config.curve_public_key_file is not None
            assert config.allow_list_file is not None
            key_pair = load_key_pair(
                Path(config.curve_secret_key_file), Path(config.curve_public_key_file)
            )
            allow_list = load_allow_list(Path(config.allow_list_file))
        storage: LeaderStorage = (
            MemoryStorage()
            if config.data_dir is None
            else SQLiteStorage(config.data_dir)
        )
        self._resources.callback(storage.close)

        context: ZMQContext = zmq.Context()
        self._resources.callback(context.term)
        self._authenticator = Authenticator(context, allow_list)
        self._resources.callback(self._authenticator.close)
        connections_max = self._connections_max()
        self._router, self._router_monitor, self.endpoint = self._listen(
            context,
            zmq.ROUTER,
            config.bind_endpoint,
            key_pair,
            frame_size_bytes_max=config.frame_size_bytes_max * _FRAME_SIZE_FACTOR,
        )
        self._router_limiter = ConnectionLimiter(
            connections_max, port=self.endpoint.port
        )
        self._publisher, self._publisher_monitor, self.publish_endpoint = self._listen(
            context,
            zmq.XPUB,
            config.publish_endpoint,
            key_pair,
            frame_size_bytes_max=_SUBSCRIPTION_SIZE_BYTES_MAX,
        )
        self._publisher_limiter = ConnectionLimiter(
            connections_max, port=self.publish_endpoint.port
        )
        self._service = self._make_service(storage)

        loop = self.loop
        loop.add_readable(self._authenticator.socket, self._authenticator.handle)
        loop.add_readable(self._router_monitor.socket, self._watch_requests)
        loop.add_socket(self._router, self._receive, frame_count_max=3)
        loop.add_readable(self._publisher_monitor.socket, self._watch_subscribers)
        loop.add_socket(self._publisher, self._subscribe, frame_count_max=1)
        loop.set_deadline(self._service.next_deadline_ns, self._advance)

    def _connections_max(self) -> int:
        """Return how many connections each port takes: files may be too few."""
        possible = max(1, connection_count_possible() // 2)
        if possible < self._config.connections_max:
            self._log.info(
                "connections.limited",
                connections_max=possible,
                connections_max_configured=self._config.connections_max,
                reason="the system's limit of open files: raise ulimit -n",
            )
        return min(possible, self._config.connections_max)

    def _listen(
        self,
        context: ZMQContext,
        socket_type: int,
        endpoint: Endpoint,
        key_pair: CurveKeyPair | None,
        *,
        frame_size_bytes_max: int,
    ) -> tuple[ZMQSocket, ConnectionMonitor, Endpoint]:
        """Return a bound socket, its monitor, and where it is bound."""
        config = self._config
        limits = SocketLimits(
            send_queue_count_max=config.queued_replies_per_peer_max,
            frame_size_bytes_max=frame_size_bytes_max,
            # Above every session timeout: a paused client is no client that has died.
            heartbeat_timeout_ms=max(
                60_000, 2 * round(config.session_timeout_seconds_max * 1_000)
            ),
        )
        socket = open_socket(context, socket_type, limits)
        self._resources.callback(socket.close)
        if socket_type == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        secure_server(socket, key_pair)
        monitor = ConnectionMonitor(socket)
        self._resources.callback(monitor.close)
        return socket, monitor, bind_socket(socket, endpoint)

    def _make_service(self, storage: LeaderStorage) -> LeaderService:
        config = self._config
        wall_ns = time.time_ns() - _INCARNATION_ORIGIN_SECONDS * NS_PER_SECOND
        now_ns = self._clock.now_ns()
        undecided_ns = config.lease_ns_max
        if not storage.is_durable:
            # Nobody remembers this incarnation but the clock, so nothing is granted
            # within its second: a successor's incarnation is then a higher one.
            second_ns = NS_PER_SECOND - wall_ns % NS_PER_SECOND + _CLOCKS_APART_NS
            undecided_ns = max(undecided_ns, second_ns)
        incarnation = storage.next_incarnation(
            at_least=max(1, wall_ns // NS_PER_SECOND)
        )
        return LeaderService(
            ServiceConfig(
                lease_ns_min=config.lease_ns_min,
                lease_ns_max=config.lease_ns_max,
                session_timeout_ns_min=config.session_timeout_ns_min,
                session_timeout_ns_max=config.session_timeout_ns_max,
                subscription_count_max=config.subscriptions_per_session_max,
                publish_port=self.publish_endpoint.port,
                publish_address=config.publish_address,
            ),
            ElectionConfig(
                namespace=uuid4(),
                undecided_ns=undecided_ns,
                session_count_max=config.sessions_max,
                contender_count_max=config.contenders_per_component_max,
                contender_count_per_session_max=config.contenders_per_session_max,
                component_count_max=config.components_max,
            ),
            epochs=IncarnationEpochs(incarnation, started_ns=now_ns),
            storage=storage,
            draw_secret=secrets.token_bytes,
            now_ns=now_ns,
        )

    @property
    def url(self) -> str:
        """Return where clients of this machine reach it."""
        endpoint = self.endpoint
        if endpoint.is_wildcard:
            host = "::1" if endpoint.is_ipv6 else "127.0.0.1"
            endpoint = Endpoint(host=host, port=endpoint.port)
        return str(endpoint).replace("tcp://", "leaderserver://", 1)

    def figures(self) -> dict[str, str | int | float]:
        """Return the figures of the service, and of what only the shell knows."""
        return {
            **self._service.figures(now_ns=self._clock.now_ns()),
            "connections": self._router_limiter.connection_count,
            "connections_refused_total": self._router_limiter.refused_count,
            "connections_unauthorized_total": self._authenticator.refused_count,
            "subscribers": self._publisher_limiter.connection_count,
            "subscribers_refused_total": self._publisher_limiter.refused_count,
            "topics": len(self._topics),
            "failures_total": self.loop.failure_count,
        }

    def inject(self, event: ElectionEvent) -> None:
        """Let *event* happen to the election."""
        self._perform(self._service.inject(event, now_ns=self._clock.now_ns()))

    # -- requests ------------------------------------------------------------------

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take one message of the request port."""
        routing_id = frames[0].bytes
        now_ns = self._clock.now_ns()
        principal = self._authenticator.principal_of(frames[0])
        if principal is None:
            self._drop("unauthorized", "the allow-list has this key no more", now_ns)
            return
        message: ToServer
        try:
            connection = connection_of(frames[0])
            payload = framing.decode(
                [frame.bytes for frame in frames[1:]],
                size_bytes_max=self._config.frame_size_bytes_max,
            )
            message = codec.decode_to_server(payload)
        except WrongVersionError as error:
            self._drop(error.reason, error.detail, now_ns)
            refused = RefusedHello(
                nonce=b"", reason=Failure.WRONG_VERSION, detail=error.detail
            )
            self._send(routing_id, refused)
            return
        except RemoteProtocolError as error:
            self._drop(error.reason, error.detail, now_ns)
            return
        self._service.count(_frame_kind(message))
        self._perform(
            self._service.receive(
                message,
                peer=routing_id,
                connection=self._peers.heard(connection, routing_id),
                principal=principal,
                now_ns=now_ns,
            )
        )

    def _drop(self, reason: str, detail: str, now_ns: int) -> None:
        """Count a frame that nobody will see, and say so if the log has room."""
        self._service.count(f"frames_{reason.replace('-', '_')}")
        if self._budget.admits(reason, now_ns=now_ns):
            self._log.warning("frame.dropped", reason=reason, detail=detail[:200])
        suppressed = self._budget.take_suppressed(now_ns=now_ns)
        if suppressed:
            self._log.warning("frames.dropped", **_as_fields(suppressed))

    def _watch_requests(self) -> None:
        """Tell the service whose connection closed; see `leaderserver.peers`."""
        events = [*self._events_waiting, *self._router_monitor.receive()]
        self._router_limiter.observe(events)
        closed = [e.connection_id for e in events if isinstance(e, ConnectionClosed)]
        known = self._peers.known(closed)
        if closed:
            self.loop.drain(self._router)
            self._events_waiting = self._router_monitor.receive()
        else:
            self._events_waiting = []
        if self._events_waiting:
            self.loop.call_soon_threadsafe(self._watch_requests)
        is_accepted: dict[ConnectionId, bool] = {}
        for event in (*events, *self._events_waiting):
            if isinstance(event, ConnectionAccepted | ConnectionClosed):
                is_accepted[event.connection_id] = isinstance(event, ConnectionAccepted)
        accepted = {connection for connection, is_so in is_accepted.items() if is_so}
        now_ns = self._clock.now_ns()
        for link in self._peers.over(closed, known=known, accepted=accepted):
            self._perform(self._service.connection_closed(link, now_ns=now_ns))

    def _advance(self) -> None:
        """Let time pass."""
        now_ns = self._clock.now_ns()
        self._perform(self._service.advance(now_ns=now_ns))

    # -- subscribers ---------------------------------------------------------------

    def _watch_subscribers(self) -> None:
        """Take note of connections that opened and closed."""
        events = self._publisher_monitor.receive()
        self._publisher_limiter.observe(events)
        for event in events:
            match event:
                case ConnectionAccepted(connection_id=connection_id):
                    self._topics.opened(connection_id)
                case ConnectionClosed(connection_id=connection_id):
                    self._topics.closed(connection_id)
                case _:
                    pass

    def _subscribe(self, frames: list[zmq.Frame]) -> None:
        """Take one message of a subscriber; libzmq has acted on it already."""
        try:
            connection = connection_of(frames[0])
        except RemoteProtocolError:
            return  # libzmq's own: the subscriptions of a connection that closed
        now_ns = self._clock.now_ns()
        message = frames[0].bytes
        if message[:1] not in {b"\0", b"\1"}:
            self._drop("not-a-subscription", "it came to the publishing port", now_ns)
        for excess in self._topics.changed(connection, message, now_ns=now_ns):
            self._service.count("subscribers_ended")
            if self._budget.admits("subscriber", now_ns=now_ns):
                self._log.warning("subscriber.ended", reason="too many subscriptions")
            self._publisher_limiter.disconnect(excess)

    # -- out -----------------------------------------------------------------------

    def _perform(self, outgoing: Sequence[Outgoing]) -> None:
        for item in outgoing:
            match item:
                case Send(peer=bytes(peer), message=message):
                    self._send(peer, message)
                case Send():
                    raise AssertionError(item.peer)  # our peers are routing ids
                case Broadcast(message=message):
                    self._service.count("broadcasts")
                    frames = framing.encode(codec.encode(message))
                    topic = publication_topic(message.component_id)
                    send_now(self._publisher, [topic, *frames])
                case _:
                    assert_never(item)

    def _send(self, peer: bytes, message: ToClient) -> None:
        if isinstance(message, Reply) and isinstance(message.body, StatusReply):
            message = msgspec.structs.replace(
                message, body=StatusReply(figures=self.figures())
            )
        payload = codec.encode(message)
        outcome = send_now(self._router, [peer, *framing.encode(payload)])
        if outcome is not SendOutcome.SENT:
            self._service.count(f"replies_{outcome.value}")


def _frame_kind(message: ToServer) -> str:
    """Return what a good frame is counted as: the words of the wire protocol."""
    body = message if isinstance(message, Hello) else message.body
    tag = body.__struct_config__.tag
    return f"frames_{str(tag).replace('-', '_')}"


def _as_fields(counts: Mapping[str, int]) -> Mapping[str, int]:
    return {f"{kind.replace('-', '_')}_count": count for kind, count in counts.items()}
