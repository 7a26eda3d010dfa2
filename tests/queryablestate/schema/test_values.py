"""Rows come back as Spark's own would, and damaged ones do not."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nameservice import LocalProtocolError, RemoteProtocolError
from queryablestate.schema.key_columns import KeyColumns
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StructType,
)
from queryablestate.schema.values import ValueCodec, ValueColumns
from tests.queryablestate.typed_values import (
    NESTED_VALUES,
    SCALARS,
    fields_of,
    struct_of,
    value_types,
    values_of,
)


PLAIN = ValueCodec(
    fields_of(AtomicType.STRING, AtomicType.BIGINT, AtomicType.DOUBLE),
)
PAIR = struct_of(AtomicType.DATE, AtomicType.STRING)
DAY = date(2013, 1, 1)


def round_trip(data_type: DataType, value: object) -> Any:
    """Return what comes back of a row that holds *value* alone."""
    codec = ValueCodec([Field("one", data_type)])
    return codec.decode_row(codec.encode_row([value]))["one"]


class TestRoundTrip:
    """What is stored comes back."""

    @given(st.data())
    def test_every_row_comes_back(self, data: st.DataObject) -> None:
        """Whatever the types, with nulls anywhere, and the sign of a zero."""
        types = data.draw(st.lists(value_types(), max_size=3))
        codec = ValueCodec(fields_of(*types))
        row = {
            field.name: data.draw(values_of(field.type)) for field in fields_of(*types)
        }
        payload = codec.encode_row(tuple(row.values()))
        assert repr(codec.decode_row(payload)) == repr(row)
        assert repr(codec.decode_rows([payload, None])) == repr([row, None])

    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_VALUES], ids=str)
    @given(data=st.data())
    @settings(max_examples=25)
    def test_every_type_comes_back(
        self, data_type: DataType, data: st.DataObject
    ) -> None:
        """Each type by itself, so that none is left out by chance."""
        value = data.draw(values_of(data_type))
        assert repr(round_trip(data_type, value)) == repr(value)

    @pytest.mark.parametrize(
        ("data_type", "value", "expected"),
        [
            (AtomicType.DOUBLE, -0.0, -0.0),
            (AtomicType.DOUBLE, 3, 3.0),
            (AtomicType.DOUBLE, math.nan, math.nan),
            (AtomicType.FLOAT, -1e-60, -0.0),
            (AtomicType.FLOAT, 0.1, 0.10000000149011612),
            (AtomicType.FLOAT, -math.inf, -math.inf),
            (DecimalType(38, 38), Decimal("1E-38"), Decimal("1E-38")),
            (DecimalType(10, 2), 3, Decimal("3.00")),
            (AtomicType.DATE, date.min, date.min),
            (AtomicType.DATE, date.max, date.max),
            (
                AtomicType.TIMESTAMP,
                datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
                datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            ),
            (
                AtomicType.TIMESTAMP,
                datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-1))),
                datetime(2024, 1, 1, 1, tzinfo=UTC),
            ),
            (AtomicType.BINARY, bytearray(b"\x00\xff"), b"\x00\xff"),
            (CollatedStringType("UTF8_LCASE"), "Ä", "Ä"),
            (PAIR, (DAY, "a"), {"a": DAY, "b": "a"}),
            (struct_of(AtomicType.INT), {"a": 1}, {"a": 1}),
            (struct_of(), {}, {}),
            (
                StructType((Field("a b", AtomicType.INT), Field("_c", PAIR))),
                (1, (None, "x")),
                {"a b": 1, "_c": {"a": None, "b": "x"}},
            ),
            (ArrayType(AtomicType.INT), (1, None), [1, None]),
            (ArrayType(PAIR), [(DAY, None)], [{"a": DAY, "b": None}]),
            (MapType(PAIR, PAIR), {(DAY, "a"): None}, {(DAY, "a"): None}),
            (
                MapType(struct_of(ArrayType(AtomicType.DATE), PAIR), AtomicType.INT),
                {((DAY, None), (DAY, None)): 1},
                {((DAY, None), (DAY, None)): 1},
            ),
        ],
    )
    def test_values_come_back_as_rows_have_them(
        self, data_type: DataType, value: object, expected: object
    ) -> None:
        """``Row.asDict(recursive=True)``, but for times in UTC and keys of maps."""
        assert repr(round_trip(data_type, value)) == repr(expected)

    @pytest.mark.parametrize(
        "name", ["from", "a b", "_a", "__init__", "__class__", "é", "", "1", "self"]
    )
    def test_columns_may_have_any_name(self, name: str) -> None:
        """Names that Python could not give to an attribute are names all the same."""
        codec = ValueCodec([Field(name, AtomicType.INT), Field("b", AtomicType.INT)])
        payload = codec.encode_row([1, None])
        assert codec.decode_row(payload) == {name: 1, "b": None}
        assert codec.decode_rows([payload]) == [{name: 1, "b": None}]


class TestLayout:
    """The bytes of a row."""

    @pytest.mark.parametrize(
        ("data_type", "value", "stored"),
        [
            (AtomicType.BIGINT, -1, -1),
            (AtomicType.FLOAT, 0.5, 0.5),
            (AtomicType.BOOLEAN, True, True),
            (AtomicType.STRING, "é", "é"),
            (AtomicType.BINARY, b"\xff", b"\xff"),
            (AtomicType.DATE, date(1970, 1, 2), 1),
            (AtomicType.TIMESTAMP, datetime(1970, 1, 2, tzinfo=UTC), 86_400_000_000),
            (
                AtomicType.TIMESTAMP_NTZ,
                datetime(1970, 1, 2),  # noqa: DTZ001  # what the type holds
                86_400_000_000,
            ),
            (DecimalType(5, 2), Decimal("1.5"), "1.50"),
            (PAIR, {"b": "x", "a": None}, [None, "x"]),
            (ArrayType(AtomicType.DATE), [date(1970, 1, 2), None], [1, None]),
            (MapType(AtomicType.INT, PAIR), {1: (None, "x")}, [[1, [None, "x"]]]),
            (AtomicType.INT, None, None),
        ],
    )
    def test_it_is_fixed(
        self, data_type: DataType, value: object, stored: object
    ) -> None:
        """These bytes are on disks: they cannot change without losing states."""
        payload = ValueCodec([Field("one", data_type)]).encode_row([value])
        assert payload == msgspec.msgpack.encode([stored])

    @pytest.mark.proves("W5")
    def test_columns_that_were_added_are_none(self) -> None:
        """W5: a row that was stored before a column was added has null there."""
        old = ValueCodec(fields_of(AtomicType.STRING)).encode_row(["x"])
        assert PLAIN.decode_row(old) == {"a": "x", "b": None, "c": None}
        added = ValueCodec(fields_of(AtomicType.STRING, PAIR))
        assert added.decode_row(old) == {"a": "x", "b": None}

    @pytest.mark.proves("W5")
    def test_columns_that_are_not_known_yet_are_left_out(self) -> None:
        """W5: a reader that learnt the schema before a column was added goes on."""
        row = PLAIN.encode_row(["x", 1, 2.0])
        old = ValueCodec(fields_of(AtomicType.STRING))
        assert old.decode_row(row) == {"a": "x"}

    def test_memory_of_others_can_be_read(self) -> None:
        """A frame or a page of LMDB need not be copied."""
        assert PLAIN.decode_row(memoryview(PLAIN.encode_row(["x", 1, 2.0]))) == {
            "a": "x",
            "b": 1,
            "c": 2.0,
        }


class TestMalformed:
    """Bytes that are no row of these columns."""

    @pytest.mark.parametrize(
        ("data_type", "payload"),
        [
            (AtomicType.INT, b""),
            (AtomicType.INT, b"\xc1"),
            (AtomicType.INT, b"\x01"),
            (AtomicType.INT, msgspec.msgpack.encode(["1"])),
            (AtomicType.INT, msgspec.msgpack.encode([1]) + b"\x00"),
            (AtomicType.STRING, b"\x91\xa1\xff"),
            (AtomicType.BOOLEAN, msgspec.msgpack.encode([1])),
            (DecimalType(3, 2), msgspec.msgpack.encode(["one"])),
            (AtomicType.DATE, msgspec.msgpack.encode([1 << 40])),
            (AtomicType.DATE, msgspec.msgpack.encode([1 << 62])),
            (AtomicType.TIMESTAMP, msgspec.msgpack.encode([1 << 62])),
            (AtomicType.TIMESTAMP_NTZ, msgspec.msgpack.encode([-(1 << 62)])),
            (PAIR, msgspec.msgpack.encode([[1]])),
            (ArrayType(PAIR), msgspec.msgpack.encode([[1]])),
            (MapType(AtomicType.INT, AtomicType.INT), msgspec.msgpack.encode([[[1]]])),
            (ArrayType(AtomicType.INT), b"\x91" * 10_000),
        ],
    )
    def test_they_are_the_peer_s_fault(
        self, data_type: DataType, payload: bytes
    ) -> None:
        """One error, whatever the libraries think of them; a column is named."""
        codec = ValueCodec([Field("one", data_type)])
        with pytest.raises(RemoteProtocolError, match="one"):
            codec.decode_row(payload)
        with pytest.raises(RemoteProtocolError, match="one"):
            codec.decode_rows([None, payload])

    @pytest.mark.parametrize(
        ("data_type", "number"),
        [
            (AtomicType.DATE, 3_000_000),
            (AtomicType.DATE, -1_000_000),
            (AtomicType.TIMESTAMP, 10**18),
            (AtomicType.TIMESTAMP_NTZ, -(10**18)),
        ],
    )
    def test_a_year_that_python_has_not_is_no_fault(
        self, data_type: DataType, number: int
    ) -> None:
        """
        The error says so, in keys too, and what to do.

        It said that the answer was malformed, and the command line that the other side
        might be of an earlier version.
        """
        fields = (Field("one", data_type),)
        row = msgspec.msgpack.encode([number])
        key = KeyColumns(fields).to_bytes((number,))
        for read in (
            lambda: ValueCodec(fields).decode_row(row),
            lambda: KeyCodec(fields, max_parallelism=1).decode(key),
        ):
            with pytest.raises(RemoteProtocolError, match="after year 9999") as caught:
                read()
            assert caught.value.reason == "no-python-value"

    @given(st.binary(max_size=30))
    def test_no_bytes_do_harm(self, payload: bytes) -> None:
        """Any bytes are a row, or that error."""
        codec = ValueCodec(fields_of(MapType(PAIR, AtomicType.TIMESTAMP), PAIR))
        try:
            codec.decode_row(payload)
        except RemoteProtocolError as error:
            reasons = {"malformed", "no-python-value"}
            assert error.reason in reasons  # noqa: PT017  # either is right


class TestMisuse:
    """Values that do not fit their columns."""

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_a_row_has_a_value_per_column(self, count: int) -> None:
        """None stands for null, nothing for nothing."""
        with pytest.raises(LocalProtocolError, match=f"3 values, not {count}"):
            PLAIN.encode_row([None] * count)

    @pytest.mark.parametrize(
        ("data_type", "value", "message"),
        [
            (AtomicType.INT, 1 << 31, "one is out of the range of int"),
            (AtomicType.STRING, 1, "one takes a str, not int"),
            (AtomicType.DOUBLE, "1", "one takes a float, not str"),
            (DecimalType(3, 2), Decimal("1.234"), "one is not exactly a decimal"),
            (
                AtomicType.TIMESTAMP,
                datetime(2024, 1, 1),  # noqa: DTZ001  # naive is what is tried
                "one takes an aware datetime",
            ),
            (PAIR, (DAY,), "one takes a struct of 2 fields, not tuple"),
            (PAIR, "ab", "one takes a struct of 2 fields, not str"),
            (PAIR, {"a": DAY}, "one has the fields a, b"),
            (PAIR, (DAY, 1), "one.b takes a str, not int"),
            (ArrayType(AtomicType.INT), "12", "one takes a list, not str"),
            (ArrayType(AtomicType.INT), ["1"], "one.element takes an int"),
            (MapType(AtomicType.INT, PAIR), [(1, 2)], "one takes a mapping, not list"),
            (MapType(AtomicType.INT, PAIR), {"1": None}, "one.key takes an int"),
            (MapType(AtomicType.INT, PAIR), {1: (DAY, 1)}, "one.value.b takes a str"),
        ],
    )
    def test_the_column_is_named(
        self, data_type: DataType, value: object, message: str
    ) -> None:
        """The error says where the value stands, and what belongs there."""
        codec = ValueCodec([Field("one", data_type)])
        with pytest.raises(LocalProtocolError, match=message):
            codec.encode_row([value])


TIMES: dict[DataType, Any] = {
    AtomicType.DATE: lambda value: (value - date(1970, 1, 1)).days,
    AtomicType.TIMESTAMP: lambda value: (
        (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    ),
    AtomicType.TIMESTAMP_NTZ: lambda value: (
        (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC))
        // timedelta(microseconds=1)
    ),
}


def with_numbers(value: Any, data_type: DataType) -> Any:
    """Return *value* with its dates and timestamps as they are stored."""
    if value is None:
        return None
    match data_type:
        case StructType(fields=fields) if isinstance(value, dict):
            return {one.name: with_numbers(value[one.name], one.type) for one in fields}
        case StructType(fields=fields):
            return tuple(
                with_numbers(part, one.type)
                for part, one in zip(value, fields, strict=True)
            )
        case ArrayType(element=element):
            return type(value)(with_numbers(one, element) for one in value)
        case MapType(key=key, value=value_type):
            return {
                with_numbers(one, key): with_numbers(other, value_type)
                for one, other in value.items()
            }
        case _:
            stored = TIMES.get(data_type)
            return value if stored is None else stored(value)


@pytest.mark.proves("F7")
class TestColumns:
    """F7: columns of many rows are what the rows are one by one."""

    @given(st.data())
    def test_they_are_those_of_the_rows(self, data: st.DataObject) -> None:
        """Of any types, some of them, in any order, also where the last are missing."""
        fields = fields_of(*data.draw(st.lists(value_types(), max_size=4)))
        names = [one.name for one in fields]
        wanted = data.draw(
            st.lists(st.sampled_from(names), unique=True) if names else st.just([])
        )
        rows = data.draw(
            st.lists(st.tuples(*[values_of(one.type) for one in fields]), max_size=4)
        )
        payloads = []
        for row in rows:
            count = data.draw(st.integers(0, len(fields)))
            payloads.append(ValueCodec(fields[:count]).encode_row(row[:count]))
        expected = []
        decoded = ValueCodec(fields).decode_rows(payloads)
        for name in wanted:
            column = [row[name] for row in decoded if row is not None]
            data_type = fields[names.index(name)].type
            expected.append([with_numbers(one, data_type) for one in column])
        assert repr(ValueColumns(fields, wanted).decode(payloads)) == repr(expected)

    def test_rows_of_a_later_schema(self) -> None:
        """Columns that were added since are left out."""
        later = fields_of(AtomicType.BIGINT, AtomicType.STRING)
        payload = ValueCodec(later).encode_row([7, "new"])
        assert ValueColumns(later[:1], ["a"]).decode([payload]) == [[7]]

    def test_dates_that_python_has_not(self) -> None:
        """Spark's years may have five digits: as a number they can be told."""
        fields = fields_of(AtomicType.DATE)
        payload = msgspec.msgpack.encode([5_000_000])
        with pytest.raises(RemoteProtocolError):
            ValueCodec(fields).decode_row(payload)
        assert ValueColumns(fields, ["a"]).decode([payload]) == [[5_000_000]]

    @pytest.mark.parametrize(
        "payload", [b"", b"\x93\x01", b"\xff", b"\x91\xa1x", b"\x91\x01\x02", b"\x80"]
    )
    def test_what_is_no_row(self, payload: bytes) -> None:
        """It is an error, wherever it stands, and does not spoil another row."""
        fields = fields_of(AtomicType.BIGINT)
        good = ValueCodec(fields).encode_row([7])
        for payloads in ([payload], [good, payload], [payload, good]):
            with pytest.raises(RemoteProtocolError, match="no row of"):
                ValueColumns(fields, ["a"]).decode(payloads)
