from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket as stdlib_socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from tests.zmqtransport.monitored_server import (
    WAIT_MS,
    MonitoredServer,
    events_until,
    has,
    open_client,
)
from zmqtransport.connection_limiter import (
    ConnectionLimiter,
    connection_count_possible,
)
from zmqtransport.connections import (
    ConnectFailed,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    ConnectionMonitor,
    HandshakeSucceeded,
    connection_of,
)
from zmqtransport.sockets import (
    SocketLimits,
    ZMQContext,
    connect_socket,
    open_socket,
    send_now,
)


DESCRIPTORS = Path("/proc/self/fd")


def accepted(number: int) -> ConnectionAccepted:
    """Return the event that connection *number* was accepted."""
    return ConnectionAccepted(connection_id=ConnectionId(number))


def closed(number: int) -> ConnectionClosed:
    """Return the event that connection *number* is over."""
    return ConnectionClosed(connection_id=ConnectionId(number))


def closed_of(event: ConnectionAccepted) -> ConnectionClosed:
    """Return the event that ends what *event* began."""
    return ConnectionClosed(connection_id=event.connection_id)


def end_of(raw: stdlib_socket.socket) -> bool:
    """Wait until the peer of *raw* closes it."""
    raw.settimeout(WAIT_MS / 1_000)
    with contextlib.suppress(ConnectionResetError):
        while raw.recv(1_000):
            pass
    return True


@pytest.mark.shells
class TestConnectionLimiter:
    @pytest.mark.proves("N3")
    def test_connections_above_the_limit_are_shut_down(
        self, server: MonitoredServer, client_context: ZMQContext
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
    def test_a_flood_leaves_no_descriptor_behind(self, server: MonitoredServer) -> None:
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
        self, server: MonitoredServer, client_context: ZMQContext
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

    def test_only_connections_of_its_port_are_shut_down(
        self, server: MonitoredServer
    ) -> None:
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
@pytest.mark.proves("N3")
def test_a_number_that_is_a_file_by_now_keeps_its_locks(tmp_path: Path) -> None:
    """N3: to close a copy of it would give away what LMDB and SQLite rely on."""
    with (tmp_path / "locked").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ConnectionLimiter(1, port=1).disconnect(ConnectionId(file.fileno()))
        code = (
            "import fcntl, sys\n"
            "fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        )
        other = subprocess.run(
            [sys.executable, "-c", code, file.name], capture_output=True, check=False
        )
    assert b"BlockingIOError" in other.stderr


@pytest.mark.proves("N3")
def test_without_a_free_descriptor_a_connection_is_ended() -> None:
    """N3: a flood of connections takes descriptors first."""
    with (
        stdlib_socket.create_server(("127.0.0.1", 0)) as listener,
        stdlib_socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as accepted_,
    ):
        limiter = ConnectionLimiter(1, port=listener.getsockname()[1])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.dup(client.fileno())
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            limiter.disconnect(ConnectionId(accepted_.fileno()))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(10.0)
        assert client.recv(1) == b""


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


def test_the_process_has_room_for_connections() -> None:
    """A server can ask how many connections its limit of open files allows."""
    assert connection_count_possible() > 0
