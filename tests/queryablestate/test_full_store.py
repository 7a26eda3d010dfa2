"""A node whose store is nearly full: what the writer hears, and what helps (W3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from nameservice import StorageError
from queryablestate import (
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    StateOperations,
)
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import TEXTS


pytestmark = [pytest.mark.shells, pytest.mark.proves("W3")]

LIMIT: Final = 4 << 20
ROWS: Final = [(number, "x" * 900) for number in range(1_500)]


@pytest.fixture
def ha(tmp_path: Path) -> Iterator[HAServices]:
    """Return a name service where a proxy leads."""
    config = HAConfig(url=f"embedded:{tmp_path.name}")
    with open_ha_services(config) as services, QueryStateProxyServer(services):
        yield services


def node(ha: HAServices, data_dir: Path, size_bytes_max: int = LIMIT) -> StateNode:
    """Return a node that takes so much."""
    settings = NodeConfig(
        data_dir=data_dir,
        node_id="node-1",
        size_bytes_max=size_bytes_max,
        is_durable=False,
    )
    return StateNode(ha, settings)


def refused(publisher: Publisher) -> str:
    """Return why a batch is refused."""
    with pytest.raises(StorageError) as caught:
        publisher.write({"new": ROWS})
    return str(caught.value)


class TestFullStore:
    def test_dropping_a_state_makes_room(self, ha: HAServices, tmp_path: Path) -> None:
        """Nothing waits in front of it, and the query goes on."""
        with node(ha, tmp_path), StateOperations(ha) as operations:
            old = Publisher(ha, "job", {"old": TEXTS})
            old.write({"old": ROWS[:800]})
            old.write({"old": ROWS[800:]})
            new = Publisher(ha, "job", {"new": TEXTS})
            text = refused(new)
            assert "batch 0 is not decided, since node node-1 could not apply" in text
            assert str(tmp_path) in text
            assert "within 4,194,304 bytes" in text
            operations.drop_state("job", "old")
            new.restart({"new": TEXTS})
            assert new.write({"new": ROWS[:500]}) == 0
            with QueryableStateClient(ha) as client:
                assert client.get("job", "new", 7) == {"v": "x" * 900}

    def test_a_greater_limit_makes_room(self, ha: HAServices, tmp_path: Path) -> None:
        """The node has what it had, and takes the batch."""
        with node(ha, tmp_path):
            old = Publisher(ha, "job", {"old": TEXTS})
            old.write({"old": ROWS[:800]})
            old.write({"old": ROWS[800:]})
            new = Publisher(ha, "job", {"new": TEXTS})
            refused(new)
        with node(ha, tmp_path, 4 * LIMIT):
            new.restart({"new": TEXTS})
            assert new.write({"new": ROWS}) == 0
            with QueryableStateClient(ha) as client:
                assert client.get("job", "old", 7) == {"v": "x" * 900}
                assert client.get("job", "new", 7) == {"v": "x" * 900}
