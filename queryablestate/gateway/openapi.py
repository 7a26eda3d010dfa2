"""The gateway's interface as an OpenAPI 3.1 document; pure."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from queryablestate.gateway.operations import (
    PARAMETERS,
    PATHS,
    Operation,
    Parameter,
)
from queryablestate.gateway.problems import PROBLEM_TYPE, PROBLEMS
from queryablestate.gateway.representations import JSON
from queryablestate.gateway.schemas import SCHEMAS, reference_to


__all__ = ["openapi_document"]

_HEADERS: Final = {
    "ETag": "What If-None-Match takes; the same as long as the values are.",
    "Lodestar-Generation": "The ownership of the state that it was read in.",
    "Lodestar-Batch-Id": "The last batch that was applied when it was read.",
    "Lodestar-Age-Seconds": "How long ago that batch was decided.",
    "Lodestar-Cached": "Whether the proxy had the answer from before.",
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
            "schemas": dict(SCHEMAS),
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
            "content": {JSON: {"schema": reference_to("Keys")}},
        }
    content = {}
    for media_type in operation.types:
        is_json = media_type == JSON and operation.result is not None
        content[media_type] = (
            {"schema": reference_to(operation.result or "")} if is_json else {}
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
        "content": {PROBLEM_TYPE: {"schema": reference_to("Problem")}},
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
