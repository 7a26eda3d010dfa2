"""
The name service of the demo: whichever it is, all that others need of it is its URL.

``python -m examples.flights.name_service --backend zookeeper --data-dir D`` prints that
URL, and serves until it is told to end.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from examples.flights.children import ChildProcess, wait_until_told_to_end
from haservices import Backend
from haservices.testing import ZooKeeperServer
from leaderserver import LeaderServer, ServerConfig
from nameservice import configure_logging


__all__ = ["NameServiceFailedError", "name_service"]

_EMBEDDED_URL: Final = "embedded:flights"
_START_TIMEOUT_SECONDS: Final = 60.0


class NameServiceFailedError(Exception):
    """The name service did not start; carries what it wrote to its log."""


@contextlib.contextmanager
def name_service(backend: Backend, work_directory: Path) -> Iterator[str]:
    """
    Start a name service, yield its URL, and end it.

    Raises:
        NameServiceFailedError: If it does not serve in time.
    """
    if backend is Backend.EMBEDDED:
        yield _EMBEDDED_URL
        return
    log_file = work_directory / "name-service.log"
    lines: queue.Queue[str | None] = queue.Queue()
    process = ChildProcess(
        "examples.flights.name_service",
        ["--backend", backend.value, "--data-dir", str(work_directory / "names")],
        environment={},
        log_file=log_file,
        on_line=lines.put,
    )
    with contextlib.closing(process):
        try:
            url = lines.get(timeout=_START_TIMEOUT_SECONDS)
        except queue.Empty:
            url = None
        if url is None:
            log = log_file.read_text(encoding="utf-8")
            message = f"the name service does not serve; its log says:\n{log}"
            raise NameServiceFailedError(message)
        yield url


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description="Serve one name service.")
    parser.add_argument("--backend", choices=["leaderserver", "zookeeper"])
    parser.add_argument("--data-dir", type=Path, required=True)
    arguments = parser.parse_args()
    configure_logging("warning")
    with _serve(Backend(arguments.backend), arguments.data_dir) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        wait_until_told_to_end()


@contextlib.contextmanager
def _serve(backend: Backend, data_directory: Path) -> Iterator[str]:
    if backend is Backend.ZOOKEEPER:
        with ZooKeeperServer(data_directory) as ensemble:
            yield ensemble.url
        return
    config = ServerConfig(bind="tcp://127.0.0.1:0", data_dir=str(data_directory))
    with LeaderServer(config) as server:
        yield server.url


if __name__ == "__main__":
    main()
