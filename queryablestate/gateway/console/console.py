"""
`Console`: every page of the console, and what answers it.

Theory of operation.  The console has no rights and no data of its own.  A page is
rendered from what the caller who is signed in would be told over ``/v1``, by the same
functions; the caller is known by a cookie (`queryablestate.gateway.console.signing`).
Pages work without JavaScript; with it, those that show what changes are asked for
again, and the page of a key watches it.  What goes wrong is a page with the status of
the problem document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from queryablestate.gateway.boundary import mark
from queryablestate.gateway.console.cluster_pages import ClusterPages
from queryablestate.gateway.console.pages import Pages
from queryablestate.gateway.console.signing import (
    SignedIn,
    check_same_site,
    cookie_of,
    local_path,
    no_cookie,
)
from queryablestate.gateway.console.state_pages import StatePages
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.requests import parameters_of


if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from haservices import HAServices
    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.gateway.leader_endpoints import LeaderEndpoints
    from queryablestate.gateway.problems import Problem
    from queryablestate.gateway.watch_endpoints import WatchEndpoints


__all__ = ["CONSOLE", "Console"]

CONSOLE: Final = "/console"
"""What the paths of all pages begin with."""

_FORM_SIZE_BYTES_MAX: Final = 8 * 1024


@final
class Console:
    """
    The console as an ASGI application.  Belongs to one event loop.

    Args:
        services: The name service; stays its owner's.
        callers: Who asks.
        leaders: Who leads.
        watches: What changes.
        config: Limits.
    """

    def __init__(
        self,
        services: HAServices,
        callers: Callers,
        leaders: LeaderEndpoints,
        watches: WatchEndpoints,
        config: GatewayConfig,
    ) -> None:
        self._callers = callers
        self._config = config
        self._is_secure = config.uses_https or (config.advertised_url or "").startswith(
            "https://"
        )
        self._pages = pages = Pages()
        self._cluster = ClusterPages(services, callers, leaders, config, pages)
        states = StatePages(callers, config, pages)
        state = f"{CONSOLE}/jobs/{{job:part}}/states/{{state:part}}"
        key = f"{state}/keys/{{key:part}}"
        routes = [
            _get(f"{CONSOLE}/", states.overview),
            _get(state, states.state),
            _get(f"{state}/find", states.find),
            _get(f"{state}/rows", states.rows),
            _get(f"{state}/chart", states.chart),
            _get(key, states.key),
            _get(f"{key}/watch", watches.key),
            _get(f"{CONSOLE}/leaders", self._cluster.leaders),
            _get(f"{CONSOLE}/leaders/{{component:part}}/watch", watches.leader),
            _get(f"{CONSOLE}/nodes", self._cluster.nodes),
            Route(f"{CONSOLE}/sign-in", self._sign_in_or_form, methods=["GET", "POST"]),
            Route(f"{CONSOLE}/sign-out", self._sign_out, methods=["POST"]),
            _get(f"{CONSOLE}/static/{{name:part}}", self._static),
            _get(CONSOLE, self._home),
        ]
        self._routes = SignedIn(Router(routes, redirect_slashes=False))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._routes(scope, receive, send)

    async def close(self) -> None:
        """Release everything."""
        await self._cluster.close()

    def problem_page(
        self, scope: Scope, problem: Problem
    ) -> tuple[bytes, Mapping[str, str]] | None:
        """Return a page that says what went wrong, if *scope* is of ours."""
        path = scope.get("path", "")
        if path != CONSOLE and not path.startswith(f"{CONSOLE}/"):
            return None
        return self._pages.problem_page(scope, problem)

    async def _home(self, request: Request) -> Response:
        return RedirectResponse(f"{CONSOLE}/", status_code=302)

    async def _static(self, request: Request) -> Response:
        mark(request.scope, "console")
        version = request.query_params.get("v", "")
        found = self._pages.static(request.path_params["name"], version)
        if found is None:
            raise GatewayError("unknown-path", "there is no such file")
        return found

    async def _sign_in_or_form(self, request: Request) -> Response:
        mark(request.scope, "console")
        if request.method == "POST":
            return await self._sign_in(request)
        given = parameters_of(request.scope["query_string"], ("target",))
        target = local_path(given.get("target", ""))
        return self._pages.page(request, "sign-in.html", target=target)

    async def _sign_in(self, request: Request) -> Response:
        """Keep the token if the proxy takes it, and go on to the page."""
        check_same_site(request)
        given = await _form(request, ("token", "target"))
        token = given.get("token", "").strip()
        try:
            cookie = cookie_of(token, is_secure=self._is_secure)
        except GatewayError:
            raise GatewayError(
                "not-authenticated",
                "a token is 1 to 1,024 printable ASCII characters",
            ) from None
        async with self._callers.using(token) as caller:
            await caller.check(self._config.deadline_seconds)
        return _go_on(local_path(given.get("target", "")), cookie)

    async def _sign_out(self, request: Request) -> Response:
        mark(request.scope, "console")
        check_same_site(request)
        return _go_on(f"{CONSOLE}/sign-in", no_cookie(is_secure=self._is_secure))


async def _form(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    """Return the fields of the form that was sent; what is wrong is not repeated."""
    body = await request.body()
    try:
        pairs = parse_qsl(
            body.decode("ascii") if len(body) <= _FORM_SIZE_BYTES_MAX else "?",
            keep_blank_values=True,
            errors="strict",
            max_num_fields=len(names),
            strict_parsing=True,
        )
    except (UnicodeDecodeError, ValueError):
        pairs = []
    found = dict(pairs)
    if len(found) != len(pairs) or not found or not set(names).issuperset(found):
        raise GatewayError("bad-request", "this is not what the form on the page sends")
    return found


def _go_on(path: str, cookie: str) -> Response:
    return RedirectResponse(
        path,
        status_code=303,
        headers={"set-cookie": cookie, "cache-control": "no-store"},
    )


def _get(path: str, endpoint: Any) -> Route:
    return Route(path, endpoint, methods=["GET"])
