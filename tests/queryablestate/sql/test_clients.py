"""The clients of callers: kept while they are used, closed when they are too many."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from haservices import HAServices
from queryablestate.sql.clients import CallerClients
from tests.queryablestate.sql.conftest import Served


pytestmark = [pytest.mark.shells, pytest.mark.proves("F6")]


async def _in_use(ha: HAServices) -> list[str]:
    """Return what a client may ask that comes back while others are discarded."""
    clients = CallerClients(ha, count_max=2, deadline_seconds=30.0)
    async with contextlib.AsyncExitStack() as held:
        for token in ("a" * 32, "b" * 32):  # both are kept, and idle
            async with clients.client_of(token) as client:
                await client.jobs()
        await held.enter_async_context(clients.client_of("c" * 32))
        leaving = contextlib.AsyncExitStack()
        await leaving.enter_async_context(clients.client_of("d" * 32))
        closing = asyncio.create_task(leaving.aclose())
        await asyncio.sleep(0)  # now the first one is being closed
        assert not closing.done()
        client = await held.enter_async_context(clients.client_of("b" * 32))
        await closing
        jobs: list[str] = list(await client.jobs())
    await clients.close()
    return jobs


def test_who_comes_back_while_another_is_closed_keeps_its_client(
    served: Served,
) -> None:
    """
    It was one of those that were to be closed, and was: a session's statements failed.

    Where more callers than are kept are there at once, several go at once.
    """
    assert asyncio.run(_in_use(served.ha)) == ["flights"]
