"""
`SocketLink`: the sockets and the thread of a client; see `leaderserver.client.client`.

Theory of operation.  A DEALER socket carries requests and answers, a SUB socket brings
broadcasts; one `PollLoop` serves both, the core's deadlines, and what other threads
post.  While the server is not there, libzmq tries again by itself.  When a connection
has been made and is over, the socket is closed, and this file opens a new one after a
pause (`RetryPause`): libzmq would come back ten times a second also to a server that
takes no more, or give up (`zmqtransport.connections`, *Finality*).  And a socket keeps
the server's key that it was given, so another key (`ServerKeys`) takes a new one.

The core is told that the link is open when the handshake is done, and that it is closed
when the connection is.  In between, what cannot be sent at once is not sent at all: a
heartbeat that waited in a queue would say "now" and mean "then".
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

import zmq
from attrs import field, frozen

from leaderserver import codec
from leaderserver.client.retry_pause import RetryPause
from leaderserver.client.server_keys import ServerKeys
from nameservice import (
    NS_PER_SECOND,
    ConfigurationError,
    RemoteProtocolError,
    get_logger,
)
from nameservice.clock import earliest
from zmqtransport import (
    ConnectionClosed,
    CurveKeyPair,
    Dealer,
    Endpoint,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    PollLoop,
    SendOutcome,
    SocketLimits,
    WrongVersionError,
    ZMQContext,
    ZMQSocket,
    framing,
    handshake_error,
    new_context,
    parse_endpoint,
    secure_client,
    send_now,
)
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leaderserver.client.client import LeaderClient
    from leaderserver.messages import ToServer, Welcome
    from nameservice import AuthenticationError, Clock
    from zmqtransport import ConnectionEvent


__all__ = ["ClientKeys", "SocketLink"]

# Lists of components and sessions come in pages of a thousand; with the longest names
# and addresses that is some 7 MB.
_FRAME_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
_RECONNECT_INTERVAL_MS: Final = 100
# So long a publishing port may be away before that is worth a line.
_MISSED_NS: Final = 3 * NS_PER_SECOND
_SILENCE_TIMEOUT_MS_MIN: Final = 2_000


@frozen(kw_only=True)
class ClientKeys:
    """
    What a client needs for CURVE.

    Attributes:
        key_pair: Our own keys.
        load_server_keys: Returns which public keys the server may have, in Z85.  Asked
            again whenever the server does not prove to hold one of them.
    """

    key_pair: CurveKeyPair
    load_server_keys: Callable[[], Sequence[str]] = field(repr=False)


@final
@frozen(kw_only=True)
class _Channel:
    """A socket to the server, and which of its keys that expects."""

    dealer: Dealer
    server_key: str | None


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
        ConfigurationError: If no socket can connect to *endpoint*, the process may have
            no more sockets, or the server's keys cannot be read.
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
        self.server_keys = None if keys is None else ServerKeys(keys.load_server_keys)
        self.limits = SocketLimits(
            frame_size_bytes_max=_FRAME_SIZE_BYTES_MAX,
            # TCP alone would keep a connection that carries nothing any more for
            # minutes after the network has healed.
            silence_timeout_ms=max(
                _SILENCE_TIMEOUT_MS_MIN, round(session_timeout_seconds * 1_000)
            ),
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
        self._is_unproved = False
        self._request_pause = RetryPause()
        self._publisher_pause = RetryPause()
        self._reopen_due_ns: int | None = None
        self._republish_due_ns: int | None = None
        self._publisher_missed_due_ns: int | None = None
        self._topics: set[bytes] = set()
        self._publish_endpoint: Endpoint | None = None
        self._publisher: _Channel | None = None
        self.context: ZMQContext = new_context()
        self.loop = PollLoop(name="leaderserver-client", clock=clock)
        try:
            self._requests = self._open_requests()
        except BaseException:
            self.loop.stop()
            self.context.term()
            raise
        self.loop.at_end(self._close)
        self.loop.set_deadline(self._next_deadline_ns, self._advance)

    # -- as a ClientLink -------------------------------------------------------------

    def post(self, action: Callable[[], None]) -> None:
        """
        Run *action* on the link's thread soon; the first one starts it.

        Raises:
            LocalProtocolError: If the link was stopped.
            ForkedClientError: In a child process.
            RuntimeError: If the process may have no more threads; the next one tries
                again.
        """
        self.loop.call_soon_threadsafe(action)
        if self._is_started:
            return
        with self._lock:
            is_first = not self._is_started
            self._is_started = True
        if is_first:
            try:
                self.loop.start()
            except RuntimeError:
                self._is_started = False
                raise

    def send(self, message: ToServer) -> None:
        """Send now, or not at all."""
        if not self._is_open:
            return
        frames = framing.encode(codec.encode(message))
        outcome = send_now(self._requests.dealer.socket, frames)
        if outcome is not SendOutcome.SENT:
            # Mostly, the server is gone and its connection's end not told of yet.
            self._say(self._log.info, "frame.unsent", "unsent", outcome.value)

    def connect_publisher(self, welcome: Welcome) -> None:
        """Listen for broadcasts where *welcome* says, unless that is done already."""
        self._request_pause.welcomed()
        if welcome.publish_address is None and welcome.publish_port == 0:
            # We may not hear of everything: changes come over the request channel.
            if self._publisher is not None:
                self._publisher.dealer.close()
                self._publisher = None
            self._publish_endpoint = None
            self._republish_due_ns = self._publisher_missed_due_ns = None
            return
        if welcome.publish_address is None:
            endpoint = Endpoint(host=self._endpoint.host, port=welcome.publish_port)
        else:
            endpoint = parse_endpoint(welcome.publish_address)
        if self._publish_endpoint != endpoint:
            self._open_publisher(endpoint)

    def join_topic(self, component_id: str) -> None:
        """Hear broadcasts of *component_id*."""
        topic = codec.publication_topic(component_id)
        if topic not in self._topics:
            self._topics.add(topic)
            if self._publisher is not None:
                self._publisher.dealer.socket.subscribe(topic)

    def leave_topic(self, component_id: str) -> None:
        """Hear them no more."""
        topic = codec.publication_topic(component_id)
        if topic in self._topics:
            self._topics.discard(topic)
            if self._publisher is not None:
                self._publisher.dealer.socket.unsubscribe(topic)

    def stop(self) -> None:
        """End the thread and release everything.  Idempotent."""
        self.loop.stop()
        self.loop.join()

    # -- on the link's thread --------------------------------------------------------

    def _open(
        self,
        socket_type: int,
        endpoint: Endpoint,
        on_event: Callable[[ConnectionEvent], None],
        on_message: Callable[[list[zmq.Frame]], None],
    ) -> _Channel:
        server_key = None if self.server_keys is None else self.server_keys.current

        def secure(socket: ZMQSocket) -> None:
            if self.keys is not None and server_key is not None:
                secure_client(socket, self.keys.key_pair, server_public_key=server_key)

        dealer = Dealer(
            self.context, endpoint, self.limits, secure=secure, socket_type=socket_type
        )
        dealer.serve(
            self.loop, on_event=on_event, on_message=on_message, frame_count_max=3
        )
        return _Channel(dealer=dealer, server_key=server_key)

    def _open_requests(self) -> _Channel:
        return self._open(
            zmq.DEALER, self._endpoint, self._request_event, self._receive
        )

    def _open_publisher(self, endpoint: Endpoint) -> None:
        if self._publisher is not None:
            self._publisher.dealer.close()
            self._publisher = None
        self._publish_endpoint = endpoint
        self._republish_due_ns = None
        if self._publisher_missed_due_ns is None:
            self._publisher_missed_due_ns = self._clock.now_ns() + _MISSED_NS
        try:
            self._publisher = self._open(
                zmq.SUB, endpoint, self._publisher_event, self._hear
            )
        except ConfigurationError as error:
            self._say(self._log.warning, "socket.unopened", "unopened", str(error))
            self._republish_soon()
            return
        for topic in sorted(self._topics):
            self._publisher.dealer.socket.subscribe(topic)

    def _request_event(self, event: ConnectionEvent) -> None:
        match event:
            case HandshakeSucceeded():
                self._request_pause.opened(now_ns=self._clock.now_ns())
                self._is_open = True
                self._key_proved()
                self._client.opened()
            case HandshakeFailed(is_final=is_final):
                error = handshake_error(event, target=self._target)
                self._client.noticed(error)
                is_untried = (
                    event.failure is HandshakeFailure.CLOSED and self._choose_key(error)
                )
                self._reopen_soon(is_at_once=is_untried)
                if is_final:
                    self._client.refused(error)
            case ConnectionClosed():
                # What it brought before its end lies in the socket.
                self.loop.drain(self._requests.dealer.socket)
                self._reopen_soon()
            case _:
                pass

    def _reopen_soon(self, *, is_at_once: bool = False) -> None:
        """Close the socket, and open another one after a pause."""
        self._requests.dealer.close()
        now_ns = self._clock.now_ns()
        self._reopen_due_ns = now_ns
        if not is_at_once:
            self._reopen_due_ns += self._request_pause.ended(
                now_ns=now_ns, has_claim=self._client.has_claim
            )
        self._link_closed()

    def _reopen(self) -> None:
        self._reopen_due_ns = None
        try:
            self._requests = self._open_requests()
        except ConfigurationError as error:
            # The process has no more sockets at the moment.
            self._say(self._log.warning, "socket.unopened", "unopened", str(error))
            self._client.noticed(error)
            self._reopen_soon()

    def _key_proved(self) -> None:
        """Expect the same key at the publishing port."""
        self._is_unproved = False
        if self.server_keys is None:
            return
        self.server_keys.proved()
        publisher = self._publisher
        if publisher is not None and publisher.server_key != self.server_keys.current:
            self._open_publisher(publisher.dealer.endpoint)

    def _choose_key(self, error: AuthenticationError) -> bool:
        """Expect another key of the server; return whether to try it at once."""
        if self.server_keys is None:
            return False
        is_untried = self.server_keys.failed()
        if not is_untried and not self._is_unproved:
            self._is_unproved = True
            self._log.warning("server_key.unproved", reason=str(error))
        return is_untried

    def _link_closed(self) -> None:
        if self._is_open:
            self._is_open = False
            self._client.closed()

    def _publisher_event(self, event: ConnectionEvent) -> None:
        """Catch up once broadcasts are heard."""
        match event:
            case HandshakeSucceeded():
                self._publisher_pause.opened(now_ns=self._clock.now_ns())
                self._publisher_missed_due_ns = None
                if not self._client.is_publisher_reached:
                    self._client.is_publisher_reached = True
                    self._log.info("publisher.reached")
                if self._is_open:
                    # What was published before now was not heard.  The core sends a
                    # heartbeat, whose answer tells what changed meanwhile.
                    self._client.broadcasts_reached()
            case ConnectionClosed():
                if self._publisher is not None:
                    self.loop.drain(self._publisher.dealer.socket)
                self._republish_soon()
            case HandshakeFailed():
                self._republish_soon()
            case _:
                pass

    def _republish_soon(self) -> None:
        """Close the socket that hears broadcasts, and open another after a pause."""
        if self._publisher is not None:
            self._publisher.dealer.close()
            self._publisher = None
        now_ns = self._clock.now_ns()
        if self._publisher_missed_due_ns is None:
            self._publisher_missed_due_ns = now_ns + _MISSED_NS
        self._republish_due_ns = now_ns + self._publisher_pause.ended(now_ns=now_ns)

    def _miss_publisher(self) -> None:
        """Say, once, that broadcasts do not arrive, though requests do."""
        self._publisher_missed_due_ns = None
        if not self._is_open or self._publish_endpoint is None:
            return  # it is the server that is out of reach, and that is told elsewhere
        if self._client.is_publisher_reached:
            self._client.is_publisher_reached = False
            self._log.warning(
                "publisher.unreachable",
                endpoint=str(self._publish_endpoint),
                reason="changes are asked for instead, with each heartbeat; open that "
                "port, or name another by --publish-bind and --publish-address",
            )

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
            self._say(self._log.warning, "frame.dropped", error.reason, error.detail)
            if isinstance(error, WrongVersionError):
                self._client.refused(error)
            return
        self._client.received(message)

    def _say(
        self, log: Callable[..., object], event: str, kind: str, detail: str
    ) -> None:
        if self._budget.admits(kind, now_ns=self._clock.now_ns()):
            log(event, reason=kind, detail=detail[:200])

    def _next_deadline_ns(self) -> int | None:
        moments = (
            self._client.next_deadline_ns(),
            self._reopen_due_ns,
            self._republish_due_ns,
            self._publisher_missed_due_ns,
        )
        return earliest(moments)

    def _advance(self) -> None:
        now_ns = self._clock.now_ns()
        missed_due_ns = self._publisher_missed_due_ns
        if missed_due_ns is not None and missed_due_ns <= now_ns:
            self._miss_publisher()
        if self._republish_due_ns is not None and self._republish_due_ns <= now_ns:
            assert self._publish_endpoint is not None
            self._open_publisher(self._publish_endpoint)
        if self._reopen_due_ns is not None and self._reopen_due_ns <= now_ns:
            self._reopen()
        deadline_ns = self._client.next_deadline_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._client.advance()

    def _close(self) -> None:
        if self._publisher is not None:
            self._publisher.dealer.close()
        self._requests.dealer.close()
        self.context.term()
        # Freed here: their finalizers would swallow what a signal handler raises.
        del self._publisher, self._requests, self.context
