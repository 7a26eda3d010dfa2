"""
ZeroMQ sockets with every limit explicit, and the border where its errors end.

libzmq's own defaults wait for ever, queue for ever and take frames of any size.
`open_socket` sets each limit from a `SocketLimits`, whose defaults say what we chose.
`translate_zmq_errors` is the one table by which ZeroMQ's errors become ours.

What libzmq cannot limit: queues count whole messages, so the frames of a message that
never ends are kept without bound (measured: 60 MB sent that way cost 107 MB).  A server
compares what the kernel says was read (`zmqtransport.tcp_progress`) with what it got.
"""

from __future__ import annotations

import enum
import errno
import socket as stdlib_socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, final

import attrs
import zmq

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NameServiceError,
)
from nameservice.clock import MS_PER_SECOND
from zmqtransport.curve import CurveKeyPair
from zmqtransport.endpoints import Endpoint, parse_endpoint


__all__ = [
    "ZAP_DOMAIN",
    "ZAP_DOMAIN_OPEN",
    "ZAP_DOMAIN_PUBLISHING",
    "SendOutcome",
    "SocketLimits",
    "ZMQContext",
    "ZMQSocket",
    "bind_socket",
    "connect_socket",
    "is_readable",
    "open_socket",
    "receive_now",
    "secure_client",
    "secure_server",
    "send_now",
    "translate_zmq_errors",
]

ZMQSocket: TypeAlias = zmq.Socket[bytes]
ZMQContext: TypeAlias = zmq.Context[zmq.Socket[bytes]]

ZAP_DOMAIN: Final = "lodestar"
"""The domain of sockets with CURVE; those on the allow-list come in."""

ZAP_DOMAIN_PUBLISHING: Final = "lodestar-publishing"
"""The domain of a publishing port with CURVE; those that may observe all come in."""

ZAP_DOMAIN_OPEN: Final = "lodestar-open"
"""The domain of sockets without CURVE; everybody who can shake hands comes in."""

# What `zmq.Socket.send` comes to without options of draft sockets, in half the time.
_send: Final = zmq.backend.Socket.send
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)

_INT_MAX: Final = 2**31 - 1

_CONFIGURATION_FAULTS: Final = {
    errno.EADDRINUSE: "is in use: choose another port, or end what holds it",
    errno.EADDRNOTAVAIL: "is no address of this machine: choose one that is",
    errno.ENODEV: "is no address of this machine: choose one that is",
    errno.EACCES: "is not allowed to this user: choose a port above 1023",
    errno.EINVAL: "is malformed: write tcp://HOST:PORT",
    errno.EPROTONOSUPPORT: "has an unknown protocol: write tcp://HOST:PORT",
    zmq.ENOCOMPATPROTO: "has an unsuitable protocol: write tcp://HOST:PORT",
    errno.EAFNOSUPPORT: "has an address family that this machine does not have",
    errno.EMFILE: "needs more sockets than one process may have: raise ulimit -n",
    errno.ENFILE: "needs more open files than this machine may have",
    zmq.EMTHREAD: "needs an I/O thread, and the context has none",
}

_LOCAL_FAULTS: Final = {
    zmq.ETERM: "was used after its context was closed",
    zmq.ENOTSOCK: "was used after it was closed",
    zmq.EFSM: "was used in a state that does not allow this operation",
    errno.ENOTSUP: "does not support this operation",
}


@final
class SendOutcome(enum.Enum):
    """What became of a message that was to be sent at once."""

    SENT = "sent"
    """ZeroMQ has it; that says nothing about the peer."""

    UNROUTABLE = "unroutable"
    """No connection has that routing id (any more)."""

    FULL = "full"
    """The peer's queue is full, or no peer is connected."""


def _at_least(value_min: int, *, default: int) -> int:
    """Return an attribute of at least *value_min* that ZeroMQ can hold."""

    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if not value_min <= value <= _INT_MAX:
            raise ConfigurationError(
                f"{attribute.name} must be {value_min} to {_INT_MAX}, not {value}"
            )

    field: int = attrs.field(default=default, validator=check)
    return field


# After that many probes without an answer the peer's system is taken for gone.
_PROBE_COUNT: Final = 3


@final
@attrs.frozen(kw_only=True)
class SocketLimits:
    """
    Every limit of a socket; durations in milliseconds, which is ZeroMQ's own unit.

    Attributes:
        linger_ms: How long closing waits for what is still to be sent.
        send_queue_count_max: Messages queued per peer (or topic subscriber) to go out.
        receive_queue_count_max: Messages queued per peer that came in.
        frame_size_bytes_max: A peer that sends a larger frame is disconnected.
        kernel_buffer_bytes: What the kernel may hold of a connection in each direction
            (it doubles this for its own needs).  One thread of libzmq reads and writes
            for all connections, as much as the kernel has or takes: the system's own
            megabytes keep the others waiting for milliseconds (rule B2; see
            docs/decisions/0037-little-in-the-kernel.md).
        backlog_count_max: Connections that the kernel holds until they are accepted;
            above ZeroMQ's 100, because after a restart all clients come at once.
        handshake_timeout_ms: A peer that has not finished its handshake by then is
            disconnected: it would hold a place for nothing.
        silence_timeout_ms: How long the peer's system may leave unacknowledged what
            was sent, data or a probe of TCP, before the connection ends.  A paused
            process does not end it while its system takes what is sent, which is what
            *kernel_buffer_bytes* of the peer have room for.  There are no
            pings of ZMTP: a connection that fails while its input is stopped, because
            a queue is full or its socket is closing, makes the next one abort the
            whole process (libzmq 4.3.5; its issues 3937, 4364, 4767).
        connect_timeout_ms: How long one attempt of TCP to connect may take.
        reconnect_interval_ms: Pause between attempts to connect.
        reconnect_interval_ms_max: Up to where the pause doubles; 0 keeps it constant.
        is_immediate: Queue only for peers that are connected.  Without it, what a
            client sent to a server that was away arrives, stale, when it is back.
            With it, what the client has not read when the connection ends is lost.
    """

    linger_ms: int = _at_least(0, default=0)
    send_queue_count_max: int = _at_least(1, default=1_000)
    receive_queue_count_max: int = _at_least(1, default=1_000)
    frame_size_bytes_max: int = _at_least(64, default=2 * 1024 * 1024)
    kernel_buffer_bytes: int = _at_least(1, default=512 * 1024)
    backlog_count_max: int = _at_least(1, default=1_024)
    handshake_timeout_ms: int = _at_least(1, default=5_000)
    silence_timeout_ms: int = _at_least(1, default=60_000)
    connect_timeout_ms: int = _at_least(1, default=2_000)
    reconnect_interval_ms: int = _at_least(1, default=100)
    reconnect_interval_ms_max: int = _at_least(0, default=0)
    is_immediate: bool = True

    def __attrs_post_init__(self) -> None:
        if 0 < self.reconnect_interval_ms_max < self.reconnect_interval_ms:
            raise ConfigurationError(
                f"reconnect_interval_ms_max ({self.reconnect_interval_ms_max}) must be "
                f"0 or at least reconnect_interval_ms ({self.reconnect_interval_ms})"
            )


def open_socket(
    context: ZMQContext, socket_type: int, limits: SocketLimits
) -> ZMQSocket:
    """
    Return a new socket of *context* under *limits*.

    A ``ROUTER`` is mandatory: it reports a message that it cannot route instead of
    dropping it.  Such a socket blocks when a peer's queue is full, unless it sends with
    `send_now`, as it must.

    Raises:
        ConfigurationError: If the process may have no more sockets.
        LocalProtocolError: If *context* is closed.
    """
    with translate_zmq_errors("a new socket"):
        socket = context.socket(socket_type)
    probe_interval_seconds = max(
        1, limits.silence_timeout_ms // (_PROBE_COUNT + 1) // MS_PER_SECOND
    )
    for option, value in (
        (zmq.LINGER, limits.linger_ms),
        (zmq.SNDHWM, limits.send_queue_count_max),
        (zmq.RCVHWM, limits.receive_queue_count_max),
        (zmq.MAXMSGSIZE, limits.frame_size_bytes_max),
        (zmq.SNDBUF, limits.kernel_buffer_bytes),
        (zmq.RCVBUF, limits.kernel_buffer_bytes),
        (zmq.BACKLOG, limits.backlog_count_max),
        (zmq.HANDSHAKE_IVL, limits.handshake_timeout_ms),
        (zmq.TCP_MAXRT, limits.silence_timeout_ms),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, probe_interval_seconds),
        (zmq.TCP_KEEPALIVE_INTVL, probe_interval_seconds),
        (zmq.TCP_KEEPALIVE_CNT, _PROBE_COUNT),
        (zmq.CONNECT_TIMEOUT, limits.connect_timeout_ms),
        (zmq.RECONNECT_IVL, limits.reconnect_interval_ms),
        (zmq.RECONNECT_IVL_MAX, limits.reconnect_interval_ms_max),
        (zmq.IMMEDIATE, int(limits.is_immediate)),
    ):
        socket.setsockopt(option, value)
    if socket_type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return socket


def secure_server(
    socket: ZMQSocket,
    key_pair: CurveKeyPair | None,
    *,
    domain_secured: str = ZAP_DOMAIN,
) -> None:
    """
    Make *socket*, not bound yet, admit only whom its context's authenticator admits.

    Without an `Authenticator` in its context it admits no peer.

    Args:
        socket: A socket that is to be bound.
        key_pair: The server's keys; None for a server without CURVE.  That one asks
            its authenticator, too: libzmq then turns away whatever speaks a ZMTP
            without a handshake, for which it would otherwise take any bytes.
        domain_secured: What the authenticator hears with keys.
    """
    domain = ZAP_DOMAIN_OPEN if key_pair is None else domain_secured
    socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode("ascii"))
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    if key_pair is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, key_pair.public_key.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SECRETKEY, key_pair.secret_key.encode("ascii"))


def secure_client(
    socket: ZMQSocket, key_pair: CurveKeyPair, *, server_public_key: str
) -> None:
    """Make *socket*, not connected yet, speak to the holder of that server key only."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, server_public_key.encode("ascii"))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, key_pair.public_key.encode("ascii"))
    socket.setsockopt(zmq.CURVE_SECRETKEY, key_pair.secret_key.encode("ascii"))


def bind_socket(socket: ZMQSocket, endpoint: Endpoint) -> Endpoint:
    """
    Bind *socket*, and return where: with the real port if *endpoint* has port 0.

    Host names are resolved here: libzmq binds to addresses and interfaces only.

    Raises:
        ConfigurationError: Saying why not, and what to choose instead.
    """
    with translate_zmq_errors(endpoint):
        address = _resolve(endpoint)
        if address.is_ipv6:
            socket.setsockopt(zmq.IPV6, 1)
        socket.bind(str(address))
        return parse_endpoint(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def connect_socket(socket: ZMQSocket, endpoint: Endpoint) -> None:
    """
    Have *socket* connect to *endpoint*, now and again whenever it is not connected.

    Returns before anything has been tried: what happens is told by a
    `ConnectionMonitor`.

    Raises:
        ConfigurationError: If no socket can connect to *endpoint*.
    """
    endpoint.check_connectable()
    with translate_zmq_errors(endpoint):
        if endpoint.address is None or endpoint.is_ipv6:
            socket.setsockopt(zmq.IPV6, 1)  # a name may have either kind of address
        socket.connect(str(endpoint))


def receive_now(socket: ZMQSocket, *, frame_count_max: int) -> list[zmq.Frame]:
    """
    Return the next message of *socket*, without waiting.

    Frames, not bytes: they know their connection (`connection_of`) and their sender
    (`Authenticator.principal_of`).  Measured: 2.1 us for three small frames, where
    ``recv_multipart`` takes 4.6 us (it asks the socket after each frame).

    Args:
        socket: A socket of this thread.
        frame_count_max: A longer message is cut to one frame more than that, enough to
            see that it is too long.

    Raises:
        zmq.Again: If there is none; the only exception of ZeroMQ that leaves this
            package, to be caught by the loop that drains the socket.
    """
    frame = socket.recv(_NOBLOCK, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(_NOBLOCK, copy=False)
        if len(frames) <= frame_count_max:
            frames.append(frame)
    return frames


def is_readable(socket: ZMQSocket) -> bool:
    """Return whether a message of *socket*, one of this thread, waits."""
    # Measured: 1.6 us, where pyzmq takes 2.2 us to look an option up.
    return bool(zmq.zmq_poll([(socket, _POLLIN)], 0))


def send_now(socket: ZMQSocket, frames: Sequence[bytes | zmq.Frame]) -> SendOutcome:
    """
    Send one message without waiting, and return what became of it.

    Args:
        socket: A socket of this thread.
        frames: At least one; for a ``ROUTER`` the first is the routing id.

    Raises:
        LocalProtocolError: If the socket is closed.
    """
    outcome = SendOutcome.SENT
    index_last = len(frames) - 1
    for index, frame in enumerate(frames):
        try:
            _send(socket, frame, _NOBLOCK if index == index_last else _NOBLOCK_MORE)
        except zmq.Again:
            outcome = SendOutcome.FULL
            if index == 0:
                break
            # The connection closed in mid-message.  libzmq drops the rest, but has to
            # be given it: otherwise it would drop the next message in its place.
        except zmq.ZMQError as exc:
            if exc.errno == errno.EHOSTUNREACH:
                return SendOutcome.UNROUTABLE
            raise _translated(exc, "the socket") from exc
    return outcome


@contextmanager
def translate_zmq_errors(what: object) -> Iterator[None]:
    """
    Raise our errors instead of ZeroMQ's inside a ``with`` block.

    Args:
        what: How the error names what was tried, e.g. an endpoint.

    Raises:
        ConfigurationError: What was asked for cannot be had here.
        LocalProtocolError: The socket or its context is closed, or cannot do this.
        NameServiceError: Anything else; it carries ZeroMQ's own words.
    """
    try:
        yield
    except zmq.ZMQError as exc:
        raise _translated(exc, what) from exc


def _translated(error: zmq.ZMQError, what: object) -> NameServiceError:
    """Return our error for ZeroMQ's *error*: the table of this package."""
    number = error.errno or 0
    if number in _CONFIGURATION_FAULTS:
        return ConfigurationError(f"{what} {_CONFIGURATION_FAULTS[number]}")
    if number in _LOCAL_FAULTS:
        return LocalProtocolError(f"{what} {_LOCAL_FAULTS[number]}")
    return NameServiceError(f"{what} failed: {error}")


def _resolve(endpoint: Endpoint) -> Endpoint:
    """Return *endpoint* with an address in place of a host name."""
    if endpoint.is_wildcard or endpoint.address is not None:
        return endpoint
    try:
        found = stdlib_socket.getaddrinfo(
            endpoint.host, endpoint.port, type=stdlib_socket.SOCK_STREAM
        )
    except OSError as exc:
        raise ConfigurationError(
            f"host {endpoint.host!r} of {endpoint} is not known here: "
            "write an address of this machine"
        ) from exc
    # An IPv4 address first: it is what a client's URL with the same name tries first.
    hosts = sorted((family, str(address[0])) for family, *_, address in found)
    return Endpoint(host=hosts[0][1], port=endpoint.port)
