"""
What is asked of state as JSON documents: what the command line and the gateway show.

Values are written as `queryablestate.schema.json_values` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from queryablestate.client.results import StateEntry, StateInformation
from queryablestate.schema.json_values import column_to_json, row_to_json
from queryablestate.schema.schema import Field, StateKind, StateSchema


__all__ = [
    "FoundKey",
    "found_document",
    "key_to_json",
    "row_document",
    "state_document",
    "value_to_json",
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
    document: dict[str, Any] = {"key": key_to_json(schema.key, found.key)}
    if found.map_key:
        document["map_key"] = key_to_json(schema.map_key, found.map_key[0])
    is_whole = not found.map_key
    document["value"] = value_to_json(schema, found.value, is_whole=is_whole)
    entry = found.entry
    if entry is not None:
        document |= {
            "generation": entry.generation,
            "batch_id": entry.batch_id,
            "age_seconds": _rounded(entry.age_seconds),
            "cached": entry.cached,
        }
    return document


def value_to_json(schema: StateSchema, value: Any, *, is_whole: bool) -> Any:
    """
    Return what is kept under a key as it is written as JSON.

    Args:
        schema: Of the state.
        value: As the client gives it.
        is_whole: Whether it is all that is kept there, not one entry of a map.
    """
    if isinstance(value, list):
        return [row_to_json(schema.value, row) for row in value]
    if schema.kind is StateKind.MAP and is_whole:
        return [
            {
                "map_key": key_to_json(schema.map_key, map_key),
                "value": row_to_json(schema.value, row),
            }
            for map_key, row in value.items()
        ]
    return row_to_json(schema.value, value)


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
        "age_seconds": _rounded(state.age_seconds),
        "query_id": state.owner,
        "max_parallelism": state.max_parallelism,
        "nodes": list(state.nodes),
    }


def row_document(
    schema: StateSchema, key: Any, map_key: tuple[Any, ...], row: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one row of a scan as it is written as JSON."""
    document: dict[str, Any] = {"key": key_to_json(schema.key, key)}
    if map_key:
        document["map_key"] = key_to_json(schema.map_key, map_key[0])
    return document | {"value": row_to_json(schema.value, row)}


def key_to_json(fields: Sequence[Field], key: Any) -> Any:
    """Return a key as ``--json-key`` takes it: bare, or an object by columns."""
    if len(fields) == 1:
        return column_to_json(fields[0].type, key)
    return row_to_json(
        tuple(fields),
        dict(zip((one.name for one in fields), key, strict=True)),
    )


def _columns_to_json(fields: Sequence[Field]) -> list[dict[str, str]]:
    return [{"name": one.name, "type": str(one.type)} for one in fields]


def _rounded(seconds: float | None) -> float | None:
    """Return a duration to the microsecond; nothing here is truer."""
    return None if seconds is None else round(seconds, 6)
