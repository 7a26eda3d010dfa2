"""
Keys as people type them, for the command line; pure.

A key of one column is typed as it is, commas and all.  The columns of a longer key are
separated by commas; a column that holds one itself, a null among several columns, a
struct or an array is written as JSON (`parse_json_key`), which can say everything.

===============  =======================================================================
type             typed as
===============  =======================================================================
integers         ``42``
float, double    ``1.5``, ``1e-3``, ``NaN``, ``Infinity``
boolean          ``true`` or ``false``
string           the text itself
binary           ``0x`` and two hexadecimal digits for each byte
decimal          ``1.10``
date             ``2026-03-01``
timestamp        ``2026-03-01T04:05:06Z``, ``2026-03-01T06:05:06+02:00``
timestamp_ntz    ``2026-03-01T04:05:06``
===============  =======================================================================

Whether a value is within the range of its column is for the key codec to say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, assert_never

from queryablestate.errors import WrongKeyTypeError
from queryablestate.schema.json_values import (
    column_to_json,
    decode_json,
    key_from_json,
    parse_date,
    parse_decimal,
    parse_timestamp,
    timestamp_to_text,
)
from queryablestate.schema.key_columns import MisfitError
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


__all__ = [
    "NULL_TEXT",
    "column_text",
    "key_of_json",
    "key_text",
    "parse_json_key",
    "parse_key",
    "parse_prefix",
]

NULL_TEXT: Final = "null"
"""What people see where there is nothing; a string of that text looks the same."""

_AS_JSON: Final = "--json-key, over HTTP json_key=true"
"""What says so: the callers of `parse_key` are the command line and gateways."""
_SEPARATOR: Final = ","
_WHOLE: Final = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_NOT_NUMBERS: Final = {"nan": math.nan, "infinity": math.inf, "inf": math.inf}
_BYTES: Final = re.compile(r"0[xX]((?:[0-9a-fA-F]{2})*)")
_BOOLEANS: Final = {"true": True, "false": False}


def parse_key(fields: Sequence[Field], text: str) -> Any:
    """
    Return the key that *text* means.

    Args:
        fields: The key columns, or those of a map key.
        text: As typed.

    Returns:
        A bare value where there is one column, else a tuple.

    Raises:
        WrongKeyTypeError: If it does not fit the columns; says how to write it.
    """
    try:
        if len(fields) == 1:
            return _parse_column(fields[0], text)
        return _parse_columns(fields, text)
    except MisfitError as error:
        raise _wrong(fields, text, error) from None


def parse_json_key(fields: Sequence[Field], text: str) -> Any:
    """
    Return the key that *text*, which is JSON, means.

    Args:
        fields: The key columns, or those of a map key.
        text: A value if there is one column; else an array of values in the order of
            the columns, or an object by their names.

    Returns:
        As `parse_key`.

    Raises:
        WrongKeyTypeError: If it does not fit the columns; says what does not.
    """
    try:
        tree = decode_json(text)
    except MisfitError as error:
        raise _wrong(fields, text, error) from None
    return key_of_json(fields, tree)


def key_of_json(fields: Sequence[Field], tree: Any) -> Any:
    """
    Return the key that *tree*, which was JSON, means.

    Args:
        fields: The key columns, or those of a map key.
        tree: As `decode_json` gives it, in the forms that `parse_json_key` takes.

    Returns:
        As `parse_key`.

    Raises:
        WrongKeyTypeError: If it does not fit the columns; says what does not.
    """
    try:
        if len(fields) == 1:
            return key_from_json(fields[0].name, fields[0].type, tree)
        return tuple(
            key_from_json(one.name, one.type, part)
            for one, part in zip(fields, _parts_of(fields, tree), strict=True)
        )
    except MisfitError as error:
        raise _wrong(fields, _json_text(tree), error) from None


def parse_prefix(fields: Sequence[Field], text: str) -> Any:
    """
    Return what the keys begin with that *text* asks for.

    Args:
        fields: The key columns.
        text: What a string or binary key begins with; where there are several
            columns, values for the first ones, separated by commas.

    Returns:
        As the key codec takes it: a bare value for one column, else a tuple.

    Raises:
        WrongKeyTypeError: If it does not fit the columns.
    """
    count = text.count(_SEPARATOR) + 1
    if len(fields) == 1 or count > len(fields):
        return parse_key(fields, text)
    try:
        return _parse_columns(fields[:count], text)
    except MisfitError as error:
        raise _wrong(fields, text, error) from None


def key_text(fields: Sequence[Field], key: Any) -> str:
    """
    Return *key* as `parse_key` takes it, where that can say it; else as JSON.

    Args:
        fields: The key columns.
        key: A bare value where there is one column, else a tuple.
    """
    values = (key,) if len(fields) == 1 else tuple(key)
    parts = [
        column_text(one.type, value) for one, value in zip(fields, values, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    if any(
        value is None or _SEPARATOR in part
        for value, part in zip(values, parts, strict=True)
    ):
        return _json_text(
            [
                column_to_json(one.type, value)
                for one, value in zip(fields, values, strict=True)
            ]
        )
    return _SEPARATOR.join(parts)


def column_text(data_type: DataType, value: Any) -> str:
    """Return a value of a column as text for people; what nests is JSON."""
    if value is None:
        return NULL_TEXT
    match data_type:
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return str(column_to_json(data_type, value))
        case AtomicType.BOOLEAN:
            return "true" if value else "false"
        case AtomicType.BINARY:
            return f"0x{bytes(value).hex()}"
        case AtomicType.TIMESTAMP | AtomicType.TIMESTAMP_NTZ:
            return timestamp_to_text(value)
        case AtomicType() | CollatedStringType():
            return str(value)
        case DecimalType():
            return format(value, "f")
        case StructType() | ArrayType() | MapType():
            return _json_text(column_to_json(data_type, value))
        case _:
            assert_never(data_type)


def _parse_columns(fields: Sequence[Field], text: str) -> tuple[Any, ...]:
    parts = text.split(_SEPARATOR)
    if len(parts) != len(fields):
        raise MisfitError(
            f"{len(fields)} values separated by commas are wanted, not {len(parts)}; "
            f"with a comma in a value, write the key as JSON ({_AS_JSON})"
        )
    return tuple(
        _parse_column(one, part) for one, part in zip(fields, parts, strict=True)
    )


def _parts_of(fields: Sequence[Field], tree: Any) -> list[Any]:
    """Return the values of several columns, in their order."""
    names = [one.name for one in fields]
    if isinstance(tree, dict):
        if set(tree) != set(names):
            raise MisfitError(f"an object with {', '.join(names)} is wanted")
        return [tree[name] for name in names]
    if not isinstance(tree, list) or len(tree) != len(fields):
        raise MisfitError(
            f"an array of {', '.join(names)} is wanted, or an object by these names"
        )
    return tree


def _parse_column(field: Field, text: str) -> Any:
    name = field.name
    match field.type:
        case (
            AtomicType.TINYINT
            | AtomicType.SMALLINT
            | AtomicType.INT
            | (AtomicType.BIGINT)
        ):
            if not _WHOLE.fullmatch(text):
                raise MisfitError(f"{name} takes a whole number, not {text!r}")
            return int(text)
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return _parse_number(name, text)
        case AtomicType.BOOLEAN:
            if text.lower() not in _BOOLEANS:
                raise MisfitError(f"{name} takes true or false, not {text!r}")
            return _BOOLEANS[text.lower()]
        case AtomicType.STRING:
            return text
        case AtomicType.BINARY:
            found = _BYTES.fullmatch(text)
            if found is None:
                raise MisfitError(f"{name} takes bytes such as 0x00ff, not {text!r}")
            return bytes.fromhex(found[1])
        case AtomicType.DATE:
            return parse_date(name, text)
        case AtomicType.TIMESTAMP:
            return parse_timestamp(name, text, is_aware=True)
        case AtomicType.TIMESTAMP_NTZ:
            return parse_timestamp(name, text, is_aware=False)
        case DecimalType():
            return parse_decimal(name, text)
        case StructType() | ArrayType():
            raise MisfitError(
                f"{name} has type {field.type}: write the key as JSON ({_AS_JSON})"
            )
        case MapType() | CollatedStringType():
            raise MisfitError(f"{name} cannot be part of a key")
        case _:
            assert_never(field.type)


def _parse_number(name: str, text: str) -> float:
    bare = text.lstrip("+-")
    sign = -1.0 if text.startswith("-") else 1.0
    if len(text) - len(bare) <= 1 and bare.lower() in _NOT_NUMBERS:
        return sign * _NOT_NUMBERS[bare.lower()]
    if not _NUMBER.fullmatch(text):
        raise MisfitError(f"{name} takes a number, not {text!r}")
    number = float(text)
    if math.isinf(number):
        raise MisfitError(f"{name} cannot hold {Decimal(text)}")
    return number


def _json_text(tree: Any) -> str:
    # A Decimal is what `decode_json` makes of a number with a point.
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"), default=str)


def _wrong(fields: Sequence[Field], key: str, error: MisfitError) -> WrongKeyTypeError:
    return WrongKeyTypeError(fields_text(tuple(fields)), key, str(error))
