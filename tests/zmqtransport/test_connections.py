from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket as stdlib_socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import AuthenticationError, RemoteProtocolError
from zmqtransport.connections import (
    ConnectFailed,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionId,
    ConnectionLimiter,
    ConnectionMonitor,
    ConnectionOpened,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    connection_count_possible,
    connection_of,
    handshake_error,
)
from zmqtransport.endpoints import Endpoint, parse_endpoint
from zmqtransport.sockets import (
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    receive_now,
    send_now,
)


WAIT_MS = 20_000
DESCRIPTORS = Path("/proc/self/fd")
LOOPBACK = parse_endpoint("tcp://127.0.0.1:0")


def accepted(number: int) -> ConnectionAccepted:
    """Return the event that connection *number* was accepted."""
    return ConnectionAccepted(connection_id=ConnectionId(number))


def closed(number: int) -> ConnectionClosed:
    """Return the event that connection *number* is over."""
    return ConnectionClosed(connection_id=ConnectionId(number))


def closed_of(event: ConnectionAccepted) -> ConnectionClosed:
    """Return the event that ends what *event* began."""
    return ConnectionClosed(connection_id=event.connection_id)


class Server:
    """A ROUTER on loopback with its monitor."""

    def __init__(self, context: ZMQContext) -> None:
        self.router = open_socket(context, zmq.ROUTER, SocketLimits())
        self.monitor = ConnectionMonitor(self.router)
        self.endpoint = bind_socket(self.router, LOOPBACK)

    def events_until(
        self, is_enough: Callable[[list[ConnectionEvent]], bool]
    ) -> list[ConnectionEvent]:
        """Return all events up to the one that is enough."""
        return events_until(self.monitor, is_enough)

    def receive(self) -> list[zmq.Frame]:
        """Wait for a message."""
        assert self.router.poll(WAIT_MS)
        return receive_now(self.router, frame_count_max=8)


def events_until(
    monitor: ConnectionMonitor, is_enough: Callable[[list[ConnectionEvent]], bool]
) -> list[ConnectionEvent]:
    """Return all events of *monitor* up to the one that is enough."""
    events: list[ConnectionEvent] = []
    while not is_enough(events):
        assert monitor.socket.poll(WAIT_MS), events
        events += monitor.receive(1)
    return events


def has(
    kind: type[ConnectionEvent], count: int = 1
) -> Callable[[list[ConnectionEvent]], bool]:
    """Return whether *count* events are of *kind*, as a function of the events."""
    return lambda events: sum(isinstance(event, kind) for event in events) >= count


@pytest.fixture
def server(context: ZMQContext) -> Iterator[Server]:
    """Yield a server that anybody may connect to."""
    server = Server(context)
    yield server
    server.monitor.close()


def open_client(context: ZMQContext, endpoint: Endpoint) -> ZMQSocket:
    """Return a client that is connected."""
    client = open_socket(context, zmq.DEALER, SocketLimits())
    connect_socket(client, endpoint)
    assert client.poll(WAIT_MS, zmq.POLLOUT)
    return client


def end_of(raw: stdlib_socket.socket) -> bool:
    """Wait until the peer of *raw* closes it."""
    raw.settimeout(WAIT_MS / 1_000)
    with contextlib.suppress(ConnectionResetError):
        while raw.recv(1_000):
            pass
    return True


@pytest.mark.shells
class TestServerSide:
    def test_frames_and_events_name_the_same_connection(
        self, server: Server, client_context: ZMQContext
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

    def test_the_death_of_a_process_is_seen(self, server: Server) -> None:
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
        self, server: Server, client_context: ZMQContext
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

    def test_strangers_pass_for_zmtp_without_handshake(self, server: Server) -> None:
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
        self, server: Server, client_context: ZMQContext
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

    def test_close_is_idempotent(self, server: Server) -> None:
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
        server: Server,
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

    def test_nobody_there(self, client: ZMQSocket, monitor: ConnectionMonitor) -> None:
        """A refused connection is a failed attempt, and is tried again and again."""
        with stdlib_socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        connect_socket(client, Endpoint(host="127.0.0.1", port=port))
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


@pytest.mark.shells
class TestConnectionLimiter:
    @pytest.mark.proves("N3")
    def test_connections_above_the_limit_are_shut_down(
        self, server: Server, client_context: ZMQContext
    ) -> None:
        """
        Rule N3: connections are bounded; those that exist are not disturbed.

        As soon as one goes, the next attempt of somebody who waits succeeds.
        """
        limiter = ConnectionLimiter(3, port=server.endpoint.port)
        good = [open_client(client_context, server.endpoint) for _ in range(3)]
        first, *others = server.events_until(has(HandshakeSucceeded, 3))
        assert isinstance(first, ConnectionAccepted)
        limiter.observe([first, *others])
        assert limiter.connection_count == 3

        strangers = [
            stdlib_socket.create_connection(
                (server.endpoint.host, server.endpoint.port)
            )
            for _ in range(20)
        ]
        limiter.observe(server.events_until(has(ConnectionAccepted, 20)))
        assert all(end_of(stranger) for stranger in strangers)
        for stranger in strangers:
            stranger.close()
        limiter.observe(server.events_until(has(ConnectionClosed, 20)))
        assert (limiter.connection_count, limiter.refused_count) == (3, 20)
        for client in good:
            client.send(b"still here")
            assert server.receive()[-1].bytes == b"still here"

        late = open_socket(client_context, zmq.DEALER, SocketLimits())
        late_monitor = ConnectionMonitor(late)
        connect_socket(late, server.endpoint)
        while limiter.refused_count < 22:
            limiter.observe(server.events_until(has(ConnectionAccepted)))
        good[0].close()
        limiter.observe(server.events_until(lambda seen: closed_of(first) in seen))
        assert limiter.connection_count == 2
        limiter.observe(server.events_until(has(ConnectionAccepted)))
        assert limiter.connection_count == 3
        # An attempt that was refused may have got through its handshake before.
        while not server.router.poll(0):
            events_until(late_monitor, has(HandshakeSucceeded))
            send_now(late, [b"at last"])
            server.router.poll(500)
        assert server.receive()[-1].bytes == b"at last"
        late_monitor.close()

    @pytest.mark.proves("N3")
    def test_a_flood_leaves_no_descriptor_behind(self, server: Server) -> None:
        """Rule N3: after a flood the process has the descriptors that it had."""
        limiter = ConnectionLimiter(2, port=server.endpoint.port)
        before = len(list(DESCRIPTORS.iterdir()))
        address = (server.endpoint.host, server.endpoint.port)
        for _ in range(10):
            flood = [stdlib_socket.create_connection(address) for _ in range(50)]
            limiter.observe(server.events_until(has(ConnectionAccepted, 50)))
            for stranger in flood[2:]:
                assert end_of(stranger)
            for stranger in flood:
                stranger.close()
            limiter.observe(server.events_until(has(ConnectionClosed, 50)))
            assert limiter.connection_count == 0
        assert limiter.refused_count == 10 * 48
        assert len(list(DESCRIPTORS.iterdir())) == before

    def test_a_peer_can_be_sent_away(
        self, server: Server, client_context: ZMQContext
    ) -> None:
        """A server can end the connection of a peer that misbehaves, and no other."""
        limiter = ConnectionLimiter(10, port=server.endpoint.port)
        good = open_client(client_context, server.endpoint)
        bad = open_client(client_context, server.endpoint)
        monitor = ConnectionMonitor(bad)
        bad.send(b"rubbish")
        limiter.disconnect(connection_of(server.receive()[-1]))
        events_until(monitor, has(ConnectionClosed))
        limiter.observe(server.events_until(has(ConnectionClosed)))
        assert limiter.connection_count == 1
        good.send(b"still here")
        assert server.receive()[-1].bytes == b"still here"
        monitor.close()

    def test_only_connections_of_its_port_are_shut_down(self, server: Server) -> None:
        """A number that means something else by now is left alone."""
        limiter = ConnectionLimiter(1, port=server.endpoint.port)
        left, right = stdlib_socket.socketpair()
        reader, writer = os.pipe()
        with stdlib_socket.create_server(("127.0.0.1", 0)) as other, left, right:
            mine = stdlib_socket.create_connection(other.getsockname())
            theirs, _ = other.accept()
            with mine, theirs:
                limiter.observe(
                    [
                        accepted(1_000_000),
                        accepted(theirs.fileno()),
                        accepted(left.fileno()),
                        accepted(reader),
                        accepted(1_000_001),
                    ]
                )
                theirs.sendall(b"x")
                left.sendall(b"y")
                assert mine.recv(1) == b"x"
                assert right.recv(1) == b"y"
        os.close(reader)
        os.close(writer)
        assert limiter.refused_count == 4


@pytest.mark.proves("N3")
class TestSilentConnections:
    """Connections that never speak, at a server that tells who does (N3)."""

    BASE = 10**6

    def test_a_flood_drives_out_itself(self) -> None:
        """N3: one that speaks before as many others have come keeps its place."""
        limiter = ConnectionLimiter(8, port=1, is_told_who_spoke=True)
        for number in range(1_000):
            limiter.observe([accepted(self.BASE + number)])
            if number % 100 == 50:
                limiter.spoke(ConnectionId(self.BASE + number - 1))
        assert limiter.connection_count - limiter.silent_count == 8
        assert limiter.silent_count <= 8

    def test_those_who_spoke_are_never_driven_out(self) -> None:
        """N3: a place is held for good by who is admitted and has said something."""
        limiter = ConnectionLimiter(4, port=1, is_told_who_spoke=True)
        for number in range(3):
            limiter.observe([accepted(self.BASE + number)])
            limiter.spoke(ConnectionId(self.BASE + number))
        limiter.observe([accepted(self.BASE + n) for n in range(100, 200)])
        assert limiter.connection_count == 3 + 1
        limiter.observe([accepted(self.BASE + 3)])
        limiter.spoke(ConnectionId(self.BASE + 3))
        assert limiter.connection_count - limiter.silent_count == 4

    def test_the_limit_holds_for_who_speaks_late(self) -> None:
        """N3: two that were admitted for one place do not both keep it."""
        limiter = ConnectionLimiter(8, port=1, is_told_who_spoke=True)
        limiter.observe([accepted(self.BASE + n) for n in range(8)])
        for number in range(7):
            limiter.spoke(ConnectionId(self.BASE + number))
        limiter.observe([accepted(self.BASE + 8)])
        assert limiter.silent_count == 2
        limiter.spoke(ConnectionId(self.BASE + 7))
        limiter.spoke(ConnectionId(self.BASE + 8))
        assert (limiter.connection_count, limiter.refused_count) == (8, 1)

    def test_who_is_gone_is_forgotten(self) -> None:
        """N3: what closed holds no place, and says nothing any more."""
        limiter = ConnectionLimiter(2, port=1, is_told_who_spoke=True)
        limiter.observe([accepted(self.BASE), closed(self.BASE)])
        limiter.spoke(ConnectionId(self.BASE))
        assert limiter.connection_count == 0


@pytest.mark.proves("N3")
def test_a_number_that_is_no_socket_any_more_leaves_nothing_open() -> None:
    """N3: the copy that is looked at is closed, whatever the number stands for now."""
    reader, writer = os.pipe()
    try:
        limiter = ConnectionLimiter(1, port=1)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - entries vanish
        for _ in range(3):
            limiter.disconnect(ConnectionId(reader))
        after = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - likewise
        assert after == before
    finally:
        os.close(reader)
        os.close(writer)


class TestConnectionLimiterCounts:
    """Its arithmetic, on numbers that are no descriptors of this process."""

    @staticmethod
    def limiter(connections_max: int) -> ConnectionLimiter:
        """Return a limiter whose numbers are far above any descriptor here."""
        return ConnectionLimiter(connections_max, port=1)

    def test_exactly_the_limit_is_admitted(self) -> None:
        """The limit is inclusive."""
        limiter = self.limiter(2)
        limiter.observe([accepted(10**6), accepted(10**6 + 1)])
        assert (limiter.connection_count, limiter.refused_count) == (2, 0)
        limiter.observe([accepted(10**6 + 2)])
        assert (limiter.connection_count, limiter.refused_count) == (2, 1)

    def test_what_is_over_already_is_not_shut_down(self) -> None:
        """Its number may belong to the next connection."""
        limiter = self.limiter(1)
        limiter.observe([accepted(10**6), accepted(10**6 + 1), closed(10**6 + 1)])
        assert (limiter.connection_count, limiter.refused_count) == (1, 0)

    def test_a_number_used_again_is_counted_once(self) -> None:
        """A new connection under an old number replaces it."""
        limiter = self.limiter(2)
        limiter.observe([accepted(10**6)] * 5)
        assert limiter.connection_count == 1

    def test_the_end_of_a_refused_connection_frees_no_place(self) -> None:
        """Only those that were admitted count."""
        limiter = self.limiter(1)
        limiter.observe([accepted(10**6), accepted(10**6 + 1)])
        limiter.observe([closed(10**6 + 1), accepted(10**6 + 2)])
        assert (limiter.connection_count, limiter.refused_count) == (1, 2)
        limiter.observe([closed(10**6), accepted(10**6 + 3)])
        assert (limiter.connection_count, limiter.refused_count) == (1, 2)

    def test_a_refused_number_used_again_may_be_admitted(self) -> None:
        """A refused connection that is over leaves nothing behind."""
        limiter = self.limiter(1)
        limiter.observe([accepted(10**6), accepted(10**6 + 1)])
        limiter.observe([closed(10**6), closed(10**6 + 1), accepted(10**6 + 1)])
        assert (limiter.connection_count, limiter.refused_count) == (1, 1)

    def test_other_events_count_nothing(self) -> None:
        """Events of other kinds change nothing."""
        limiter = self.limiter(1)
        limiter.observe(
            [HandshakeSucceeded(), ConnectFailed(wait_ms=100), closed(10**6)]
        )
        assert (limiter.connection_count, limiter.refused_count) == (0, 0)

    def test_a_flood_is_logged_once(self) -> None:
        """The log warns whenever refusing begins; it does not grow by attempts."""
        limiter = self.limiter(1)
        for _ in range(2):
            with capture_logs() as logs:
                limiter.observe([accepted(10**6)])
                for number in range(100):
                    limiter.observe([accepted(10**6 + 1 + number)])
            assert [(entry["event"], entry["log_level"]) for entry in logs] == [
                ("connections.refused", "warning")
            ]
            limiter.observe([closed(10**6)])


@pytest.mark.proves("N3")
@pytest.mark.shells
def test_a_process_without_descriptors_serves_who_is_connected(
    server: Server, client_context: ZMQContext
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


def test_the_process_has_room_for_connections() -> None:
    """A server can ask how many connections its limit of open files allows."""
    assert connection_count_possible() > 0
