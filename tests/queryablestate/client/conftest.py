"""Where the tests of the clients run: a name service, a proxy, an event loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator

import pytest

from haservices import HAServices, open_ha_services
from queryablestate import QueryableStateClient
from tests.queryablestate.scripted_proxy import Lead, ScriptedProxy
from tests.queryablestate.scripted_state import ScriptedState
from tests.recording import WAIT_SECONDS


_names = itertools.count(1)


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """What runs the coroutines of a test, on a loop that is made when it is needed."""
    with asyncio.Runner() as running:
        yield running


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; a loop that hangs is found out by the test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def act() -> None:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            await pyfuncitem.obj(**arguments)

    running = pyfuncitem.funcargs["runner"]
    assert isinstance(running, asyncio.Runner)
    running.run(act())
    return True


@pytest.fixture
def services() -> Iterator[HAServices]:
    """A name service of this test's own, in this process."""
    with open_ha_services(f"embedded:client-{next(_names)}") as opened:
        yield opened


@pytest.fixture
def state() -> ScriptedState:
    """A value state with a hundred rows on two nodes."""
    return ScriptedState(rows={f"N{n}": (f"A{n}", n) for n in range(100)})


@pytest.fixture
def proxy(services: HAServices, state: ScriptedState) -> Iterator[ScriptedProxy]:
    """A proxy that leads, and answers about *state*."""
    with ScriptedProxy(state) as running, Lead(services, running.address):
        yield running


@pytest.fixture
def client(
    services: HAServices, proxy: ScriptedProxy
) -> Iterator[QueryableStateClient]:
    """A client of that proxy."""
    with QueryableStateClient(services, deadline_seconds=WAIT_SECONDS) as opened:
        yield opened
