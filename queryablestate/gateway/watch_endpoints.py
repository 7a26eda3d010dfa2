"""`WatchEndpoints`: keys and leaders as they change, as server-sent events (F3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final, final

from nameservice import check_component_id
from queryablestate.gateway.boundary import mark
from queryablestate.gateway.events import BEGINNING, HEARTBEAT, event_bytes
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.questions import StateQuestion
from queryablestate.gateway.requests import (
    bearer_token,
    listed,
    parameters_of,
    path_part,
    preferred,
)
from queryablestate.gateway.streaming import HeldResponse
from queryablestate.gateway.tags import parse_event_id, parse_leader_event_id


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.gateway.leader_endpoints import LeaderEndpoints


__all__ = ["WatchEndpoints"]

_EVENT_STREAM: Final = "text/event-stream"
_PARAMETERS: Final = frozenset({"json_key", "last_event_id"})


@final
class WatchEndpoints:
    """
    Answers that stay.

    Args:
        callers: Who watches.
        leaders: Who leads.
        config: Limits.

    Attributes:
        watch_count: Watches that there are now.
        is_ending: Set when the gateway ends; every watch ends with it.
    """

    def __init__(
        self, callers: Callers, leaders: LeaderEndpoints, config: GatewayConfig
    ) -> None:
        self._callers = callers
        self._leaders = leaders
        self._config = config
        self.watch_count = 0
        # By the caller's name; of all who watch leaders where these are for everybody.
        self._counts: Counter[bytes | None] = Counter()
        self.is_ending = asyncio.Event()

    async def key(self, request: Request) -> Response:
        """Answer ``GET …/keys/{key}/watch``."""
        text = path_part(request.path_params["key"])
        given = self._begin(request, "watch_key")
        last = parse_event_id(_last_event_id(request, given))
        async with contextlib.AsyncExitStack() as stack:
            caller = await stack.enter_async_context(
                self._callers.using(bearer_token(request.scope["headers"]))
            )
            question = StateQuestion(
                request,
                caller,
                self._config,
                {name: value for name, value in given.items() if name == "json_key"},
            )
            known = await question.describe(is_new=True)
            key = question.key(known.registered_schema.key, text)
            stack.enter_context(self._counted(caller.name))
            watch = stack.enter_context(caller.watches.watching(known, key))
            return self._stay(stack.pop_all(), watch.events(last))

    async def leader(self, request: Request) -> Response:
        """Answer ``GET /v1/leaders/{component}/watch``."""
        component_id = path_part(request.path_params["component"])
        check_component_id(component_id)
        given = self._begin(request, "watch_leader")
        last = parse_leader_event_id(_last_event_id(request, given))
        caller_name = await self._leaders.check(request)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._counted(caller_name))
            events = self._leaders.leaders.events(component_id, last)
            return self._stay(stack.pop_all(), self._while_allowed(request, events))

    async def _while_allowed(
        self, request: Request, events: AsyncGenerator[bytes | None, None]
    ) -> AsyncGenerator[bytes | None, None]:
        """Yield *events* for as long as the caller may be told of leaders."""
        refusal = asyncio.ensure_future(self._leaders.refusal(request))
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if refusal.done():
                        yield event_bytes("problem", refusal.result().document())
                        return
                    yield event
        finally:
            refusal.cancel()

    def _begin(self, request: Request, kind: str) -> dict[str, str]:
        """Check what all watches have in common, and return the parameters."""
        mark(request.scope, kind, is_watch=True)
        accept = listed(request.scope["headers"], b"accept")
        if preferred(accept, (_EVENT_STREAM,)) is None:
            raise GatewayError("not-acceptable", f"a watch is {_EVENT_STREAM}")
        return dict(parameters_of(request.scope["query_string"], _PARAMETERS))

    def _stay(
        self,
        stack: contextlib.AsyncExitStack,
        events: AsyncGenerator[bytes | None, None],
    ) -> Response:
        """Return the answer that goes on until the client leaves."""

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with contextlib.aclosing(events):
                yield BEGINNING
                async for event in events:
                    yield HEARTBEAT if event is None else event

        return HeldResponse(
            pieces(),
            stack,
            media_type=_EVENT_STREAM,
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
            ending=self.is_ending,
        )

    @contextlib.contextmanager
    def _counted(self, caller_name: bytes | None) -> Iterator[None]:
        config = self._config
        if self.watch_count >= config.watch_count_max:
            raise GatewayError(
                "busy",
                f"there are {config.watch_count_max:,} watches",
                retry_after_seconds=1.0,
            )
        count = self._counts[caller_name]
        if count >= config.watch_count_per_caller_max:
            whose = "those without a name have" if caller_name is None else "it has"
            raise GatewayError(
                "too-many-watches",
                f"this caller may have no more watches, {whose} {count:,}: end some",
                retry_after_seconds=1.0,
            )
        self.watch_count += 1
        self._counts[caller_name] += 1
        try:
            yield
        finally:
            self.watch_count -= 1
            self._counts[caller_name] -= 1
            if not self._counts[caller_name]:
                del self._counts[caller_name]


def _last_event_id(request: Request, given: dict[str, str]) -> str | None:
    """Return what was seen last: browsers say it in a header, when they come back."""
    return request.headers.get("last-event-id") or given.get("last_event_id")
