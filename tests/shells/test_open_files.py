"""A process with few open files left is told so, and goes on (N3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from haservices import HAServices, open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from nameservice import ConfigurationError
from queryablestate import (
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
)
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.sql.config import SQLConfig
from queryablestate.sql.server import SQLServer
from tests.exhausted_descriptors import no_more_descriptors
from tests.leaks import assert_closed, process_figures, settled
from tests.tiers import nightly_after


pytestmark = pytest.mark.shells

Open: TypeAlias = Callable[[HAServices, Path], AbstractContextManager[object]]

OPENED: dict[str, Open] = {
    "client": lambda ha, _: open_ha_services(ha.config),
    "gateway": lambda ha, _: GatewayServer(ha, GatewayConfig(bind="127.0.0.1:0")),
    "node": lambda ha, path: StateNode(ha, NodeConfig(data_dir=path)),
    "proxy": lambda ha, _: QueryStateProxyServer(ha),
    "queries": lambda ha, _: QueryableStateClient(ha),
    "server": lambda _, path: LeaderServer(
        ServerConfig(
            bind="tcp://127.0.0.1:0", publish_bind="tcp://127.0.0.1:0", data_dir=path
        )
    ),
    "sql": lambda ha, _: SQLServer(ha, SQLConfig(bind="127.0.0.1:0", worker_count=1)),
}


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """A name service that is there."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
        closing(open_ha_services(server.url)) as ha,
    ):
        yield ha


@pytest.mark.proves("N3")
@pytest.mark.parametrize("role", nightly_after(3, sorted(OPENED)))
def test_what_has_too_few_says_so_and_leaves_nothing(
    role: str, ha: HAServices, tmp_path: Path
) -> None:
    """N3: libzmq and DuckDB would end the process, so nothing is begun half way."""
    with OPENED[role](ha, tmp_path / "before"):
        pass  # what it imports is loaded by now
    before = settled(process_figures)
    for left_count in (0, 1, 2, 3, 6, 12, 18, 24, 30):
        with (
            no_more_descriptors(left_count=left_count),
            pytest.raises(ConfigurationError, match="open files"),
            OPENED[role](ha, tmp_path / str(left_count)),
        ):
            raise AssertionError(left_count)
        assert_closed(before)
    with OPENED[role](ha, tmp_path / "after"):
        pass
