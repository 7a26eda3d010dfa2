"""The processes of queryable state as a drill sees them: they are killed and return."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from attrs import asdict, frozen

from haservices import HAConfig, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from nameservice import QUERY_PROXY
from queryablestate.control.job.entry_parts import decode_entry
from queryablestate.wire.records import BatchDecided
from tests.drills.processes import WAIT_SECONDS, Process, Server
from tests.drills.spark_driver import SparkSettings
from tests.drills.state_answers import BatchTimes
from tests.drills.state_driver import DriverSettings
from tests.drills.state_writing import JOB


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


__all__ = ["Driver", "DriverEvent", "Service", "StateProcesses", "spark_command"]

# Long enough for a busy machine, short enough that no drill waits ten seconds for a
# node that a new proxy leader has not seen.
SESSION_TIMEOUT_SECONDS: Final = 3.0


@final
class Service:
    """
    A ``lodestar node`` or ``lodestar proxy`` that can be killed and started again.

    Args:
        verb: Which of them.
        name: Of its log file.
        directory: Where that goes.
        options: The rest of the command line.
    """

    def __init__(
        self, verb: str, name: str, directory: Path, options: Sequence[str]
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "lodestar", verb, *options]
        self._log_file = directory / f"{name}.log"
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """Return the process that runs now, or did last."""
        assert self._process is not None
        return self._process

    @property
    def address(self) -> str:
        """Return where it serves, once it does."""
        (line,) = self.process.wait_for_line(bool)[:1]
        assert line.startswith("serving "), line
        return line.split()[-1]

    def launch(self) -> None:
        """Start it, and do not wait."""
        self._process = Process(self._command, log_file=self._log_file)

    def start(self) -> None:
        """Start it, and return when it serves (a node: when it is registered)."""
        self.launch()
        assert self.address

    def kill(self) -> int:
        """End it with SIGKILL; return the time just before.  Idempotent."""
        return self.process.kill()

    def close(self) -> None:
        """Kill it if it was ever started."""
        if self._process is not None:
            self._process.kill()


@final
class StateProcesses:
    """
    A LeaderServer, proxies and nodes, each a process.  A context manager.

    Args:
        directory: Where their logs and data go.
        proxy_count: How many proxies; one leads.
        node_count: How many nodes, called ``node-1``, ``node-2``, …
        started_count: How many of them are started with the rest; None for all.
        replica_count: How many copies of each key group a new job has.
        is_durable: Whether the LeaderServer has a data directory.
        proxy_tables: More of the proxies' configuration, TOML.
        node_options: More of the nodes' command line.
        session_timeout_seconds: Of all of them.
        has_metrics: Whether all of them serve metrics.

    Attributes:
        server: The LeaderServer.
        config: What leads to it.
        proxies: The proxies.
        nodes: The nodes by name.
        metrics: Where metrics are served, by the name of the process.
        decided_us: When batches were decided, by the wall clock; see `note_decisions`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        proxy_count: int = 1,
        node_count: int = 2,
        started_count: int | None = None,
        replica_count: int = 1,
        is_durable: bool = True,
        proxy_tables: str = "",
        node_options: Sequence[str] = (),
        session_timeout_seconds: float = SESSION_TIMEOUT_SECONDS,
        has_metrics: bool = False,
    ) -> None:
        self._ports: dict[str, ReservedPort] = {}
        self._has_metrics = has_metrics
        self._started_count = started_count
        self._directory = directory
        self._resources = contextlib.ExitStack()
        self._read_paths: set[str] = set()
        self.decided_us: dict[int, int] = {}
        self.server = Server(
            directory, is_durable=is_durable, options=self._metrics_options("server")
        )
        self.config = HAConfig(
            url=self.server.url, session_timeout_seconds=session_timeout_seconds
        )
        common = [
            *("--url", self.server.url),
            *("--session-timeout-seconds", str(session_timeout_seconds)),
        ]
        proxy_options = [*common, "--allow-volatile"]
        if replica_count > 1 or proxy_tables:
            config_file = directory / "proxy.toml"
            text = f"replica_count = {replica_count}\n{proxy_tables}"
            config_file.write_text(text, "utf-8")
            proxy_options += ["--config-file", str(config_file)]
        self.proxies = [
            Service(
                "proxy", name, directory, proxy_options + self._metrics_options(name)
            )
            for name in (f"proxy-{number}" for number in range(1, proxy_count + 1))
        ]
        self.nodes = {
            node_id: Service(
                "node",
                node_id,
                directory,
                [
                    *common,
                    *("--node-id", node_id),
                    *("--data-dir", str(self.data_directory(node_id))),
                    *node_options,
                    *self._metrics_options(node_id),
                ],
            )
            for node_id in (f"node-{number}" for number in range(1, node_count + 1))
        }
        self.metrics = {
            name: f"127.0.0.1:{port.port}" for name, port in self._ports.items()
        }

    def _metrics_options(self, name: str) -> list[str]:
        if not self._has_metrics:
            return []
        port = self._ports[name] = ReservedPort()
        return ["--metrics", f"127.0.0.1:{port.port}"]

    def __enter__(self) -> StateProcesses:
        with contextlib.ExitStack() as resources:
            for port in self._ports.values():
                resources.enter_context(port)
            resources.enter_context(self.server)
            nodes = list(self.nodes.values())
            for service in [*self.proxies, *nodes]:
                resources.callback(service.close)
            services = [*self.proxies, *nodes[: self._started_count]]
            for service in services:
                service.launch()
            for service in services:
                assert service.address
            self._ha = resources.enter_context(open_ha_services(self.config))
            self._retriever = resources.enter_context(
                self._ha.get_leader_retriever(QUERY_PROXY)
            )
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def data_directory(self, node_id: str) -> Path:
        """Return where a node keeps its rows."""
        return self._directory / f"{node_id}.data"

    def lose_disk(self, node_id: str) -> None:
        """Remove the data directory of a node that does not run."""
        assert self.nodes[node_id].process.exit_code is not None
        shutil.rmtree(self.data_directory(node_id))

    def leader(self) -> Service:
        """Return the proxy that leads."""
        address = self._retriever.wait_for_leader(WAIT_SECONDS).address
        return next(proxy for proxy in self.proxies if proxy.address == address)

    def note_decisions(self) -> None:
        """
        Read when batches were decided, as far as that is not known yet.

        Only the newest hundred are kept: a drill that writes more reads every now and
        then.
        """
        store = self._ha.get_leader_store(QUERY_PROXY)
        for path in store.list("jobs/"):
            if "/entries/" not in path or path in self._read_paths:
                continue
            found = store.get(path)
            if found is None:
                continue  # it was pruned meanwhile
            self._read_paths.add(path)
            entry = decode_entry(found.value)
            if isinstance(entry, BatchDecided):
                self.decided_us[entry.batch_id] = entry.decided_at_us


def spark_command(config: HAConfig, directory: Path) -> Sequence[str]:
    """Return how a Spark application is run that publishes a batch a second."""
    settings = SparkSettings(
        services=_services(config),
        checkpoint_directory=str(directory / "spark-checkpoint"),
        batch_seconds=1.0,
        commit_timeout_seconds=60.0,
    )
    return ["-m", "tests.drills.spark_driver", json.dumps(asdict(settings))]


def _services(config: HAConfig) -> dict[str, Any]:
    return {
        "url": config.url,
        "session_timeout_seconds": config.session_timeout_seconds,
    }


@frozen(kw_only=True)
class DriverEvent:
    """
    What a driver reported.

    Attributes:
        name: ``ready``, ``begun`` (from now on the batch may be decided),
            ``acknowledged`` or ``failed``.
        at_ns: When, by the machine's clock.
        batch_id: Of which batch.
        error: Of ``failed``: the type of the error.
        detail: Its sentence.
        seconds: How long that attempt took.
    """

    name: str
    at_ns: int
    batch_id: int = -1
    error: str = ""
    detail: str = ""
    seconds: float = 0.0


@final
class Driver:
    """
    A process that writes batch after batch, see tests/drills/state_driver.py.

    It can be killed and started again, and goes on from its checkpoint.  A context
    manager that starts and ends it.

    Args:
        config: The name service.
        directory: Where its checkpoint and logs go.
        commit_timeout_seconds: How long each step of a batch may take.
        pause_seconds: Between two batches.
        is_complete_every: Each batch whose number this divides holds all rows there
            are, as in complete mode; 0 for none.
        command: What to run instead, such as `spark_command`: it reports the same, and
            the rest is its own business.
        job_id: What it writes; its files are named after that.
        token: What it shows the proxy.
    """

    def __init__(
        self,
        config: HAConfig,
        directory: Path,
        *,
        commit_timeout_seconds: float = 60.0,
        pause_seconds: float = 0.05,
        is_complete_every: int = 0,
        command: Sequence[str] = (),
        job_id: str = JOB,
        token: str | None = None,
    ) -> None:
        name = "driver" if job_id == JOB else f"driver-{job_id}"
        settings = DriverSettings(
            services=_services(config),
            query_id=str(uuid.uuid4()),
            checkpoint_file=str(directory / f"{name}.checkpoint"),
            commit_timeout_seconds=commit_timeout_seconds,
            pause_seconds=pause_seconds,
            is_complete_every=is_complete_every,
            job_id=job_id,
            token=token,
        )
        own = ["-m", "tests.drills.state_driver", json.dumps(asdict(settings))]
        self._command = [sys.executable, *(command or own)]
        self._log_file = directory / f"{name}.log"
        self._past: list[DriverEvent] = []
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """Return the process that runs now, or did last."""
        assert self._process is not None
        return self._process

    @property
    def events(self) -> list[DriverEvent]:
        """Return what all drivers reported, in order."""
        return [*self._past, *_events(self.process.lines)]

    def all(self, name: str) -> list[DriverEvent]:
        """Return the events of that name."""
        return [event for event in self.events if event.name == name]

    @property
    def batch_id_last(self) -> int:
        """Return the last batch that was acknowledged, -1 before the first."""
        return max((event.batch_id for event in self.all("acknowledged")), default=-1)

    def times(self, decided_us: Mapping[int, int]) -> BatchTimes:
        """Return when its batches came about."""

        def earliest(name: str) -> dict[int, int]:
            return {event.batch_id: event.at_ns for event in reversed(self.all(name))}

        return BatchTimes(
            begun_ns=earliest("begun"),
            acknowledged_ns=earliest("acknowledged"),
            decided_us=decided_us,
        )

    def start(self) -> None:
        """Start it; return when it is about to write."""
        if self._process is not None:
            self._past += _events(self._process.lines)
        self._process = Process(self._command, log_file=self._log_file)
        self._process.wait_for_line(bool)

    def kill(self) -> int:
        """End it with SIGKILL; return the time just before."""
        return self.process.kill()

    def wait_for(
        self, name: str, *, since_ns: int = 0, batch_id: int = -1
    ) -> DriverEvent:
        """Return the first event *name* since then of that batch or a later one."""

        def found(lines: Sequence[str]) -> list[DriverEvent]:
            return [
                event
                for event in _events(lines)
                if event.name == name
                and event.at_ns >= since_ns
                and event.batch_id >= batch_id
            ]

        return found(self.process.wait_for_line(lambda lines: bool(found(lines))))[0]

    def end(self) -> None:
        """Have it finish the batch at hand, and end."""
        self.process.end()

    def __enter__(self) -> Driver:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()


def _events(lines: Sequence[str]) -> list[DriverEvent]:
    decoded: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [DriverEvent(**one) for one in decoded]
