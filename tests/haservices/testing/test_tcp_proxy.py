from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from haservices.testing.reserved_port import ReservedPort
from haservices.testing.tcp_proxy import TCPProxy
from nameservice import LocalProtocolError
from tests.leaks import assert_closed, process_figures, settled


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 20.0
SILENCE_SECONDS = 0.2


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return the socket of a server that the test itself plays."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT_SECONDS)
        yield server


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[TCPProxy]:
    """Return a proxy in front of *listener*."""
    with TCPProxy(listener.getsockname()[1]) as proxy:
        yield proxy


def connect(proxy: TCPProxy) -> socket.socket:
    """Return a client's connection to *proxy*."""
    return socket.create_connection((proxy.host, proxy.port), timeout=TIMEOUT_SECONDS)


def accept(listener: socket.socket) -> socket.socket:
    """Return the server's end of the next connection."""
    accepted, _ = listener.accept()
    accepted.settimeout(TIMEOUT_SECONDS)
    return accepted


@contextlib.contextmanager
def connected(
    proxy: TCPProxy, listener: socket.socket
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of one connection through *proxy*."""
    with connect(proxy) as client, accept(listener) as server:
        yield client, server


def receive_all(sock: socket.socket) -> bytes:
    """Return what arrives at *sock* until its end."""
    chunks = []
    while chunk := sock.recv(65_536):
        chunks.append(chunk)
    return b"".join(chunks)


def assert_silent(sock: socket.socket) -> None:
    """Nothing arrives at *sock*, not even an end; seen for as long as is bearable."""
    sock.settimeout(SILENCE_SECONDS)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(TIMEOUT_SECONDS)


class TestForwarding:
    """A proxy that is told nothing."""

    def test_bytes_pass_both_ways_and_so_does_half_a_close(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """The end of one direction leaves the other one open."""
        with connect(proxy) as client, accept(listener) as server:
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            assert receive_all(server) == b"question"
            server.sendall(b"answer")
            server.shutdown(socket.SHUT_WR)
            assert receive_all(client) == b"answer"

    def test_more_than_all_buffers_hold_arrives_whole(
        self, listener: socket.socket
    ) -> None:
        """Back-pressure passes through a small buffer; no byte is lost or moved."""
        sent = os.urandom(8_000_000)
        with (
            TCPProxy(listener.getsockname()[1], buffer_size_bytes_max=1000) as proxy,
            connect(proxy) as client,
            accept(listener) as server,
        ):

            def send() -> None:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            received = receive_all(server)
            sender.join()
        assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()

    def test_a_reset_passes(self, proxy: TCPProxy, listener: socket.socket) -> None:
        """What one side learns by a reset, the other side does too."""
        with connect(proxy) as client, accept(listener) as server:
            linger = b"\1\0\0\0\0\0\0\0"
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            server.close()
            with pytest.raises(ConnectionResetError):
                client.recv(1)

    def test_a_target_that_is_not_there_is_a_reset(self) -> None:
        """The client is not left waiting for a server that refuses."""
        with (
            ReservedPort() as nobody,
            TCPProxy(nobody.port) as proxy,
            pytest.raises(ConnectionResetError),
            connect(proxy) as client,  # which may hear of it already
        ):
            client.recv(1)

    def test_a_target_that_comes_in_time_is_waited_for(self) -> None:
        """With patience, a client need not know that the server was not there yet."""
        with (
            ReservedPort() as reserved,
            TCPProxy(reserved.port, patience_seconds=TIMEOUT_SECONDS) as proxy,
            connect(proxy) as client,
        ):
            client.sendall(b"early")
            assert_silent(client)
            with reserved.listen() as listener, accept(listener) as server:
                assert server.recv(100) == b"early"


class TestCut:
    """A black hole."""

    def test_nothing_passes_and_nothing_is_lost(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """Both sides see silence; healing delivers what was held, in order."""
        with connect(proxy) as client, accept(listener) as server:
            proxy.cut()
            client.sendall(b"question")
            server.sendall(b"answer")
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            assert_silent(server)
            assert_silent(client)
            proxy.heal()
            assert server.recv(100) == b"question"
            assert client.recv(100) == b"answer"

    def test_more_than_the_buffers_hold_is_not_lost(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """A cut stops the sender when the buffers are full; then it goes on."""
        sent = os.urandom(20_000_000)
        with connect(proxy) as client, accept(listener) as server:
            proxy.cut_requests()

            def send() -> None:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=send)
            sender.start()
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            sender.join(SILENCE_SECONDS)
            assert sender.is_alive()
            proxy.heal()
            received = receive_all(server)
            sender.join()
        assert hashlib.sha256(received).digest() == hashlib.sha256(sent).digest()

    def test_an_end_or_a_death_is_not_seen(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """A side that closes behind a cut looks as silent as one that lives."""
        with connected(proxy, listener) as (client, server):
            proxy.cut()
            client.close()
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            assert_silent(server)
            proxy.heal()
            assert receive_all(server) == b""

    def test_a_connection_made_meanwhile_is_silent(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """It is accepted, gets no further, and is served once healed."""
        proxy.cut()
        with connect(proxy) as client:
            client.sendall(b"hello")
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            listener.settimeout(SILENCE_SECONDS)
            with pytest.raises(TimeoutError):
                listener.accept()
            listener.settimeout(TIMEOUT_SECONDS)
            proxy.heal()
            with accept(listener) as server:
                assert server.recv(100) == b"hello"

    def test_one_way_cuts_leave_the_other_way_open(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """Requests pass while replies are cut, and the other way round."""
        with connect(proxy) as client, accept(listener) as server:
            proxy.cut_replies()
            client.sendall(b"question")
            assert server.recv(100) == b"question"
            server.sendall(b"answer")
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            assert_silent(client)
            proxy.heal()
            assert client.recv(100) == b"answer"
            proxy.cut_requests()
            server.sendall(b"news")
            assert client.recv(100) == b"news"
            client.sendall(b"question")
            assert_silent(server)

    def test_what_was_held_can_be_dropped(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """Dropping resets the connections that held something, and only those."""
        with (
            connect(proxy) as holding,
            accept(listener) as holding_server,
            connect(proxy) as idle,
            accept(listener) as idle_server,
        ):
            proxy.cut_replies()
            holding_server.sendall(b"lost")
            assert proxy.wait_until_held(TIMEOUT_SECONDS)
            proxy.heal(deliver=False)
            with pytest.raises(ConnectionResetError):
                holding.recv(100)
            with pytest.raises(ConnectionResetError):
                holding_server.recv(100)
            idle_server.sendall(b"kept")
            assert idle.recv(100) == b"kept"


class TestClosing:
    """Reset, refuse and close."""

    def test_reset_ends_both_sides(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """Open connections are reset; new ones are served."""
        with connected(proxy, listener) as (client, server):
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            with pytest.raises(ConnectionResetError):
                server.recv(1)
        with connected(proxy, listener) as (client, server):
            client.sendall(b"again")
            assert server.recv(100) == b"again"

    def test_refuse_is_for_new_connections(
        self, proxy: TCPProxy, listener: socket.socket
    ) -> None:
        """While it refuses, none listens; healing listens on the same port."""
        with connected(proxy, listener) as (client, server):
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                connect(proxy)
            client.sendall(b"still here")
            assert server.recv(100) == b"still here"
            proxy.heal()
            with connect(proxy) as other, accept(listener) as other_server:
                other.sendall(b"new")
                assert other_server.recv(100) == b"new"

    def test_closing_leaves_nothing_behind(self, listener: socket.socket) -> None:
        """No thread and no file descriptor stays, whatever was open or held."""
        before = settled(process_figures)
        for _ in range(20):
            proxy = TCPProxy(listener.getsockname()[1])
            with connected(proxy, listener) as (client, _server):
                proxy.cut()
                client.sendall(b"held")
                assert proxy.connection_count == 1
                proxy.close()
                proxy.close()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
        assert_closed(before)

    def test_a_closed_proxy_says_so(self, proxy: TCPProxy) -> None:
        """A command to a closed proxy is the caller's mistake."""
        proxy.close()
        with pytest.raises(LocalProtocolError):
            proxy.cut()
