"""
`ServerLoop`: the sockets, the clock and the thread around a `LeaderService`.

Theory of operation.  One thread serves, in this order of precedence within a turn:

=================  ===================================================================
authenticator      says who may connect (`zmqtransport.authentication`)
request port       `zmqtransport.port`: connections that opened and closed, then
                   requests: frames in, answers out
deadline           `LeaderService.next_deadline_ns`
=================  ===================================================================

The publishing port has a thread of its own (`leaderserver.server.publishing_port`),
and so has the guard against more coming in than can be taken
(`zmqtransport.inflow_guard`).

Nothing here decides who leads.  What this file does decide is what never reaches the
service: frames that are malformed, oversized, truncated or of another version, and
requests of clients that the allow-list has no more.  They are counted, logged within a
`LogBudget`, and dropped; only a peer of another version is answered, because nothing
else can tell its user why nothing works.

Nothing waits, either.  An answer that the peer's queue has no room for, or whose peer
is gone, is dropped and counted: clients ask again.  A change that a slow subscriber
has no room for is dropped by ZeroMQ; the gap shows in the revisions (rule N1).

A broadcast is ``[topic, header, payload]``, the topic being the component id in UTF-8
and a zero byte, so that no topic is the beginning of another.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Final, assert_never, final

import msgspec
import zmq

from election.events import LimitsChanged
from leaderserver import codec
from leaderserver.messages import Failure, Hello, RefusedHello, Reply
from leaderserver.operator_messages import StatusReply
from leaderserver.server.config import ServerConfig
from leaderserver.server.core.topics import TopicTable
from leaderserver.server.core.turn import Broadcast, Outgoing, Send
from leaderserver.server.publishing_port import PublishingPort
from leaderserver.server.reply_sender import ReplySender
from leaderserver.server.served_storage import ServedStorage
from leaderserver.server.service_start import start_service
from leaderserver.server.socket_limits import (
    connections_per_port_max,
    publishing_limits,
    reply_limits,
    request_limits,
)
from nameservice import (
    Clock,
    LocalProtocolError,
    NameServiceError,
    RemoteProtocolError,
    get_logger,
)
from nameservice.clock import earliest
from nameservice.version import package_version
from zmqtransport import (
    AllowList,
    Authenticator,
    ConnectionId,
    CurveKeyPair,
    Endpoint,
    PollLoop,
    Port,
    WrongVersionError,
    ZMQContext,
    framing,
    load_key_files,
    new_context,
)
from zmqtransport.inflow import Inflow
from zmqtransport.inflow_guard import InflowGuard
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from election.events import ElectionEvent
    from leaderserver.messages import Published, RequestBody, ToClient, ToServer
    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage_work import Outcome
    from zmqtransport import Peer


__all__ = ["ServerLoop"]

# How long a server that has failed keeps its connections for its last words.
_LAST_WORDS_SECONDS: Final = 0.5
# Why a frame is refused that is ours: if it says whose it is, it is answered.
_ANSWERED_REASONS: Final = frozenset({"malformed", "oversized"})


@final
class ServerLoop:
    """
    What lives from start to close; all of it belongs to the loop's thread.

    Raises:
        ConfigurationError: See `LeaderServer.start`; nothing stays open then.
    """

    def __init__(
        self, config: ServerConfig, clock: Clock, *, is_alone: bool = False
    ) -> None:
        self._config = config
        self._is_alone = is_alone
        self._clock = clock
        self._log = get_logger(component="leaderserver")
        self._budget = LogBudget()
        self._resources = ExitStack()
        self.loop = PollLoop(name="leaderserver", clock=clock)
        self.loop.at_end(self._resources.close)
        self.loop.at_end(self._wait_for_readers)
        try:
            self._open()
        except BaseException:
            self.loop.stop()  # closes the loop and, with it, what was opened
            raise

    def _open(self) -> None:
        config = self._config
        key_pair, allow_list = load_key_files(
            config.curve_secret_key_file,
            config.curve_public_key_file,
            config.allow_list_file,
        )
        self.public_key = None if key_pair is None else key_pair.public_key
        self._storage = ServedStorage(config, self.loop)
        self._resources.callback(self._storage.close)

        context: ZMQContext = new_context()
        self._resources.callback(context.term)
        self._authenticator = Authenticator(context, allow_list)
        self._resources.callback(self._authenticator.close)
        plan = config.memory_plan
        connections_max = connections_per_port_max(config, self._log)
        self._inflow = Inflow(
            bytes_per_connection_max=plan.requests_per_connection_bytes_max,
            bytes_max=plan.requests_bytes_max,
            frame_overhead_bytes=framing.frame_overhead_bytes(
                is_secured=config.uses_curve
            ),
        )
        self._port = Port(
            context,
            config.bind_endpoint,
            request_limits(config),
            key_pair,
            authenticator=self._authenticator,
            connections_max=connections_max,
            inflow=self._inflow,
            loop=self.loop,
            clock=self._clock,
            component="leaderserver",
            frame_count_max=1 + framing.FRAME_COUNT,
            on_message=self._receive,
            on_closed=self._closed,
            is_told_who_spoke=True,
        )
        self._resources.callback(self._port.close)
        self.endpoint = self._port.endpoint
        self._version = package_version()
        self._publishing = PublishingPort(
            context,
            config.publish_endpoint,
            publishing_limits(config),
            key_pair,
            connections_max=connections_max,
            topics=TopicTable(
                topic_size_bytes=codec.TOPIC_SIZE_BYTES,
                topics_per_connection_max=config.subscriptions_per_session_max,
                topics_max=config.components_max,
                bytes_max=plan.topics_bytes_max,
            ),
            inflow=self._inflow,
            clock=self._clock,
        )
        self._resources.callback(self._publishing.close)
        self.publish_endpoint = self._publishing.endpoint
        self._guard = InflowGuard(
            self._inflow,
            ports=(self.endpoint.port, self.publish_endpoint.port),
            memory_limit_bytes=config.memory_limit_bytes if self._is_alone else None,
            clock=self._clock,
            component="leaderserver",
            disconnect=self._disconnect,
        )
        self._resources.callback(self._guard.close)
        self._service = start_service(
            config,
            self._storage.storage,
            clock=self._clock,
            publish_port=self.publish_endpoint.port,
        )
        self._storage.start(self._service.next_storage_work, self._take_outcomes)
        self._replies = ReplySender(
            self._port.socket,
            reply_limits(config),
            clock=self._clock,
            disconnect=self._port.limiter.disconnect,
            count=self._service.count,
            may_log=self._may_log,
        )

        self.loop.set_deadline(self._next_deadline_ns, self._advance)
        self._publishing.start()
        self._guard.start()

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
            "version": self._version,
            **self._service.figures(now_ns=self._clock.now_ns()),
            **self._port.figures(),
            "sent_bytes_total": self._replies.sent_bytes,
            "connections_silent": self._port.limiter.silent_count,
            "connections_ended_total": self._guard.ended_count,
            **self._publishing.figures(),
            "replies_queued_bytes": self._replies.queued_bytes,
            "replies_waiting_peers": self._replies.waiting_count,
            "failures_total": self.loop.failure_count,
        }

    def inject(self, event: ElectionEvent) -> None:
        """Have *event* happen to the election."""
        self._perform(self._service.inject(event, now_ns=self._clock.now_ns()))

    def prepare_keys(self) -> None:
        """
        Take what `replace_keys` needs; on any thread, of one at a time.

        Raises:
            ConfigurationError: If the process has too few file descriptors.
        """
        self._port.listener.prepare()
        self._publishing.listener.prepare()

    def reload(self, allow_list: AllowList, key_pair: CurveKeyPair) -> None:
        """
        Have *allow_list* say who may do what from now on, and serve with *key_pair*.

        Call `prepare_keys` before, if that is another one than until now.
        """
        self._authenticator.allow_list = allow_list
        now_ns = self._clock.now_ns()
        self._perform(self._service.apply_rights(allow_list.get, now_ns=now_ns))
        if key_pair.public_key != self.public_key:
            self._replace_keys(key_pair)
        else:
            # Rights are asked for when somebody connects there, and only then.
            self._publishing.disconnect_all()

    def apply_limits(self, config: ServerConfig) -> None:
        """
        Take the limits of *config* from now on.

        It differs from the present one in what a running server can change, and in
        nothing else (`leaderserver.server.limits`).
        """
        self._config = config
        plan = config.memory_plan
        connections_max = connections_per_port_max(config, self._log)
        self._port.limiter.connections_max = connections_max
        self._publishing.limit(
            connections_max=connections_max,
            topics_per_connection_max=config.subscriptions_per_session_max,
            topics_max=config.components_max,
            bytes_max=plan.topics_bytes_max,
        )
        self._inflow.limit(
            bytes_per_connection_max=plan.requests_per_connection_bytes_max,
            bytes_max=plan.requests_bytes_max,
        )
        self._guard.limit(config.memory_limit_bytes if self._is_alone else None)
        self._replies.limit(reply_limits(config))
        self._storage.limit(config)
        outgoing = self._service.apply_limits(
            LimitsChanged(
                session_count_max=config.sessions_max,
                contender_count_max=config.contenders_per_component_max,
                contender_count_per_session_max=config.contenders_per_session_max,
                component_count_max=config.components_max,
            ),
            subscription_count_max=config.subscriptions_per_session_max,
            state_bytes_max=plan.state_bytes_max,
            cached_bytes_max=plan.memory_store_bytes_max,
            now_ns=self._clock.now_ns(),
        )
        self._perform(outgoing)

    def _replace_keys(self, key_pair: CurveKeyPair) -> None:
        # First there: a client goes there when it knows the key by the other port.
        self._publishing.replace_keys(key_pair)
        # What came before the connections end was said by those who were here.
        self.loop.drain(self._port.socket)
        try:
            events = self._port.listener.replace_keys(key_pair)
        except NameServiceError as error:
            self.loop.fail(error)
            raise
        self.public_key = key_pair.public_key
        self._port.watch(events)

    # -- requests ------------------------------------------------------------------

    def _receive(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        """Take one message of the request port."""
        connection = peer.connection
        now_ns = self._clock.now_ns()
        message: ToServer | codec.Malformed | None
        spoken = [frame.bytes for frame in frames[1:]]
        if not self._replies.heard(peer.routing_id, connection):
            self._service.count("replies_unroutable")
            return
        principal = self._authenticator.principal_of(frames[0])
        if principal is None:
            self._drop("unauthorized", "the allow-list has this key no more", now_ns)
            # Its client is told so when it comes again, and is turned away.
            self._port.limiter.disconnect(connection)
            return
        self._port.limiter.spoke(connection)
        try:
            payload = framing.decode(
                spoken,
                size_bytes_max=self._config.frame_size_bytes_max,
            )
            message = codec.decode_to_server(payload)
        except WrongVersionError as error:
            self._drop(error.reason, error.detail, now_ns)
            refused = RefusedHello(
                nonce=b"", reason=Failure.WRONG_VERSION, detail=error.detail
            )
            self._send(peer.routing_id, refused)
            return
        except RemoteProtocolError as error:
            self._drop(error.reason, error.detail, now_ns)
            message = None
            if error.reason in _ANSWERED_REASONS:
                message = codec.malformed_from(frames[-1].bytes, error.detail)
            if message is None:
                return
        else:
            self._service.count(_frame_kind(message))
        self._perform(
            self._service.receive(
                message,
                peer=peer.routing_id,
                connection=peer,
                principal=principal,
                now_ns=now_ns,
            )
        )

    def _drop(self, reason: str, detail: str, now_ns: int) -> None:
        """Count a frame that goes no further, and say so if the log has room."""
        self._service.count(f"frames_{reason.replace('-', '_')}")
        if self._budget.admits(reason, now_ns=now_ns):
            self._log.warning("frame.dropped", reason=reason, detail=detail[:200])
        suppressed = self._budget.take_suppressed(now_ns=now_ns)
        if suppressed:
            self._log.warning("frames.dropped", **_as_fields(suppressed))

    def _closed(self, peers: Sequence[Peer]) -> None:
        """Tell the service whose connection closed."""
        now_ns = self._clock.now_ns()
        for peer in peers:
            self._replies.closed(peer.routing_id, peer.connection)
            self._perform(self._service.connection_closed(peer, now_ns=now_ns))

    def _disconnect(self, connection: ConnectionId) -> None:
        """End a connection of either port; on any thread."""
        self._port.limiter.disconnect(connection)
        self._publishing.limiter.disconnect(connection)

    def _next_deadline_ns(self) -> int | None:
        service_ns = self._service.next_deadline_ns()
        retry_ns = self._replies.next_deadline_ns()
        return service_ns if retry_ns is None else earliest((service_ns, retry_ns))

    def _advance(self) -> None:
        """Take note of the time."""
        self._replies.retry()
        now_ns = self._clock.now_ns()
        deadline_ns = self._service.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._perform(self._service.advance(now_ns=now_ns))

    def _take_outcomes(self, work: StorageWork, outcomes: Sequence[Outcome]) -> None:
        now_ns = self._clock.now_ns()
        self._perform(self._service.storage_done(work, outcomes, now_ns=now_ns))

    def _wait_for_readers(self) -> None:
        """
        Give who waits for an answer the time to read why there is no other.

        Clients set ``ZMQ_IMMEDIATE``: when a connection ends, libzmq drops what they
        have not read of it (4.3.5, ``socket_base_t::hiccuped``).
        """
        if self.loop.failure is not None:
            time.sleep(_LAST_WORDS_SECONDS)  # noqa: TID251 (nothing tells of readers)

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
                    self._broadcast(message)
                case _:
                    assert_never(item)
        self._storage.work()

    def _broadcast(self, message: Published) -> None:
        try:
            frames = framing.encode(codec.encode(message))
        except LocalProtocolError as error:  # the next heartbeat's answer tells of it
            self._service.count("broadcasts_unencodable")
            self._log.error("message.unencodable", error=str(error))
            return
        self._publishing.publish(
            [codec.publication_topic(message.component_id), *frames]
        )

    def _send(self, peer: bytes, message: ToClient) -> None:
        if isinstance(message, Reply) and isinstance(message.body, StatusReply):
            message = msgspec.structs.replace(
                message, body=StatusReply(figures=self.figures())
            )
        self._replies.send(peer, message)

    def _may_log(self, kind: str) -> bool:
        return self._budget.admits(kind, now_ns=self._clock.now_ns())


def _frame_kind(message: ToServer) -> str:
    """Return what a good frame is counted as: the words of the wire protocol."""
    return _kind_of(type(message if isinstance(message, Hello) else message.body))


@cache
def _kind_of(kind: type[Hello | RequestBody]) -> str:
    tag = kind.__struct_config__.tag
    return f"frames_{str(tag).replace('-', '_')}"


def _as_fields(counts: Mapping[str, int]) -> Mapping[str, int]:
    return {f"{kind.replace('-', '_')}_count": count for kind, count in counts.items()}
