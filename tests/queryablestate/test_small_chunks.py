"""Nodes that take smaller chunks than writers make as a rule (B3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import ConfigurationError
from queryablestate import (
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    StateOperations,
)
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import TEXTS


pytestmark = [pytest.mark.shells, pytest.mark.proves("B3")]

LIMIT: Final = 65_536


@pytest.fixture
def ha(tmp_path: Path) -> Iterator[HAServices]:
    """Return a name service with a proxy and two nodes, one of small chunks."""
    config = HAConfig(url=f"embedded:{tmp_path.name}")
    with (
        open_ha_services(config) as services,
        QueryStateProxyServer(services),
        StateNode(services, node(tmp_path / "1", "small", LIMIT)),
        StateNode(services, node(tmp_path / "2", "large", 16 << 20)),
    ):
        yield services


def node(data_dir: Path, node_id: str, chunk_size_bytes_max: int) -> NodeConfig:
    """Return the settings of a node."""
    return NodeConfig(
        data_dir=data_dir,
        node_id=node_id,
        chunk_size_bytes_max=chunk_size_bytes_max,
        is_durable=False,
    )


def test_rows_are_cut_into_what_each_node_takes(ha: HAServices) -> None:
    """B3: a chunk that a node would not take was sent until time was up."""
    publisher = Publisher(ha, "job", {"s": TEXTS})
    rows = [(number, "x" * 900) for number in range(1_500)]
    assert publisher.write({"s": rows}) == 0
    with QueryableStateClient(ha) as client:
        assert client.count("job", "s") == len(rows)


def test_a_row_that_a_node_would_not_take_is_refused_at_once(ha: HAServices) -> None:
    """B3: by the name of the setting; it was sent until time was up."""
    publisher = Publisher(ha, "job", {"s": TEXTS})
    # Each of the nodes has some of their key groups.
    with pytest.raises(ConfigurationError) as caught:
        publisher.write({"s": [(number, "x" * LIMIT) for number in range(100)]})
    assert "chunk_size_bytes_max of node small, which is 65,536" in str(caught.value)
    publisher.restart({"s": TEXTS})
    assert publisher.write({"s": [(1, "x")]}) == 0


@pytest.mark.proves("S2")
def test_a_large_row_moves_to_a_node_of_small_chunks(
    ha: HAServices, tmp_path: Path
) -> None:
    """B3, S2: what one node was given, each other one can copy."""
    with StateOperations(ha) as operations:
        operations.drain("small")
        operations.wait_until_drained("small", timeout_seconds=60.0)
        publisher = Publisher(ha, "job", {"s": TEXTS})
        row = (1, "x" * (12 << 20))
        publisher.write({"s": [row]})
        operations.drain("small", undo=True)
        operations.drain("large")
        operations.wait_until_drained("large", timeout_seconds=60.0)
    with QueryableStateClient(ha, deadline_seconds=30.0) as client:
        assert client.get("job", "s", 1) == {"v": row[1]}
