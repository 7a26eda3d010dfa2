"""`key_groups`: where Spark does not compute the key group of a row, we do, alike."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest

from queryablestate.client.arrow_columns import arrow_rows
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import AtomicType, DataType
from sparkpipeline.state.columns import key_groups
from tests.queryablestate.typed_values import (
    NESTED_KEYS,
    SCALARS,
    fields_of,
    random_value,
)


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_KEYS], ids=str)
def test_it_is_that_of_the_codec(data_type: DataType, has_nulls: bool) -> None:
    """Which is that of Spark (test_columns.py), whatever the type of the key."""
    rng = random.Random(str(data_type))
    fields = fields_of(data_type)
    values = [random_value(rng, data_type) for _ in range(200)]
    if has_nulls:
        values[::7] = [None] * len(values[::7])
    codec = KeyCodec(fields, max_parallelism=200)
    batch = arrow_rows(fields, [(one,) for one in values])
    found = key_groups(batch, fields, max_parallelism=200)
    assert found.to_pylist() == [codec.key_group(one) for one in values]
    assert found.type == pa.int32()


def test_columns_are_chained() -> None:
    """Several key columns are hashed in the order of the key."""
    fields = fields_of(AtomicType.STRING, AtomicType.BIGINT, AtomicType.BOOLEAN)
    rows = [("a", 1, True), (None, 2, None), ("b", None, False)]
    codec = KeyCodec(fields, max_parallelism=32_768)
    batch = arrow_rows(fields, rows)
    found = key_groups(batch, fields, max_parallelism=32_768)
    assert found.to_pylist() == [codec.key_group(row) for row in rows]


@pytest.mark.parametrize("data_type", [AtomicType.FLOAT, AtomicType.DOUBLE], ids=str)
def test_equal_numbers_are_one_key(data_type: AtomicType) -> None:
    """0.0 and -0.0 are equal to Spark, and so is every NaN."""
    fields = fields_of(data_type)
    arrow_type = pa.float32() if data_type is AtomicType.FLOAT else pa.float64()
    array = pa.array([0.0, -0.0, math.nan, -math.nan], arrow_type)
    batch = pa.RecordBatch.from_arrays([array], names=["a"])
    zero, minus_zero, nan, minus_nan = key_groups(
        batch, fields, max_parallelism=32_768
    ).to_pylist()
    assert zero == minus_zero
    assert nan == minus_nan


def test_no_rows_have_no_groups() -> None:
    """An empty batch is one like any other."""
    fields = fields_of(AtomicType.INT)
    assert len(key_groups(arrow_rows(fields, []), fields, max_parallelism=2)) == 0
