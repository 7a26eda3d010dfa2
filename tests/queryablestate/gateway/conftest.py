"""A cluster with states of every kind, and a gateway in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from attrs import frozen

from haservices import HAConfig, HAServices, open_ha_services
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import (
    AtomicType,
    DecimalType,
    Field,
    StateKind,
    StateSchema,
)
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Asker


AIRCRAFT = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("delay", AtomicType.INT), Field("last", AtomicType.TIMESTAMP)),
)
DELAYS = StateSchema(
    kind=StateKind.MAP,
    key=(Field("tailnum", AtomicType.STRING),),
    map_key=(Field("origin", AtomicType.STRING),),
    value=(Field("minutes", AtomicType.INT),),
)
LOG = StateSchema(
    kind=StateKind.LIST,
    key=(Field("carrier", AtomicType.STRING), Field("day", AtomicType.DATE)),
    value=(Field("event", AtomicType.STRING), Field("fare", DecimalType(9, 2))),
)
ODD = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("name", AtomicType.STRING),),
    value=(Field("n", AtomicType.BIGINT), Field("x", AtomicType.DOUBLE)),
)
NAMES = tuple(f"N{number:03}" for number in range(250))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = date(2026, 3, 1)

# Keys that a path can say only percent-encoded, or that look like something else.
ODD_NAMES = (
    "",
    "a/b",
    "%2F",
    "ü☃",
    "a b+c",
    "?x=1",
    "#",
    "watch",
    "x\ny",
    "..x",
    "'\"<",
)


@frozen
class Served:
    """A gateway, and all that is behind it."""

    config: HAConfig
    ha: HAServices
    cluster: LocalStateCluster
    gateway: GatewayServer
    ask: Asker
    publisher: Publisher


def first_rows() -> dict[str, list[tuple[Any, ...]]]:
    """Return what there is at first."""
    fares = [(("AA", DAY), f"e{n}", Decimal(n)) for n in range(5)]
    return {
        "aircraft": [(name, n, NOON) for n, name in enumerate(NAMES)],
        "delays": [("N1", f"A{n:02}", n) for n in range(12)] + [("N2", "JFK", None)],
        "log": [*fares, (("x,y", DAY), "z", None)],
        "odd: ü&?": [(name, 2**62 + 1, float("nan")) for name in ODD_NAMES],
    }


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Return a gateway without callers, for all tests of a file."""
    config = HAConfig(url=f"embedded:gateway-{request.module.__name__[-40:]}")
    with (
        open_ha_services(config) as ha,
        LocalStateCluster(ha, nodes=2) as cluster,
        GatewayServer(ha, GatewayConfig(heartbeat_seconds=0.5)) as gateway,
    ):
        publisher = Publisher(
            config,
            "flights",
            {"aircraft": AIRCRAFT, "delays": DELAYS, "log": LOG, "odd: ü&?": ODD},
        )
        publisher.write(first_rows())
        yield Served(config, ha, cluster, gateway, Asker(gateway.url), publisher)


@pytest.fixture
def ask(served: Served) -> Asker:
    """Return what asks it."""
    return served.ask
