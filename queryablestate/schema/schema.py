"""
The columns of a state and their types: Spark's own, without Spark.

Every column may be null: one that is added later is null in the rows that were stored
before it.  How a schema travels is told in `queryablestate.schema.schema_json`.

Collations are kept, because a collated string may be a value but no key: Spark hashes
its bytes, so that two strings which are equal under the collation would be two keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen

from nameservice import ConfigurationError


__all__ = [
    "ArrayType",
    "AtomicType",
    "CollatedStringType",
    "DataType",
    "DecimalType",
    "Field",
    "MapType",
    "StateKind",
    "StateSchema",
    "StructType",
    "check_compatible",
    "fields_text",
]

DECIMAL_PRECISION_MAX: Final = 38


class AtomicType(Enum):
    """The types that hold one value each; the value is their name in SQL."""

    TINYINT = "tinyint"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"

    def __str__(self) -> str:
        return self.value


@final
@frozen
class DecimalType:
    """
    A number of at most *precision* digits, *scale* of them after the point.

    Attributes:
        precision: 1 to 38.
        scale: 0 to *precision*.

    Raises:
        ConfigurationError: If one of them is out of its range.
    """

    precision: int
    scale: int

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.precision <= DECIMAL_PRECISION_MAX:
            raise ConfigurationError(
                f"the precision of a decimal is 1 to {DECIMAL_PRECISION_MAX}, "
                f"not {self.precision}"
            )
        if not 0 <= self.scale <= self.precision:
            raise ConfigurationError(
                f"the scale of a decimal of precision {self.precision} is 0 to "
                f"{self.precision}, not {self.scale}"
            )

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@final
@frozen
class CollatedStringType:
    """
    A string that compares by other rules than its bytes; never part of a key.

    Attributes:
        collation: Its name, e.g. ``UTF8_LCASE``.
    """

    collation: str

    def __str__(self) -> str:
        return f"string collate {self.collation}"


@final
@frozen
class StructType:
    """
    Named fields, in order.

    Raises:
        ConfigurationError: If two of them have the same name: a ``dict`` could not
            hold both.
    """

    fields: tuple[Field, ...]

    def __attrs_post_init__(self) -> None:
        _refuse_duplicates(self.fields, "a struct")

    def __str__(self) -> str:
        inner = ",".join(f"{one.name}:{one.type}" for one in self.fields)
        return f"struct<{inner}>"


@final
@frozen
class ArrayType:
    """Any number of values of one type."""

    element: DataType

    def __str__(self) -> str:
        return f"array<{self.element}>"


@final
@frozen
class MapType:
    """Pairs; a map is a value or part of one, and never part of a key."""

    key: DataType
    value: DataType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


DataType: TypeAlias = (
    AtomicType | DecimalType | CollatedStringType | StructType | ArrayType | MapType
)


@final
@frozen
class Field:
    """
    A column, or a field of a struct.

    Attributes:
        name: As Spark has it: case counts.
        type: What it holds; null is always allowed.
    """

    name: str
    type: DataType

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


class StateKind(Enum):
    """What is kept under one key."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


@final
@frozen(kw_only=True)
class StateSchema:
    """
    What a state was registered with.

    Attributes:
        kind: What is kept under one key: a row, a list of rows, or rows by map key.
        key: The key columns, in the order in which they are hashed and sorted.
        map_key: The columns of the second key of a map state, else empty.
        value: The other columns, as they are stored; may be empty.
        has_ttl: Whether rows carry a time after which they are absent.

    Raises:
        ConfigurationError: If there is no key column, if a column is named twice, if
            *map_key* does not fit *kind*, or if a key column has a type that no key
            can have.
    """

    kind: StateKind
    key: tuple[Field, ...]
    map_key: tuple[Field, ...] = ()
    value: tuple[Field, ...] = ()
    has_ttl: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.key:
            raise ConfigurationError("a state needs a key: name at least one column")
        if self.kind is StateKind.MAP and not self.map_key:
            raise ConfigurationError(
                "a map state needs map_key: name the columns that tell the entries of "
                "one key apart"
            )
        if self.kind is not StateKind.MAP and self.map_key:
            raise ConfigurationError(
                f'map_key belongs to kind="map"; this state is a {self.kind.value}: '
                "leave map_key out, or change kind"
            )
        _refuse_duplicates((*self.key, *self.map_key, *self.value), "a state")
        for one in (*self.key, *self.map_key):
            _refuse_in_key(one.type, one.name)

    def key_text(self) -> str:
        """Return the key columns for a person, e.g. ``tailnum string, day date``."""
        return fields_text(self.key)


def fields_text(fields: Sequence[Field]) -> str:
    """Return *fields* for a person, e.g. ``tailnum string, day date``."""
    return ", ".join(str(one) for one in fields)


def check_compatible(registered: StateSchema, declared: StateSchema) -> str | None:
    """
    Return None if a writer may go on with *declared*, else what differs (rule W5).

    It may if kind, keys and the presence of a TTL are the same, and so are the value
    columns that both have: one of the two may have more of them, at the end.  A row
    reads as null in the columns that it was written without.  Columns that *declared*
    leaves out stay registered: the application of before a column was added goes on,
    and the one that added it may come back.
    """
    if declared.kind is not registered.kind:
        return f"it is a {registered.kind.value} state, not a {declared.kind.value}"
    if declared.key != registered.key:
        return (
            f"its key is ({registered.key_text()}), not ({fields_text(declared.key)})"
        )
    if declared.map_key != registered.map_key:
        return (
            f"its map_key is ({fields_text(registered.map_key)}), "
            f"not ({fields_text(declared.map_key)})"
        )
    if declared.has_ttl is not registered.has_ttl:
        return f"it was written {'with' if registered.has_ttl else 'without'} a ttl"
    pairs = zip(registered.value, declared.value, strict=False)
    for number, (column, other) in enumerate(pairs, start=1):
        if column == other:
            continue
        if column.name == other.name:
            return (
                f"its value column {column} cannot become {other}: cast it, or add a "
                "column of another name at the end"
            )
        return (
            f"its value column {number} is {column}, not {other}: columns are added, "
            "and left out, at the end only; under another name it is another column"
        )
    return None


def _refuse_duplicates(fields: tuple[Field, ...], what: str) -> None:
    seen: set[str] = set()
    for one in fields:
        if one.name in seen:
            raise ConfigurationError(
                f"{what} cannot have two columns named {one.name!r}: rename one"
            )
        seen.add(one.name)


def _refuse_in_key(data_type: DataType, name: str) -> None:
    match data_type:
        case MapType():
            raise ConfigurationError(
                f"key column {name!r} has type {data_type}: Spark cannot hash "
                "a map; use a struct, or an array of structs, as key"
            )
        case CollatedStringType():
            raise ConfigurationError(
                f"key column {name!r} has type {data_type}: equal strings would be "
                f"different keys; use lower({name}) or the like as key, and cast it "
                "to string"
            )
        case StructType(fields=fields):
            for one in fields:
                _refuse_in_key(one.type, f"{name}.{one.name}")
        case ArrayType(element=element):
            _refuse_in_key(element, f"{name}.element")
        case AtomicType() | DecimalType():
            pass
        case _:
            assert_never(data_type)
