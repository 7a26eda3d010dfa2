"""`ClusterPages`: leaders, and nodes with their key groups, as pages."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from starlette.responses import Response

from queryablestate.connect.credentials import Credentials
from queryablestate.gateway.boundary import mark
from queryablestate.gateway.console.cluster_view import cluster_view
from queryablestate.gateway.console.leader_history import LeaderHistory, follow_leaders
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.requests import bearer_token, parameters_of
from queryablestate.operations.state_operations import StateOperations


if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from haservices import HAServices
    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.gateway.console.pages import Pages
    from queryablestate.gateway.leader_endpoints import LeaderEndpoints
    from queryablestate.operations.node_information import NodeInformation
    from queryablestate.operations.rescaling_information import RescalingInformation


__all__ = ["ClusterPages"]

_THREAD_COUNT: Final = 2
_WAITING_COUNT_MAX: Final = 16
_BUSY_SECONDS: Final = 1.0


@final
class ClusterPages:
    """
    Pages about leaders and nodes.

    Args:
        services: The name service; stays its owner's.
        callers: Who asks.
        leaders: Who leads, and who is told.
        config: Limits.
        pages: Renders them.
    """

    def __init__(
        self,
        services: HAServices,
        callers: Callers,
        leaders: LeaderEndpoints,
        config: GatewayConfig,
        pages: Pages,
    ) -> None:
        self._services = services
        self._callers = callers
        self._leaders = leaders
        self._config = config
        self._pages = pages
        self._history = LeaderHistory()
        # Operators' calls block; the threads that others need are not theirs.
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, "gateway-console")
        self._waiting_count = 0
        self._following = asyncio.ensure_future(
            follow_leaders(leaders.leaders, self._history)
        )

    async def close(self) -> None:
        """Look no more who leads, and release the threads."""
        self._following.cancel()
        await asyncio.wait((self._following,))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def leaders(self, request: Request) -> Response:
        """Answer ``GET /console/leaders``."""
        mark(request.scope, "console")
        parameters_of(request.scope["query_string"], ())
        await self._leaders.check(request)
        found = {one.component_id: one for one in await self._leaders.leaders.all()}
        names = sorted({*found, *self._history.component_ids()})
        return self._pages.page(
            request,
            "leaders.html",
            components=[
                (name, found.get(name), self._history.of(name)) for name in names
            ],
            led_count=sum(one.leader is not None for one in found.values()),
            began=self._history.began,
        )

    async def nodes(self, request: Request) -> Response:
        """Answer ``GET /console/nodes``; only operators are told."""
        mark(request.scope, "console")
        parameters_of(request.scope["query_string"], ())
        token = bearer_token(request.scope["headers"])
        async with self._callers.using(token) as caller:
            # Tokens that the proxy does not know are held back like everywhere.
            await caller.check(self._config.deadline_seconds)
            if self._waiting_count >= _WAITING_COUNT_MAX:
                raise GatewayError(
                    "busy",
                    "many operators look at the nodes now",
                    retry_after_seconds=_BUSY_SECONDS,
                )
            self._waiting_count += 1
            try:
                async with asyncio.timeout(2 * self._config.deadline_seconds):
                    (
                        nodes,
                        rescalings,
                    ) = await asyncio.get_running_loop().run_in_executor(
                        self._threads, self._ask, token
                    )
            finally:
                self._waiting_count -= 1
        view = cluster_view(nodes, rescalings)
        return self._pages.page(request, "nodes.html", cluster=view)

    def _ask(
        self, token: str | None
    ) -> tuple[Sequence[NodeInformation], Sequence[RescalingInformation]]:
        credentials = Credentials(
            token, is_anonymous=token is None, lends_service_keys=False
        )
        with StateOperations(
            self._services, credentials, deadline_seconds=self._config.deadline_seconds
        ) as operations:
            return operations.nodes(), operations.rescalings()
