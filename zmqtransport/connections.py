"""
What happens to connections: typed events, and why a handshake failed.

Theory of operation.  Every ZeroMQ socket can report what happens to its connections on
an ``inproc`` socket; a `ConnectionMonitor` reads those reports as typed events.  On a
server a connection is known by its file descriptor: events carry it, and so does every
frame (`connection_of`), which is how a server learns that the connection of a session
closed, 1 to 2 ms after the death of the process.  What is easy to get wrong:

*   **Order.**  Messages and events come over different queues.  All that a connection
    brought is in the socket's queue before its `ConnectionClosed` is in the monitor's.
    So take the events first, then drain the socket (`PollLoop.drain`), then act on the
    events: otherwise a heartbeat that came before the end looks newer than it.
*   **Reuse.**  The system gives the number of a closed connection to the next one.  A
    `ConnectionAccepted` says that whatever had that number before is over.
*   **Blocking.**  libzmq's I/O thread *blocks* on a monitor whose queue is full.  A
    client's queue therefore has no bound; it grows by a few small events.  A server's
    has one, since that thread accepts 50,000 connections a second (measured), each of
    which takes memory, and the server hears of some thousands: what is not read holds
    it back, and the rest waits in the kernel.  Its bound is libzmq's own, 1,000 events.
    It must be read to its end: a monitor is not closed before its socket, which waits
    for a lock that the blocked thread holds, and is read until the context ends.
    Failures to accept are not asked for: without free descriptors libzmq tries again
    925,000 times a second (measured), and reports each.
*   **Finality.**  After `HandshakeFailed` with *is_final* libzmq tries no more: one
    that wants to try again (the allow-list may have changed) opens a new socket.  The
    same after a protocol error, such as an oversized frame; it is told as
    `ConnectionClosed` without the `ConnectFailed` that otherwise follows at once.  So a
    client that hears of no new attempt within a few reconnect intervals opens a new
    socket, too.
*   **Strangers.**  A bare NULL socket takes any bytes for ZMTP 1.0, which has no
    handshake to fail and whose frames do not know their connection: an HTTP request
    arrives as messages.  With ``secure_server`` (for servers without CURVE, too) such
    peers are turned away.
"""

from __future__ import annotations

import enum
import itertools
import struct
import time
from typing import Final, NewType, TypeAlias, final

import attrs
import zmq

from nameservice import AuthenticationError, RemoteProtocolError
from zmqtransport.contexts import end_after
from zmqtransport.sockets import ZMQSocket, translate_zmq_errors


__all__ = [
    "ConnectFailed",
    "ConnectionAccepted",
    "ConnectionClosed",
    "ConnectionEvent",
    "ConnectionId",
    "ConnectionMonitor",
    "ConnectionOpened",
    "HandshakeFailed",
    "HandshakeFailure",
    "HandshakeSucceeded",
    "connection_of",
    "handshake_error",
]

ConnectionId = NewType("ConnectionId", int)
"""A connection of this process: its file descriptor, used again once it is closed."""

_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENT: Final = struct.Struct("=HI")
_EVENTS: Final = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_CLOSED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_MONITOR_STOPPED
)
# libzmq ends a socket within milliseconds after its linger time; a machine may be busy.
_END_NS: Final = 10_000_000_000
_END_POLL_MS: Final = 5
_monitor_numbers: Final = itertools.count(1)


@final
class HandshakeFailure(enum.Enum):
    """Why a connection was made, and came to nothing."""

    REFUSED = "refused"
    """The server does not admit this client's key."""

    SECURITY_MISMATCH = "security-mismatch"
    """One side uses CURVE, the other does not."""

    PROTOCOL = "protocol"
    """What came was not understood."""

    CLOSED = "closed"
    """
    The other side closed without a word.

    So does a server that the client has the wrong public key of, each time; one with
    too many connections; one that is going down; at times one that uses CURVE when the
    client does not, or the reverse; a proxy without a server behind it; and whatever
    does not speak ZeroMQ.
    """


@final
@attrs.frozen(kw_only=True)
class ConnectionAccepted:
    """A server's socket has a new connection, whose handshake is still to come."""

    connection_id: ConnectionId


@final
@attrs.frozen(kw_only=True)
class ConnectionOpened:
    """A client's socket is connected; the handshake is still to come."""

    connection_id: ConnectionId


@final
@attrs.frozen(kw_only=True)
class ConnectFailed:
    """A client's socket is not connected; it tries again after *wait_ms*."""

    wait_ms: int


@final
@attrs.frozen(kw_only=True)
class HandshakeSucceeded:
    """Messages can flow over a connection; libzmq does not say which."""


@final
@attrs.frozen(kw_only=True)
class HandshakeFailed:
    """
    A connection came to nothing; libzmq does not say which.

    Attributes:
        failure: Why, as far as this side can tell.
        code: ZeroMQ's own: a ZAP status, a ZMTP error, or a system error.
    """

    failure: HandshakeFailure
    code: int

    @property
    def is_final(self) -> bool:
        """Return whether a client's socket has given up and tries no more."""
        return self.failure is not HandshakeFailure.CLOSED


@final
@attrs.frozen(kw_only=True)
class ConnectionClosed:
    """A connection is over; whether the process at its other end died is not said."""

    connection_id: ConnectionId


ConnectionEvent: TypeAlias = (
    ConnectFailed
    | ConnectionAccepted
    | ConnectionClosed
    | ConnectionOpened
    | HandshakeFailed
    | HandshakeSucceeded
)

_REASONS: Final = {
    HandshakeFailure.REFUSED: (
        "the server does not list this client's key: have its public key added to the "
        "server's allow-list, or name another key"
    ),
    HandshakeFailure.SECURITY_MISMATCH: (
        "one side uses CURVE and the other does not: name the key files "
        "(curve_public_key_file, curve_secret_key_file, curve_server_key_file) if the "
        "server has keys, or leave them out if it has none"
    ),
    HandshakeFailure.PROTOCOL: "what answers there does not speak this protocol",
    HandshakeFailure.CLOSED: (
        "it closes each connection in the handshake: the server's public key named "
        "here is not its own (put its present one into that key file), one side uses "
        "CURVE and the other does not, or it has too many connections"
    ),
}


def handshake_error(event: HandshakeFailed, *, target: str) -> AuthenticationError:
    """
    Return the error that tells a user of *target* about *event*.

    If the event is not final, raise it only when the connect timeout is over and
    nothing better was seen: until then the next attempt may succeed.
    """
    return AuthenticationError(target, _REASONS[event.failure])


def connection_of(frame: zmq.Frame) -> ConnectionId:
    """
    Return the connection that *frame*, any frame of a message, came over.

    Raises:
        RemoteProtocolError: If the peer speaks ZMTP 1.0, which tells nothing about it;
            it does not get as far where ``secure_server`` was called.
    """
    try:
        return ConnectionId(int(frame.get(zmq.SRCFD)))
    except zmq.ZMQError as exc:
        raise RemoteProtocolError(
            "no-handshake", "the peer speaks a ZMTP without a handshake"
        ) from exc


@final
class ConnectionMonitor:
    """
    Reads what happens to the connections of one socket.

    Make it before the socket binds or connects, or early events are lost.  Not
    thread-safe: it belongs to the thread of its socket.

    Args:
        monitored: The socket.  Close it after the monitor.
        holds_back: Whether the socket accepts nothing more while some thousand events
            are not read.

    Attributes:
        socket: Readable when `receive` has something to return.
        listening_descriptor: Where a bound socket accepts connections, as far as
            `receive` has come; None while it does not.
    """

    def __init__(self, monitored: ZMQSocket, *, holds_back: bool = False) -> None:
        self.listening_descriptor: int | None = None
        self._accepted: set[ConnectionId] = set()
        self._monitored = monitored
        self._holds_back = holds_back
        self._is_stopped = False
        self._end_ns: int | None = None
        address = f"inproc://lodestar.monitor.{next(_monitor_numbers)}"
        with translate_zmq_errors("a connection monitor"):
            # First: who monitors without a reader could not be closed any more.
            self.socket: ZMQSocket = monitored.context.socket(zmq.PAIR)
            try:
                self.socket.setsockopt(zmq.LINGER, 0)
                # See the module docstring; libzmq adds a thousand to what we allow.
                self.socket.setsockopt(zmq.RCVHWM, 1 if holds_back else 0)
                monitored.monitor(address, int(_EVENTS))
                self.socket.connect(address)
            except BaseException:
                self.socket.close()
                raise

    def receive(self, event_count_max: int = 2_000) -> list[ConnectionEvent]:
        """
        Return the events that wait, oldest first, without waiting for more.

        Those are all, unless told otherwise, where the socket is held back.
        """
        events: list[ConnectionEvent] = []
        receive = self.socket.recv  # no `zmq.Frame`: see `queryablestate.client.link`
        for _ in range(event_count_max):
            try:
                report = receive(_NOBLOCK)
            except zmq.Again:
                break
            receive(_NOBLOCK)  # of which address it is
            events += self._take(*_EVENT.unpack(report))
        return events

    def _take(self, number: int, value: int) -> list[ConnectionEvent]:
        """Return what one report of libzmq says."""
        if number == zmq.EVENT_LISTENING:
            self.listening_descriptor = value
        elif number == zmq.EVENT_CLOSED and value == self.listening_descriptor:
            # With the listener go its connections, of which libzmq says nothing.
            self.listening_descriptor = None
            ended, self._accepted = sorted(self._accepted), set()
            return [ConnectionClosed(connection_id=number) for number in ended]
        elif number == zmq.EVENT_MONITOR_STOPPED:  # the last one
            self._is_stopped = True
        event = _parse_event(number, value)
        match event:
            case None:
                return []
            case ConnectionAccepted(connection_id=connection_id):
                self._accepted.add(connection_id)
            case ConnectionClosed(connection_id=connection_id):
                self._accepted.discard(connection_id)
            case _:
                pass
        return [event]

    def close(self) -> None:
        """
        Stop reporting.  Idempotent.

        One that holds back closes its socket, and goes on being read by who ends the
        context.
        """
        if self.socket.closed or self._end_ns is not None:
            return
        if not self._holds_back:
            if not self._monitored.closed:
                self._monitored.monitor(None, 0)
            self.socket.close()
            return
        self._monitored.close()
        self._end_ns = time.monotonic_ns() + _END_NS
        end_after(self._monitored.context, self._is_over)

    def _is_over(self) -> bool:
        assert self._end_ns is not None
        if not self._is_stopped and self.socket.poll(_END_POLL_MS):
            self.receive()
        if not self._is_stopped and time.monotonic_ns() < self._end_ns:
            return False
        self.socket.close()
        return True


def _parse_event(number: int, value: int) -> ConnectionEvent | None:
    """Return what libzmq reports of a connection, None if it is none of ours."""
    match number:
        case zmq.EVENT_ACCEPTED:
            return ConnectionAccepted(connection_id=ConnectionId(value))
        case zmq.EVENT_CONNECTED:
            return ConnectionOpened(connection_id=ConnectionId(value))
        case zmq.EVENT_CONNECT_RETRIED:
            return ConnectFailed(wait_ms=value)
        case zmq.EVENT_DISCONNECTED:
            return ConnectionClosed(connection_id=ConnectionId(value))
        case zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return HandshakeSucceeded()
        case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            return HandshakeFailed(failure=HandshakeFailure.CLOSED, code=value)
        case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return HandshakeFailed(failure=HandshakeFailure.REFUSED, code=value)
        case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            is_mismatch = value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            return HandshakeFailed(
                failure=HandshakeFailure.SECURITY_MISMATCH
                if is_mismatch
                else HandshakeFailure.PROTOCOL,
                code=value,
            )
        case _:  # of a listener, or of the monitor
            return None
