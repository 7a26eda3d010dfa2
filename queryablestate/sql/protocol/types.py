"""
Types of Postgres: their numbers, and values as text and as bytes; pure.

The numbers are those of ``pg_type`` in every Postgres; drivers know them by heart.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, final

from attrs import frozen

from queryablestate.sql.protocol.messages import Column
from queryablestate.sql.protocol.refusals import SQLError


__all__ = [
    "BY_NAME",
    "BY_OID",
    "DAYS_TO_2000",
    "ELEMENT_OF",
    "EPOCH",
    "EPOCH_NTZ",
    "MICROSECOND",
    "TEXT",
    "UNKNOWN_OID",
    "PostgresType",
    "column_of",
    "encoder_of",
    "type_of_engine",
]

UNKNOWN_OID: Final = 705
DAYS_TO_2000: Final = date(2000, 1, 1).toordinal()
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_NTZ: Final = datetime(2000, 1, 1)  # noqa: DTZ001 (a type without a zone)
MICROSECOND: Final = timedelta(microseconds=1)


@final
@frozen
class PostgresType:
    """
    A type.

    Attributes:
        name: As ``pg_type`` has it.
        oid: Its number.
        size: Bytes of a value in memory, or -1; drivers show it.
        array_oid: The number of the type of its arrays.
        engine_name: What the engine calls it, for a cast.
        category: As ``pg_type.typcategory``.
    """

    name: str
    oid: int
    size: int
    array_oid: int
    engine_name: str
    category: str


_TYPES: Final = (
    PostgresType("bool", 16, 1, 1000, "BOOLEAN", "B"),
    PostgresType("bytea", 17, -1, 1001, "BLOB", "U"),
    PostgresType("name", 19, 64, 1003, "VARCHAR", "S"),
    PostgresType("int8", 20, 8, 1016, "BIGINT", "N"),
    PostgresType("int2", 21, 2, 1005, "SMALLINT", "N"),
    PostgresType("int4", 23, 4, 1007, "INTEGER", "N"),
    PostgresType("text", 25, -1, 1009, "VARCHAR", "S"),
    PostgresType("oid", 26, 4, 1028, "BIGINT", "N"),
    PostgresType("json", 114, -1, 199, "JSON", "U"),
    PostgresType("float4", 700, 4, 1021, "FLOAT", "N"),
    PostgresType("float8", 701, 8, 1022, "DOUBLE", "N"),
    PostgresType("bpchar", 1042, -1, 1014, "VARCHAR", "S"),
    PostgresType("varchar", 1043, -1, 1015, "VARCHAR", "S"),
    PostgresType("date", 1082, 4, 1182, "DATE", "D"),
    PostgresType("time", 1083, 8, 1183, "TIME", "D"),
    PostgresType("timestamp", 1114, 8, 1115, "TIMESTAMP", "D"),
    PostgresType("timestamptz", 1184, 8, 1185, "TIMESTAMPTZ", "D"),
    PostgresType("interval", 1186, 16, 1187, "INTERVAL", "T"),
    PostgresType("numeric", 1700, -1, 1231, "DECIMAL(38,10)", "N"),
    PostgresType("uuid", 2950, 16, 2951, "UUID", "U"),
)

BY_NAME: Final[Mapping[str, PostgresType]] = {one.name: one for one in _TYPES}
BY_OID: Final[Mapping[int, PostgresType]] = {one.oid: one for one in _TYPES}
ELEMENT_OF: Final = {one.array_oid: one for one in _TYPES}
TEXT: Final = BY_NAME["text"]

_OF_ENGINE: Final = {
    "BOOLEAN": "bool",
    "BLOB": "bytea",
    "TINYINT": "int2",
    "UTINYINT": "int2",
    "SMALLINT": "int2",
    "USMALLINT": "int4",
    "INTEGER": "int4",
    "UINTEGER": "oid",
    "BIGINT": "int8",
    "UBIGINT": "numeric",
    "HUGEINT": "numeric",
    "UHUGEINT": "numeric",
    "BIGNUM": "numeric",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "VARCHAR": "text",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "INTERVAL": "interval",
    "UUID": "uuid",
    "JSON": "json",
}


def type_of_engine(name: str) -> tuple[PostgresType, bool, int]:
    """
    Return how a type of the engine is told: which type, whether an array, and modifier.

    What Postgres has no type for (structs, maps, lists of lists) is JSON.
    """
    is_array = name.endswith("[]")
    element = name[:-2] if is_array else name
    if element.startswith("DECIMAL("):
        precision, scale = (int(part) for part in element[8:-1].split(","))
        modifier = -1 if is_array else ((precision << 16) | scale) + 4
        return BY_NAME["numeric"], is_array, modifier
    found = _OF_ENGINE.get(element)
    if found is not None:
        return BY_NAME[found], is_array, -1
    if element in {'"NULL"', "NULL"} or element.startswith("ENUM("):
        return TEXT, is_array, -1
    if element.startswith(("STRUCT(", "MAP(", "UNION(")) or element.endswith("]"):
        return BY_NAME["json"], False, -1
    return TEXT, is_array, -1


def column_of(name: str, engine_type: str) -> Column:
    """Return the column *name* of a type of the engine as a tool is told of it."""
    found, is_array, modifier = type_of_engine(engine_type)
    if is_array:
        return Column(name, found.array_oid)
    return Column(name, found.oid, found.size, modifier)


# -- values to the tool --------------------------------------------------------------


def encoder_of(engine_type: str, *, is_binary: bool) -> Callable[[Any], bytes]:
    """Return what makes bytes of values of a type of the engine, other than null."""
    found, is_array, _ = type_of_engine(engine_type)
    encode = (_BINARY if is_binary else _TEXT)[found.name]
    if not is_array:
        return encode
    if is_binary:
        return lambda values: _binary_array(values, found.oid, encode)
    return lambda values: _text_array(values, encode)


def _text_array(values: Sequence[Any], encode: Callable[[Any], bytes]) -> bytes:
    parts = []
    for value in values:
        if value is None:
            parts.append(b"NULL")
            continue
        raw = encode(value)
        is_plain = raw and raw.upper() != b"NULL" and not set(raw) & _QUOTED
        if not is_plain:
            escaped = raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            raw = b'"' + escaped + b'"'
        parts.append(raw)
    return b"{" + b",".join(parts) + b"}"


_QUOTED: Final = frozenset(b'{}",\\ \t\n\r\v\f')


def _binary_array(
    values: Sequence[Any], oid: int, encode: Callable[[Any], bytes]
) -> bytes:
    if not values:
        return struct.pack("!iiI", 0, 0, oid)
    has_null = any(value is None for value in values)
    parts = [struct.pack("!iiIii", 1, int(has_null), oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(struct.pack("!i", -1))
        else:
            raw = encode(value)
            parts += (struct.pack("!i", len(raw)), raw)
    return b"".join(parts)


def _plain(value: Any) -> bytes:
    return str(value).replace("\0", "").encode(errors="replace")


def _bool(value: Any) -> bytes:
    return b"t" if value else b"f"


def _bytea(value: Any) -> bytes:
    return b"\\x" + bytes(value).hex().encode()


def _float8(value: float) -> bytes:
    if math.isfinite(value):
        return repr(float(value)).removesuffix(".0").encode()
    return _not_finite(value)


def _float4(value: float) -> bytes:
    """Return the shortest text that reads as the same number of 32 bits."""
    if not math.isfinite(value):
        return _not_finite(value)
    wanted = struct.pack("!f", value)
    for digits in (6, 7, 8):
        text = f"{value:.{digits}g}"
        if struct.pack("!f", float(text)) == wanted:
            return text.encode()
    return f"{value:.9g}".encode()


def _not_finite(value: float) -> bytes:
    if math.isnan(value):
        return b"NaN"
    return b"Infinity" if value > 0 else b"-Infinity"


def _numeric(value: Any) -> bytes:
    if isinstance(value, Decimal):
        return format(value, "f").encode()
    return str(value).encode()


def _timestamp(value: Any) -> bytes:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ").encode()
    return _plain(value)


def _timestamptz(value: Any) -> bytes:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return b"infinity" if _is_endless(value) else b"-infinity"
        in_utc = value.astimezone(UTC).replace(tzinfo=None)
        return f"{in_utc.isoformat(' ')}+00".encode()
    return _plain(value)


def _is_endless(value: datetime) -> bool:
    """Return which infinity that is; the engine has no other moment without a zone."""
    return value.year > EPOCH.year


def _interval(value: Any) -> bytes:
    if not isinstance(value, timedelta):
        return _plain(value)
    sign = "-" if value.days < 0 and value < timedelta(0) else ""
    rest = abs(value)
    seconds = rest.seconds
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if rest.microseconds:
        clock += f".{rest.microseconds:06}"
    days = f"{sign}{rest.days} days " if rest.days else ""
    return f"{days}{sign}{clock}".encode()


def _json(value: Any) -> bytes:
    if isinstance(value, str):
        return _plain(value)
    return json.dumps(_jsonable(value), ensure_ascii=False).encode(errors="replace")


def _name(key: Any) -> str:
    """Return what a key of a map is called: its JSON, but for what is text in it."""
    found = _jsonable(key)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _not_finite(value).decode()
        case Mapping():
            return {_name(key): _jsonable(one) for key, one in value.items()}
        case list() | tuple():
            return [_jsonable(one) for one in value]
        case bytes() | bytearray():
            return _bytea(value).decode()
        case datetime():
            encode = _timestamp if value.tzinfo is None else _timestamptz
            return encode(value).decode()
        case _:
            return str(value)


_TEXT: Final[Mapping[str, Callable[[Any], bytes]]] = {
    **dict.fromkeys(("name", "text", "bpchar", "varchar", "uuid", "time"), _plain),
    **dict.fromkeys(("int2", "int4", "int8", "oid"), _plain),
    "bool": _bool,
    "bytea": _bytea,
    "json": _json,
    "float4": _float4,
    "float8": _float8,
    "numeric": _numeric,
    "date": _plain,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
}


def _packed(form: str) -> Callable[[Any], bytes]:
    return struct.Struct(form).pack


def _calendar(kind: type, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return *encode*, but for what the engine gives as text: it has no other value."""

    def checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise SQLError(
                "22008",
                f"{str(value)[:40]!r} cannot be sent in binary form",
                "cast it to VARCHAR",
            )
        return encode(value)

    return checked


def _binary_timestamp(value: Any) -> bytes:
    return struct.pack("!q", (value - EPOCH_NTZ) // MICROSECOND)


def _binary_timestamptz(value: Any) -> bytes:
    if value.tzinfo is None:
        return struct.pack("!q", 2**63 - 1 if _is_endless(value) else -(2**63))
    return struct.pack("!q", (value - EPOCH) // MICROSECOND)


def _binary_interval(value: timedelta) -> bytes:
    micros = (value.seconds * 1_000_000) + value.microseconds
    return struct.pack("!qii", micros, value.days, 0)


def _binary_time(value: time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return struct.pack("!q", seconds * 1_000_000 + value.microsecond)


def _binary_numeric(value: Any) -> bytes:
    """Return digits to the base of 10,000, as Postgres has them."""
    number = Decimal(value)
    if number.is_nan():
        return struct.pack("!HhHH", 0, 0, 0xC000, 0)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    whole = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    fraction_groups = -(-scale // 4)
    whole *= 10 ** (fraction_groups * 4 - scale)
    groups = []
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.append(group)
    weight = len(groups) - fraction_groups - 1
    groups.reverse()
    while groups and groups[-1] == 0:
        groups.pop()
    head = struct.pack(
        "!HhHH", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale
    )
    return head + struct.pack(f"!{len(groups)}H", *groups)


_BINARY: Final[Mapping[str, Callable[[Any], bytes]]] = {
    **dict.fromkeys(("name", "text", "bpchar", "varchar"), _plain),
    "bool": lambda value: b"\1" if value else b"\0",
    "bytea": bytes,
    "int2": _packed("!h"),
    "int4": _packed("!i"),
    "int8": _packed("!q"),
    "oid": _packed("!I"),
    "float4": _packed("!f"),
    "float8": _packed("!d"),
    "json": _json,
    "numeric": _binary_numeric,
    "date": _calendar(
        date, lambda value: struct.pack("!i", value.toordinal() - DAYS_TO_2000)
    ),
    "time": _calendar(time, _binary_time),
    "timestamp": _calendar(datetime, _binary_timestamp),
    "timestamptz": _calendar(datetime, _binary_timestamptz),
    "interval": _calendar(timedelta, _binary_interval),
    "uuid": lambda value: value.bytes,
}
