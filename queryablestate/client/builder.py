"""
`QueryBuilder`: from a user's call to a request, and from there to its result.

What `QueryableStateClient` and its asyncio twin have in common: neither waits here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from msgspec import Struct

from nameservice import NS_PER_SECOND, ConfigurationError, RemoteProtocolError
from nameservice.clock import MS_PER_SECOND
from nameservice.fields import check_name
from queryablestate.client.floors import (
    PRESENT,
    Floor,
    floor_of_reading,
    later_of,
)
from queryablestate.client.requests import (
    UNANSWERED,
    Call,
    KeysRead,
    NodeRead,
    RouteRead,
    StateName,
)
from queryablestate.client.results import PartialResult, StateEntry, StatePage
from queryablestate.client.routes import Asking, Route
from queryablestate.client.scanning import PAGE_ROW_COUNT_MAX, ScannedPage
from queryablestate.errors import StateUnavailableError, UnknownKeyError
from queryablestate.wire.clients import DescribeState, ListJobs, ListStates
from queryablestate.wire.questions import CountKeys, ScanRows, WalkRows


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nameservice import Clock
    from queryablestate.client.results import StateInformation
    from queryablestate.wire.clients import ClientRequest


__all__ = [
    "MISSING",
    "QueryBuilder",
    "check_limit",
    "check_page_limit",
    "each_once",
    "entry_of",
    "is_as_new_as",
    "least_of",
    "page_of",
    "partial_of",
    "raise_error",
    "remade_error",
    "reply_of",
    "values_of",
]

T = TypeVar("T", bound=Struct)

MISSING: Final[Any] = type("MISSING", (), {"__repr__": lambda _: "MISSING"})()
"""The default of ``default``: a key that does not exist is an error."""

_STATE_COUNT_MAX: Final = 10_000
_PLAIN_KINDS: Final = frozenset({str, int, bytes})
"""Two of one kind that are equal are the same key."""

_RETRY_AFTER_SECONDS: Final = 0.1
_DEADLINE_SECONDS_MAX: Final = 86_400.0


@final
class QueryBuilder:
    """
    Makes requests.

    Args:
        clock: What deadlines are measured by.
        deadline_seconds: How long a request may take if it does not say.

    Raises:
        ConfigurationError: If *deadline_seconds* is out of range.
    """

    def __init__(self, clock: Clock, *, deadline_seconds: float) -> None:
        self._now_ns = clock.now_ns
        self._deadline_ns = _check_deadline(deadline_seconds)
        self._states: dict[StateName, StateName] = {}  # names that were checked

    def keys(  # noqa: PLR0917 (keywords cost a single get more than its hash)
        self,
        job_id: str,
        state_name: str,
        asking: Asking,
        keys: Sequence[Any],
        deadline_seconds: float | None,
        min_batch_id: int | None,
        min_generation: int | None,
        *,
        is_partial: bool = False,
    ) -> KeysRead:
        """
        Return the question for *keys*.

        Raises:
            ConfigurationError: If an argument is out of range.
        """
        least = None
        if min_batch_id is not None or min_generation is not None:
            least = least_of(min_batch_id, min_generation)
        try:
            state = self._states.get((job_id, state_name))
        except TypeError:  # what cannot be hashed is no name
            state = None
        if state is None:
            state = _state(job_id, state_name)
            if len(self._states) >= _STATE_COUNT_MAX:
                self._states.clear()
            self._states[state] = state
        now_ns = self._now_ns()
        return KeysRead(
            None,
            state,
            asking,
            keys,
            now_ns,
            now_ns
            + (
                self._deadline_ns
                if deadline_seconds is None
                else _check_deadline(deadline_seconds)
            ),
            least,
            is_partial,
        )

    def route(
        self,
        job_id: str,
        state_name: str,
        deadline_ns: int,
        stale: Route | None = None,
        *,
        is_new: bool = False,
    ) -> RouteRead:
        """
        Return the question for the route to a state, another one than *stale*.

        If *is_new*, what is known from before will not do.
        """
        return RouteRead(
            None, _state(job_id, state_name), self._now_ns(), deadline_ns, stale, is_new
        )

    def nodes(
        self,
        route: Route,
        operations: Sequence[tuple[int, ScanRows | WalkRows | CountKeys]],
        deadline_ns: int,
        least: Floor | None,
    ) -> list[NodeRead]:
        """Return the questions for some nodes of *route*, by index."""
        now_ns = self._now_ns()
        state = (route.description.job_id, route.description.state_name)
        return [
            NodeRead(None, state, route, index, operation, now_ns, deadline_ns, least)
            for index, operation in operations
        ]

    def list_jobs(self, deadline_seconds: float | None) -> Call:
        """Return the question for the jobs."""
        return self._call(
            lambda number, session: ListJobs(request_id=number, session=session),
            deadline_seconds,
        )

    def list_states(self, job_id: str, deadline_seconds: float | None) -> Call:
        """Return the question for the states of a job."""
        check_name(job_id, what="job_id")
        return self._call(
            lambda number, session: ListStates(
                request_id=number, session=session, job_id=job_id
            ),
            deadline_seconds,
        )

    def describe(
        self, job_id: str, state_name: str, deadline_seconds: float | None
    ) -> Call:
        """Return the question for what is known of a state."""
        _state(job_id, state_name)
        return self._call(
            lambda number, session: DescribeState(
                request_id=number,
                session=session,
                job_id=job_id,
                state_name=state_name,
            ),
            deadline_seconds,
        )

    def deadline_ns(self, deadline_seconds: float | None) -> int:
        """
        Return when a request that is made now has to be answered.

        Raises:
            ConfigurationError: If *deadline_seconds* is out of range.
        """
        if deadline_seconds is None:
            return self._now_ns() + self._deadline_ns
        return self._now_ns() + _check_deadline(deadline_seconds)

    def seconds_until(self, deadline_ns: int) -> float:
        """Return how long it is until *deadline_ns*; negative if it is past."""
        return (deadline_ns - self._now_ns()) / NS_PER_SECOND

    def _call(
        self,
        build: Callable[[int, bytes], ClientRequest],
        deadline_seconds: float | None,
    ) -> Call:
        return Call(None, build, self._now_ns(), self.deadline_ns(deadline_seconds))


# -- results -------------------------------------------------------------------------


def each_once(keys: Iterable[Any]) -> tuple[Any, ...]:
    """
    Return *keys* in their order, each once, unless one of them cannot be hashed.

    Raises:
        ConfigurationError: If it is one key, and not several.
    """
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        message = (
            f"keys must be a list of keys, not one {type(keys).__name__}: "
            f"write [{keys!r}]"
        )
        raise ConfigurationError(message)
    given = tuple(keys)
    try:
        kinds = set(map(type, given))
        if len(kinds) == 1 and kinds <= _PLAIN_KINDS:
            return tuple(dict.fromkeys(given))
        # Of keys that are equal, one may be of another type, and no key at all: True.
        return tuple({(type(key), key): key for key in given}.values())
    except TypeError:
        return given


def values_of(
    read: KeysRead, hashable: Callable[[Any], Hashable] | None = None
) -> dict[Any, Any]:
    """
    Return what was found, by key.

    Args:
        read: It is done.
        hashable: Makes a key such that it can stand in a dict.

    Raises:
        TypeError: Without *hashable*, if a key cannot.
    """
    keys = read.keys if hashable is None else map(hashable, read.keys)
    return {
        key: row
        for key, row in zip(keys, read.rows, strict=True)
        if row is not None and row is not UNANSWERED
    }


def partial_of(read: KeysRead, values: Mapping[Any, Any]) -> PartialResult:
    """Return what was found, and what could not be read."""
    error = read.partial_error
    return PartialResult(
        values=values,
        unavailable=tuple(
            key
            for key, row in zip(read.keys, read.rows, strict=True)
            if row is UNANSWERED
        ),
        error=error,
    )


def entry_of(read: KeysRead, default: Any = MISSING) -> StateEntry:
    """
    Return the answer to a question for one key.

    Raises:
        UnknownKeyError: If nothing is kept there, and no *default* is given.
    """
    reading = read.reading
    assert reading is not None
    (value,) = read.rows
    if value is None:
        if default is MISSING:
            raise UnknownKeyError(*read.state, read.keys[0])
        value = default
    return StateEntry(
        value=value,
        generation=reading.generation,
        batch_id=reading.batch_id,
        age_seconds=reading.age_ms / MS_PER_SECOND,
        cached=reading.is_cached,
    )


def page_of(pages: Sequence[ScannedPage], limit: int) -> StatePage:
    """
    Return what was scanned as one page.

    Args:
        pages: What a scan for one row more than *limit* gave, up to the first rows.
        limit: How many rows the page may have.
    """
    # None but the last one has rows.
    rows = list(pages[-1].rows) if pages else []
    readings = [reading for page in pages for reading in page.readings]
    oldest = min(readings, key=floor_of_reading, default=None)
    is_last = len(rows) <= limit and (not pages or pages[-1].is_last)
    del rows[limit:]
    return StatePage(
        rows=pages[-1].route.decode_page(rows) if rows else [],
        # No key begins with another one: this is the least that sorts behind it.
        next_after=None if is_last else rows[-1][0] + b"\0",
        generation=None if oldest is None else oldest.generation,
        batch_id=None if oldest is None else oldest.batch_id,
        age_seconds=max((one.age_ms for one in readings), default=0) / MS_PER_SECOND,
    )


def check_page_limit(limit: object) -> None:
    """Raise `ConfigurationError` if a page cannot have *limit* rows."""
    if (
        isinstance(limit, bool)
        or not isinstance(limit, int)
        or not 1 <= limit <= PAGE_ROW_COUNT_MAX
    ):
        raise ConfigurationError(
            f"limit must be a whole number from 1 to {PAGE_ROW_COUNT_MAX}, not "
            f"{limit!r}"
        )


def check_limit(limit: object) -> None:
    """Raise `ConfigurationError` if *limit* is no number of rows, nor None."""
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(limit, int) or limit < 0
    ):
        raise ConfigurationError(f"limit must be a whole number from 0, not {limit!r}")


def raise_error(error: Exception | None) -> None:
    """Raise *error* if there is one."""
    if error is not None:
        raise error


def remade_error(route: Route) -> StateUnavailableError:
    """Return the error of who has read a part of another state than that of *route*."""
    return StateUnavailableError(
        route.description.job_id,
        route.description.state_name,
        (),
        _RETRY_AFTER_SECONDS,
        "it was dropped and made anew while it was read; ask again",
    )


def reply_of(call: Call, expected: type[T]) -> T:
    """
    Return what *call* was answered.

    Raises:
        RemoteProtocolError: If that is the answer to something else.
    """
    reply = call.reply
    if not isinstance(reply, expected):
        raise RemoteProtocolError(
            "malformed", f"a {type(reply).__name__} is no answer to this request"
        )
    return reply


# -- arguments -----------------------------------------------------------------------


def _state(job_id: str, state_name: str) -> StateName:
    """Return the name of a state, checked: a proxy would not understand another."""
    return (
        check_name(job_id, what="job_id"),
        check_name(state_name, what="state_name"),
    )


def _check_deadline(deadline_seconds: object) -> int:
    if (
        isinstance(deadline_seconds, bool)
        or not isinstance(deadline_seconds, int | float)
        or not 0 < deadline_seconds <= _DEADLINE_SECONDS_MAX  # also refuses NaN
    ):
        raise ConfigurationError(
            "deadline_seconds must be a number above 0 and at most "
            f"{_DEADLINE_SECONDS_MAX:g}, not {deadline_seconds!r}"
        )
    return round(deadline_seconds * NS_PER_SECOND)


def least_of(min_batch_id: object, min_generation: object) -> Floor | None:
    """
    Return which batch an answer must have at least, or None if any will do.

    Args:
        min_batch_id: The batch; None is any batch of *min_generation*.
        min_generation: Whose batch it is; None is the present generation.

    Raises:
        ConfigurationError: If one of them is no such number, nor None.
    """
    batch_id = _checked("min_batch_id", min_batch_id, 0)
    generation = _checked("min_generation", min_generation, 1)
    if generation is None:
        return None if batch_id is None else (PRESENT, batch_id)
    return (generation, 0 if batch_id is None else batch_id)


def is_as_new_as(found: StateInformation, least: Floor | None) -> bool:
    """Return whether a state has a batch, and that or a later one than *least*."""
    if found.batch_id is None:
        return False
    wanted = later_of(least, (found.generation, 0))
    assert wanted is not None
    return (found.generation, found.batch_id) >= wanted


def _checked(name: str, value: object, least: int) -> int | None:
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not least <= value < 2**63
    ):
        raise ConfigurationError(
            f"{name} must be a whole number from {least}, not {value!r}"
        )
    return value
