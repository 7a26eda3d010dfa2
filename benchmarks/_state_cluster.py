"""
A whole cluster for benchmarks, each part a process of its own as in production.

One LeaderServer, one proxy and some nodes, started by the command line and stopped by
their ids; rows are written by the same `StateWriter` that Spark's tasks use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final

from haservices import HAConfig
from queryablestate.client.calls import ProxyConnection
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.writer.rows import StateRows, settle_rows
from queryablestate.writer.stager import Stager
from queryablestate.writer.writer import StateWriter


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType


__all__ = ["JOB", "STATE", "StateCluster"]

JOB: Final = "bench"
STATE: Final = "state"

_TIMEOUT_SECONDS: Final = 60.0
_MAX_PARALLELISM: Final = 128
_SCHEMA: Final = StateSchema(
    kind=StateKind.VALUE,
    key=(Field(name="key", type=AtomicType.STRING),),
    map_key=(),
    value=(Field(name="value", type=AtomicType.STRING),),
    has_ttl=False,
)


@final
class StateCluster:
    """
    A name service, a proxy and *node_count* nodes on loopback; a context manager.

    Args:
        node_count: How many to begin with.
        proxy_toml: The configuration file of the proxy, if it is to have one.
        has_node_logs: Whether nodes write down what they copy, for `copied`.
        reader_count: How many reader processes each node has.

    Attributes:
        url: Of the name service.
        proxy_pid: The process of the proxy.
        node_pids: The processes of the nodes.
    """

    def __init__(
        self,
        *,
        node_count: int,
        proxy_toml: str = "",
        has_node_logs: bool = False,
        reader_count: int = 0,
    ) -> None:
        self._node_count = node_count
        self._proxy_toml = proxy_toml
        self._has_node_logs = has_node_logs
        self._reader_count = reader_count
        self._resources = ExitStack()
        self.url = ""
        self._directory = Path()
        self.proxy_pid = 0
        self.node_pids: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._start()
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

    def _start(self) -> None:
        directory = Path(
            self._resources.enter_context(
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            )
        )
        _, line = self._spawn("server", "--bind", "tcp://127.0.0.1:0")
        self.url = line.split()[-1]
        options = []
        if self._proxy_toml:
            path = directory / "proxy.toml"
            path.write_text(self._proxy_toml)
            options = ["--config-file", str(path)]
        proxy, _ = self._spawn("proxy", "--url", self.url, "--allow-volatile", *options)
        self.proxy_pid = proxy.pid
        self._directory = directory
        for _ in range(self._node_count):
            self.add_node()

    def add_node(self) -> None:
        """Start one more node, and return when it serves."""
        node_id = f"node-{len(self.node_pids)}"
        log = self._directory / f"{node_id}.log" if self._has_node_logs else None
        process, _ = self._spawn(
            "node",
            "--url",
            self.url,
            "--node-id",
            node_id,
            "--data-dir",
            str(self._directory / node_id),
            "--readers",
            str(self._reader_count),
            "--drain-timeout",
            "0",  # all of them end: there is no node to take anything over
            log=log,
        )
        self.node_pids.append(process.pid)

    def node_directory(self, index: int) -> Path:
        """Return the data directory of the node that was started as number *index*."""
        return self._directory / f"node-{index}"

    def copied(self) -> tuple[int, int]:
        """Return how many rows nodes have copied from each other, and their size."""
        row_count = size_bytes = 0
        for path in self._directory.glob("*.log"):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["event"] == "copy.completed":
                    row_count += entry["row_count"]
                    size_bytes += entry["size_bytes"]
        return row_count, size_bytes

    def _spawn(
        self, *arguments: str, log: Path | None = None
    ) -> tuple[subprocess.Popen[str], str]:
        """Start one verb; return it, and the line that says that it serves."""
        level = "warning" if log is None else "info"
        with ExitStack() as opened:
            process = subprocess.Popen(
                [sys.executable, "-m", "lodestar", *arguments, "--log-level", level],
                stdout=subprocess.PIPE,
                stderr=None if log is None else opened.enter_context(log.open("w")),
                text=True,
            )

        def stop() -> None:
            process.terminate()
            process.wait(_TIMEOUT_SECONDS)
            assert process.stdout is not None
            process.stdout.close()

        self._resources.callback(stop)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"lodestar {' '.join(arguments)} did not start")
        return process, line

    def write(
        self,
        keys: Sequence[str],
        value: str,
        *,
        rows_per_batch: int,
        first_batch_id: int = 0,
        job_id: str = JOB,
        max_parallelism: int = _MAX_PARALLELISM,
    ) -> None:
        """Publish *value* under each of *keys*, in batches of a size."""
        proxy = ProxyConnection(HAConfig(url=self.url))
        try:
            writer = StateWriter(proxy)
            codec = KeyCodec(_SCHEMA.key, max_parallelism=max_parallelism)
            payload = ValueCodec(_SCHEMA.value).encode_row([value])
            run_id = str(uuid.uuid4())
            firsts = range(0, len(keys), rows_per_batch)
            for batch_id, first in enumerate(firsts, first_batch_id):
                part = keys[first : first + rows_per_batch]
                run = writer.begin(
                    job_id,
                    {STATE: _SCHEMA},
                    query_id="bench",
                    run_id=run_id,
                    max_parallelism=max_parallelism,
                    on_new_query="refuse",
                    timeout_seconds=_TIMEOUT_SECONDS,
                )
                stored = codec.storage_keys(part)
                rows = settle_rows(
                    StateRows(keys=stored, values=[payload] * len(stored)),
                    is_list=False,
                )
                with Stager(run, batch_id) as stager:
                    stager.add(run.origin.state_numbers[0], rows, is_list=False)
                    message = stager.finish()
                writer.commit(
                    run.origin,
                    batch_id,
                    [message],
                    is_complete=False,
                    timeout_seconds=_TIMEOUT_SECONDS,
                )
        finally:
            proxy.close()


def keys_of(count: int) -> Iterable[str]:
    """Return *count* keys."""
    return (f"key-{number:09d}" for number in range(count))
