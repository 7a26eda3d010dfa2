"""
Rows as bytes: the value columns of a state, and the Python values that come back.

A row is a MessagePack array of the value columns in the order of the schema.  Integers,
booleans, strings, bytes and null are themselves, float and double are 64 bits, a
decimal is text, a date days and a timestamp microseconds since 1970 (UTC), a struct the
array of its fields, a map the array of its ``[key, value]`` pairs.  A batch of Spark's
is brought into this form column by column (`sparkpipeline.state.columns`); the
`ValueCodec` is the other side, and writes for tests and tools.

A row that has fewer columns than the schema was stored before the last ones were added:
they are None.  A row that has more was stored after the reader learnt the schema: what
it does not know is left out.

What comes back is what ``Row.asDict(recursive=True)`` gives, but for two cases:
TIMESTAMP is an aware datetime in UTC, where Spark's is naive in the zone of the one
that asks, and structs are tuples where they are keys of a map, which a ``dict`` cannot
be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias, assert_never, final

import msgspec
from msgspec.structs import asdict, astuple

from nameservice import LocalProtocolError, RemoteProtocolError
from queryablestate.schema.key_columns import (
    KeyColumn,
    MisfitError,
    key_column,
    reason_of,
)
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StructType,
    fields_text,
)
from queryablestate.schema.times import date_of, moment_of


__all__ = ["ValueCodec", "ValueColumns"]

# From the form that is stored to the value that comes back, or the other way.
_Convert: TypeAlias = Callable[[Any], Any]

_ENCODER: Final = msgspec.msgpack.Encoder()
# Text that is no UTF-8, and dates beyond Python's, are none of msgspec's errors.
_MALFORMED: Final = (
    msgspec.DecodeError,
    ArithmeticError,
    RecursionError,
    ValueError,
)

# What the stored form of each type is read as: msgspec checks it while it decodes.
_WIRE_TYPES: Final[dict[AtomicType, Any]] = {
    AtomicType.TINYINT: int,
    AtomicType.SMALLINT: int,
    AtomicType.INT: int,
    AtomicType.BIGINT: int,
    AtomicType.FLOAT: float,
    AtomicType.DOUBLE: float,
    AtomicType.BOOLEAN: bool,
    AtomicType.STRING: str,
    AtomicType.BINARY: bytes,
    AtomicType.DATE: int,
    AtomicType.TIMESTAMP: int,
    AtomicType.TIMESTAMP_NTZ: int,
}


# The type of the elements is an argument here, which mypy takes no part in.
_LIST: Final[Any] = list
_TUPLE: Final[Any] = tuple


@final
class ValueCodec:
    """
    The rows of one state as bytes, and back.

    Made once per state and used for every row; safe to share between threads.

    Args:
        fields: The value columns.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = tuple(fields)
        self._names = tuple(one.name for one in fields)
        # A struct that reads itself from an array becomes a dict twice as fast as a
        # list does; columns whose names it cannot have are numbered meanwhile.
        self._has_names = _can_be_attributes(self._names)
        # Columns at the end may be missing.
        self._decoder = msgspec.msgpack.Decoder(_row_type(self._fields, default=None))
        self._loads = [
            (one.name, convert)
            for one in fields
            if (convert := _loading(one.type)) is not None
        ]
        self._stores = [_storing(one.name, one.type) for one in fields]

    def encode_row(self, values: Sequence[object]) -> bytes:
        """
        Return a row as it is stored.

        Args:
            values: The value columns in their order.  Structs may be tuples, rows or
                mappings; a TIMESTAMP is an aware datetime.

        Raises:
            LocalProtocolError: If a value does not fit its column.
        """
        if len(values) != len(self._stores):
            raise LocalProtocolError(
                f"a row of ({fields_text(self._fields)}) has {len(self._stores)} "
                f"values, not {len(values)}"
            )
        try:
            return _ENCODER.encode(
                [
                    store(value)
                    for store, value in zip(self._stores, values, strict=True)
                ]
            )
        except MisfitError as error:
            raise LocalProtocolError(
                f"no row of ({fields_text(self._fields)}): {error}"
            ) from error

    def decode_row(self, payload: bytes | memoryview) -> dict[str, Any]:
        """
        Return the value columns of a stored row, by their names.

        Raises:
            RemoteProtocolError: If *payload* is no row of these columns; with the
                reason ``no-python-value`` if it holds a date that Python cannot
                (Spark's may lie beyond year 9999).
        """
        try:
            return self._load(payload)
        except _MALFORMED as error:
            raise RemoteProtocolError(
                reason_of(error),
                f"no row of ({fields_text(self._fields)}): {error}",
            ) from error

    def decode_rows(
        self, payloads: Sequence[bytes | memoryview | None]
    ) -> list[dict[str, Any] | None]:
        """
        Return `decode_row` of every payload, and None for None.

        Raises:
            RemoteProtocolError: As `decode_row` does, for the first that is no row.
        """
        try:
            if self._has_names and not self._loads:
                decode = self._decoder.decode
                return [
                    None if payload is None else asdict(decode(payload))
                    for payload in payloads
                ]
            return [
                None if payload is None else self._load(payload) for payload in payloads
            ]
        except _MALFORMED as error:
            raise RemoteProtocolError(
                reason_of(error),
                f"no row of ({fields_text(self._fields)}): {error}",
            ) from error

    def _load(self, payload: bytes | memoryview) -> dict[str, Any]:
        decoded = self._decoder.decode(payload)
        row: dict[str, Any]
        if self._has_names:
            row = asdict(decoded)
        else:
            row = dict(zip(self._names, astuple(decoded), strict=True))
        for name, load in self._loads:
            value = row[name]
            if value is not None:
                row[name] = load(value)
        return row


@final
class ValueColumns:
    """
    Some value columns of many rows at once, column by column.

    A third of the time that `ValueCodec.decode_rows` takes: no row becomes a dict, and
    columns that are not wanted are passed over.  Safe to share between threads.

    Args:
        fields: The value columns of the state.
        names: Which of them are wanted, in the order in which they are.
    """

    def __init__(self, fields: Sequence[Field], names: Sequence[str]) -> None:
        self._fields = tuple(fields)
        places = {one.name: place for place, one in enumerate(self._fields)}
        wanted = [places[name] for name in names]
        row_type = msgspec.defstruct(
            "Row",
            [
                (
                    f"column_{place}",
                    _wire_type(one.type) | None if place in wanted else msgspec.Raw,
                    None,
                )
                # What follows the last column that is wanted is not even looked at.
                for place, one in enumerate(self._fields[: max(wanted, default=-1) + 1])
            ],
            array_like=True,
            gc=False,
        )
        self._decode = msgspec.msgpack.Decoder(row_type).decode
        self._get = [attrgetter(f"column_{place}") for place in wanted]
        self._loads = [_loading_column(self._fields[place].type) for place in wanted]

    def decode(self, payloads: Sequence[bytes | memoryview]) -> list[list[Any]]:
        """
        Return the columns that are wanted of stored rows.

        Values are those of `ValueCodec.decode_row`, but for those of dates and
        timestamps, also inside of others: they are days and microseconds since 1970, as
        they are stored, of any year.

        Raises:
            RemoteProtocolError: If one of *payloads* is no row of these columns.
        """
        try:
            rows = list(map(self._decode, payloads))
            return [
                list(map(get, rows)) if load is None else load(map(get, rows))
                for get, load in zip(self._get, self._loads, strict=True)
            ]
        except _MALFORMED as error:
            raise RemoteProtocolError(
                reason_of(error),
                f"no row of ({fields_text(self._fields)}): {error}",
            ) from error


# --- Reading ----------------------------------------------------------------------


def _can_be_attributes(names: Sequence[str]) -> bool:
    """Return whether columns may lend their names to the attributes of a struct."""
    return all(
        name.isascii() and name.isidentifier() and not name.startswith("_")
        for name in names
    )


def _row_type(
    fields: tuple[Field, ...], *, default: object = msgspec.NODEFAULT
) -> type[msgspec.Struct]:
    has_names = _can_be_attributes([one.name for one in fields])
    return msgspec.defstruct(
        "Row",
        [
            (
                one.name if has_names else f"column_{index}",
                _wire_type(one.type) | None,
                default,
            )
            for index, one in enumerate(fields)
        ],
        array_like=True,
        gc=False,  # a tree of values, which is taken apart at once
    )


def _wire_type(data_type: DataType) -> Any:
    """Return the type that msgspec reads the stored form of *data_type* as."""
    match data_type:
        case AtomicType():
            return _WIRE_TYPES[data_type]
        case CollatedStringType():
            return str
        case DecimalType():
            return Decimal
        case StructType(fields=fields):
            return _row_type(fields)
        case ArrayType(element=element):
            return _LIST[_wire_type(element) | None]
        case MapType(key=key, value=value):
            return _LIST[_TUPLE[_wire_type(key) | None, _wire_type(value) | None]]
        case _:
            assert_never(data_type)


def _loading(data_type: DataType, *, is_plain: bool = False) -> _Convert | None:
    """
    Return what makes a value of the stored form, or None if it is one already.

    Where *is_plain*, dates and timestamps stay the numbers that they are stored as.
    """
    match data_type:
        case AtomicType.DATE | AtomicType.TIMESTAMP | AtomicType.TIMESTAMP_NTZ if (
            is_plain
        ):
            return None
        case AtomicType.DATE:
            return date_of
        case AtomicType.TIMESTAMP:
            return partial(moment_of, is_aware=True)
        case AtomicType.TIMESTAMP_NTZ:
            return partial(moment_of, is_aware=False)
        case AtomicType() | CollatedStringType() | DecimalType():
            return None
        case StructType(fields=fields):
            names = tuple(one.name for one in fields)
            inner = [_loading(one.type, is_plain=is_plain) for one in fields]
            if not any(inner) and _can_be_attributes(names):
                return asdict
            loads = [_null_safe(one) for one in inner]
            return lambda stored: {
                name: load(one)
                for name, load, one in zip(names, loads, astuple(stored), strict=True)
            }
        case ArrayType(element=element):
            load = _loading(element, is_plain=is_plain)
            if load is None:
                return None
            load_safely = _null_safe(load)
            return lambda stored: [load_safely(one) for one in stored]
        case MapType(key=key, value=value):
            load_key = _null_safe(_loading_map_key(key, is_plain=is_plain))
            load_value = _null_safe(_loading(value, is_plain=is_plain))
            return lambda stored: {
                load_key(one): load_value(other) for one, other in stored
            }
        case _:
            assert_never(data_type)


def _loading_map_key(data_type: DataType, *, is_plain: bool) -> _Convert | None:
    """Return what makes a map's key, which must be hashable, of the stored form."""
    match data_type:
        case StructType(fields=fields):
            loads = [
                _null_safe(_loading_map_key(one.type, is_plain=is_plain))
                for one in fields
            ]
            return lambda stored: tuple(
                load(one) for load, one in zip(loads, astuple(stored), strict=True)
            )
        case ArrayType(element=element):
            load_element = _null_safe(_loading_map_key(element, is_plain=is_plain))
            return lambda stored: tuple(map(load_element, stored))
        case _:
            return _loading(data_type, is_plain=is_plain)


def _loading_column(
    data_type: DataType,
) -> Callable[[Iterable[Any]], list[Any]] | None:
    """Return what makes a column of stored forms plain, or None as `_loading`."""
    load = _loading(data_type, is_plain=True)
    if load is None:
        return None
    return lambda column: [None if one is None else load(one) for one in column]


def _null_safe(load: _Convert | None) -> _Convert:
    if load is None:
        return _unchanged
    return lambda stored: None if stored is None else load(stored)


def _unchanged(stored: Any) -> Any:
    return stored


# --- Writing ----------------------------------------------------------------------


def _storing(name: str, data_type: DataType) -> _Convert:
    """Return what makes the stored form of a value, or of None, or raises a misfit."""
    store = _storing_present(name, data_type)
    return lambda value: None if value is None else store(value)


def _storing_present(name: str, data_type: DataType) -> _Convert:
    match data_type:
        case AtomicType.STRING | CollatedStringType():
            text = key_column(name, AtomicType.STRING)
            return lambda value: text.to_stored(value).decode()
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return _storing_number(key_column(name, data_type))
        case AtomicType():
            return key_column(name, data_type).to_stored
        case DecimalType():
            number = key_column(name, data_type)
            return lambda value: str(number.to_value(number.to_stored(value)))
        case StructType(fields=fields):
            return _storing_struct(name, fields)
        case ArrayType(element=element):
            store_element = _storing(f"{name}.element", element)

            def store_array(value: object) -> list[object]:
                if not isinstance(value, (list, tuple)):
                    raise _misfit(name, "a list", value)
                return [store_element(one) for one in value]

            return store_array
        case MapType(key=key, value=value_type):
            store_key = _storing(f"{name}.key", key)
            store_value = _storing(f"{name}.value", value_type)

            def store_map(value: object) -> list[tuple[object, object]]:
                if not isinstance(value, Mapping):
                    raise _misfit(name, "a mapping", value)
                return [
                    (store_key(one), store_value(other)) for one, other in value.items()
                ]

            return store_map
        case _:
            assert_never(data_type)


def _storing_number(column: KeyColumn) -> _Convert:
    def store(value: object) -> float:
        number: float = column.to_stored(value)
        if number == 0.0 and isinstance(value, float):
            return math.copysign(0.0, value)  # in keys, 0.0 and -0.0 are one
        return number

    return store


def _storing_struct(name: str, fields: tuple[Field, ...]) -> _Convert:
    stores = {one.name: _storing(f"{name}.{one.name}", one.type) for one in fields}

    def store(value: object) -> list[object]:
        if isinstance(value, Mapping):
            if value.keys() != stores.keys():
                raise MisfitError(f"{name} has the fields {', '.join(stores)}")
            value = tuple(value[one] for one in stores)
        if not isinstance(value, tuple) or len(value) != len(stores):
            raise _misfit(name, f"a struct of {len(stores)} fields", value)
        return [
            store_one(one)
            for store_one, one in zip(stores.values(), value, strict=True)
        ]

    return store


def _misfit(name: str, wanted: str, value: object) -> MisfitError:
    return MisfitError(f"{name} takes {wanted}, not {type(value).__name__}")
