from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate import WrongKeyTypeError
from queryablestate.schema.key_text import (
    column_text,
    key_text,
    parse_json_key,
    parse_key,
    parse_prefix,
)
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
    SCALARS,
    fields_of,
    key_types,
    keys_of,
    struct_of,
)


PAIR = (Field("tailnum", AtomicType.STRING), Field("day", AtomicType.DATE))


def storage_key(fields: tuple[Field, ...], key: Any) -> object:
    """Return what stands for *key*, or the kind of error that it ends in."""
    try:
        return KeyCodec(fields, max_parallelism=128).storage_key(key)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be the same
        return type(error)


class TestParseKey:
    @pytest.mark.parametrize(
        ("data_type", "text", "expected"),
        [
            (AtomicType.INT, "42", 42),
            (AtomicType.BIGINT, "-9223372036854775808", -(2**63)),
            (AtomicType.TINYINT, "+7", 7),
            (AtomicType.DOUBLE, "1.5", 1.5),
            (AtomicType.DOUBLE, "-1e-3", -0.001),
            (AtomicType.DOUBLE, "-inf", -math.inf),
            (AtomicType.FLOAT, "Infinity", math.inf),
            (AtomicType.BOOLEAN, "True", True),
            (AtomicType.BOOLEAN, "false", False),
            (AtomicType.STRING, "a,b c", "a,b c"),
            (AtomicType.STRING, "", ""),
            (AtomicType.STRING, "null", "null"),
            (AtomicType.BINARY, "0x00fF", b"\x00\xff"),
            (AtomicType.BINARY, "0x", b""),
            (DecimalType(3, 2), "1.10", Decimal("1.10")),
            (AtomicType.DATE, "2026-03-01", date(2026, 3, 1)),
            (
                AtomicType.TIMESTAMP,
                "2026-03-01T06:05:06+02:00",
                datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC),
            ),
            (
                AtomicType.TIMESTAMP_NTZ,
                "2026-03-01T04:05:06.5",
                datetime(2026, 3, 1, 4, 5, 6, 500_000),  # noqa: DTZ001 - NTZ has no zone
            ),
        ],
    )
    def test_every_type_is_typed_in_its_way(
        self, data_type: DataType, text: str, expected: Any
    ) -> None:
        """A key of one column is what was typed, commas and all."""
        found = parse_key((Field("k", data_type),), text)
        assert found == expected
        assert type(found) is type(expected)

    def test_nan_can_be_typed(self) -> None:
        """NaN is a key like any other."""
        assert math.isnan(parse_key((Field("k", AtomicType.DOUBLE),), "nan"))

    def test_columns_are_separated_by_commas(self) -> None:
        """Several columns are a tuple, in the order of the schema."""
        assert parse_key(PAIR, "N14228,2013-01-01") == ("N14228", date(2013, 1, 1))

    @pytest.mark.parametrize(
        ("fields", "text", "saying"),
        [
            (fields_of(AtomicType.INT), "x", "a takes a whole number, not 'x'"),
            (fields_of(AtomicType.INT), "1.0", "a takes a whole number"),
            (fields_of(AtomicType.INT), "1_0", "a takes a whole number"),
            (fields_of(AtomicType.INT), "٣", "a takes a whole number"),
            (fields_of(AtomicType.INT), "1" * 5_000, "a takes a whole number"),
            (fields_of(AtomicType.DOUBLE), "1,5", "a takes a number, not '1,5'"),
            (fields_of(AtomicType.DOUBLE), "+-inf", "a takes a number"),
            (fields_of(AtomicType.DOUBLE), "-1e999", "a cannot hold -1E+999"),
            (fields_of(AtomicType.BOOLEAN), "yes", "a takes true or false, not 'yes'"),
            (fields_of(AtomicType.BINARY), "00ff", "a takes bytes such as 0x00ff"),
            (fields_of(AtomicType.BINARY), "0x0", "a takes bytes such as 0x00ff"),
            (fields_of(DecimalType(3, 2)), "x", "a takes a decimal number such as"),
            (fields_of(AtomicType.DATE), "today", "a takes a date such as 2026-03-01"),
            (fields_of(AtomicType.TIMESTAMP), "2026-03-01T04:05:06", "with a zone"),
            (
                fields_of(AtomicType.TIMESTAMP_NTZ),
                "2026-03-01T04:05Z",
                "without a zone",
            ),
            (
                fields_of(ArrayType(AtomicType.INT)),
                "1",
                "a has type array<int>: write the key as JSON",
            ),
            (
                fields_of(struct_of(AtomicType.INT)),
                "1",
                "a has type struct<a:int>: write the key as JSON",
            ),
            (fields_of(CollatedStringType("x")), "1", "a cannot be part of a key"),
            (PAIR, "N14228", "2 values separated by commas are wanted, not 1"),
            (
                PAIR,
                "a,b,2013-01-01",
                "write the key as JSON (--json-key, over HTTP json_key=true)",
            ),
            (PAIR, "N14228,soon", "day takes a date"),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, fields: tuple[Field, ...], text: str, saying: str
    ) -> None:
        """The sentence quotes what was typed, and says what the columns take."""
        with pytest.raises(WrongKeyTypeError) as error:
            parse_key(fields, text)
        assert saying in str(error.value)
        assert repr(text) in str(error.value)


class TestParseJsonKey:
    @pytest.mark.parametrize(
        ("fields", "text", "expected"),
        [
            (fields_of(AtomicType.STRING), "null", None),
            (fields_of(AtomicType.STRING), '"a,b"', "a,b"),
            (fields_of(ArrayType(AtomicType.INT)), "[1, 2]", [1, 2]),
            (PAIR, '["a,b", null]', ("a,b", None)),
            (PAIR, '{"day": "2013-01-01", "tailnum": "N1"}', ("N1", date(2013, 1, 1))),
        ],
    )
    def test_it_can_say_everything(
        self, fields: tuple[Field, ...], text: str, expected: Any
    ) -> None:
        """Nulls, commas, arrays and structs have a way to be written."""
        assert parse_json_key(fields, text) == expected

    @pytest.mark.parametrize(
        ("fields", "text", "saying"),
        [
            (PAIR, "[", "it is not JSON"),
            (PAIR, '["a"]', "an array of tailnum, day is wanted"),
            (PAIR, '"a"', "an array of tailnum, day is wanted"),
            (PAIR, '{"tailnum": "a"}', "an object with tailnum, day is wanted"),
            (PAIR, '["a", 1]', "day takes a date as text, not 1"),
            (fields_of(AtomicType.INT), "[1]", "a takes a whole number, not an array"),
        ],
    )
    def test_what_does_not_fit_is_told(
        self, fields: tuple[Field, ...], text: str, saying: str
    ) -> None:
        """The sentence says what is wanted."""
        with pytest.raises(WrongKeyTypeError) as error:
            parse_json_key(fields, text)
        assert saying in str(error.value)


class TestParsePrefix:
    @pytest.mark.parametrize(
        ("fields", "text", "expected"),
        [
            (fields_of(AtomicType.STRING), "N1,", "N1,"),
            (fields_of(AtomicType.BINARY), "0x00", b"\x00"),
            (PAIR, "N14228", ("N14228",)),
            (PAIR, "N14228,2013-01-01", ("N14228", date(2013, 1, 1))),
        ],
    )
    def test_the_first_columns_or_the_beginning(
        self, fields: tuple[Field, ...], text: str, expected: Any
    ) -> None:
        """The key codec takes what comes out as a prefix."""
        found = parse_prefix(fields, text)
        assert found == expected
        KeyCodec(fields, max_parallelism=1).encode_prefix(found)

    @pytest.mark.parametrize(
        ("text", "saying"),
        [("a,2013-01-01,b", "2 values"), ("a,b", "day takes a date")],
    )
    def test_what_does_not_fit_is_told(self, text: str, saying: str) -> None:
        """Too many columns, or a wrong one."""
        with pytest.raises(WrongKeyTypeError) as error:
            parse_prefix(PAIR, text)
        assert saying in str(error.value)


class TestKeyText:
    @pytest.mark.parametrize(
        ("fields", "key", "text"),
        [
            (fields_of(AtomicType.STRING), "a,b", "a,b"),
            (fields_of(AtomicType.STRING), None, "null"),
            (fields_of(AtomicType.BINARY), b"\x00\xff", "0x00ff"),
            (PAIR, ("N1", date(2013, 1, 1)), "N1,2013-01-01"),
            (PAIR, ("a,b", date(2013, 1, 1)), '["a,b","2013-01-01"]'),
            (PAIR, ("N1", None), '["N1",null]'),
            (
                fields_of(ArrayType(AtomicType.DATE)),
                (date(2013, 1, 1),),
                '["2013-01-01"]',
            ),
        ],
    )
    def test_people_see_what_they_would_type(
        self, fields: tuple[Field, ...], key: Any, text: str
    ) -> None:
        """A key is shown as it is typed, or as JSON where it cannot be."""
        assert key_text(fields, key) == text

    @given(st.data())
    def test_a_scalar_key_can_be_typed_again(self, data: st.DataObject) -> None:
        """Whatever key of one column is shown, typing it means the same key."""
        fields = fields_of(data.draw(st.sampled_from(SCALARS)))
        key = data.draw(keys_of(fields[0].type).filter(lambda one: one is not None))
        again = parse_key(fields, key_text(fields, key))
        assert storage_key(fields, again) == storage_key(fields, key)

    @given(st.data())
    def test_a_long_key_can_be_typed_again(self, data: st.DataObject) -> None:
        """Keys of several columns too, as text or as JSON."""
        types = data.draw(st.lists(key_types(), min_size=2, max_size=3))
        fields = fields_of(*types)
        key = tuple(data.draw(keys_of(one)) for one in types)
        text = key_text(fields, key)
        plain = [column_text(one, value) for one, value in zip(types, key, strict=True)]
        is_json = None in key or any("," in part for part in plain)
        nests = any(isinstance(one, ArrayType) or one not in SCALARS for one in types)
        if is_json:
            again = parse_json_key(fields, text)
        elif not nests:
            again = parse_key(fields, text)
        else:
            return
        assert storage_key(fields, again) == storage_key(fields, key)


class TestColumnText:
    @pytest.mark.parametrize(
        ("data_type", "value", "text"),
        [
            (AtomicType.INT, None, "null"),
            (AtomicType.INT, -5, "-5"),
            (AtomicType.DOUBLE, 0.1, "0.1"),
            (AtomicType.DOUBLE, math.nan, "NaN"),
            (AtomicType.BOOLEAN, True, "true"),
            (AtomicType.BOOLEAN, False, "false"),
            (AtomicType.STRING, "x", "x"),
            (CollatedStringType("UTF8_LCASE"), "X", "X"),
            (AtomicType.BINARY, b"\x01", "0x01"),
            (DecimalType(3, 2), Decimal("1.10"), "1.10"),
            (AtomicType.DATE, date(2026, 3, 1), "2026-03-01"),
            (
                AtomicType.TIMESTAMP,
                datetime(2026, 3, 1, 4, tzinfo=UTC),
                "2026-03-01T04:00:00Z",
            ),
            (
                MapType(AtomicType.STRING, AtomicType.BINARY),
                {"ä": b"\x01"},
                '{"ä":"AQ=="}',
            ),
        ],
    )
    def test_every_type_has_a_text(
        self, data_type: DataType, value: Any, text: str
    ) -> None:
        """People read the text; what nests is JSON on one line."""
        assert column_text(data_type, value) == text
