"""
The messages of the Postgres protocol, version 3: bytes in, values out, and back; pure.

Integers are big-endian, strings end with a zero byte.  Each message but the first of a
connection begins with a byte that says its type; the length that follows counts itself.
Source: "Message Formats" of Postgres' manual.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, final

from attrs import frozen

from queryablestate.sql.protocol.refusals import SQLError


__all__ = [
    "AUTHENTICATED",
    "BIND_COMPLETE",
    "CANCEL_REQUEST",
    "CLOSE_COMPLETE",
    "EMPTY_QUERY",
    "GSS_REQUEST",
    "NO_DATA",
    "PARSE_COMPLETE",
    "PASSWORD_WANTED",
    "PORTAL_SUSPENDED",
    "TLS_REQUEST",
    "VERSION_MAJOR",
    "Bind",
    "Column",
    "FieldReader",
    "Formats",
    "backend_key",
    "command_complete",
    "data_row",
    "error_response",
    "negotiate_version",
    "notice",
    "parameter_description",
    "parameter_status",
    "parse_bind",
    "parse_parse",
    "parse_startup",
    "ready",
    "row_description",
]

VERSION_MAJOR: Final = 3
TLS_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102

_PARAMETER_COUNT_MAX: Final = 1_000
_TEXT: Final = 0
_BINARY: Final = 1

_INT16: Final = struct.Struct("!h")
_UINT16: Final = struct.Struct("!H")
_INT32: Final = struct.Struct("!i")
_NULL: Final = _INT32.pack(-1)

Formats: TypeAlias = Sequence[int]
"""0 for text, 1 for binary: none for all text, one for all columns, or one for each."""


@final
@frozen
class Column:
    """
    A column of an answer.

    Attributes:
        name: What it is called.
        type_oid: Its type.
        type_size: Bytes of a value, or -1 where they differ.
        type_modifier: E.g. precision and scale of a numeric, or -1.
    """

    name: str
    type_oid: int
    type_size: int = -1
    type_modifier: int = -1


@final
@frozen
class Bind:
    """
    What a tool puts into a prepared statement.

    Attributes:
        portal: What the result is called.
        statement: The prepared statement.
        parameter_formats: In which form *parameters* are.
        parameters: The values, None for null.
        result_formats: In which form the result is wanted.
    """

    portal: str
    statement: str
    parameter_formats: Formats
    parameters: Sequence[bytes | None]
    result_formats: Formats


@final
class FieldReader:
    """
    Reads the fields of one message.

    Raises:
        SQLError: If the message is shorter than what is read of it, or malformed.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def _take(self, size: int) -> bytes:
        end = self._place + size
        if size < 0 or end > len(self._data):
            raise SQLError("08P01", "a message ends too early")
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def byte(self) -> bytes:
        """Return one byte."""
        return self._take(1)

    def count(self) -> int:
        """Return how many fields follow."""
        count: int = _UINT16.unpack(self._take(2))[0]
        return count

    def int16(self) -> int:
        """Return an integer of two bytes."""
        number: int = _INT16.unpack(self._take(2))[0]
        return number

    def int32(self) -> int:
        """Return an integer of four bytes."""
        number: int = _INT32.unpack(self._take(4))[0]
        return number

    def text(self) -> str:
        """Return a string up to its zero byte."""
        end = self._data.find(b"\0", self._place)
        if end < 0:
            raise SQLError("08P01", "a string of a message has no end")
        raw = self._data[self._place : end]
        self._place = end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise SQLError(
                "22021", "text must be UTF-8", "set client_encoding to UTF8"
            ) from None

    def value(self) -> bytes | None:
        """Return bytes of a length that precedes them; None for null."""
        size = self.int32()
        return None if size == -1 else self._take(size)

    @property
    def is_at_end(self) -> bool:
        """Return whether everything was read."""
        return self._place == len(self._data)

    def end(self) -> None:
        """Refuse a message that goes on."""
        if not self.is_at_end:
            raise SQLError("08P01", "a message is longer than its fields")


# -- from the tool -------------------------------------------------------------------


def parse_startup(reader: FieldReader) -> dict[str, str]:
    """Return the parameters of the first message, behind its version."""
    found: dict[str, str] = {}
    while name := reader.text():
        found[name] = reader.text()
    reader.end()
    return found


def parse_parse(data: bytes) -> tuple[str, str, Sequence[int]]:
    """Return name, text and the types of parameters of what is to be prepared."""
    reader = FieldReader(data)
    name, text = reader.text(), reader.text()
    count = reader.count()
    _check_count(count)
    oids = [reader.int32() & 0xFFFFFFFF for _ in range(count)]
    reader.end()
    return name, text, oids


def parse_bind(data: bytes) -> Bind:
    """Return what *data* binds."""
    reader = FieldReader(data)
    portal, statement = reader.text(), reader.text()
    parameter_formats = _formats(reader)
    count = reader.count()
    _check_count(count)
    parameters = [reader.value() for _ in range(count)]
    result_formats = _formats(reader)
    reader.end()
    if len(parameter_formats) not in {0, 1, len(parameters)}:
        raise SQLError(
            "08P01",
            f"{len(parameters)} parameters have {len(parameter_formats)} formats",
        )
    return Bind(portal, statement, parameter_formats, parameters, result_formats)


def _formats(reader: FieldReader) -> Formats:
    formats = [reader.int16() for _ in range(reader.count())]
    if not {_TEXT, _BINARY}.issuperset(formats):
        raise SQLError("08P01", "a format is neither text (0) nor binary (1)")
    return formats


def _check_count(count: int) -> None:
    if count > _PARAMETER_COUNT_MAX:
        raise SQLError(
            "54000",
            f"{count} parameters are too many: {_PARAMETER_COUNT_MAX} can be",
        )


# -- to the tool ---------------------------------------------------------------------


def _message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + _INT32.pack(len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.replace("\0", "").encode(errors="replace") + b"\0"


AUTHENTICATED: Final = _message(b"R", _INT32.pack(0))
PASSWORD_WANTED: Final = _message(b"R", _INT32.pack(3))
PARSE_COMPLETE: Final = _message(b"1")
BIND_COMPLETE: Final = _message(b"2")
CLOSE_COMPLETE: Final = _message(b"3")
NO_DATA: Final = _message(b"n")
EMPTY_QUERY: Final = _message(b"I")
PORTAL_SUSPENDED: Final = _message(b"s")


def negotiate_version(options: Sequence[str]) -> bytes:
    """Return that we speak 3.0, and none of *options*."""
    body = _INT32.pack(VERSION_MAJOR << 16) + _INT32.pack(len(options))
    return _message(b"v", body + b"".join(map(_text, options)))


def backend_key(process_id: int, secret: int) -> bytes:
    """Return what a tool shows when it wants a statement cancelled."""
    return _message(b"K", struct.pack("!II", process_id, secret))


def parameter_status(name: str, value: str) -> bytes:
    """Return what a setting of the session is."""
    return _message(b"S", _text(name) + _text(value))


def ready(status: bytes) -> bytes:
    """Return that the next statement may come; *status* is I, T or E."""
    return _message(b"Z", status)


def command_complete(tag: str) -> bytes:
    """Return that a statement is done."""
    return _message(b"C", _text(tag))


def parameter_description(oids: Iterable[int]) -> bytes:
    """Return the types of the parameters of a prepared statement."""
    packed = [struct.pack("!I", oid) for oid in oids]
    return _message(b"t", _UINT16.pack(len(packed)) + b"".join(packed))


def row_description(columns: Sequence[Column], formats: Formats) -> bytes:
    """Return the columns that follow."""
    parts = [_UINT16.pack(len(columns))]
    for place, column in enumerate(columns):
        parts.append(_text(column.name))
        parts.append(
            struct.pack(
                "!IhIhih",
                0,
                0,
                column.type_oid,
                column.type_size,
                column.type_modifier,
                formats[place] if place < len(formats) else _TEXT,
            )
        )
    return _message(b"T", b"".join(parts))


def data_row(values: Sequence[bytes | None]) -> bytes:
    """Return one row."""
    parts = [_UINT16.pack(len(values))]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_INT32.pack(len(value)), value)
    return _message(b"D", b"".join(parts))


def error_response(error: SQLError, severity: str = "ERROR") -> bytes:
    """Return *error*; after one of severity FATAL the connection ends."""
    fields: dict[bytes, str] = {
        b"S": severity,
        b"V": severity,
        b"C": error.sqlstate,
        b"M": error.message,
        b"H": error.hint,
        b"P": str(error.position) if error.position else "",
        b"R": error.routine,
    }
    return _message(b"E", _fields(fields))


def notice(message: str) -> bytes:
    """Return a warning, which does not stop a statement."""
    return _message(
        b"N", _fields({b"S": "WARNING", b"V": "WARNING", b"C": "01000", b"M": message})
    )


def _fields(fields: Mapping[bytes, str]) -> bytes:
    return b"".join(kind + _text(text) for kind, text in fields.items() if text) + b"\0"
