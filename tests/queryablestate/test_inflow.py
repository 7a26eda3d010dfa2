"""N3: what waits inside ZeroMQ of what comes in has a bound at every port."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import (
    NodeConfig,
    QueryStateProxyServer,
    StateNode,
)
from queryablestate.proxy.config import ProxyConfig
from tests.zmqtransport.raw_peer import frame_of_many, raw_peer


pytestmark = [pytest.mark.shells, pytest.mark.proves("N3")]

# Of a port that takes the largest frames: four of them, and what comes within a look.
WAITING_BYTES_MAX: Final = 4 * (32 << 20) + (128 << 20)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Return the ports of a proxy and a node."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
        open_ha_services(HAConfig(url=names.url)) as ha,
        QueryStateProxyServer(ha, ProxyConfig(bind="tcp://127.0.0.1:0")) as proxy,
        StateNode(ha, NodeConfig(data_dir=tmp_path_factory.mktemp("node"))) as node,
    ):
        node.wait_until_registered(30.0)
        yield {"proxy": port_of(proxy.address), "node": port_of(node.address)}


def port_of(address: str) -> int:
    """Return the port in an address of a role."""
    return int(address.partition("?")[0].rpartition(":")[2])


def sent_before_the_end(connection: socket.socket, frame: bytes) -> int:
    """Send *frame* again and again; return how much went before the server ended it."""
    sent_bytes = 0
    left = memoryview(frame)
    connection.setblocking(False)
    with contextlib.suppress(ConnectionError):
        while sent_bytes < 4 * WAITING_BYTES_MAX:
            readable, writable, _ = select.select([connection], [connection], [], 20.0)
            assert readable or writable, "it is neither read nor ended"
            if readable and not connection.recv(65_536):
                break
            if writable:
                count = connection.send(left)
                sent_bytes += count
                left = left[count:] or memoryview(frame)
    return sent_bytes


@pytest.mark.parametrize("role", ["proxy", "node"])
def test_a_message_that_never_ends_is_ended(role: str, ports: dict[str, int]) -> None:
    """N3: its frames wait for the last one, and ZeroMQ has no limit for that."""
    with raw_peer(ports[role]) as connection:
        sent_bytes = sent_before_the_end(connection, frame_of_many())
    assert sent_bytes <= WAITING_BYTES_MAX
