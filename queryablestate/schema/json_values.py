"""
Values of columns as JSON, and keys back from it; pure.

JSON has fewer types than Spark, so some travel as text, in forms that are exact and
that Spark reads, too:

===============  =======================================================================
type             JSON
===============  =======================================================================
integers         a number; all 64 bits of it
float, double    a number, or ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
boolean          ``true`` or ``false``
string           text
binary           text: base64
decimal          text, so that no reader makes a double of it: ``"1.10"``
date             text: ``"2026-03-01"``
timestamp        text, in UTC: ``"2026-03-01T04:05:06.789Z"``
timestamp_ntz    text without a zone: ``"2026-03-01T04:05:06.789"``
struct           an object
array            an array
map              an object if its keys are strings, else an array of ``[key, value]``
===============  =======================================================================

What was printed can be given back as a key; for that a timestamp may also name another
zone, a decimal be a number, and a struct be an array of its fields.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, assert_never

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
)


__all__ = [
    "column_to_json",
    "decode_json",
    "key_from_json",
    "parse_date",
    "parse_decimal",
    "parse_timestamp",
    "row_to_json",
    "timestamp_to_text",
]

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)"
    r"(Z|[+-]\d{2}:\d{2})?",
    re.ASCII,
)
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_NOT_NUMBERS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


# --- To JSON ----------------------------------------------------------------------


def row_to_json(fields: tuple[Field, ...], row: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return *row* as an object that `json.dumps` takes.

    Args:
        fields: The columns that are wanted; one that *row* lacks is null.
        row: Values by the names of their columns.
    """
    return {one.name: column_to_json(one.type, row.get(one.name)) for one in fields}


def column_to_json(data_type: DataType, value: Any) -> Any:
    """Return a value of a column, as a client or a key codec gives it, as JSON."""
    if value is None:
        return None
    match data_type:
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return _number_to_json(value)
        case AtomicType.BINARY:
            return base64.b64encode(value).decode("ascii")
        case AtomicType.DATE:
            return value.isoformat()
        case AtomicType.TIMESTAMP | AtomicType.TIMESTAMP_NTZ:
            return timestamp_to_text(value)
        case AtomicType() | CollatedStringType():
            return value
        case DecimalType():
            return format(value, "f")
        case StructType(fields=fields):
            if not isinstance(value, Mapping):  # in keys structs are tuples
                names = [one.name for one in fields]
                value = dict(zip(names, value, strict=True))
            return row_to_json(fields, value)
        case ArrayType(element=element):
            return [column_to_json(element, one) for one in value]
        case MapType(key=key, value=value_type):
            pairs = [
                (column_to_json(key, one), column_to_json(value_type, other))
                for one, other in value.items()
            ]
            is_object = key is AtomicType.STRING or isinstance(key, CollatedStringType)
            return dict(pairs) if is_object else [list(pair) for pair in pairs]
        case _:
            assert_never(data_type)


def timestamp_to_text(value: datetime) -> str:
    """Return a timestamp as text: in UTC with a ``Z``, or without a zone if naive."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def _number_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


# --- From JSON --------------------------------------------------------------------


def decode_json(text: str) -> Any:
    """
    Return what *text* says; numbers with a point are Decimals, so nothing is rounded.

    Raises:
        MisfitError: If it is not JSON.
    """
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise MisfitError(f"it is not JSON: {error}") from None


def key_from_json(name: str, data_type: DataType, tree: Any) -> Any:
    """
    Return the value of a key column, or of a part of one.

    Args:
        name: Of the column, for errors.
        data_type: Its type.
        tree: What `decode_json` gave.

    Returns:
        A value that the key codec takes, if it is within the range of its column.

    Raises:
        MisfitError: If *tree* is no such value.
    """
    if tree is None:
        return None
    match data_type:
        case (
            AtomicType.TINYINT
            | AtomicType.SMALLINT
            | AtomicType.INT
            | (AtomicType.BIGINT)
        ):
            if isinstance(tree, bool) or not isinstance(tree, int):
                raise _misfit(name, "a whole number", tree)
            return tree
        case AtomicType.FLOAT | AtomicType.DOUBLE:
            return _number_from_json(name, tree)
        case AtomicType.BOOLEAN:
            if not isinstance(tree, bool):
                raise _misfit(name, "true or false", tree)
            return tree
        case AtomicType.STRING:
            return _text(name, "text", tree)
        case AtomicType.BINARY:
            return _bytes(name, _text(name, "base64 text", tree))
        case AtomicType.DATE:
            return parse_date(name, _text(name, "a date as text", tree))
        case AtomicType.TIMESTAMP | AtomicType.TIMESTAMP_NTZ:
            text = _text(name, "a timestamp as text", tree)
            is_aware = data_type is AtomicType.TIMESTAMP
            return parse_timestamp(name, text, is_aware=is_aware)
        case DecimalType():
            if isinstance(tree, str):
                return parse_decimal(name, tree)
            if isinstance(tree, bool) or not isinstance(tree, int | Decimal):
                raise _misfit(name, "a decimal number", tree)
            return Decimal(tree)
        case StructType(fields=fields):
            return _struct(name, fields, tree)
        case ArrayType(element=element):
            if not isinstance(tree, list):
                raise _misfit(name, "an array", tree)
            return [key_from_json(f"{name}.element", element, one) for one in tree]
        case MapType() | CollatedStringType():
            raise MisfitError(f"{name} cannot be part of a key")
        case _:
            assert_never(data_type)


def parse_date(name: str, text: str) -> date:
    """Return ``YYYY-MM-DD`` as a date, or raise a misfit about column *name*."""
    if _DATE.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:  # the 30th of February
            pass
    raise MisfitError(f"{name} takes a date such as 2026-03-01, not {text!r}")


def parse_timestamp(name: str, text: str, *, is_aware: bool) -> datetime:
    """
    Return ``YYYY-MM-DDTHH:MM[:SS[.ffffff]]`` as a datetime.

    Args:
        name: Of the column, for errors.
        text: With ``Z`` or an offset such as ``+02:00`` behind it if *is_aware*.
        is_aware: Whether it must name its zone; otherwise it must not.

    Raises:
        MisfitError: If *text* is no such thing.
    """
    example = "2026-03-01T04:05:06Z" if is_aware else "2026-03-01T04:05:06"
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise MisfitError(f"{name} takes a timestamp such as {example}, not {text!r}")
    day, time, zone = found.groups()
    if is_aware is not (zone is not None):
        detail = "has no zone: write" if is_aware else "has a zone: write it as"
        raise MisfitError(
            f"{name} takes a timestamp {'with' if is_aware else 'without'} a zone; "
            f"{text!r} {detail} {example}"
        )
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{zone or ''}")
        # A zone may bring it into the year 0 or 10000 of UTC, which Python has not.
        return moment.astimezone(UTC) if is_aware else moment
    except (OverflowError, ValueError) as error:
        raise MisfitError(f"{name} takes a timestamp, not {text!r}: {error}") from None


def parse_decimal(name: str, text: str) -> Decimal:
    """Return a decimal number as it is written, or raise a misfit about *name*."""
    if _DECIMAL.fullmatch(text):
        return Decimal(text)
    raise MisfitError(f"{name} takes a decimal number such as 1.10, not {text!r}")


def _number_from_json(name: str, tree: Any) -> float | int:
    if isinstance(tree, str) and tree in _NOT_NUMBERS:
        return _NOT_NUMBERS[tree]
    if isinstance(tree, bool) or not isinstance(tree, int | Decimal):
        raise _misfit(name, "a number", tree)
    if isinstance(tree, int):
        return tree
    number = float(tree)
    if math.isinf(number):
        raise MisfitError(f"{name} cannot hold {tree}")
    return number


def _struct(name: str, fields: tuple[Field, ...], tree: Any) -> Any:
    if isinstance(tree, list):
        if len(tree) != len(fields):
            raise MisfitError(f"{name} has {len(fields)} fields, not {len(tree)}")
        tree = {one.name: part for one, part in zip(fields, tree, strict=True)}
    if not isinstance(tree, dict):
        raise _misfit(name, "an object", tree)
    types = {one.name: one.type for one in fields}
    # Fields that are missing, or unknown, are told by the key codec.
    return {
        field: key_from_json(f"{name}.{field}", types[field], part)
        if field in types
        else part
        for field, part in tree.items()
    }


def _text(name: str, wanted: str, tree: Any) -> str:
    if not isinstance(tree, str):
        raise _misfit(name, wanted, tree)
    return tree


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MisfitError(f"{name} takes bytes as base64, not {text!r}") from None


def _refuse_constant(text: str) -> None:
    raise MisfitError(f'it is not JSON: {text} is written as text, "{text}"')


_JSON_NAMES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "true or false"),
    (str, "text"),
    (list, "an array"),
    (dict, "an object"),
)


def _misfit(name: str, wanted: str, tree: Any) -> MisfitError:
    for python_type, what in _JSON_NAMES:
        if isinstance(tree, python_type):
            return MisfitError(f"{name} takes {wanted}, not {what}")
    return MisfitError(f"{name} takes {wanted}, not {tree}")
