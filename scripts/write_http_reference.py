"""
Write docs/reference/http-api.md: the OpenAPI document of the gateway, for people.

    python -m scripts.write_http_reference

A test holds the page to what this writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queryablestate.gateway.operations import PARAMETERS, PATHS, Operation
from queryablestate.gateway.problems import PROBLEMS


PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "http-api.md"

_HEAD: Final = (
    "# The API over HTTP\n\n"
    "What `lodestar gateway` answers; [ask over HTTP](../howto/ask-over-http.md) shows "
    "how to use it. This page is\nwritten by `python -m scripts.write_http_reference` "
    "from the OpenAPI document that each gateway serves at\n`/openapi.json`, and shows "
    "at `/docs`.\n\n"
    "Values are written as `lodestar get --json` writes them "
    "([types](state-types.md)). A whole number of 64 bits may\nbe more than "
    "JavaScript can hold. Where the proxy lists callers, each request has\n"
    "`Authorization: Bearer TOKEN`.\n\n"
    "Answers with state have the headers `Lodestar-Generation`, `Lodestar-Batch-Id`, "
    "`Lodestar-Age-Seconds`,\n`Lodestar-Cached` and `ETag`, and the same as members of "
    "their JSON. A page says the oldest batch that one of its\nrows was read after; so "
    "does `keys:batchGet`. Rows without a limit say that of their first page.\n\n"
)


def http_reference() -> str:
    """Return the page."""
    parts = [_HEAD, "## Paths\n\n"]
    parts += [_section(operation) for operation in PATHS]
    parts.append("## Problems\n\n")
    parts.append(
        "The type of a problem is `urn:lodestar:problem:` and its name. `detail` says "
        "what to do; `unavailable` has\n`key_groups`, and whatever is worth asking "
        "again has `retry_after_seconds`.\n\n| status | name | title |\n|---|---|---|\n"
    )
    parts += [
        f"| {status} | `{name}` | {title} |\n"
        for name, (status, title) in sorted(
            PROBLEMS.items(), key=lambda item: (item[1][0], item[0])
        )
    ]
    return "".join(parts)


def _section(operation: Operation) -> str:
    lines = [
        f"### `{operation.method.upper()} {operation.path}`\n\n",
        f"{operation.summary}.",
        f" {operation.text}" if operation.text else "",
        f" Types: {', '.join(f'`{one}`' for one in operation.types)}.\n\n",
    ]
    if operation.parameters:
        lines.append("| parameter | in | |\n|---|---|---|\n")
    for name in operation.parameters:
        one = PARAMETERS[name]
        lines.append(f"| `{one.name}` | {one.place} | {one.text} |\n")
    lines.append("\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(http_reference(), encoding="utf-8")
