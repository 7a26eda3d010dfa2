"""The roles that the operator's page says are enough are enough."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from haservices import HAConfig, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from nameservice import AuthenticationError, NoLeaderError
from queryablestate import QueryableStateClient
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.server import QueryStateProxyServer
from zmqtransport import CurveKeyPair, KeyFiles, write_key_pair


pytestmark = pytest.mark.shells

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "run-a-cluster.md"


def told_roles() -> dict[str, list[str]]:
    """Return the roles of each program in the page's allow-list."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"test_roles\.py .*?```toml\n(.*?)```", text, flags=re.DOTALL)
    assert found is not None
    clients = tomllib.loads(found[1])["clients"]
    return {name: client["roles"] for name, client in clients.items()}


def serve(
    stack: ExitStack, directory: Path, roles: Mapping[str, list[str]]
) -> dict[str, HAConfig]:
    """Start a name service with an allow-list; return the configuration of each."""
    pairs = {name: CurveKeyPair.generate() for name in ("server", *roles)}
    files: dict[str, KeyFiles] = {
        name: write_key_pair(pair, directory / name) for name, pair in pairs.items()
    }
    allow_list = directory / "clients.toml"
    allow_list.write_text(
        "\n".join(
            f"[clients.{name}]\npublic_key = '{pairs[name].public_key}'\nroles = {own}"
            for name, own in roles.items()
        ),
        encoding="utf-8",
    )
    server = stack.enter_context(
        LeaderServer(
            ServerConfig(
                bind="tcp://127.0.0.1:0",
                data_dir=str(directory / "names"),
                curve_public_key_file=str(files["server"].public_file),
                curve_secret_key_file=str(files["server"].secret_file),
                allow_list_file=str(allow_list),
            )
        )
    )
    return {
        name: HAConfig(
            url=server.url,
            curve_public_key_file=str(files[name].public_file),
            curve_secret_key_file=str(files[name].secret_file),
            curve_server_key_file=str(files["server"].public_file),
        )
        for name in roles
    }


def test_a_cluster_works_with_the_roles_of_the_page(tmp_path: Path) -> None:
    """A proxy leads, a node registers, and a reader is answered."""
    roles = told_roles()
    with ExitStack() as stack:
        configs = serve(stack, tmp_path, roles)
        proxy = stack.enter_context(open_ha_services(configs["proxy-1"]))
        stack.enter_context(QueryStateProxyServer(proxy))
        names = stack.enter_context(open_ha_services(configs["node-1"]))
        node = stack.enter_context(
            StateNode(names, NodeConfig(data_dir=tmp_path / "rows"))
        )
        node.wait_until_registered(60)
        for name in ("dashboard", "flights-job"):
            client = stack.enter_context(QueryableStateClient(configs[name]))
            assert list(client.jobs()) == []
        operator = stack.enter_context(open_ha_services(configs["operator"]))
        assert operator.operations.revoke("QUERY_PROXY") is not None


def test_the_roles_of_a_node_do_not_make_a_proxy(tmp_path: Path) -> None:
    """Who may only observe does not lead, and finds no other leader."""
    roles = told_roles()
    with ExitStack() as stack:
        configs = serve(stack, tmp_path, roles)
        ha = stack.enter_context(open_ha_services(configs["node-1"]))
        with pytest.raises(AuthenticationError):
            list(ha.operations.contenders("flights"))
        with (
            ha.get_leader_retriever("QUERY_PROXY") as retriever,
            pytest.raises(NoLeaderError),
        ):
            retriever.wait_for_leader(timeout_seconds=0.2)
