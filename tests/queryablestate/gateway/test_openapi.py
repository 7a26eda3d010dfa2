"""The OpenAPI document is valid, and what the gateway does (F2)."""

from __future__ import annotations

import importlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
from hypothesis import HealthCheck

from queryablestate.gateway.openapi import openapi_document
from queryablestate.gateway.openapi_page import openapi_page
from queryablestate.gateway.operations import PATHS
from queryablestate.gateway.problems import PROBLEMS
from scripts.write_http_reference import PAGE, http_reference
from tests.queryablestate.gateway.conftest import Served


pytestmark = pytest.mark.proves("F2")

DOCUMENT = openapi_document()
_WATCHES = {"watchKey", "watchLeader"}

# Not among them: that what fits the document is accepted.  Which keys a state can have
# is for its schema to say.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


@pytest.fixture(scope="module")
def schemathesis() -> Any:
    """Return the library; each worker of a run collects this file, and one needs it."""
    return importlib.import_module("schemathesis")


class TestDocument:
    """F2: /openapi.json."""

    def test_it_is_openapi(self, schemathesis: Any) -> None:
        """By the schema of OpenAPI 3.1; a document with a mistake is none."""
        schemathesis.openapi.from_dict(openapi_document()).validate()
        wrong = openapi_document()
        wrong["paths"]["/v1/jobs"]["get"]["parameters"] = [{"name": "x"}]
        with pytest.raises(jsonschema_rs.ValidationError):
            schemathesis.openapi.from_dict(wrong).validate()

    def test_every_reference_leads_somewhere(self) -> None:
        """And everything that is there is referred to."""
        text = json.dumps(DOCUMENT)
        named = set(re.findall(r'"#/components/(\w+/[\w-]+)"', text))
        there = {
            f"{kind}/{name}"
            for kind, parts in DOCUMENT["components"].items()
            if kind != "securitySchemes"
            for name in parts
        }
        missing = {f"responses/Problem{status}" for status in (405,)}
        assert named <= there
        assert there - named <= missing

    def test_every_path_has_its_parameters(self) -> None:
        """Those in braces, each once, and no other in the path."""
        for operation in PATHS:
            names = DOCUMENT["paths"][operation.path][operation.method]["parameters"]
            parameters = [
                DOCUMENT["components"]["parameters"][one["$ref"].rpartition("/")[2]]
                for one in names
            ]
            in_path = [one["name"] for one in parameters if one["in"] == "path"]
            assert in_path == re.findall(r"\{(\w+)\}", operation.path)
            pairs = [(one["in"], one["name"]) for one in parameters]
            assert len(set(pairs)) == len(pairs)

    def test_every_problem_has_a_response(self) -> None:
        """By its status."""
        for status, _ in PROBLEMS.values():
            assert f"Problem{status}" in DOCUMENT["components"]["responses"]

    def test_the_reference_is_the_document(self) -> None:
        """docs/reference/http-api.md is what the script writes."""
        assert PAGE.read_text(encoding="utf-8") == http_reference()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


class TestPage:
    """F2: /docs shows it, and needs no foreign host."""

    def test_all_of_it(self) -> None:
        """Every path, and every parameter."""
        text = openapi_page(DOCUMENT).text
        for operation in PATHS:
            assert f"{operation.method.upper()} {operation.path}</code>" in text

    def test_nothing_is_loaded(self) -> None:
        """No script, picture, style or font from anywhere; links stay here."""
        page = _Tags()
        page.feed(openapi_page(DOCUMENT).text)
        assert {"script", "img", "link", "iframe"}.isdisjoint(
            tag for tag, _ in page.found
        )
        for _, attributes in page.found:
            assert "src" not in attributes
            assert "style" not in attributes
            assert (attributes.get("href") or "/").startswith("/")

    def test_what_it_shows_is_text(self) -> None:
        """Nothing that a description says is taken for HTML."""
        document = json.loads(json.dumps(DOCUMENT).replace("One state", "<script>&"))
        text = openapi_page(document).text
        assert "<script>" not in text
        assert "&lt;script&gt;&amp;" in text


@pytest.fixture(scope="module")
def operations(schemathesis: Any) -> dict[str, Any]:
    """Return every operation of the document by its id."""
    schema = schemathesis.openapi.from_dict(openapi_document())
    found = [one.ok() for one in schema.get_all_operations()]
    return {one.definition.raw["operationId"]: one for one in found}


def operation_ids() -> list[str]:
    """Return the ids of all operations but watches, which do not end."""
    return [
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if operation["operationId"] not in _WATCHES
    ]


@pytest.mark.shells
@pytest.mark.parametrize("operation_id", operation_ids())
def test_the_gateway_does_what_the_document_says(
    schemathesis: Any, operations: dict[str, Any], served: Served, operation_id: str
) -> None:
    """F2: made-up requests get a status, a type and a schema that it names."""
    operation = operations[operation_id]
    checks = [getattr(schemathesis.checks, name) for name in CHECKS]

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def ask(case: Any) -> None:
        if "job" in (case.path_parameters or {}):
            case.path_parameters["job"] = "flights"
        if "state" in (case.path_parameters or {}):
            case.path_parameters["state"] = "aircraft"
        # A batch would be waited for, and what is to be quick may be late.
        for name in ("min_batch_id", "min_generation", "deadline"):
            (case.query or {}).pop(name, None)
        case.call_and_validate(base_url=served.gateway.url, checks=checks)

    ask()
