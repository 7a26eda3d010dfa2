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

from nameservice import (
    ConfigurationError,
    ForkGuard,
    LocalProtocolError,
    SystemClock,
)
from queryablestate.node import StateNode
from queryablestate.node_config import NodeConfig
from queryablestate.proxy_config import ProxyConfig
from queryablestate.proxy_server import QueryStateProxyServer


if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from types import TracebackType

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
        nodes: How many nodes, called ``node-1``, ``node-2``, …
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
        data_dir: str | os.PathLike[str] | None = None,
        proxies: int = 1,
        timeout_seconds: float = 30.0,
    ) -> None:
        for name, count in (("nodes", nodes), ("proxies", proxies)):
            if count < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {count!r}")
        self._ha = ha
        self._node_count = nodes
        self._data_dir = data_dir
        self._proxy_count = proxies
        self._timeout_seconds = timeout_seconds
        self._guard = ForkGuard()
        self._lock = Lock()  # guards what follows
        self._is_started = False
        self._resources = ExitStack()
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
        with self._lock:
            if self._is_started:
                raise LocalProtocolError("a LocalStateCluster is started once")
            self._is_started = True
            try:
                self._start()
            except BaseException:
                self._resources.close()
                raise

    def close(self) -> None:
        """Stop everything.  Idempotent."""
        if self._guard.is_inherited:
            return
        with self._lock:
            self._is_started = True
            self._resources.close()

    @property
    def nodes(self) -> Sequence[StateNode]:
        """Return the nodes, in the order of their names."""
        self._guard.check()
        return tuple(self._nodes)

    @property
    def proxies(self) -> Sequence[QueryStateProxyServer]:
        """Return the proxies, in the order in which they were started."""
        self._guard.check()
        return tuple(self._proxies)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        clock = SystemClock()
        deadline_ns = clock.now_ns() + round(self._timeout_seconds * 1_000_000_000)
        if self._data_dir is None:
            directory = Path(
                self._resources.enter_context(
                    tempfile.TemporaryDirectory(prefix="lodestar-")
                )
            )
        else:
            directory = Path(self._data_dir)
        for _ in range(self._proxy_count):
            proxy = QueryStateProxyServer(self._ha, ProxyConfig())
            self._proxies.append(self._resources.enter_context(proxy))
        # Nodes go after the proxies were started and before they are closed.
        for number in range(1, self._node_count + 1):
            node_id = f"node-{number}"
            node = StateNode(
                self._ha, NodeConfig(data_dir=directory / node_id, node_id=node_id)
            )
            self._nodes.append(self._resources.enter_context(node))
        for node in self._nodes:
            left_ns = max(0, deadline_ns - clock.now_ns())
            node.wait_until_registered(left_ns / 1_000_000_000)
