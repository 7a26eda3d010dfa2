"""`RowEndpoints`: rows in the order of their keys, a page or a whole state."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypedDict, final

from starlette.responses import Response

from nameservice import LocalProtocolError
from queryablestate.client.results import StateInformation, StatePage
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.questions import AsOf, StateQuestion, answer, asking
from queryablestate.gateway.representations import (
    FORMATS,
    check_arrow,
    chosen_format,
    json_bytes,
    row_documents,
    row_writer,
)
from queryablestate.gateway.requests import listed, path_part, whole_number
from queryablestate.gateway.streaming import HeldResponse
from queryablestate.gateway.tags import (
    entity_tag,
    matches,
    page_token,
    parse_page_token,
)
from queryablestate.schema.schema import StateKind


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from starlette.requests import Request

    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["RowEndpoints"]

_PAGE_ROW_COUNT: Final = 100
_PAGE_ROW_COUNT_MAX: Final = 1_000
_PARAMETERS: Final = frozenset(
    {"prefix", "start", "stop", "limit", "page_token", "format"}
)


@final
class RowEndpoints:
    """
    Answers with rows.

    Args:
        callers: Who asks.
        config: Limits.
    """

    def __init__(self, callers: Callers, config: GatewayConfig) -> None:
        self._callers = callers
        self._config = config

    async def rows(self, request: Request) -> Response:
        """Answer ``GET …/rows``."""
        async with asking(
            request, self._callers, self._config, "rows", _PARAMETERS, is_large=True
        ) as question:
            return await self._answer(request, question, None)

    async def entries(self, request: Request) -> Response:
        """Answer ``GET …/keys/{key}/entries``."""
        text = path_part(request.path_params["key"])
        async with asking(
            request,
            self._callers,
            self._config,
            "rows",
            _PARAMETERS - {"prefix"},
            is_large=True,
        ) as question:
            return await self._answer(request, question, text)

    async def _answer(
        self, request: Request, question: StateQuestion, key_text: str | None
    ) -> Response:
        parameters = question.parameters
        name = chosen_format(
            listed(request.scope["headers"], b"accept"), parameters.get("format")
        )
        if name == "arrow":
            await asyncio.get_running_loop().run_in_executor(None, check_arrow)
        asked = _Asked(question, key_text)
        # A page is made whole, and has a tag; without a limit, and but for JSON, it is
        # all rows, one page after the other.
        if name == "json" or "limit" in parameters:
            limit = whole_number(
                parameters,
                "limit",
                _PAGE_ROW_COUNT,
                least=1,
                most=_PAGE_ROW_COUNT_MAX,
            )
            assert limit is not None
            known, page = await question.ask(lambda known: asked.page(known, limit))
            return _page(request, question, known, page, name, asked)
        known, page = await question.ask(
            lambda known: asked.page(known, _PAGE_ROW_COUNT_MAX)
        )
        return self._stream(question, known, page, name, asked)

    def _stream(
        self,
        question: StateQuestion,
        known: StateInformation,
        first: StatePage,
        name: str,
        asked: _Asked,
    ) -> Response:
        """Return all rows, the first page of which is there."""
        as_of = _as_of(known, first)
        writer = row_writer(name, known.registered_schema, _metadata(question, as_of))

        async def pieces() -> AsyncGenerator[bytes, None]:
            page = first
            yield writer.begin() + writer.rows(page.rows)
            while page.next_after is not None:
                async with asyncio.timeout(2 * question.deadline_seconds):
                    page = await asked.page(
                        known, _PAGE_ROW_COUNT_MAX, after=page.next_after
                    )
                if page.generation not in {None, known.generation}:
                    # What was sent is of another state than what is to come: the
                    # connection breaks, and no caller takes it for a whole.
                    raise GatewayError("unavailable", "another state took its place")
                yield writer.rows(page.rows)
            yield writer.end()

        stack = contextlib.AsyncExitStack()
        stack.enter_context(question.held.pop_all())
        headers = as_of.headers() | {"cache-control": "no-store"}
        return HeldResponse(pieces(), stack, media_type=FORMATS[name], headers=headers)


class _Bounds(TypedDict, total=False):
    key: Any
    prefix: Any


@final
class _Asked:
    """What rows of which state are wanted."""

    def __init__(self, question: StateQuestion, key_text: str | None) -> None:
        self._question = question
        self._key_text = key_text
        self._binding = (
            *question.state,
            key_text,
            *(
                question.parameters.get(name)
                for name in ("prefix", "start", "stop", "json_key")
            ),
        )
        token = question.parameters.get("page_token")
        self._after = b"" if token is None else parse_page_token(token, self._binding)

    def token(self, page: StatePage) -> str | None:
        """Return the token of the page after *page*, or None if there is none."""
        if page.next_after is None:
            return None
        return page_token(page.next_after, self._binding)

    async def page(
        self, known: StateInformation, limit: int, *, after: bytes | None = None
    ) -> StatePage:
        """Return a page of rows."""
        question = self._question
        schema = known.registered_schema
        if self._key_text is not None:
            if schema.kind is not StateKind.MAP:
                # As the client says it: what is known may be out of date.
                raise LocalProtocolError(
                    f"{question.job_id}/{question.state_name} is a {known.kind} state: "
                    "only maps have entries"
                )
            bounds = _Bounds(key=question.key(schema.key, self._key_text))
            fields = schema.map_key
        else:
            bounds = _Bounds(prefix=question.prefix_parameter(schema.key))
            fields = schema.key
        return await question.client.page(
            *question.state,
            start=question.key_parameter(fields, "start"),
            stop=question.key_parameter(fields, "stop"),
            limit=limit,
            after=self._after if after is None else after,
            **bounds,
            **question.least,
        )


def _page(  # noqa: PLR0917 (only called from here)
    request: Request,
    question: StateQuestion,
    known: StateInformation,
    page: StatePage,
    name: str,
    asked: _Asked,
) -> Response:
    """Return one page."""
    as_of = _as_of(known, page)
    token = asked.token(page)
    schema = known.registered_schema
    headers = {}
    if token is not None:
        url = str(request.url.remove_query_params("page_token").query)
        query = f"{url}&page_token={token}" if url else f"page_token={token}"
        headers["link"] = f'<?{query}>; rel="next"'
        headers["lodestar-next-page-token"] = token
    if name == "json":
        rows = row_documents(schema, page.rows)
        document = {
            "job": question.job_id,
            "state": question.state_name,
            "rows": rows,
            "next_page_token": token,
        }
        tagged = json_bytes([rows, token])
        return answer(request, document, as_of, tagged=tagged, headers=headers)
    writer = row_writer(name, schema, _metadata(question, as_of))
    body = writer.begin() + writer.rows(page.rows) + writer.end()
    documents = json_bytes([row_documents(schema, page.rows), token])
    tag = entity_tag(as_of.generation, name.encode(), documents)
    headers |= as_of.headers() | {
        "etag": tag,
        "cache-control": "private, no-cache",
        "vary": "Accept, Authorization",
    }
    if matches(listed(request.scope["headers"], b"if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=FORMATS[name], headers=headers)


def _as_of(known: StateInformation, page: StatePage) -> AsOf:
    if page.generation is None:
        return AsOf(known.generation, known.batch_id, known.age_seconds)
    return AsOf(page.generation, page.batch_id, page.age_seconds)


def _metadata(question: StateQuestion, as_of: AsOf) -> Mapping[str, str]:
    """Return what an Arrow stream says of itself, as `batches` says it."""
    found = {"lodestar.job": question.job_id, "lodestar.state": question.state_name}
    if as_of.generation is not None:
        found["lodestar.generation"] = str(as_of.generation)
    if as_of.batch_id is not None:
        found["lodestar.batch_id"] = str(as_of.batch_id)
    return found
