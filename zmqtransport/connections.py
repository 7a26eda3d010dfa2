"""
What happens to connections: typed events, why a handshake failed, and how many at most.

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
*   **Blocking.**  libzmq's I/O thread *blocks* on a monitor that is not read: with the
    default queue, 1,102 unread connections stopped a server from accepting, and closing
    its socket never returned (measured).  Hence the queue of a `ConnectionMonitor` has
    no bound of its own; it grows by a few small events per connection.  For the same
    reason failures to accept are not asked for: without free descriptors libzmq tries
    again 925,000 times a second (measured), and reports each.
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

Bounding connections.  Unbinding a socket while there are too many is no way: libzmq
ends every connection that the listener accepted, too, and without an event (measured);
a `ConnectionMonitor` tells of each of them as closed, once the listener is.
So a `ConnectionLimiter` shuts down, by its descriptor, each connection that is accepted
above the limit; the peer sees it close in its handshake, and tries again later.
"""

from __future__ import annotations

import enum
import itertools
import os
import resource
import socket as stdlib_socket
import struct
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NewType, TypeAlias, final

import attrs
import zmq

from nameservice import AuthenticationError, RemoteProtocolError, get_logger
from zmqtransport.sockets import ZMQSocket, receive_now, translate_zmq_errors


if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


__all__ = [
    "ConnectFailed",
    "ConnectionAccepted",
    "ConnectionClosed",
    "ConnectionEvent",
    "ConnectionId",
    "ConnectionLimiter",
    "ConnectionMonitor",
    "ConnectionOpened",
    "HandshakeFailed",
    "HandshakeFailure",
    "HandshakeSucceeded",
    "accepted_last",
    "connection_count_possible",
    "connection_limit",
    "connection_of",
    "handshake_error",
]

ConnectionId = NewType("ConnectionId", int)
"""A connection of this process: its file descriptor, used again once it is closed."""

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
)
_DESCRIPTORS_KEPT_COUNT: Final = 128
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


def accepted_last(events: Iterable[ConnectionEvent]) -> set[ConnectionId]:
    """Return the connections of which *events* tells last that they were accepted."""
    accepted: set[ConnectionId] = set()
    for event in events:
        if isinstance(event, ConnectionAccepted):
            accepted.add(event.connection_id)
        elif isinstance(event, ConnectionClosed):
            accepted.discard(event.connection_id)
    return accepted


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


def connection_count_possible() -> int:
    """
    Return for how many connections this process may have file descriptors.

    Keep the limits of all servers of a process together at or below it: a process
    without free descriptors cannot open its files, and libzmq spins until there are
    some.
    """
    descriptor_count_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, descriptor_count_max - _DESCRIPTORS_KEPT_COUNT)


def connection_limit(
    configured: int, *bounds: tuple[int, str], log: FilteringBoundLogger
) -> int:
    """
    Return how many connections a port takes, and log it if they are too few.

    Args:
        configured: How many it should take.
        bounds: How many it can take, and why not more.
        log: Of the server.
    """
    possible, reason = min(bounds)
    if possible >= configured:
        return configured
    log.info(
        "connections.limited",
        connections_max=possible,
        connections_max_configured=configured,
        reason=reason,
    )
    return possible


@final
class ConnectionMonitor:
    """
    Reads what happens to the connections of one socket.

    Make it before the socket binds or connects, or early events are lost; close it
    before the socket.  Not thread-safe: it belongs to the thread of its socket.

    Attributes:
        socket: Readable when `receive` has something to return.
        listening_descriptor: Where a bound socket accepts connections, as far as
            `receive` has come; None while it does not.
    """

    def __init__(self, monitored: ZMQSocket) -> None:
        self.listening_descriptor: int | None = None
        self._accepted: set[ConnectionId] = set()
        self._monitored = monitored
        address = f"inproc://lodestar.monitor.{next(_monitor_numbers)}"
        with translate_zmq_errors("a connection monitor"):
            monitored.monitor(address, int(_EVENTS))
            self.socket: ZMQSocket = monitored.context.socket(zmq.PAIR)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.RCVHWM, 0)  # see the module docstring
            self.socket.connect(address)

    def receive(self, event_count_max: int = 1_000) -> list[ConnectionEvent]:
        """Return the events that wait, oldest first, without waiting for more."""
        events: list[ConnectionEvent] = []
        for _ in range(event_count_max):
            try:
                frames = receive_now(self.socket, frame_count_max=2)
            except zmq.Again:
                break
            events += self._take(*_EVENT.unpack(frames[0].bytes))
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
        """Stop reporting.  Idempotent."""
        if self.socket.closed:
            return
        if not self._monitored.closed:
            self._monitored.monitor(None, 0)
        self.socket.close()


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
        case _:  # of a listener; EVENT_MONITOR_STOPPED comes without being asked for
            return None


@final
class ConnectionLimiter:
    """
    Keeps the connections of a server's socket at or below a limit, and can end one.

    The newest goes: those who are connected are not disturbed by those who come.  The
    limit holds after each `observe`; between two of them more may be open for a moment,
    at most as many as the kernel accepts meanwhile.  Not thread-safe.

    Every peer that connects could fill all places and say nothing.  So a server may
    tell who `spoke`, under a key that it admits; then only those hold a place for good.
    Those that have not spoken yet have a quarter of the limit on top, and of them the
    oldest goes: a flood of them drives out itself, and who speaks at once has spoken
    before its turn comes.

    Attributes:
        connections_max: The limit; may be replaced at any time, and ends nothing.
        refused_count: How many connections were shut down.
    """

    def __init__(
        self, connections_max: int, *, port: int, is_told_who_spoke: bool = False
    ) -> None:
        """
        Start with no connection.

        Args:
            connections_max: At least 1.
            port: The port that the socket is bound to.
            is_told_who_spoke: Whether `spoke` will be called.
        """
        assert connections_max >= 1
        self._is_told_who_spoke = is_told_who_spoke
        self._silent: dict[ConnectionId, None] = {}  # the oldest first
        self.connections_max = connections_max
        self.refused_count = 0
        self._port = port
        self._open: set[ConnectionId] = set()
        self._is_full = False
        self._log = get_logger(component="connection-limiter", port=port)

    @property
    def connection_count(self) -> int:
        """Return how many connections are open, those just refused not counted."""
        return len(self._open) + len(self._silent)

    @property
    def silent_count(self) -> int:
        """Return how many of them have not spoken yet."""
        return len(self._silent)

    def spoke(self, connection_id: ConnectionId) -> None:
        """Record that somebody who is admitted has said something."""
        if connection_id not in self._silent:
            return
        del self._silent[connection_id]
        if len(self._open) < self.connections_max:
            self._open.add(connection_id)
        else:
            self._refuse({connection_id: None})

    def observe(self, events: Iterable[ConnectionEvent]) -> None:
        """
        Count *events*, then shut down what is too much.

        Give it all the events that wait: a connection that is over already should not
        be shut down, because its descriptor may belong to the next one.
        """
        excess: dict[ConnectionId, None] = {}
        for event in events:
            match event:
                case ConnectionAccepted(connection_id=connection_id):
                    excess.pop(connection_id, None)
                    self._open.discard(connection_id)
                    self._silent.pop(connection_id, None)
                    if len(self._open) >= self.connections_max:
                        excess[connection_id] = None
                    elif self._is_told_who_spoke:
                        self._silent[connection_id] = None
                        if self._is_too_silent():
                            oldest = next(iter(self._silent))
                            del self._silent[oldest]
                            excess[oldest] = None
                    else:
                        self._open.add(connection_id)
                case ConnectionClosed(connection_id=connection_id):
                    excess.pop(connection_id, None)
                    self._open.discard(connection_id)
                    self._silent.pop(connection_id, None)
                case _:
                    pass
        self._refuse(excess)

    def _is_too_silent(self) -> bool:
        room = self.connections_max - len(self._open)
        return len(self._silent) > max(room, self.connections_max // 4, 1)

    def _refuse(self, excess: Collection[ConnectionId]) -> None:
        for connection_id in excess:
            self.refused_count += 1
            self.disconnect(connection_id)
        self._tell(len(excess))

    def _tell(self, excess_count: int) -> None:
        """Log when the limit begins and ceases to bite, not each refusal."""
        if excess_count and not self._is_full:
            self._is_full = True
            self._log.warning(
                "connections.refused", connections_max=self.connections_max
            )
        elif self._is_full and len(self._open) < self.connections_max:
            self._is_full = False
            self._log.info(
                "connections.admitted_again", refused_count=self.refused_count
            )

    def disconnect(self, connection_id: ConnectionId) -> None:
        """
        End a connection from outside libzmq, which sees its peer gone and closes it.

        `ConnectionClosed` follows.  The descriptor is libzmq's: if it was closed a
        moment ago it may be another connection of the same port by now, whose client
        then connects once more.  It can be nothing else: the port is checked on a
        duplicate that stays the same.
        """
        try:
            copy = os.dup(connection_id)
        except OSError:
            return  # closed meanwhile
        try:
            duplicate = stdlib_socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # the number belongs to something else by now
            return
        with duplicate:
            try:
                if duplicate.getsockname()[1] == self._port:
                    duplicate.shutdown(stdlib_socket.SHUT_RDWR)
            except (OSError, IndexError):
                return  # closed by the peer meanwhile, or of a family without ports
