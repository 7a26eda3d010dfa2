"""
Arrow columns as Spark hands them over, to stored keys and rows.

A batch is converted column by column in Arrow and becomes Python objects at the very
end: what a row costs is then little more than its own bytes object.  The stored forms
are those of `queryablestate.schema.keys` and `queryablestate.schema.values`; the key
group of each row has been computed by Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from nameservice import ConfigurationError
from queryablestate import KeyTooLargeError
from queryablestate.client.arrow_columns import ARROW_TYPES
from queryablestate.schema.key_columns import (
    COLUMN_END,
    COLUMN_PRESENT,
    KeyColumns,
    escaped,
    key_column,
)
from queryablestate.schema.key_groups import group_start
from queryablestate.schema.keys import HASH_SEED, KEY_SIZE_BYTES_MAX
from queryablestate.schema.schema import (
    AtomicType,
    DataType,
    DecimalType,
    Field,
)


__all__ = [
    "encoded_keys",
    "encoded_rows",
    "key_groups",
    "order_bytes",
    "plain_values",
]

_ENCODER: Final = msgspec.msgpack.Encoder()

# What makes stored values of a column without children.
_Leaf: TypeAlias = Callable[[pa.Array], list[Any]]


# --- Rows -------------------------------------------------------------------------


def plain_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """
    Return the values of a column in the form in which rows store them.

    Text that is no UTF-8, which Spark does not refuse, has U+FFFD for what is none.

    Raises:
        ConfigurationError: If the column has a type that no state can hold.
    """
    return _values(array, _plain_leaf)


def encoded_rows(batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
    """
    Return every row of *batch* as it is stored.

    Args:
        batch: Holds at least the columns of *names*.
        names: The value columns, in the order of the schema.

    Raises:
        ConfigurationError: If a column has a type that no state can hold.
    """
    if not names:
        return [_ENCODER.encode(())] * batch.num_rows
    columns = [plain_values(batch.column(name)) for name in names]
    return list(map(_ENCODER.encode, zip(*columns, strict=True)))


def _plain_leaf(array: pa.Array) -> list[Any]:
    data_type = array.type
    if pa.types.is_decimal(data_type):
        array = array.cast(pa.string())
    elif _is_text(data_type):
        try:
            return _to_list(array)
        except UnicodeDecodeError:
            return [
                None if data is None else data.decode(errors="replace")
                for data in _to_list(_text_as_bytes(array))
            ]
    else:
        array = _times_as_integers(array)
    return _to_list(array)


# --- Keys -------------------------------------------------------------------------


def encoded_keys(
    batch: pa.RecordBatch,
    codec_fields: Sequence[Field],
    names: Sequence[str],
    groups: pa.Array | pa.ChunkedArray,
) -> list[bytes]:
    """
    Return the storage key of every row of *batch*.

    Args:
        batch: Holds at least the columns of *names*.
        codec_fields: The key columns as the state has them; for the entries of a map
            state the map key columns behind them.
        names: What these columns are called in *batch*.
        groups: The key group of each row, as Spark has computed it.

    Raises:
        KeyTooLargeError: If a key is longer than `KEY_SIZE_BYTES_MAX`.
    """
    columns = [
        _encoded_column(batch.column(name), field.type)
        for name, field in zip(names, codec_fields, strict=True)
    ]
    keys = (
        columns[0]
        if len(columns) == 1
        else [b"".join(parts) for parts in zip(*columns, strict=True)]
    )
    size_bytes = max(map(len, keys), default=0)
    if size_bytes > KEY_SIZE_BYTES_MAX:
        raise KeyTooLargeError(size_bytes, KEY_SIZE_BYTES_MAX)
    numbers = _to_list(groups)
    heads = {number: group_start(number) for number in set(numbers)}
    return [heads[number] + key for number, key in zip(numbers, keys, strict=True)]


def key_groups(
    batch: pa.RecordBatch, fields: Sequence[Field], *, max_parallelism: int
) -> pa.Array:
    """
    Return the key group of every row of *batch*, as Spark would have computed it.

    For where Spark does not: a Python data source is given rows as they are.  Measured:
    0.3 us a row for a string or bigint key, 1 to 2 us for others.

    Args:
        batch: Holds at least the columns of *fields*, under their names.
        fields: The key columns.
        max_parallelism: The number of key groups.
    """
    columns = [_values(batch.column(one.name), _key_leaf) for one in fields]
    has_nulls = any(batch.column(one.name).null_count for one in fields)
    match [one.type for one in fields]:
        case [AtomicType.STRING | AtomicType.BINARY] if not has_nulls:
            hashes = [xxh64_intdigest(value, HASH_SEED) for value in columns[0]]
        case [AtomicType.BIGINT] if not has_nulls:
            pack = _LONG_LE.pack
            hashes = [xxh64_intdigest(pack(value), HASH_SEED) for value in columns[0]]
        case _:
            key_hash = KeyColumns(fields).hash
            hashes = [key_hash(key, HASH_SEED) for key in zip(*columns, strict=True)]
    # The hash is a signed bigint, and pmod's result is not negative.
    return pa.array(
        [
            (one - _LONG_COUNT if one > _LONG_MAX else one) % max_parallelism
            for one in hashes
        ],
        pa.int32(),
    )


def order_bytes(array: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """
    Return bytes for every value of a column that sort as the values do, nulls first.

    NaN is the greatest number, and -0.0 and 0.0 are one, as in Spark's own ORDER BY.

    Raises:
        ConfigurationError: If the column is a struct, an array or a map.
    """
    if pa.types.is_nested(array.type):
        raise ConfigurationError(
            f"order_by needs a column with one value per row, not {array.type}: name "
            "one of its fields"
        )
    return _encoded_column(array, _scalar_type(array.type))


def _encoded_column(
    array: pa.Array | pa.ChunkedArray, data_type: DataType
) -> list[bytes]:
    """Return the values of a column as they stand in an encoded key."""
    values = _values(array, _key_leaf)
    if not array.null_count:
        # The two most common kinds of key, without a call per value.
        match data_type:
            case AtomicType.STRING | AtomicType.BINARY:
                if any(0 in value for value in values):
                    values = [escaped(value) for value in values]
                return [COLUMN_PRESENT + value + COLUMN_END for value in values]
            case AtomicType.BIGINT:
                return [
                    COLUMN_PRESENT + (value + _LONG_COUNT_HALF).to_bytes(8, "big")
                    for value in values
                ]
            case _:
                pass
    encode = key_column("", data_type).to_bytes
    return [encode(value) for value in values]


_LONG_COUNT_HALF: Final = 1 << 63
_LONG_COUNT: Final = 1 << 64
_LONG_MAX: Final = (1 << 63) - 1
_LONG_LE: Final = struct.Struct("<q")


def _key_leaf(array: pa.Array) -> list[Any]:
    """Return the values in the stored form of `queryablestate.schema.key_columns`."""
    data_type = array.type
    if pa.types.is_decimal(data_type):
        width = data_type.byte_width
        return [
            None if data is None else int.from_bytes(data, "little", signed=True)
            for data in array.view(pa.binary(width)).to_pylist()
        ]
    if _is_text(data_type):
        return _to_list(_text_as_bytes(array))
    return _to_list(_times_as_integers(array))


def _scalar_type(arrow_type: pa.DataType) -> DataType:
    """Return the type of ours that columns of *arrow_type* without children hold."""
    if pa.types.is_decimal(arrow_type):
        return DecimalType(arrow_type.precision, arrow_type.scale)
    if _is_text(arrow_type):
        return AtomicType.STRING
    if _is_binary(arrow_type):
        return AtomicType.BINARY
    if pa.types.is_timestamp(arrow_type):
        is_aware = arrow_type.tz is not None
        return AtomicType.TIMESTAMP if is_aware else AtomicType.TIMESTAMP_NTZ
    for data_type, one in ARROW_TYPES.items():
        if one == arrow_type:
            return data_type
    return _refuse(arrow_type)


# --- From Arrow to Python ---------------------------------------------------------


def _values(array: pa.Array | pa.ChunkedArray, leaf: _Leaf) -> list[Any]:
    """
    Return the values of a column, with those of nested columns taken from *leaf*.

    Structs are tuples of their fields, maps lists of pairs.
    """
    if isinstance(array, pa.ChunkedArray):
        return [one for chunk in array.chunks for one in _values(chunk, leaf)]
    data_type = array.type
    if not pa.types.is_nested(data_type):
        return leaf(array)
    if pa.types.is_struct(data_type):
        if not data_type.num_fields:
            found: list[Any] = [()] * len(array)
        else:
            children = [_values(child, leaf) for child in array.flatten()]
            found = list(zip(*children, strict=True))
    elif pa.types.is_map(data_type):
        first, ends = _offsets(array)
        count = ends[-1] - first if ends else 0
        keys = _values(array.keys.slice(first, count), leaf)
        items = _values(array.items.slice(first, count), leaf)
        found = _cut(list(zip(keys, items, strict=True)), first, ends)
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        first, ends = _offsets(array)
        count = ends[-1] - first if ends else 0
        found = _cut(_values(array.values.slice(first, count), leaf), first, ends)
    else:
        _refuse(data_type)
    if not array.null_count:
        return found
    return [
        one if is_valid else None
        for one, is_valid in zip(found, array.is_valid().to_pylist(), strict=True)
    ]


def _offsets(array: pa.Array) -> tuple[int, list[int]]:
    """Return where the first list of *array* begins, and where each one ends."""
    # Unlike `values`, `offsets` is that of the slice that *array* may be.
    first, *ends = array.offsets.to_pylist() or [0]
    return first, ends


def _cut(values: list[Any], first: int, ends: Sequence[int]) -> list[Any]:
    """Return the lists that end at *ends*, counted like *first* of the first value."""
    found = []
    begin = 0
    for end in ends:
        found.append(values[begin : end - first])
        begin = end - first
    return found


def _to_list(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _times_as_integers(array: pa.Array) -> pa.Array:
    """Return days and microseconds for dates and timestamps, and others as they are."""
    data_type = array.type
    if pa.types.is_date32(data_type):
        return array.cast(pa.int32())
    if pa.types.is_timestamp(data_type):
        return array.cast(pa.timestamp("us", tz=data_type.tz)).cast(pa.int64())
    if not _is_binary(data_type) and data_type not in ARROW_TYPES.values():
        _refuse(data_type)
    return array


def _text_as_bytes(array: pa.Array) -> pa.Array:
    is_large = pa.types.is_large_string(array.type)
    return pc.cast(array, pa.large_binary() if is_large else pa.binary())


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))


def _is_binary(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type))


def _refuse(arrow_type: pa.DataType) -> NoReturn:
    raise ConfigurationError(
        f"a state cannot hold a column of Arrow type {arrow_type}: cast it to one of "
        "the types in docs/reference/state-types.md"
    )
