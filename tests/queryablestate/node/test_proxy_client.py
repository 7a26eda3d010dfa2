from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from haservices import HAServices, open_ha_services
from nameservice import UnreachableError
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.wire.address import StateAddress
from tests.queryablestate.proxy_for_nodes import TIMEOUT_SECONDS, NodeProxy
from zmqtransport import CurveKeyPair, parse_endpoint, write_key_pair


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
        """A leader that nobody can reach is logged; the next one is gone to."""
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
        """Whoever waits learns that the handshake fails, and why that may be."""
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
