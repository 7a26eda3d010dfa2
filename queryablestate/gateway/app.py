"""`GatewayApp`: every path of the gateway, and what answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from queryablestate.gateway.boundary import Boundary
from queryablestate.gateway.callers import Callers
from queryablestate.gateway.console.console import CONSOLE, Console
from queryablestate.gateway.leader_endpoints import LeaderEndpoints, who_sees_leaders
from queryablestate.gateway.leader_watching import Leaders
from queryablestate.gateway.openapi import openapi_document
from queryablestate.gateway.openapi_page import openapi_page
from queryablestate.gateway.questions import answer
from queryablestate.gateway.row_endpoints import RowEndpoints
from queryablestate.gateway.state_endpoints import StateEndpoints
from queryablestate.gateway.watch_endpoints import WatchEndpoints


if TYPE_CHECKING:
    from starlette.requests import Request

    from haservices import HAServices
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["GatewayApp"]


class _Part(Convertor[str]):
    """A part of a path, still encoded; a key may be empty."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("part", _Part())


@final
class GatewayApp:
    """
    The gateway without its server.  Belongs to one event loop.

    Args:
        services: The name service; stays its owner's.
        config: Limits.

    Attributes:
        boundary: The ASGI application.
        callers: Who is connected.
        leaders: Who leads.
        watches: What is watched.
    """

    def __init__(self, services: HAServices, config: GatewayConfig) -> None:
        self.callers = Callers(services, config)
        self.leaders = Leaders(services, heartbeat_seconds=config.heartbeat_seconds)
        who = who_sees_leaders(config, services.config)
        leaders = LeaderEndpoints(self.leaders, self.callers, config, who)
        self.watches = WatchEndpoints(self.callers, leaders, config)
        states = StateEndpoints(self.callers, config)
        rows = RowEndpoints(self.callers, config)
        self._console = (
            Console(services, self.callers, leaders, self.watches, config)
            if config.has_console
            else None
        )
        self._document = openapi_document()
        self._page = openapi_page(self._document)

        job = "/v1/jobs/{job:part}"
        state = f"{job}/states/{{state:part}}"
        key = f"{state}/keys/{{key:part}}"
        leader = "/v1/leaders/{component:part}"
        routes = [
            _get(key, states.key),
            _get(f"{key}/watch", self.watches.key),
            _get(f"{key}/entries", rows.entries),
            _get(f"{key}/entries/{{map_key:part}}", states.entry),
            Route(f"{state}/keys:batchGet", states.batch_get, methods=["POST"]),
            _get(f"{state}/rows", rows.rows),
            _get(f"{state}/count", states.count),
            _get("/v1/jobs", states.jobs),
            _get(f"{job}/states", states.states),
            _get(state, states.state),
            _get("/v1/leaders", leaders.all),
            _get(leader, leaders.one),
            _get(f"{leader}/watch", self.watches.leader),
            _get("/openapi.json", self._openapi),
            _get("/docs", self._docs),
            _get("/", self._root),
        ]
        problem_page = None
        if self._console is not None:
            routes.append(Route(f"{CONSOLE}{{rest:path}}", self._console))
            problem_page = self._console.problem_page
        self.boundary = Boundary(
            Router(routes, redirect_slashes=False), config, problem_page
        )

    def end(self) -> None:
        """Answer nothing more, and end what stays."""
        self.boundary.is_ending = True
        self.watches.is_ending.set()

    async def close(self) -> None:
        """Release everything."""
        if self._console is not None:
            await self._console.close()
        self.leaders.end()
        await self.callers.close()

    async def _openapi(self, request: Request) -> Response:
        return answer(request, self._document)

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(
            self._page.text,
            headers={
                "content-security-policy": self._page.security_policy,
                "cache-control": "no-cache",
            },
        )

    async def _root(self, request: Request) -> Response:
        home = "/docs" if self._console is None else f"{CONSOLE}/"
        return RedirectResponse(home, status_code=302)


def _get(path: str, endpoint: Any) -> Route:
    return Route(path, endpoint, methods=["GET"])
