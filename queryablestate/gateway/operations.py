"""
What can be asked over HTTP: operations and their parameters; pure.

`PATHS` is the one description of what there is: the document
(`queryablestate.gateway.openapi`), the page that shows it, and the reference in
docs/reference/http-api.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from attrs import frozen

from queryablestate.gateway.representations import FORMATS, JSON


__all__ = ["PARAMETERS", "PATHS", "Operation", "Parameter"]

_STATE: Final = "/v1/jobs/{job}/states/{state}"
_KEY: Final = f"{_STATE}/keys/{{key}}"
_EVENT_STREAM: Final = "text/event-stream"

_READING: Final = (400, 401, 403, 404, 406, 408, 421, 429, 431, 500, 502, 503, 504)


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
        "problem is an event of that name; when the key can be read again, what there "
        "is then is told. A watcher that comes back with the id of the last event "
        "that it saw, to this gateway or another one, is told what has changed since, "
        "and nothing that is older. Of changes that come faster than they are read, "
        "the newest is told.",
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
