"""
The gateway's interface as an OpenAPI 3.1 document; pure.

`PATHS` is the one description of what there is: the document, the page that shows it,
and the reference in docs/reference/http-api.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, final

from attrs import frozen

from queryablestate.gateway.problems import PROBLEM_TYPE, PROBLEMS
from queryablestate.gateway.representations import FORMATS, JSON


__all__ = ["PARAMETERS", "PATHS", "Operation", "openapi_document"]

_STATE: Final = "/v1/jobs/{job}/states/{state}"
_KEY: Final = f"{_STATE}/keys/{{key}}"
_EVENT_STREAM: Final = "text/event-stream"

_READING: Final = (400, 401, 403, 404, 406, 408, 429, 431, 500, 502, 503, 504)
_HEADERS: Final = {
    "ETag": "What If-None-Match takes; the same as long as the values are.",
    "Lodestar-Generation": "The ownership of the state that it was read in.",
    "Lodestar-Batch-Id": "The last batch that was applied when it was read.",
    "Lodestar-Age-Seconds": "How long ago that batch was decided.",
    "Lodestar-Cached": "Whether the proxy had the answer from before.",
}


@final
@frozen
class Parameter:
    """One parameter of a path, behind the question mark, or in a header."""

    name: str
    place: str
    schema: Mapping[str, Any]
    text: str


def _text(name: str, place: str, text: str, **schema: Any) -> Parameter:
    return Parameter(name, place, {"type": "string", **schema}, text)


_WHOLE: Final = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_NAME: Final = {"minLength": 1, "maxLength": 255}

PARAMETERS: Final[Mapping[str, Parameter]] = {
    "job": _text("job", "path", "The job.", **_NAME),
    "state": _text("state", "path", "The state.", **_NAME),
    "component": _text("component", "path", "What is led, e.g. a job.", **_NAME),
    "key": _text(
        "key",
        "path",
        "The key, percent-encoded, as the type of its column wants it: text as it is, "
        "42, 1.10, true, 2026-03-01, 2026-03-01T04:05:06Z, 0x00ff (bytes). Several "
        "columns are separated by commas; json_key takes any key. A browser takes . "
        "and .. for directories: ask for those by keys:batchGet.",
    ),
    "map_key": _text("map_key", "path", "The key of an entry, written as a key."),
    "json_key": Parameter(
        "json_key",
        "query",
        {"type": "boolean", "default": False},
        "Whether keys here are JSON: a value, or an array or an object for several "
        "columns; null can be said only so.",
    ),
    "deadline": Parameter(
        "deadline",
        "query",
        {"type": "number", "minimum": 0.01, "maximum": 60},
        "How many seconds it may take; 5 if it is not said, 60 at most.",
    ),
    "min_batch_id": Parameter(
        "min_batch_id", "query", _WHOLE, "Wait until this batch is visible."
    ),
    "min_generation": Parameter(
        "min_generation",
        "query",
        {**_WHOLE, "minimum": 1},
        "Whose batch that is; without it, of the present generation.",
    ),
    "first_item": Parameter(
        "start",
        "query",
        {"type": "integer"},
        "Of a list, from this item on; from the end if negative.",
    ),
    "end_item": Parameter(
        "stop",
        "query",
        {"type": "integer"},
        "Of a list, up to but without this item; from the end if negative.",
    ),
    "prefix": _text(
        "prefix",
        "query",
        "What keys begin with: a part of a text (or 0x...), or values for the first of "
        "several columns.",
    ),
    "start": _text("start", "query", "The first key, included."),
    "stop": _text("stop", "query", "The key to end at, not included."),
    "limit": Parameter(
        "limit",
        "query",
        {"type": "integer", "minimum": 1, "maximum": 1_000},
        "How many rows a page has at most; 100 in JSON if it is not said. All other "
        "formats have all rows then.",
    ),
    "page_token": _text(
        "page_token",
        "query",
        "The next_page_token of the page before; all else as it was then.",
    ),
    "format": _text(
        "format",
        "query",
        "The format, whatever Accept says.",
        enum=list(FORMATS),
    ),
    "last_event_id": _text(
        "Last-Event-ID",
        "header",
        "The id of the last event that was seen; browsers send it by themselves.",
    ),
    "last_event_id_query": _text(
        "last_event_id", "query", "The same, for who cannot send a header."
    ),
    "if_none_match": _text(
        "If-None-Match",
        "header",
        "An ETag: if it still holds, the answer is 304 without a body.",
    ),
}

_QUESTION: Final = ("json_key", "deadline", "min_batch_id", "min_generation")
_ROWS: Final = (
    *("start", "stop", "limit", "page_token", "format"),
    *_QUESTION,
    "if_none_match",
)
_WATCH: Final = ("last_event_id", "last_event_id_query")


@final
@frozen(kw_only=True)
class Operation:
    """
    What can be asked at one path.

    Attributes:
        method: ``get`` or ``post``.
        path: With parameters in braces.
        name: For programs that are generated.
        summary: What it answers, in a few words.
        text: More of it.
        parameters: Names in `PARAMETERS`.
        result: Which schema the answer in JSON has, or None for other types.
        types: The media types of the answer.
        statuses: Of problems.
        is_as_of: Whether the answer says as of which batch it is.
    """

    method: str = "get"
    path: str
    name: str
    summary: str
    text: str = ""
    parameters: Sequence[str]
    result: str | None
    types: Sequence[str] = (JSON,)
    statuses: Sequence[int] = _READING
    is_as_of: bool = True


PATHS: Final[Sequence[Operation]] = (
    Operation(
        path="/v1/jobs",
        name="listJobs",
        summary="The jobs that have state which the caller may see",
        parameters=("deadline", "if_none_match"),
        result="Jobs",
        is_as_of=False,
    ),
    Operation(
        path="/v1/jobs/{job}/states",
        name="listStates",
        summary="The states of a job that the caller may see",
        parameters=("job", "deadline", "if_none_match"),
        result="States",
        is_as_of=False,
    ),
    Operation(
        path=_STATE,
        name="describeState",
        summary="One state: its columns, its generation, its last batch",
        parameters=("job", "state", *_QUESTION, "if_none_match"),
        result="State",
    ),
    Operation(
        path=_KEY,
        name="getKey",
        summary="What a state holds under a key",
        text="A value state has an object of its columns, a list state an array of "
        "them, a map state an array of objects with map_key and value.",
        parameters=(
            *("job", "state", "key", "first_item", "end_item"),
            *_QUESTION,
            "if_none_match",
        ),
        result="Found",
    ),
    Operation(
        path=f"{_KEY}/entries",
        name="listEntries",
        summary="The entries of the map under a key, page by page",
        parameters=("job", "state", "key", *_ROWS),
        result="Page",
        types=tuple(FORMATS.values()),
    ),
    Operation(
        path=f"{_KEY}/entries/{{map_key}}",
        name="getEntry",
        summary="One entry of the map under a key",
        parameters=("job", "state", "key", "map_key", *_QUESTION, "if_none_match"),
        result="Found",
    ),
    Operation(
        path=f"{_KEY}/watch",
        name="watchKey",
        summary="The present value of a key, then each change, as server-sent events",
        text="Events are value and absent, with an id and the same data as getKey; a "
        "problem is an event of that name. A watcher that comes back with the id of "
        "the last event that it saw, to this gateway or another one, is told what has "
        "changed since, and nothing that is older. Of changes that come faster than "
        "they are read, the newest is told.",
        parameters=("job", "state", "key", "json_key", *_WATCH),
        result=None,
        types=(_EVENT_STREAM,),
        is_as_of=False,
    ),
    Operation(
        method="post",
        path=f"{_STATE}/keys:batchGet",
        name="batchGet",
        summary="What a state holds under many keys",
        text='The body is {"keys": [KEY, …]} with keys as JSON. With "partial": true '
        "a key that cannot be read now has a problem in place of a value; without it, "
        "that is the answer to the whole.",
        parameters=("job", "state", *_QUESTION),
        result="Batch",
        statuses=(*_READING, 413, 415),
    ),
    Operation(
        path=f"{_STATE}/rows",
        name="listRows",
        summary="Rows in the order of their keys, a page or a whole state",
        text="There is a row for each key, each entry of a map, each item of a list. "
        "JSON is a page, and so is every format with limit. Without it, JSON lines, "
        "CSV and Arrow are all rows; a body that ends early breaks its connection.",
        parameters=("job", "state", "prefix", *_ROWS),
        result="Page",
        types=tuple(FORMATS.values()),
    ),
    Operation(
        path=f"{_STATE}/count",
        name="countKeys",
        summary="How many keys a state holds",
        text="Lists and maps count once for each key. No node counts before the batch "
        "that is named; some may count after a later one.",
        parameters=("job", "state", *_QUESTION, "if_none_match"),
        result="Count",
    ),
    Operation(
        path="/v1/leaders",
        name="listLeaders",
        summary="Every component that has a contender or a leader",
        parameters=("if_none_match",),
        result="Leaders",
        is_as_of=False,
    ),
    Operation(
        path="/v1/leaders/{component}",
        name="getLeader",
        summary="Who leads one component",
        parameters=("component", "if_none_match"),
        result="Leader",
        is_as_of=False,
    ),
    Operation(
        path="/v1/leaders/{component}/watch",
        name="watchLeader",
        summary="Who leads one component, then each change, as server-sent events",
        text="The event is leader; without a leader, its leader is null. Resumed as "
        "the watch of a key is.",
        parameters=("component", *_WATCH),
        result=None,
        types=(_EVENT_STREAM,),
        is_as_of=False,
    ),
)


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


def _ref(name: str) -> dict[str, Any]:
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
_SCHEMAS: Final[Mapping[str, Any]] = {
    "Jobs": _object(jobs=_array(_object(job={"type": "string"}))),
    "States": _object(job={"type": "string"}, states=_array(_ref("State"))),
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
                    "problem": _ref("Problem"),
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
    "Leaders": _object(leaders=_array(_ref("Leader"))),
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


def openapi_document() -> dict[str, Any]:
    """Return the document, which ``/openapi.json`` is."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in PATHS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lodestar",
            "version": _version(),
            "summary": "State of running Spark jobs, and who leads what.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(_SCHEMAS),
            "parameters": {
                name: _parameter(parameter) for name, parameter in PARAMETERS.items()
            },
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.items()
            },
            "responses": {
                f"Problem{status}": _problem(status)
                for status in sorted({status for status, _ in PROBLEMS.values()})
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the proxy's access list; needed where "
                    "that lists callers.",
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {"$ref": f"#/components/parameters/{name}"} for name in operation.parameters
        ],
    }
    if operation.text:
        found["description"] = operation.text
    if operation.method == "post":
        found["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": _ref("Keys")}},
        }
    content = {}
    for media_type in operation.types:
        is_json = media_type == JSON and operation.result is not None
        content[media_type] = (
            {"schema": _ref(operation.result or "")} if is_json else {}
        )
    headers = [
        name
        for name in _HEADERS
        if operation.is_as_of or (name == "ETag" and operation.result is not None)
    ]
    responses: dict[str, Any] = {
        "200": {
            "description": operation.summary,
            "content": content,
            "headers": {
                name: {"$ref": f"#/components/headers/{name}"} for name in headers
            },
        }
    }
    if "if_none_match" in operation.parameters:
        responses["304"] = {"description": "What If-None-Match names still holds"}
    for status in operation.statuses:
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    return found | {"responses": responses}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    found = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.text,
        "schema": dict(parameter.schema),
    }
    return found | ({"required": True} if parameter.place == "path" else {})


def _problem(status: int) -> dict[str, Any]:
    titles = [title for one, title in PROBLEMS.values() if one == status]
    found: dict[str, Any] = {
        "description": "; ".join(titles),
        "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}},
    }
    if status in {429, 503}:
        found["headers"] = {
            "Retry-After": {
                "description": "In how many seconds it is worth asking again.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    return found


def _version() -> str:
    try:
        return version("spark-lodestar")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
