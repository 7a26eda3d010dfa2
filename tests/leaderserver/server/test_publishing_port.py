"""What the publishing port knows of its subscribers (N3)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from leaderserver.server.core.topics import TopicTable
from leaderserver.server.publishing_port import PublishingPort
from nameservice import SystemClock
from tests.recording import WAIT_SECONDS, wait_until
from zmqtransport import (
    Authenticator,
    ConnectionMonitor,
    PollLoop,
    SocketLimits,
    ZMQContext,
    connect_socket,
    new_context,
    open_socket,
    parse_endpoint,
)
from zmqtransport.inflow import Inflow
from zmqtransport.sockets import is_readable


pytestmark = pytest.mark.shells

TOPIC = bytes(8)


@pytest.fixture
def port() -> Iterator[PublishingPort]:
    """A port with an authenticator, which has a thread of its own."""
    context: ZMQContext = new_context()
    loop = PollLoop(name="authenticator")
    loop.at_end(context.term)
    authenticator = Authenticator(context, None)
    loop.at_end(authenticator.close)
    loop.add_readable(authenticator.socket, authenticator.handle)
    port = PublishingPort(
        context,
        parse_endpoint("tcp://127.0.0.1:0"),
        SocketLimits(),
        None,
        connections_max=10,
        topics=TopicTable(
            topic_size_bytes=len(TOPIC), topics_per_connection_max=10, topics_max=10
        ),
        inflow=Inflow(
            bytes_per_connection_max=2**20, bytes_max=2**20, frame_overhead_bytes=2
        ),
        clock=SystemClock(),
    )
    loop.start()
    port.start()
    yield port
    port.close()
    loop.stop()
    loop.join()


@pytest.mark.proves("N3")
def test_each_connection_is_told_of(
    port: PublishingPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N3: also those that a look at the monitor, elsewhere than its own, leaves."""
    receive = ConnectionMonitor.receive
    monkeypatch.setattr(ConnectionMonitor, "receive", lambda self: receive(self, 1))
    with ExitStack() as opened:

        def connect_and_watch() -> None:
            for _ in range(9):
                client = opened.enter_context(
                    socket.create_connection((port.endpoint.host, port.endpoint.port))
                )
                client.recv(1)  # it is accepted
            port._watch()

        port.loop.call(connect_and_watch, target="port")
        wait_until(
            lambda: port.loop.call(port.figures, target="port")["subscribers"] == 9
        )


@pytest.mark.proves("N3")
def test_a_subscription_counts_before_its_connection_is_told_of(
    port: PublishingPort,
) -> None:
    """N3: what is read first, the report or the subscription, makes no difference."""
    is_subscribing = threading.Event()

    def read_subscriptions_first() -> dict[str, int]:
        is_subscribing.set()
        assert port._socket.poll(int(WAIT_SECONDS * 1_000))
        while is_readable(port._socket):
            port.loop.drain(port._socket)
        return port.figures()

    context: ZMQContext = new_context()
    # With ZMQ_IMMEDIATE it would subscribe only when its own thread looks at it.
    limits = SocketLimits(is_immediate=False)
    subscriber = open_socket(context, zmq.SUB, limits)

    def subscribe() -> None:
        is_subscribing.wait(WAIT_SECONDS)
        subscriber.subscribe(TOPIC)
        connect_socket(subscriber, port.endpoint)

    thread = threading.Thread(target=subscribe)
    thread.start()
    try:
        figures = port.loop.call(read_subscriptions_first, target="port")
        assert (figures["topics"], figures["subscribers"]) == (1, 1)
        assert port.limiter.silent_count == 0
    finally:
        thread.join()
        subscriber.close()
        context.term()
