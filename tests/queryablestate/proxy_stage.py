"""A proxy, real nodes and a published state, in one process and on loopback."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

from haservices import HAConfig, HAServices, open_ha_services
from queryablestate.node.config import NodeConfig
from queryablestate.node.node import StateNode
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from tests.lodestar.publishing import Publisher


if TYPE_CHECKING:
    from types import TracebackType


__all__ = ["JOB", "SCHEMA", "STATE", "ProxyStage"]

JOB: Final = "flights"
STATE: Final = "aircraft"
SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("delay", AtomicType.BIGINT),),
)
WAIT_SECONDS: Final = 30.0

_numbers = itertools.count(1)


@final
class ProxyStage:
    """
    One proxy that leads, and nodes that are registered with it; a context manager.

    Args:
        directory: Where nodes keep their rows.
        proxy: The proxy's configuration.
        node_count: How many nodes.
        url: The name service; by default an embedded one of its own.
        token: What nodes and writers show.
        node: Further settings of the nodes.
    """

    def __init__(
        self,
        directory: Path,
        proxy: ProxyConfig | None = None,
        *,
        node_count: int = 1,
        url: str | None = None,
        token: str | None = None,
        **node: Any,
    ) -> None:
        self.config = HAConfig(
            url=f"embedded:stage-{next(_numbers)}" if url is None else url
        )
        self._directory = directory
        self._proxy_config = ProxyConfig() if proxy is None else proxy
        self._node_count = node_count
        self._token = token
        self._node = node
        self._resources = ExitStack()
        self.nodes: list[StateNode] = []

    def __enter__(self) -> Self:
        try:
            self.ha: HAServices = self._resources.enter_context(
                open_ha_services(self.config)
            )
            self.proxy = self._resources.enter_context(
                QueryStateProxyServer(self.ha, self._proxy_config)
            )
            self.proxy.wait_until_leader(WAIT_SECONDS)
            for number in range(self._node_count):
                self.add_node(f"node-{number}")
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def add_node(self, node_id: str) -> StateNode:
        """Start one more node, and return it once it is registered."""
        config = NodeConfig(
            data_dir=self._directory / node_id,
            node_id=node_id,
            token=self._token,
            **self._node,
        )
        node = self._resources.enter_context(StateNode(self.ha, config))
        self.nodes.append(node)
        node.wait_until_registered(WAIT_SECONDS)
        return node

    def add_proxy(self, config: ProxyConfig | None = None) -> QueryStateProxyServer:
        """Start a further proxy, a standby."""
        proxy = QueryStateProxyServer(self.ha, config or self._proxy_config)
        return self._resources.enter_context(proxy)

    def publisher(
        self, *state_names: str, job_id: str = JOB, token: str | None = None
    ) -> Publisher:
        """Return a run of a query that writes states of one job."""
        return Publisher(
            self.config,
            job_id,
            dict.fromkeys(state_names or (STATE,), SCHEMA),
            token=self._token if token is None else token,
        )
