"""
Rounds of opening and closing everything of queryable state, for those who count.

All of it is in this process: the one that opens and closes, and the proxy, the nodes
and the name service that they talk to.  So what either side keeps is seen here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import evolve

from haservices import HAConfig, HAServices, open_ha_services
from leaderserver import LeaderServer, ServerConfig
from nameservice import QUERY_PROXY, NoLeaderError
from queryablestate import (
    AsyncQueryableStateClient,
    LocalStateCluster,
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
    StateOperations,
)
from queryablestate.writer.connections import close_writer_connections
from tests.drills.state_writing import JOB, KEYS, ROWS, DrillQuery
from tests.leaks import assert_back_at, process_figures, settled


if TYPE_CHECKING:
    from types import TracebackType


__all__ = ["ROUNDS", "Stage", "growth_by_rounds"]


@final
class Stage:
    """
    A name service, a proxy and two nodes with a state.  A context manager.

    Args:
        directory: Where a node that comes and goes keeps its rows.

    Attributes:
        config: What leads to the name service.
        empty: A service of it where no proxy leads.
        ha: A service of it.
        directory: As above.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as resources:
            self._server = resources.enter_context(
                LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0"))
            )
            self.config = HAConfig(url=self._server.url)
            self.ha: HAServices = resources.enter_context(open_ha_services(self.config))
            self.empty: HAServices = resources.enter_context(
                open_ha_services(evolve(self.config, cluster_id="empty"))
            )
            self._cluster = resources.enter_context(LocalStateCluster(self.ha, nodes=2))
            resources.callback(close_writer_connections)
            with DrillQuery(self.config, query_id="query") as query:
                query.write(0)
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def figures(self) -> Mapping[str, object]:
        """Return everything that must be after the rounds as it was before."""
        server, proxy = self._server.status(), self._cluster.proxies[0].status()
        return {
            **process_figures(),
            **{
                f"name service: {name}": server[name]
                for name in ("sessions", "connections", "contenders", "subscriptions")
            },
            **{
                f"proxy: {name}": proxy[name]
                for name in ("connections", "questions_pending", "nodes_present")
            },
        }

    def settled_figures(self) -> Mapping[str, object]:
        """Return them once what was closed is closed at the other end, too."""
        return settled(self.figures)


_Remembered: TypeAlias = "list[weakref.ref[object]]"
_Round: TypeAlias = Callable[[Stage], _Remembered]


def _client(stage: Stage) -> _Remembered:
    with QueryableStateClient(stage.config) as client:
        assert client.exists(JOB, ROWS, KEYS[0])
        assert len(client.get_many(JOB, ROWS, KEYS)) == len(KEYS)
        assert len(list(client.scan(JOB, ROWS))) == len(KEYS)
    return [weakref.ref(client)]


def _async_client(stage: Stage) -> _Remembered:
    async def ask() -> AsyncQueryableStateClient:
        async with AsyncQueryableStateClient(stage.config) as client:
            assert await client.count(JOB, ROWS) == len(KEYS)
            with contextlib.suppress(TimeoutError):  # a question that is given up
                await asyncio.wait_for(
                    client.get(JOB, ROWS, KEYS[0], min_batch_id=1_000_000), 0.01
                )
        return client

    return [weakref.ref(asyncio.run(ask()))]


def _client_of_open_services(stage: Stage) -> _Remembered:
    with QueryableStateClient(stage.ha) as client:
        assert client.exists(JOB, ROWS, KEYS[0])
    return [weakref.ref(client)]


def _client_that_finds_nobody(stage: Stage) -> _Remembered:
    with QueryableStateClient(stage.empty, deadline_seconds=0.01) as client:
        try:
            client.get(JOB, ROWS, KEYS[0])
        except NoLeaderError:
            return [weakref.ref(client)]
    raise AssertionError("somebody has answered")


def _writer(stage: Stage) -> _Remembered:
    with DrillQuery(stage.config, query_id="query") as query:
        batch_id = query.describe().batch_id
        assert batch_id is not None
        query.write(batch_id + 1)
    close_writer_connections()
    return [weakref.ref(query)]


def _standby_proxy(stage: Stage) -> _Remembered:
    with QueryStateProxyServer(stage.ha) as proxy:
        assert not proxy.is_leader
    return [weakref.ref(proxy)]


def _node(stage: Stage) -> _Remembered:
    config = NodeConfig(data_dir=stage.directory / "node", node_id="passer-by")
    with StateNode(stage.ha, config) as node:
        node.wait_until_registered(30.0)
    return [weakref.ref(node)]


def _moves(stage: Stage) -> _Remembered:
    with StateOperations(stage.config) as operations:
        for node_count in (1, 2):
            operations.rescale(JOB, node_count=node_count)
            operations.wait_until_rescaled(JOB, timeout_seconds=30.0)
    return [weakref.ref(operations)]


def _cluster_on(config: HAConfig) -> _Remembered:
    with open_ha_services(config) as ha:
        with (
            LocalStateCluster(ha, nodes=2) as cluster,
            DrillQuery(ha, query_id="query") as query,
            QueryableStateClient(ha) as client,
        ):
            query.write(0)
            assert client.get(JOB, ROWS, KEYS[0]) == {"batch": 0}
        close_writer_connections()
        ha.cleanup(QUERY_PROXY)
    return [weakref.ref(cluster), weakref.ref(client)]


def _embedded_cluster(stage: Stage) -> _Remembered:
    return _cluster_on(HAConfig(url="embedded:"))


def _cluster(stage: Stage) -> _Remembered:
    return _cluster_on(evolve(stage.config, cluster_id="passing"))


ROUNDS: Final[Mapping[str, _Round]] = {
    "client": _client,
    "asyncio client": _async_client,
    "client of open services": _client_of_open_services,
    "client that finds nobody": _client_that_finds_nobody,
    "writer": _writer,
    "standby proxy": _standby_proxy,
    "node": _node,
    "moves": _moves,
    "embedded cluster": _embedded_cluster,
    "cluster": _cluster,
}
"""What is opened, used and closed in each round; each returns what it has made."""


def growth_by_rounds(
    stage: Stage, one_round: _Round, round_count: int, *, warm_up_count: int
) -> int:
    """
    Return by how many bytes this process has grown by *round_count* rounds.

    Asserts that no thread, no descriptor, no connection and no object is left.

    Args:
        stage: Where.
        one_round: What is done in each.
        round_count: How many.
        warm_up_count: How many before: what is kept for the next time is there then.
            The heap of this interpreter has found its size after a hundred or so.
    """
    for _ in range(warm_up_count):
        one_round(stage)
    gc.collect()
    before, size_bytes = stage.settled_figures(), _own_size_bytes()
    remembered: _Remembered = []
    for _ in range(round_count):
        remembered += one_round(stage)
    one_round(stage)  # a thread that waits may still hold what it worked on last
    gc.collect()
    # Others hear of closed connections a little later.
    assert_back_at(before, stage.figures)
    assert not [item for item in remembered if item() is not None]
    return _own_size_bytes() - size_bytes


def _own_size_bytes() -> int:
    """
    Return how much memory we have, what is free given back; 0 if not known.

    What is of files comes and goes as the system likes: it drops pages of libraries
    that were not used for a while, and reads them again.
    """
    if sys.platform != "linux":
        return 0
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/statm").read_text("ascii").split()
    resident, of_files = int(fields[1]), int(fields[2])
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
