"""One key column: what it takes, how it sorts, and Spark's hash of it."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from queryablestate.schema.key_columns import MisfitError, key_column
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    MapType,
)
from tests.queryablestate.typed_values import (
    NESTED_KEYS,
    SCALARS,
    key_types,
    keys_of,
    rank,
    struct_of,
)


SEED = 42
PAIR = struct_of(AtomicType.INT, AtomicType.STRING)
FIRST = datetime.min  # noqa: DTZ901  # a TIMESTAMP_NTZ has no zone
LAST = datetime.max  # noqa: DTZ901  # a TIMESTAMP_NTZ has no zone
EVENING = datetime(2024, 6, 1, 23, 30, tzinfo=timezone(timedelta(hours=-5)))


class Gate(IntEnum):
    """Integers with names."""

    FIRST = 7


class Index:
    """An integer of some other library."""

    def __index__(self) -> int:
        return 7


class Place(NamedTuple):
    """A tuple with names, as Spark's rows are."""

    number: int
    name: str


class NotATime(datetime):
    """What pandas has for a missing time: a datetime with which nothing works."""

    def utcoffset(self) -> timedelta | None:
        """Refuse, as everything else does."""
        raise ValueError("NaTType does not support utcoffset")


def signed_hash(data_type: DataType, value: object) -> int:
    """Return the hash of one column with this value, as Spark's bigint."""
    column = key_column("k", data_type)
    unsigned = column.hash(column.to_stored(value), SEED)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def normalized(data_type: DataType, value: object) -> Any:
    """Return what comes back of *value*."""
    column = key_column("k", data_type)
    return column.to_value(column.to_stored(value))


class TestValues:
    """What a column takes, and what becomes of it."""

    @pytest.mark.parametrize(
        ("data_type", "value", "expected"),
        [
            (AtomicType.TINYINT, -128, -128),
            (AtomicType.TINYINT, 127, 127),
            (AtomicType.BIGINT, Gate.FIRST, 7),
            (AtomicType.BIGINT, Index(), 7),
            (AtomicType.BIGINT, -(1 << 63), -(1 << 63)),
            (AtomicType.DOUBLE, 1 << 60, float(1 << 60)),
            (AtomicType.DOUBLE, -0.0, 0.0),
            (AtomicType.DOUBLE, math.inf, math.inf),
            (AtomicType.FLOAT, 1 << 24, 16777216.0),
            (AtomicType.FLOAT, 0.1, 0.10000000149011612),
            (AtomicType.FLOAT, -1e-60, 0.0),
            (AtomicType.FLOAT, -math.inf, -math.inf),
            (AtomicType.BINARY, bytearray(b"a"), b"a"),
            (AtomicType.BINARY, memoryview(b"a"), b"a"),
            (AtomicType.DATE, date.min, date.min),
            (AtomicType.DATE, date.max, date.max),
            (AtomicType.TIMESTAMP, EVENING, datetime(2024, 6, 2, 4, 30, tzinfo=UTC)),
            (AtomicType.TIMESTAMP_NTZ, FIRST, FIRST),
            (AtomicType.TIMESTAMP_NTZ, LAST, LAST),
            (DecimalType(3, 2), Decimal("1.1"), Decimal("1.10")),
            (DecimalType(3, 2), Decimal("1.1000"), Decimal("1.10")),
            (DecimalType(3, 2), 9, Decimal("9.00")),
            (DecimalType(3, 0), Decimal("1E2"), Decimal(100)),
            (DecimalType(3, 2), Decimal("-0"), Decimal("0.00")),
            (DecimalType(38, 0), -(10**38) + 1, Decimal(-(10**38) + 1)),
            (PAIR, Place(1, "a"), (1, "a")),
            (PAIR, {"b": "a", "a": None}, (None, "a")),
            (PAIR, OrderedDict(a=1, b="a"), (1, "a")),
            (ArrayType(PAIR), [(1, "a"), None], ((1, "a"), None)),
            (ArrayType(AtomicType.INT), (), ()),
        ],
    )
    def test_what_fits_is_taken(
        self, data_type: DataType, value: object, expected: object
    ) -> None:
        """A value that the column can hold becomes the one that it would hold."""
        assert repr(normalized(data_type, value)) == repr(expected)

    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_KEYS], ids=str)
    def test_null_is_a_value(self, data_type: DataType) -> None:
        """Null fits everywhere, and leaves a hash as it is."""
        assert normalized(data_type, None) is None
        assert signed_hash(data_type, None) == SEED

    @pytest.mark.parametrize(
        ("data_type", "value", "detail"),
        [
            (AtomicType.TINYINT, 128, "out of the range of tinyint"),
            (AtomicType.SMALLINT, -32_769, "out of the range of smallint"),
            (AtomicType.INT, 1 << 31, "out of the range of int"),
            (AtomicType.BIGINT, 1 << 63, "out of the range of bigint"),
            (AtomicType.BIGINT, True, "takes an int, not bool"),
            (AtomicType.BIGINT, 1.0, "takes an int, not float"),
            (AtomicType.BIGINT, "1", "takes an int, not str"),
            (AtomicType.FLOAT, 1e39, "out of the range of float"),
            (AtomicType.FLOAT, (1 << 24) + 1, "not exactly a float"),
            (AtomicType.FLOAT, 10**400, "not exactly a float"),
            (AtomicType.DOUBLE, (1 << 53) + 1, "not exactly a double"),
            (AtomicType.DOUBLE, True, "takes a float, not bool"),
            (AtomicType.DOUBLE, Decimal(1), "takes a float, not Decimal"),
            (AtomicType.BOOLEAN, 1, "takes a bool, not int"),
            (AtomicType.STRING, b"a", "takes a str, not bytes"),
            (AtomicType.STRING, 1, "takes a str, not int"),
            (AtomicType.STRING, "\ud800", "takes text: .*surrogates not allowed"),
            (AtomicType.BINARY, "a", "takes bytes, not str"),
            (AtomicType.DATE, datetime(2024, 1, 1), "takes a date, not datetime"),  # noqa: DTZ001  # naive is what is tried
            (AtomicType.DATE, "2024-01-01", "takes a date, not str"),
            (AtomicType.TIMESTAMP, date(2024, 1, 1), "takes an aware datetime"),
            (
                AtomicType.TIMESTAMP,
                datetime(2024, 1, 1),  # noqa: DTZ001  # naive is what is tried
                "takes an aware datetime, not a naive one",
            ),
            (
                AtomicType.TIMESTAMP_NTZ,
                EVENING,
                "takes a naive datetime, not an aware one",
            ),
            (
                AtomicType.TIMESTAMP,
                LAST.replace(tzinfo=timezone(timedelta(hours=-1))),
                "out of the range of an aware datetime",
            ),
            (
                AtomicType.TIMESTAMP,
                FIRST.replace(tzinfo=timezone(timedelta(hours=1))),
                "out of the range of an aware datetime",
            ),
            (
                AtomicType.TIMESTAMP_NTZ,
                NotATime(1, 1, 1),
                "out of the range of a naive datetime",
            ),
            (DecimalType(3, 2), Decimal("1.111"), r"not exactly a decimal\(3,2\)"),
            (DecimalType(3, 2), 10, r"not exactly a decimal\(3,2\)"),
            (DecimalType(3, 2), Decimal("1E+999999"), "not exactly"),
            (DecimalType(3, 2), Decimal("1E-999999"), "not exactly"),
            (DecimalType(3, 2), Decimal("NaN"), "a finite Decimal"),
            (DecimalType(3, 2), Decimal("sNaN"), "a finite Decimal"),
            (DecimalType(3, 2), Decimal("-Infinity"), "a finite Decimal"),
            (DecimalType(3, 2), 1.5, "takes a Decimal, not float"),
            (DecimalType(3, 2), True, "takes a Decimal, not bool"),
            (PAIR, [1, "a"], r"a tuple of \(a, b\) is wanted, not list"),
            (PAIR, (1,), r"\(a, b\) takes 2 values, not 1"),
            (PAIR, (1, "a", None), r"\(a, b\) takes 2 values, not 3"),
            (PAIR, {"a": 1}, "the field b is missing"),
            (PAIR, {"a": 1, "b": "a", "c": 2}, "there is no field 'c'"),
            (PAIR, (1, 2), r"k\.b takes a str"),
            (ArrayType(AtomicType.INT), "12", "takes a list, not str"),
            (ArrayType(AtomicType.INT), {1}, "takes a list, not set"),
            (ArrayType(AtomicType.INT), ["1"], r"k\.element takes an int"),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, data_type: DataType, value: object, detail: str
    ) -> None:
        """A value that no row could have is never looked for: it would be missed."""
        with pytest.raises(MisfitError, match=detail):
            key_column("k", data_type).to_stored(value)

    @pytest.mark.parametrize(
        "data_type",
        [AtomicType.BIGINT, AtomicType.FLOAT, AtomicType.DOUBLE, DecimalType(3, 2)],
        ids=str,
    )
    def test_an_int_that_cannot_be_written_out_is_refused(
        self, data_type: DataType
    ) -> None:
        """Python raises errors of its own over ints of thousands of digits."""
        with pytest.raises(MisfitError, match=r"out of the range|not exactly"):
            key_column("k", data_type).to_stored(10**5_000)

    @pytest.mark.parametrize(
        "data_type",
        [MapType(AtomicType.INT, AtomicType.INT), CollatedStringType("UNICODE")],
        ids=str,
    )
    def test_no_key_has_these_types(self, data_type: DataType) -> None:
        """One that asks for such a column has passed over the schema's own check."""
        with pytest.raises(ConfigurationError, match="'k' cannot have type"):
            key_column("k", data_type)

    def test_text_that_is_none_is_shown_like_spark_shows_it(self) -> None:
        """A key that Spark cast from bytes has U+FFFD for what is no UTF-8."""
        column = key_column("k", AtomicType.STRING)
        assert column.to_value(b"a\xff") == "a\ufffd"


class TestBytes:
    """The bytes of a column: they sort as its values, and end by themselves."""

    @pytest.mark.parametrize(
        ("data_type", "value", "expected"),
        [
            (AtomicType.INT, None, "00"),
            (AtomicType.TINYINT, -128, "01 00"),
            (AtomicType.SMALLINT, -1, "01 7fff"),
            (AtomicType.INT, 1, "01 80000001"),
            (AtomicType.BIGINT, 0, "01 8000000000000000"),
            (AtomicType.DATE, date(1970, 1, 2), "01 80000001"),
            (
                AtomicType.TIMESTAMP,
                datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
                "01 80000000000f4240",
            ),
            (AtomicType.BOOLEAN, False, "01 00"),
            (AtomicType.BOOLEAN, True, "01 01"),
            (AtomicType.FLOAT, 1.0, "01 bf800000"),
            (AtomicType.FLOAT, math.nan, "01 ffc00000"),
            (AtomicType.DOUBLE, 0.0, "01 8000000000000000"),
            (AtomicType.DOUBLE, -0.0, "01 8000000000000000"),
            (AtomicType.DOUBLE, -1.0, "01 400fffffffffffff"),
            (AtomicType.DOUBLE, math.nan, "01 fff8000000000000"),
            (AtomicType.STRING, "a\x00b", "01 61 0001 62 0000"),
            (AtomicType.BINARY, b"", "01 0000"),
            (DecimalType(3, 2), Decimal("0.01"), "01 8000000000000001"),
            (DecimalType(19, 0), -1, "01 7fffffffffffffffffffffffffffffff"),
            (PAIR, (None, "a"), "01 00 01610000"),
            (
                ArrayType(AtomicType.TINYINT),
                [1, None],
                "01 01 0181 01 00 00",
            ),
            (ArrayType(AtomicType.TINYINT), [], "01 00"),
        ],
    )
    def test_the_layout_is_fixed(
        self, data_type: DataType, value: object, expected: str
    ) -> None:
        """These bytes are on disks: they cannot change without losing states."""
        column = key_column("k", data_type)
        stored = column.to_stored(value)
        encoded = bytes.fromhex(expected)
        assert column.to_bytes(stored) == encoded
        assert repr(column.from_bytes(encoded, 0)) == repr((stored, len(encoded)))

    @given(st.data())
    def test_bytes_sort_as_values_do(self, data: st.DataObject) -> None:
        """Nulls first, NaN the greatest number, text by its UTF-8."""
        data_type = data.draw(key_types())
        column = key_column("k", data_type)
        values = data.draw(st.lists(keys_of(data_type), min_size=2, max_size=6))
        for one, other in pairwise(values):
            left, right = (
                column.to_bytes(column.to_stored(value)) for value in (one, other)
            )
            assert (left < right) is (rank(one) < rank(other))
            assert (left == right) is (rank(one) == rank(other))

    @given(st.data())
    def test_bytes_give_the_value_back(self, data: st.DataObject) -> None:
        """Whatever follows them."""
        data_type = data.draw(key_types())
        column = key_column("k", data_type)
        stored = column.to_stored(data.draw(keys_of(data_type)))
        encoded = column.to_bytes(stored)
        rest = data.draw(st.binary(max_size=3))
        found, end = column.from_bytes(b"head" + encoded + rest, 4)
        assert (found, end) == (stored, 4 + len(encoded))
        assert column.to_stored(column.to_value(stored)) == stored

    @pytest.mark.parametrize(
        ("data_type", "damaged"),
        [
            (AtomicType.INT, ""),
            (AtomicType.INT, "02 80000001"),
            (AtomicType.INT, "01 800000"),
            (AtomicType.DOUBLE, "01 80000000"),
            (AtomicType.BOOLEAN, "01"),
            (AtomicType.BOOLEAN, "01 02"),
            (AtomicType.STRING, "01 61"),
            (AtomicType.STRING, "01 61 00"),
            (AtomicType.STRING, "01 61 0002 0000"),
            (ArrayType(AtomicType.BOOLEAN), "01 01 0101"),
            (ArrayType(AtomicType.BOOLEAN), "01 02 0101 00"),
            (PAIR, "01 01 80000001"),
        ],
    )
    def test_damaged_bytes_are_noticed(self, data_type: DataType, damaged: str) -> None:
        """No other value comes back, and no endless loop."""
        with pytest.raises((IndexError, ValueError, struct.error)):
            key_column("k", data_type).from_bytes(bytes.fromhex(damaged), 0)


class TestHash:
    """Spark's ``xxhash64``: the golden values were computed by Spark 4.3."""

    @pytest.mark.parametrize(
        ("data_type", "value", "expected"),
        [
            (AtomicType.STRING, "", -7444071767201028348),
            (AtomicType.STRING, "user-1", 3245521771936779939),
            (AtomicType.TINYINT, 1, -6698625589789238999),
            (AtomicType.SMALLINT, 1, -6698625589789238999),
            (AtomicType.INT, 1, -6698625589789238999),
            (AtomicType.BOOLEAN, True, -6698625589789238999),
            (AtomicType.BIGINT, 1, -7001672635703045582),
            (AtomicType.DATE, date(2024, 1, 1), 3242891694566951137),
            (
                AtomicType.TIMESTAMP,
                datetime(2024, 1, 1, tzinfo=UTC),
                3859582417520161651,
            ),
            (PAIR, (1, "a"), 8205864924878002737),
            (DecimalType(3, 2), Decimal("1.10"), 214815589036292259),
            (DecimalType(2, 1), Decimal("1.1"), 5217482232275368447),
        ],
    )
    def test_it_is_that_of_spark(
        self, data_type: DataType, value: object, expected: int
    ) -> None:
        """The type of the column decides, not that of the Python value."""
        assert signed_hash(data_type, value) == expected

    @pytest.mark.parametrize("data_type", [AtomicType.FLOAT, AtomicType.DOUBLE])
    def test_zeros_are_one_and_so_are_nans(self, data_type: DataType) -> None:
        """Keys that are equal to Spark have one hash."""
        assert signed_hash(data_type, 0.0) == signed_hash(data_type, -0.0)
        assert signed_hash(data_type, math.nan) == signed_hash(data_type, -math.nan)

    def test_an_empty_array_leaves_the_seed(self) -> None:
        """As null does: there is nothing to fold."""
        assert signed_hash(ArrayType(AtomicType.INT), []) == SEED

    @pytest.mark.parametrize(
        ("unscaled", "size_bytes"),
        [(0, 1), (127, 1), (128, 2), (-128, 1), (-129, 2), (10**38 - 1, 16)],
    )
    def test_a_long_decimal_is_hashed_in_as_few_bytes_as_hold_it(
        self, unscaled: int, size_bytes: int
    ) -> None:
        """Like ``java.math.BigInteger.toByteArray``: equal to a binary column's."""
        data = unscaled.to_bytes(size_bytes, "big", signed=True)
        expected = signed_hash(AtomicType.BINARY, data)
        assert signed_hash(DecimalType(38, 0), unscaled) == expected
