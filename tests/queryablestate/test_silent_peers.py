"""Connections of clients whose peer says nothing and takes nothing any more."""

from __future__ import annotations

import attrs
import pytest
import zmq

from queryablestate.client.link import PROXY_SOCKET_LIMITS
from queryablestate.connect.node_link import NODE_SOCKET_LIMITS
from queryablestate.node.proxy_client import NODE_TO_PROXY_SOCKET_LIMITS
from tests.recording import WAIT_SECONDS
from zmqtransport import (
    ConnectionClosed,
    ConnectionMonitor,
    HandshakeSucceeded,
    SocketLimits,
    bind_socket,
    connect_socket,
    new_context,
    open_socket,
    send_now,
)
from zmqtransport.endpoints import parse_endpoint


pytestmark = pytest.mark.shells

KERNEL_BUFFER_BYTES = 4_096


def wait_for(monitor: ConnectionMonitor, kind: type) -> bool:
    """Return whether *kind* happens to a connection in time."""
    while monitor.socket.poll(int(WAIT_SECONDS * 1_000)):
        if any(isinstance(event, kind) for event in monitor.receive()):
            return True
    return False


@pytest.mark.parametrize(
    "limits",
    [PROXY_SOCKET_LIMITS, NODE_SOCKET_LIMITS, NODE_TO_PROXY_SOCKET_LIMITS],
    ids=["client to proxy", "writer to node", "node to proxy"],
)
def test_a_peer_that_takes_nothing_is_left(limits: SocketLimits) -> None:
    """TCP ends the connection; ZMTP is not asked to, for its pings can abort us."""
    assert limits.silence_timeout_ms <= 10_000
    deaf = SocketLimits(
        receive_queue_count_max=1, kernel_buffer_bytes=KERNEL_BUFFER_BYTES
    )
    hasty = attrs.evolve(
        limits, silence_timeout_ms=1_000, kernel_buffer_bytes=KERNEL_BUFFER_BYTES
    )
    with (
        new_context() as server_context,
        new_context() as client_context,
        open_socket(server_context, zmq.ROUTER, deaf) as server,
        open_socket(client_context, zmq.DEALER, hasty) as client,
    ):
        monitor = ConnectionMonitor(client)
        connect_socket(client, bind_socket(server, parse_endpoint("tcp://127.0.0.1:0")))
        assert wait_for(monitor, HandshakeSucceeded)
        assert client.getsockopt(zmq.HEARTBEAT_IVL) == 0
        for _ in range(200):
            send_now(client, [bytes(10_000)])
        assert wait_for(monitor, ConnectionClosed)
        monitor.close()
