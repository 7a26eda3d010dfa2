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
from queryablestate.errors import StateUnavailableError, TableTooLargeError
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

_ITEM_INDEX_SIZE_BYTES: Final = 8
"""What stands behind the key in a row of a list state."""

_RETRY_AFTER_SECONDS: Final = 0.1
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
        self._places: tuple[int, ...] = ()
        # Of a list state, the last key so far: its list may go on with the next page.
        self._open_key = b""
        self._open_rows: list[tuple[Any, ...]] = []
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
            StateUnavailableError: If it is another state of the same name by now.
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
        schema = self._route.schema
        if schema.kind is StateKind.LIST:
            return self._batch(self._lists(page.rows))
        return self._batch([row_columns(schema, key, row) for _, key, row in page.rows])

    def rest(self) -> Any:
        """Return what `take` has kept back as a batch; call it behind the last page."""
        rows = [_as_lists(self._route, self._open_rows)] if self._open_rows else []
        self._open_rows = []
        return self._batch(rows)

    def table(self, batches: Sequence[Any]) -> Any:
        """Return *batches*, which are all of them, as one table."""
        return self._arrow.arrow_table(self._fields, batches, self._metadata())

    def _follow(self, route: Route) -> None:
        """Learn the columns from the first route, and refuse those of another state."""
        before = self._route
        if before is None:
            self._route = route
            self._choose(route.schema)
        elif before is not route and before.state_number != route.state_number:
            raise StateUnavailableError(
                *self._state,
                (),
                _RETRY_AFTER_SECONDS,
                "it was dropped and made anew while it was read; ask again",
            )

    def _choose(self, schema: StateSchema) -> None:
        fields = frame_fields(schema, has_freshness=self._has_freshness)
        places = {one.name: place for place, one in enumerate(fields)}
        names = list(places) if self._names is None else self._names
        for name in names:
            if name not in places:
                job_id, state_name = self._state
                raise ConfigurationError(
                    f"{job_id}/{state_name} has no column {name!r}: name some of "
                    f"{', '.join(map(repr, places))}"
                )
        self._places = tuple(places[name] for name in names)
        self._fields = tuple(fields[place] for place in self._places)

    def _lists(self, rows: Iterable[ScannedRow]) -> list[tuple[Any, ...]]:
        """Return a row for each list that ends before the last of *rows*."""
        assert self._route is not None
        found = []
        for encoded, key, row in rows:
            list_key = encoded[:-_ITEM_INDEX_SIZE_BYTES]
            if list_key != self._open_key and self._open_rows:
                found.append(_as_lists(self._route, self._open_rows))
                self._open_rows = []
            self._open_key = list_key
            self._open_rows.append(row_columns(self._route.schema, key, row))
        return found

    def _batch(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        if self._has_freshness:
            freshness = self._freshness()
            rows = [(*row, *freshness) for row in rows]
        chosen = [tuple(row[place] for place in self._places) for row in rows]
        batch = self._arrow.arrow_rows(self._fields, chosen)
        return batch.replace_schema_metadata(self._metadata())

    def _freshness(self) -> tuple[Any, ...]:
        """Return what the rows until now are as of, or a later batch."""
        assert self._route is not None
        assert self._oldest is not None
        generation, batch_id = self._oldest
        values = (
            None if batch_id == _NO_BATCH else batch_id,
            self._age_ms / MS_PER_SECOND,
            generation,
        )
        own = {one.name for one in frame_fields(self._route.schema)}
        return tuple(
            value
            for one, value in zip(FRESHNESS, values, strict=True)
            if one.name not in own
        )

    def _metadata(self) -> dict[str, str]:
        """Return what everything until now was read as of."""
        job_id, state_name = self._state
        found = {"lodestar.job": job_id, "lodestar.state": state_name}
        assert self._oldest is not None
        assert self._newest is not None
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


def _as_lists(route: Route | None, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the items of one list as one row, with a list for each value column."""
    assert route is not None
    columns = list(zip(*rows, strict=True))
    key_count = len(route.schema.key)
    return (*rows[0][:key_count], *map(list, columns[key_count:]))


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
