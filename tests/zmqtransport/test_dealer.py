from __future__ import annotations

import threading

import pytest
import zmq

from nameservice import AuthenticationError, SystemClock
from zmqtransport import (
    ConnectionEvent,
    ConnectionOpened,
    Dealer,
    HandshakeSucceeded,
    PollLoop,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    open_socket,
    parse_endpoint,
    send_now,
)


pytestmark = pytest.mark.shells

LOOPBACK = parse_endpoint("tcp://127.0.0.1:0")
WAIT_SECONDS = 20.0


def insecure(_: ZMQSocket) -> None:
    """Leave a socket without keys."""


class TestDealer:
    def test_it_tells_of_its_connection_and_takes_messages(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """What happens to the connection is told before what comes over it."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        dealer = Dealer(
            client_context,
            bind_socket(server, LOOPBACK),
            SocketLimits(),
            secure=insecure,
        )
        loop = PollLoop(name="test-dealer", clock=SystemClock())
        told: list[object] = []
        came = threading.Event()

        def event(event: ConnectionEvent) -> None:
            told.append(type(event))
            if isinstance(event, HandshakeSucceeded):
                send_now(dealer.socket, [b"hello"])

        def message(frames: list[zmq.Frame]) -> None:
            told.append(frames[0].bytes)
            came.set()

        dealer.serve(loop, on_event=event, on_message=message, frame_count_max=1)
        loop.at_end(dealer.close)
        loop.start()
        try:
            assert server.poll(int(WAIT_SECONDS * 1_000))
            routing_id, _ = server.recv_multipart()
            send_now(server, [routing_id, b"welcome"])
            assert came.wait(WAIT_SECONDS)
        finally:
            loop.stop()
            loop.join()
        assert told == [ConnectionOpened, HandshakeSucceeded, b"welcome"]
        assert dealer.socket.closed

    def test_a_closed_one_tells_nothing_more(
        self, context: ZMQContext, client_context: ZMQContext
    ) -> None:
        """Who puts another in its place hears of the other alone."""
        server = open_socket(context, zmq.ROUTER, SocketLimits())
        dealer = Dealer(
            client_context,
            bind_socket(server, LOOPBACK),
            SocketLimits(),
            secure=insecure,
        )
        assert server.poll(0) == 0
        assert dealer.socket.poll(int(WAIT_SECONDS * 1_000), zmq.POLLOUT)
        loop = PollLoop(name="test-dealer", clock=SystemClock())
        told: list[object] = []
        is_closed = threading.Event()

        def event(event: ConnectionEvent) -> None:
            told.append(type(event))
            dealer.close()
            is_closed.set()

        dealer.serve(loop, on_event=event, on_message=told.append, frame_count_max=1)
        loop.start()
        try:
            assert is_closed.wait(WAIT_SECONDS)
        finally:
            loop.stop()
            loop.join()
        assert told == [ConnectionOpened]
        dealer.close()

    def test_keys_that_do_not_fit_leave_nothing_open(
        self, client_context: ZMQContext
    ) -> None:
        """A socket that cannot be given its keys is closed."""
        sockets: list[ZMQSocket] = []

        def secure(socket: ZMQSocket) -> None:
            sockets.append(socket)
            raise AuthenticationError("tcp://127.0.0.1:1", "no CURVE")

        with pytest.raises(AuthenticationError):
            Dealer(
                client_context,
                parse_endpoint("tcp://127.0.0.1:1"),
                SocketLimits(),
                secure=secure,
            )
        (socket,) = sockets
        assert socket.closed
