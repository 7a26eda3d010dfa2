"""Watchers of one key that come one after the other, and what each is told (F3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast, final

import pytest
from attrs import evolve

from queryablestate import StateEntry, StateInformation
from queryablestate.client.async_client import AsyncQueryableStateClient
from queryablestate.errors import RateLimitedError, UnknownStateError
from queryablestate.gateway import GatewayConfig
from queryablestate.gateway.watching import KeyWatch
from queryablestate.schema.schema import AtomicType, Field
from tests.queryablestate.gateway.conftest import AIRCRAFT


pytestmark = pytest.mark.proves("F3")

CONFIG = GatewayConfig(heartbeat_seconds=60.0)


def information_of(*columns: str) -> StateInformation:
    """Return what is known of a state with these value columns."""
    value = tuple(Field(name, AtomicType.INT) for name in columns)
    return StateInformation(
        job_id="flights",
        name="aircraft",
        kind="value",
        schema="",
        key_columns=("tailnum",),
        map_key_columns=(),
        value_columns=columns,
        has_ttl=False,
        generation=1,
        batch_id=1,
        owner="",
        max_parallelism=1,
        nodes=("a",),
        age_seconds=0.0,
        registered_schema=evolve(AIRCRAFT, value=value),
    )


def entry(batch_id: int, **value: int) -> StateEntry:
    """Return what was read after that batch."""
    return StateEntry(
        value=value, generation=1, batch_id=batch_id, age_seconds=0.0, cached=False
    )


@final
class Reads:
    """
    A caller whose reads a test answers.

    Attributes:
        asked: For each read that waits the least batch that it wants, and its answer.
        known: What is known of the state from before, and by now.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int | None, asyncio.Future[StateEntry]]] = []
        self.known = [information_of("delay")]

    @property
    def client(self) -> AsyncQueryableStateClient:
        """Return what reads."""
        return cast("AsyncQueryableStateClient", self)

    async def lookup(
        self, *_: object, min_batch_id: int | None, **__: object
    ) -> StateEntry:
        """Return what the test says."""
        answer: asyncio.Future[StateEntry] = asyncio.get_running_loop().create_future()
        self.asked.append((min_batch_id, answer))
        return await answer

    async def describe(
        self, *_: object, is_new: bool, **__: object
    ) -> tuple[StateInformation, bool]:
        """Return what is known."""
        return (self.known[-1] if is_new else self.known[0]), is_new

    async def answer(
        self, *answers: StateEntry | Exception, least: int | None = None
    ) -> None:
        """Answer the first reads that want *least*."""
        for answer in answers:
            place = [wanted for wanted, _ in self.asked].index(least)
            _, future = self.asked.pop(place)
            if isinstance(answer, StateEntry):
                future.set_result(answer)
            else:
                future.set_exception(answer)
            await settle()

    @property
    def wanted(self) -> list[int | None]:
        """Return the least batches of the reads that wait."""
        return [least for least, _ in self.asked]


@final
class Told:
    """What one watcher hears."""

    def __init__(self, events: AsyncGenerator[bytes | None, None]) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.is_over = False
        self._task = asyncio.ensure_future(self._follow(events))

    async def _follow(self, events: AsyncGenerator[bytes | None, None]) -> None:
        async for event in events:
            assert event is not None
            lines = dict(
                line.split(": ", 1) for line in event.decode().splitlines()[:-1]
            )
            self.heard.append((lines["event"], json.loads(lines["data"])))
        self.is_over = True

    @property
    def values(self) -> list[Any]:
        """Return the values, and the names of what is none."""
        return [data["value"] if name == "value" else name for name, data in self.heard]


async def settle() -> None:
    """Have everything done that need not wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(scenario: Callable[[Reads, KeyWatch], Awaitable[None]]) -> None:
    """Run *scenario* with a watch that has begun."""

    async def main() -> None:
        reads = Reads()
        watch = KeyWatch(reads, CONFIG, "flights", "aircraft", "N1")
        watch.start()
        await scenario(reads, watch)
        watch.end()
        await settle()

    asyncio.run(main())


async def first_of(reads: Reads, watch: KeyWatch) -> Told:
    """Return a first watcher, which was told of batch 1; the next one is waited for."""
    told = Told(watch.events(None))
    await settle()
    await reads.answer(entry(1, delay=1))
    assert told.values == [{"delay": 1}]
    assert reads.wanted == [2]
    return told


class TestJoining:
    """What others were told before is not for one that comes now."""

    @pytest.mark.proves("Q1")
    def test_nothing_that_was_read_before(self) -> None:
        """It may be older than what the caller was told elsewhere, and committed."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            early = await first_of(reads, watch)
            late = Told(watch.events(None))
            await settle()
            assert late.heard == []
            await reads.answer(entry(2, delay=2))
            assert late.values == [{"delay": 2}]
            assert early.values == [{"delay": 1}, {"delay": 2}]
            await reads.answer(entry(2, delay=2), least=2)
            await reads.answer(entry(3, delay=3), least=3)
            assert late.values == [{"delay": 2}, {"delay": 3}]

        run(scenario)

    @pytest.mark.proves("Q1")
    def test_nor_what_was_under_way(self) -> None:
        """A read that had begun is not for one that came after that."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            await settle()
            late = Told(watch.events(None))
            await settle()
            await reads.answer(entry(1, delay=1))
            assert late.heard == []
            await reads.answer(entry(2, delay=2))
            assert late.values == [{"delay": 2}]

        run(scenario)

    def test_many_share_a_read(self) -> None:
        """Those that come while one is under way share the next."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            await first_of(reads, watch)
            late = [Told(watch.events(None)) for _ in range(10)]
            await settle()
            later = [Told(watch.events(None)) for _ in range(10)]
            await settle()
            assert reads.wanted == [2, None]
            await reads.answer(entry(1, delay=1))
            assert [one.values for one in late] == [[{"delay": 1}]] * 10
            assert [one.values for one in later] == [[]] * 10
            assert reads.wanted == [2, None]
            await reads.answer(entry(1, delay=1))
            assert [one.values for one in later] == [[{"delay": 1}]] * 10
            assert reads.wanted == [2]

        run(scenario)

    @pytest.mark.proves("Q3")
    def test_no_error_of_before(self) -> None:
        """The state was made anew before this one came: its watch goes on."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            early = await first_of(reads, watch)
            late = Told(watch.events(None))
            await settle()
            await reads.answer(UnknownStateError("flights", "aircraft"), least=2)
            assert early.values == [{"delay": 1}, "problem"]
            assert late.heard == []
            await reads.answer(entry(0, delay=5))
            assert late.values == [{"delay": 5}]
            assert early.values[2:] == [{"delay": 5}]
            assert not late.is_over

        run(scenario)

    def test_errors_of_its_own(self) -> None:
        """What its own read meets is told, and again what others know already."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            early = await first_of(reads, watch)
            late = Told(watch.events(None))
            await settle()
            await reads.answer(RateLimitedError(0.0, "caller"))
            assert late.values == ["problem"]
            later = Told(watch.events(None))
            await settle()
            assert later.heard == []
            await asyncio.sleep(0.15)
            await reads.answer(RateLimitedError(0.0, "caller"))
            assert later.values == ["problem"]
            assert early.values == [{"delay": 1}, "problem"]
            await asyncio.sleep(0.15)
            await reads.answer(entry(1, delay=1))
            assert late.values == later.values == ["problem", {"delay": 1}]

        run(scenario)

    def test_the_end(self) -> None:
        """A state that is gone ends the watch for all that came before."""

        async def scenario(reads: Reads, watch: KeyWatch) -> None:
            early = await first_of(reads, watch)
            late = Told(watch.events(None))
            await settle()
            await reads.answer(UnknownStateError("flights", "aircraft"))
            assert [early.is_over, late.is_over] == [True, True]
            assert late.values == ["problem"]

        run(scenario)


def test_batches_that_begin_anew() -> None:
    """Those of a state that took the place of another are told, though lower."""

    async def scenario(reads: Reads, watch: KeyWatch) -> None:
        told = await first_of(reads, watch)
        await reads.answer(entry(0, delay=7), least=2)
        assert told.values == [{"delay": 1}, {"delay": 7}]

    run(scenario)


@pytest.mark.proves("W5")
def test_a_column_that_was_added() -> None:
    """It is told with the batch that brings it, though the schema was known before."""

    async def scenario(reads: Reads, watch: KeyWatch) -> None:
        told = await first_of(reads, watch)
        reads.known.append(information_of("delay", "speed"))
        await reads.answer(entry(2, delay=1, speed=9), least=2)
        assert told.values[1:] == [{"delay": 1, "speed": 9}]

    run(scenario)


@pytest.mark.proves("Q1")
def test_a_row_that_is_read_once_more() -> None:
    """
    What another read has found meanwhile is told before it, and not after it.

    A row that was read by older columns than are known by now is read anew.  While that
    took, an answer that was there already waited behind it, and was told last: watchers
    saw their key go back to an older batch.
    """

    async def scenario(reads: Reads, watch: KeyWatch) -> None:
        early = await first_of(reads, watch)
        reads.known = [information_of("delay", "speed")]
        late = Told(watch.events(None))
        await settle()
        await reads.answer(entry(2, delay=2))  # without the column
        assert reads.wanted == [2, None]
        await reads.answer(entry(3, delay=3, speed=3), least=2)
        await reads.answer(entry(4, delay=4, speed=4))
        assert early.values[-1] == late.values[-1] == {"delay": 4, "speed": 4}

    run(scenario)
