# Made from async_client.py by `make twins`: change that file, not this one.
"""
`QueryableStateClient`: asks the state of running jobs; needs no pyspark.

Its users configure the name service and nothing else: who is the proxy leader, where
the nodes are and which of them holds which key is found out here, and found out again
when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final, overload

from attrs import evolve

from nameservice import SystemClock
from queryablestate.client.builder import (
    MISSING,
    QueryBuilder,
    check_limit,
    check_page_limit,
    each_once,
    entry_of,
    is_as_new_as,
    least_of,
    page_of,
    partial_of,
    raise_error,
    reply_of,
    values_of,
)
from queryablestate.client.config import reading_config
from queryablestate.client.frames import Frame, check_row_limit
from queryablestate.client.operator_states import OperatorStateRead, OperatorStateView
from queryablestate.client.requests import Call, KeysRead
from queryablestate.client.routes import (
    ENTRY,
    EXISTS,
    ROWS,
    Asking,
    Route,
    information_of,
)
from queryablestate.client.scanning import (
    Scan,
    ScanBounds,
    ScannedPage,
    bounds_of,
    map_bounds_of,
)
from queryablestate.client.state_scans import StateScans
from queryablestate.client.threads import QueryShell
from queryablestate.client.walking import Walk
from queryablestate.errors import (
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
)
from queryablestate.wire.clients import JobsListed, StateDescribed, StatesListed


if TYPE_CHECKING:
    from haservices import HAConfig, HAServices
    from queryablestate.client.config import QueryConfig
    from queryablestate.client.floors import Floor
    from queryablestate.client.results import (
        PartialResult,
        StateEntry,
        StateInformation,
        StatePage,
    )
    from queryablestate.connect.credentials import Credentials


__all__ = ["QueryableStateClient"]

_POLL_SECONDS: Final = 0.1


@final
class QueryableStateClient:
    """
    Asks the state of running jobs.  Thread-safe; a context manager.

    What many threads ask at once travels in common messages.

    Every question ends in bounded time: *deadline_seconds*, which each method takes as
    well, is how long it may take in all, whatever happens meanwhile (a scan: for each
    page).  Until then it follows the proxy leader, the nodes and the key groups
    wherever they move.

    A key is a bare value where the state has one key column, else a tuple in the order
    of the columns.  Values are dicts of the value columns.

    *min_batch_id* waits until that batch is visible, within the deadline, or one of a
    later generation.  It is a batch of the present generation, or of *min_generation*:
    who starts a query that takes a state over (``on_new_query``) waits for its batches
    by the generation after the present one (`StateInformation`), also before its first
    commit.  *min_generation* alone waits for any batch of it.  Without either, an
    answer is as new as the last batch that the node has applied, and never older than
    what this client has seen of the same key group before.

    In a child process after ``fork()`` its use raises `ForkedClientError`, and `close`
    is silent.

    Args:
        config: The name service, or how to open it (a URL will do).  One that is given
            open stays its owner's.
        credentials: A token or `Credentials`; None where the proxy has no callers.
        deadline_seconds: For questions that do not say.
        direct: Whether nodes are asked without the proxy, where they can be reached and
            the proxy gives tickets; False asks the proxy for everything.
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
        direct: bool = True,
        query_config: QueryConfig | None = None,
    ) -> None:
        self._builder = QueryBuilder(SystemClock(), deadline_seconds=deadline_seconds)
        self._shell = QueryShell(
            config, credentials, reading_config(query_config, direct=direct)
        )
        self._scans = StateScans(self._builder, self._shell)

    # -- keys --------------------------------------------------------------------------

    def get(
        self,
        job_id: str,
        state_name: str,
        key: object,
        default: Any = MISSING,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> Any:
        """
        Return what is kept under *key*.

        Returns:
            A dict of the value columns; of a list state the list of them; of a map
            state a dict from map key to them, in the order of the map keys.

        Args:
            job_id: The job.
            state_name: The state.
            key: The key.
            default: What to return if nothing is kept there; without it, that is an
                `UnknownKeyError`.
            deadline_seconds: How long it may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            UnknownKeyError: If nothing is kept there, and no *default* is given.
            UnknownStateError: If the job has no such state.
            UnknownJobError: If there is no state of this job.
            WrongKeyTypeError: If *key* does not fit the key columns.
            KeyTooLargeError: If no key is as long.
            LocalProtocolError: If it is more than 16 MiB: read a long list with
                `get_list`, a large map with `scan_map`.
            StateUnavailableError: If no node can answer for its key group now; says
                when to ask again.
            RateLimitedError: If this is asked too often; likewise.
            AccessDeniedError: If we may not read this.
            DeadlineExceededError: If there was no answer in time.
            NoLeaderError: If no proxy led in time.
            UnreachableError: If the name service did not answer in time.
            AuthenticationError: If the proxy or the name service does not admit us.
        """
        read = self._builder.keys(
            job_id,
            state_name,
            ROWS,
            (key,),
            deadline_seconds,
            min_batch_id,
            min_generation,
        )
        self._shell.run(read)
        if read.error is not None:
            raise read.error
        value = read.rows[0]
        if value is None:
            if default is MISSING:
                raise UnknownKeyError(job_id, state_name, key)
            return default
        return value

    @overload
    def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: Literal[False] = ...,
        deadline_seconds: float | None = ...,
        min_batch_id: int | None = ...,
        min_generation: int | None = ...,
    ) -> dict[Any, Any]: ...

    @overload
    def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: Literal[True],
        deadline_seconds: float | None = ...,
        min_batch_id: int | None = ...,
        min_generation: int | None = ...,
    ) -> PartialResult: ...

    def get_many(
        self,
        job_id: str,
        state_name: str,
        keys: Iterable[Any],
        *,
        partial: bool = False,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> dict[Any, Any] | PartialResult:
        """
        Return what is kept under those of *keys* that exist.

        Args:
            job_id: The job.
            state_name: The state.
            keys: The keys; one that cannot be hashed stands in the result in its
                normal form, e.g. as a tuple.
            partial: Return a `PartialResult`: key groups that are unavailable, or not
                answered in time, are then no error.
            deadline_seconds: How long it may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            StateUnavailableError: At once, if no node can answer for some of the key
                groups (without *partial*).
            NameServiceError: As `get`.
        """
        wanted = each_once(keys)
        read = self._builder.keys(
            job_id,
            state_name,
            ROWS,
            wanted,
            deadline_seconds,
            min_batch_id,
            min_generation,
            is_partial=partial,
        )
        if wanted:
            self._run(read)
        try:
            values = values_of(read)
        except TypeError:
            route = self._scans.route(job_id, state_name, read.deadline_ns)
            values = values_of(read, route.hashable)
        return partial_of(read, values) if partial else values

    def exists(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> bool:
        """Return whether anything is kept under *key*; raises as `get` does."""
        read = self._read(
            job_id,
            state_name,
            EXISTS,
            (key,),
            deadline_seconds,
            min_batch_id,
            min_generation,
        )
        return read.rows[0] is not None

    def lookup(
        self,
        job_id: str,
        state_name: str,
        key: object,
        default: Any = MISSING,
        *,
        map_key: object = MISSING,
        start: int | None = None,
        stop: int | None = None,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> StateEntry:
        """
        Return what is kept under *key*, and as of when.

        Args:
            job_id: The job.
            state_name: The state.
            key: The key.
            default: The value of the answer if nothing is kept there, which then tells
                as of when that is so; without it, that is an `UnknownKeyError`.
            map_key: Of a map state, look up this entry alone.
            start: Of a list state, look up the items from here on, as a slice does.
            stop: Where these items end, likewise.
            deadline_seconds: How long it may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            LocalProtocolError: If *map_key* is given and it is no map state, or *start*
                or *stop* and it is no list state.
            NameServiceError: As `get`.
        """
        asking, asked = ROWS, key
        if map_key is not MISSING:
            asking, asked = ENTRY, (key, map_key)
        elif start is not None or stop is not None:
            asking = Asking.items(start, stop)
        read = self._read(
            job_id,
            state_name,
            asking,
            (asked,),
            deadline_seconds,
            min_batch_id,
            min_generation,
        )
        return entry_of(read, default)

    def get_map_entry(
        self,
        job_id: str,
        state_name: str,
        key: object,
        map_key: object,
        default: Any = MISSING,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> Any:
        """
        Return one entry of the map under *key*, a dict of the value columns.

        Raises:
            UnknownKeyError: If there is no such entry, and no *default* is given.
            LocalProtocolError: If it is no map state.
            NameServiceError: As `get`.
        """
        read = self._read(
            job_id,
            state_name,
            ENTRY,
            ((key, map_key),),
            deadline_seconds,
            min_batch_id,
            min_generation,
        )
        value = read.rows[0]
        if value is None:
            if default is MISSING:
                raise UnknownKeyError(job_id, state_name, (key, map_key))
            return default
        return value

    def get_list(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        start: int | None = None,
        stop: int | None = None,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Return the items ``[start:stop]`` of the list under *key*, as a slice does.

        Negative numbers count from the end.  Only these items travel.

        Raises:
            UnknownKeyError: If there is no such list.
            LocalProtocolError: If it is no list state.
            NameServiceError: As `get`.
        """
        asking = Asking.items(start, stop)
        read = self._read(
            job_id,
            state_name,
            asking,
            (key,),
            deadline_seconds,
            min_batch_id,
            min_generation,
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
        min_generation: int | None = None,
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """
        Iterate over rows in the order of their keys, over all nodes, page by page.

        Pages are fetched as the caller comes to them, each as of its own moment: a scan
        sees what was there all the while, and may or may not see what changes
        meanwhile.  Nulls sort first.

        Args:
            job_id: The job.
            state_name: The state.
            prefix: What the keys begin with: a part of a string or binary key, or a
                tuple of values for the first of several key columns.
            start: The first key, included.
            stop: The key to end at, not included.
            limit: How many rows at most.
            deadline_seconds: How long each page may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Yields:
            Key and value.  Of a map state, ``((key, map_key), value)`` for each entry;
            of a list state, ``(key, item)`` for each item, in their order.

        Raises:
            StateUnavailableError: If a node that holds key groups is away; or if the
                state was dropped and made anew meanwhile.
            NameServiceError: As `get`, while iterating.
            ConfigurationError: If *limit* is negative.
        """

        def bounds(route: Route) -> ScanBounds:
            return bounds_of(route, prefix=prefix, start=start, stop=stop)

        return self._scan(
            job_id,
            state_name,
            bounds,
            limit,
            deadline_seconds,
            least_of(min_batch_id, min_generation),
        )

    def scan_map(
        self,
        job_id: str,
        state_name: str,
        key: object,
        *,
        start: object | None = None,
        stop: object | None = None,
        limit: int | None = None,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """
        Iterate over the map under *key* in the order of its map keys, page by page.

        A map of any size can be read so; `get` gives one of at most 16 MiB.  Pages are
        those of a `scan`, each as of its own moment, and come from the one node that
        has the map.

        Args:
            job_id: The job.
            state_name: The state.
            key: The key.
            start: The first map key, included.
            stop: The map key to end at, not included.
            limit: How many entries at most.
            deadline_seconds: How long each page may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Yields:
            Map key and value; nothing if there is no such map.

        Raises:
            LocalProtocolError: If it is no map state, while iterating.
            NameServiceError: As `get`, while iterating.
            ConfigurationError: If *limit* is negative.
        """

        def bounds(route: Route) -> ScanBounds:
            return map_bounds_of(route, key, start=start, stop=stop)

        entries = self._scan(
            job_id,
            state_name,
            bounds,
            limit,
            deadline_seconds,
            least_of(min_batch_id, min_generation),
        )
        return ((map_key, value) for (_, map_key), value in entries)

    def page(
        self,
        job_id: str,
        state_name: str,
        *,
        key: object = MISSING,
        prefix: object | None = None,
        start: object | None = None,
        stop: object | None = None,
        limit: int = 100,
        after: bytes = b"",
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> StatePage:
        """
        Return one page of a `scan`, or of a `scan_map`, and where the next one begins.

        A page has fewer rows than *limit* where they are large: what one answer of each
        node holds (16 MiB) is in memory.
        Who reads a state page by page this way keeps nothing between two pages but
        `StatePage.next_after`, and may be another client by then.

        Args:
            job_id: The job.
            state_name: The state.
            key: Of a map state, read the entries under this key alone; *start* and
                *stop* are map keys then, and there is no *prefix*.
            prefix: As for `scan`.
            start: As for `scan`.
            stop: As for `scan`.
            limit: How many rows at most, 1 to 1,000.
            after: `StatePage.next_after` of the page before; all else as it was then.
            deadline_seconds: How long each answer of the nodes may take, as for `scan`.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            ConfigurationError: If *limit* is out of range.
            LocalProtocolError: If there is a *key*, and it is no map state.
            NameServiceError: As `get`.
        """
        check_page_limit(limit)

        def bounds(route: Route) -> ScanBounds:
            if key is MISSING:
                found = bounds_of(route, prefix=prefix, start=start, stop=stop)
            else:
                found = map_bounds_of(route, key, start=start, stop=stop)
            return evolve(found, start=max(found.start, after))

        least = least_of(min_batch_id, min_generation)
        # One row more than is wanted tells whether there is another page.
        scan_of = self._scans.in_key_order(bounds, limit + 1)
        pages = self._scans.pages(job_id, state_name, scan_of, deadline_seconds, least)
        found: list[ScannedPage] = []
        for page in pages:
            found.append(page)
            if page.rows:
                break  # there may be few: nodes stop at the bytes of an answer
        return page_of(found, limit)

    def _scan(  # noqa: PLR0917 (only called from here)
        self,
        job_id: str,
        state_name: str,
        bounds: Callable[[Route], ScanBounds],
        limit: int | None,
        deadline_seconds: float | None,
        least: Floor | None,
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Return the rows within *bounds*; raise at once if an argument is wrong."""
        check_limit(limit)
        self._builder.route(
            job_id, state_name, self._builder.deadline_ns(deadline_seconds)
        )
        scan_of = self._scans.in_key_order(bounds, limit)
        pages = self._scans.pages(job_id, state_name, scan_of, deadline_seconds, least)
        return (row for page in pages for row in page.route.decode_page(page.rows))

    def table(
        self,
        job_id: str,
        state_name: str,
        *,
        columns: Iterable[str] | None = None,
        row_limit: int = 1_000_000,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> Any:
        """
        Return the whole state as a ``pyarrow.Table``, in the order of its keys.

        There is a row for each key, or each entry of a map.  The columns are those of
        the key, the map key and the value, with the types of the schema; null is null.
        A list state has a row for each key as well, and each value column is a list of
        what its items have there.

        *What is of one moment.*  A table is made of the pages of a `scan`.  Each page
        is what one node held at one moment, after one batch; two pages may be after two
        batches, and a list or a map that is longer than a page may be, too.  The
        metadata of the table tells the oldest and the newest batch that a page was
        read after: ``lodestar.generation`` and ``lodestar.batch_id``,
        ``lodestar.newest_generation`` and ``lodestar.newest_batch_id``; a batch id is
        left out before the first batch of a generation.  If both are the same, the
        table is the state as it was after that batch, but for rows whose time to live
        ended meanwhile.  If not, every row is as of the oldest or a later batch: a row
        that was there all the while is there, and what was changed or deleted meanwhile
        may be as before or as after.  ``lodestar.age_seconds`` is how long ago the
        batch of a page was decided when the page was read, at most.

        Needs pyarrow: ``pip install 'spark-lodestar[frames]'``.

        Args:
            job_id: The job.
            state_name: The state.
            columns: The names of the columns that are wanted, in that order; all of
                them travel nevertheless.
            row_limit: How many rows at most, from 1; of a list state, how many items.
                All of them are in memory.
            deadline_seconds: How long each page may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            TableTooLargeError: If there are more than *row_limit*; says what to do.
            ConfigurationError: If there is no such column, an argument is malformed, or
                pyarrow is not installed.
            StateUnavailableError: If a node that holds key groups is away; or if the
                state was dropped and made anew meanwhile.
            NameServiceError: As `get`.
        """
        check_row_limit(row_limit)
        frame = Frame(job_id, state_name, columns, row_limit)
        least = least_of(min_batch_id, min_generation)
        return frame.table(
            list(
                self._batches(
                    job_id,
                    state_name,
                    frame,
                    self._scans.in_key_order(_all_keys, frame.scan_limit),
                    deadline_seconds,
                    least,
                )
            )
        )

    def batches(
        self,
        job_id: str,
        state_name: str,
        *,
        columns: Iterable[str] | None = None,
        prefix: object | None = None,
        start: object | None = None,
        stop: object | None = None,
        limit: int | None = None,
        freshness: bool = False,
        in_key_order: bool = True,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> Iterator[Any]:
        """
        Iterate over a state, or a part of it, as batches of a `table` of any size.

        Pages are fetched as the caller comes to them, and only the present one is in
        memory; of a list state also the list that is not yet at its end.

        Args:
            job_id: The job.
            state_name: The state.
            columns: As for `table`.
            prefix: What the keys begin with, as for `scan`.
            start: The first key, included.
            stop: The key to end at, not included.
            limit: How many rows of the state at most; of a list state, how many items.
            freshness: Whether columns tell as of when rows were read, at least:
                ``_batch_id``, ``_age_seconds``, ``_generation``, unless the state has
                a column of that name.
            in_key_order: False if any order will do: a whole state is read in a third
                of the time then.
            deadline_seconds: How long each page may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Yields:
            ``pyarrow.RecordBatch``, at least one.  The metadata of each, as `table`
            has it, is about all pages that were read so far: that of the last one is
            about all.

        Raises:
            ConfigurationError: At once, if an argument is malformed or pyarrow is not
                installed; while iterating, if there is no such column.
            StateUnavailableError: While iterating, as `table`.
            NameServiceError: As `get`, while iterating.
        """
        check_limit(limit)
        frame = Frame(job_id, state_name, columns, has_freshness=freshness)
        least = least_of(min_batch_id, min_generation)

        def bounds(route: Route) -> ScanBounds:
            return bounds_of(route, prefix=prefix, start=start, stop=stop)

        self._builder.route(
            job_id, state_name, self._builder.deadline_ns(deadline_seconds)
        )
        is_whole = prefix is None and start is None and stop is None
        scan_of: Callable[[Route], Scan | Walk] = (
            self._scans.in_any_order(limit)
            if is_whole and not in_key_order
            else self._scans.in_key_order(bounds, limit)
        )
        return self._batches(
            job_id, state_name, frame, scan_of, deadline_seconds, least
        )

    def _batches(  # noqa: PLR0917 (only called from here)
        self,
        job_id: str,
        state_name: str,
        frame: Frame,
        scan_of: Callable[[Route], Scan | Walk],
        deadline_seconds: float | None,
        least: Floor | None,
    ) -> Iterator[Any]:
        pages = self._scans.pages(job_id, state_name, scan_of, deadline_seconds, least)
        is_first = True
        for page in pages:
            batch = frame.take(page)
            if batch.num_rows:
                is_first = False
                yield batch
        batch = frame.rest()
        if is_first or batch.num_rows:
            yield batch

    def count(
        self,
        job_id: str,
        state_name: str,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> int:
        """
        Return how many keys the state holds; lists and maps count once for each key.

        Each node counts at its own moment.

        Raises:
            StateUnavailableError: If a node that holds key groups is away.
            NameServiceError: As `get`.
        """
        return self._scans.count(
            job_id, state_name, deadline_seconds, least_of(min_batch_id, min_generation)
        )

    def operator_state(
        self,
        job_id: str,
        name: str,
        *,
        deadline_seconds: float | None = None,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> OperatorStateView:
        """
        Return the items of an operator state, by subtask, as they were after a batch.

        All of them are of one batch, the last one that is published (rule O5).

        Args:
            job_id: The job.
            name: The state's name within its operator.
            deadline_seconds: How long it may take.
            min_batch_id: Wait until this batch is visible.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            UnknownStateError: If no operator of the job has published such a state.
            UnknownJobError: If there is no state of this job at all.
            StateUnavailableError: If no node can answer now, or nothing is published
                yet; says when to ask again.
            DeadlineExceededError: If there was no answer in time; or if the state is
                large, and no two batches were as far apart as it takes to read it.
            NameServiceError: As `get`.
        """
        deadline_ns = self._builder.deadline_ns(deadline_seconds)
        reading = OperatorStateRead(job_id, name)
        while reading.view is None:
            left_seconds = self._builder.seconds_until(deadline_ns)
            read = self._read(
                job_id,
                reading.state_name,
                ROWS,
                reading.wanted(),
                max(left_seconds, 0.001),
                min_batch_id,
                min_generation,
            )
            reading.take(read)
        return reading.view

    # -- what there is -----------------------------------------------------------------

    def jobs(self, *, deadline_seconds: float | None = None) -> list[str]:
        """
        Return the jobs that have state which we may see, sorted.

        Those are among them whose rows nodes keep, and which cannot be asked: the name
        service has lost its store.
        """
        call = self._builder.list_jobs(deadline_seconds)
        self._run(call)
        return list(reply_of(call, JobsListed).job_ids)

    def states(
        self, job_id: str, *, deadline_seconds: float | None = None
    ) -> list[str]:
        """
        Return the names of the states of a job which we may see, sorted.

        Raises:
            UnknownJobError: If there are none.
            StateUnavailableError: If it cannot be said yet, though nodes have rows.
        """
        found = self.describe_all(job_id, deadline_seconds=deadline_seconds)
        return [state.name for state in found]

    def describe_all(
        self, job_id: str, *, deadline_seconds: float | None = None
    ) -> list[StateInformation]:
        """
        Return what is known of the states of a job which we may see, by name.

        Raises:
            UnknownJobError: If there are none.
        """
        call = self._builder.list_states(job_id, deadline_seconds)
        self._run(call)
        return [information_of(state) for state in reply_of(call, StatesListed).states]

    def describe(
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
        self._run(call)
        return information_of(reply_of(call, StateDescribed).description)

    def wait_for_state(
        self,
        job_id: str,
        state_name: str,
        timeout_seconds: float = 60.0,
        *,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
    ) -> StateInformation:
        """
        Return what is known of a state, as soon as it can be read.

        Args:
            job_id: The job.
            state_name: The state.
            timeout_seconds: How long to wait.
            min_batch_id: Wait for this batch; without it, for any.
            min_generation: Whose batch; without it, of the present generation.

        Raises:
            UnknownStateError: If there was no such state within *timeout_seconds*.
            UnknownJobError: Likewise, if there was no state of the job at all.
            StateUnavailableError: If the state was there, and no such batch.
            NameServiceError: As `get`.
        """
        least = least_of(min_batch_id, min_generation)
        deadline_ns = self._builder.deadline_ns(timeout_seconds)
        while True:
            left_seconds = self._builder.seconds_until(deadline_ns)
            try:
                found = self.describe(
                    job_id, state_name, deadline_seconds=max(left_seconds, 0.001)
                )
            except (UnknownJobError, UnknownStateError):
                if left_seconds <= _POLL_SECONDS:
                    raise
            else:
                if is_as_new_as(found, least):
                    return found
                if left_seconds <= _POLL_SECONDS:
                    raise StateUnavailableError(
                        job_id,
                        state_name,
                        (),
                        _POLL_SECONDS,
                        f"its last batch is {found.batch_id} of generation "
                        f"{found.generation}",
                    )
            # No message tells when a state is made: it is looked for again and again.
            self._shell.pause(_POLL_SECONDS)

    # -- the client itself -------------------------------------------------------------

    def close(self) -> None:
        """
        Release everything.  Idempotent; silent in a forked child.

        Questions that wait end with `LocalProtocolError`.
        """
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(  # noqa: PLR0917 (only called from here)
        self,
        job_id: str,
        state_name: str,
        asking: Asking,
        keys: Sequence[Any],
        deadline_seconds: float | None,
        min_batch_id: int | None,
        min_generation: int | None,
    ) -> KeysRead:
        read = self._builder.keys(
            job_id,
            state_name,
            asking,
            keys,
            deadline_seconds,
            min_batch_id,
            min_generation,
        )
        self._run(read)
        return read

    def _run(self, request: KeysRead | Call) -> None:
        self._shell.run(request)
        raise_error(request.error)


def _all_keys(route: Route) -> ScanBounds:
    return bounds_of(route, prefix=None, start=None, stop=None)
