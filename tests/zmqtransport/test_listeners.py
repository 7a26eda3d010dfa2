"""A listener replaces its keys (N4), and accepts no more than it is read of (N3)."""

from __future__ import annotations

import errno
import socket as stdlib_socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from nameservice import ConfigurationError
from zmqtransport import (
    Authenticator,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionMonitor,
    CurveKeyPair,
    Endpoint,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    Listener,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    connect_socket,
    new_context,
    open_socket,
    secure_client,
    secure_server,
)


pytestmark = pytest.mark.shells

WAIT_MS = 10_000
FIRST, SECOND, CLIENT = (CurveKeyPair.generate() for _ in range(3))


class Server:
    """A ROUTER with CURVE on loopback, which admits every key."""

    def __init__(self, context: ZMQContext) -> None:
        self.authenticator = Authenticator(context, None, admits_unlisted=True)
        self.listener = Listener(
            context,
            zmq.ROUTER,
            Endpoint(host="127.0.0.1", port=0),
            SocketLimits(),
            FIRST,
        )

    def close(self) -> None:
        """Release all."""
        self.listener.close()
        self.authenticator.close()

    def shake_hands(self, client: ConnectionMonitor) -> HandshakeFailure | None:
        """Return how the handshake of *client* ended; None if it succeeded."""
        poller = zmq.Poller()
        poller.register(client.socket, zmq.POLLIN)
        poller.register(self.authenticator.socket, zmq.POLLIN)
        while True:
            assert poller.poll(WAIT_MS)
            self.authenticator.handle()
            for event in client.receive():
                if isinstance(event, HandshakeFailed):
                    return event.failure
                if isinstance(event, HandshakeSucceeded):
                    return None


class Client:
    """A DEALER that expects one key of the server."""

    def __init__(self, context: ZMQContext, server: Server, key: CurveKeyPair) -> None:
        self.socket: ZMQSocket = open_socket(context, zmq.DEALER, SocketLimits())
        secure_client(self.socket, CLIENT, server_public_key=key.public_key)
        self.monitor = ConnectionMonitor(self.socket)
        connect_socket(self.socket, server.listener.endpoint)

    def close(self) -> None:
        """Release all."""
        self.monitor.close()
        self.socket.close()


@pytest.fixture
def context() -> Iterator[ZMQContext]:
    """Yield a context."""
    context = new_context()
    yield context
    context.term()


@pytest.fixture
def server(context: ZMQContext) -> Iterator[Server]:
    """Yield a server."""
    server = Server(context)
    yield server
    server.close()


def connected(context: ZMQContext, server: Server, key: CurveKeyPair) -> Client:
    """Return a client whose handshake has succeeded."""
    client = Client(context, server, key)
    assert server.shake_hands(client.monitor) is None
    return client


class TestReplacing:
    def test_the_new_key_holds_from_then_on(
        self, context: ZMQContext, server: Server
    ) -> None:
        """On the same port; the old one opens nothing any more."""
        endpoint = server.listener.endpoint
        for key, other in ((SECOND, FIRST), (FIRST, SECOND)):
            server.listener.prepare()
            server.listener.replace_keys(key)
            assert server.listener.endpoint == endpoint
            connected(context, server, key).close()
            stranger = Client(context, server, other)
            assert server.shake_hands(stranger.monitor) is HandshakeFailure.CLOSED
            stranger.close()

    def test_the_end_of_each_connection_is_told(
        self, context: ZMQContext, server: Server
    ) -> None:
        """By libzmq it is not: the server would count them for ever (N3)."""
        clients = [connected(context, server, FIRST) for _ in range(3)]
        accepted = {
            event.connection_id
            for event in server.listener.monitor.receive()
            if isinstance(event, ConnectionAccepted)
        }
        server.listener.prepare()
        events = server.listener.replace_keys(SECOND)
        closed = {e.connection_id for e in events if isinstance(e, ConnectionClosed)}
        assert len(accepted) == 3
        assert closed == accepted
        for client in clients:
            client.close()

    def test_the_port_is_never_free(self, context: ZMQContext, server: Server) -> None:
        """Who connects meanwhile waits, and is served with the new key."""
        server.listener.prepare()
        descriptor = server.listener._spare
        assert descriptor is not None
        server.listener.socket.unbind(server.listener._address)
        with stdlib_socket.socket() as other:
            other.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", server.listener.endpoint.port))
        waiting = Client(context, server, SECOND)
        secure_server(server.listener.socket, SECOND)
        server.listener.socket.setsockopt(zmq.USE_FD, descriptor)
        server.listener.socket.bind(server.listener._address)
        server.listener._spare = None
        assert server.shake_hands(waiting.monitor) is None
        waiting.close()

    def test_without_a_descriptor_nothing_changes(
        self,
        context: ZMQContext,
        server: Server,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """What is needed is taken before anything is given up."""

        def refuse(_: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("zmqtransport.listeners.os.dup", refuse)
            with pytest.raises(ConfigurationError, match="ulimit -n"):
                server.listener.prepare()
        connected(context, server, FIRST).close()


class TestHoldingBack:
    @pytest.mark.proves("N3")
    def test_what_is_not_read_waits_in_the_kernel(
        self, context: ZMQContext, server: Server
    ) -> None:
        """N3: a loop that is slow has no more connections than it can hear of."""
        with ExitStack() as clients:
            accepted_count = connect_until_held(server, clients)
            # libzmq's queue of events, and the kernel's of connections.
            kernels_count_max = SocketLimits().backlog_count_max + 1
            assert accepted_count < 1_100 + kernels_count_max
            poller = zmq.Poller()
            poller.register(server.listener.monitor.socket, zmq.POLLIN)
            told = 0
            while told < accepted_count:
                assert poller.poll(WAIT_MS)
                told += sum(
                    isinstance(event, ConnectionAccepted)
                    for event in server.listener.monitor.receive()
                )
            clients.enter_context(connect(server))
            connected(context, server, FIRST).close()

    @pytest.mark.proves("N3")
    def test_it_can_be_closed_while_it_holds_back(
        self, context: ZMQContext, server: Server
    ) -> None:
        """N3: libzmq's thread waits for who closes it, and the context for that."""
        with ExitStack() as clients:
            connect_until_held(server, clients)
            server.close()
            context.term()


def connect(server: Server) -> stdlib_socket.socket:
    """Return a connection that says nothing, if it is taken within a second."""
    endpoint = server.listener.endpoint
    return stdlib_socket.create_connection((endpoint.host, endpoint.port), timeout=1.0)


def connect_until_held(server: Server, clients: ExitStack) -> int:
    """Open connections until one is not taken; return how many were."""
    for count in range(5_000):
        try:
            clients.enter_context(connect(server))
        except TimeoutError:
            return count
    pytest.fail("it takes all that come")


NAMED_FIRST = """
import zmq
from zmqtransport import Authenticator, Endpoint, Listener, PollLoop, SocketLimits
from zmqtransport import connect_socket, new_context, open_socket

context = new_context()
loop = PollLoop(name="authenticator")
authenticator = Authenticator(context, None)
loop.at_end(authenticator.close)
loop.add_readable(authenticator.socket, authenticator.handle)
loop.start()
here = Endpoint(host="127.0.0.1", port=0)
listener = Listener(context, zmq.ROUTER, here, SocketLimits(), None)
client = open_socket(context, zmq.DEALER, SocketLimits(linger_ms=10_000))
connect_socket(client, listener.endpoint)
client.send(b"x")
print(listener.socket.recv_multipart()[0].hex())
client.close()
listener.close()
loop.stop()
loop.join()
context.term()
"""


@pytest.mark.proves("N3")
def test_how_a_server_names_its_clients_cannot_be_foretold() -> None:
    """N3: who called itself by the next name would end the process of the server."""
    names = set()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", NAMED_FIRST],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        names.add(done.stdout)
    assert len(names) == 2
