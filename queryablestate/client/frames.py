"""
`Frame`: the pages of a scan as Arrow batches, and what they are as of.

pyarrow is loaded when a frame is made: a program that only asks for keys needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from nameservice import ConfigurationError
from nameservice.clock import MS_PER_SECOND
from queryablestate.client.floors import Floor, floor_of_reading
from queryablestate.errors import TableTooLargeError
from queryablestate.schema.keys import ITEM_INDEX_SIZE_BYTES
from queryablestate.schema.schema import (
    ArrayType,
    AtomicType,
    Field,
    StateKind,
    StateSchema,
)


if TYPE_CHECKING:
    from types import ModuleType

    from queryablestate.client.routes import Route
    from queryablestate.client.scanning import ScannedPage, ScannedRow


__all__ = [
    "FRESHNESS",
    "Frame",
    "check_row_limit",
    "frame_fields",
    "load_arrow",
    "row_columns",
]

FRESHNESS: Final = (
    Field("_batch_id", AtomicType.BIGINT),
    Field("_age_seconds", AtomicType.DOUBLE),
    Field("_generation", AtomicType.BIGINT),
)
"""Columns that tell as of when a row was read."""

_NO_BATCH: Final = -1


@final
class Frame:
    """
    Makes batches of the pages of one scan.

    Args:
        job_id: The job.
        state_name: The state.
        columns: The names of those that are wanted, in that order; None for all.
        row_limit: How many rows of the scan at most, or None.
        has_freshness: Whether columns tell as of when each row was read (`FRESHNESS`).

    Raises:
        ConfigurationError: If an argument is malformed, or pyarrow is not installed.
    """

    def __init__(
        self,
        job_id: str,
        state_name: str,
        columns: Iterable[str] | None,
        row_limit: int | None = None,
        *,
        has_freshness: bool = False,
    ) -> None:
        self._arrow = load_arrow()
        self._state = (job_id, state_name)
        self._names = None if columns is None else _checked_names(columns)
        self._row_limit = row_limit
        self._has_freshness = has_freshness
        self._row_count = 0
        self._route: Route | None = None
        self._fields: tuple[Field, ...] = ()
        self._pages: Any = None
        # Of a list state, the last list so far: it may go on with the next page.
        self._open_rows: list[ScannedRow] = []
        self._oldest: Floor | None = None
        self._newest: Floor | None = None
        self._age_ms = 0

    @property
    def scan_limit(self) -> int | None:
        """Return how many rows to scan: one more shows that it is too many."""
        return None if self._row_limit is None else self._row_limit + 1

    def take(self, page: ScannedPage) -> Any:
        """
        Return the rows of *page* as a batch; of a list state those of whole lists.

        Raises:
            TableTooLargeError: If there are more than *row_limit*.
            ConfigurationError: If there is no column of one of the names.
        """
        self._follow(page.route)
        for reading in page.readings:
            seen = floor_of_reading(reading)
            self._oldest = seen if self._oldest is None else min(self._oldest, seen)
            self._newest = seen if self._newest is None else max(self._newest, seen)
            self._age_ms = max(self._age_ms, reading.age_ms)
        self._row_count += len(page.rows)
        if self._row_limit is not None and self._row_count > self._row_limit:
            raise TableTooLargeError(*self._state, self._row_limit)
        assert self._route is not None
        if self._route.schema.kind is StateKind.LIST:
            return self._batch(self._lists(page.rows))
        return self._batch(page.rows)

    def rest(self) -> Any:
        """Return what `take` has kept back as a batch; call it behind the last page."""
        rows, self._open_rows = self._open_rows, []
        return self._batch(rows)

    def table(self, batches: Sequence[Any]) -> Any:
        """Return *batches*, which are all of them, as one table."""
        return self._arrow.arrow_table(self._fields, batches, self._metadata())

    def _follow(self, route: Route) -> None:
        """Learn the columns from the first route."""
        if self._route is None:
            self._route = route
            self._choose(route)

    def _choose(self, route: Route) -> None:
        fields = frame_fields(route.schema, has_freshness=self._has_freshness)
        places = {one.name: place for place, one in enumerate(fields)}
        names = list(places) if self._names is None else self._names
        for name in names:
            if name not in places:
                job_id, state_name = self._state
                raise ConfigurationError(
                    f"{job_id}/{state_name} has no column {name!r}: name some of "
                    f"{', '.join(map(repr, places))}"
                )
        self._fields = tuple(fields[places[name]] for name in names)
        self._pages = self._arrow.ArrowPages(route, self._fields)

    def _lists(self, rows: Sequence[ScannedRow]) -> list[ScannedRow]:
        """Return the rows of all lists that end before the last of *rows*."""
        if not rows:
            return []
        before, last_key = self._open_rows, _list_key(rows[-1])
        place = len(rows)
        while place and _list_key(rows[place - 1]) == last_key:
            place -= 1
        if not place and before and _list_key(before[-1]) == last_key:
            before += rows  # it is one list, and goes on
            return []
        self._open_rows = list(rows[place:])
        return [*before, *rows[:place]]

    def _batch(self, rows: Sequence[ScannedRow]) -> Any:
        assert self._pages is not None
        freshness = self._freshness() if self._has_freshness else {}
        batch = self._pages.batch(rows, freshness)
        return batch.replace_schema_metadata(self._metadata())

    def _freshness(self) -> dict[str, Any]:
        """Return what the rows until now are as of, or a later batch, by columns."""
        assert self._route is not None
        values: tuple[Any, ...] = (None, None, None)
        if self._oldest is not None:
            generation, batch_id = self._oldest
            values = (
                None if batch_id == _NO_BATCH else batch_id,
                self._age_ms / MS_PER_SECOND,
                generation,
            )
        own = {one.name for one in frame_fields(self._route.schema)}
        return {
            one.name: value
            for one, value in zip(FRESHNESS, values, strict=True)
            if one.name not in own
        }

    def _metadata(self) -> dict[str, str]:
        """Return what everything until now was read as of."""
        job_id, state_name = self._state
        found = {"lodestar.job": job_id, "lodestar.state": state_name}
        if self._oldest is None or self._newest is None:
            return found  # nothing was read: no row can be there
        for prefix, (generation, batch_id) in (
            ("lodestar.", self._oldest),
            ("lodestar.newest_", self._newest),
        ):
            found[f"{prefix}generation"] = str(generation)
            if batch_id != _NO_BATCH:
                found[f"{prefix}batch_id"] = str(batch_id)
        found["lodestar.age_seconds"] = f"{self._age_ms / MS_PER_SECOND:.3f}"
        return found


def check_row_limit(row_limit: object) -> None:
    """Raise `ConfigurationError` if *row_limit* is no number of rows."""
    if isinstance(row_limit, bool) or not isinstance(row_limit, int) or row_limit < 1:
        raise ConfigurationError(
            f"row_limit must be a whole number from 1, not {row_limit!r}"
        )


def _checked_names(columns: Iterable[str]) -> list[str]:
    """Return *columns* as a list, if it is names, each once."""
    names = None if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"columns must be a list of names, at least one, not {columns!r}"
        )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"columns names a column twice: {names}")
    return names


def frame_fields(
    schema: StateSchema, *, has_freshness: bool = False
) -> tuple[Field, ...]:
    """
    Return the columns of a state as a table has them.

    Args:
        schema: Of the state.
        has_freshness: Whether those of `FRESHNESS` come last, but for names that the
            state has itself.
    """
    value = schema.value
    if schema.kind is StateKind.LIST:
        value = tuple(Field(one.name, ArrayType(one.type)) for one in value)
    fields = (*schema.key, *schema.map_key, *value)
    if has_freshness:
        own = {one.name for one in fields}
        fields += tuple(one for one in FRESHNESS if one.name not in own)
    return fields


def row_columns(schema: StateSchema, key: Any, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return key, map key and value of a row as columns, in the order of the schema."""
    map_columns: tuple[Any, ...] = ()
    if schema.kind is StateKind.MAP:
        key, map_key = key
        map_columns = (map_key,) if len(schema.map_key) == 1 else map_key
    columns = (key,) if len(schema.key) == 1 else key
    return (*columns, *map_columns, *(row.get(one.name) for one in schema.value))


def _list_key(row: ScannedRow) -> bytes:
    return row[0][:-ITEM_INDEX_SIZE_BYTES]


def load_arrow() -> ModuleType:
    """
    Return what needs pyarrow.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        from queryablestate.client import arrow_columns  # noqa: PLC0415 (see above)
    except ImportError as error:
        raise ConfigurationError(
            "tables and Parquet files need pyarrow, which is not installed here: "
            "pip install 'spark-lodestar[frames]'"
        ) from error
    return arrow_columns
