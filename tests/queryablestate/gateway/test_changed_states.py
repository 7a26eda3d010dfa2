"""What the gateway knows of a state may be out of date: no answer shows it (Q3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from haservices import HAServices, open_ha_services
from queryablestate import StateOperations
from queryablestate.gateway import GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Asker
from tests.queryablestate.gateway.conftest import AIRCRAFT, DELAYS


pytestmark = pytest.mark.shells

STATE = "/v1/jobs/flights/states/aircraft"
_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """Return a name service of this test's own."""
    with open_ha_services(f"embedded:changed-{next(_numbers)}") as services:
        yield services


@pytest.fixture
def publisher(ha: HAServices) -> Iterator[Publisher]:
    """Return what has written a first batch."""
    with LocalStateCluster(ha, nodes=1):
        publisher = Publisher(ha, "flights", {"aircraft": AIRCRAFT})
        publisher.write({"aircraft": [("N1", 1, None)]})
        yield publisher


@pytest.fixture
def ask(ha: HAServices, publisher: Publisher) -> Iterator[Asker]:
    """Return what asks a gateway that knows the state of the first batch."""
    with GatewayServer(ha) as gateway:
        ask = Asker(gateway.url)
        assert ask.get(f"{STATE}/keys/N1").document["value"]["delay"] == 1
        yield ask


@pytest.mark.proves("Q3")
@pytest.mark.parametrize("path", ["entries", "entries/JFK"])
def test_a_state_of_another_kind(
    ha: HAServices, ask: Asker, publisher: Publisher, path: str
) -> None:
    """That it is no map is not said of what took its place."""
    with StateOperations(ha) as operations:
        operations.drop_state("flights", "aircraft")
    anew = Publisher(ha, "flights", {"aircraft": DELAYS})
    anew.write({"aircraft": [("N1", "JFK", 3)]})
    assert ask.get(f"{STATE}/keys/N1/{path}").status == 200
