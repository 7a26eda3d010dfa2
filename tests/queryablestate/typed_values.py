"""Types of columns and values that fit them, for Hypothesis and from a seed."""

from __future__ import annotations

import math
import random
import string
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

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


INTEGER_BITS = {
    AtomicType.TINYINT: 8,
    AtomicType.SMALLINT: 16,
    AtomicType.INT: 32,
    AtomicType.BIGINT: 64,
}
DECIMALS = (
    DecimalType(1, 0),
    DecimalType(3, 2),
    DecimalType(18, 18),
    DecimalType(18, 0),
    DecimalType(19, 4),
    DecimalType(38, 0),
    DecimalType(38, 38),
)
SCALARS: tuple[DataType, ...] = (*AtomicType, *DECIMALS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fields_of(*types: DataType) -> tuple[Field, ...]:
    """Return columns a, b, c, … of these types."""
    return tuple(
        Field(name, one)
        for name, one in zip(string.ascii_lowercase, types, strict=False)
    )


def struct_of(*types: DataType) -> StructType:
    """Return a struct with the fields a, b, c, … of these types."""
    return StructType(fields_of(*types))


# Every way in which the types nest, with every type at the bottom.
NESTED_KEYS: tuple[DataType, ...] = (
    struct_of(*SCALARS),
    struct_of(struct_of(AtomicType.STRING, AtomicType.INT), AtomicType.DATE),
    *(ArrayType(one) for one in SCALARS),
    ArrayType(struct_of(AtomicType.STRING, ArrayType(AtomicType.BIGINT))),
)
# Spark's own rows cannot hold these: in Python, a list is no key of a dict.
MAP_BY_ARRAYS = MapType(
    struct_of(ArrayType(AtomicType.DATE), struct_of(AtomicType.TIMESTAMP)),
    ArrayType(MapType(AtomicType.STRING, AtomicType.TIMESTAMP_NTZ)),
)
NESTED_VALUES: tuple[DataType, ...] = (
    *NESTED_KEYS,
    *(MapType(one, AtomicType.DATE) for one in SCALARS),
    *(MapType(AtomicType.INT, one) for one in SCALARS),
    MapType(struct_of(AtomicType.DATE, AtomicType.STRING), struct_of(AtomicType.FLOAT)),
    MAP_BY_ARRAYS,
    ArrayType(ArrayType(struct_of(MapType(AtomicType.INT, AtomicType.BINARY)))),
    struct_of(MapType(AtomicType.STRING, struct_of(DecimalType(20, 3)))),
)


def key_types() -> st.SearchStrategy[DataType]:
    """Types that a key column can have."""
    scalars: st.SearchStrategy[DataType] = st.sampled_from(SCALARS)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            inner.map(ArrayType),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda types: struct_of(*types)
            ),
        ),
        max_leaves=4,
    )


def value_types() -> st.SearchStrategy[DataType]:
    """Types that a value column can have."""
    collated: DataType = CollatedStringType("UTF8_LCASE")
    return st.recursive(
        key_types() | st.just(collated),
        lambda inner: st.one_of(
            inner.map(ArrayType),
            st.lists(inner, min_size=0, max_size=3).map(
                lambda types: struct_of(*types)
            ),
            st.builds(MapType, key_types(), inner),
        ),
        max_leaves=4,
    )


def keys_of(data_type: DataType) -> st.SearchStrategy[Any]:
    """Values of a key column, None among them."""
    return st.none() | _present(data_type, is_key=True)


def values_of(data_type: DataType) -> st.SearchStrategy[Any]:
    """Values of a value column as they come back, None among them."""
    return st.none() | _present(data_type, is_key=False)


def _present(data_type: DataType, *, is_key: bool) -> st.SearchStrategy[Any]:
    match data_type:
        case (
            AtomicType.TINYINT
            | AtomicType.SMALLINT
            | AtomicType.INT
            | (AtomicType.BIGINT)
        ):
            limit = 1 << (INTEGER_BITS[data_type] - 1)
            return st.integers(-limit, limit - 1)
        case AtomicType.FLOAT:
            return st.floats(width=32).map(_with_one_nan)
        case AtomicType.DOUBLE:
            return st.floats().map(_with_one_nan)
        case AtomicType.BOOLEAN:
            return st.booleans()
        case AtomicType.STRING | CollatedStringType():
            return st.text("ab\x00\x01é€😀") | st.text()
        case AtomicType.BINARY:
            return st.binary() | st.lists(st.sampled_from([0, 1, 255])).map(bytes)
        case AtomicType.DATE:
            return st.dates()
        case AtomicType.TIMESTAMP:
            return st.datetimes(timezones=st.just(UTC)).map(_without_fold)
        case AtomicType.TIMESTAMP_NTZ:
            return st.datetimes().map(_without_fold)
        case DecimalType(precision=precision, scale=scale):
            limit = 10**precision - 1
            return st.integers(-limit, limit).map(lambda one: decimal(one, scale))
        case StructType(fields=fields):
            if is_key:
                return st.tuples(*(keys_of(one.type) for one in fields))
            names = [one.name for one in fields]
            return st.tuples(*(values_of(one.type) for one in fields)).map(
                lambda row: dict(zip(names, row, strict=True))
            )
        case ArrayType(element=element):
            if is_key:
                return st.lists(keys_of(element), max_size=4).map(tuple)
            return st.lists(values_of(element), max_size=4)
        case MapType(key=key, value=value):
            return st.dictionaries(
                _present(key, is_key=True), values_of(value), max_size=3
            )


def _without_fold(moment: datetime) -> datetime:
    # Hypothesis likes to set it; it means nothing without a zone that has summers.
    return moment.replace(fold=0)


def _with_one_nan(number: float) -> float:
    return math.nan if math.isnan(number) else number


def decimal(unscaled: int, scale: int) -> Decimal:
    """Return *unscaled* with *scale* of its digits after the point."""
    sign = 1 if unscaled < 0 else 0
    return Decimal((sign, tuple(map(int, str(abs(unscaled)))), -scale))


def rank(value: Any) -> tuple[Any, ...]:
    """Return what sorts as Spark sorts keys: null, numbers, NaN; text by its bytes."""
    match value:
        case None:
            return (0,)
        case float():
            return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
        case str():
            return (1, value.encode())
        case tuple():
            return (1, *map(rank, value))
        case _:
            return (1, value)


def random_value(rng: random.Random, data_type: DataType) -> Any:
    """Return a value of *data_type*; one in a hundred is None, or an extreme."""
    if rng.random() < 0.01:
        return None
    match data_type:
        case (
            AtomicType.TINYINT
            | AtomicType.SMALLINT
            | AtomicType.INT
            | (AtomicType.BIGINT)
        ):
            bits = INTEGER_BITS[data_type]
            return _near_zero(rng, bits, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            layout = ">f" if data_type is AtomicType.FLOAT else ">d"
            special = (0.0, -0.0, math.inf, -math.inf, math.nan)
            if rng.random() < 0.02:
                return rng.choice(special)
            number: float
            (number,) = struct.unpack(layout, rng.randbytes(struct.calcsize(layout)))
            return _with_one_nan(number)
        case AtomicType.BOOLEAN:
            return rng.random() < 0.5
        case AtomicType.STRING | CollatedStringType():
            return "".join(rng.choices("abc\x00ß€漢😀", k=rng.randrange(100)))
        case AtomicType.BINARY:
            return rng.randbytes(rng.randrange(130))
        case AtomicType.DATE:
            return date.fromordinal(rng.randint(1, date.max.toordinal()))
        case AtomicType.TIMESTAMP | AtomicType.TIMESTAMP_NTZ:
            # A day from either end: Spark's rows are in the local time of the tests.
            micros = rng.randint(-62_135_500_000_000_000, 253_402_200_000_000_000)
            moment = EPOCH + timedelta(microseconds=micros)
            is_aware = data_type is AtomicType.TIMESTAMP
            return moment if is_aware else moment.replace(tzinfo=None)
        case DecimalType(precision=precision, scale=scale):
            limit = 10**precision - 1
            digits = limit.bit_length()
            return decimal(_near_zero(rng, digits, -limit, limit), scale)
        case StructType(fields=fields):
            return tuple(random_value(rng, one.type) for one in fields)
        case ArrayType(element=element):
            return tuple(random_value(rng, element) for _ in range(rng.randrange(4)))
        case MapType(key=key, value=value):
            found = {}
            for _ in range(rng.randrange(4)):
                one = random_value(rng, key)
                if one is not None:  # Spark refuses it
                    found[one] = random_value(rng, value)
            return found


def _near_zero(rng: random.Random, bits: int, low: int, high: int) -> int:
    """Return an integer of any number of bits with the same probability."""
    number = rng.getrandbits(rng.randint(1, bits))
    return min(max(rng.choice((number, -number, low, high)), low), high)


def as_read(value: Any, data_type: DataType) -> Any:
    """Return *value*, with structs and arrays as keys have them, as it comes back."""
    match data_type:
        case _ if value is None:
            return None
        case StructType(fields=fields):
            return {
                field.name: as_read(one, field.type)
                for field, one in zip(fields, value, strict=True)
            }
        case ArrayType(element=element):
            return [as_read(one, element) for one in value]
        case MapType(value=value_type):
            assert isinstance(value, Mapping)
            return {key: as_read(one, value_type) for key, one in value.items()}
        case _:
            return value
