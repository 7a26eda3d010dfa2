"""Servers of others as child processes that never outlive us, and what they use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, final

from attrs import frozen

from benchmarks.peers._interface import AbsentError
from haservices.testing import process_guard


__all__ = ["Guarded", "Usage", "free_ports", "guarded", "usage_of", "wait_until"]

_TIMEOUT_SECONDS: Final = 60.0
_INTERVAL_SECONDS: Final = 0.02


@final
class Guarded:
    """A running server that can be killed and started again."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._pid = 0
        self.start()

    def start(self) -> None:
        """Start it (again)."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", process_guard.__file__),
                    *(str(os.getpid()), *self._command),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self._pid = int(output.readline() or 0)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._pid

    def check(self) -> None:
        """Raise `AbsentError` with the end of its log if it has ended."""
        if self._process.poll() is not None:
            tail = self._log.read_text(errors="replace")[-500:]
            raise AbsentError(f"{self._command[0]} has ended: {tail}")

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._process.wait(_TIMEOUT_SECONDS)


@contextmanager
def guarded(command: Sequence[str], log: Path) -> Iterator[Guarded]:
    """Run *command*; its output goes to *log*."""
    process = Guarded(command, log)
    try:
        yield process
    finally:
        process.kill()


def wait_until(is_ready: Callable[[], bool], server: Guarded) -> None:
    """Return when *is_ready*; raise `AbsentError` if *server* ends or is late."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_ready():
        server.check()
        if time.monotonic() > deadline:
            raise AbsentError(f"a server does not serve after {_TIMEOUT_SECONDS:.0f} s")
        time.sleep(_INTERVAL_SECONDS)  # noqa: TID251 - a foreign server tells nothing


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@frozen(kw_only=True)
class Usage:
    """
    What a process has used until now.

    Attributes:
        processor_seconds: Time on processors, of all its threads.
        resident_mib: Memory that it occupies.
    """

    processor_seconds: float
    resident_mib: float


def usage_of(pid: int) -> Usage:
    """Return what the process of an id has used."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
    fields = stat.split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(fields[21])
    return Usage(
        processor_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        resident_mib=pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576,
    )
