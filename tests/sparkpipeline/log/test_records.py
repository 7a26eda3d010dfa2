"""Lines as rows: nothing is guessed (O4)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from nameservice import ConfigurationError
from rescaling import LogRecordError
from sparkpipeline.log.records import LINE_SCHEMA, RecordDecoder


SCHEMA = (
    StructType()
    .add("a b.c", StringType())
    .add("n", LongType())
    .add("i", IntegerType())
    .add("s", ShortType())
    .add("b", ByteType())
    .add("f", FloatType())
    .add("fs", ArrayType(FloatType()))
    .add("d", DoubleType())
    .add("t", BooleanType())
    .add("l", ArrayType(LongType()))
    .add("o", StructType().add("x", LongType()).add("y", ArrayType(StringType())))
)


def decoded(schema: StructType, *lines: bytes) -> list[dict[str, Any]]:
    """Return the rows of *lines*, as Spark would get them."""
    decoder = RecordDecoder(schema)
    rows = [decoder.decode("p", "a", at, line) for at, line in enumerate(lines)]
    found: list[dict[str, Any]] = decoder.batch(rows).to_pylist()
    return found


@pytest.mark.proves("O4")
class TestLines:
    def test_a_line_is_given_as_it_is(self) -> None:
        """O4: with its partition and offset."""
        line = '{"k": "\u00e9", "n": {"m": [1, 2.50]}}'
        assert decoded(LINE_SCHEMA, line.encode(), b" {} \r") == [
            {"partition": "a", "offset": 0, "value": line},
            {"partition": "a", "offset": 1, "value": " {} \r"},
        ]

    @pytest.mark.parametrize(
        "line", [b"", b" ", b"1", b"[]", b"null", b"{", b'{"a":01}', b'{"a":"\xff"}']
    )
    @pytest.mark.parametrize("schema", [LINE_SCHEMA, StructType().add("a", LongType())])
    def test_what_is_no_object_is_no_record(
        self, schema: StructType, line: bytes
    ) -> None:
        """O4: it is told where it stands."""
        with pytest.raises(LogRecordError) as raised:
            RecordDecoder(schema).decode("dir/p", "p", 7, line)
        assert (raised.value.path, raised.value.offset) == ("dir/p", 7)


class TestFields:
    @pytest.mark.proves("O4")
    def test_every_type_that_json_has(self) -> None:
        """O4: missing fields and nulls are null; others are left out."""
        full = (
            b'{"a b.c": "\\u00e9", "n": 9223372036854775807, "i": -2147483648, '
            b'"s": 32767, "b": -128, "f": 1, "fs": [], "d": 1e300, "t": true, '
            b'"l": [1, null], '
            b'"o": {"x": 1, "y": ["z"], "more": 1}, "more": {}}'
        )
        expected = {
            "a b.c": "\u00e9",
            "n": 2**63 - 1,
            "i": -(2**31),
            "s": 2**15 - 1,
            "b": -128,
            "f": 1.0,
            "fs": [],
            "d": 1e300,
            "t": True,
            "l": [1, None],
            "o": {"x": 1, "y": ["z"]},
        }
        nothing: dict[str, Any] = dict.fromkeys(expected)
        partly = nothing | {"o": {"x": None, "y": None}, "l": []}
        rows = decoded(SCHEMA, full, b"{}", b'{"n": null, "o": {}, "l": []}')
        assert rows == [expected, nothing, partly]

    @pytest.mark.proves("O4")
    def test_the_greatest_float_is_one(self) -> None:
        """O4: as Java writes it, which is a little more than it is."""
        greatest = (2 - 2**-23) * 2.0**127
        rows = decoded(
            SCHEMA, b'{"fs": [3.4028235E38, -3.4028235E38, 1.4E-45, 0, 1e-60]}'
        )
        assert rows[0]["fs"] == [greatest, -greatest, 2.0**-149, 0.0, 0.0]

    @pytest.mark.proves("O4")
    @pytest.mark.parametrize(
        "line",
        [
            b'{"n": 9223372036854775808}',
            b'{"i": 2147483648}',
            b'{"s": -32769}',
            b'{"b": 128}',
            b'{"n": 1.5}',
            b'{"n": "1"}',
            b'{"n": true}',
            b'{"d": "x"}',
            b'{"d": 1e999}',
            b'{"d": 1' + b"0" * 400 + b"}",
            b'{"f": 1e300}',
            b'{"f": -3.40282357e38}',
            b'{"f": 1' + b"0" * 50 + b"}",
            b'{"fs": [1e39]}',
            b'{"t": 0}',
            b'{"a b.c": 1}',
            b'{"l": 1}',
            b'{"l": ["x"]}',
            b'{"o": []}',
            b'{"o": {"x": "y"}}',
        ],
    )
    def test_another_type_is_no_record(self, line: bytes) -> None:
        """O4: nothing is rounded, cut off or read out of text."""
        with pytest.raises(LogRecordError):
            RecordDecoder(SCHEMA).decode("p", "p", 0, line)

    @pytest.mark.parametrize(
        "kind",
        [
            TimestampType(),
            DateType(),
            DecimalType(10, 2),
            MapType(StringType(), LongType()),
            ArrayType(DateType()),
            StructType().add("x", DateType()),
        ],
    )
    def test_what_json_does_not_have_is_told_at_once(self, kind: Any) -> None:
        """Before anything is read; it says what to do."""
        with pytest.raises(ConfigurationError, match="read it as a string, and cast"):
            RecordDecoder(StructType().add("at", kind))

    @pytest.mark.parametrize(
        ("schema", "name"),
        [
            (StructType().add("n", LongType(), nullable=False), "n"),
            (StructType().add("l", ArrayType(LongType(), False)), "l.element"),
            (
                StructType().add("o", StructType().add("x", LongType(), False)),
                "o.x",
            ),
            (StructType().add("value", StringType(), nullable=False), "value"),
        ],
    )
    def test_what_may_not_be_null_is_told_at_once(
        self, schema: StructType, name: str
    ) -> None:
        """Spark refuses every batch of such a column; before the first one we do."""
        with pytest.raises(ConfigurationError, match=f"{name} is NOT NULL.*leave NOT"):
            RecordDecoder(schema)
