from __future__ import annotations

import os
import resource
import signal
import socket as stdlib_socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
import zmq

from haservices.testing.reserved_port import ReservedPort
from nameservice import AuthenticationError, RemoteProtocolError
from tests.zmqtransport.monitored_server import (
    LOOPBACK,
    WAIT_MS,
    MonitoredServer,
    events_until,
    has,
    open_client,
)
from zmqtransport.connections import (
    ConnectFailed,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    ConnectionMonitor,
    ConnectionOpened,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    connection_of,
    handshake_error,
)
from zmqtransport.endpoints import Endpoint
from zmqtransport.sockets import (
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
)


_LARGE_SIZE_BYTES = 8 << 20


def kernel_buffer_bytes(connection: ConnectionId, option: int) -> int:
    """Return what the kernel may hold of a connection of this process."""
    with stdlib_socket.socket(fileno=os.dup(connection)) as view:
        return view.getsockopt(stdlib_socket.SOL_SOCKET, option)


@pytest.mark.shells
@pytest.mark.proves("B2")
@pytest.mark.skipif(sys.platform != "linux", reason="in Linux buffers grow")
def test_large_messages_do_not_fill_the_kernel(context: ZMQContext) -> None:
    """What libzmq reads and writes at once is bounded: others wait for it."""
    limits = SocketLimits(frame_size_bytes_max=_LARGE_SIZE_BYTES)
    router = open_socket(context, zmq.ROUTER, limits)
    dealer = open_socket(context, zmq.DEALER, limits)
    with (
        closing(ConnectionMonitor(router)) as accepted,
        closing(ConnectionMonitor(dealer)) as opened,
    ):
        connect_socket(dealer, bind_socket(router, LOOPBACK))
        assert dealer.poll(WAIT_MS, zmq.POLLOUT)
        for _ in range(4):
            dealer.send(bytes(_LARGE_SIZE_BYTES))
            assert router.poll(WAIT_MS)
            router_id, _ = router.recv_multipart()
            router.send_multipart([router_id, bytes(_LARGE_SIZE_BYTES)])
            assert dealer.poll(WAIT_MS)
            dealer.recv()
        connections = [
            event.connection_id
            for monitor, kind in (
                (accepted, ConnectionAccepted),
                (opened, ConnectionOpened),
            )
            for event in events_until(monitor, has(HandshakeSucceeded))
            if isinstance(event, kind)
        ]
        assert len(connections) == 2
        for connection in connections:
            for option in (stdlib_socket.SO_SNDBUF, stdlib_socket.SO_RCVBUF):
                held_bytes = kernel_buffer_bytes(connection, option)
                # Linux doubles what it is asked for.
                assert held_bytes <= 2 * limits.kernel_buffer_bytes


@pytest.mark.shells
class TestServerSide:
    def test_frames_and_events_name_the_same_connection(
        self, server: MonitoredServer, client_context: ZMQContext
    ) -> None:
        """Rule E5: the server knows whose connection it is that closed."""
        connections = {}
        clients = {}
        for name in (b"a", b"b", b"c"):
            clients[name] = open_client(client_context, server.endpoint)
            clients[name].send_multipart([name, b"payload"])
            frames = server.receive()
            assert len({connection_of(frame) for frame in frames}) == 1
            connections[name] = connection_of(frames[-1])
        events = server.events_until(has(HandshakeSucceeded, 3))
        assert [
            event.connection_id
            for event in events
            if isinstance(event, ConnectionAccepted)
        ] == list(connections.values())
        clients[b"b"].close()
        assert server.events_until(has(ConnectionClosed)) == [
            ConnectionClosed(connection_id=connections[b"b"])
        ]

    def test_the_death_of_a_process_is_seen(self, server: MonitoredServer) -> None:
        """Rule E5: SIGKILL closes the connection, and all it sent came before."""
        program = (
            "import sys, zmq\n"
            "client = zmq.Context().socket(zmq.DEALER)\n"
            f"client.connect({str(server.endpoint)!r})\n"
            "for number in range(100):\n"
            "    client.send(b'%d' % number)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE
        ) as process:
            first = server.receive()
            connection_id = connection_of(first[-1])
            os.kill(process.pid, signal.SIGKILL)
            events = server.events_until(has(ConnectionClosed))
        assert events[-1] == ConnectionClosed(connection_id=connection_id)
        # All that came has come: what waits now is in order, and nothing follows.
        waiting = []
        while server.router.poll(0):
            waiting.append(int(server.receive()[-1].bytes))
        assert waiting == list(range(1, 1 + len(waiting)))
        assert not server.router.poll(100)

    def test_a_descriptor_used_again_is_a_new_connection(
        self, server: MonitoredServer, client_context: ZMQContext
    ) -> None:
        """Between two uses of a number there is always the end of the first."""
        for _ in range(20):
            open_client(client_context, server.endpoint).close()
        events = server.events_until(has(ConnectionClosed, 20))
        open_now: set[int] = set()
        for event in events:
            if isinstance(event, ConnectionAccepted):
                assert event.connection_id not in open_now
                open_now.add(event.connection_id)
            elif isinstance(event, ConnectionClosed):
                open_now.remove(event.connection_id)
        assert not open_now

    def test_strangers_pass_for_zmtp_without_handshake(
        self, server: MonitoredServer
    ) -> None:
        """
        A socket that is not secured takes any bytes for messages (rule N3).

        Such frames do not know their connection, which is no reason to fail.
        """
        address = (server.endpoint.host, server.endpoint.port)
        with stdlib_socket.create_connection(address) as stranger:
            stranger.sendall(b"\x02\x00x" * 2)
            frames = server.receive()
            assert frames[-1].bytes == b"x"
            with pytest.raises(RemoteProtocolError):
                connection_of(frames[-1])
        server.events_until(has(ConnectionClosed))

    def test_nobody_reading_events_stops_nothing(
        self, server: MonitoredServer, client_context: ZMQContext
    ) -> None:
        """
        A server that does not look at its monitor serves on, and can be closed.

        With ZeroMQ's default queue it stops accepting after some 1,100 connections.
        """
        address = (server.endpoint.host, server.endpoint.port)
        for _ in range(1_500):
            stdlib_socket.create_connection(address, timeout=WAIT_MS / 1_000).close()
        client = open_client(client_context, server.endpoint)
        client.send(b"served")
        assert server.receive()[-1].bytes == b"served"
        server.monitor.close()
        server.router.close()

    def test_close_is_idempotent(self, server: MonitoredServer) -> None:
        """A monitor may be closed twice, and after its socket."""
        server.router.close()
        server.monitor.close()
        server.monitor.close()


@pytest.mark.shells
class TestClientSide:
    @pytest.fixture
    def client(self, client_context: ZMQContext) -> ZMQSocket:
        """Return a client that is not connected yet."""
        return open_socket(client_context, zmq.DEALER, SocketLimits())

    @pytest.fixture
    def monitor(self, client: ZMQSocket) -> Iterator[ConnectionMonitor]:
        """Yield the monitor of *client*."""
        monitor = ConnectionMonitor(client)
        yield monitor
        monitor.close()

    def test_a_good_connection(
        self,
        server: MonitoredServer,
        client: ZMQSocket,
        monitor: ConnectionMonitor,
        context: ZMQContext,
    ) -> None:
        """Opened, handshake, and its end when the server goes; then it tries again."""
        connect_socket(client, server.endpoint)
        opened, succeeded = events_until(monitor, has(HandshakeSucceeded))
        assert isinstance(opened, ConnectionOpened)
        assert succeeded == HandshakeSucceeded()
        server.monitor.close()
        server.router.close()
        gone, retried = events_until(monitor, has(ConnectFailed))
        assert gone == ConnectionClosed(connection_id=opened.connection_id)
        assert isinstance(retried, ConnectFailed)
        assert 0 < retried.wait_ms <= 2 * SocketLimits().reconnect_interval_ms

    def test_nobody_there(
        self, client: ZMQSocket, monitor: ConnectionMonitor, reserved: ReservedPort
    ) -> None:
        """A refused connection is a failed attempt, and is tried again and again."""
        connect_socket(client, Endpoint(host=reserved.host, port=reserved.port))
        events = events_until(monitor, has(ConnectFailed, 3))
        assert {type(event) for event in events} == {ConnectFailed}

    def test_a_host_that_is_not_known(
        self, client: ZMQSocket, monitor: ConnectionMonitor
    ) -> None:
        """A name that cannot be resolved is a failed attempt like any other."""
        connect_socket(client, Endpoint(host="no-such-host.invalid", port=5170))
        events_until(monitor, has(ConnectFailed))

    @pytest.mark.proves("N4")
    @pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10])
    def test_something_else_there(
        self, client: ZMQSocket, monitor: ConnectionMonitor, answer: bytes
    ) -> None:
        """Rule N4: what is no ZeroMQ server ends in a failed handshake."""
        with stdlib_socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            connect_socket(client, Endpoint(host="127.0.0.1", port=port))
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(answer)
            events = events_until(monitor, has(HandshakeFailed))
        assert events[-1].failure in (  # type: ignore[union-attr]  # it is the last
            HandshakeFailure.CLOSED,
            HandshakeFailure.PROTOCOL,
        )

    def test_a_protocol_error_ends_all_attempts_without_a_word(
        self, client: ZMQSocket, monitor: ConnectionMonitor
    ) -> None:
        """
        After some errors libzmq closes and never tries again.

        All that a client can see is that no `ConnectFailed` follows.  If a later
        version tells more, this test and the module's docstring are to be changed.
        """
        with stdlib_socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            connect_socket(client, Endpoint(host="127.0.0.1", port=port))
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"\x00" * 100)
                opened, gone = events_until(monitor, has(ConnectionClosed))
            assert isinstance(opened, ConnectionOpened)
            assert isinstance(gone, ConnectionClosed)
            assert not monitor.socket.poll(5 * SocketLimits().reconnect_interval_ms)


@pytest.mark.proves("N3")
@pytest.mark.shells
def test_a_process_without_descriptors_serves_who_is_connected(
    server: MonitoredServer, client_context: ZMQContext
) -> None:
    """Rule N3: who comes has to wait, and no queue fills with failures to accept."""
    client = open_client(client_context, server.endpoint)
    server.events_until(has(HandshakeSucceeded))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with stdlib_socket.socket() as stranger:
        lowest_free = os.dup(stranger.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            stranger.connect((server.endpoint.host, server.endpoint.port))
            for _ in range(100):
                client.send(b"still here")
                assert server.receive()[-1].bytes == b"still here"
            assert server.monitor.receive() == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.events_until(has(ConnectionAccepted))


class TestHandshakeError:
    @pytest.mark.proves("N4")
    @pytest.mark.parametrize("failure", list(HandshakeFailure))
    def test_every_failure_is_explained(self, failure: HandshakeFailure) -> None:
        """Rule N4: the error names who refused, and what to do."""
        error = handshake_error(
            HandshakeFailed(failure=failure, code=1), target="tcp://h:1"
        )
        assert isinstance(error, AuthenticationError)
        assert "tcp://h:1" in str(error)
        assert len(error.detail) > 40

    def test_only_a_silent_close_may_be_tried_again(self) -> None:
        """A socket that has given up must be replaced; one that has not must not."""
        assert {
            failure
            for failure in HandshakeFailure
            if not HandshakeFailed(failure=failure, code=1).is_final
        } == {HandshakeFailure.CLOSED}
