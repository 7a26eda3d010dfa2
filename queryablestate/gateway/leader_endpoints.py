"""
`LeaderEndpoints`: who leads, over HTTP.

What the name service tells the gateway is what the gateway's own keys may see.  Where
it asks for none, everybody may look.  Where it asks for keys, no caller is told of
leaders until the operator says who may be (`GatewayConfig.leaders`): the gateway does
not lend its rights.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from starlette.responses import Response

from nameservice import AuthenticationError, NameServiceError
from queryablestate.gateway.boundary import ENDS_WITH_CLIENT, mark
from queryablestate.gateway.leader_watching import Leaders, component_document
from queryablestate.gateway.problems import GatewayError, Problem, problem_of
from queryablestate.gateway.questions import answer
from queryablestate.gateway.requests import bearer_token, parameters_of, path_part


if TYPE_CHECKING:
    from starlette.requests import Request

    from haservices import HAConfig
    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["LeaderEndpoints", "who_sees_leaders"]

_CREDENTIALS: Final = (
    "curve_secret_key_file",
    "zookeeper_auth_file",
    "zookeeper_tls_cert_file",
)


def who_sees_leaders(config: GatewayConfig, service: HAConfig) -> str:
    """Return who is told of leaders, one of `LEADERS`."""
    if config.leaders is not None:
        return config.leaders
    has_credentials = any(getattr(service, name) is not None for name in _CREDENTIALS)
    return "off" if has_credentials else "open"


@final
class LeaderEndpoints:
    """
    Answers about leaders.

    Args:
        leaders: Who leads.
        callers: Who asks.
        config: Limits.
        who: Who is told, one of `LEADERS`.
    """

    def __init__(
        self, leaders: Leaders, callers: Callers, config: GatewayConfig, who: str
    ) -> None:
        self.leaders = leaders
        self._callers = callers
        self._config = config
        self._who = who

    async def all(self, request: Request) -> Response:
        """Answer ``GET /v1/leaders``."""
        await self._begin(request)
        found = await self.leaders.all()
        return answer(request, {"leaders": [component_document(one) for one in found]})

    async def one(self, request: Request) -> Response:
        """Answer ``GET /v1/leaders/{component}``."""
        await self._begin(request)
        component_id = path_part(request.path_params["component"])
        found = await self.leaders.find(component_id)
        return answer(request, component_document(found))

    async def check(self, request: Request) -> bytes | None:
        """
        Return the name of a caller that may be told who leads; None if all may.

        Raises:
            GatewayError: If none may.
            NameServiceError: If the proxy does not take the caller, or cannot say.
        """
        token = bearer_token(request.scope["headers"])
        match self._who:
            case "open":
                return None
            case "callers":
                ends_with_client = request.scope[ENDS_WITH_CLIENT]
                async with self._callers.using(token, ends_with_client) as caller:
                    await caller.check(self._config.deadline_seconds)
                    return caller.name
            case _:
                raise GatewayError(
                    "not-allowed",
                    "this gateway tells of no leaders: the name service gives them to "
                    "those who have keys; its operator decides with --leaders",
                )

    async def refusal(self, request: Request) -> Problem:
        """
        Wait until the caller may be told no more, and return why.

        The proxy is asked with each heartbeat of a watch.  While it cannot say, the
        caller goes on: it may be the proxy's own leadership that is watched.
        """
        while True:
            await asyncio.sleep(self._config.heartbeat_seconds)
            try:
                await self.check(request)
            except AuthenticationError as error:
                found = problem_of(error)
                assert found is not None
                return found
            except (GatewayError, NameServiceError):
                pass

    async def _begin(self, request: Request) -> None:
        mark(request.scope, "leaders")
        parameters_of(request.scope["query_string"], ())
        await self.check(request)
