"""`Pages`: web pages from templates, with the headers that keep them safe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined
from starlette.responses import Response

from queryablestate.gateway.console.advice import advice_of
from queryablestate.gateway.console.signing import local_path
from queryablestate.gateway.tags import digest


if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from queryablestate.gateway.problems import Problem


__all__ = ["POLICY", "Pages", "cell_text", "part"]

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing of another host, and nothing that stands in a page itself."""

_HERE: Final = "queryablestate.gateway.console"
_STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_DAY_SECONDS: Final = 86_400.0
_HOUR_SECONDS: Final = 3_600.0
_MINUTE_SECONDS: Final = 60.0


def part(text: str) -> str:
    """Return *text* as a part of a path."""
    return quote(text, safe="", errors="replace")


def cell_text(tree: Any) -> str:
    """Return what is JSON as a cell of a table: text as it is, and else as JSON."""
    if isinstance(tree, str):
        return tree
    return json.dumps(tree, ensure_ascii=False)


def duration_text(seconds: float | None) -> str:
    """Return a duration for people, to two digits or so."""
    if seconds is None:
        return "not known"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_SECONDS:
        return f"{seconds / _MINUTE_SECONDS:.0f} min"
    if seconds < _DAY_SECONDS:
        return f"{seconds / _HOUR_SECONDS:.1f} h"
    return f"{seconds / _DAY_SECONDS:.1f} days"


def moment_text(moment: datetime) -> str:
    """Return a moment for people, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@final
class Pages:
    """Renders pages; thread-safe once it is made."""

    def __init__(self) -> None:
        here = files(_HERE)
        templates = {
            one.name: one.read_text(encoding="utf-8")
            for one in (here / "templates").iterdir()
            if one.name.endswith(".html")
        }
        self._static = {name: (here / "static" / name).read_bytes() for name in _STATIC}
        self._digests = {name: digest(body) for name, body in self._static.items()}
        environment = Environment(
            loader=DictLoader(templates),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {
            "part": part,
            "cell": cell_text,
            "duration": duration_text,
            "moment": moment_text,
        }
        environment.globals |= {
            "static": lambda name: f"/console/static/{name}?v={self._digests[name]}"
        }
        self._environment = environment

    def static(self, name: str, version: str) -> Response | None:
        """
        Return a file that pages need, or None if there is no such one.

        Args:
            name: Of the file.
            version: The digest that the page has named.  Browsers keep what has it; a
                page of a gateway of another version gets ours, which must not be kept
                under its address.
        """
        body = self._static.get(name)
        if body is None:
            return None
        is_ours = version == self._digests[name]
        kept = "public, max-age=31536000, immutable" if is_ours else "no-store"
        return Response(body, media_type=_STATIC[name], headers={"cache-control": kept})

    def page(
        self,
        request: Request,
        name: str,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        """
        Return the template *name* as a page.

        Args:
            request: What it answers.
            name: Of the template.
            status: Of the answer.
            headers: Further headers.
            values: What the template shows.
        """
        text = self._environment.get_template(name).render(
            **_of_scope(request.scope), **values
        )
        return Response(
            # Half of a pair of surrogates, which Spark admits, is no UTF-8.
            text.encode(errors="replace"),
            status_code=status,
            media_type="text/html",
            headers={**_HEADERS, **(headers or {})},
        )

    def problem_page(
        self, scope: Scope, problem: Problem
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return a page that says what went wrong and what to do; and its headers."""
        text = self._environment.get_template("problem.html").render(
            **_of_scope(scope),
            problem=problem.document(),
            name=problem.name,
            advice=advice_of(problem.name),
            target=_target(scope),
        )
        headers = problem.all_headers() | {
            "content-type": "text/html; charset=utf-8",
            **_HEADERS,
        }
        # A browser would ask for a name and a password, which no caller has.
        headers.pop("www-authenticate", None)
        return text.encode(errors="replace"), headers


_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    # Without one of our own, a form would be sent as if it came from nowhere.
    "referrer-policy": "same-origin",
    "vary": "Cookie, Authorization",
}


def _of_scope(scope: Scope) -> dict[str, Any]:
    """Return what every template is told."""
    names = {name for name, _ in scope["headers"]}
    has_cookie = any(
        name == b"cookie" and b"lodestar-token=" in value
        for name, value in scope["headers"]
    )
    return {
        "is_signed_in": has_cookie or b"authorization" in names,
        "now": datetime.now(UTC),
        "here": scope["path"],
    }


def _target(scope: Scope) -> str:
    """Return where who signs in goes on: the page that was asked for."""
    query = scope["query_string"].decode("latin-1")
    path = scope["path"]
    asked = f"{path}?{query}" if query else path
    return local_path(asked) if scope["method"] == "GET" else local_path("")
