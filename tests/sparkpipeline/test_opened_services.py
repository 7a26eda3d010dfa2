"""Q3: what `get_leader_retriever` has opened may be closed by a signal handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from haservices import HAConfig
from haservices.testing import LeaderServer, ServerConfig
from sparkpipeline import close_ha_services, configuration, get_leader_retriever
from tests.interrupting import Closed, break_off, close_amid
from tests.recording import wait_until


pytestmark = [pytest.mark.shells, pytest.mark.proves("Q3")]

LINE_STEP: Final = 7
PLACES: Final = ("/sparkpipeline/", "/haservices/", "/nameservice/", "/retrieval/")
ACTIONS: Final[dict[str, Callable[[HAConfig], object]]] = {
    "open": lambda config: get_leader_retriever("flights", config=config),
    "close": lambda _: close_ha_services(),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LeaderServer]:
    """Return a name service."""
    with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as started:
        yield started


def begin(server: LeaderServer, name: str) -> Closed:
    """Return one of the actions, amid which what it opens or closes is closed."""
    config = HAConfig(url=server.url)
    if name == "close":
        get_leader_retriever("flights", config=config)
    return Closed(
        action=lambda: ACTIONS[name](config),
        close=close_ha_services,
        check=lambda: wait_until(lambda: not server.status()["sessions"]),
    )


@pytest.mark.parametrize("first", range(LINE_STEP))
@pytest.mark.parametrize("name", ACTIONS)
def test_a_handler_closes_them(server: LeaderServer, name: str, first: int) -> None:
    """It waited for ever for a lock that was held while they were opened, or closed."""
    close_amid(lambda: begin(server, name), places=PLACES, first=first, step=LINE_STEP)


@pytest.mark.parametrize("first", range(LINE_STEP))
@pytest.mark.parametrize("name", ACTIONS)
def test_a_handler_raises(server: LeaderServer, name: str, first: int) -> None:
    """What was being opened is closed with all the rest."""
    break_off(lambda: begin(server, name), places=PLACES, first=first, step=LINE_STEP)


def test_all_are_closed_whatever_one_raises(server: LeaderServer) -> None:
    """The first error is raised once the others are closed."""
    configs = [
        HAConfig(url=server.url, cluster_id=f"cluster-{number}") for number in range(3)
    ]
    for config in configs:
        get_leader_retriever("flights", config=config)
    failing = configuration._opened._services[configs[1]]

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failing, "close", fail)
        with pytest.raises(ZeroDivisionError):
            close_ha_services()
    wait_until(lambda: server.status()["sessions"] == 1)
    failing.close()
    wait_until(lambda: not server.status()["sessions"])
