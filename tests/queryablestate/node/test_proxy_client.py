from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from haservices import HAServices, open_ha_services
from nameservice import SystemClock, UnreachableError
from queryablestate.connect.credentials import as_credentials
from queryablestate.node.config import NodeConfig
from queryablestate.node.core.events import NodeEvent, ProxyConnected
from queryablestate.node.node import StateNode
from queryablestate.node.proxy_client import QueryStateProxyClient
from queryablestate.wire.address import StateAddress
from queryablestate.wire.questions import Refusal
from tests.queryablestate.proxy_for_nodes import TIMEOUT_SECONDS, NodeProxy
from zmqtransport import (
    CurveKeyPair,
    PollLoop,
    SocketLimits,
    bind_socket,
    new_context,
    open_socket,
    parse_endpoint,
    write_key_pair,
)


pytestmark = pytest.mark.shells


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of its own."""
    with open_ha_services("embedded:") as services:
        yield services


class TestFinding:
    def test_an_address_that_is_none_is_told_and_outlived(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """A leader that cannot be reached is logged; the next one is gone to."""
        with StateNode(ha, NodeConfig(data_dir=tmp_path)) as node:
            with capture_logs() as logs, NodeProxy(ha, published=lambda _: "nonsense"):
                with pytest.raises(UnreachableError, match="'nonsense'"):
                    node.wait_until_registered(0.3)
                assert "proxy.frame_dropped" in {log["event"] for log in logs}
            with NodeProxy(ha) as proxy:
                proxy.register()
                node.wait_until_registered(TIMEOUT_SECONDS)
            assert node.status()["failures_total"] == 0

    def test_keys_for_a_proxy_without_curve_are_refused(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """N4: what was meant to be encrypted is not sent in the clear."""
        pair = CurveKeyPair.generate()
        files = write_key_pair(pair, tmp_path / "node")
        allow_list = tmp_path / "writers.toml"
        allow_list.write_text(
            f"[clients.w]\npublic_key = '{pair.public_key}'\nroles = ['observe']\n"
        )
        config = NodeConfig(
            data_dir=tmp_path / "data",
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
            allow_list_file=allow_list,
        )
        with (
            NodeProxy(ha),
            StateNode(ha, config) as node,
            pytest.raises(UnreachableError, match="uses no CURVE"),
        ):
            node.wait_until_registered(0.5)

    def test_a_proxy_that_does_not_have_its_key_is_told(
        self, ha: HAServices, tmp_path: Path
    ) -> None:
        """One that waits learns that the handshake fails, and why that may be."""
        public_key = CurveKeyPair.generate().public_key

        def published(address: str) -> str:
            endpoint = parse_endpoint(address)
            return str(StateAddress(endpoint=endpoint, server_public_key=public_key))

        with (
            NodeProxy(ha, published=published),
            StateNode(ha, NodeConfig(data_dir=tmp_path)) as node,
            pytest.raises(UnreachableError, match="uses CURVE"),
        ):
            node.wait_until_registered(1.0)


class TestCongestion:
    @pytest.mark.proves("B1", "B2")
    def test_large_answers_leave_room_for_small_ones(self, ha: HAServices) -> None:
        """
        B1, B2: beside what is told of when it has gone, so much may wait, and no more.

        The former is bounded by who reads it; a small answer that waited for it would
        wait as long as it takes to send all of that.
        """
        loop = PollLoop(name="test-proxy-client", clock=SystemClock())
        context, peer_context = new_context(), new_context()
        peer = open_socket(
            peer_context, zmq.ROUTER, SocketLimits(receive_queue_count_max=1)
        )
        connected = threading.Event()

        def told(event: NodeEvent) -> None:
            if isinstance(event, ProxyConnected):
                connected.set()

        client = QueryStateProxyClient(
            ha,
            as_credentials(None),
            loop=loop,
            context=context,
            clock=SystemClock(),
            on_event=told,
            on_question=lambda _question, _keys: None,
        )
        gone: list[int] = []
        refusal = Refusal(request_id=1, code="illegal")

        def send(count: int, *, is_told: bool) -> bool:
            """Send that many MiB; return whether there is no room for small answers."""
            for number in range(count):
                on_gone = (
                    (lambda number=number: gone.append(number)) if is_told else None
                )
                assert client.send(refusal, bytes(1 << 20), on_gone=on_gone)
            return client.is_congested

        loop.at_end(client.disconnect)
        address = bind_socket(peer, parse_endpoint("tcp://127.0.0.1:0"))
        loop.start()
        try:
            loop.call(
                lambda: client.connect(str(StateAddress(endpoint=address))),
                target="the loop",
            )
            assert connected.wait(TIMEOUT_SECONDS)
            # It is not received: what the kernel does not take, waits.
            assert not loop.call(lambda: send(40, is_told=True), target="the loop")
            assert len(gone) < 40
            assert loop.call(lambda: send(40, is_told=False), target="the loop")
        finally:
            loop.stop()
            loop.join()
            context.destroy(linger=0)
            peer_context.destroy(linger=0)
        assert sorted(gone) == list(range(40))
        client.stop_finding()
