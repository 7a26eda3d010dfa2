"""A cluster with states of every kind, and what serves them as tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from attrs import frozen

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.sql.config import SQLConfig
from queryablestate.sql.server import SQLServer
from tests.lodestar.publishing import Publisher


DELAYS = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("carrier", AtomicType.STRING),),
    value=(
        Field("delay", AtomicType.DOUBLE),
        Field("flights", AtomicType.BIGINT),
        Field("day", AtomicType.DATE),
        Field("seen", AtomicType.TIMESTAMP),
        Field("fare", DecimalType(9, 2)),
    ),
)
ROUTES = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("origin", AtomicType.STRING), Field("number", AtomicType.INT)),
    value=(
        Field("miles", AtomicType.FLOAT),
        Field("tags", ArrayType(AtomicType.STRING)),
        Field("more", StructType((Field("a", AtomicType.INT),))),
        Field("counts", MapType(AtomicType.STRING, AtomicType.INT)),
    ),
)
BY_MONTH = StateSchema(
    kind=StateKind.MAP,
    key=(Field("carrier", AtomicType.STRING),),
    map_key=(Field("month", AtomicType.INT),),
    value=(Field("minutes", AtomicType.BIGINT),),
)
LOG = StateSchema(
    kind=StateKind.LIST,
    key=(Field("carrier", AtomicType.STRING),),
    value=(Field("event", AtomicType.STRING),),
)
NUMBERS = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("n", AtomicType.BIGINT),),
    value=(Field("word", AtomicType.STRING), Field("half", AtomicType.DOUBLE)),
)
CARRIERS = ("AA", "B6", "DL", "UA", "WN")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = date(2026, 3, 1)
NUMBER_COUNT = 3_000


def first_rows() -> dict[str, list[tuple[Any, ...]]]:
    """Return what there is at first."""
    drawn = random.Random(7)
    return {
        "delays": [
            (
                name,
                None if name == "UA" else n * 1.5,
                n,
                DAY + timedelta(days=n),
                NOON + timedelta(hours=n),
                Decimal(f"{n}.25"),
            )
            for n, name in enumerate(CARRIERS)
        ],
        "routes": [
            ((origin, n), n / 10, [origin, None], {"a": n}, {"x": n})
            for n in range(20)
            for origin in ("JFK", "LGA")
        ],
        "by_month": [(name, month, month) for name in CARRIERS for month in range(12)],
        "log": [(name, f"{name}{n}") for name in CARRIERS for n in range(3)],
        "numbers": [
            (n - 10, drawn.choice(("a", "b", "ü", "")), n / 2)
            for n in range(NUMBER_COUNT)
        ],
        "Odd Näme; --": [("k", 1)],
        "Überfällig": [("k", 1)],
    }


SCHEMAS = {
    "delays": DELAYS,
    "routes": ROUTES,
    "by_month": BY_MONTH,
    "log": LOG,
    "numbers": NUMBERS,
    "Odd Näme; --": StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.STRING),),
        value=(Field("v", AtomicType.INT),),
    ),
    "Überfällig": StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.STRING),),
        value=(Field("Ä", AtomicType.INT),),
    ),
}


@frozen
class Served:
    """A server of SQL, and all that is behind it."""

    config: HAConfig
    ha: HAServices
    cluster: LocalStateCluster
    server: SQLServer
    publisher: Publisher

    @property
    def host(self) -> str:
        """Return the host that it listens on."""
        return self.server.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return int(self.server.address.rpartition(":")[2])

    @property
    def dsn(self) -> str:
        """Return what libpq connects with."""
        return f"host={self.host} port={self.port} user=me dbname=flights"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Return a server without callers, for all tests that change nothing."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
        open_ha_services(HAConfig(url=names.url)) as ha,
        LocalStateCluster(ha, nodes=2) as cluster,
        SQLServer(
            ha,
            SQLConfig(
                bind="127.0.0.1:0",
                memory_limit_bytes=64 * 1024 * 1024,
                message_size_bytes_max=100_000,
            ),
        ) as server,
    ):
        publisher = Publisher(ha.config, "flights", SCHEMAS)
        publisher.write(first_rows())
        yield Served(ha.config, ha, cluster, server, publisher)
