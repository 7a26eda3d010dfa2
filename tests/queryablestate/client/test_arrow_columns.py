"""Values become Arrow columns and come back as what they were."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.client.arrow_columns import (
    ARROW_TYPES,
    ArrowPages,
    arrow_rows,
    arrow_schema,
    arrow_table,
    write_parquet,
)
from queryablestate.client.frames import frame_fields, row_columns
from queryablestate.client.routes import Route
from queryablestate.schema.key_columns import KeyColumns
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)
from queryablestate.schema.values import ValueCodec
from tests.queryablestate.scripted_state import ScriptedState
from tests.queryablestate.typed_values import (
    fields_of,
    key_types,
    keys_of,
    struct_of,
    value_types,
    values_of,
)


def plain(value: Any, data_type: DataType) -> Any:
    """Return *value*, of a key or not, as pyarrow gives it back; NaN as a text."""
    match data_type:
        case _ if value is None:
            return None
        case StructType(fields=fields):
            values = value.values() if isinstance(value, dict) else value
            return {
                one.name: plain(part, one.type)
                for one, part in zip(fields, values, strict=True)
            }
        case ArrayType(element=element):
            return [plain(one, element) for one in value]
        case MapType(key=key, value=value_type):
            pairs = value.items() if isinstance(value, dict) else value
            return [(plain(one, key), plain(two, value_type)) for one, two in pairs]
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return "NaN" if math.isnan(value) else value
        case _:
            return value


@pytest.mark.proves("F7")
class TestTypes:
    """F7: columns have the types of the schema."""

    @given(data=st.data())
    def test_a_column_of_any_type_is_what_it_was(self, data: st.DataObject) -> None:
        """Of a value or of a key; null is null, to the last microsecond and digit."""
        is_key = data.draw(st.booleans())
        data_type = data.draw(key_types() if is_key else value_types())
        values = keys_of(data_type) if is_key else values_of(data_type)
        given_ = data.draw(st.lists(values, max_size=4))
        fields = fields_of(data_type)
        batch = arrow_rows(fields, [(one,) for one in given_])
        batch.validate(full=True)
        assert [plain(one, data_type) for one in batch.column(0).to_pylist()] == [
            plain(one, data_type) for one in given_
        ]
        assert batch.schema.equals(arrow_schema(fields))

    @given(data=st.data())
    def test_pages_are_what_rows_are(self, data: st.DataObject) -> None:
        """Column by column, they have the values that each row has by itself."""
        kind = data.draw(st.sampled_from(StateKind))
        key_columns = st.lists(key_types(), min_size=1, max_size=2)
        named = iter(fields_of(*[AtomicType.INT] * 8))
        key, map_key, value = (
            tuple(Field(next(named).name, one) for one in data.draw(types))
            for types in (
                key_columns,
                key_columns if kind is StateKind.MAP else st.just([]),
                st.lists(value_types(), min_size=1, max_size=3),
            )
        )
        schema = StateSchema(kind=kind, key=key, map_key=map_key, value=value)
        route = Route(ScriptedState(schema).description, None)
        codec, values = route.key_codec, ValueCodec(value)

        def key_of(fields: tuple[Field, ...]) -> Any:
            columns = tuple(data.draw(keys_of(one.type)) for one in fields)
            return columns if len(columns) > 1 else columns[0]

        stored: dict[bytes, bytes] = {}
        for _ in range(data.draw(st.integers(0, 3))):
            one = key_of(key)
            encoded = codec.encode(one)
            if kind is StateKind.MAP:
                encoded += codec.encode_map_key(key_of(map_key))
            for index in range(
                data.draw(st.integers(1, 3)) if kind is StateKind.LIST else 1
            ):
                place = index.to_bytes(8, "big") if kind is StateKind.LIST else b""
                drawn = [data.draw(values_of(column.type)) for column in value]
                stored[encoded + place] = values.encode_row(drawn)
        rows = sorted(stored.items())

        expected: list[tuple[Any, ...]] = []
        for (encoded, _), (one, row) in zip(rows, route.decode_page(rows), strict=True):
            columns = row_columns(schema, one, row)
            if kind is not StateKind.LIST:
                expected.append(columns)
            elif encoded.endswith(bytes(8)):
                lists = [[item] for item in columns[len(key) :]]
                expected.append((*columns[: len(key)], *lists))
            else:
                for items, item in zip(
                    expected[-1][len(key) :], columns[len(key) :], strict=True
                ):
                    items.append(item)
        fields = (*frame_fields(schema), Field("constant", AtomicType.BIGINT))
        wanted = data.draw(st.lists(st.sampled_from(fields), min_size=1, unique=True))
        constant = data.draw(st.none() | st.integers(0, 9))
        batch = ArrowPages(route, wanted).batch(rows, {"constant": constant})
        batch.validate(full=True)
        places = [fields.index(one) for one in wanted]
        whole = [[(*row, constant)[place] for place in places] for row in expected]
        assert repr(batch) == repr(arrow_rows(wanted, whole))
        assert repr(batch.to_pydict()) == repr(arrow_rows(wanted, whole).to_pydict())

    @pytest.mark.parametrize("kind", [StateKind.VALUE, StateKind.MAP])
    def test_times_of_any_year_are_columns(self, kind: StateKind) -> None:
        """
        Also those of keys, and inside of others: Spark has years that Python has not.

        One key of the year 12024 made a whole state unreadable: as a frame, as a file,
        by SQL and by Spark itself.
        """
        inside = StructType((Field("v", ArrayType(AtomicType.TIMESTAMP)),))
        by_time = (Field("d", AtomicType.DATE), Field("s", AtomicType.TIMESTAMP))
        at = (Field("at", AtomicType.TIMESTAMP_NTZ),) if kind is StateKind.MAP else ()
        value = (Field("x", inside), Field("y", MapType(AtomicType.DATE, inside)))
        schema = StateSchema(kind=kind, key=by_time, map_key=at, value=value)
        route = Route(ScriptedState(schema).description, None)
        day, moment = 3_672_000, 10**18
        key = KeyColumns(by_time).to_bytes((day, -moment))
        key += KeyColumns(at).to_bytes((moment,) if at else ())
        row = msgspec.msgpack.encode([[[moment]], [[day, [[-moment]]]]])
        batch = ArrowPages(route, frame_fields(schema)).batch([(key, row)], {})
        batch.validate(full=True)
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        assert found["d"].cast(pa.int32()).to_pylist() == [day]
        assert found["s"].cast(pa.int64()).to_pylist() == [-moment]
        if at:
            assert found["at"].cast(pa.int64()).to_pylist() == [moment]
        (times,) = found["x"].flatten()
        assert times.flatten().cast(pa.int64()).to_pylist() == [moment]
        assert found["y"].keys.cast(pa.int32()).to_pylist() == [day]

    @pytest.mark.parametrize("one", AtomicType)
    def test_every_plain_type_has_one(self, one: AtomicType) -> None:
        """None is left to be guessed from the values."""
        assert arrow_schema(fields_of(one)).types == [ARROW_TYPES[one]]

    def test_types_nest(self) -> None:
        """What is inside has its own type."""
        inner = struct_of(DecimalType(5, 2), AtomicType.TIMESTAMP)
        (found,) = arrow_schema(fields_of(MapType(AtomicType.DATE, inner))).types
        decimal, moment = pa.decimal128(5, 2), pa.timestamp("us", tz="UTC")
        assert found == pa.map_(pa.date32(), pa.struct([("a", decimal), ("b", moment)]))


@pytest.mark.proves("F7")
class TestFiles:
    """F7: a state is a file."""

    @given(data=st.data())
    def test_a_parquet_file_has_what_the_table_has(self, data: st.DataObject) -> None:
        """Rows and types; the file's own metadata are those of the last batch."""
        # Parquet has no struct without fields, and no key of a map that is null.
        data_type = data.draw(key_types())
        pages = data.draw(
            st.lists(st.lists(keys_of(data_type), max_size=3), min_size=1, max_size=3)
        )
        fields = fields_of(data_type)
        batches = [
            arrow_rows(fields, [(one,) for one in page]).replace_schema_metadata(
                {"lodestar.batch_id": str(number)}
            )
            for number, page in enumerate(pages)
        ]
        file = io.BytesIO()
        assert write_parquet(batches, file) == sum(map(len, pages))
        found = pq.read_table(io.BytesIO(file.getvalue()))
        expected = arrow_table(fields, batches, {"lodestar.batch_id": "0"})
        assert found.schema.equals(expected.schema)
        told = pq.read_metadata(io.BytesIO(file.getvalue())).metadata
        assert told[b"lodestar.batch_id"] == str(len(pages) - 1).encode()
        assert [plain(one, data_type) for one in found.column(0).to_pylist()] == [
            plain(one, data_type) for page in pages for one in page
        ]

    def test_pages_are_joined_to_row_groups(self) -> None:
        """A file of a thousand small pages is not a thousand small groups."""
        fields = fields_of(AtomicType.INT)
        page = arrow_rows(fields, [(n,) for n in range(5_000)])
        file = io.BytesIO()
        assert write_parquet((page for _ in range(50)), file) == 250_000
        found = pq.ParquetFile(io.BytesIO(file.getvalue()))
        assert found.num_row_groups == 3


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    """And who only asks for keys does not load it."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from queryablestate import QueryableStateClient\n"
        "from nameservice import ConfigurationError\n"
        "client = QueryableStateClient('embedded:')\n"
        "try:\n    client.table('flights', 'aircraft')\n"
        "except ConfigurationError as error:\n    print(error)\n"
        "client.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pip install 'spark-lodestar[frames]'" in done.stdout
