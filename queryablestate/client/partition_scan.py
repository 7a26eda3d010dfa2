"""
`PartitionScanner`: the rows of some key groups of a state, for readers in parallel.

`QueryableStateClient.scan` gives rows in the order of their keys, over all nodes, to
one reader.  Who reads a whole state into a program that has many readers (Spark) wants
parts of it that are disjoint and complete, whatever moves meanwhile.  So a part is a
set of key groups.  As a rule they are those of one node, and its pages are all that is
needed; when key groups have moved, the part goes on with their new nodes, from the
place where it was.  Rows come key group by key group, as nodes store them: a page costs
what it returns, however many key groups there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

from nameservice import SystemClock
from queryablestate.client.builder import QueryBuilder, raise_error, remade_error
from queryablestate.client.requests import StaleRouteError
from queryablestate.client.threads import QueryShell
from queryablestate.client.walking import Walk, groups_by_node
from queryablestate.schema.schema import StateKind
from queryablestate.schema.values import ValueColumns


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from haservices import HAConfig, HAServices
    from queryablestate.client.routes import Route
    from queryablestate.client.scanning import ScannedRow
    from queryablestate.connect.credentials import Credentials
    from queryablestate.schema.schema import Field


__all__ = ["PartitionScanner"]


@final
class PartitionScanner:
    """
    Reads one state in parts.  For one thread; a context manager.

    Args:
        config: The name service, or how to open it.
        credentials: Who asks.
        job_id: The job.
        state_name: The state.
        deadline_seconds: How long each page may take.

    Raises:
        ConfigurationError: If an argument is malformed.
    """

    def __init__(
        self,
        config: HAConfig | HAServices | str,
        credentials: str | Credentials | None = None,
        *,
        job_id: str,
        state_name: str,
        deadline_seconds: float,
    ) -> None:
        self._job_id = job_id
        self._state_name = state_name
        self._builder = QueryBuilder(SystemClock(), deadline_seconds=deadline_seconds)
        self._shell = QueryShell(config, credentials)

    def columns(self) -> tuple[Field, ...]:
        """
        Return the columns of a row: those of the key, of the map key, of the value.

        Raises:
            NameServiceError: As `QueryableStateClient.get` does.
        """
        schema = self._route(self._builder.deadline_ns(None)).schema
        return (*schema.key, *schema.map_key, *schema.value)

    def parts(self) -> list[tuple[int, ...]]:
        """
        Return key groups that are best read together; each is in one part.

        Raises:
            NameServiceError: As `QueryableStateClient.get` does.
        """
        route = self._route(self._builder.deadline_ns(None))
        found = groups_by_node(route, range(len(route.owners)))
        return [found[index] for index in sorted(found)]

    def rows(self, key_groups: Iterable[int]) -> Iterator[list[tuple[Any, ...]]]:
        """
        Yield all rows of *key_groups*, in pages, in no particular order.

        Each page is as of its own moment.

        Yields:
            For each row the values of `columns`; items of lists in their order.  Dates
            and timestamps are days and microseconds since 1970, also inside of others:
            Spark has years that Python has not.

        Raises:
            StateUnavailableError: If a node that holds key groups is away; or if the
                state was dropped and made anew meanwhile.
            NameServiceError: As `QueryableStateClient.get` does.
        """
        # Also for all that it takes to find out where key groups have moved.
        deadline_ns = self._builder.deadline_ns(None)
        route = self._route(deadline_ns)
        wanted = tuple(key_groups)
        if max(wanted, default=0) >= len(route.owners):
            raise remade_error(route)  # `parts` has told of the one before
        walk = Walk(
            wanted,
            limit=None,
            page_row_count_max=self._shell.key_count_max,
            is_serial=True,
        )
        walk.begin(route)
        values = _value_columns(route)
        while not walk.is_over:
            (page,) = self._builder.nodes(route, walk.wanted(), deadline_ns, None)
            self._shell.run(page)
            if isinstance(page.error, StaleRouteError):
                before = route
                route = self._route(deadline_ns, before)
                if route.state_number != before.state_number:
                    raise remade_error(route)
                walk.begin(route)
                values = _value_columns(route)
                continue
            raise_error(page.error)
            walk.take(page.node_index, page.result, page.next_start)
            yield _rows(route, values, walk.pop())
            deadline_ns = self._builder.deadline_ns(None)

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _route(self, deadline_ns: int, stale: Route | None = None) -> Route:
        read = self._builder.route(self._job_id, self._state_name, deadline_ns, stale)
        self._shell.run(read)
        raise_error(read.error)
        assert read.route is not None
        return read.route


def _value_columns(route: Route) -> ValueColumns:
    fields = route.schema.value
    return ValueColumns(fields, [one.name for one in fields])


def _rows(
    route: Route, values: ValueColumns, page: Sequence[ScannedRow]
) -> list[tuple[Any, ...]]:
    """Return the rows of a page."""
    encoded = [key for key, _ in page]
    codec = route.key_codec
    is_map = route.schema.kind is StateKind.MAP
    keys = codec.all_columns if is_map else codec.columns
    return list(
        zip(
            *keys(encoded, is_plain=True),
            *values.decode([stored for _, stored in page]),
            strict=True,
        )
    )
