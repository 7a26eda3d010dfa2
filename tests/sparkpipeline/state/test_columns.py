"""Arrow columns become what the codecs of keys and rows would have written."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType as SparkStructType

from nameservice import ConfigurationError
from queryablestate import KeyTooLargeError
from queryablestate.client.arrow_columns import arrow_rows, arrow_schema
from queryablestate.schema.key_columns import key_column
from queryablestate.schema.keys import KEY_SIZE_BYTES_MAX, KeyCodec
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
from queryablestate.schema.schema_json import fields_json, parse_fields
from queryablestate.schema.values import ValueCodec
from sparkpipeline.state.columns import (
    encoded_keys,
    encoded_rows,
    order_bytes,
    plain_values,
)
from tests.queryablestate.typed_values import (
    MAP_BY_ARRAYS,
    NESTED_KEYS,
    NESTED_VALUES,
    SCALARS,
    as_read,
    fields_of,
    key_types,
    keys_of,
    random_value,
    rank,
    struct_of,
    value_types,
    values_of,
)
from tests.tiers import nightly_after


Rows = Sequence[tuple[Any, ...]]

ROW_COUNT = 5_000
VALUE_PARTS = 5
MAX_PARALLELISMS = (2, 128, 200, 32_768)


def groups_of(codec: KeyCodec, keys: Sequence[object]) -> pa.Array:
    """Return the key groups of *keys*, as Spark would have computed them."""
    return pa.array([codec.key_group(key) for key in keys], pa.int64())


def names_of(fields: Sequence[Field]) -> list[str]:
    """Return what the columns are called."""
    return [one.name for one in fields]


class TestRows:
    """`encoded_rows` writes what `ValueCodec` does, byte for byte."""

    @given(st.data())
    def test_a_batch_is_its_rows(self, data: st.DataObject) -> None:
        """Whatever the types, with nulls anywhere."""
        types = data.draw(st.lists(value_types(), min_size=1, max_size=3))
        fields = fields_of(*types)
        row = st.tuples(*(values_of(one) for one in types))
        rows = data.draw(st.lists(row, max_size=4))
        codec = ValueCodec(fields)
        batch = arrow_rows(fields, rows)
        assert encoded_rows(batch, names_of(fields)) == [
            codec.encode_row(one) for one in rows
        ]

    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_VALUES], ids=str)
    def test_every_type_is_stored(self, data_type: DataType) -> None:
        """Also where a batch is a part of a longer one, and a column in chunks."""
        rng = random.Random(str(data_type))
        fields = fields_of(data_type)
        values = [random_value(rng, data_type) for _ in range(200)]
        values[::7] = [None] * len(values[::7])
        codec = ValueCodec(fields)
        expected = [codec.encode_row([one]) for one in values]
        batch = arrow_rows(fields, [(one,) for one in values])
        assert encoded_rows(batch, ["a"]) == expected
        assert encoded_rows(batch.slice(13, 150), ["a"]) == expected[13:163]
        assert encoded_rows(batch.slice(200), ["a"]) == []
        column = batch.column(0)
        chunks = pa.chunked_array([column[:1], column[1:77], column[77:]])
        assert repr(plain_values(chunks)) == repr(plain_values(column))

    def test_columns_are_taken_by_name(self) -> None:
        """In the order of the schema; the others are keys, and do not count."""
        fields = fields_of(AtomicType.INT, AtomicType.STRING, AtomicType.INT)
        batch = arrow_rows(fields, [(1, "x", 2)])
        codec = ValueCodec(fields_of(AtomicType.INT, AtomicType.INT))
        assert encoded_rows(batch, ["c", "a"]) == [codec.encode_row([2, 1])]

    def test_a_state_may_have_no_value_columns(self) -> None:
        """Then a row says that its key exists."""
        batch = arrow_rows(fields_of(AtomicType.INT), [(1,), (2,)])
        assert encoded_rows(batch, []) == [ValueCodec([]).encode_row([])] * 2

    def test_large_arrow_types_are_the_same(self) -> None:
        """Spark uses them when it is told to."""
        plain = ["x", None]
        assert plain_values(pa.array(plain, pa.large_string())) == plain
        assert plain_values(pa.array([b"x", None], pa.large_binary())) == [b"x", None]
        lists = pa.array([["x"], None], pa.large_list(pa.large_string()))
        assert plain_values(lists) == [["x"], None]

    def test_times_have_microseconds(self) -> None:
        """Whatever unit they come in."""
        array = pa.array([1, None, -1], pa.timestamp("s", tz="Europe/Berlin"))
        assert plain_values(array) == [1_000_000, None, -1_000_000]

    @pytest.mark.parametrize("data_type", [pa.string(), pa.large_string()], ids=str)
    def test_text_that_is_none_is_kept_as_far_as_it_is(
        self, data_type: pa.DataType
    ) -> None:
        """One bad string does not stop a query: it is what Spark's rows show."""
        binary = pa.array([b"a\xffb", None, "é".encode()], pa.large_binary())
        if data_type == pa.string():
            binary = binary.cast(pa.binary())
        array = pa.Array.from_buffers(data_type, 3, binary.buffers())
        assert plain_values(array) == ["a\ufffdb", None, "é"]

    @pytest.mark.parametrize(
        "data_type",
        [pa.time64("us"), pa.duration("us"), pa.list_(pa.int8(), 2), pa.null()],
        ids=str,
    )
    def test_other_types_are_refused(self, data_type: pa.DataType) -> None:
        """What Spark's types do not come as is an error, alone and within others."""
        for array in (
            pa.array([None], data_type),
            pa.array([[None]], pa.list_(data_type)),
        ):
            with pytest.raises(ConfigurationError, match="cast it"):
                plain_values(array)


class TestKeys:
    """`encoded_keys` writes what `KeyCodec` does, byte for byte."""

    @given(st.data())
    @settings(max_examples=50)
    def test_a_batch_has_its_keys(self, data: st.DataObject) -> None:
        """Whatever the types, with nulls anywhere."""
        types = data.draw(st.lists(key_types(), min_size=1, max_size=3))
        fields = fields_of(*types)
        codec = KeyCodec(fields, max_parallelism=200)
        row = st.tuples(*(keys_of(one) for one in types))
        rows = data.draw(st.lists(row, max_size=4))
        keys = rows if len(types) > 1 else [row[0] for row in rows]
        found = encoded_keys(
            arrow_rows(fields, rows), fields, names_of(fields), groups_of(codec, keys)
        )
        assert found == codec.storage_keys(keys)

    @pytest.mark.parametrize("has_nulls", [False, True])
    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_KEYS], ids=str)
    def test_every_type_is_a_key(self, data_type: DataType, has_nulls: bool) -> None:
        """Also where a batch is a part of a longer one, and nothing is null."""
        rng = random.Random(str(data_type))
        drawn = (random_value(rng, data_type) for _ in range(120))
        keys = [key for key in drawn if has_nulls or key is not None]
        keys[::7] = [None if has_nulls else keys[0]] * len(keys[::7])
        fields = fields_of(data_type)
        codec = KeyCodec(fields, max_parallelism=200)
        keys = [key for key in keys if len(codec_key(data_type, key)) <= 480]
        expected = codec.storage_keys(keys)
        batch = arrow_rows(fields, [(key,) for key in keys])
        groups = groups_of(codec, keys)
        assert encoded_keys(batch, fields, ["a"], groups) == expected
        part = encoded_keys(batch.slice(3, 50), fields, ["a"], groups[3:53])
        assert part == expected[3:53]

    def test_map_keys_stand_behind_keys(self) -> None:
        """The entries of a map state have both."""
        key, map_key = fields_of(AtomicType.STRING, AtomicType.INT)
        codec = KeyCodec((key,), max_parallelism=128, map_fields=(map_key,))
        batch = arrow_rows((map_key, key), [(1, "x")])
        found = encoded_keys(batch, (key, map_key), ["a", "b"], groups_of(codec, ["x"]))
        assert found == [codec.map_entry_key("x", 1)]

    def test_no_rows_are_no_keys(self) -> None:
        """A partition may be empty."""
        fields = fields_of(AtomicType.STRING)
        groups = pa.array([], pa.int32())
        assert encoded_keys(arrow_rows(fields, []), fields, ["a"], groups) == []

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_key_may_be_as_long_as_fits(self, more: int) -> None:
        """One byte more fails the batch, with the size in the error."""
        fields = fields_of(AtomicType.STRING)
        key = "x" * (KEY_SIZE_BYTES_MAX - 3 + more)
        batch = arrow_rows(fields, [("a",), (key,)])
        groups = pa.array([0, 1], pa.int64())
        if not more:
            assert len(encoded_keys(batch, fields, ["a"], groups)[1]) == 482
            return
        with pytest.raises(KeyTooLargeError) as caught:
            encoded_keys(batch, fields, ["a"], groups)
        assert caught.value.size_bytes == KEY_SIZE_BYTES_MAX + 1


def codec_key(data_type: DataType, key: object) -> bytes:
    """Return *key* encoded, however long it is."""
    column = key_column("k", data_type)
    return column.to_bytes(column.to_stored(key))


class TestOrderBytes:
    """`order_bytes` sorts as ``ORDER BY`` does."""

    @pytest.mark.parametrize("data_type", SCALARS, ids=str)
    @given(data=st.data())
    @settings(max_examples=20)
    def test_bytes_sort_as_the_column_does(
        self, data_type: DataType, data: st.DataObject
    ) -> None:
        """W6: nulls first, and NaN the greatest number."""
        values = data.draw(st.lists(keys_of(data_type), min_size=2, max_size=6))
        batch = arrow_rows(fields_of(data_type), [(one,) for one in values])
        pairs = zip(values, order_bytes(batch.column(0)), strict=True)
        for (one, left), (other, right) in pairwise(pairs):
            assert (left < right) is (rank(one) < rank(other))
            assert (left == right) is (rank(one) == rank(other))

    @pytest.mark.parametrize(
        "data_type", [struct_of(AtomicType.INT), ArrayType(AtomicType.INT)], ids=str
    )
    def test_it_takes_one_value_per_row(self, data_type: DataType) -> None:
        """W6: what has parts is refused, and what to do instead is said."""
        batch = arrow_rows(fields_of(data_type), [])
        with pytest.raises(ConfigurationError, match="name one of its fields"):
            order_bytes(batch.column(0))

    def test_other_types_are_refused(self) -> None:
        """As everywhere."""
        with pytest.raises(ConfigurationError, match="cast it"):
            order_bytes(pa.array([None], pa.time64("us")))


class TestArrowRows:
    """Stored rows on their way to a DataFrame."""

    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_VALUES], ids=str)
    def test_the_schema_is_that_of_spark(self, data_type: DataType) -> None:
        """A Python data source must give Spark the Arrow types that it expects."""
        fields = fields_of(data_type, CollatedStringType("UTF8_LCASE"))
        expected = to_arrow_schema(spark_schema(fields), timezone="UTC")
        assert arrow_schema(fields).types == expected.types
        assert arrow_rows(fields, []).num_rows == 0

    @pytest.mark.parametrize("data_type", [*SCALARS, *NESTED_VALUES], ids=str)
    def test_our_json_is_that_of_spark(self, data_type: DataType) -> None:
        """What Spark writes of our text is our text."""
        text = fields_json(fields_of(data_type))
        assert spark_schema(fields_of(data_type)).json() == text
        assert parse_fields(text) == fields_of(data_type)


def spark_schema(fields: Sequence[Field]) -> SparkStructType:
    """Return *fields* as Spark has them."""
    return SparkStructType.fromJson(json.loads(fields_json(fields)))


def frame(spark: SparkSession, fields: Sequence[Field], rows: Rows) -> DataFrame:
    """Return *rows* as a DataFrame of Spark's."""
    table = pa.Table.from_batches([arrow_rows(fields, rows)])
    return spark.createDataFrame(table, spark_schema(fields))


def random_rows(seed: int, types: Sequence[DataType], count: int) -> Rows:
    """Return rows with one column for each of *types*."""
    rng = random.Random(seed)
    return [tuple(random_value(rng, one) for one in types) for _ in range(count)]


def group_column(names: Sequence[str], max_parallelism: int) -> Column:
    """Return the key group as Spark computes it."""
    return F.pmod(F.xxhash64(*names), F.lit(max_parallelism))


@pytest.mark.spark
class TestWithSpark:
    """What Spark itself says of the same values."""

    @pytest.mark.parametrize("row_count", nightly_after(1, [4_000, 20_000]))
    def test_the_key_group_is_that_of_spark(
        self, spark: SparkSession, row_count: int
    ) -> None:
        """Thousands of values of every type that a key may have, with four moduli."""
        types = (*SCALARS, *NESTED_KEYS)
        # More types than letters.
        fields = tuple(Field(f"c{i}", one) for i, one in enumerate(types))
        rows = random_rows(1, types, row_count)
        found = frame(spark, fields, rows).select(
            *(
                group_column([field.name], MAX_PARALLELISMS[index % 4]).alias(
                    field.name
                )
                for index, field in enumerate(fields)
            )
        )
        groups = found.toArrow().to_pydict()
        for index, field in enumerate(fields):
            codec = KeyCodec([field], max_parallelism=MAX_PARALLELISMS[index % 4])
            expected = [codec.key_group(row[index]) for row in rows]
            assert groups[field.name] == expected, field

    @pytest.mark.parametrize("max_parallelism", MAX_PARALLELISMS)
    def test_columns_are_chained_as_spark_chains_them(
        self, spark: SparkSession, max_parallelism: int
    ) -> None:
        """Keys of several columns, nulls, a struct and an array among them."""
        types = (
            AtomicType.STRING,
            AtomicType.BIGINT,
            AtomicType.DATE,
            DecimalType(20, 3),
            struct_of(AtomicType.INT, ArrayType(AtomicType.STRING)),
            ArrayType(AtomicType.DOUBLE),
        )
        fields = fields_of(*types)
        rows = random_rows(max_parallelism, types, ROW_COUNT)
        codec = KeyCodec(fields, max_parallelism=max_parallelism)
        found = frame(spark, fields, rows).select(
            group_column(names_of(fields), max_parallelism).alias("key_group")
        )
        groups = found.toArrow().column("key_group").to_pylist()
        assert groups == [codec.key_group(row) for row in rows]

    def test_keys_are_encoded_in_tasks_as_by_clients(self, spark: SparkSession) -> None:
        """What a writer stores under is what a reader asks for."""
        types = (
            AtomicType.STRING,
            AtomicType.TIMESTAMP,
            DecimalType(38, 2),
            struct_of(AtomicType.DOUBLE, AtomicType.TIMESTAMP_NTZ),
        )
        fields = fields_of(*types)
        names = names_of(fields)

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                keys = encoded_keys(batch, fields, names, batch.column("key_group"))
                yield pa.RecordBatch.from_arrays([pa.array(keys, pa.binary())], ["key"])

        rows = random_rows(2, types, 2_000)
        found = (
            frame(spark, fields, rows)
            .withColumn("key_group", group_column(names, 128))
            .mapInArrow(encode, "key binary")
        )
        codec = KeyCodec(fields, max_parallelism=128)
        assert sorted(row.key for row in found.collect()) == sorted(
            codec.storage_keys(rows)
        )

    @pytest.mark.parametrize("part", range(VALUE_PARTS))
    def test_values_come_back_as_spark_s_own_rows(
        self, spark: SparkSession, part: int
    ) -> None:
        """``Row.asDict(recursive=True)``, with the two exceptions of the design."""
        types = (AtomicType.INT, *[*SCALARS, *NESTED_VALUES][part::VALUE_PARTS])
        # More types than letters.
        fields = tuple(Field(f"c{i}", one) for i, one in enumerate(types))
        names = names_of(fields)
        rng = random.Random(part)
        rows: Rows = [
            (number, *(random_value(rng, one) if number else None for one in types[1:]))
            for number in range(300)
        ]
        df = frame(spark, fields, rows)
        assert parse_fields(df.schema.json()) == fields

        def encode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                payloads = encoded_rows(batch, names)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(payloads, pa.binary())], ["row"]
                )

        codec = ValueCodec(fields)
        payloads = df.mapInArrow(encode, "row binary").collect()
        found = {
            row["c0"]: row
            for row in codec.decode_rows([bytes(one.row) for one in payloads])
            if row is not None
        }
        for row in rows:
            for field, value in zip(fields, row, strict=True):
                own = as_read(value, field.type)
                assert shown(found[row[0]][field.name]) == shown(own), field
        # Spark makes no dictionary of lists.
        shown_fields = [one for one in fields if one.type != MAP_BY_ARRAYS]
        for one in df.select(names_of(shown_fields)).collect():
            values = one.asDict(recursive=True)
            for field in shown_fields:
                own = with_the_two_exceptions(values[field.name], field.type)
                assert shown(found[one.c0][field.name]) == shown(own), field

    def test_text_that_is_none_is_shown_as_spark_shows_it(
        self, spark: SparkSession
    ) -> None:
        """Spark takes any bytes for a string; both sides replace what is no UTF-8."""
        df = spark.sql("select cast(X'61ff62c3' as string) as a")
        payloads = encoded_rows(df.toArrow().to_batches()[0], ["a"])
        codec = ValueCodec(fields_of(AtomicType.STRING))
        (row,) = df.collect()
        assert codec.decode_row(payloads[0]) == row.asDict() == {"a": "a\ufffdb\ufffd"}


def shown(value: Any) -> Any:
    """Return what tells any two values apart, but for the order of a map's pairs."""
    match value:
        case dict():
            return sorted((repr(key), shown(one)) for key, one in value.items())
        case list():
            return [shown(one) for one in value]
        case _:
            return repr(value)  # which tells -0.0 from 0.0, and finds NaN equal


def with_the_two_exceptions(value: Any, data_type: DataType) -> Any:
    """Return what a row of Spark's holds as we give it: see design.md, section 5."""
    match data_type:
        case _ if value is None:
            return None
        case AtomicType.TIMESTAMP:
            assert isinstance(value, datetime)
            return value.astimezone(UTC)  # Spark's is naive, in the zone of the tests
        case AtomicType.BINARY:
            return bytes(value)
        case StructType(fields=fields) if isinstance(value, Row):
            return tuple(
                with_the_two_exceptions(one, field.type)
                for field, one in zip(fields, value, strict=True)
            )
        case StructType(fields=fields):
            return {
                field.name: with_the_two_exceptions(value[field.name], field.type)
                for field in fields
            }
        case ArrayType(element=element):
            return [with_the_two_exceptions(one, element) for one in value]
        case MapType(key=key, value=value_type):
            return {
                with_the_two_exceptions(one, key): with_the_two_exceptions(
                    other, value_type
                )
                for one, other in value.items()
            }
        case DecimalType(scale=scale):
            # Spark's own have zeros too many when they are very small.
            unit = Decimal((0, (1,), -scale))
            number = Decimal.quantize(value, unit, context=Context(prec=38))
            assert number == value
            return number
        case _:
            return value
