"""Values as Postgres writes them, and reads them."""

from __future__ import annotations

import math
import struct
import time as time_module
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.sql.protocol.parameter_values import decode_parameter
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.protocol.types import (
    BY_NAME,
    column_of,
    encoder_of,
    type_of_engine,
)


pytestmark = pytest.mark.proves("F6")

MOMENT = datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("BOOLEAN", True, b"t"),
        ("BLOB", b"\0\xff", b"\\x00ff"),
        ("BIGINT", -5, b"-5"),
        ("HUGEINT", 2**100, str(2**100).encode()),
        ("DOUBLE", 1.0, b"1"),
        ("DOUBLE", 0.1, b"0.1"),
        ("DOUBLE", math.nan, b"NaN"),
        ("DOUBLE", -math.inf, b"-Infinity"),
        ("FLOAT", struct.unpack("f", struct.pack("f", 0.1))[0], b"0.1"),
        ("FLOAT", 16777217.0, b"1.67772e+07"),
        ("DECIMAL(9,2)", Decimal("1E+3"), b"1000"),
        ("VARCHAR", "a\0\u00fc", b"a\xc3\xbc"),
        ("DATE", date(2026, 3, 1), b"2026-03-01"),
        ("TIME", time(1, 2, 3), b"01:02:03"),
        ("TIMESTAMP", MOMENT.replace(tzinfo=None), b"2026-03-01 12:30:00.000005"),
        ("TIMESTAMP WITH TIME ZONE", MOMENT, b"2026-03-01 12:30:00.000005+00"),
        ("INTERVAL", timedelta(days=1, seconds=3661), b"1 days 01:01:01"),
        ("INTERVAL", timedelta(seconds=-1), b"-00:00:01"),
        ("INTEGER[]", [1, None], b"{1,NULL}"),
        ("VARCHAR[]", ["", "null", 'a"b', "x y"], b'{"","null","a\\"b","x y"}'),
        ("STRUCT(a INTEGER)", {"a": None}, b'{"a": null}'),
        ("MAP(VARCHAR, INTEGER)", {"k": 1}, b'{"k": 1}'),
        ("MAP(BOOLEAN, INTEGER)", {True: 1}, b'{"true": 1}'),
        ("MAP(DATE, INTEGER)", {date(2013, 1, 2): 1}, b'{"2013-01-02": 1}'),
        ("INTEGER[][]", [[1], None], b"[[1], null]"),
        ('"NULL"', "x", b"x"),
    ],
)
def test_a_value_is_text(kind: str, value: Any, expected: bytes) -> None:
    """As psql shows it."""
    found = encoder_of(kind, is_binary=False)(value)
    if kind == "FLOAT" and value > 1:
        assert float(found) == pytest.approx(value)
    else:
        assert found == expected


PLAIN = {
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "INTEGER": st.integers(-(2**31), 2**31 - 1),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "BOOLEAN": st.booleans(),
    "DOUBLE": st.floats(allow_nan=False),
    "FLOAT": st.floats(allow_nan=False, width=32),
    "VARCHAR": st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    "BLOB": st.binary(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(),
    "TIMESTAMP WITH TIME ZONE": st.datetimes(
        min_value=datetime(1, 1, 2),  # noqa: DTZ001 (Hypothesis adds the zone)
        max_value=datetime(9999, 12, 30),  # noqa: DTZ001 (likewise)
        timezones=st.just(UTC),
    ),
    "DECIMAL(38,10)": st.decimals(
        allow_nan=False,
        allow_infinity=False,
        places=10,
        min_value=-(10**20),
        max_value=10**20,
    ),
    "UUID": st.uuids(),
}


@given(st.data(), st.sampled_from(sorted(PLAIN)), st.booleans())
def test_what_is_written_is_read(
    data: st.DataObject, kind: str, is_binary: bool
) -> None:
    """In both forms, and in arrays."""
    value = data.draw(PLAIN[kind])
    found, _, _ = type_of_engine(kind)
    raw = encoder_of(kind, is_binary=is_binary)(value)
    read = decode_parameter(raw, found.oid, is_binary=is_binary)
    if kind == "FLOAT":  # as few digits as it takes, so the same with 32 bits
        read = struct.unpack("f", struct.pack("f", read))[0]
        is_binary = True
    assert read == value
    raw = encoder_of(f"{kind}[]", is_binary=is_binary)([value, None])
    assert decode_parameter(raw, found.array_oid, is_binary=is_binary) == [value, None]


@given(
    st.sampled_from(sorted(one.oid for one in BY_NAME.values())),
    st.binary(),
    st.booleans(),
)
def test_rubbish_is_no_value(oid: int, raw: bytes, is_binary: bool) -> None:
    """It is refused with a sentence, or it is one."""
    for one in (oid, BY_NAME["int4"].array_oid):
        refused = None
        try:
            decode_parameter(raw, one, is_binary=is_binary)
        except SQLError as error:
            refused = error
        assert refused is None or refused.sqlstate in {"22P02", "0A000"}


def test_null_and_unknown_types() -> None:
    """Null is of every type; a type that is not known is named."""
    assert decode_parameter(None, 12345, is_binary=True) is None
    assert decode_parameter(b"x", 705, is_binary=False) == "x"
    with pytest.raises(SQLError, match="12345"):
        decode_parameter(b"x", 12345, is_binary=False)
    assert decode_parameter(b"\\x00", 17, is_binary=False) == b"\0"
    assert decode_parameter(str(UUID(int=1)).encode(), 2950, is_binary=False).int == 1


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "12345678901234567890123456789012345678",
        "-1234567890123456789012345678901234567.8",
        "0.00000000000000000000000000000000000001",
        "1e37",
        "-0.5",
        "0",
    ],
)
def test_a_numeric_parameter_has_all_its_digits(text: str, is_binary: bool) -> None:
    """
    A decimal of a state has up to 38 of them.

    One that came in binary form, as asyncpg sends it, was rounded to 28 digits: what
    was equal to it was not found.
    """
    value = Decimal(text)
    raw = encoder_of("DECIMAL(38,38)", is_binary=is_binary)(value)
    found = decode_parameter(raw, BY_NAME["numeric"].oid, is_binary=is_binary)
    assert found == value
    assert len(found.as_tuple().digits) <= 38


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("TIME", time(23, 59, 59, 999_999)),
        ("INTERVAL", timedelta(days=3, hours=2, microseconds=1)),
        ("INTERVAL", -timedelta(hours=1)),
    ],
)
def test_times_and_durations_are_parameters(kind: str, value: Any) -> None:
    """In binary form, as asyncpg sends them; they were refused as none."""
    found, _, _ = type_of_engine(kind)
    raw = encoder_of(kind, is_binary=True)(value)
    assert decode_parameter(raw, found.oid, is_binary=True) == value


def test_columns_are_described() -> None:
    """With sizes, and the precision of decimals."""
    assert column_of("n", "BIGINT").type_size == 8
    assert column_of("d", "DECIMAL(9,2)").type_modifier == ((9 << 16) | 2) + 4
    assert column_of("l", "INTEGER[]").type_oid == 1007
    assert column_of("e", "ENUM('a')").type_oid == 25


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a, b}", ["a", "b"]),
        (' { a b , "c " ,\tNULL, d\\  } ', ["a b", "c ", None, "d "]),
        ("{ }", []),
        ('{"", "null"}', ["", "null"]),
    ],
)
def test_space_around_elements_is_not_theirs(
    text: str, expected: list[str | None]
) -> None:
    """
    As Postgres reads arrays.

    ``key = ANY ('{a, b}')`` looked for a key that begins with a space, and found none.
    """
    array_oid = BY_NAME["text"].array_oid
    assert decode_parameter(text.encode(), array_oid, is_binary=False) == expected


@pytest.mark.parametrize("text", ["{a,}", "{,a}", "{,}", '{"a}', '{"a"b}', "{a\\}"])
def test_an_array_that_is_none_is_refused(text: str) -> None:
    """It was read as an array of fewer elements, or of others."""
    with pytest.raises(SQLError) as caught:
        decode_parameter(text.encode(), BY_NAME["text"].array_oid, is_binary=False)
    assert caught.value.sqlstate == "22P02"


@pytest.mark.parametrize(
    ("value", "text", "number"),
    [
        (datetime.max, b"infinity", 2**63 - 1),  # noqa: DTZ901 (as the engine does)
        (datetime.min, b"-infinity", -(2**63)),  # noqa: DTZ901
    ],
)
def test_the_engines_infinity_is_that_of_postgres(
    value: datetime, text: bytes, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The engine gives it as Python's last moment without a zone.

    It was told as one of the server's time zone; in most of them, as an internal error.
    """
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time_module.tzset()
    try:
        kind = "TIMESTAMP WITH TIME ZONE"
        assert encoder_of(kind, is_binary=False)(value) == text
        assert encoder_of(kind, is_binary=True)(value) == struct.pack("!q", number)
    finally:
        monkeypatch.undo()
        time_module.tzset()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DATE", "10000-01-01"),
        ("DATE[]", ["0044-01-01 (BC)"]),
        ("TIMESTAMP", "10000-01-01 00:00:00"),
        ("TIMESTAMP WITH TIME ZONE", "10000-01-01 00:00:00+00"),
        ("TIME", "24:00:00"),
    ],
)
def test_what_python_has_no_value_for_is_refused_in_binary_form(
    kind: str, value: Any
) -> None:
    """
    The engine gives a year after 9999 as text, and as text it is sent.

    In binary form, as asyncpg wants it, it was an internal error.
    """
    encoder_of(kind, is_binary=False)(value)
    with pytest.raises(SQLError, match="cannot be sent in binary form") as caught:
        encoder_of(kind, is_binary=True)(value)
    assert caught.value.sqlstate == "22008"
    assert "VARCHAR" in caught.value.hint
