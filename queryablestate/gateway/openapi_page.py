"""The OpenAPI document as one web page, without a script and a foreign host; pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final, final

from attrs import frozen


__all__ = ["Page", "openapi_page"]

_STYLE: Final = """
:root{color-scheme:light dark;--edge:#8886}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
h2{font-size:1.05rem;margin:2.5rem 0 .25rem;overflow-wrap:anywhere}
code{font-family:ui-monospace,monospace}
table{border-collapse:collapse;width:100%}
td,th{border-top:1px solid var(--edge);padding:.25rem .75rem .25rem 0;
text-align:left;vertical-align:top}
td:first-child{white-space:nowrap}
@media (max-width:30rem){td{display:inline-block;border:0}
tr{display:block;border-top:1px solid var(--edge);padding:.35rem 0}
td:last-child{display:block}}
"""


@final
@frozen
class Page:
    """
    A web page.

    Attributes:
        text: The page.
        security_policy: Its Content-Security-Policy: its own style, and nothing else.
    """

    text: str
    security_policy: str


def openapi_page(document: Mapping[str, Any]) -> Page:
    """Return the page that shows *document*."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{escape(document['info']['title'])} over HTTP</title>",
        f"<style>{_STYLE}</style></head><body><main>",
        f"<h1>{escape(document['info']['title'])} over HTTP</h1>",
        f"<p>{escape(document['info']['summary'])} Programs read ",
        "<a href='/openapi.json'>openapi.json</a>. Where the proxy lists callers, ",
        "send <code>Authorization: Bearer TOKEN</code>.</p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(document, method, path, operation)
    parts.append("</main></body></html>\n")
    hashed = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return Page("".join(parts), policy)


def _operation(
    document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]
) -> list[str]:
    name = escape(operation["operationId"], quote=True)
    parts = [
        f"<h2 id='{name}'><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{escape(operation['summary'])}. ",
        f"{escape(operation.get('description', ''))}</p><table>",
    ]
    for reference in operation["parameters"]:
        key = reference["$ref"].rpartition("/")[2]
        parameter = document["components"]["parameters"][key]
        parts.append(
            f"<tr><td><code>{escape(parameter['name'])}</code>"
            f"<td>{escape(parameter['in'])}<td>{escape(parameter['description'])}"
        )
    for status, response in operation["responses"].items():
        key = response.get("$ref", "").rpartition("/")[2]
        found = document["components"]["responses"].get(key, response)
        types = ", ".join(found.get("content", {}))
        parts.append(
            f"<tr><td>{escape(status)}<td>{escape(types)}"
            f"<td>{escape(found['description'])}"
        )
    parts.append("</table>")
    return parts
