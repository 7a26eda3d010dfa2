"""One state, asked in every way that there is: each key is found, with one value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest

from haservices import HAConfig, open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from queryablestate import QueryableStateClient
from queryablestate.client.documents import key_to_json
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.gateway.console.state_view import key_path
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.key_text import key_text
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.sql.config import SQLConfig
from queryablestate.sql.server import SQLServer
from tests.lodestar.publishing import Publisher
from tests.queryablestate.gateway.asking import Asker


psycopg: Any = pytest.importorskip("psycopg")

pytestmark = [pytest.mark.shells, pytest.mark.proves("F2", "F6", "F7")]

N = Field("n", AtomicType.INT)
FIRST, LAST = datetime.min, datetime.max  # noqa: DTZ901 (of a type without a zone)
KEYS: dict[DataType, list[Any]] = {
    AtomicType.TINYINT: [-128, 127, 0],
    AtomicType.SMALLINT: [-(2**15), 2**15 - 1],
    AtomicType.INT: [-(2**31), 2**31 - 1],
    AtomicType.BIGINT: [-(2**63), 2**63 - 1, 2**53 + 1],
    AtomicType.FLOAT: [math.nan, -math.inf, 0.0, 2.0**-149, 0.10000000149011612],
    AtomicType.DOUBLE: [math.nan, math.inf, 0.0, 5e-324, 0.1, 1e16, 1e22],
    AtomicType.BOOLEAN: [True, False],
    AtomicType.STRING: [
        *("", "a,b", "null", "-5", "a/b", "..", "%2F", "é", "e\u0301", "😀", " a "),
        *("\u202eabc", "\r\n", "x" * 470, "'\"\\", "[1]", "watch", "?x#y", "a b+c"),
    ],
    AtomicType.BINARY: [b"", b"\0", b"\0\0\1", b"\xff" * 200],
    AtomicType.DATE: [date.min, date.max, date(1582, 10, 10)],
    AtomicType.TIMESTAMP: [
        *(FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC)),
        datetime(2026, 3, 29, 1, 30, 0, 1, tzinfo=UTC),
    ],
    AtomicType.TIMESTAMP_NTZ: [FIRST, LAST],
    DecimalType(38, 38): [Decimal("0." + "9" * 38), Decimal("-1E-38")],
    DecimalType(38, 0): [Decimal("9" * 38), Decimal("-" + "9" * 38)],
    DecimalType(18, 2): [Decimal("1.10"), Decimal("-9999999999999999.99")],
    ArrayType(AtomicType.STRING): [(), ("",), ("a", None)],
    StructType((Field("x", AtomicType.INT), Field("y", AtomicType.STRING))): [
        (1, "a,b"),
        (None, None),
    ],
}
SCHEMAS = {
    f"state-{place}": StateSchema(
        kind=StateKind.VALUE, key=(Field("k", data_type),), value=(N,)
    )
    for place, data_type in enumerate(KEYS)
}


@pytest.fixture(scope="module")
def faces() -> Iterator[tuple[QueryableStateClient, Asker, Any]]:
    """Return a client, what asks a gateway, and a connection of SQL."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as names,
        open_ha_services(HAConfig(url=names.url)) as ha,
        LocalStateCluster(ha, nodes=2),
        GatewayServer(ha, GatewayConfig()) as gateway,
        SQLServer(ha, SQLConfig(bind="127.0.0.1:0")) as server,
        QueryableStateClient(ha.config) as client,
    ):
        Publisher(ha.config, "job", SCHEMAS).write(
            {
                name: [(key, n) for n, key in enumerate([*keys, None])]
                for name, keys in zip(SCHEMAS, KEYS.values(), strict=True)
            }
        )
        host, _, port = server.address.rpartition(":")
        with psycopg.connect(
            host=host, port=port, user="me", dbname="job", autocommit=True
        ) as connection:
            yield client, Asker(gateway.url), connection


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_is_found_in_every_way(
    faces: tuple[QueryableStateClient, Asker, Any], name: str
) -> None:
    """By the client, over HTTP as text and as JSON, on its page, and with SQL."""
    client, ask, connection = faces
    schema = SCHEMAS[name]
    data_type = schema.key[0].type
    keys = [*KEYS[data_type], None]
    numbers = list(range(len(keys)))
    state = f"/v1/jobs/job/states/{name}"
    trees = [key_to_json(schema.key, key) for key in keys]

    assert [one["n"] for one in client.get_many("job", name, keys).values()] == numbers
    assert sorted(one["n"] for _, one in client.scan("job", name)) == numbers
    assert sorted(client.table("job", name).column("n").to_pylist()) == numbers
    answer = ask.post(f"{state}/keys:batchGet", {"keys": trees})
    assert [one["value"]["n"] for one in answer.document["results"]] == numbers
    is_nested = isinstance(data_type, StructType | ArrayType)
    for key, tree, n in zip(keys, trees, numbers, strict=True):
        paths = [f"{state}/keys/{quote(json.dumps(tree), safe='')}?json_key=true"]
        if key is not None and not is_nested:
            text = quote(key_text(schema.key, key), safe="")
            paths.append(f"{state}/keys/{text}")
            first = next(client.scan("job", name, start=key))
            assert first[1] == {"n": n}
        for path in paths:
            assert ask.get(path).document["value"] == {"n": n}, path
        assert ask.get(key_path("job", name, schema, key)).status == 200
        if isinstance(data_type, StructType):
            continue  # no parameter is one
        condition = "k IS NULL" if key is None else "k = %s"
        values = [] if key is None else [list(key) if is_nested else key]
        for form in ("%t", "%b"):
            # Of a table, what is wanted is looked up; of a query, all of it is read.
            for table in (f'"{name}"', f'(SELECT * FROM "{name}") s'):
                found = connection.execute(
                    f"SELECT n FROM {table} WHERE {condition.replace('%s', form)}",
                    values,
                )
                assert found.fetchall() == [(n,)], (key, form, table)
