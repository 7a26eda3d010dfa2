"""
Schemas as text: the JSON that Spark writes for a ``StructType``; pure.

A client without pyspark reads the very text that the driver wrote.  Whether a column
may be null does not travel: every column may be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, assert_never

from nameservice import ConfigurationError, RemoteProtocolError
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    CollatedStringType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
    StructType,
)


__all__ = ["fields_json", "parse_fields", "parse_schema", "schema_json"]

# No table nests as deep, and what walks a type may call itself once per level.
NESTING_DEPTH_MAX: Final = 64

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
