"""
The proxies, state nodes, gateway and SQL of the demo, each a process of its own.

``python -m examples.flights.state_processes node --name N --data-dir D`` serves until
it is told to end; the name service comes in the environment, as for the collectors.  In
production the same is ``lodestar node``, ``lodestar proxy``, ``lodestar gateway`` and
``lodestar sql``.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeVar, final

from examples.flights.children import ChildProcess, wait_until_told_to_end
from examples.flights.timeline import Timeline
from haservices import HAConfig, HAServices, open_ha_services
from nameservice import (
    QUERY_PROXY,
    ConfigurationError,
    SystemClock,
    configure_logging,
)
from queryablestate import NodeConfig, QueryStateProxyServer, StateNode


__all__ = ["NODE_COUNT", "StateProcessFailedError", "StateProcesses"]

NODE_COUNT: Final = 2

# Those that the README names, or any that is free.
_GATEWAY_BINDS: Final = ("127.0.0.1:8080", "127.0.0.1:0")
_SQL_BINDS: Final = ("127.0.0.1:5433", "127.0.0.1:0")
_PROXY_NAMES: Final = ("p", "q")
_START_TIMEOUT_SECONDS: Final = 60.0

Served = TypeVar("Served")


class StateProcessFailedError(Exception):
    """A process did not start; carries what it wrote to its log."""


@final
class StateProcesses:
    """
    Two proxies, of which one leads, and two nodes at first.  A context manager.

    Args:
        ha: The name service.
        timeline: Told of what happens.
        directory: Where rows and logs go.
    """

    def __init__(self, ha: HAServices, timeline: Timeline, directory: Path) -> None:
        self._ha = ha
        self._timeline = timeline
        self._directory = directory
        self._proxies: dict[str, ChildProcess] = {}
        self._nodes: dict[str, ChildProcess] = {}
        self._node_count = 0
        self._clock = SystemClock()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> StateProcesses:
        """Start them, and return once they serve."""
        with contextlib.ExitStack() as stack:
            self._retriever = stack.enter_context(
                self._ha.get_leader_retriever(QUERY_PROXY)
            )
            for name in _PROXY_NAMES:
                process, address = self._spawn(stack, "proxy", name)
                self._proxies[address] = process
                self._timeline.say(f"proxy {name}", f"serves at {address}")
                self._retriever.wait_for_leader(_START_TIMEOUT_SECONDS)
            for _ in range(NODE_COUNT):
                self._start_node(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    @property
    def node_names(self) -> Sequence[str]:
        """Return the names of the nodes that run, in the order of their start."""
        return tuple(self._nodes)

    def start_node(self) -> str:
        """Start one more node; return its name once it is registered."""
        return self._start_node(self._stack)

    def start_gateway(self) -> str:
        """Start a gateway; return its URL."""
        _, url = self._spawn(self._stack, "gateway", "web")
        self._timeline.say("gateway", f"shows all of it in a browser at {url}/")
        return url

    def start_sql(self) -> str:
        """Start what serves states as tables; return its address."""
        _, address = self._spawn(self._stack, "sql", "tables")
        self._timeline.say("sql", f"answers psql and its like at {address}")
        return address

    def end_node(self, name: str) -> None:
        """End a node that has been emptied."""
        self._nodes.pop(name).close()

    def kill_proxy_leader(self, when: str) -> None:
        """Kill the process of the proxy that leads by SIGKILL."""
        leader = self._retriever.wait_for_leader(_START_TIMEOUT_SECONDS)
        process = self._proxies[leader.address]
        at_ns = self._clock.now_ns()
        process.kill()
        self._timeline.say(
            "DISRUPTION",
            f"the leading proxy (process {process.pid}) killed by SIGKILL {when}",
            at_ns,
        )

    def _start_node(self, stack: contextlib.ExitStack) -> str:
        self._node_count += 1
        name = f"node-{self._node_count}"
        self._nodes[name], address = self._spawn(stack, "node", name)
        self._timeline.say(name, f"takes rows at {address}")
        return name

    def _spawn(
        self, stack: contextlib.ExitStack, kind: str, name: str
    ) -> tuple[ChildProcess, str]:
        """Start one process; return it and the address that it serves at."""
        lines: queue.Queue[str | None] = queue.Queue()
        log_file = self._directory / f"{kind}-{name}.log"
        arguments = [kind, "--name", name]
        if kind == "node":
            arguments += ["--data-dir", str(self._directory / name)]
        process = ChildProcess(
            "examples.flights.state_processes",
            arguments,
            environment={
                f"LODESTAR_{setting.upper()}": str(value)
                for setting, value in self._ha.config.to_settings().items()
            },
            log_file=log_file,
            on_line=lines.put,
        )
        stack.enter_context(contextlib.closing(process))
        try:
            address = lines.get(timeout=_START_TIMEOUT_SECONDS)
        except queue.Empty:
            address = None
        if address is None:
            log = log_file.read_text(encoding="utf-8")
            message = f"{kind} {name} does not serve; its log says:\n{log}"
            raise StateProcessFailedError(message)
        return process, address


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description="Serve as one process of many.")
    parser.add_argument("kind", choices=["proxy", "node", "gateway", "sql"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    configure_logging("warning")
    with (
        open_ha_services(HAConfig.load()) as ha,
        _serve(ha, arguments.kind, arguments.name, arguments.data_dir) as address,
    ):
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        wait_until_told_to_end()


@contextlib.contextmanager
def _serve(ha: HAServices, kind: str, name: str, data_directory: Path) -> Iterator[str]:
    if kind == "proxy":
        with QueryStateProxyServer(ha) as proxy:
            yield proxy.address
        return
    if kind == "gateway":
        # Proxies and nodes need none of what serves HTTP.
        from queryablestate.gateway import (  # noqa: PLC0415
            GatewayConfig,
            GatewayServer,
        )

        with _at_its_port(
            _GATEWAY_BINDS, lambda bind: GatewayServer(ha, GatewayConfig(bind=bind))
        ) as gateway:
            yield gateway.url
        return
    if kind == "sql":
        from queryablestate.sql.config import SQLConfig  # noqa: PLC0415
        from queryablestate.sql.server import SQLServer  # noqa: PLC0415

        with _at_its_port(
            _SQL_BINDS, lambda bind: SQLServer(ha, SQLConfig(bind=bind))
        ) as server:
            yield server.address
        return
    config = NodeConfig(node_id=name, data_dir=str(data_directory))
    with StateNode(ha, config) as node:
        node.wait_until_registered(_START_TIMEOUT_SECONDS)
        yield node.address


@contextlib.contextmanager
def _at_its_port(
    binds: Sequence[str], make: Callable[[str], AbstractContextManager[Served]]
) -> Iterator[Served]:
    """Serve at the first of *binds* that is not taken."""
    with contextlib.ExitStack() as stack:
        served: Served | None = None
        for bind in binds:
            try:
                served = stack.enter_context(make(bind))
                break
            except ConfigurationError:
                if bind == binds[-1]:
                    raise
        assert served is not None
        yield served


if __name__ == "__main__":
    main()
