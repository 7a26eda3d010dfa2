"""
`LocalStateCluster`: a proxy and its nodes as threads of this process.

For tests, notebooks and small programs: everything that a cluster does, on loopback.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self, final

from haservices.factory import check_services
from nameservice import (
    ConfigurationError,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
)
from nameservice.parameters import check_seconds, check_timeout_seconds
from nameservice.uninterrupted import detached
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer


if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from haservices import HAServices


__all__ = ["LocalStateCluster"]


@final
class LocalStateCluster:
    """
    Proxies and nodes in this process.  A context manager; thread-safe.

    After ``fork()`` a child's use raises `ForkedClientError`, and its `close` is silent
    (rule E10).

    Args:
        ha: The name service; stays its owner's, and open as long as the cluster is.
        nodes: How many nodes to begin with, called ``node-1``, ``node-2``, …; see also
            `add_node`.
        replicas: How many copies of each key group jobs have to begin with, on as many
            nodes (rule S4).
        data_dir: Where they keep their rows, each in a sub-directory of its name; None
            for a directory that goes when the cluster closes.
        proxies: How many proxies; one leads, the others stand by.
        timeout_seconds: How long `start` waits until all nodes are registered.
    """

    def __init__(
        self,
        ha: HAServices,
        nodes: int = 2,
        *,
        replicas: int = 1,
        data_dir: str | os.PathLike[str] | None = None,
        proxies: int = 1,
        timeout_seconds: float = 30.0,
    ) -> None:
        counts: dict[str, object] = {
            "nodes": nodes,
            "replicas": replicas,
            "proxies": proxies,
        }
        for name, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ConfigurationError(
                    f"{name} must be a whole number from 1, not {count!r}"
                )
        if replicas > nodes:
            raise ConfigurationError(
                f"replicas={replicas} needs as many nodes, but nodes={nodes}: each "
                "copy is on a node of its own; raise nodes or lower replicas"
            )
        check_services(ha, what="ha")
        timeout_seconds = check_seconds(timeout_seconds, what="timeout_seconds")
        self._ha = ha
        self._proxy_config = ProxyConfig(replica_count=replicas)
        self._node_count = nodes
        self._data_dir = data_dir
        self._proxy_count = proxies
        self._timeout_seconds = timeout_seconds
        self._guard = ForkGuard()
        self._lock = Lock()  # guards what follows
        self._is_started = False
        self._is_running = False
        self._resources = ExitStack()
        self._directory = Path()
        self._started_count = 0
        self._nodes: list[StateNode] = []
        self._proxies: list[QueryStateProxyServer] = []

    def start(self) -> None:
        """
        Start everything, and wait until every node is registered.

        Raises:
            LocalProtocolError: If it was started or closed before.
            NoLeaderError: If no proxy leads in time.
            UnreachableError: If a node is not registered in time.
            StorageError: If a data directory cannot be used.
        """
        self._guard.check()
        detached(self._start, undo=lambda _: self.close())

    def _start(self) -> None:
        with self._lock:
            if self._is_started:
                raise LocalProtocolError("a LocalStateCluster is started once")
            self._is_started = True
            try:
                self._start_all()
                self._is_running = True
            except BaseException:
                self._resources.close()
                raise

    def close(self) -> None:
        """Stop everything at once; no node has others take over.  Idempotent."""
        if not self._guard.is_inherited:
            detached(self._close)

    def _close(self) -> None:
        with self._lock:
            self._is_started = True
            self._is_running = False
            self._resources.close()

    @property
    def nodes(self) -> Sequence[StateNode]:
        """Return the nodes, in the order in which they were started."""
        self._guard.check()
        return tuple(self._nodes)

    @property
    def proxies(self) -> Sequence[QueryStateProxyServer]:
        """Return the proxies, in the order in which they were started."""
        self._guard.check()
        return tuple(self._proxies)

    # -- nodes that come and go --------------------------------------------------------

    def add_node(self) -> StateNode:
        """
        Start one more node, and return it when it is registered.

        It gets key groups when it is asked for (`StateOperations.rescale`), or when a
        job has fewer nodes or copies than it is to have.  It is called by the next
        number: that of a node that was removed is not used again.

        Raises:
            LocalProtocolError: If the cluster is not running.
            NoLeaderError: If no proxy leads in time.
            UnreachableError: If it is not registered in time.
            StorageError: If its data directory cannot be used.
        """
        self._guard.check()
        return detached(self._add_node)

    def _add_node(self) -> StateNode:
        with self._lock:
            if not self._is_running:
                raise LocalProtocolError("the LocalStateCluster is not running")
            node = self._start_node()
        try:
            node.wait_until_registered(self._timeout_seconds)
        except BaseException:
            self.remove_node(node.node_id, timeout_seconds=0.0)
            raise
        return node

    def remove_node(
        self, node_id: str, *, timeout_seconds: float | None = None
    ) -> str | None:
        """
        Have others take over what a node has, as far as they can, and stop it (S1).

        To stop one without warning, close it: ``cluster.node(name).close()``.

        Args:
            node_id: Its name.
            timeout_seconds: How long others may take; None for as long as a node waits
                by itself, 0 stops it at once.

        Returns:
            ``empty`` if others have everything, ``nobody`` if there is no other node,
            None if they did not get everything in time.

        Raises:
            LocalProtocolError: If there is no such node.
        """
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        node = self.node(node_id)
        return detached(lambda: self._remove(node, timeout_seconds))

    def _remove(self, node: StateNode, timeout_seconds: float | None) -> str | None:
        reason = node.leave(timeout_seconds)
        node.close()
        with self._lock:
            if node in self._nodes:  # another thread may remove it, too
                self._nodes.remove(node)
        return reason

    def node(self, node_id: str) -> StateNode:
        """
        Return a node by its name.

        Raises:
            LocalProtocolError: If there is no such node.
        """
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise LocalProtocolError(f"the LocalStateCluster has no node {node_id!r}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_all(self) -> None:
        clock = SystemClock()
        deadline_ns = clock.now_ns() + round(self._timeout_seconds * 1_000_000_000)
        if self._data_dir is None:
            self._directory = Path(
                self._resources.enter_context(
                    tempfile.TemporaryDirectory(prefix="lodestar-")
                )
            )
        else:
            self._directory = Path(self._data_dir)
        for _ in range(self._proxy_count):
            proxy = QueryStateProxyServer(self._ha, self._proxy_config)
            self._proxies.append(self._resources.enter_context(proxy))
        # Nodes go after the proxies were started and before they are closed.
        for _ in range(self._node_count):
            self._start_node()
        for node in self._nodes:
            left_ns = max(0, deadline_ns - clock.now_ns())
            node.wait_until_registered(left_ns / 1_000_000_000)

    def _start_node(self) -> StateNode:
        """Start the next node."""
        self._started_count += 1
        node_id = f"node-{self._started_count}"
        node = StateNode(
            self._ha,
            NodeConfig(data_dir=self._directory / node_id, node_id=node_id),
        )
        self._nodes.append(self._resources.enter_context(node))
        return node
