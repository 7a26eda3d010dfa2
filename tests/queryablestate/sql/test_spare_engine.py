"""The engine of the next statement, made ahead of it (F6)."""

from __future__ import annotations

import asyncio
import threading

import pytest

from queryablestate.sql.engine import Engine
from queryablestate.sql.spare_engine import SpareEngine


pytestmark = pytest.mark.proves("F6")

MEMORY_LIMIT_BYTES = 64 << 20


def make_engine() -> Engine:
    """Return a small one."""
    return Engine(MEMORY_LIMIT_BYTES, 1)


def test_each_is_taken_once() -> None:
    """F6: a statement shares its engine with no other."""

    async def take_two() -> tuple[Engine, Engine]:
        spare = SpareEngine(make_engine)
        prepared = await spare.prepare()
        first, second = await spare.take(), await spare.take()
        assert first is prepared
        return first, second

    first, second = asyncio.run(take_two())
    assert first is not second
    first.close()
    second.close()


def test_one_that_failed_is_made_again() -> None:
    """F6: what could not be made ahead refuses one statement, not all that follow."""
    failures = [MemoryError("no room")]

    def make() -> Engine:
        if failures:
            raise failures.pop()
        return make_engine()

    async def take() -> Engine:
        spare = SpareEngine(make)
        spare.prepare()
        with pytest.raises(MemoryError):
            await spare.take()
        return await spare.take()

    asyncio.run(take()).close()


def test_one_that_was_waited_for_in_vain_is_the_next() -> None:
    """F6: a statement that is cancelled while its engine is made leaves it there."""
    may_end = threading.Event()
    made: list[Engine] = []

    def make() -> Engine:
        may_end.wait()
        made.append(make_engine())
        return made[-1]

    async def take() -> Engine:
        spare = SpareEngine(make)
        waiting = asyncio.create_task(spare.take())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        may_end.set()
        return await spare.take()

    taken = asyncio.run(take())
    assert made == [taken]
    taken.close()
