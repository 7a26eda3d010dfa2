"""What bodies of the gateway look like, as schemas of an OpenAPI document; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


__all__ = ["SCHEMAS", "reference_to"]


def _nullable(kind: str) -> dict[str, Any]:
    return {"type": [kind, "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    """Return an object that has all of these members; more may come some day."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def reference_to(name: str) -> dict[str, Any]:
    """Return what stands for the schema *name* within the document."""
    return {"$ref": f"#/components/schemas/{name}"}


_AS_OF: Final = {
    "generation": _nullable("integer"),
    "batch_id": _nullable("integer"),
    "age_seconds": _nullable("number"),
}
_COLUMN: Final = _object(name={"type": "string"}, type={"type": "string"})
_LEADER: Final = _object(
    address={"type": "string"},
    epoch={"type": "integer"},
    leader_session_id={"type": "string", "format": "uuid"},
)
SCHEMAS: Final[Mapping[str, Any]] = {
    "Jobs": _object(jobs=_array(_object(job={"type": "string"}))),
    "States": _object(job={"type": "string"}, states=_array(reference_to("State"))),
    "State": _object(
        job={"type": "string"},
        state={"type": "string"},
        kind={"enum": ["value", "list", "map"]},
        key=_array(_COLUMN),
        map_key=_array(_COLUMN),
        value=_array(_COLUMN),
        has_ttl={"type": "boolean"},
        query_id={"type": "string"},
        max_parallelism={"type": "integer"},
        nodes=_array({"type": "string"}),
        **_AS_OF,
    ),
    "Found": _object(
        key={},
        value={"type": ["object", "array"]},
        cached={"type": "boolean"},
        **_AS_OF,
    ),
    "Batch": _object(
        job={"type": "string"},
        state={"type": "string"},
        results=_array(
            {
                "type": "object",
                "required": ["key"],
                "properties": {
                    "key": {},
                    "exists": {"type": "boolean"},
                    "value": {"type": ["object", "array"]},
                    "problem": reference_to("Problem"),
                },
            }
        ),
        **_AS_OF,
    ),
    "Page": _object(
        job={"type": "string"},
        state={"type": "string"},
        rows=_array(
            {
                "type": "object",
                "required": ["key", "value"],
                "properties": {"key": {}, "map_key": {}, "value": {"type": "object"}},
            }
        ),
        next_page_token=_nullable("string"),
        **_AS_OF,
    ),
    "Count": _object(
        job={"type": "string"},
        state={"type": "string"},
        count={"type": "integer", "minimum": 0},
        **_AS_OF,
    ),
    "Leader": _object(
        component={"type": "string"},
        leader={"oneOf": [_LEADER, {"type": "null"}]},
        epoch=_nullable("integer"),
        contender_count={"type": "integer", "minimum": 0},
    ),
    "Leaders": _object(leaders=_array(reference_to("Leader"))),
    "Keys": {
        "type": "object",
        "required": ["keys"],
        "additionalProperties": False,
        "properties": {
            "keys": {"type": "array", "minItems": 1, "maxItems": 1_000, "items": {}},
            "partial": {"type": "boolean", "default": False},
        },
    },
    "Problem": _object(
        type={"type": "string", "format": "uri"},
        title={"type": "string"},
        status={"type": "integer"},
        detail={"type": "string"},
    ),
}
