"""
Rows that were read, as Arrow columns with the types of the schema.

This module needs pyarrow, which is no dependency of those who only ask for keys: it is
imported when a frame is made (`queryablestate.client.frames`), and by what runs in
Spark.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, assert_never, final

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from nameservice import ConfigurationError
from queryablestate.schema.keys import ITEM_INDEX_SIZE_BYTES
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StructType,
)
from queryablestate.schema.values import ValueColumns


if TYPE_CHECKING:
    from queryablestate.client.routes import Route


__all__ = [
    "ARROW_TYPES",
    "ArrowPages",
    "ArrowStream",
    "arrow_rows",
    "arrow_schema",
    "arrow_table",
    "write_parquet",
]

_ROW_GROUP_ROW_COUNT: Final = 100_000
_ROW_GROUP_SIZE_BYTES: Final = 64 * 1024 * 1024

ARROW_TYPES: Final = {
    AtomicType.TINYINT: pa.int8(),
    AtomicType.SMALLINT: pa.int16(),
    AtomicType.INT: pa.int32(),
    AtomicType.BIGINT: pa.int64(),
    AtomicType.FLOAT: pa.float32(),
    AtomicType.DOUBLE: pa.float64(),
    AtomicType.BOOLEAN: pa.bool_(),
    AtomicType.STRING: pa.string(),
    AtomicType.BINARY: pa.binary(),
    AtomicType.DATE: pa.date32(),
    AtomicType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    AtomicType.TIMESTAMP_NTZ: pa.timestamp("us"),
}


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """Return *fields* as Arrow has them: times in UTC, to the microsecond."""
    return pa.schema([(one.name, _arrow_type(one.type)) for one in fields])


def arrow_rows(
    schema_fields: Sequence[Field], rows: Sequence[Sequence[Any]]
) -> pa.RecordBatch:
    """
    Return *rows* as a batch of columns.

    Args:
        schema_fields: The columns: of the key, the map key, the value, or some of them.
        rows: For each row the columns in that order, with the values that `KeyCodec`
            and `ValueCodec` decode.
    """
    schema = arrow_schema(schema_fields)
    columns: Sequence[Sequence[Any]] = (
        list(zip(*rows, strict=True)) if rows else [()] * len(schema_fields)
    )
    arrays = []
    for one, column in zip(schema_fields, columns, strict=True):
        arrays.append(_array(one.type, column))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(data_type: DataType, values: Sequence[Any]) -> pa.Array:
    """Return *values* of a column as Arrow has them."""
    to_arrow = _to_arrow(data_type)
    if to_arrow is not None:
        values = [to_arrow(value) for value in values]
    return pa.array(values, _arrow_type(data_type))


@final
class ArrowPages:
    """
    Makes batches of rows as they are stored, column by column.

    Args:
        route: To the state.
        fields: The columns that are wanted: of `queryablestate.client.frames.
            frame_fields`, or constants.
    """

    def __init__(self, route: Route, fields: Sequence[Field]) -> None:
        schema = route.schema
        self._fields = fields
        self._schema = arrow_schema(fields)
        self._codec = route.key_codec
        self._is_list = schema.kind is StateKind.LIST
        self._is_map = schema.kind is StateKind.MAP
        wanted = {one.name for one in fields}
        self._key_fields = (*schema.key, *schema.map_key)
        self._has_keys = any(one.name in wanted for one in self._key_fields)
        self._value_fields = [one for one in schema.value if one.name in wanted]
        self._columns = ValueColumns(
            schema.value, [one.name for one in self._value_fields]
        )

    def batch(
        self, rows: Sequence[tuple[bytes, bytes]], constants: Mapping[str, Any]
    ) -> pa.RecordBatch:
        """
        Return *rows* as a batch of columns.

        Args:
            rows: Encoded keys and stored values; of a list state all items of each
                list, one behind the other.
            constants: Columns that have the same value in each row, by their names.

        Raises:
            RemoteProtocolError: If they are no rows of this state.
        """
        encoded = [key for key, _ in rows]
        stored = self._columns.decode([value for _, value in rows])
        arrays = {}
        starts: list[int] = []
        if self._is_list:
            encoded, starts = _lists_of(encoded)
        if self._has_keys:
            codec = self._codec
            keys = codec.all_columns if self._is_map else codec.columns
            found = keys(encoded, is_plain=True)
            for one, values in zip(self._key_fields, found, strict=True):
                arrays[one.name] = _array(one.type, values)
        for one, values in zip(self._value_fields, stored, strict=True):
            array = _array(one.type, values)
            if self._is_list:
                array = pa.ListArray.from_arrays(
                    pa.array([*starts, len(rows)], pa.int32()),
                    array,
                    type=_arrow_type(ArrayType(one.type)),
                )
            arrays[one.name] = array
        for one in self._fields:
            if one.name in constants:
                value = pa.scalar(constants[one.name], _arrow_type(one.type))
                arrays[one.name] = pa.repeat(value, len(encoded))
        return pa.RecordBatch.from_arrays(
            [arrays[one.name] for one in self._fields], schema=self._schema
        )


def _lists_of(encoded: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Return the key of each list, and which of the items is its first one."""
    keys: list[bytes] = []
    starts: list[int] = []
    for place, one in enumerate(encoded):
        key = one[:-ITEM_INDEX_SIZE_BYTES]
        if not keys or keys[-1] != key:
            keys.append(key)
            starts.append(place)
    return keys, starts


def arrow_table(
    fields: Sequence[Field],
    batches: Sequence[pa.RecordBatch],
    metadata: Mapping[str, str],
) -> pa.Table:
    """Return *batches* with the columns *fields* as one table with *metadata*."""
    plain = [batch.replace_schema_metadata(None) for batch in batches]
    table = pa.Table.from_batches(plain, arrow_schema(fields))
    return table.replace_schema_metadata(metadata)


def _arrow_type(data_type: DataType) -> pa.DataType:
    match data_type:
        case AtomicType():
            return ARROW_TYPES[data_type]
        case CollatedStringType():
            return pa.string()
        case DecimalType(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case StructType(fields=fields):
            return pa.struct([(one.name, _arrow_type(one.type)) for one in fields])
        case ArrayType(element=element):
            return pa.list_(pa.field("element", _arrow_type(element)))
        case MapType(key=key, value=value):
            return pa.map_(_arrow_type(key), _arrow_type(value))
        case _:
            assert_never(data_type)


def _to_arrow(data_type: DataType) -> Callable[[Any], Any] | None:
    """Return what makes values fit for pyarrow, or None if they are."""
    match data_type:
        case AtomicType() | CollatedStringType() | DecimalType():
            return None
        case StructType(fields=fields):
            names = [one.name for one in fields]
            inner = [_to_arrow(one.type) or _unchanged for one in fields]

            def to_struct(value: Any) -> dict[str, Any] | None:
                if value is None:
                    return None
                if isinstance(value, Mapping):
                    value = [value[name] for name in names]
                return {
                    name: convert(one)
                    for name, convert, one in zip(names, inner, value, strict=True)
                }

            return to_struct
        case ArrayType(element=element):
            to_element = _to_arrow(element)
            if to_element is None:
                return None
            return lambda value: None if value is None else list(map(to_element, value))
        case MapType(key=key, value=value_type):
            to_key = _to_arrow(key) or _unchanged
            to_value = _to_arrow(value_type) or _unchanged

            def to_pairs(value: Any) -> list[tuple[Any, Any]] | None:
                if value is None:
                    return None
                return [(to_key(one), to_value(other)) for one, other in value.items()]

            return to_pairs
        case _:
            assert_never(data_type)


def _unchanged(value: Any) -> Any:
    return value


# --- Streams ----------------------------------------------------------------------


@final
class ArrowStream:
    """
    Rows in Arrow's streaming format, piece by piece.

    Args:
        fields: The columns.
        metadata: What the rows are as of.
    """

    def __init__(self, fields: Sequence[Field], metadata: Mapping[str, str]) -> None:
        self._fields = fields
        self._sink = io.BytesIO()
        schema = arrow_schema(fields).with_metadata(metadata)
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Return *rows* as the next piece; the first one begins with the schema."""
        self._writer.write_batch(arrow_rows(self._fields, rows))
        return self._taken()

    def end(self) -> bytes:
        """Return the last piece."""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        found = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return found


# --- Files ------------------------------------------------------------------------


def write_parquet(batches: Iterable[pa.RecordBatch], file: BinaryIO) -> int:
    """
    Write *batches* to *file*, and return how many rows they have.

    Batches are joined to row groups of 64 MiB in memory, or 100,000 rows.  The metadata
    of the last one is that of the file (``pyarrow.parquet.read_metadata``), not of the
    schema, which is written first.

    Args:
        batches: At least one.
        file: Stays open.

    Raises:
        ConfigurationError: If Parquet has no such column: a struct without fields.
        OSError: If *file* cannot be written.
    """
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    metadata: Mapping[bytes, bytes] = {}
    row_count = 0
    try:
        for batch in batches:
            metadata = batch.schema.metadata
            waiting.append(batch.replace_schema_metadata(None))
            row_count += batch.num_rows
            if writer is None:
                writer = _parquet_writer(file, waiting[0].schema)
            if _is_row_group(waiting):
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        assert writer is not None, "there is at least one batch"
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
        writer.add_key_value_metadata(metadata)
    finally:
        if writer is not None:
            writer.close()
    return row_count


def _parquet_writer(file: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    try:
        return pq.ParquetWriter(file, schema)
    except pa.ArrowNotImplementedError as error:
        raise ConfigurationError(f"{error} Or write it as CSV or JSON.") from error


def _is_row_group(batches: Sequence[pa.RecordBatch]) -> bool:
    row_count: int = sum(one.num_rows for one in batches)
    size_bytes: int = sum(one.nbytes for one in batches)
    return row_count >= _ROW_GROUP_ROW_COUNT or size_bytes >= _ROW_GROUP_SIZE_BYTES
