"""What pages about states show, as values for templates; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from attrs import frozen

from queryablestate.client.documents import key_to_json
from queryablestate.errors import WrongKeyTypeError
from queryablestate.gateway.console.charts import numeric_columns
from queryablestate.gateway.console.pages import cell_text, part
from queryablestate.schema.json_values import row_to_json
from queryablestate.schema.key_text import key_text, parse_json_key, parse_key
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    StateKind,
    StateSchema,
    StructType,
)


__all__ = [
    "KEY_FIELD_COUNT_MAX",
    "KeyField",
    "ValueTable",
    "key_fields",
    "key_of_fields",
    "key_path",
    "row_cells",
    "state_path",
    "value_table",
]

KEY_FIELD_COUNT_MAX: Final = 16
"""How many key columns the form to find a value has inputs for."""

_ROW_COUNT_MAX: Final = 200
_WHOLE: Final = frozenset(
    {AtomicType.TINYINT, AtomicType.SMALLINT, AtomicType.INT, AtomicType.BIGINT}
)
_HINTS: Final[Mapping[DataType, str]] = {
    AtomicType.BINARY: "0x00ff",
    AtomicType.TIMESTAMP: "2026-03-01T04:05:06Z",
    AtomicType.TIMESTAMP_NTZ: "2026-03-01T04:05:06",
    AtomicType.DATE: "2026-03-01",
}


@final
@frozen
class KeyField:
    """
    One input of the form that finds a value.

    Attributes:
        parameter: What it is called in the URL.
        name: Of the column.
        type: Of the column.
        kind: ``whole``, ``number``, ``boolean`` or ``text``.
        hint: How it is written, or nothing.
    """

    parameter: str
    name: str
    type: str
    kind: str
    hint: str


@final
@frozen
class ValueTable:
    """
    What is kept under one key, as a table.

    Attributes:
        heading: Names of the columns.
        rows: Their texts.
        count: How many rows there are, of which *rows* are the first.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    count: int


def state_path(job_id: str, state_name: str) -> str:
    """Return the path of the page of a state."""
    return f"/console/jobs/{part(job_id)}/states/{part(state_name)}"


def key_path(job_id: str, state_name: str, schema: StateSchema, key: Any) -> str:
    """Return the path of the page of a key: the key is written as JSON there."""
    tree = key_to_json(schema.key, key)
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    return f"{state_path(job_id, state_name)}/keys/{part(text)}"


def key_fields(schema: StateSchema) -> list[KeyField]:
    """Return the inputs for the key columns of *schema*."""
    return [
        KeyField(f"k{place}", one.name, str(one.type), _kind(one), _hint(one))
        for place, one in enumerate(schema.key[:KEY_FIELD_COUNT_MAX])
    ]


def key_of_fields(schema: StateSchema, given: Mapping[str, str]) -> Any:
    """
    Return the key that the inputs of the form add up to.

    Raises:
        WrongKeyTypeError: If one is missing or does not fit; says how to write it.
    """
    values = []
    for place, one in enumerate(schema.key):
        text = given.get(f"k{place}")
        if text is None:
            raise WrongKeyTypeError(str(one), "", f"{one.name} is missing")
        is_nested = isinstance(one.type, StructType | ArrayType)
        # Blanks around what is typed belong to text alone.
        text = text if one.type is AtomicType.STRING else text.strip()
        values.append((parse_json_key if is_nested else parse_key)((one,), text))
    return values[0] if len(values) == 1 else tuple(values)


def _kind(field: Field) -> str:
    if field.type in _WHOLE:
        return "whole"
    if field.type is AtomicType.BOOLEAN:
        return "boolean"
    is_number = field.type in {AtomicType.FLOAT, AtomicType.DOUBLE}
    return "number" if is_number or isinstance(field.type, DecimalType) else "text"


def _hint(field: Field) -> str:
    if isinstance(field.type, StructType | ArrayType):
        return "as JSON"
    return _HINTS.get(field.type, "")


def row_cells(
    schema: StateSchema, key: Any, value: Mapping[str, Any]
) -> tuple[Any, str, list[str]]:
    """
    Return of one row of a scan: its key, the text of that, and its other cells.

    Args:
        schema: Of the state.
        key: As the scan gives it: of a map state, key and map key.
        value: Of the row.
    """
    cells = []
    if schema.kind is StateKind.MAP:
        key, map_key = key
        cells.append(key_text(schema.map_key, map_key))
    tree = row_to_json(schema.value, value)
    cells += [cell_text(tree[one.name]) for one in schema.value]
    return key, key_text(schema.key, key), cells


def value_table(schema: StateSchema, value: Any) -> ValueTable:
    """Return what is kept under a key, as the client gives it, as a table."""
    names = [one.name for one in schema.value]
    if isinstance(value, list):
        rows = [([str(place)], row) for place, row in enumerate(value[:_ROW_COUNT_MAX])]
        return _table(schema, ["item", *names], rows, len(value))
    if schema.kind is StateKind.MAP:
        heading = ", ".join(one.name for one in schema.map_key)
        entries = list(value.items())[:_ROW_COUNT_MAX]
        rows = [([key_text(schema.map_key, key)], row) for key, row in entries]
        return _table(schema, [heading, *names], rows, len(value))
    return _table(schema, names, [([], value)], 1)


def _table(
    schema: StateSchema,
    heading: Sequence[str],
    rows: Sequence[tuple[list[str], Mapping[str, Any]]],
    count: int,
) -> ValueTable:
    texts = []
    for first, row in rows:
        tree = row_to_json(schema.value, row)
        texts.append([*first, *(cell_text(tree[one.name]) for one in schema.value)])
    return ValueTable(heading, texts, count)


def chartable(schema: StateSchema) -> list[str]:
    """Return the value columns that the page of a key can draw as they change."""
    return numeric_columns(schema.value) if schema.kind is StateKind.VALUE else []
