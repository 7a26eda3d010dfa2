"""
Processes of the demo: each ends when told to, and when its parent is gone.

The parent holds the other end of a child's standard input.  That end closes when the
parent closes it, and also when the parent dies in whatever way: no child is left
behind, and none has to be looked for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, final


__all__ = ["ChildProcess", "wait_until_told_to_end"]

_END_TIMEOUT_SECONDS: Final = 15.0
_PROJECT_DIRECTORY: Final = Path(__file__).parent.parent.parent
_ENVIRONMENT_PREFIX: Final = "LODESTAR_"


@final
class ChildProcess:
    """
    One of our modules as a process of its own.

    Args:
        module: What ``python -m`` runs; it calls `wait_until_told_to_end`.
        arguments: Its command line.
        environment: What is added to our environment, from which every
            ``LODESTAR_*`` is taken out.
        log_file: Where its standard error goes.
        on_line: Takes each line of its standard output, and None when there will be
            no more, on a thread of this object.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_file: Path,
        on_line: Callable[[str | None], None],
    ) -> None:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_ENVIRONMENT_PREFIX)
        }
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=inherited | dict(environment),
                cwd=_PROJECT_DIRECTORY,
                # A Ctrl-C at the terminal is for us: we end them in our own order.
                start_new_session=True,
                text=True,
            )
        self._on_line = on_line
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    def kill(self) -> None:
        """End it, and all that it has started, with SIGKILL, which none can notice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Tell it to end, and wait until it has; idempotent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._on_line(line.rstrip("\n"))
        self._on_line(None)


def wait_until_told_to_end() -> None:
    """Return when standard input ends, or on SIGTERM or SIGINT; for children."""
    end = threading.Event()

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    threading.Thread(target=wait_for_parent, daemon=True).start()
    end.wait()
