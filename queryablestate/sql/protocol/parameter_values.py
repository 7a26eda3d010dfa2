"""Values of parameters, as text or as bytes, as the engine takes them; pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.protocol.types import (
    BY_OID,
    DAYS_TO_2000,
    ELEMENT_OF,
    EPOCH,
    EPOCH_NTZ,
    MICROSECOND,
    TEXT,
    UNKNOWN_OID,
    PostgresType,
)


__all__ = ["decode_parameter"]


def decode_parameter(raw: bytes | None, oid: int, *, is_binary: bool) -> Any:
    """
    Return a parameter as the engine takes it.

    Args:
        raw: What was sent; None for null.
        oid: Of which type it is.
        is_binary: In which form.

    Raises:
        SQLError: If it is no value of that type, or the type is not supported.
    """
    if raw is None:
        return None
    element = ELEMENT_OF.get(oid)
    found = BY_OID.get(oid, TEXT if oid in {0, UNKNOWN_OID} else None)
    try:
        if element is not None:
            if is_binary:
                return _from_binary_array(raw, element)
            return _from_text_array(raw.decode(), element)
        if found is None:
            raise SQLError(
                "0A000", f"parameters of type {oid} are not supported", "cast to text"
            )
        if is_binary:
            return _FROM_BINARY[found.name](raw)
        return _FROM_TEXT.get(found.name, str)(raw.decode())
    except (ValueError, ArithmeticError, LookupError, struct.error) as error:
        name = (element or found or TEXT).name
        raise SQLError("22P02", f"a parameter is no {name}") from error


def _from_binary_array(raw: bytes, element: PostgresType) -> list[Any]:
    dimensions, _, oid = struct.unpack_from("!iiI", raw)
    if dimensions == 0:
        return []
    if dimensions != 1 or oid not in {element.oid, TEXT.oid, 1043}:
        raise SQLError("0A000", "arrays have one dimension here")
    count, _ = struct.unpack_from("!ii", raw, 12)
    place = 20
    values: list[Any] = []
    for _ in range(min(count, len(raw))):
        (size,) = struct.unpack_from("!i", raw, place)
        place += 4
        if size < 0:
            values.append(None)
            continue
        values.append(_FROM_BINARY[element.name](raw[place : place + size]))
        place += size
    return values


def _from_text_array(text: str, element: PostgresType) -> list[Any]:
    """Return the values of ``{a, "b c", NULL}``; space around them is not theirs."""
    convert = _FROM_TEXT.get(element.name, str)
    text = text.strip(_SPACE)
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(text)
    if not text[1:-1].strip(_SPACE):
        return []
    values: list[Any] = []
    place, end = 1, len(text) - 1
    while place <= end:
        place = _past_space(text, place)
        if text[place] == "{":
            raise SQLError("0A000", "arrays have one dimension here")
        quoted = text[place] == '"'
        place += quoted
        characters = []
        count = 0  # of those that are no space before the next comma
        while place < end and text[place] != ('"' if quoted else ","):
            is_escaped = text[place] == "\\"
            place += is_escaped
            characters.append(text[place])
            place += 1
            if quoted or is_escaped or characters[-1] not in _SPACE:
                count = len(characters)
        if quoted:
            place = _past_space(text, place + 1)
        if place > end or (place < end and text[place] != ","):
            raise ValueError(text)
        found = "".join(characters[:count])
        if not found and not quoted:
            raise ValueError(text)
        is_null = not quoted and found.upper() == "NULL"
        values.append(None if is_null else convert(found))
        place += 1
    return values


_SPACE: Final = " \t\n\r\v\f"


def _past_space(text: str, place: int) -> int:
    while text[place] in _SPACE:
        place += 1
    return place


def _unpacked(form: str) -> Callable[[bytes], Any]:
    packing = struct.Struct(form)
    return lambda raw: packing.unpack(raw)[0]


def _from_numeric(raw: bytes) -> Decimal:
    count, weight, sign, _ = struct.unpack_from("!HhHH", raw)
    if sign == 0xC000:
        return Decimal("NaN")
    groups = struct.unpack_from(f"!{count}H", raw, 8)
    if abs(weight) > 100 or count > 100:
        raise ValueError
    whole = 0
    for group in groups:
        whole = whole * 10_000 + group
    exponent = 4 * (weight - count + 1)
    while whole and exponent < 0 and whole % 10 == 0:  # of a group of four digits
        whole, exponent = whole // 10, exponent + 1
    minus = "-" if sign == 0x4000 else ""
    # Arithmetic of decimals would round to 28 digits; their text is taken as it is.
    return Decimal(f"{minus}{whole}E{exponent}")


def _from_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"t", "true", "1", "on", "yes", "y"}:
        return True
    if lowered in {"f", "false", "0", "off", "no", "n"}:
        return False
    raise ValueError(text)


def _from_timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text.strip()).replace(tzinfo=None)


def _from_timestamptz(text: str) -> datetime:
    stripped = text.strip()
    if stripped[-3:-2] in {"+", "-"}:
        stripped += ":00"
    found = datetime.fromisoformat(stripped)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _from_bytea(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def _from_binary_time(raw: bytes) -> time:
    micros: int = struct.unpack("!q", raw)[0]
    if not 0 <= micros < 86_400_000_000:
        raise ValueError(raw)
    return (EPOCH_NTZ + micros * MICROSECOND).time()


def _from_binary_interval(raw: bytes) -> timedelta:
    micros, days, months = struct.unpack("!qii", raw)
    if months:  # they have no length: what a driver makes of a duration has none
        raise ValueError(raw)
    return timedelta(days=days, microseconds=micros)


_FROM_TEXT: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid"), int),
    **dict.fromkeys(("float4", "float8"), float),
    "bool": _from_bool,
    "bytea": _from_bytea,
    "numeric": Decimal,
    "date": lambda text: date.fromisoformat(text.strip()),
    "time": lambda text: time.fromisoformat(text.strip()),
    "timestamp": _from_timestamp,
    "timestamptz": _from_timestamptz,
    "uuid": UUID,
}

_FROM_BINARY: Final[Mapping[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(("name", "text", "bpchar", "varchar", "json"), bytes.decode),
    "bool": lambda raw: raw != b"\0",
    "bytea": bytes,
    "int2": _unpacked("!h"),
    "int4": _unpacked("!i"),
    "int8": _unpacked("!q"),
    "oid": _unpacked("!I"),
    "float4": _unpacked("!f"),
    "float8": _unpacked("!d"),
    "numeric": _from_numeric,
    "date": lambda raw: date.fromordinal(_unpacked("!i")(raw) + DAYS_TO_2000),
    "time": _from_binary_time,
    "interval": _from_binary_interval,
    "timestamp": lambda raw: EPOCH_NTZ + _unpacked("!q")(raw) * MICROSECOND,
    "timestamptz": lambda raw: EPOCH + _unpacked("!q")(raw) * MICROSECOND,
    "uuid": lambda raw: UUID(bytes=raw),
}
