"""What a request asks of a state, and the answer with what it is as of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, final

from attrs import frozen
from starlette.responses import Response

from nameservice import LocalProtocolError
from queryablestate.errors import WrongKeyTypeError
from queryablestate.gateway.boundary import ENDS_WITH_CLIENT, mark
from queryablestate.gateway.fitting import fits
from queryablestate.gateway.problems import GatewayError
from queryablestate.gateway.representations import JSON, chosen_format, json_bytes
from queryablestate.gateway.requests import (
    bearer_token,
    check_names,
    flag,
    listed,
    parameters_of,
    path_part,
    seconds,
    whole_number,
)
from queryablestate.gateway.tags import entity_tag, matches
from queryablestate.schema.key_text import parse_json_key, parse_key, parse_prefix


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from starlette.requests import Request

    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.client.results import StateInformation
    from queryablestate.gateway.callers import Caller, Callers
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.schema.schema import Field


__all__ = ["LEAST", "AsOf", "Least", "StateQuestion", "answer", "asking"]

T = TypeVar("T")

LEAST: Final = frozenset({"deadline", "min_batch_id", "min_generation"})
"""Parameters of every question for rows."""

_RETRY_SECONDS: Final = 1.0
_OF_KEYS: Final = frozenset({"json_key"})


@final
@frozen
class AsOf:
    """As of when something was read; as `StateEntry` has it."""

    generation: int | None
    batch_id: int | None
    age_seconds: float | None
    is_cached: bool = False

    def headers(self) -> dict[str, str]:
        """Return it as headers of an answer."""
        found = {"lodestar-cached": "true" if self.is_cached else "false"}
        if self.generation is not None:
            found["lodestar-generation"] = str(self.generation)
        if self.batch_id is not None:
            found["lodestar-batch-id"] = str(self.batch_id)
        if self.age_seconds is not None:
            found["lodestar-age-seconds"] = f"{self.age_seconds:.3f}"
        return found

    def members(self) -> dict[str, Any]:
        """Return it as members of a document."""
        age = self.age_seconds
        return {
            "generation": self.generation,
            "batch_id": self.batch_id,
            "age_seconds": None if age is None else round(age, 6),
            "cached": self.is_cached,
        }


class Least(TypedDict):
    """What each read is told."""

    deadline_seconds: float
    min_batch_id: int | None
    min_generation: int | None


@final
class StateQuestion:
    """
    A request about one state, as one caller.

    Attributes:
        caller: Who asks.
        job_id: The job.
        state_name: The state.
        parameters: Behind the question mark.
        held: Released at the end of the answer; what answers later takes it over.
    """

    def __init__(
        self,
        request: Request,
        caller: Caller,
        config: GatewayConfig,
        parameters: Mapping[str, str],
    ) -> None:
        self._config = config
        self.caller = caller
        self.held = contextlib.ExitStack()
        self.job_id = path_part(request.path_params["job"])
        self.state_name = path_part(request.path_params["state"])
        check_names(self.job_id, self.state_name)
        self.parameters = parameters
        self.deadline_seconds = seconds(
            parameters,
            "deadline",
            config.deadline_seconds,
            most=config.deadline_seconds_max,
        )
        self.min_batch_id = whole_number(parameters, "min_batch_id", None)
        self.min_generation = whole_number(parameters, "min_generation", None, least=1)
        self._is_json_key = flag(parameters, "json_key")
        self._end_with_client: Callable[[], None] = request.scope[ENDS_WITH_CLIENT]
        self._give_up_when_left()

    @property
    def state(self) -> tuple[str, str]:
        """Return job and state."""
        return (self.job_id, self.state_name)

    @property
    def client(self) -> AsyncQueryableStateClient:
        """Return what asks."""
        return self.caller.client

    @property
    def least(self) -> Least:
        """Return what each read is told of deadline and batch."""
        return Least(
            deadline_seconds=self.deadline_seconds,
            min_batch_id=self.min_batch_id,
            min_generation=self.min_generation,
        )

    def key(self, fields: Sequence[Field], text: str) -> Any:
        """Return the key that *text* means, as `json_key` says that it is written."""
        return (parse_json_key if self._is_json_key else parse_key)(fields, text)

    def key_parameter(self, fields: Sequence[Field], name: str) -> Any:
        """Return a parameter that is a key, or None if it is not given."""
        text = self.parameters.get(name)
        return None if text is None else self.key(fields, text)

    def prefix_parameter(self, fields: Sequence[Field]) -> Any:
        """Return the parameter ``prefix``, or None if it is not given."""
        text = self.parameters.get("prefix")
        return None if text is None else parse_prefix(fields, text)

    def _give_up_when_left(self) -> None:
        """
        Wait for nothing more when the client leaves: its place is for others.

        Of a newcomer it is waited for what the proxy says: who tries tokens, and
        leaves, has no more room than who stays.
        """
        if self.caller.is_known:
            self._end_with_client()

    async def describe(self, *, is_new: bool) -> StateInformation:
        """Return what is known of the state."""
        found, _ = await self.caller.describe(
            *self.state, deadline_seconds=self.deadline_seconds, is_new=is_new
        )
        self._give_up_when_left()
        return found

    async def ask(
        self, read: Callable[[StateInformation], Awaitable[T]]
    ) -> tuple[StateInformation, T]:
        """
        Return what is known of the state, and what *read* returns of it.

        What is known is older than the answer, also if it was asked for just now: a
        read may wait for its batch.  If the answer shows that it is wrong by now, or
        the question was, it is asked anew, and then *read* again.
        """
        async with asyncio.timeout(2 * self.deadline_seconds):
            known = await self.describe(is_new=False)
            try:
                found = await read(known)
            except (WrongKeyTypeError, LocalProtocolError):
                newer = await self.describe(is_new=True)
                if newer.registered_schema == known.registered_schema:
                    raise
                return newer, await read(newer)
            if fits(known, found):
                return known, found
            newer = await self.describe(is_new=True)
            if fits(newer, found):
                return newer, found
            # It was read by older columns: the client knows the present ones by now.
            return newer, await read(newer)


@contextlib.asynccontextmanager
async def asking(
    request: Request,
    callers: Callers,
    config: GatewayConfig,
    kind: str,
    parameters: Iterable[str] = (),
    *,
    is_large: bool = False,
) -> AsyncIterator[StateQuestion]:
    """
    Yield the question that *request* is about a state, for the time of its answer.

    Args:
        request: The request.
        callers: All callers.
        config: Limits.
        kind: What it is counted as.
        parameters: Those that it may have besides `LEAST` and how keys are written.
        is_large: Whether it is one of the reads of which a caller has a few at once.

    Raises:
        GatewayError: If the caller may not ask this, or not now.
    """
    mark(request.scope, kind)
    given = parameters_of(
        request.scope["query_string"], LEAST | _OF_KEYS | frozenset(parameters)
    )
    async with callers.using(bearer_token(request.scope["headers"])) as caller:
        question = StateQuestion(request, caller, config, given)
        with question.held as held:
            if is_large:
                held.enter_context(_large_read(caller, config))
                held.enter_context(callers.keeping(caller))
            yield question


@contextlib.contextmanager
def _large_read(caller: Caller, config: GatewayConfig) -> Iterator[None]:
    """
    Count one of the reads that take memory, for the time of its answer.

    Raises:
        GatewayError: If the caller has too many of them under way.
    """
    if caller.large_read_count >= config.large_read_count_per_caller_max:
        raise GatewayError(
            "too-many-watches",
            f"this caller reads {caller.large_read_count} pages, whole states, counts "
            "or batches of keys now: wait for one of them",
            retry_after_seconds=_RETRY_SECONDS,
        )
    caller.large_read_count += 1
    try:
        yield
    finally:
        caller.large_read_count -= 1


def answer(
    request: Request,
    document: Mapping[str, Any],
    as_of: AsOf | None = None,
    *,
    tagged: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """
    Return *document* as the answer; or that it has not changed.

    Args:
        request: To what.
        document: What is said.
        as_of: As of when; it stands in the headers, and in the document.
        tagged: What the entity tag is of; None for all of the document.
        headers: Further headers.

    Raises:
        GatewayError: If it is not wanted as JSON.
    """
    headers_given = request.scope["headers"]
    chosen_format(listed(headers_given, b"accept"), None, ("json",))
    found = dict(headers or {})
    whole = dict(document)
    if as_of is not None:
        whole |= as_of.members()
        found |= as_of.headers()
    body = json_bytes(whole)
    generation = None if as_of is None else as_of.generation
    tag = entity_tag(generation, body if tagged is None else tagged)
    found |= {
        "etag": tag,
        "cache-control": "private, no-cache",
        "vary": "Accept, Authorization",
    }
    # An answer to a POST is kept by no cache: there is none that could still hold.
    is_kept = request.method != "POST"
    if is_kept and matches(listed(headers_given, b"if-none-match"), tag):
        return Response(status_code=304, headers=found)
    return Response(body, media_type=JSON, headers=found)
