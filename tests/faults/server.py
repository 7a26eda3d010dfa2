"""A LeaderServer as a process whose disk fails on request."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, final


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tests.faults.disk import FaultyDisk


__all__ = ["ServerOnFaultyDisk"]

_ROOT: Final = Path(__file__).parent.parent.parent
_END_TIMEOUT_SECONDS: Final = 60.0


@final
class ServerOnFaultyDisk:
    """
    ``lodestar server`` with a `FaultyDisk`, killed when the block ends.

    Args:
        disk: Where its data directory is.
        lease_seconds_max: Its longest lease, and how long it is undecided.
        options: More of its command line.
    """

    def __init__(
        self,
        disk: FaultyDisk,
        *,
        lease_seconds_max: float = 0.5,
        options: Sequence[str] = (),
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        command = [sys.executable, "-m", "lodestar", "server"]
        command += ["--bind", "tcp://127.0.0.1:0", "--data-dir", str(disk.directory)]
        command += ["--lease-seconds-max", str(lease_seconds_max), *options]
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=disk.environment(),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.url = line.strip().removeprefix("serving ")
        if not self.url:
            log = self.log
            self.__exit__(None, None, None)
            raise AssertionError(f"the server did not start: {log}")

    @property
    def log(self) -> str:
        """Return what it has written to its standard error so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def wait_for_end(self) -> int:
        """Return its exit code once it has ended by itself."""
        return self._process.wait(_END_TIMEOUT_SECONDS)

    def kill(self) -> None:
        """Kill it now, if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(_END_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
