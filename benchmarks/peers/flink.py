"""
Queryable state of Flink 1.10.3, the last release that offers it with the official jars.

One JobManager, one TaskManager with two slots, and a job of ours that keeps the newest
value of each key in heap state; the client is Flink's own, in a JVM of its own
(java/FlinkPeer.java), and times itself.  All run on Java 17 with what it must be told
to open.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, final

from benchmarks.peers._install import flink_directory
from benchmarks.peers._interface import VALUE, AbsentError, NotOfferedError, key_of
from benchmarks.peers._processes import free_ports, guarded, wait_until


__all__ = ["FlinkReader", "flink_reader"]

_PARALLELISM: Final = 2
_WARM_UP_SECONDS: Final = 12.0
_OPENED: Final = (
    "java.lang",
    "java.util",
    "java.nio",
    "sun.nio.ch",
    "java.net",
    "java.io",
    "java.util.concurrent",
    "sun.net.util",
)
_SETTINGS: Final = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: {rpc}
rest.address: 127.0.0.1
rest.port: {rest}
rest.bind-port: {rest}
taskmanager.host: 127.0.0.1
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2.0
taskmanager.memory.task.heap.size: 512m
taskmanager.memory.task.off-heap.size: 0
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.managed.size: 16m
queryable-state.enable: true
queryable-state.proxy.ports: {proxy}
queryable-state.server.ports: {server}
"""
_LOGGING: Final = """\
log4j.rootLogger=WARN, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.SimpleLayout
"""
_JOB_MANAGER: Final = (
    "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
)
_TASK_MANAGER: Final = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"


@final
class FlinkReader:
    """The client's JVM, which is told what to ask; and the source of the job."""

    def __init__(self, client: subprocess.Popen[str], source: socket.socket) -> None:
        self._client = client
        self._source = source
        self._key_count = 0

    def order(self, *words: object) -> str:
        """Return the client's answer to an order."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(" ".join(map(str, words)) + "\n")
        self._client.stdin.flush()
        answer = self._client.stdout.readline().strip()
        if not answer:
            raise RuntimeError("the client of Flink has ended")
        return answer

    def update(self, key: str, value: str) -> None:
        """Send one event to the job."""
        self._source.sendall(f"{key}\t{value}\n".encode())

    def load(self, key_count: int) -> None:
        """Send all keys; then ask for as long as a JVM needs to be warm."""
        for number in range(key_count):
            self.update(key_of(number), VALUE)
        self._key_count = key_count
        # The subtasks are independent: each has the last of its keys among these.
        for number in range(max(0, key_count - 32), key_count):
            self.order("until", key_of(number), VALUE)
        deadline = time.monotonic() + _WARM_UP_SECONDS
        while time.monotonic() < deadline:
            self.get_each(0, 500)
            self.outstanding(0, 5_000, 64)

    def get_each(self, first: int, count: int) -> list[float]:
        """Ask, and wait for each answer."""
        answer = self.order("one", first, count, self._key_count)
        return [int(word) / 1_000 for word in answer.split()]

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Ask while fewer than *limit* questions are under way."""
        answer = self.order("outstanding", first, count, self._key_count, limit)
        return int(answer) / 1_000_000_000

    def get_many(self, first: int, count: int) -> float:
        """Flink asks for one key at a time."""
        raise NotOfferedError("one key in a question")


@contextmanager
def flink_reader() -> Iterator[FlinkReader]:
    """Start a cluster, the job, and the client."""
    java = shutil.which("java")
    if java is None:
        raise AbsentError("no java: install the Debian package default-jre-headless")
    jars = flink_directory()
    rpc, rest, proxy, server = free_ports(4)
    opened = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        directory = Path(name)
        (directory / "flink-conf.yaml").write_text(
            _SETTINGS.format(rpc=rpc, rest=rest, proxy=proxy, server=server)
        )
        logging = directory / "log4j.properties"
        logging.write_text(_LOGGING)
        command = [
            *(java, *opened, "-Xmx1g", f"-Dlog4j.configuration=file:{logging}"),
            *("-cp", f"{jars}/*"),
        ]
        configured = ["--configDir", name]
        log = directory / "log"
        with (
            guarded([*command, _JOB_MANAGER, *configured], log) as manager,
            guarded([*command, _TASK_MANAGER, *configured], log) as tasks,
        ):
            wait_until(partial(_is_served, rest), manager)
            wait_until(partial(_is_served, proxy), tasks)
            arguments = [
                *(str(rest), str(proxy), str(listener.getsockname()[1])),
                *(str(jars / "FlinkPeer.jar"), str(_PARALLELISM)),
            ]
            with (
                log.open("ab") as errors,
                subprocess.Popen(
                    [*command, "FlinkPeer", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                ) as client,
            ):
                assert client.stdout is not None
                if client.stdout.readline().strip() != "submitted":
                    tail = log.read_text(errors="replace")[-500:]
                    raise AbsentError(f"the job could not be submitted: {tail}")
                source, _ = listener.accept()
                with source:
                    yield FlinkReader(client, source)


def _is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
