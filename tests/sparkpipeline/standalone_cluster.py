"""Spark's standalone cluster manager with two workers, each a process of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Self, final

import pyspark

from haservices.testing.reserved_port import ReservedPort
from tests.drills.processes import Process
from tests.recording import wait_until


_START_SECONDS: Final = 120.0
_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY: Final = "org.apache.spark.deploy"
_LOOPBACK: Final = ("--host", "127.0.0.1", "--webui-port", "0")


@final
class StandaloneCluster:
    """
    A master and workers of two cores each; a context manager that starts and ends them.

    Attributes:
        url: What drivers take as their master.
        workers: Their processes.

    Args:
        directory: Where logs and work of executors go.
        worker_count: How many workers.
    """

    def __init__(self, directory: Path, *, worker_count: int = 2) -> None:
        self._directory = directory
        self._worker_count = worker_count
        self._resources = contextlib.ExitStack()
        self.url = ""
        self.workers: list[Process] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as resources:
            port = resources.enter_context(ReservedPort()).port
            self.url = f"spark://127.0.0.1:{port}"
            master = resources.enter_context(
                self._process("master", f"{_DEPLOY}.master.Master", "--port", str(port))
            )
            _wait_for_log(master, "I have been elected leader")
            for number in range(self._worker_count):
                name = f"worker-{number}"
                options = ("--cores", "2", "--memory", "1g", "--work-dir")
                worker = resources.enter_context(
                    self._process(
                        *(name, f"{_DEPLOY}.worker.Worker", *options),
                        *(str(self._directory / name), self.url),
                    )
                )
                self.workers.append(worker)
            for worker in self.workers:
                _wait_for_log(worker, "Successfully registered with master")
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def _process(self, name: str, main_class: str, *options: str) -> Process:
        return Process(
            [
                "/usr/bin/env",
                "bash",
                str(_SPARK_CLASS),
                main_class,
                *_LOOPBACK,
                *options,
            ],
            log_file=self._directory / f"{name}.log",
        )


def _wait_for_log(process: Process, part: str) -> None:
    def is_there() -> bool:
        assert process.exit_code is None, process.log_file.read_text()
        return part in process.log_file.read_text(errors="replace")

    wait_until(is_there, timeout_seconds=_START_SECONDS)
