"""`StateEndpoints`: what there is, keys and counts, over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, final

from starlette.responses import Response

from nameservice import LocalProtocolError
from queryablestate.client.documents import (
    FoundKey,
    found_document,
    key_to_json,
    state_document,
    value_to_json,
)
from queryablestate.client.results import StateEntry, StateInformation
from queryablestate.errors import (
    DeadlineExceededError,
    QueryableStateError,
    StateUnavailableError,
)
from queryablestate.gateway.boundary import ENDS_WITH_CLIENT, mark
from queryablestate.gateway.problems import GatewayError, Problem, problem_of
from queryablestate.gateway.questions import AsOf, StateQuestion, answer, asking
from queryablestate.gateway.representations import json_bytes
from queryablestate.gateway.requests import (
    bearer_token,
    check_names,
    parameters_of,
    path_part,
    seconds,
    whole_number,
)
from queryablestate.schema.json_values import decode_json
from queryablestate.schema.key_columns import MisfitError
from queryablestate.schema.key_text import key_of_json
from queryablestate.schema.schema import StateKind


if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from queryablestate.gateway.callers import Callers
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["StateEndpoints", "as_of_entry"]

_BATCH_MEMBERS: Final = frozenset({"keys", "partial"})
_ABSENT: Final[Any] = None
_SLICE_COUNT: Final = 250


def as_of_entry(entry: StateEntry) -> AsOf:
    """Return as of when *entry* was read."""
    return AsOf(entry.generation, entry.batch_id, entry.age_seconds, entry.cached)


@final
class StateEndpoints:
    """
    Answers about jobs, states and keys.

    Args:
        callers: Who asks.
        config: Limits.
    """

    def __init__(self, callers: Callers, config: GatewayConfig) -> None:
        self._callers = callers
        self._config = config

    # -- what there is -----------------------------------------------------------------

    async def jobs(self, request: Request) -> Response:
        """Answer ``GET /v1/jobs``."""
        mark(request.scope, "list")
        deadline_seconds = self._deadline(request)
        async with self._callers.using(
            bearer_token(request.scope["headers"]), request.scope[ENDS_WITH_CLIENT]
        ) as one:
            found = await one.client.jobs(deadline_seconds=deadline_seconds)
        return answer(request, {"jobs": [{"job": job} for job in found]})

    async def states(self, request: Request) -> Response:
        """Answer ``GET /v1/jobs/{job}/states``."""
        mark(request.scope, "list")
        deadline_seconds = self._deadline(request)
        job_id = path_part(request.path_params["job"])
        check_names(job_id)
        async with self._callers.using(
            bearer_token(request.scope["headers"]), request.scope[ENDS_WITH_CLIENT]
        ) as one:
            found = await one.client.describe_all(
                job_id, deadline_seconds=deadline_seconds
            )
        documents = [state_document(state) for state in found]
        tagged = json_bytes([_without_age(document) for document in documents])
        document = {"job": job_id, "states": documents}
        return answer(request, document, tagged=tagged)

    async def state(self, request: Request) -> Response:
        """Answer ``GET /v1/jobs/{job}/states/{state}``."""
        async with asking(request, self._callers, self._config, "describe") as question:
            found = await question.describe(is_new=True)
        document = state_document(found)
        return answer(
            request,
            document,
            AsOf(found.generation, found.batch_id, found.age_seconds),
            tagged=json_bytes(_without_age(document)),
        )

    async def count(self, request: Request) -> Response:
        """Answer ``GET …/count``: as of the batch that it names, or a later one."""
        async with asking(
            request, self._callers, self._config, "count", is_large=True
        ) as question:
            async with asyncio.timeout(2 * question.deadline_seconds):
                known = await question.describe(is_new=True)
                least = question.least
                # Nodes count at moments of their own: none of them before this batch.
                if question.min_batch_id is None and question.min_generation is None:
                    least["min_batch_id"] = known.batch_id
                    if known.batch_id is not None:
                        least["min_generation"] = known.generation
                found = await question.client.count(*question.state, **least)
        document = {
            "job": question.job_id,
            "state": question.state_name,
            "count": found,
        }
        as_of = AsOf(known.generation, known.batch_id, known.age_seconds)
        return answer(request, document, as_of, tagged=str(found).encode())

    # -- keys --------------------------------------------------------------------------

    async def key(self, request: Request) -> Response:
        """Answer ``GET …/keys/{key}``."""
        text = path_part(request.path_params["key"])
        async with asking(
            request, self._callers, self._config, "get", ("start", "stop")
        ) as question:
            start, stop = (
                whole_number(question.parameters, name, None, least=None)
                for name in ("start", "stop")
            )
            known, entry = await question.ask(
                lambda known: question.client.lookup(
                    *question.state,
                    question.key(known.registered_schema.key, text),
                    _ABSENT,
                    start=start,
                    stop=stop,
                    **question.least,
                )
            )
            key = question.key(known.registered_schema.key, text)
        return _found(request, question, known, entry, FoundKey(key, (), None, None))

    async def entry(self, request: Request) -> Response:
        """Answer ``GET …/keys/{key}/entries/{map_key}``."""
        text = path_part(request.path_params["key"])
        map_text = path_part(request.path_params["map_key"])
        async with asking(request, self._callers, self._config, "get") as question:

            async def read(known: StateInformation) -> StateEntry:
                _check_map(question, known)
                schema = known.registered_schema
                return await question.client.lookup(
                    *question.state,
                    question.key(schema.key, text),
                    _ABSENT,
                    map_key=question.key(schema.map_key, map_text),
                    **question.least,
                )

            known, entry = await question.ask(read)
            schema = known.registered_schema
            found = FoundKey(
                question.key(schema.key, text),
                (question.key(schema.map_key, map_text),),
                None,
                None,
            )
        return _found(request, question, known, entry, found)

    async def batch_get(self, request: Request) -> Response:
        """Answer ``POST …/keys:batchGet``."""
        async with asking(
            request, self._callers, self._config, "batch_get", is_large=True
        ) as question:
            trees, is_partial = await self._batch(request)

            async def read(
                known: StateInformation,
            ) -> list[tuple[Any, StateEntry | BaseException]]:
                fields = known.registered_schema.key
                keys = [key_of_json(fields, tree) for tree in trees]
                found: list[tuple[Any, StateEntry | BaseException]] = []
                size_bytes = 0
                for first in range(0, len(keys), _SLICE_COUNT):
                    part = keys[first : first + _SLICE_COUNT]
                    # What is asked in one turn of the loop travels together.
                    entries = await asyncio.gather(
                        *(
                            question.client.lookup(
                                *question.state, key, _ABSENT, **question.least
                            )
                            for key in part
                        ),
                        return_exceptions=True,
                    )
                    found += zip(part, entries, strict=True)
                    size_bytes += sum(_size_of(known, one) for one in entries)
                    if size_bytes > self._config.batch_size_bytes_max:
                        raise GatewayError(
                            "wrong-question",
                            "what these keys hold is more than "
                            f"{self._config.batch_size_bytes_max:,} bytes: ask for "
                            "fewer at once",
                        )
                return found

            known, found = await question.ask(read)
            entries = [one for _, one in found if isinstance(one, StateEntry)]
        results = [_result(known, key, one, is_partial) for key, one in found]
        oldest = min(
            entries,
            key=lambda one: (
                one.generation,
                -1 if one.batch_id is None else one.batch_id,
            ),
            default=None,
        )
        as_of = AsOf(None, None, None) if oldest is None else as_of_entry(oldest)
        document = {"job": question.job_id, "state": question.state_name}
        return answer(request, document | {"results": results}, as_of)

    async def _batch(self, request: Request) -> tuple[list[Any], bool]:
        """Return the keys of the body, as JSON, and whether it may lack some."""
        content_type = request.headers.get("content-type", "application/json")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise GatewayError("wrong-content", "the body must be application/json")
        body = await request.body()
        try:
            tree = decode_json(body.decode())
        except UnicodeDecodeError:
            raise GatewayError("bad-request", "the body is not UTF-8") from None
        except MisfitError as error:
            raise GatewayError("bad-request", f"the body: {error}") from None
        keys = tree.get("keys") if isinstance(tree, dict) else None
        is_partial = tree.get("partial", False) if isinstance(tree, dict) else False
        key_count_max = self._config.batch_key_count_max
        if (
            not isinstance(keys, list)
            or not 1 <= len(keys) <= key_count_max
            or not isinstance(is_partial, bool)
            or not _BATCH_MEMBERS.issuperset(tree)
        ):
            raise GatewayError(
                "bad-request",
                'the body must be {"keys": [KEY, …]}, with 1 to '
                f'{key_count_max:,} keys, and may have "partial": true',
            )
        return keys, is_partial

    def _deadline(self, request: Request) -> float:
        given = parameters_of(request.scope["query_string"], {"deadline"})
        return seconds(
            given,
            "deadline",
            self._config.deadline_seconds,
            most=self._config.deadline_seconds_max,
        )


def _found(
    request: Request,
    question: StateQuestion,
    known: StateInformation,
    entry: StateEntry,
    asked: FoundKey,
) -> Response:
    """Return what was found under one key, or that there is nothing."""
    as_of = as_of_entry(entry)
    schema = known.registered_schema
    if entry.value is _ABSENT:
        key = key_to_json(schema.key, asked.key)
        raise GatewayError(
            "unknown-key",
            f"{question.job_id}/{question.state_name} holds nothing under "
            f"{json.dumps(key, ensure_ascii=False)}",
            members=as_of.members(),
            headers=as_of.headers(),
        )
    document = found_document(schema, asked._replace(value=entry.value))
    return answer(request, document, as_of, tagged=json_bytes(document))


def _result(
    known: StateInformation,
    key: Any,
    found: StateEntry | BaseException,
    is_partial: bool,  # noqa: FBT001 (only called from here)
) -> dict[str, Any]:
    """Return what was found under one of several keys."""
    schema = known.registered_schema
    if isinstance(found, StateEntry):
        if found.value is not _ABSENT:
            document = found_document(schema, FoundKey(key, (), found.value, found))
            return {"exists": True, **document}
        members = as_of_entry(found).members()
        return {"exists": False, "key": key_to_json(schema.key, key), **members}
    is_unavailable = isinstance(found, StateUnavailableError | DeadlineExceededError)
    if not (is_partial and is_unavailable):
        raise found
    assert isinstance(found, QueryableStateError)
    problem: Problem | None = problem_of(found)
    assert problem is not None
    return {"key": key_to_json(schema.key, key), "problem": problem.document()}


def _size_of(known: StateInformation, found: StateEntry | BaseException) -> int:
    """Return how long a value is as JSON; one that comes with others is short."""
    if not isinstance(found, StateEntry) or found.value is _ABSENT:
        return 0
    schema = known.registered_schema
    return len(json_bytes(value_to_json(schema, found.value, is_whole=True)))


def _check_map(question: StateQuestion, known: StateInformation) -> None:
    if known.registered_schema.kind is not StateKind.MAP:
        # As the client says it: what is known may be out of date, and is asked anew.
        raise LocalProtocolError(
            f"{question.job_id}/{question.state_name} is a {known.kind} state: only "
            "maps have entries"
        )


def _without_age(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in document.items() if name != "age_seconds"}
