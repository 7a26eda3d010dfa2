"""
`AsyncStateScans`: what is asked of all nodes of a state, for asyncio.

Its twin is made from this file (``make twins``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, final

from nameservice import LocalProtocolError
from queryablestate.client.aio import AsyncQueryShell
from queryablestate.client.builder import QueryBuilder, raise_error, remade_error
from queryablestate.client.requests import StaleRouteError
from queryablestate.client.scanning import Scan, ScanBounds, ScannedPage
from queryablestate.client.walking import Walk
from queryablestate.errors import WrongKeyTypeError
from queryablestate.schema.schema import StateKind


if TYPE_CHECKING:
    from queryablestate.client.floors import Floor
    from queryablestate.client.routes import Route


__all__ = ["AsyncStateScans"]


@final
class AsyncStateScans:
    """
    The pages of states, and the numbers of their keys.

    When a node says that the route is stale, they are asked by the next one: for pages,
    from where the last one ended.

    Args:
        builder: Makes the questions.
        shell: Asks them.
    """

    def __init__(self, builder: QueryBuilder, shell: AsyncQueryShell) -> None:
        self._builder = builder
        self._shell = shell

    def in_key_order(
        self, bounds: Callable[[Route], ScanBounds], limit: int | None
    ) -> Callable[[Route], Scan]:
        """Return what makes a scan of the rows within *bounds*."""
        return lambda route: Scan(
            bounds(route), limit=limit, page_row_count_max=self._shell.key_count_max
        )

    def in_any_order(self, limit: int | None) -> Callable[[Route], Walk]:
        """Return what makes a walk over all rows."""
        return lambda route: Walk(
            None,
            limit=limit,
            page_row_count_max=self._shell.key_count_max,
            is_serial=route.schema.kind is StateKind.LIST,
        )

    async def route(
        self,
        job_id: str,
        state_name: str,
        deadline_ns: int,
        stale: Route | None = None,
        *,
        is_new: bool = False,
    ) -> Route:
        """Return the route to a state; see `QueryBuilder.route`."""
        read = self._builder.route(
            job_id, state_name, deadline_ns, stale, is_new=is_new
        )
        await self._shell.run(read)
        raise_error(read.error)
        assert read.route is not None
        return read.route

    async def pages(
        self,
        job_id: str,
        state_name: str,
        scan_of: Callable[[Route], Scan | Walk],
        deadline_seconds: float | None,
        least: Floor | None,
    ) -> AsyncIterator[ScannedPage]:
        """
        Yield the pages of a state, at least one.

        Args:
            job_id: The job.
            state_name: The state.
            scan_of: Makes what decides which rows are asked for next.
            deadline_seconds: How long each page may take.
            least: How new it must be.

        Raises:
            StateUnavailableError: If it is another state of the same name by now: rows
                of two states are never told as those of one.
        """
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        route = await self.route(job_id, state_name, deadline_ns)
        try:
            scan = scan_of(route)
        except (WrongKeyTypeError, LocalProtocolError):
            # The route may be that of another state, which had the name before.
            route = await self.route(job_id, state_name, deadline_ns, is_new=True)
            scan = scan_of(route)
        scan.begin(route)
        is_begun = False
        if scan.is_over:  # what there is none of has columns, too
            yield ScannedPage(route, (), (), is_last=True)
        while not scan.is_over:
            pages = self._builder.nodes(route, scan.wanted(), deadline_ns, least)
            await self._shell.run(*pages)
            if any(isinstance(page.error, StaleRouteError) for page in pages):
                before = route
                route = await self.route(job_id, state_name, deadline_ns, before)
                if route.state_number != before.state_number:
                    if is_begun:
                        raise remade_error(route)
                    scan = scan_of(route)
                scan.begin(route)
                continue
            for page in pages:
                raise_error(page.error)
                scan.take(page.node_index, page.result, page.next_start)
            readings = [page.reading for page in pages if page.reading is not None]
            rows = scan.pop()
            is_begun = True
            yield ScannedPage(route, rows, readings, scan.is_over)
            deadline_ns = self._builder.deadline_ns(deadline_seconds)

    async def count(
        self,
        job_id: str,
        state_name: str,
        deadline_seconds: float | None,
        least: Floor | None,
    ) -> int:
        """Return how many keys a state holds; each node counts at its own moment."""
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        route: Route | None = None
        while True:
            route = await self.route(job_id, state_name, deadline_ns, route)
            counts = self._builder.nodes(
                route,
                [(index, route.counting()) for index in route.node_indexes],
                deadline_ns,
                least,
            )
            await self._shell.run(*counts)
            if any(isinstance(count.error, StaleRouteError) for count in counts):
                continue
            for count in counts:
                raise_error(count.error)
            return sum(count.result for count in counts)
