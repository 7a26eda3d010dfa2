from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.schema.json_values import (
    column_to_json,
    decode_json,
    key_from_json,
    parse_date,
    parse_decimal,
    parse_timestamp,
    row_to_json,
)
from queryablestate.schema.key_columns import MisfitError
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
)
from tests.queryablestate.typed_values import (
    key_types,
    keys_of,
    struct_of,
    value_types,
    values_of,
)


SUMMER = timezone(timedelta(hours=2))


class TestToJSON:
    @pytest.mark.parametrize(
        ("data_type", "value", "expected"),
        [
            (AtomicType.BIGINT, 2**63 - 1, 9_223_372_036_854_775_807),
            (AtomicType.DOUBLE, 0.1, 0.1),
            (AtomicType.DOUBLE, math.nan, "NaN"),
            (AtomicType.FLOAT, math.inf, "Infinity"),
            (AtomicType.FLOAT, -math.inf, "-Infinity"),
            (AtomicType.BOOLEAN, True, True),
            (AtomicType.STRING, "é\n", "é\n"),
            (CollatedStringType("UTF8_LCASE"), "A", "A"),
            (AtomicType.BINARY, b"\x00\xff", "AP8="),
            (DecimalType(3, 2), Decimal("1.10"), "1.10"),
            (DecimalType(38, 38), Decimal("1E-38"), "0." + "0" * 37 + "1"),
            (AtomicType.DATE, date(2026, 3, 1), "2026-03-01"),
            (
                AtomicType.TIMESTAMP,
                datetime(2026, 3, 1, 6, 5, 6, 789_000, tzinfo=SUMMER),
                "2026-03-01T04:05:06.789000Z",
            ),
            (
                AtomicType.TIMESTAMP,
                datetime(1, 1, 1, tzinfo=UTC),
                "0001-01-01T00:00:00Z",
            ),
            (
                AtomicType.TIMESTAMP_NTZ,
                datetime(2026, 3, 1, 4, 5, 6),  # noqa: DTZ001 - NTZ has no zone
                "2026-03-01T04:05:06",
            ),
            (
                ArrayType(AtomicType.DATE),
                [date(2026, 3, 1), None],
                ["2026-03-01", None],
            ),
            (
                struct_of(AtomicType.INT, AtomicType.DATE),
                {"a": 1, "b": None},
                {"a": 1, "b": None},
            ),
            (struct_of(AtomicType.INT, AtomicType.INT), (1, 2), {"a": 1, "b": 2}),
            (MapType(AtomicType.STRING, AtomicType.INT), {"x": 1}, {"x": 1}),
            (
                MapType(AtomicType.DATE, AtomicType.INT),
                {date(2026, 3, 1): 1},
                [["2026-03-01", 1]],
            ),
            (MapType(AtomicType.INT, AtomicType.INT), {}, []),
            (AtomicType.INT, None, None),
        ],
    )
    def test_every_type_has_one_form(
        self, data_type: DataType, value: Any, expected: Any
    ) -> None:
        """What programs read depends on the type of the column, not on the value."""
        assert column_to_json(data_type, value) == expected

    def test_a_row_is_an_object(self) -> None:
        """Columns come in the order of the schema; one that is not there is null."""
        fields = (Field("n", AtomicType.INT), Field("day", AtomicType.DATE))
        row = row_to_json(fields, {"day": date(2026, 3, 1)})
        assert list(row.items()) == [("n", None), ("day", "2026-03-01")]

    @given(st.data())
    def test_every_value_is_json(self, data: st.DataObject) -> None:
        """No value that a state can hold is without a form that JSON has."""
        data_type = data.draw(value_types())
        value = data.draw(values_of(data_type))
        json.dumps(column_to_json(data_type, value), allow_nan=False)


class TestFromJSON:
    @given(st.data())
    def test_what_was_printed_is_the_same_key(self, data: st.DataObject) -> None:
        """A key that a program reads from one answer can be asked for in the next."""
        data_type = data.draw(key_types())
        key = data.draw(keys_of(data_type))
        text = json.dumps(column_to_json(data_type, key), allow_nan=False)
        read = key_from_json("k", data_type, decode_json(text))
        codec = KeyCodec((Field("k", data_type),), max_parallelism=128)
        # The encoding says it all, of NaN too, which equals nothing.
        try:
            expected = codec.storage_key(key)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the same
            with pytest.raises(type(error)):
                codec.storage_key(read)
        else:
            assert codec.storage_key(read) == expected

    @pytest.mark.parametrize(
        ("data_type", "text", "expected"),
        [
            (AtomicType.TINYINT, "-128", -128),
            (AtomicType.DOUBLE, "1", 1),
            (AtomicType.DOUBLE, "1.5e3", 1500.0),
            (AtomicType.FLOAT, '"-Infinity"', -math.inf),
            (AtomicType.BOOLEAN, "false", False),
            (AtomicType.STRING, '"null"', "null"),
            (AtomicType.BINARY, '"AP8="', b"\x00\xff"),
            (AtomicType.BINARY, '""', b""),
            (DecimalType(3, 2), '"1.10"', Decimal("1.10")),
            (DecimalType(3, 2), "1.1", Decimal("1.1")),
            (
                DecimalType(20, 18),
                "0.1000000000000000055",
                Decimal("0.1000000000000000055"),
            ),
            (DecimalType(3, 0), "7", Decimal(7)),
            (AtomicType.DATE, '"2026-03-01"', date(2026, 3, 1)),
            (
                AtomicType.TIMESTAMP,
                '"2026-03-01T06:05:06.7+02:00"',
                datetime(2026, 3, 1, 4, 5, 6, 700_000, tzinfo=UTC),
            ),
            (
                AtomicType.TIMESTAMP_NTZ,
                '"2026-03-01 04:05"',
                datetime(2026, 3, 1, 4, 5),  # noqa: DTZ001 - NTZ has no zone
            ),
            (
                ArrayType(AtomicType.DATE),
                '["2026-03-01", null]',
                [date(2026, 3, 1), None],
            ),
            (
                struct_of(AtomicType.INT, AtomicType.DATE),
                "[1, null]",
                {"a": 1, "b": None},
            ),
            (
                struct_of(AtomicType.INT, AtomicType.DATE),
                '{"b": "2026-03-01", "a": 1}',
                {"b": date(2026, 3, 1), "a": 1},
            ),
            (AtomicType.INT, "null", None),
        ],
    )
    def test_every_type_is_read(
        self, data_type: DataType, text: str, expected: Any
    ) -> None:
        """Each type has its form, and exact ones are exact."""
        found = key_from_json("k", data_type, decode_json(text))
        assert found == expected
        assert type(found) is type(expected)

    @pytest.mark.parametrize(
        ("data_type", "text", "saying"),
        [
            (AtomicType.INT, "1.0", "k takes a whole number, not 1.0"),
            (AtomicType.INT, "true", "k takes a whole number, not true or false"),
            (AtomicType.INT, '"1"', "k takes a whole number, not text"),
            (AtomicType.INT, "[1]", "k takes a whole number, not an array"),
            (AtomicType.DOUBLE, '"1"', "k takes a number, not text"),
            (AtomicType.DOUBLE, "true", "k takes a number, not true or false"),
            (AtomicType.DOUBLE, "1e999", "k cannot hold 1E+999"),
            (AtomicType.DOUBLE, "NaN", '"NaN"'),
            (AtomicType.BOOLEAN, "1", "k takes true or false, not 1"),
            (AtomicType.STRING, "1", "k takes text, not 1"),
            (AtomicType.BINARY, '"0x0"', "k takes bytes as base64, not '0x0'"),
            (AtomicType.BINARY, '"é"', "k takes bytes as base64"),
            (AtomicType.BINARY, '"A"', "k takes bytes as base64"),
            (AtomicType.BINARY, "1", "k takes base64 text, not 1"),
            (DecimalType(3, 2), "true", "k takes a decimal number, not true or false"),
            (DecimalType(3, 2), '"1,1"', "k takes a decimal number such as 1.10"),
            (AtomicType.DATE, "20260301", "k takes a date as text, not 20260301"),
            (AtomicType.TIMESTAMP, "1", "k takes a timestamp as text, not 1"),
            (ArrayType(AtomicType.INT), '"1"', "k takes an array, not text"),
            (ArrayType(AtomicType.INT), '["1"]', "k.element takes a whole number"),
            (struct_of(AtomicType.INT), "1", "k takes an object, not 1"),
            (struct_of(AtomicType.INT), "[1, 2]", "k has 1 fields, not 2"),
            (
                struct_of(AtomicType.INT),
                '{"a": {}}',
                "k.a takes a whole number, not an",
            ),
            (
                MapType(AtomicType.INT, AtomicType.INT),
                "[]",
                "k cannot be part of a key",
            ),
            (CollatedStringType("UTF8_LCASE"), '"a"', "k cannot be part of a key"),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, data_type: DataType, text: str, saying: str
    ) -> None:
        """The sentence names the column and what it takes."""
        with pytest.raises(MisfitError) as error:
            key_from_json("k", data_type, decode_json(text))
        assert saying in str(error.value)

    def test_an_unknown_field_is_left_to_the_codec(self) -> None:
        """The key codec tells of fields that are missing or unknown: none is lost."""
        found = key_from_json("k", struct_of(AtomicType.INT), decode_json('{"z": 1}'))
        assert found == {"z": 1}

    @pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5_000, '"\x01"'])
    def test_what_is_not_json_is_told(self, text: str) -> None:
        """However broken the text, the answer is one error."""
        with pytest.raises(MisfitError, match="it is not JSON"):
            decode_json(text)


class TestParts:
    """What the command line reads in the same way."""

    @pytest.mark.parametrize(
        "text", ["2026-3-1", "20260301", "2026-02-30", "\u0662026-03-01"]
    )
    def test_no_date(self, text: str) -> None:
        """One way to write a date, and only days that there are."""
        with pytest.raises(MisfitError, match="k takes a date such as 2026-03-01"):
            parse_date("k", text)

    @pytest.mark.parametrize(
        ("text", "is_aware", "saying"),
        [
            ("2026-03-01", True, "k takes a timestamp such as 2026-03-01T04:05:06Z"),
            ("2026-03-01T04:05:06.1234567Z", True, "k takes a timestamp such as"),
            ("0001-01-01T00:00:00+14:00", True, "k takes a timestamp, not"),
            ("9999-12-31T23:59:59-14:00", True, "k takes a timestamp, not"),
            ("2026-03-01T04:05:06", True, "with a zone"),
            ("2026-03-01T04:05:06Z", False, "without a zone"),
            ("2026-03-01T25:05:06Z", True, "hour must be in 0..23"),
            ("2026-13-01T04:05:06", False, "month must be in 1..12"),
        ],
    )
    def test_no_timestamp(self, text: str, is_aware: bool, saying: str) -> None:
        """A zone is asked for, or refused: no one is guessed."""
        with pytest.raises(MisfitError) as error:
            parse_timestamp("k", text, is_aware=is_aware)
        assert saying in str(error.value)

    @pytest.mark.parametrize("text", ["", ".", "1_0", "NaN", "1e99999", "٣", " 1", "+"])
    def test_no_decimal(self, text: str) -> None:
        """What Python alone would read is refused."""
        with pytest.raises(MisfitError, match="k takes a decimal number"):
            parse_decimal("k", text)

    @pytest.mark.parametrize("text", ["1", "-1.10", "+.5", "1.", "1e-3"])
    def test_a_decimal(self, text: str) -> None:
        """A decimal is what is written."""
        assert parse_decimal("k", text) == Decimal(text)
