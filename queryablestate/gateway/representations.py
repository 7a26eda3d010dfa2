"""
Rows of a state as JSON, JSON lines, CSV and Arrow.

JSON is one document for a page.  The others are made piece by piece, so a state of any
size needs the memory of a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, final

from nameservice import ConfigurationError
from queryablestate.client.documents import row_document
from queryablestate.client.export import csv_heading, csv_row
from queryablestate.client.frames import load_arrow, row_columns
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.requests import preferred
from queryablestate.schema.schema import StateKind, StateSchema


__all__ = [
    "FORMATS",
    "JSON",
    "RowWriter",
    "check_arrow",
    "chosen_format",
    "json_bytes",
    "row_documents",
    "row_writer",
]

JSON: Final = "application/json"

FORMATS: Final[Mapping[str, str]] = {
    "json": JSON,
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
}
"""What ``format=`` may be, and its media type."""

Row = tuple[Any, Mapping[str, Any]]


class RowWriter(Protocol):
    """Makes bytes of rows, in their order."""

    def begin(self) -> bytes:
        """Return what stands before the first row."""
        ...

    def rows(self, rows: Sequence[Row]) -> bytes:
        """Return what the next rows are."""
        ...

    def end(self) -> bytes:
        """Return what stands behind the last one."""
        ...


def json_bytes(document: Any) -> bytes:
    """Return *document* as JSON in UTF-8."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Half of a pair of surrogates, which JSON and Spark do not refuse, is no UTF-8.
    return text.encode(errors="replace")


def chosen_format(
    accept: str | None, name: str | None, offered: Sequence[str] = tuple(FORMATS)
) -> str:
    """
    Return in which format the answer is wanted.

    Args:
        accept: The header ``Accept``, or None.
        name: The parameter ``format``, which outweighs it, or None.
        offered: Which formats there are, the best one first.

    Raises:
        GatewayError: If it is wanted in none of them.
    """
    if name is None:
        types = {FORMATS[one]: one for one in offered}
        found = preferred(accept, tuple(types))
        if found is not None:
            return types[found]
    elif name in offered:
        return name
    there = ", ".join(f"{one} ({FORMATS[one]})" for one in offered)
    raise GatewayError("not-acceptable", f"there is {there}; say format= or Accept")


def row_documents(schema: StateSchema, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return *rows*, as a scan gives them, as they are written as JSON."""
    if schema.kind is StateKind.MAP:
        return [
            row_document(schema, key[0], (key[1],), dict(value)) for key, value in rows
        ]
    return [row_document(schema, key, (), dict(value)) for key, value in rows]


def check_arrow() -> None:
    """
    Return if Arrow can be written; the first time it takes a second.

    Raises:
        GatewayError: If pyarrow is not installed.
    """
    try:
        load_arrow()
    except ConfigurationError:
        raise GatewayError(
            "not-acceptable",
            "Arrow needs pyarrow, which is not installed at the gateway",
        ) from None


def row_writer(
    name: str, schema: StateSchema, metadata: Mapping[str, str]
) -> RowWriter:
    """
    Return what writes rows in the format *name*, but for JSON.

    Args:
        name: One of `FORMATS`.
        schema: Of the state.
        metadata: What the rows are as of, for formats that can say so.
    """
    match name:
        case "csv":
            return _CSVWriter(schema)
        case "arrow":
            return _ArrowWriter(schema, metadata)
        case _:
            return _LineWriter(schema)


@final
class _LineWriter:
    def __init__(self, schema: StateSchema) -> None:
        self._schema = schema

    def begin(self) -> bytes:
        return b""

    def rows(self, rows: Sequence[Row]) -> bytes:
        documents = row_documents(self._schema, rows)
        return b"".join(json_bytes(one) + b"\n" for one in documents)

    def end(self) -> bytes:
        return b""


@final
class _CSVWriter:
    def __init__(self, schema: StateSchema) -> None:
        self._schema = schema
        self._fields = (*schema.key, *schema.map_key, *schema.value)
        self._line = csv_row(self._fields)

    def begin(self) -> bytes:
        return csv_heading(self._fields).encode(errors="replace")

    def rows(self, rows: Sequence[Row]) -> bytes:
        lines = (
            self._line(row_columns(self._schema, key, dict(value)))
            for key, value in rows
        )
        return "".join(lines).encode(errors="replace")

    def end(self) -> bytes:
        return b""


@final
class _ArrowWriter:
    def __init__(self, schema: StateSchema, metadata: Mapping[str, str]) -> None:
        self._schema = schema
        fields = (*schema.key, *schema.map_key, *schema.value)
        self._stream = load_arrow().ArrowStream(fields, metadata)

    def begin(self) -> bytes:
        return b""

    def rows(self, rows: Sequence[Row]) -> bytes:
        columns = [row_columns(self._schema, key, dict(value)) for key, value in rows]
        found: bytes = self._stream.rows(columns)
        return found

    def end(self) -> bytes:
        found: bytes = self._stream.end()
        return found
