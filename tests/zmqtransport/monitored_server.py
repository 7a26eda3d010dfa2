"""A ROUTER whose connections are watched, and clients that come to it."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from zmqtransport.connections import ConnectionEvent, ConnectionMonitor
from zmqtransport.endpoints import Endpoint, parse_endpoint
from zmqtransport.sockets import (
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    receive_now,
)


WAIT_MS = 20_000
LOOPBACK = parse_endpoint("tcp://127.0.0.1:0")


class MonitoredServer:
    """A ROUTER on loopback with its monitor."""

    def __init__(self, context: ZMQContext, endpoint: Endpoint = LOOPBACK) -> None:
        self.router = open_socket(context, zmq.ROUTER, SocketLimits())
        self.monitor = ConnectionMonitor(self.router)
        self.endpoint = bind_socket(self.router, endpoint)

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


def open_client(context: ZMQContext, endpoint: Endpoint) -> ZMQSocket:
    """Return a client that is connected."""
    client = open_socket(context, zmq.DEALER, SocketLimits())
    connect_socket(client, endpoint)
    assert client.poll(WAIT_MS, zmq.POLLOUT)
    return client
