"""The processes of a drill as the test sees them: told, asked, stopped and killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, final

from attrs import frozen

from haservices.testing.reserved_port import ReservedPort
from nameservice import SystemClock
from tests.drills.beliefs import Span, read_journal
from tests.drills.contender import ContenderSettings


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType


__all__ = ["Contender", "Event", "Process", "Server", "now_ns"]

ROOT: Final = Path(__file__).parent.parent.parent

# Generous: it bounds how long a broken drill takes, not how fast the code must be.
WAIT_SECONDS: Final = 60.0
_END_TIMEOUT_SECONDS: Final = 15.0

_numbers = itertools.count(1)


def now_ns() -> int:
    """Return the time that all processes of this machine share."""
    return SystemClock().now_ns()


@frozen(kw_only=True)
class Event:
    """
    What a process reported.

    Attributes:
        name: What happened.
        at_ns: When, by its own reading of the machine's clock.
        job_id: For which job, if for one.
        epoch: Under which epoch, if under one.
        leader_session_id: The identity that goes with the epoch.
        believes: Of ``woke``: the first answer of ``has_leadership``.
        slept_ns: Of ``woke``: how long it had not run.
        exit_code: Of ``forked``: how the child ended.
        outcomes: Of ``forked``: what each use of what it inherited came to.
        detail: Of ``failed``: the error.
        child_pid: Of ``left a child``: which.
    """

    name: str
    at_ns: int
    job_id: str = ""
    epoch: int = 0
    leader_session_id: str = ""
    believes: bool | None = None
    slept_ns: int = 0
    exit_code: int = 0
    outcomes: dict[str, str] | None = None
    detail: str = ""
    child_pid: int = 0


class Process:
    """A child whose lines of output are kept, and can be waited for."""

    def __init__(self, command: list[str], *, log_file: Path) -> None:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("LODESTAR_")
        }
        tether = str(Path(__file__).with_name("tethered.py"))
        self.log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", tether, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=inherited,
                cwd=ROOT,
                # A Ctrl-C at the terminal is for us: we stop them in our own time.
                start_new_session=True,
            )
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._has_ended = False
        self._is_paused = False
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, or None while it runs."""
        return self._process.poll()

    @property
    def lines(self) -> list[str]:
        """Return the lines of output so far."""
        with self._changed:
            return list(self._lines)

    def wait_for_line(
        self,
        holds: Callable[[list[str]], bool],
        timeout_seconds: float = WAIT_SECONDS,
    ) -> list[str]:
        """Return all lines so far as soon as *holds* is true of them."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not holds(self._lines):
                left_seconds = deadline - time.monotonic()
                if self._has_ended or left_seconds <= 0:
                    why = "it has ended" if self._has_ended else "nothing came"
                    message = f"{why}; it said {self._lines[-20:]}; {self._log()}"
                    raise AssertionError(message)
                self._changed.wait(left_seconds)
            return list(self._lines)

    def tell(self, line: str) -> None:
        """Give it a line of input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def pause(self) -> None:
        """Stop it (SIGSTOP); return once it does not run any more."""
        self._process.send_signal(signal.SIGSTOP)
        self._is_paused = True
        # The signal takes effect on its own time, and tells its parent when it has.
        changed = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert changed is not None
        assert changed.si_code == os.CLD_STOPPED, self._log()
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> int:
        """
        Make it go on (SIGCONT).

        Returns:
            The time just before.
        """
        self._is_paused = False
        resumed_ns = now_ns()
        self._process.send_signal(signal.SIGCONT)
        return resumed_ns

    def kill(self) -> int:
        """
        End it with SIGKILL, which it cannot notice.  Idempotent.

        Returns:
            The time just before.
        """
        killed_ns = now_ns()
        self._process.kill()
        self._wait_for_end()
        return killed_ns

    def leave(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Ask it to end (SIGTERM), and wait until it has, without an error."""
        self._process.send_signal(signal.SIGTERM)
        try:
            exit_code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not leave; {self._log()}") from None
        assert exit_code == 0, self._log()
        self._wait_for_end()

    def end(self, timeout_seconds: float = _END_TIMEOUT_SECONDS) -> None:
        """Have it leave cleanly by closing its input, and wait until it has."""
        assert self._process.stdin is not None
        assert not self._is_paused
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not leave; {self._log()}") from None
        self._wait_for_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _wait_for_end(self) -> None:
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _read(self, output: IO[bytes]) -> None:
        for line in output:
            with self._changed:
                self._lines.append(line.decode().rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _log(self) -> str:
        text = self.log_file.read_text(encoding="utf-8", errors="replace")
        return f"the end of its log:\n{text[-3000:]}"


@final
class Contender(Process):
    """
    A process that contends, see tests/drills/contender.py; a context manager.

    Args:
        name: Its name; its address is that and ``:1``.
        directory: Where its journal and log go.
        job_ids: What it may contend for.
        enters: Which of them it contends for from its start on; None for all.
        pause_seconds: Between two rounds of questions whether it leads.
        services: The settings of its `HAConfig`.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        job_ids: list[str],
        enters: list[str] | None = None,
        pause_seconds: float = 0.002,
        **services: Any,
    ) -> None:
        self.name = name
        self.job_ids = job_ids
        number = next(_numbers)
        self._journal_file = directory / f"{name}-{number}.journal"
        settings = ContenderSettings(
            name=name,
            services=services,
            job_ids=job_ids,
            enters=job_ids if enters is None else enters,
            journal_file=str(self._journal_file),
            pause_seconds=pause_seconds,
        )
        super().__init__(
            [sys.executable, "-m", "tests.drills.contender", settings.to_json()],
            log_file=directory / f"{name}-{number}.log",
        )

    @property
    def address(self) -> str:
        """Return what it confirms."""
        return f"{self.name}:1"

    @property
    def events(self) -> list[Event]:
        """Return what it reported so far."""
        return _events(list(self._lines))

    def all(self, name: str, **fields: Any) -> list[Event]:
        """Return the events called *name* that have all of *fields*."""
        return _matching(self.events, name, fields)

    def wait_for(
        self, name: str, *, count: int = 1, since_ns: int = 0, **fields: Any
    ) -> Event:
        """Return the *count*-th event *name* with *fields* since then, once it came."""

        def matching(lines: list[str]) -> list[Event]:
            events = [event for event in _events(lines) if event.at_ns >= since_ns]
            return _matching(events, name, fields)

        lines = self.wait_for_line(lambda lines: len(matching(lines)) >= count)
        return matching(lines)[count - 1]

    def wait_until_believing(self, job_id: str, epoch: int) -> Event:
        """Return its latest answer once that is a yes under *epoch*."""
        return self._wait_for_answer(job_id, epoch, "believed")

    def wait_until_doubting(self, job_id: str, epoch: int) -> Event:
        """Return its latest answer once that is a no under *epoch*."""
        return self._wait_for_answer(job_id, epoch, "doubted")

    def _wait_for_answer(self, job_id: str, epoch: int, name: str) -> Event:
        def holds(lines: list[str]) -> bool:
            answers = _answers(lines, job_id)
            return bool(answers) and (
                (answers[-1].name, answers[-1].epoch) == (name, epoch)
            )

        return _answers(self.wait_for_line(holds), job_id)[-1]

    def enter(self, job_id: str) -> None:
        """Have it contend for one more of its jobs, or again for one that it left."""
        self._command("enter", "entered", job_id)

    def resign(self, job_id: str) -> None:
        """Have it close its election, and wait until it has."""
        self._command("resign", "resigned", job_id)

    def fork(self, job_id: str) -> Event:
        """Have it make a child that tries what it inherits; return how that went."""
        return self._command("fork", "forked", job_id)

    def leave_child(self, job_id: str) -> int:
        """Have it make a child that outlives it; return the child's process id."""
        return self._command("leave a child", "left a child", job_id).child_pid

    def _command(self, what: str, answer: str, job_id: str) -> Event:
        count = len(self.all(answer, job_id=job_id))
        self.tell(json.dumps({"do": what, "job_id": job_id}))
        return self.wait_for(answer, count=count + 1, job_id=job_id)

    def wait_for_newer(self, job_id: str, *, epoch: int) -> Event:
        """Return its first confirmation under an epoch above *epoch*."""

        def newer(lines: list[str]) -> list[Event]:
            confirmed = _matching(_events(lines), "confirmed", {"job_id": job_id})
            return [event for event in confirmed if event.epoch > epoch]

        return newer(self.wait_for_line(lambda lines: bool(newer(lines))))[0]

    def spans(self) -> Iterator[Span]:
        """Yield what it believed, and when; best asked when it has ended."""
        yield from read_journal(
            self._journal_file, holder=self.name, job_ids=self.job_ids
        )


def _events(lines: list[str]) -> list[Event]:
    return [Event(**json.loads(line)) for line in lines]


def _answers(lines: list[str], job_id: str) -> list[Event]:
    """Return each change of what it answers for *job_id*."""
    return [
        event
        for event in _events(lines)
        if event.name in ("believed", "doubted") and event.job_id == job_id
    ]


def _matching(events: list[Event], name: str, fields: dict[str, Any]) -> list[Event]:
    return [
        event
        for event in events
        if event.name == name
        and all(getattr(event, field) == value for field, value in fields.items())
    ]


@final
class Server:
    """
    A ``lodestar server`` that can be killed and comes back where it was.

    A context manager that starts and ends it.

    Args:
        directory: Where its log goes, and its data.
        is_durable: Whether it has a data directory.
        lease_seconds_max: The longest lease that it admits.
        options: More of its command line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        is_durable: bool = True,
        lease_seconds_max: float = 0.5,
        options: Sequence[str] = (),
    ) -> None:
        self._resources = contextlib.ExitStack()
        # Held while the server is away, so that it comes back where it was.
        self.port, self.publish_port = (
            self._resources.enter_context(ReservedPort()).port for _ in range(2)
        )
        self.url = f"leaderserver://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-m", "lodestar", "server"),
            *("--bind", f"tcp://127.0.0.1:{self.port}"),
            *("--publish-bind", f"tcp://127.0.0.1:{self.publish_port}"),
            *("--lease-seconds-max", str(lease_seconds_max)),
            *("--lease-seconds-unrecorded-max", str(lease_seconds_max)),
            *options,
        ]
        if is_durable:
            self._command += ["--data-dir", str(directory / "data")]
        self._log_file = directory / "server.log"
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """Return the process that serves now."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it, and return when it serves."""
        self._process = Process(self._command, log_file=self._log_file)
        self._process.wait_for_line(
            lambda lines: any(line.startswith("serving ") for line in lines)
        )

    def restart(self) -> int:
        """Kill it, and start it again; return the time just before."""
        killed_ns = self.process.kill()
        self.start()
        return killed_ns

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._resources.close()
