"""
The columns of a state and their types: Spark's own, without Spark.

A schema travels as the JSON that Spark writes for a ``StructType``, so that a client
without pyspark reads the very text that the driver wrote.  Whether a column may be null
does not travel: every column may be, since a column that is added later is null in the
rows that were stored before it.

Collations are kept, because a collated string may be a value but no key: Spark hashes
its bytes, so that two strings which are equal under the collation would be two keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import frozen

from nameservice import ConfigurationError, RemoteProtocolError


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
    "fields_json",
    "fields_text",
    "parse_fields",
    "parse_schema",
    "schema_json",
]

# No table nests as deep, and what walks a type may call itself once per level.
NESTING_DEPTH_MAX: Final = 64

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


def parse_fields(struct_json: str) -> tuple[Field, ...]:
    """
    Return the columns of what Spark's ``StructType.json()`` wrote.

    CHAR and VARCHAR are strings: Spark checks and pads them before they come here.

    Raises:
        ConfigurationError: If *struct_json* is no such text, or if a column has a type
            that no state can hold; the column is named.
    """
    struct = _parse_type(_loads(struct_json), "the schema", {}, depth=0)
    if not isinstance(struct, StructType):
        raise ConfigurationError(f"the schema is of type {struct}, not a struct")
    return struct.fields


def fields_json(fields: Sequence[Field]) -> str:
    """Return *fields* as Spark's ``StructType.json()``: all nullable, no metadata."""
    return _dumps(_type_json(StructType(tuple(fields))))


def schema_json(schema: StateSchema) -> str:
    """Return *schema* as one JSON text, which `parse_schema` reads."""
    return _dumps(
        {
            "kind": schema.kind.value,
            "key": _type_json(StructType(schema.key)),
            "map_key": _type_json(StructType(schema.map_key)),
            "value": _type_json(StructType(schema.value)),
            "has_ttl": schema.has_ttl,
        }
    )


def parse_schema(text: str) -> StateSchema:
    """
    Return the schema that `schema_json` wrote as *text*.

    Raises:
        RemoteProtocolError: If it did not: somebody else's text, or a damaged one.
    """
    try:
        tree = _loads(text)
        if not isinstance(tree, dict):
            raise ConfigurationError("a schema is a JSON object")
        has_ttl = tree["has_ttl"]
        if not isinstance(has_ttl, bool):
            raise ConfigurationError("has_ttl is true or false")
        columns: dict[str, tuple[Field, ...]] = {}
        for part in ("key", "map_key", "value"):
            struct = _parse_type(tree[part], part, {}, depth=0)
            if not isinstance(struct, StructType):
                raise ConfigurationError(f"{part} is of type {struct}, not a struct")
            columns[part] = struct.fields
        return StateSchema(kind=StateKind(tree["kind"]), has_ttl=has_ttl, **columns)
    except KeyError as error:
        raise RemoteProtocolError("malformed", f"a schema lacks {error}") from error
    except ValueError as error:  # ConfigurationError is one
        raise RemoteProtocolError("malformed", f"no schema: {error}") from error


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


# --- Spark's JSON -----------------------------------------------------------------

_JSON_NAMES: Final = {
    AtomicType.TINYINT: "byte",
    AtomicType.SMALLINT: "short",
    AtomicType.INT: "integer",
    AtomicType.BIGINT: "long",
    AtomicType.FLOAT: "float",
    AtomicType.DOUBLE: "double",
    AtomicType.BOOLEAN: "boolean",
    AtomicType.STRING: "string",
    AtomicType.BINARY: "binary",
    AtomicType.DATE: "date",
    AtomicType.TIMESTAMP: "timestamp",
    AtomicType.TIMESTAMP_NTZ: "timestamp_ntz",
}
_ATOMIC_TYPES: Final = {name: one for one, name in _JSON_NAMES.items()}

_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(-?\d{1,9})\s*\)")
_BOUNDED_STRING: Final = re.compile(r"(?:var)?char\(\s*\d+\s*\)")
_COLLATED_STRING: Final = re.compile(r"string collate (\w+)")

# The collation of a string that says nothing; Spark leaves it out.
_BINARY_COLLATION: Final = "UTF8_BINARY"
_COLLATIONS: Final = "__COLLATIONS"

# How to keep what cannot be stored as it is.
_WHAT_TO_DO: Final = {
    "variant": "cast it to string, or to a struct with the fields that are wanted",
    "void": "cast it to the type that it is meant to have",
    "interval": "cast it to string, or to bigint with a unit of your choice",
    "calendarinterval": "cast it to string",
    "time": "cast it to string",
}


def _loads(text: str) -> object:
    try:
        tree: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"a schema is not JSON: {error}") from error
    return tree


def _dumps(tree: object) -> str:
    # As pyspark writes it, so that equal schemas are equal texts.
    return json.dumps(tree, separators=(",", ":"), sort_keys=True)


def _type_json(data_type: DataType) -> object:
    match data_type:
        case AtomicType():
            return _JSON_NAMES[data_type]
        case DecimalType() | CollatedStringType():
            return str(data_type)
        case StructType(fields=fields):
            return {
                "type": "struct",
                "fields": [
                    {
                        "name": one.name,
                        "type": _type_json(one.type),
                        "nullable": True,
                        "metadata": {},
                    }
                    for one in fields
                ],
            }
        case ArrayType(element=element):
            return {
                "type": "array",
                "elementType": _type_json(element),
                "containsNull": True,
            }
        case MapType(key=key, value=value):
            return {
                "type": "map",
                "keyType": _type_json(key),
                "valueType": _type_json(value),
                "valueContainsNull": True,
            }
        case _:
            assert_never(data_type)


def _parse_type(
    tree: object, name: str, collations: dict[str, str], *, depth: int, path: str = ""
) -> DataType:
    """
    Return the type that *tree* describes.

    Args:
        tree: What JSON gave.
        name: Of the column, with dots, for errors.
        collations: Which strings of the nearest field are collated, by their path.
        depth: How many types are around this one.
        path: Where *tree* stands in its field, as *collations* names it.
    """
    if depth > NESTING_DEPTH_MAX:
        raise ConfigurationError(
            f"{name} nests deeper than {NESTING_DEPTH_MAX} levels: flatten it"
        )
    try:
        if isinstance(tree, str):
            return _parse_name(tree, name, collations.get(path))
        if not isinstance(tree, dict):
            raise ConfigurationError(f"{name} has no type: {tree!r}")
        match tree.get("type"):
            case "struct":
                return StructType(
                    tuple(
                        _parse_field(one, "" if depth == 0 else f"{name}.", depth)
                        for one in _list_of(tree, "fields", name)
                    )
                )
            case "array":
                return ArrayType(
                    _parse_type(
                        tree["elementType"],
                        f"{name}.element",
                        collations,
                        depth=depth + 1,
                        path=f"{path}.element",
                    )
                )
            case "map":
                return MapType(
                    *(
                        _parse_type(
                            tree[f"{part}Type"],
                            f"{name}.{part}",
                            collations,
                            depth=depth + 1,
                            path=f"{path}.{part}",
                        )
                        for part in ("key", "value")
                    )
                )
            case other:
                raise _unsupported(name, str(other), "cast it to what it is made of")
    except KeyError as error:
        raise ConfigurationError(f"{name} lacks {error}") from error


def _parse_field(tree: object, prefix: str, depth: int) -> Field:
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
        raise ConfigurationError(f"{tree!r} is no field of a struct: it has no name")
    name: str = tree["name"]
    metadata = tree.get("metadata")
    listed = metadata.get(_COLLATIONS) if isinstance(metadata, dict) else None
    collations = listed if isinstance(listed, dict) else {}
    return Field(
        name,
        _parse_type(
            tree.get("type"),
            f"{prefix}{name}",
            # "icu.UNICODE": who provides it, then its name.
            {
                str(path): str(one).rpartition(".")[2]
                for path, one in collations.items()
            },
            depth=depth + 1,
            path=name,
        ),
    )


def _parse_name(text: str, name: str, collation: str | None) -> DataType:
    """Return the type without parts that Spark calls *text*."""
    if text == "string" or _BOUNDED_STRING.fullmatch(text):
        if collation is None or collation == _BINARY_COLLATION:
            return AtomicType.STRING
        return CollatedStringType(collation)
    if text in _ATOMIC_TYPES:
        return _ATOMIC_TYPES[text]
    if found := _DECIMAL.fullmatch(text):
        try:
            return DecimalType(int(found[1]), int(found[2]))
        except ConfigurationError as error:
            raise ConfigurationError(f"column {name!r}: {error}") from error
    if text == "decimal":
        return DecimalType(10, 0)  # Spark's own default
    if found := _COLLATED_STRING.fullmatch(text):
        if found[1] == _BINARY_COLLATION:
            return AtomicType.STRING
        return CollatedStringType(found[1])
    kind = re.split(r"[ (]", text, maxsplit=1)[0]
    raise _unsupported(name, text, _WHAT_TO_DO.get(kind, "cast it to string or binary"))


def _unsupported(name: str, text: str, what_to_do: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {name!r} has type {text}, which a state cannot hold: {what_to_do}"
    )


def _list_of(tree: dict[str, object], part: str, name: str) -> list[object]:
    found = tree[part]
    if not isinstance(found, list):
        raise ConfigurationError(f"{name}: {part} is not a list")
    return found
