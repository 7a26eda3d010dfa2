"""
How queryable state is written: tables and lines for people, JSON for programs.

Values are written as they would be typed (`queryablestate.schema.key_text`) and, in
JSON, as `queryablestate.schema.json_values` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lodestar.output import (
    ABSENT,
    ago_text,
    pairs_text,
    printable,
    rounded_seconds,
    table_text,
)
from queryablestate.schema.json_values import column_to_json, row_to_json
from queryablestate.schema.key_text import column_text
from queryablestate.schema.schema import StateKind, fields_text


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.client.results import StateEntry, StateInformation
    from queryablestate.schema.schema import Field, StateSchema


__all__ = [
    "FoundKey",
    "found_document",
    "found_text",
    "row_document",
    "rows_text",
    "state_document",
    "states_text",
]


class FoundKey(NamedTuple):
    """
    What was found under one key.

    Attributes:
        key: The key.
        map_key: Empty, or the one map key that was asked for.
        value: As the client gives it: a dict, a list of them, or a dict of them.
        entry: As of when, or None if that is not known.
    """

    key: Any
    map_key: tuple[Any, ...]
    value: Any
    entry: StateEntry | None


def found_document(schema: StateSchema, found: FoundKey) -> dict[str, Any]:
    """Return *found* as it is written as JSON."""
    document: dict[str, Any] = {"key": _key_to_json(schema.key, found.key)}
    if found.map_key:
        document["map_key"] = _key_to_json(schema.map_key, found.map_key[0])
    if isinstance(found.value, list):
        document["value"] = [row_to_json(schema.value, row) for row in found.value]
    elif schema.kind is StateKind.MAP and not found.map_key:
        document["value"] = [
            {
                "map_key": _key_to_json(schema.map_key, map_key),
                "value": row_to_json(schema.value, row),
            }
            for map_key, row in found.value.items()
        ]
    else:
        document["value"] = row_to_json(schema.value, found.value)
    entry = found.entry
    if entry is not None:
        document |= {
            "generation": entry.generation,
            "batch_id": entry.batch_id,
            "age_seconds": rounded_seconds(entry.age_seconds),
            "cached": entry.cached,
        }
    return document


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


def state_document(state: StateInformation) -> dict[str, Any]:
    """Return *state* as it is written as JSON."""
    schema = state.registered_schema
    return {
        "job": state.job_id,
        "state": state.name,
        "kind": state.kind,
        "key": _columns_to_json(schema.key),
        "map_key": _columns_to_json(schema.map_key),
        "value": _columns_to_json(schema.value),
        "has_ttl": state.has_ttl,
        "generation": state.generation,
        "batch_id": state.batch_id,
        "age_seconds": rounded_seconds(state.age_seconds),
        "query_id": state.owner,
        "max_parallelism": state.max_parallelism,
        "nodes": list(state.nodes),
    }


def row_document(
    schema: StateSchema, key: Any, map_key: tuple[Any, ...], row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one row of a scan as it is written as JSON."""
    document: dict[str, Any] = {"key": _key_to_json(schema.key, key)}
    if map_key:
        document["map_key"] = _key_to_json(schema.map_key, map_key[0])
    return document | {"value": row_to_json(schema.value, row)}


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


def _key_to_json(fields: Sequence[Field], key: Any) -> Any:
    """Return a key as ``--json-key`` takes it: bare, or an object by columns."""
    if len(fields) == 1:
        return column_to_json(fields[0].type, key)
    return row_to_json(
        tuple(fields),
        dict(zip((one.name for one in fields), key, strict=True)),
    )


def _cells(fields: Sequence[Field], *key: Any) -> list[str]:
    """Return a key, if there are columns for it, as cells of a table."""
    if not fields:
        return []
    values = key if len(fields) == 1 else key[0]
    return [
        column_text(one.type, value) for one, value in zip(fields, values, strict=True)
    ]


def _columns_to_json(fields: Sequence[Field]) -> list[dict[str, str]]:
    return [{"name": one.name, "type": str(one.type)} for one in fields]
