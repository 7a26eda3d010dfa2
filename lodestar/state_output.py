"""
How queryable state is written for people: tables and lines.

Values are written as they would be typed (`queryablestate.schema.key_text`); what
programs read is made by `queryablestate.client.documents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lodestar.output import (
    ABSENT,
    ago_text,
    pairs_text,
    printable,
    table_text,
)
from queryablestate.schema.key_text import column_text
from queryablestate.schema.schema import StateKind, fields_text


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.client.documents import FoundKey
    from queryablestate.client.results import StateInformation
    from queryablestate.schema.schema import Field, StateSchema


__all__ = [
    "found_text",
    "rows_text",
    "states_text",
]


def found_text(schema: StateSchema, found: Sequence[FoundKey], *, is_one: bool) -> str:
    """
    Return *found* for people: a line for each column, or a line for each row.

    Args:
        schema: Of the state.
        found: What was found, in the order in which it was asked for.
        is_one: Whether one key alone was asked for, which then need not be told.
    """
    if is_one and isinstance(found[0].value, dict):
        is_map = schema.kind is StateKind.MAP and not found[0].map_key
        if not is_map:
            return pairs_text(
                [
                    (one.name, column_text(one.type, found[0].value.get(one.name)))
                    for one in schema.value
                ]
            )
    rows: list[tuple[Any, tuple[Any, ...], Mapping[str, Any]]] = []
    for each in found:
        if isinstance(each.value, list):
            rows += [(each.key, (), row) for row in each.value]
        elif schema.kind is StateKind.MAP and not each.map_key:
            rows += [(each.key, (one,), row) for one, row in each.value.items()]
        else:
            rows.append((each.key, each.map_key, each.value))
    return rows_text(schema, rows, has_key=not is_one)


def states_text(states: Sequence[StateInformation]) -> str:
    """Return *states* as a table for people."""
    if not states:
        return "there are no states"
    return table_text(
        ("JOB", "STATE", "KIND", "KEY", "BATCH", "AGE", "GENERATION", "NODES"),
        [
            (
                each.job_id,
                each.name,
                each.kind,
                fields_text(each.registered_schema.key),
                ABSENT if each.batch_id is None else str(each.batch_id),
                ago_text(each.age_seconds),
                str(each.generation),
                " ".join(each.nodes),
            )
            for each in states
        ],
    )


def rows_text(
    schema: StateSchema,
    rows: Sequence[tuple[Any, tuple[Any, ...], Mapping[str, Any]]],
    *,
    has_key: bool = True,
) -> str:
    """
    Return rows as a table for people.

    Args:
        schema: Of the state.
        rows: Key, map key (empty, or one) and value of each.
        has_key: Whether the key has columns of its own.
    """
    if not rows:
        return "there are no rows"
    key_fields = schema.key if has_key else ()
    map_fields = schema.map_key if rows[0][1] else ()
    fields = (*key_fields, *map_fields, *schema.value)
    return table_text(
        [printable(one.name) for one in fields],
        [
            (
                *_cells(key_fields, key),
                *_cells(map_fields, *map_key),
                *(column_text(one.type, row.get(one.name)) for one in schema.value),
            )
            for key, map_key, row in rows
        ],
    )


def _cells(fields: Sequence[Field], *key: Any) -> list[str]:
    """Return a key, if there are columns for it, as cells of a table."""
    if not fields:
        return []
    values = key if len(fields) == 1 else key[0]
    return [
        column_text(one.type, value) for one, value in zip(fields, values, strict=True)
    ]
