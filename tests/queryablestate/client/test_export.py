"""Files of states: what is in them, for values of every type."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

from haservices import HAServices
from nameservice import ConfigurationError
from queryablestate import QueryableStateClient, UnknownStateError
from queryablestate.client.export import ExportFormat, export_state
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
from tests.queryablestate.scripted_proxy import Lead, ScriptedProxy
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    STATE,
    ScriptedState,
)


pytestmark = [pytest.mark.shells, pytest.mark.proves("F7")]

EVERYTHING = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("name", AtomicType.STRING), Field("day", AtomicType.DATE)),
    value=(
        Field("count", AtomicType.BIGINT),
        Field("delay", AtomicType.DOUBLE),
        Field("fare", DecimalType(6, 2)),
        Field("late", AtomicType.BOOLEAN),
        Field("seen", AtomicType.TIMESTAMP),
        Field("raw", AtomicType.BINARY),
        Field("tags", MapType(AtomicType.STRING, AtomicType.INT)),
        Field("legs", ArrayType(AtomicType.STRING)),
    ),
)
SEEN = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
ROWS: dict[Any, Any] = {
    ("N1", date(2013, 1, 1)): (
        *(2**62, 1.5, Decimal("1.10"), True, SEEN, b"\x00\xff"),
        *({"é": 1}, ["a", None]),
    ),
    ('say "hi", ', None): (None,) * 8,
    ("", date(1, 1, 1)): (0, float("nan"), Decimal(0), False, SEEN, b"", {}, []),
}


def exported(
    services: HAServices, state: ScriptedState, export_format: ExportFormat
) -> tuple[bytes, int]:
    """Return what is written of *state*, and how many rows it is said to have."""
    file = io.BytesIO()
    with (
        ScriptedProxy(state) as proxy,
        Lead(services, proxy.address),
        QueryableStateClient(services) as client,
    ):
        proxy.keys_per_request_max = 8
        count = export_state(client, *STATE, export_format, file)
    return file.getvalue(), count


def test_csv(services: HAServices) -> None:
    """Null is nothing, an empty text a pair of quotes; what nests is JSON."""
    data, count = exported(services, ScriptedState(EVERYTHING, ROWS), ExportFormat.CSV)
    assert data.decode() == (
        "name,day,count,delay,fare,late,seen,raw,tags,legs\n"
        '"",0001-01-01,0,NaN,0.00,false,2013-01-01T05:15:00Z,"",{},[]\n'
        "N1,2013-01-01,4611686018427387904,1.5,1.10,true,2013-01-01T05:15:00Z,AP8=,"
        '"{""é"": 1}","[""a"", null]"\n'
        '"say ""hi"", ",,,,,,,,,\n'
    )
    assert count == 3
    read = list(csv.DictReader(io.StringIO(data.decode())))
    assert [one["name"] for one in read] == ["", "N1", 'say "hi", ']


def test_json(services: HAServices) -> None:
    """An object for each row, with the values that `scan --json` has."""
    data, count = exported(services, ScriptedState(EVERYTHING, ROWS), ExportFormat.JSON)
    found = [json.loads(line) for line in data.decode().splitlines()]
    assert count == 3
    assert found[1] == {
        "name": "N1",
        "day": "2013-01-01",
        "count": 2**62,
        "delay": 1.5,
        "fare": "1.10",
        "late": True,
        "seen": "2013-01-01T05:15:00Z",
        "raw": "AP8=",
        "tags": {"é": 1},
        "legs": ["a", None],
    }
    assert found[2] == dict.fromkeys(found[1], None) | {"name": 'say "hi", '}


def test_parquet(services: HAServices) -> None:
    """It is the table, and says as of what."""
    data, count = exported(
        services, ScriptedState(EVERYTHING, ROWS), ExportFormat.PARQUET
    )
    table = pq.read_table(io.BytesIO(data))
    assert count == table.num_rows == 3
    assert table.column("fare").to_pylist() == [Decimal("0.00"), Decimal("1.10"), None]
    assert table.column("day").to_pylist()[1:] == [date(2013, 1, 1), None]
    assert table.column("tags").to_pylist()[1] == [("é", 1)]
    told = pq.read_metadata(io.BytesIO(data)).metadata
    assert told[b"lodestar.batch_id"] == b"1"


@pytest.mark.parametrize("export_format", ExportFormat)
def test_a_state_without_rows(
    services: HAServices, export_format: ExportFormat
) -> None:
    """It has columns all the same, where the format has a place for them."""
    data, count = exported(services, ScriptedState(), export_format)
    assert count == 0
    match export_format:
        case ExportFormat.PARQUET:
            names = pq.read_table(io.BytesIO(data)).column_names
            assert names == ["name", "origin", "delay"]
        case ExportFormat.CSV:
            assert data == b"name,origin,delay\n"
        case ExportFormat.JSON:
            assert data == b""


def test_maps_and_lists_as_rows(services: HAServices) -> None:
    """CSV has a row for each entry, and one for each item."""
    maps = ScriptedState(MAP_SCHEMA, {"N1": {"JFK": ("A", 1), None: ("B", None)}})
    lists = ScriptedState(LIST_SCHEMA, {"N1": [("A", 1), ("B", 2)]})
    assert exported(services, maps, ExportFormat.CSV) == (
        b"name,airport,origin,delay\nN1,,B,\nN1,JFK,A,1\n",
        2,
    )
    assert exported(services, lists, ExportFormat.CSV) == (
        b"name,origin,delay\nN1,A,1\nN1,B,2\n",
        2,
    )


@pytest.mark.parametrize("export_format", ExportFormat)
def test_nothing_is_written_of_what_cannot_be_read(
    services: HAServices, export_format: ExportFormat
) -> None:
    """A state that is not there leaves no heading behind."""
    file = io.BytesIO()
    with (
        ScriptedProxy(ScriptedState()) as proxy,
        Lead(services, proxy.address),
        QueryableStateClient(services) as client,
        pytest.raises(UnknownStateError),
    ):
        export_state(client, "flights", "x", export_format, file)
    assert file.getvalue() == b""


def test_a_struct_without_fields_is_told_where_parquet_has_none(
    services: HAServices,
) -> None:
    """It ended with a traceback; the other formats have such a column."""
    schema = StateSchema(
        kind=StateKind.VALUE,
        key=(Field("k", AtomicType.STRING),),
        value=(Field("e", StructType(())),),
    )
    state = ScriptedState(schema, {"a": ({},)})
    with pytest.raises(ConfigurationError, match=r"'e'.*as CSV or JSON"):
        exported(services, state, ExportFormat.PARQUET)
    data, _ = exported(services, state, ExportFormat.JSON)
    assert json.loads(data) == {"k": "a", "e": {}}
