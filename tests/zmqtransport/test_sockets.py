from __future__ import annotations

import errno
import socket as stdlib_socket
import time

import pytest
import zmq

from haservices.testing.reserved_port import ReservedPort
from nameservice import ConfigurationError, LocalProtocolError, NameServiceError
from zmqtransport.endpoints import Endpoint, parse_endpoint
from zmqtransport.sockets import (
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    receive_now,
    send_now,
    translate_zmq_errors,
)


LOOPBACK = parse_endpoint("tcp://127.0.0.1:0")
WAIT_MS = 20_000


def receive(socket: ZMQSocket, *, frame_count_max: int = 8) -> list[bytes]:
    """Wait for a message of *socket*."""
    assert socket.poll(WAIT_MS)
    frames = receive_now(socket, frame_count_max=frame_count_max)
    return [frame.bytes for frame in frames]


class TestSocketLimits:
    @pytest.mark.parametrize(
        "setting",
        [
            {"linger_ms": -1},
            {"send_queue_count_max": 0},
            {"receive_queue_count_max": 0},
            {"frame_size_bytes_max": -1},
            {"kernel_buffer_bytes": 0},
            {"backlog_count_max": 0},
            {"handshake_timeout_ms": 0},
            {"silence_timeout_ms": 0},
            {"connect_timeout_ms": 0},
            {"reconnect_interval_ms": 0},
            {"reconnect_interval_ms_max": -1},
            {"silence_timeout_ms": 2**31},
        ],
    )
    def test_nothing_is_without_a_limit(self, setting: dict[str, int]) -> None:
        """ZeroMQ's "for ever" and "any number" cannot be configured."""
        with pytest.raises(ConfigurationError, match=next(iter(setting))):
            SocketLimits(**setting)  # type: ignore[arg-type]  # one field each

    def test_relations_hold(self) -> None:
        """Limits that contradict each other are refused together."""
        with pytest.raises(ConfigurationError, match="reconnect_interval_ms_max"):
            SocketLimits(reconnect_interval_ms=100, reconnect_interval_ms_max=99)
        SocketLimits(reconnect_interval_ms=100, reconnect_interval_ms_max=100)


@pytest.mark.shells
class TestOpenSocket:
    def test_every_limit_reaches_the_socket(self, context: ZMQContext) -> None:
        """No limit is left to ZeroMQ's own defaults."""
        socket = open_socket(
            context,
            zmq.ROUTER,
            SocketLimits(
                linger_ms=11,
                send_queue_count_max=12,
                receive_queue_count_max=13,
                frame_size_bytes_max=1_400,
                kernel_buffer_bytes=14_500,
                backlog_count_max=15,
                handshake_timeout_ms=16,
                silence_timeout_ms=9_000,
                connect_timeout_ms=19,
                reconnect_interval_ms=20,
                reconnect_interval_ms_max=21,
                is_immediate=False,
            ),
        )
        assert [
            socket.getsockopt(option)
            for option in (
                zmq.LINGER,
                zmq.SNDHWM,
                zmq.RCVHWM,
                zmq.MAXMSGSIZE,
                zmq.SNDBUF,
                zmq.RCVBUF,
                zmq.BACKLOG,
                zmq.HANDSHAKE_IVL,
                zmq.TCP_MAXRT,
                zmq.TCP_KEEPALIVE,
                zmq.TCP_KEEPALIVE_IDLE,
                zmq.TCP_KEEPALIVE_INTVL,
                zmq.TCP_KEEPALIVE_CNT,
                zmq.HEARTBEAT_IVL,
                zmq.CONNECT_TIMEOUT,
                zmq.RECONNECT_IVL,
                zmq.RECONNECT_IVL_MAX,
                zmq.IMMEDIATE,
            )
        ] == [
            11,
            12,
            13,
            1_400,
            14_500,
            14_500,
            15,
            16,
            9_000,
            1,
            2,
            2,
            3,
            0,
            19,
            20,
            21,
            0,
        ]

    def test_a_closed_context_is_our_callers_mistake(self) -> None:
        """ZeroMQ's exceptions do not escape (rule L4)."""
        context: ZMQContext = zmq.Context()
        context.term()
        with pytest.raises(LocalProtocolError):
            open_socket(context, zmq.ROUTER, SocketLimits())

    def test_too_many_sockets_are_named(self, context: ZMQContext) -> None:
        """A process at its limit is told what limit that is."""
        context.set(zmq.MAX_SOCKETS, 1)
        open_socket(context, zmq.DEALER, SocketLimits())
        with pytest.raises(ConfigurationError, match="raise ulimit -n"):
            open_socket(context, zmq.DEALER, SocketLimits())


@pytest.mark.shells
class TestBind:
    @pytest.mark.parametrize(
        "text", ["tcp://127.0.0.1:0", "tcp://localhost:0", "tcp://[::1]:0"]
    )
    def test_returns_where_it_is_bound(
        self, context: ZMQContext, client_context: ZMQContext, text: str
    ) -> None:
        """Port 0 becomes the real one, names become addresses; clients reach it."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        endpoint = bind_socket(server, parse_endpoint(text))
        assert endpoint.port > 0
        assert endpoint.is_loopback
        client = open_socket(client_context, zmq.DEALER, SocketLimits())
        connect_socket(client, endpoint)
        assert client.poll(WAIT_MS, zmq.POLLOUT)
        client.send(b"hello")
        assert receive(server)[1:] == [b"hello"]

    def test_a_port_in_use_is_named(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """The second server on a port learns what to change."""
        first = open_socket(context, zmq.ROUTER, SocketLimits())
        endpoint = bind_socket(first, LOOPBACK)
        second = open_socket(client_context, zmq.ROUTER, SocketLimits())
        with pytest.raises(ConfigurationError, match="in use") as caught:
            bind_socket(second, endpoint)
        assert str(endpoint) in str(caught.value)

    @pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
    def test_a_foreign_address_is_named(self, context: ZMQContext, host: str) -> None:
        """An address of another machine, or of none, is a `ConfigurationError`."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        with pytest.raises(ConfigurationError, match=host):
            bind_socket(server, Endpoint(host=host, port=0))

    def test_nobody_connects_to_port_0(self, context: ZMQContext) -> None:
        """What cannot be connected to is refused at once, not tried for ever."""
        client = open_socket(context, zmq.DEALER, SocketLimits())
        with pytest.raises(ConfigurationError, match="name the port"):
            connect_socket(client, LOOPBACK)


@pytest.mark.shells
class TestReceiveAndSend:
    def test_a_message_arrives_frame_by_frame(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """Frames keep order and bounds; an empty queue says so."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        client = open_socket(client_context, zmq.DEALER, SocketLimits())
        connect_socket(client, bind_socket(server, LOOPBACK))
        with pytest.raises(zmq.Again):
            receive_now(server, frame_count_max=8)
        assert client.poll(WAIT_MS, zmq.POLLOUT)
        assert send_now(client, [b"a", b"", b"c"]) is SendOutcome.SENT
        routing_id, *rest = receive(server)
        assert rest == [b"a", b"", b"c"]
        assert send_now(server, [routing_id, b"answer"]) is SendOutcome.SENT
        assert receive(client) == [b"answer"]

    @pytest.mark.proves("N3")
    def test_a_message_of_too_many_frames_is_cut(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """Rule N3: the next message is not affected by what was cut off."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        client = open_socket(client_context, zmq.DEALER, SocketLimits())
        connect_socket(client, bind_socket(server, LOOPBACK))
        assert client.poll(WAIT_MS, zmq.POLLOUT)
        send_now(client, [b"x"] * 100)
        send_now(client, [b"next"])
        assert len(receive(server, frame_count_max=3)) == 4
        assert receive(server)[1:] == [b"next"]

    def test_an_unknown_peer_is_unroutable(self, context: ZMQContext) -> None:
        """A reply to a peer that is gone is reported instead of dropped in silence."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        bind_socket(server, LOOPBACK)
        outcome = send_now(server, [b"\x00\x01\x02\x03\x04", b"header", b"payload"])
        assert outcome is SendOutcome.UNROUTABLE

    def test_nobody_is_sent_to_before_a_connection_exists(
        self, context: ZMQContext, reserved: ReservedPort
    ) -> None:
        """A client queues nothing that would reach a server later, and stale."""
        client = open_socket(context, zmq.DEALER, SocketLimits())
        connect_socket(client, Endpoint(host=reserved.host, port=reserved.port))
        assert send_now(client, [b"header", b"payload"]) is SendOutcome.FULL

    @pytest.mark.proves("N3")
    def test_a_peer_that_does_not_read_fills_its_queue_only(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """Rule N3: replies to a peer that does not read are bounded; none waits."""
        limits = SocketLimits(send_queue_count_max=10, receive_queue_count_max=10)
        server = open_socket(context, zmq.ROUTER, limits)
        endpoint = bind_socket(server, LOOPBACK)
        deaf = open_socket(client_context, zmq.DEALER, limits)
        good = open_socket(client_context, zmq.DEALER, limits)
        routing_ids = []
        for client in (deaf, good):
            connect_socket(client, endpoint)
            assert client.poll(WAIT_MS, zmq.POLLOUT)
            send_now(client, [b"hello"])
            routing_ids.append(receive(server)[0])
        outcomes = set()
        for _ in range(100_000):
            outcomes.add(send_now(server, [routing_ids[0], b"x" * 10_000]))
            if SendOutcome.FULL in outcomes:
                break
        assert outcomes == {SendOutcome.SENT, SendOutcome.FULL}
        assert send_now(server, [routing_ids[1], b"answer"]) is SendOutcome.SENT
        assert receive(good) == [b"answer"]

    def test_a_closed_socket_is_our_own_mistake(self, context: ZMQContext) -> None:
        """ZeroMQ's exceptions do not escape (rule L4)."""
        socket = open_socket(context, zmq.DEALER, SocketLimits())
        socket.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            send_now(socket, [b"x"])

    @pytest.mark.proves("N3")
    def test_too_large_a_frame_ends_the_connection(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """Rule N3: the frame is not even received; others are served as before."""
        server = open_socket(
            context, zmq.ROUTER, SocketLimits(frame_size_bytes_max=1_000)
        )
        endpoint = bind_socket(server, LOOPBACK)
        client = open_socket(client_context, zmq.DEALER, SocketLimits())
        connect_socket(client, endpoint)
        assert client.poll(WAIT_MS, zmq.POLLOUT)
        send_now(client, [b"x" * 1_000])
        assert receive(server)[1:] == [b"x" * 1_000]
        send_now(client, [b"x" * 1_001])
        good = open_socket(client_context, zmq.DEALER, SocketLimits())
        connect_socket(good, endpoint)
        assert good.poll(WAIT_MS, zmq.POLLOUT)
        send_now(good, [b"good"])
        assert receive(server)[1:] == [b"good"]

    @pytest.mark.proves("N3")
    def test_half_a_handshake_is_given_up(self, context: ZMQContext) -> None:
        """Rule N3: a connection that never speaks holds its place for a while only."""
        server = open_socket(
            context, zmq.ROUTER, SocketLimits(handshake_timeout_ms=100)
        )
        port = bind_socket(server, LOOPBACK).port
        with stdlib_socket.create_connection(("127.0.0.1", port)) as silent:
            silent.settimeout(WAIT_MS / 1_000)
            started = time.monotonic()
            while silent.recv(1_000):  # the greeting, then the end
                pass
            assert time.monotonic() - started < WAIT_MS / 1_000


class TestTranslateZMQErrors:
    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (errno.EADDRINUSE, ConfigurationError),
            (errno.EADDRNOTAVAIL, ConfigurationError),
            (errno.EACCES, ConfigurationError),
            (errno.EINVAL, ConfigurationError),
            (errno.EMFILE, ConfigurationError),
            (zmq.ETERM, LocalProtocolError),
            (zmq.ENOTSOCK, LocalProtocolError),
            (errno.EPERM, NameServiceError),
        ],
    )
    def test_every_error_becomes_ours(
        self, number: int, expected: type[NameServiceError]
    ) -> None:
        """Rule L4: none of ZeroMQ's exceptions leaves, not even an unexpected one."""
        with (
            pytest.raises(NameServiceError, match="the thing") as caught,
            translate_zmq_errors("the thing"),
        ):
            raise zmq.ZMQError(number)
        assert type(caught.value) is expected
        assert isinstance(caught.value.__cause__, zmq.ZMQError)
