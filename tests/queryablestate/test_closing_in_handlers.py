"""Q3, O6: a signal handler may close clients and operators, or raise, at any moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from queryablestate import (
    NodeConfig,
    ProxyConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    StateOperations,
)
from queryablestate.gateway import GatewayConfig, GatewayServer
from queryablestate.local_cluster import LocalStateCluster
from tests.interrupting import (
    Closed,
    break_off,
    break_off_at_any_moment,
    close_amid,
)
from tests.leaks import freed_without_collection
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import NUMBERS
from tests.tiers import nightly_after


pytestmark = [pytest.mark.shells, pytest.mark.proves("Q3", "O6")]

LINE_STEP: Final = 11
PLACES: Final = (
    "/election/",
    "/haservices/",
    "/leaderserver/client/",
    "/nameservice/",
    "/queryablestate/client/",
    "/queryablestate/connect/",
    "/queryablestate/operations/",
    "/retrieval/",
    "/zmqtransport/",
    "/concurrent/futures/",
    "/threading.py",
)
STATE: Final = ("flights", "state")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return where the name service is of a cluster with a state."""
    with (
        LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
        open_ha_services(HAConfig(url=server.url)) as ha,
        LocalStateCluster(ha),
    ):
        Publisher(HAConfig(url=server.url), "flights", {"state": NUMBERS}).write(
            {"state": [(key, 0) for key in range(100)]}
        )
        yield server.url


def begun(begin: Callable[[], object], action: Callable[[], object]) -> Any:
    """Return *action*, once something was asked already."""
    begin()
    return action


CLIENT_ACTIONS: Final[dict[str, Callable[[QueryableStateClient], Any]]] = {
    "first": lambda it: lambda: it.get(*STATE, 1),
    "get": lambda it: begun(lambda: it.get(*STATE, 1), lambda: it.get(*STATE, 2)),
    "scan": lambda it: begun(lambda: it.get(*STATE, 1), lambda: [*it.scan(*STATE)]),
    "close": lambda it: begun(lambda: it.get(*STATE, 1), it.close),
}
OPERATIONS_ACTIONS: Final[dict[str, Callable[[StateOperations], Any]]] = {
    "first": lambda it: it.nodes,
    "nodes": lambda it: begun(it.nodes, it.nodes),
    "wait": lambda it: begun(it.nodes, lambda: it.wait_until_rescaled("flights")),
    "close": lambda it: begun(it.nodes, it.close),
}


@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
@pytest.mark.parametrize("name", nightly_after(1, ["get", "close", "first", "scan"]))
def test_a_client_is_closed_amid_what_its_thread_does(
    url: str, name: str, first: int
) -> None:
    """SIGTERM may close it before any line of what the main thread asks."""

    def begin() -> Closed:
        client = QueryableStateClient(url)
        return Closed(action=CLIENT_ACTIONS[name](client), close=client.close)

    close_amid(begin, places=PLACES, first=first, step=LINE_STEP)


@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
@pytest.mark.parametrize("name", nightly_after(1, OPERATIONS_ACTIONS))
def test_operations_are_closed_amid_what_their_thread_does(
    url: str, name: str, first: int
) -> None:
    """
    SIGTERM may close them before any line of what the main thread does with them.

    The handler waited for ever for a lock that its own thread held: of the connection
    to the proxy, or of the event that ends waits.
    """

    def begin() -> Closed:
        operations = StateOperations(url)
        return Closed(
            action=OPERATIONS_ACTIONS[name](operations), close=operations.close
        )

    close_amid(begin, places=PLACES, first=first, step=LINE_STEP)


@pytest.mark.parametrize("first", nightly_after(1, range(LINE_STEP)))
@pytest.mark.parametrize("name", nightly_after(1, OPERATIONS_ACTIONS))
def test_what_operators_do_is_broken_off(url: str, name: str, first: int) -> None:
    """A Ctrl-C before any line of it leaves what can be closed, and asked by others."""

    def begin() -> Closed:
        operations = StateOperations(url)
        return Closed(
            action=OPERATIONS_ACTIONS[name](operations), close=operations.close
        )

    break_off(begin, places=PLACES, first=first, step=LINE_STEP)


def leader_server(_: HAServices, __: Path) -> LeaderServer:
    """Return one that is not started."""
    return LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0"))


def proxy(ha: HAServices, _: Path) -> QueryStateProxyServer:
    """Return one that is not started."""
    return QueryStateProxyServer(ha, ProxyConfig(bind="tcp://127.0.0.1:0"))


def node(ha: HAServices, data_dir: Path) -> StateNode:
    """Return one that is not started."""
    return StateNode(ha, NodeConfig(bind="tcp://127.0.0.1:0", data_dir=data_dir))


def gateway(ha: HAServices, _: Path) -> GatewayServer:
    """Return one that is not started."""
    return GatewayServer(ha, GatewayConfig(bind="127.0.0.1:0"))


def cluster(ha: HAServices, data_dir: Path) -> LocalStateCluster:
    """Return one that is not started."""
    return LocalStateCluster(ha, data_dir=data_dir)


SERVERS: Final[dict[str, Callable[[HAServices, Path], Any]]] = {
    "leaderserver": leader_server,
    "proxy": proxy,
    "node": node,
    "gateway": gateway,
    "cluster": cluster,
}


@pytest.mark.parametrize("name", sorted(SERVERS.keys() - {"cluster"}))
def test_a_server_that_is_closed_logs_on_the_thread_that_closes(
    tmp_path: Path, name: str
) -> None:
    """
    A handler that closes it may have interrupted a line of the log.

    The lock of that is held by the main thread; another would wait for it for ever.
    """
    logged_on: list[int] = []

    class Log:
        def info(self, *_: object, **__: object) -> None:
            logged_on.append(threading.get_ident())

    with open_ha_services("embedded:logging") as ha:
        server = SERVERS[name](ha, tmp_path)
        server.start()
        server._log = Log()
        server.close()
    assert logged_on == [threading.get_ident()]


@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name", nightly_after(1, ["cluster", "leaderserver", "gateway", "node", "proxy"])
)
def test_a_server_is_broken_off_at_any_moment(
    tmp_path: Path, name: str, count: int
) -> None:
    """A Ctrl-C amid its start, its end, or what is asked of it leaves nothing."""
    with open_ha_services("embedded:broken-off") as ha:

        def begin() -> Closed:
            server = SERVERS[name](ha, tmp_path)

            def act() -> None:
                server.start()
                if name in {"leaderserver", "proxy", "node"}:
                    server.status()
                    server.join(0)

            return Closed(action=act, close=server.close)

        break_off_at_any_moment(begin, count=count)


@pytest.mark.parametrize("kind", [QueryableStateClient, StateOperations])
def test_a_closed_client_leaves_no_socket_to_the_collector(
    url: str, kind: Callable[[str], QueryableStateClient | StateOperations]
) -> None:
    """It collects on the main thread, where it would lose what a handler raises."""

    def open_and_close() -> None:
        with kind(url) as client:
            if isinstance(client, QueryableStateClient):
                client.get(*STATE, 1)
            else:
                client.nodes()

    open_and_close()
    with freed_without_collection():
        for _ in range(3):
            open_and_close()
