"""
`SocketLink`: the sockets and the thread of a client; see `leaderserver.client`.

Theory of operation.  A DEALER socket carries requests and answers, a SUB socket brings
broadcasts; one `PollLoop` serves both, the core's deadlines, and what other threads
post.  libzmq connects again by itself, with three exceptions in which it gives up, and
this file opens a new socket instead: the server refused us for good, the peer broke the
protocol, and whatever else ends in silence (`transport.connections`, *Finality*).

The core is told that the link is open when the handshake is done, and that it is closed
when the connection is.  In between, what cannot be sent at once is not sent at all: a
heartbeat that waited in a queue would say "now" and mean "then".
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

import zmq
from attrs import field, frozen

from leaderserver import codec
from leaderserver.server_loop import publication_topic
from nameservice import NS_PER_SECOND, RemoteProtocolError, get_logger
from transport import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionMonitor,
    ConnectionOpened,
    CurveKeyPair,
    Endpoint,
    HandshakeFailed,
    HandshakeSucceeded,
    PollLoop,
    SendOutcome,
    SocketLimits,
    WrongVersionError,
    ZMQContext,
    connect_socket,
    framing,
    handshake_error,
    open_socket,
    parse_endpoint,
    secure_client,
    send_now,
)
from transport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable

    from leaderserver.client import LeaderClient
    from leaderserver.messages import ToServer, Welcome
    from nameservice import Clock
    from transport import ConnectionEvent


__all__ = ["ClientKeys", "SocketLink"]

# Lists of components and sessions come in pages of a thousand; with the longest names
# and addresses that is some 7 MB.
_FRAME_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
_RECONNECT_INTERVAL_MS: Final = 100
# A connection that closed is tried again after one interval; after so many nobody will.
_SILENCE_NS: Final = 5 * _RECONNECT_INTERVAL_MS * NS_PER_SECOND // 1_000
_REFUSED_PAUSE_NS: Final = NS_PER_SECOND
_HEARTBEAT_TIMEOUT_MS_MIN: Final = 2_000


@frozen(kw_only=True)
class ClientKeys:
    """
    What a client needs for CURVE.

    Attributes:
        key_pair: Our own keys.
        server_public_key: Whom we speak to, in Z85.
    """

    key_pair: CurveKeyPair
    server_public_key: str = field(repr=False)


@final
class _Channel:
    """One socket to the server, with its monitor."""

    def __init__(
        self,
        link: SocketLink,
        socket_type: int,
        endpoint: Endpoint,
        on_event: Callable[[ConnectionEvent], None],
        on_message: Callable[[list[zmq.Frame]], None],
    ) -> None:
        self.endpoint = endpoint
        self._link = link
        self._resources = ExitStack()
        self._on_event = on_event
        try:
            self.socket = open_socket(link.context, socket_type, link.limits)
            self._resources.callback(self.socket.close)
            if link.keys is not None:
                secure_client(
                    self.socket,
                    link.keys.key_pair,
                    server_public_key=link.keys.server_public_key,
                )
            self._monitor = ConnectionMonitor(self.socket)
            self._resources.callback(self._monitor.close)
            # Events first: an answer is taken when the link is known to be open.
            link.loop.add_readable(self._monitor.socket, self._watch)
            self._resources.callback(link.loop.remove_socket, self._monitor.socket)
            link.loop.add_socket(self.socket, on_message, frame_count_max=3)
            self._resources.callback(link.loop.remove_socket, self.socket)
            connect_socket(self.socket, endpoint)
        except BaseException:
            self._resources.close()
            raise

    def _watch(self) -> None:
        for event in self._monitor.receive():
            if self._monitor.socket.closed:
                return  # an earlier event has replaced this channel
            self._on_event(event)

    def close(self) -> None:
        """Stop serving the socket and close it."""
        self._resources.close()


@final
class SocketLink:
    """
    The `ClientLink` of a LeaderServer in another process or thread.

    Args:
        client: Whom to tell.
        endpoint: Where the server takes requests.
        target: How errors name it.
        keys: For CURVE, or None.
        session_timeout_seconds: What the client asks for.
        clock: Where time comes from; the client's own.

    Raises:
        ConfigurationError: If nobody can connect to *endpoint*, or the process may
            have no more sockets.
    """

    def __init__(
        self,
        client: LeaderClient,
        *,
        endpoint: Endpoint,
        target: str,
        keys: ClientKeys | None,
        session_timeout_seconds: float,
        clock: Clock,
    ) -> None:
        self.keys = keys
        # ZeroMQ's own heartbeats end a connection that carries nothing any more,
        # which TCP would keep for minutes after the network has healed.
        heartbeat_timeout_ms = max(
            _HEARTBEAT_TIMEOUT_MS_MIN, round(session_timeout_seconds * 1_000)
        )
        self.limits = SocketLimits(
            frame_size_bytes_max=_FRAME_SIZE_BYTES_MAX,
            heartbeat_interval_ms=heartbeat_timeout_ms // 3,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            reconnect_interval_ms=_RECONNECT_INTERVAL_MS,
        )
        self._client = client
        self._endpoint = endpoint
        self._target = target
        self._clock = clock
        self._budget = LogBudget()
        self._log = get_logger(component="leaderserver-client", target=target)
        self._lock = threading.Lock()  # guards _is_started
        self._is_started = False
        self._is_open = False
        self._was_refused = False
        self._reopen_due_ns: int | None = None
        self._republish_due_ns: int | None = None
        self._topics: set[bytes] = set()
        self._publisher: _Channel | None = None
        self.context: ZMQContext = zmq.Context()
        self.loop = PollLoop(name="leaderserver-client", clock=clock)
        self.loop.at_end(self._close)
        try:
            self._requests = self._open_requests()
        except BaseException:
            self.context.term()
            self.loop.stop()
            raise
        self.loop.set_deadline(self._next_deadline_ns, self._advance)

    # -- as a ClientLink -------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """
        Run *action* on the link's thread soon; the first one starts it.

        Raises:
            LocalProtocolError: If the link was stopped.
            ForkedClientError: In a child process.
        """
        self.loop.call_soon_threadsafe(action)
        with self._lock:
            is_first = not self._is_started
            self._is_started = True
        if is_first:
            self.loop.start()

    def send(self, message: ToServer) -> None:
        """Send now, or not at all."""
        if not self._is_open:
            return
        frames = framing.encode(codec.encode(message))
        outcome = send_now(self._requests.socket, frames)
        if outcome is not SendOutcome.SENT:
            self._warn("frame.unsent", "unsent", outcome.value)

    def connect_publisher(self, welcome: Welcome) -> None:
        """Listen for broadcasts where *welcome* says, unless that is done already."""
        if welcome.publish_address is None:
            endpoint = Endpoint(host=self._endpoint.host, port=welcome.publish_port)
        else:
            endpoint = parse_endpoint(welcome.publish_address)
        if self._publisher is None or self._publisher.endpoint != endpoint:
            self._open_publisher(endpoint)

    def join_topic(self, component_id: str) -> None:
        """Hear broadcasts of *component_id*."""
        topic = publication_topic(component_id)
        if topic not in self._topics:
            self._topics.add(topic)
            if self._publisher is not None:
                self._publisher.socket.subscribe(topic)

    def leave_topic(self, component_id: str) -> None:
        """Hear them no more."""
        topic = publication_topic(component_id)
        if topic in self._topics:
            self._topics.discard(topic)
            if self._publisher is not None:
                self._publisher.socket.unsubscribe(topic)

    def stop(self) -> None:
        """End the thread and release everything.  Idempotent."""
        self.loop.stop()
        self.loop.join()

    # -- on the link's thread --------------------------------------------------------

    def _open_requests(self) -> _Channel:
        return _Channel(
            self, zmq.DEALER, self._endpoint, self._request_event, self._receive
        )

    def _open_publisher(self, endpoint: Endpoint) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        self._republish_due_ns = None
        self._publisher = _Channel(
            self, zmq.SUB, endpoint, self._publisher_event, self._hear
        )
        for topic in sorted(self._topics):
            self._publisher.socket.subscribe(topic)

    def _request_event(self, event: ConnectionEvent) -> None:
        match event:
            case HandshakeSucceeded():
                self._was_refused = False
                self._reopen_due_ns = None
                self._is_open = True
                self._client.opened()
            case HandshakeFailed(is_final=is_final):
                error = handshake_error(event, target=self._target)
                self._client.noticed(error)
                if is_final:
                    self._reopen_due_ns = self._clock.now_ns() + _REFUSED_PAUSE_NS
                    if not self._was_refused:
                        self._was_refused = True
                        self._client.refused(error)
            case ConnectionClosed():
                if self._reopen_due_ns is None:
                    self._reopen_due_ns = self._clock.now_ns() + _SILENCE_NS
                self._link_closed()
            case ConnectFailed() | ConnectionOpened():
                if not self._was_refused:
                    self._reopen_due_ns = None
            case _:
                pass

    def _link_closed(self) -> None:
        if self._is_open:
            self._is_open = False
            self._client.closed()

    def _publisher_event(self, event: ConnectionEvent) -> None:
        """Catch up once broadcasts are heard; see that libzmq does not give up."""
        match event:
            case HandshakeSucceeded():
                self._republish_due_ns = None
                if self._is_open:
                    # What was published before now was not heard.  The core sends a
                    # heartbeat, whose answer tells what changed meanwhile.
                    self._client.opened()
            case ConnectFailed() | ConnectionOpened():
                self._republish_due_ns = None
            case HandshakeFailed(is_final=True):
                self._republish_due_ns = self._clock.now_ns() + _REFUSED_PAUSE_NS
            case ConnectionClosed() if self._republish_due_ns is None:
                self._republish_due_ns = self._clock.now_ns() + _SILENCE_NS
            case _:
                pass

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take a message of the server."""
        self._take(frames)

    def _hear(self, frames: list[zmq.Frame]) -> None:
        """Take a broadcast: a topic comes first, which the message repeats."""
        self._take(frames[1:])

    def _take(self, frames: list[zmq.Frame]) -> None:
        try:
            payload = framing.decode(
                [frame.bytes for frame in frames], size_bytes_max=_FRAME_SIZE_BYTES_MAX
            )
            message = codec.decode_to_client(payload)
        except RemoteProtocolError as error:
            self._warn("frame.dropped", error.reason, error.detail)
            if isinstance(error, WrongVersionError) and not self._was_refused:
                self._was_refused = True
                self._client.refused(error)
            return
        self._client.received(message)

    def _warn(self, event: str, kind: str, detail: str) -> None:
        now_ns = self._clock.now_ns()
        if self._budget.admits(kind, now_ns=now_ns):
            self._log.warning(event, reason=kind, detail=detail[:200])

    def _next_deadline_ns(self) -> int | None:
        moments = (
            self._client.next_deadline_ns(),
            self._reopen_due_ns,
            self._republish_due_ns,
        )
        return min((m for m in moments if m is not None), default=None)

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        if self._republish_due_ns is not None and self._republish_due_ns <= now_ns:
            assert self._publisher is not None
            self._open_publisher(self._publisher.endpoint)
        if self._reopen_due_ns is not None and self._reopen_due_ns <= now_ns:
            self._reopen_due_ns = None
            self._requests.close()
            self._link_closed()
            self._requests = self._open_requests()
        deadline_ns = self._client.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._client.advance()

    def _close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        self._requests.close()
        self.context.term()
