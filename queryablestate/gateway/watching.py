"""
`KeyWatches`: keys that are watched, each read once for all of its watchers.

Theory of operation.  A watch does not poll.  It reads its key, and then asks for the
batch after the one that it was read after: nodes keep such a question until that batch
is applied (rule Q2).  So a change is told as soon as it can be read.  What many watches
wait for is answered at one moment, and asked again at one moment, so the client puts it
into one message for each node: a thousand keys of a state cost what one does.

A question that a node has kept for `GatewayConfig.park_seconds` ends.  The key is then
read without waiting, which also tells of a row whose time to live has ended, and of a
state that is gone.

Watchers hear of the newest value alone.  One that reads slowly finds what is newest
when it comes back; what was in between is left out, so nothing waits for it.

What a watcher is told was read after it came, and so were problems: its caller may have
seen more, elsewhere, than what was read for others before (rules Q1, Q3).  So for one
that joins others the key is read once more, beside the question that waits.  Those that
join meanwhile share the next read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from attrs import frozen

from nameservice import (
    AuthenticationError,
    LocalProtocolError,
    SystemClock,
    get_logger,
)
from nameservice.clock import NS_PER_SECOND
from queryablestate.client.documents import FoundKey, found_document, key_to_json
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
    WrongKeyTypeError,
)
from queryablestate.gateway.events import event_bytes
from queryablestate.gateway.fitting import fits
from queryablestate.gateway.problems import Problem, problem_of, unexpected
from queryablestate.gateway.tags import EventId, digest


if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from queryablestate.client.async_client import AsyncQueryableStateClient
    from queryablestate.client.floors import Floor
    from queryablestate.client.results import StateEntry, StateInformation
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["KeyWatch", "KeyWatches", "Watcher"]

_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0
_PARK_SECONDS_MIN: Final = 1.0
_FLOOR_SECONDS_MAX: Final = 30.0
_LASTING: Final = (
    AuthenticationError,
    AccessDeniedError,
    KeyTooLargeError,
    LocalProtocolError,
    UnknownJobError,
    UnknownStateError,
    WrongKeyTypeError,
)
"""Errors that the same question meets again: the watch ends with them."""

_ABSENT: Final[Any] = None


class Watcher(Protocol):
    """As whom keys are read."""

    @property
    def client(self) -> AsyncQueryableStateClient:
        """Return what reads them."""
        ...

    async def describe(
        self, job_id: str, state_name: str, *, deadline_seconds: float, is_new: bool
    ) -> tuple[StateInformation, bool]:
        """Return what is known of a state, and whether that was asked just now."""
        ...


@final
@frozen
class _Seen:
    """
    What was read last.

    Attributes:
        event_id: As of when, and what.
        event: It, for watchers.
        read_count: How many reads had begun with the newest that has found it.
    """

    event_id: EventId
    event: bytes
    read_count: int


@final
class KeyWatch:
    """
    One key that is watched, by any number of watchers.

    Args:
        caller: As whom it is read.
        config: Limits.
        job_id: The job.
        state_name: The state.
        key: The key, as the client takes it.
    """

    def __init__(
        self,
        caller: Watcher,
        config: GatewayConfig,
        job_id: str,
        state_name: str,
        key: Any,
    ) -> None:
        self._caller = caller
        self._config = config
        self._state = (job_id, state_name)
        self._key = key
        self._clock = SystemClock()
        self._log = get_logger(component="gateway", job_id=job_id, state=state_name)
        self._seen: _Seen | None = None
        self._problem: Problem | None = None
        self._is_over = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._telling = asyncio.Lock()
        self._read_count = 0
        # How many had begun when the last watcher came, and with what failed last.
        self._came_count = 0
        self._failed_count = 0
        self._met_count = 0  # with the one that has just failed
        self._look: asyncio.Task[None] | None = None
        self._is_look_due = False
        self.watcher_count = 0

    def start(self) -> None:
        """Begin to read."""
        self._task = asyncio.ensure_future(self._run())

    def end(self) -> None:
        """Read no more; watchers hear nothing more, and end."""
        self._is_over = True
        self._announce()
        for task in (self._task, self._look):
            if task is not None:
                task.cancel()

    @property
    def is_over(self) -> bool:
        """Return whether it reads no more."""
        return self._is_over

    def events(self, last: EventId | None) -> AsyncGenerator[bytes | None, None]:
        """
        Return what yields what there is now, then each change, as events.

        Now is when this is called: nothing that was read before is told.  What there is
        after a problem is told, too, also if nothing has changed.

        Args:
            last: What the watcher has seen before: it is not told that again, and
                nothing that is older.

        Returns:
            A generator of events; or of None when there was none for a while, and one
            is to be sent that says so.
        """
        came_count = self._came_count = self._read_count
        if came_count:
            self._look_again()
        return self._events(last, came_count)

    async def _events(
        self, last: EventId | None, came_count: int
    ) -> AsyncGenerator[bytes | None, None]:
        """Yield `events` of reads that began after *came_count* others."""
        told_value = None if last is None else last.value
        floor: Floor | None = None if last is None else last.floor
        told_problem: Problem | None = None
        is_in_doubt = False  # whether a problem was told, and no value since
        began_ns = self._clock.now_ns()
        while True:
            changed = self._changed  # before looking: what comes now is seen below
            seen = self._seen
            if seen is not None and seen.read_count <= came_count:
                seen = None
            if floor is not None and self._has_waited(began_ns):
                floor = None  # that batch is lost: the name service forgot its store
            if seen is not None and (floor is None or seen.event_id.floor >= floor):
                floor = None
                is_well_again = is_in_doubt and self._problem is None
                if seen.event_id.value != told_value or is_well_again:
                    told_value, is_in_doubt = seen.event_id.value, False
                    yield seen.event
                    continue
            problem = self._problem if self._failed_count > came_count else None
            if problem is not None and problem is not told_problem:
                is_in_doubt = True
                yield event_bytes("problem", problem.document())
            told_problem = problem
            if self._is_over:
                return
            try:
                async with asyncio.timeout(self._config.heartbeat_seconds):
                    await changed.wait()
            except TimeoutError:
                yield None

    def _has_waited(self, since_ns: int) -> bool:
        waited_ns = self._clock.now_ns() - since_ns
        return waited_ns > _FLOOR_SECONDS_MAX * NS_PER_SECOND

    # -- reading -----------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._is_over:
            try:
                await self._follow()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 (watchers are told what it was)
                await self._fail(error)

    def _look_again(self) -> None:
        """Read the key once more, for one that has come."""
        self._is_look_due = True
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._look_until_seen())

    async def _look_until_seen(self) -> None:
        """Read until it was done for everyone who came."""
        while self._is_look_due and not self._is_over:
            self._is_look_due = False
            try:
                await self._read(None)
                self._announce()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 (watchers are told what it was)
                self._is_look_due = True
                await self._fail(error)

    async def _follow(self) -> None:
        """Read until something goes wrong."""
        entry = await self._read(None)
        while True:
            batch_id = -1 if entry.batch_id is None else entry.batch_id
            began_ns = self._clock.now_ns()
            try:
                entry = await self._read((entry.generation, batch_id + 1))
            except (DeadlineExceededError, StateUnavailableError):
                # No batch came, or none that could be waited for.  Where it is refused
                # at once there is no room to wait, and it is asked now and then.
                waited_ns = self._clock.now_ns() - began_ns
                if waited_ns < _PARK_SECONDS_MIN * NS_PER_SECOND:
                    await asyncio.sleep(_PARK_SECONDS_MIN)
                entry = await self._read(None)

    async def _read(self, least: Floor | None) -> StateEntry:
        """Read the key, after the batch *least* or a later one, and tell of it."""
        generation, batch_id = (None, None) if least is None else least
        if least is None:
            deadline_seconds = self._config.deadline_seconds
        else:
            deadline_seconds = self._config.park_seconds
        self._read_count = read_count = self._read_count + 1

        async def look() -> StateEntry:
            return await self._caller.client.lookup(
                *self._state,
                self._key,
                _ABSENT,
                deadline_seconds=deadline_seconds,
                min_batch_id=batch_id,
                min_generation=generation,
            )

        try:
            entry, is_last = await look(), False
            while True:
                async with self._telling:  # in the order of the answers (rule Q1)
                    information = await self._information(entry)
                    if is_last or fits(information, entry):
                        had_problem = self._problem is not None
                        self._problem = None
                        self._tell(information, entry, read_count)
                        if had_problem:
                            self._announce()
                        break
                # It was read by older columns than the client knows by now.  What is
                # read anew is another answer, and waits for its turn as such.
                entry, is_last = await look(), True
        except Exception:
            self._met_count = read_count
            raise
        return entry

    async def _information(self, entry: StateEntry) -> StateInformation:
        """Return what is known of the state that *entry* is of."""
        found, is_new = await self._caller.describe(
            *self._state,
            deadline_seconds=self._config.deadline_seconds,
            is_new=False,
        )
        if not is_new and not fits(found, entry):
            found, _ = await self._caller.describe(
                *self._state,
                deadline_seconds=self._config.deadline_seconds,
                is_new=True,
            )
        return found

    def _tell(
        self, information: StateInformation, entry: StateEntry, read_count: int
    ) -> None:
        schema = information.registered_schema
        is_absent = entry.value is _ABSENT
        if is_absent:
            document: dict[str, Any] = {
                "key": key_to_json(schema.key, self._key),
                "value": None,
                "generation": entry.generation,
                "batch_id": entry.batch_id,
                "age_seconds": entry.age_seconds,
                "cached": entry.cached,
            }
        else:
            document = found_document(
                schema, FoundKey(self._key, (), entry.value, entry)
            )
        text = json.dumps(document["value"])
        batch_id = -1 if entry.batch_id is None else entry.batch_id
        event_id = EventId(
            (entry.generation, batch_id), "-" if is_absent else digest(text.encode())
        )
        before = self._seen
        if before is not None:
            read_count = max(read_count, before.read_count)
        name = "absent" if is_absent else "value"
        event = event_bytes(name, document, str(event_id))
        self._seen = _Seen(event_id, event, read_count)
        if before is None or before.event_id.value != event_id.value:
            self._announce()

    async def _fail(self, error: Exception) -> None:
        """
        Tell watchers what is wrong, and wait until it is worth trying again.

        It is not for those who came after the read that has met it had begun: the state
        may have come to be since (rule Q3).
        """
        read_count = self._met_count
        found = problem_of(error)
        if found is None:
            self._log.error("watch.failed", error=repr(error))
            found = unexpected()
        is_for_more = self._failed_count <= self._came_count < read_count
        self._failed_count = max(self._failed_count, read_count)
        if isinstance(error, _LASTING) and read_count > self._came_count:
            self._is_over = True
        is_other = self._problem is None or self._problem.name != found.name
        if is_other:
            self._problem = found
        if is_other or is_for_more or self._is_over:
            self._announce()
        pause_seconds = found.retry_after_seconds or _PAUSE_SECONDS_MIN
        if isinstance(error, RateLimitedError):
            pause_seconds = error.retry_after_seconds
        await asyncio.sleep(
            min(max(pause_seconds, _PAUSE_SECONDS_MIN), _PAUSE_SECONDS_MAX)
        )

    def _announce(self) -> None:
        """Wake the watchers that wait now."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@final
class KeyWatches:
    """
    The keys that one caller watches.

    Args:
        caller: As whom they are read.
        config: Limits.
    """

    def __init__(self, caller: Watcher, config: GatewayConfig) -> None:
        self._caller = caller
        self._config = config
        self._watches: dict[tuple[str, str, str], KeyWatch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    @contextlib.contextmanager
    def watching(self, information: StateInformation, key: Any) -> Iterator[KeyWatch]:
        """Yield the watch of *key*, for as long as one watcher stays."""
        state = (information.job_id, information.name)
        tree = key_to_json(information.registered_schema.key, key)
        name = (*state, json.dumps(tree))
        watch = self._watches.get(name)
        if watch is None or watch.is_over:
            watch = KeyWatch(self._caller, self._config, *state, key)
            self._watches[name] = watch
            watch.start()
        watch.watcher_count += 1
        try:
            yield watch
        finally:
            watch.watcher_count -= 1
            if not watch.watcher_count:
                if self._watches.get(name) is watch:
                    del self._watches[name]
                watch.end()

    def end(self) -> None:
        """End all of them."""
        for watch in self._watches.values():
            watch.end()
