"""The command line as a user runs it: processes, their lines, their exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, final

import pytest
from attrs import frozen

from lodestar.__main__ import main


ROOT = Path(__file__).parent.parent.parent

# Generous: it bounds how long a broken test takes, not how fast the code must be.
WAIT_SECONDS = 60.0

# Of a long lease: on a machine that is busy with other tests a leader may be out of
# contact for a while, and `elect` ends its command then, as it should.
LEASE_SECONDS = "3"

# What a server has to be told, so that its clients get that lease.
LONG_LEASES = (
    *("--lease-seconds-max", LEASE_SECONDS),
    *("--lease-seconds-unrecorded-max", LEASE_SECONDS),
)

# Runs what follows as the process that the kernel gives orphans to, as the first
# process of a container is.
AS_REAPER = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "lodestar", *sys.argv[1:]])
"""


def environment(**settings: str) -> dict[str, str]:
    """Return an environment with *settings*, and none of the user's own."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LODESTAR_")
    }
    return inherited | {"LODESTAR_LEASE_SECONDS": LEASE_SECONDS} | settings


@frozen(kw_only=True)
class Result:
    """How a verb ended."""

    exit_code: int
    out: str
    err: str


def run(*arguments: str, **settings: str) -> Result:
    """Run a verb to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "lodestar", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        env=environment(**settings),
        check=False,
    )
    return Result(exit_code=done.returncode, out=done.stdout, err=done.stderr)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run a verb to its end in this process: much cheaper, where that will do."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    return Result(exit_code=code, out=captured.out, err=captured.err)


# Runs a verb to its end in this process.
Ask = Callable[..., Result]


def ask_here(*arguments: str) -> Result:
    """Run a verb to its end in this process, without settings of the user's own."""
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name in os.environ:
            if name.startswith("LODESTAR_"):
                patch.delenv(name)
        code = main(arguments)
    return Result(exit_code=code, out=out.getvalue(), err=err.getvalue())


# For a test that needs both name services by day: the command line knows neither.
on_both = pytest.mark.parametrize("url", ["leaderserver", "zookeeper"], indirect=True)


def contenders_of(job: str, at: tuple[str, ...], *, count: int) -> list[dict[str, Any]]:
    """Return the contenders for *job*, once there are *count* of them."""
    deadline = time.monotonic() + WAIT_SECONDS
    found: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        # Each question connects anew: this is not a busy loop.
        found = json.loads(ask_here("contenders", job, "--json", *at).out)
        if len(found) == count:
            return found
    raise AssertionError(f"there never were {count} contenders for {job}: {found}")


@final
class Lines:
    """The lines of one stream, as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.seen: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def next(self) -> str:
        """Return the next line; fail when the stream ends, or nothing comes."""
        line = self._queue.get(timeout=WAIT_SECONDS)
        if line is None:
            self._queue.put(None)  # for `rest`
        assert line is not None, f"no further line after {self.seen}"
        self.seen.append(line)
        return line

    def until(self, part: str) -> str:
        """Return the next line that has *part* in it."""
        while part not in (line := self.next()):
            pass
        return line

    def rest(self) -> list[str]:
        """Return all lines that are left, once the stream has ended."""
        lines: list[str] = []
        if not self._stream.closed:
            while (line := self._queue.get(timeout=WAIT_SECONDS)) is not None:
                lines.append(line)
            self._thread.join()
            self._stream.close()
        return lines


@final
class Running:
    """
    A verb that goes on until it is told to end; a context manager.

    Args:
        arguments: The verb, and what follows it.
        python_arguments: What Python is told to run.
        settings: Of its environment.

    Attributes:
        arguments: The verb, and what follows it.
    """

    def __init__(
        self,
        *arguments: str,
        python_arguments: tuple[str, ...] = ("-m", "lodestar"),
        **settings: str,
    ) -> None:
        self.arguments = arguments
        self.process = subprocess.Popen(
            [sys.executable, *python_arguments, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**settings),
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out = Lines(self.process.stdout)
        self.err = Lines(self.process.stderr)

    def end(self, number: signal.Signals = signal.SIGTERM) -> Result:
        """Send a signal, and return how the verb ended."""
        self.process.send_signal(number)
        return self.result()

    def result(self) -> Result:
        """Return how the verb ended, once it has, with the lines not taken so far."""
        exit_code = self.process.wait(WAIT_SECONDS)
        return Result(
            exit_code=exit_code,
            out="\n".join(self.out.rest()),
            err="\n".join(self.err.rest()),
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        was_running = self.process.poll() is None
        if was_running:
            self.process.kill()
        result = self.result()
        if exc_type is not None:
            # For those who read why the test has failed.
            print(self.process.args)
            print("was running" if was_running else f"exit code {result.exit_code}")
            print("\n".join([*self.out.seen, result.out]))
            print("\n".join([*self.err.seen, result.err]))
