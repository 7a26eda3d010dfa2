"""
`AsyncQueryableStateClient`: `QueryableStateClient` for asyncio; needs no pyspark.

Every method has the name, the arguments and the errors of its twin, and does the same
without blocking the event loop.  What many coroutines ask in one turn of the loop
travels in common messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final, overload

from nameservice import (
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
)
from queryablestate.async_query_shell import AsyncQueryShell
from queryablestate.messages import JobsListed, StateDescribed, StatesListed
from queryablestate.operator_states import OperatorStateRead, OperatorStateView
from queryablestate.query_builder import (
    MISSING,
    QueryBuilder,
    check_limit,
    check_min_batch_id,
    entry_of,
    partial_of,
    raise_error,
    reply_of,
    values_of,
)
from queryablestate.query_requests import Call, KeysRead, StaleRouteError
from queryablestate.query_routes import (
    ENTRY,
    EXISTS,
    ROWS,
    Asking,
    Route,
    information_of,
)
from queryablestate.scanning import Scan, bounds_of


if TYPE_CHECKING:
    from types import TracebackType

    from haservices import HAConfig, HAServices
    from queryablestate.credentials import Credentials
    from queryablestate.query_core import QueryConfig
    from queryablestate.query_results import (
        PartialResult,
        StateEntry,
        StateInformation,
    )


__all__ = ["AsyncQueryableStateClient"]

_POLL_SECONDS: Final = 0.1


@final
class AsyncQueryableStateClient:
    """
    Asks the state of running jobs from coroutines.  An async context manager.

    It belongs to the event loop of its first question, and is used there alone.  A
    coroutine that is cancelled gives its question up; the others do not notice.

    See `QueryableStateClient` for deadlines, keys, values and *min_batch_id*.

    Args:
        config: The name service, or how to open it (a URL will do).  One that is given
            open stays its owner's.
        credentials: A token or `Credentials`; without, whoever may connect may ask.
        deadline_seconds: For questions that do not say.
        query_config: The limits of the client itself.

    Raises:
        ConfigurationError: If an argument is malformed; says what to change.
    """

    def __init__(
        self,
        config: HAConfig | HAServices | str,
        credentials: str | Credentials | None = None,
        *,
        deadline_seconds: float = 5.0,
        query_config: QueryConfig | None = None,
    ) -> None:
        self._shell = AsyncQueryShell(config, credentials, query_config)
        self._builder = QueryBuilder(
            self._shell.clock, deadline_seconds=deadline_seconds
        )

    # -- keys --------------------------------------------------------------------------

    async def get(
        self,
        job_id: str,
        state_name: str,
        key: object,
        default: Any = MISSING,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> Any:
        """Return what is kept under *key*; see `QueryableStateClient.get`."""
        read = self._builder.keys(
            job_id, state_name, ROWS, (key,), deadline_seconds, min_batch_id
        )
        try:
            await self._shell.ask(read)
        except asyncio.CancelledError:
            self._shell.drop(read)
            raise
        if read.error is not None:
            raise read.error
        value = read.rows[0]
        if value is None:
            if default is MISSING:
                raise UnknownKeyError(job_id, state_name, key)
            return default
        return value

    @overload
    async def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: Literal[False] = ...,
        deadline_seconds: float | None = ...,
        min_batch_id: int | None = ...,
    ) -> dict[Any, Any]: ...

    @overload
    async def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: Literal[True],
        deadline_seconds: float | None = ...,
        min_batch_id: int | None = ...,
    ) -> PartialResult: ...

    async def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: bool = False,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> dict[Any, Any] | PartialResult:
        """
        Return what is kept under those of *keys* that exist.

        See `QueryableStateClient.get_many`.
        """
        wanted = tuple(keys)
        read = self._builder.keys(
            job_id,
            state_name,
            ROWS,
            wanted,
            deadline_seconds,
            min_batch_id,
            is_partial=partial,
        )
        if wanted:
            await self._run(read)
        try:
            values = values_of(read)
        except TypeError:
            route = await self._route(job_id, state_name, read.deadline_ns)
            values = values_of(read, route.hashable)
        return partial_of(read, values) if partial else values

    async def exists(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> bool:
        """Return whether anything is kept under *key*; raises as `get` does."""
        read = await self._read(
            job_id, state_name, EXISTS, (key,), deadline_seconds, min_batch_id
        )
        return read.rows[0] is not None

    async def lookup(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> StateEntry:
        """Return what is kept under *key*, and as of when; raises as `get` does."""
        return entry_of(
            await self._read(
                job_id, state_name, ROWS, (key,), deadline_seconds, min_batch_id
            )
        )

    async def get_map_entry(
        self,
        job_id: str,
        state_name: str,
        key: object,
        map_key: object,
        default: Any = MISSING,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> Any:
        """
        Return one entry of the map under *key*.

        See `QueryableStateClient.get_map_entry`.
        """
        read = await self._read(
            job_id,
            state_name,
            ENTRY,
            ((key, map_key),),
            deadline_seconds,
            min_batch_id,
        )
        value = read.rows[0]
        if value is None:
            if default is MISSING:
                raise UnknownKeyError(job_id, state_name, (key, map_key))
            return default
        return value

    async def get_list(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        start: int | None = None,
        stop: int | None = None,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Return the items ``[start:stop]`` of the list under *key*.

        See `QueryableStateClient.get_list`.
        """
        asking = Asking.items(start, stop)
        read = await self._read(
            job_id, state_name, asking, (key,), deadline_seconds, min_batch_id
        )
        items: list[dict[str, Any]] | None = read.rows[0]
        if items is None:
            raise UnknownKeyError(job_id, state_name, key)
        return items

    # -- whole states ------------------------------------------------------------------

    def scan(
        self,
        job_id: str,
        state_name: str,
        *,
        prefix: object | None = None,
        start: object | None = None,
        stop: object | None = None,
        limit: int | None = None,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
        """
        Iterate over rows in the order of their keys, over all nodes, page by page.

        See `QueryableStateClient.scan`; use ``async for``.
        """
        # Not the generator itself: what is wrong with the arguments is told at once.
        check_limit(limit)
        check_min_batch_id(min_batch_id)
        self._builder.route(
            job_id, state_name, self._builder.deadline_ns(deadline_seconds)
        )

        def bounds(route: Route) -> tuple[bytes, bytes | None]:
            return bounds_of(route, prefix=prefix, start=start, stop=stop)

        return self._scan(
            job_id, state_name, bounds, limit, deadline_seconds, min_batch_id
        )

    async def _scan(  # noqa: PLR0917 (only called from here)
        self,
        job_id: str,
        state_name: str,
        bounds: Callable[[Route], tuple[bytes, bytes | None]],
        limit: int | None,
        deadline_seconds: float | None,
        min_batch_id: int | None,
    ) -> AsyncGenerator[tuple[Any, dict[str, Any]], None]:
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        route = await self._route(job_id, state_name, deadline_ns)
        scan = Scan(
            *bounds(route), limit=limit, page_row_count_max=self._shell.key_count_max
        )
        scan.begin(route)
        while not scan.is_over:
            pages = self._builder.nodes(route, scan.wanted(), deadline_ns, min_batch_id)
            await self._shell.run(*pages)
            if any(isinstance(page.error, StaleRouteError) for page in pages):
                route = await self._route(job_id, state_name, deadline_ns, route)
                scan.begin(route)
                continue
            for page in pages:
                raise_error(page.error)
                scan.take(page.node_index, page.result, page.next_start)
            for _, key, value in scan.pop():
                yield key, value
            deadline_ns = self._builder.deadline_ns(deadline_seconds)

    async def count(
        self,
        job_id: str,
        state_name: str,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> int:
        """
        Return how many keys the state holds; lists and maps count once for each key.

        See `QueryableStateClient.count`.
        """
        check_min_batch_id(min_batch_id)
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        route: Route | None = None
        while True:
            route = await self._route(job_id, state_name, deadline_ns, route)
            counts = self._builder.nodes(
                route,
                [(index, route.counting()) for index in route.node_indexes],
                deadline_ns,
                min_batch_id,
            )
            await self._shell.run(*counts)
            if any(isinstance(count.error, StaleRouteError) for count in counts):
                continue
            for count in counts:
                raise_error(count.error)
            return sum(count.result for count in counts)

    async def operator_state(
        self,
        job_id: str,
        name: str,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
    ) -> OperatorStateView:
        """
        Return the items of an operator state, by subtask, as they were after a batch.

        See `QueryableStateClient.operator_state`.
        """
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        reading = OperatorStateRead(job_id, name)
        while reading.view is None:
            left_seconds = self._builder.seconds_until(deadline_ns)
            read = await self._read(
                job_id,
                reading.state_name,
                ROWS,
                reading.wanted(),
                max(left_seconds, 0.001),
                min_batch_id,
            )
            reading.take(read)
        return reading.view

    # -- what there is -----------------------------------------------------------------

    async def jobs(self, *, deadline_seconds: float | None = None) -> list[str]:
        """Return the jobs that have state which we may see, sorted."""
        call = self._builder.list_jobs(deadline_seconds)
        await self._run(call)
        return list(reply_of(call, JobsListed).job_ids)

    async def states(
        self, job_id: str, *, deadline_seconds: float | None = None
    ) -> list[str]:
        """
        Return the names of the states of a job which we may see, sorted.

        Raises:
            UnknownJobError: If there are none.
        """
        found = await self.describe_all(job_id, deadline_seconds=deadline_seconds)
        return [state.name for state in found]

    async def describe_all(
        self, job_id: str, *, deadline_seconds: float | None = None
    ) -> list[StateInformation]:
        """
        Return what is known of the states of a job which we may see, by name.

        Raises:
            UnknownJobError: If there are none.
        """
        call = self._builder.list_states(job_id, deadline_seconds)
        await self._run(call)
        return [information_of(state) for state in reply_of(call, StatesListed).states]

    async def describe(
        self,
        job_id: str,
        state_name: str,
        *,
        deadline_seconds: float | None = None,
    ) -> StateInformation:
        """
        Return what is known of a state.

        Raises:
            UnknownStateError: If the job has no such state.
            UnknownJobError: If there is no state of this job.
        """
        call = self._builder.describe(job_id, state_name, deadline_seconds)
        await self._run(call)
        return information_of(reply_of(call, StateDescribed).description)

    async def wait_for_state(
        self,
        job_id: str,
        state_name: str,
        timeout_seconds: float = 60.0,
        *,
        min_batch_id: int | None = None,
    ) -> StateInformation:
        """
        Return what is known of a state, as soon as it can be read.

        See `QueryableStateClient.wait_for_state`.
        """
        deadline_ns = self._builder.deadline_ns(timeout_seconds)
        while True:
            left_seconds = self._builder.seconds_until(deadline_ns)
            try:
                found = await self.describe(
                    job_id, state_name, deadline_seconds=max(left_seconds, 0.001)
                )
            except (UnknownJobError, UnknownStateError):
                if left_seconds <= _POLL_SECONDS:
                    raise
            else:
                if found.batch_id is not None and found.batch_id >= (min_batch_id or 0):
                    return found
                if left_seconds <= _POLL_SECONDS:
                    raise StateUnavailableError(
                        job_id,
                        state_name,
                        (),
                        _POLL_SECONDS,
                        f"its last batch is {found.batch_id}",
                    )
            # Nobody tells when a state is made: it is looked for again and again.
            await asyncio.sleep(_POLL_SECONDS)

    # -- the client itself -------------------------------------------------------------

    async def close(self) -> None:
        """
        Release everything.  Idempotent; silent in a forked child.

        Questions that wait end with `LocalProtocolError`.
        """
        await self._shell.close()

    async def __aenter__(self) -> Self:
        self._shell.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read(  # noqa: PLR0917 (only called from here)
        self,
        job_id: str,
        state_name: str,
        asking: Asking,
        keys: Sequence[Any],
        deadline_seconds: float | None,
        min_batch_id: int | None,
    ) -> KeysRead:
        read = self._builder.keys(
            job_id, state_name, asking, keys, deadline_seconds, min_batch_id
        )
        await self._run(read)
        return read

    async def _run(self, request: KeysRead | Call) -> None:
        await self._shell.run(request)
        raise_error(request.error)

    async def _route(
        self,
        job_id: str,
        state_name: str,
        deadline_ns: int,
        stale: Route | None = None,
    ) -> Route:
        """Return the route to a state, another one than *stale*."""
        read = self._builder.route(job_id, state_name, deadline_ns, stale)
        await self._shell.run(read)
        raise_error(read.error)
        assert read.route is not None
        return read.route
