"""`StatePages`: jobs, states, rows, charts and keys as pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from attrs import frozen
from starlette.responses import RedirectResponse, Response

from nameservice import NameServiceError
from queryablestate.gateway.boundary import ENDS_WITH_CLIENT, mark
from queryablestate.gateway.console.advice import advice_of
from queryablestate.gateway.console.charts import (
    Bar,
    bars_of,
    histogram_of,
    number_of,
    numeric_columns,
)
from queryablestate.gateway.console.state_view import (
    KEY_FIELD_COUNT_MAX,
    chartable,
    key_fields,
    key_of_fields,
    key_path,
    row_cells,
    state_path,
    value_table,
)
from queryablestate.gateway.problems import GatewayError, Problem, problem_of
from queryablestate.gateway.questions import StateQuestion, asking
from queryablestate.gateway.requests import (
    bearer_token,
    parameters_of,
    path_part,
    whole_number,
)
from queryablestate.gateway.tags import page_token, parse_page_token
from queryablestate.schema.key_text import key_text, parse_json_key
from queryablestate.schema.schema import StateKind


if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from queryablestate.client.results import (
        StateEntry,
        StateInformation,
        StatePage,
    )
    from queryablestate.gateway.callers import Caller, Callers
    from queryablestate.gateway.config import GatewayConfig
    from queryablestate.gateway.console.pages import Pages


__all__ = ["StatePages"]

_JOB_COUNT_MAX: Final = 100
_LOOKED_AT_COUNT_MAX: Final = 24
_LOOK_SECONDS: Final = 2.0
_PAGE_ROW_COUNT: Final = 50
_CHART_PAGE_ROW_COUNT: Final = 1_000
_CHART_ROW_COUNT_MAX: Final = 10_000
_BAR_COUNT: Final = 10
_BAR_COUNT_MAX: Final = 50
_RANGE_COUNT_MAX: Final = 20
_CHARTS: Final = ("bars", "histogram")
_ABSENT: Final[Any] = None
_KEY_PARAMETERS: Final = frozenset(f"k{place}" for place in range(KEY_FIELD_COUNT_MAX))


@final
@frozen
class _StateRow:
    """A state in the overview, and what is wrong with it."""

    known: StateInformation
    path: str
    problem: Problem | None
    is_looked_at: bool


@final
@frozen
class _JobRows:
    """A job in the overview: its states, or why it has none."""

    job_id: str
    states: Sequence[_StateRow]
    problem: Problem | None


@final
class StatePages:
    """
    Pages about state, as the caller who is signed in.

    Args:
        callers: Who asks.
        config: Limits.
        pages: Renders them.
    """

    def __init__(self, callers: Callers, config: GatewayConfig, pages: Pages) -> None:
        self._callers = callers
        self._config = config
        self._pages = pages

    # -- what there is -----------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        """Answer ``GET /console/``."""
        mark(request.scope, "console")
        parameters_of(request.scope["query_string"], ())
        async with self._callers.using(
            bearer_token(request.scope["headers"]), request.scope[ENDS_WITH_CLIENT]
        ) as one:
            deadline_seconds = self._config.deadline_seconds
            job_ids = await one.client.jobs(deadline_seconds=deadline_seconds)
            shown = job_ids[:_JOB_COUNT_MAX]
            found = await asyncio.gather(*(self._described(one, job) for job in shown))
            left_count = _LOOKED_AT_COUNT_MAX
            jobs = []
            for job_id, states in zip(shown, found, strict=True):
                looked_at = [] if isinstance(states, Problem) else states[:left_count]
                left_count -= len(looked_at)
                jobs.append(self._job(one, job_id, states, looked_at))
            rows = await asyncio.gather(*jobs)
        problems = [job.problem for job in rows]
        problems += [state.problem for job in rows for state in job.states]
        problem_count = len(problems) - problems.count(None)
        return self._pages.page(
            request,
            "overview.html",
            jobs=rows,
            job_count=len(job_ids),
            state_count=sum(len(job.states) for job in rows),
            problem_count=problem_count,
            advice_of=advice_of,
        )

    async def _described(
        self, caller: Caller, job_id: str
    ) -> list[StateInformation] | Problem:
        """Return the states of a job, or why they cannot be told."""
        try:
            return await caller.client.describe_all(
                job_id, deadline_seconds=self._config.deadline_seconds
            )
        except NameServiceError as error:
            problem = problem_of(error)
            assert problem is not None
            return problem

    async def _job(
        self,
        caller: Caller,
        job_id: str,
        states: list[StateInformation] | Problem,
        looked_at: Sequence[StateInformation],
    ) -> _JobRows:
        if isinstance(states, Problem):
            return _JobRows(job_id, (), states)
        problems = await asyncio.gather(*(self._look(caller, one) for one in looked_at))
        rows = [
            _StateRow(
                one,
                state_path(one.job_id, one.name),
                problems[place] if place < len(problems) else None,
                place < len(problems),
            )
            for place, one in enumerate(states)
        ]
        return _JobRows(job_id, rows, None)

    async def _look(self, caller: Caller, state: StateInformation) -> Problem | None:
        """Return why a state cannot be read as a whole; None if it can."""
        try:
            # The first row by key may be anywhere: every key group is asked for it.
            await caller.client.page(
                state.job_id, state.name, limit=1, deadline_seconds=_LOOK_SECONDS
            )
        except NameServiceError as error:
            return problem_of(error)
        return None

    # -- a state -----------------------------------------------------------------------

    async def state(self, request: Request) -> Response:
        """Answer ``GET …/states/{state}``."""
        async with asking(request, self._callers, self._config, "console") as question:
            known = await question.describe(is_new=True)
            problem = await self._look(question.caller, known)
        return self._page(
            request, question, known, "state.html", problem=problem, advice_of=advice_of
        )

    async def find(self, request: Request) -> Response:
        """Answer ``GET …/states/{state}/find``: go to the page of that key."""
        async with asking(
            request, self._callers, self._config, "console", _KEY_PARAMETERS
        ) as question:
            known = await question.describe(is_new=True)
            schema = known.registered_schema
            key = key_of_fields(schema, question.parameters)
        path = key_path(*question.state, schema, key)
        return RedirectResponse(path, status_code=303)

    async def rows(self, request: Request) -> Response:
        """Answer ``GET …/states/{state}/rows``."""
        async with asking(
            request,
            self._callers,
            self._config,
            "console",
            ("prefix", "page_token"),
            is_large=True,
        ) as question:
            given = question.parameters
            # An input that is left empty asks for everything.
            prefix = given.get("prefix") or None
            binding = (*question.state, "console", prefix)
            token = given.get("page_token")
            after = b"" if token is None else parse_page_token(token, binding)

            async def read(known: StateInformation) -> StatePage:
                schema = known.registered_schema
                wanted = question.prefix_parameter(schema.key) if prefix else None
                return await question.client.page(
                    *question.state,
                    prefix=wanted,
                    limit=_PAGE_ROW_COUNT,
                    after=after,
                    **question.least,
                )

            known, page = await question.ask(read)
        schema = known.registered_schema
        cells = [row_cells(schema, key, value) for key, value in page.rows]
        following = page.next_after
        return self._page(
            request,
            question,
            known,
            "rows.html",
            page=page,
            prefix=prefix or "",
            is_first=token is None,
            rows=[
                (key_path(*question.state, schema, key), text, others)
                for key, text, others in cells
            ],
            next_token=None if following is None else page_token(following, binding),
        )

    # -- charts ------------------------------------------------------------------------

    async def chart(self, request: Request) -> Response:
        """Answer ``GET …/states/{state}/chart``."""
        async with asking(
            request,
            self._callers,
            self._config,
            "console",
            ("column", "kind", "count"),
            is_large=True,
        ) as question:
            given = question.parameters
            kind = given.get("kind", _CHARTS[0])
            if kind not in _CHARTS:
                raise GatewayError(
                    "bad-request", f"kind: it must be {' or '.join(_CHARTS)}"
                )
            count = whole_number(
                given, "count", _BAR_COUNT, least=1, most=_BAR_COUNT_MAX
            )
            assert count is not None
            known = await question.describe(is_new=False)
            columns = numeric_columns(known.registered_schema.value)
            column = given.get("column", columns[0] if columns else "")
            if columns and column not in columns:
                raise GatewayError(
                    "bad-request",
                    f"column: {column!r} is no column of numbers; there are: "
                    f"{', '.join(columns)}",
                )
            numbers: list[tuple[str, float]] = []
            is_whole, page = True, None
            if columns:
                async with asyncio.timeout(2 * question.deadline_seconds):
                    numbers, is_whole, page = await self._numbers(
                        question, known, column
                    )
        bars: list[Bar] = (
            bars_of(numbers, count)
            if kind == "bars"
            else histogram_of([number for _, number in numbers], _RANGE_COUNT_MAX)
        )
        return self._page(
            request,
            question,
            known,
            "chart.html",
            columns=columns,
            column=column,
            kind=kind,
            count=count,
            bars=bars,
            number_count=len(numbers),
            row_count_max=_CHART_ROW_COUNT_MAX,
            is_whole=is_whole,
            page=page,
        )

    async def _numbers(
        self, question: StateQuestion, known: StateInformation, column: str
    ) -> tuple[list[tuple[str, float]], bool, StatePage | None]:
        """
        Return the numbers in *column* with their keys, in the order of the keys.

        Also whether these are all, and the first page that they are from.
        """
        schema = known.registered_schema
        is_map = schema.kind is StateKind.MAP
        found: list[tuple[str, float]] = []
        first: StatePage | None = None
        after = b""
        for _ in range(_CHART_ROW_COUNT_MAX // _CHART_PAGE_ROW_COUNT):
            page = await question.client.page(
                *question.state,
                limit=_CHART_PAGE_ROW_COUNT,
                after=after,
                **question.least,
            )
            first = first or page
            for key, value in page.rows:
                number = number_of(value.get(column))
                if number is None:
                    continue
                label = key_text(schema.key, key[0] if is_map else key)
                if is_map:
                    label = f"{label} · {key_text(schema.map_key, key[1])}"
                found.append((label or "(empty)", number))
            if page.next_after is None:
                return found, True, first
            after = page.next_after
            await asyncio.sleep(0)  # others are answered in between
        return found, False, first

    # -- a key -------------------------------------------------------------------------

    async def key(self, request: Request) -> Response:
        """Answer ``GET …/keys/{key}``: the key is JSON."""
        text = path_part(request.path_params["key"])
        async with asking(request, self._callers, self._config, "console") as question:

            async def read(known: StateInformation) -> StateEntry:
                return await question.client.lookup(
                    *question.state,
                    parse_json_key(known.registered_schema.key, text),
                    _ABSENT,
                    **question.least,
                )

            known, entry = await question.ask(read)
        schema = known.registered_schema
        key = parse_json_key(schema.key, text)
        is_absent = entry.value is _ABSENT
        return self._page(
            request,
            question,
            known,
            "key.html",
            status=404 if is_absent else 200,
            entry=entry,
            key_text=key_text(schema.key, key),
            key_path=key_path(*question.state, schema, key),
            table=None if is_absent else value_table(schema, entry.value),
            columns=[one.name for one in schema.value],
            chartable=chartable(schema),
        )

    def _page(
        self,
        request: Request,
        question: StateQuestion,
        known: StateInformation,
        name: str,
        *,
        status: int = 200,
        **values: Any,
    ) -> Response:
        """Return a page about a state."""
        schema = known.registered_schema
        return self._pages.page(
            request,
            name,
            status=status,
            state=known,
            schema=schema,
            state_path=state_path(*question.state),
            key_fields=key_fields(schema),
            charted=numeric_columns(schema.value),
            **values,
        )
