"""
`QueryLink`: the socket of a client to a proxy or a node; what both clients share.

Theory of operation.  A link connects once.  libzmq would connect again by itself and
report each attempt to a monitor that is not read while the client is idle; here the
core decides when to try again, and the shell that performs that opens another link.

A link has no thread.  It may be used by different threads one after the other, under
one lock.  Its two descriptors say that there *may* be something to take: they are
ZeroMQ's own and signal once, to one who has looked before.  So after every use of the
socket, also after a send, `receive` has to be called until it returns None, or an
answer may lie there unnoticed; and `watch` as long as the link is not made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import NameServiceError, RemoteProtocolError, get_logger
from queryablestate.client.events import (
    TIME_WENT,
    ConnectionFailed,
    ConnectionMade,
    ConnectionRefused,
    MessageCame,
    TimeWent,
)
from queryablestate.connect.credentials import Credentials, dealer_to, load_caller_keys
from queryablestate.wire.address import parse_address
from queryablestate.wire.clients import Hello
from queryablestate.wire.codec import decode_to_client, encode, encode_payload
from zmqtransport import (
    ConnectFailed,
    ConnectionClosed,
    HandshakeFailed,
    HandshakeSucceeded,
    SocketLimits,
    ZMQContext,
    handshake_error,
    send_now,
)
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from haservices import HAConfig
    from nameservice import Clock
    from queryablestate.client.events import SayHello, SendRequest
    from zmqtransport import ZMQSocket
    from zmqtransport.dealer import Dealer


__all__ = ["PROXY_SOCKET_LIMITS", "QueryLink"]

PROXY_SOCKET_LIMITS: Final = SocketLimits(
    frame_size_bytes_max=64 * 1024 * 1024,  # answers may be large
    silence_timeout_ms=10_000,
    reconnect_interval_ms=3_600_000,  # never: see above
)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)
_RCVMORE: Final = int(zmq.RCVMORE)


@final
class QueryLink:
    """
    One socket to one proxy, or to one node.

    Attributes:
        number: What the core calls the connection to a node; 0 for the proxy.
        descriptors: Readable when something may have come: the socket's, and that of
            what happens to its connection.
        target: Where it leads to, as it was published.
        is_made: Whether messages can flow; if not, `watch` may know why.

    Raises:
        ConfigurationError: If *target* is no address, or a key file cannot be used.
        AuthenticationError: If we have keys and the proxy uses no CURVE.
    """

    def __init__(
        self,
        context: ZMQContext,
        target: str,
        *,
        credentials: Credentials,
        config: HAConfig,
        clock: Clock,
        budget: LogBudget,
        number: int = 0,
    ) -> None:
        """
        Begin to connect.

        Args:
            context: For the socket.
            target: The address as it was published.
            credentials: What we show.
            config: Of the name service, whose keys are used if there are no others.
            clock: For *budget*.
            budget: Bounds what is logged about a peer that sends rubbish.
            number: See above.
        """
        self.number = number
        self.target = target
        self._credentials = credentials
        self._clock = clock
        self._budget = budget
        self._log = get_logger(component="query-client", address=target)
        self.is_made = False
        self._is_understood = False
        self._refusal: ConnectionRefused | None = None
        address = parse_address(target)
        key_pair = load_caller_keys(credentials, config, address)
        dealer = dealer_to(context, address, key_pair, PROXY_SOCKET_LIMITS)
        self._dealer: Dealer | None = dealer
        self._socket: ZMQSocket | None = dealer.socket
        self._readable = [(dealer.socket, _POLLIN)]
        self.descriptors: tuple[int, ...] = (
            int(dealer.socket.getsockopt(zmq.FD)),
            int(dealer.monitor.socket.getsockopt(zmq.FD)),
        )

    def close(self) -> None:
        """Close the socket.  Idempotent; what is asked of it later does nothing."""
        dealer = self._dealer
        if dealer is not None:
            dealer.close()
            # Freed here: a finalizer swallows what a handler of the main thread raises.
            self._dealer = self._socket = None
            self._readable.clear()

    def send(self, request: SendRequest) -> None:
        """Send now, or not at all: then the link has failed, and says so soon."""
        if self._socket is None:
            return
        frames = [encode(request.message)]
        if request.keys is not None:
            frames.append(encode_payload(request.keys) if request.keys else b"")
        send_now(self._socket, frames)

    def greet(self, hello: SayHello) -> NameServiceError | None:
        """Send a `Hello`; return why that cannot be done, or None."""
        try:
            token = self._credentials.read_token()
        except NameServiceError as error:
            return error
        if self._socket is not None:
            hello_frame = encode(Hello(request_id=hello.request_id, token=token))
            send_now(self._socket, [hello_frame])
        return None

    def receive(self, *, is_likely: bool = False) -> MessageCame | TimeWent | None:
        """
        Return the next message, or None if there is none.

        Frames that are no message are dropped: then it is `TIME_WENT`, so that
        deadlines are seen to, however many of them come.

        Args:
            is_likely: Whether there should be one.  Finding out costs 0.7 us (asking
                for ``EVENTS`` 1.4), a receive in vain 3.4 us.
        """
        socket = self._socket
        if socket is None:
            return None
        if not is_likely and not zmq.zmq_poll(self._readable, 0):
            return None
        try:
            # No `zmq.Frame`: what a handler raises while one is freed is lost.
            envelope = socket.recv(_NOBLOCK)
            payload = socket.recv(_NOBLOCK) if socket.getsockopt(_RCVMORE) else b""
            message = MessageCame(decode_to_client(envelope), payload, self.number)
        except zmq.Again:
            return None
        except RemoteProtocolError as error:
            self._warn(error)
            if error.reason == "wrong-version" and not self._is_understood:
                self._refusal = ConnectionRefused(error=error)
                self.is_made = False
            return TIME_WENT
        self._is_understood = True
        return message

    def watch(self) -> list[ConnectionMade | ConnectionFailed | ConnectionRefused]:
        """Return what became of the connection; after a failure close the link."""
        if self._refusal is not None:
            return [self._refusal]  # a proxy of another version never answers
        found: list[ConnectionMade | ConnectionFailed | ConnectionRefused] = []
        if self._dealer is None:
            return found
        for event in self._dealer.monitor.receive():
            match event:
                case HandshakeSucceeded():
                    self.is_made = True
                    found.append(ConnectionMade())
                    continue
                case HandshakeFailed(is_final=True):
                    error = handshake_error(event, target=self.target)
                    found.append(ConnectionRefused(error=error))
                case HandshakeFailed():
                    error = handshake_error(event, target=self.target)
                    found.append(ConnectionFailed(problem=error))
                case ConnectFailed() | ConnectionClosed():
                    found.append(ConnectionFailed())
                case _:
                    continue
            break
        return found

    def _warn(self, error: RemoteProtocolError) -> None:
        if self._budget.admits(error.reason, now_ns=self._clock.now_ns()):
            self._log.warning(
                "frame.dropped", reason=error.reason, detail=error.detail[:200]
            )
