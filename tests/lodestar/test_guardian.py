from __future__ import annotations

import errno
import os
import queue
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lodestar import guardian
from lodestar.guarded_command import GuardedCommand
from nameservice.interruptible import InterruptibleEvent
from tests.exhausted_threads import no_more_threads


pytestmark = pytest.mark.shells

WAIT_SECONDS = 30.0


class Guarded:
    """A guardian, and the end of its lifeline that ``elect`` would hold."""

    def __init__(self, command: list[str], *, stdout: int | None = None) -> None:
        self.lifeline, theirs = socket.socketpair()
        self.lifeline.settimeout(WAIT_SECONDS)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
                    *(str(theirs.fileno()), *command),
                ],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdout=stdout,
            )

    def word(self) -> bytes:
        """Return all that the guardian says before it is gone."""
        with self.lifeline.makefile("rb") as lines:
            return lines.read()

    def close(self) -> None:
        """Leave no process behind."""
        self.lifeline.close()
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_SECONDS)


@pytest.fixture
def started() -> Iterator[list[Guarded]]:
    """Return a list to which a test adds what it starts."""
    guarded: list[Guarded] = []
    yield guarded
    for each in guarded:
        each.close()


def wait_for_end(reader: int) -> None:
    """Return once everybody who holds the other end of the pipe is gone."""
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    assert poll.poll(WAIT_SECONDS * 1000), "somebody is still alive"


@pytest.mark.proves("N7")
def test_no_command_begins_once_its_elect_is_gone() -> None:
    """N7: another may lead by then, and its command run already."""
    ours, theirs = socket.socketpair()
    ours.close()
    script = (
        "import os, sys, lodestar.guardian as guardian\n"
        "os.fork = lambda: os._exit(9)\n"
        "guardian.main(int(sys.argv[1]), ['true'])\n"
    )
    with theirs:
        ended = subprocess.run(
            [sys.executable, "-c", script, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            check=False,
        )
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.proves("N7")
class TestWord:
    @pytest.mark.parametrize(
        ("script", "word"),
        [("exit 0", b"0"), ("exit 7", b"7"), ("kill -KILL $$", b"-9")],
    )
    def test_how_the_command_ended_is_told(
        self, script: str, word: bytes, started: list[Guarded]
    ) -> None:
        """N7: the return code, negative for a signal, reaches elect."""
        started.append(Guarded(["sh", "-c", script]))
        assert started[0].word() == word

    def test_a_command_that_cannot_be_run_ends_as_in_a_shell(
        self, started: list[Guarded], tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """N7: 127 for what is not there, 126 for what is no program, and a line."""
        started.append(Guarded([str(tmp_path / "missing")]))
        assert started[0].word() == b"127"
        (tmp_path / "text").write_text("no program")
        started.append(Guarded([str(tmp_path / "text")]))
        assert started[1].word() == b"126"
        errors = capfd.readouterr().err.splitlines()
        assert len(errors) == 2
        assert "missing" in errors[0]

    def test_signals_are_the_commands_business(self, started: list[Guarded]) -> None:
        """N7: TERM to the group is handled by the command; the guardian tells how."""
        reader, writer = os.pipe()
        script = "trap 'exit 42' TERM; echo ready; while :; do sleep 60 & wait; done"
        started.append(Guarded(["sh", "-c", script], stdout=writer))
        os.close(writer)
        assert os.read(reader, 100).startswith(b"ready")
        os.killpg(started[0].process.pid, signal.SIGTERM)
        assert started[0].word() == b"42"
        os.close(reader)

    def test_the_command_gets_signals_as_any_program_does(
        self, started: list[Guarded]
    ) -> None:
        """N7: what Python or the guardian ignores, the command does not."""
        script = "kill -TERM $$; exit 1"
        started.append(Guarded(["sh", "-c", script]))
        assert started[0].word() == str(-signal.SIGTERM).encode()
        script = "kill -PIPE $$; exit 1"
        started.append(Guarded(["sh", "-c", script]))
        assert started[1].word() == str(-signal.SIGPIPE).encode()


@pytest.mark.proves("N7")
class TestNobodyIsLeftBehind:
    def test_what_the_command_left_running_ends_with_it(
        self, started: list[Guarded]
    ) -> None:
        """N7: a background process of the command is ended with the group."""
        reader, writer = os.pipe()
        started.append(Guarded(["sh", "-c", "sleep 600 & exit 3"], stdout=writer))
        os.close(writer)
        assert started[0].word() == b"3"
        wait_for_end(reader)
        os.close(reader)

    def test_all_ends_when_elect_is_gone(self, started: list[Guarded]) -> None:
        """N7: a lifeline that closes ends the command and what it has started."""
        reader, writer = os.pipe()
        script = "echo ready; sleep 600 & wait"
        started.append(Guarded(["sh", "-c", script], stdout=writer))
        os.close(writer)
        assert os.read(reader, 100).startswith(b"ready")
        started[0].lifeline.shutdown(socket.SHUT_RDWR)
        wait_for_end(reader)
        os.close(reader)
        assert started[0].process.wait(WAIT_SECONDS) == -signal.SIGKILL

    @pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel for it")
    def test_the_command_ends_when_its_guardian_is_killed(
        self, started: list[Guarded]
    ) -> None:
        """N7: even with its guardian gone the command does not run on."""
        reader, writer = os.pipe()
        script = "import time; print('ready', flush=True); time.sleep(600)"
        started.append(Guarded([sys.executable, "-c", script], stdout=writer))
        os.close(writer)
        assert os.read(reader, 100).startswith(b"ready")
        started[0].process.kill()
        wait_for_end(reader)
        os.close(reader)
        assert started[0].word() == b""


_LARGE = """
import mmap, signal
memory = mmap.mmap(-1, 512 << 20)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(memory), mmap.PAGESIZE):
    memory[page] = 1
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.proves("N7")
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel for it")
@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_command_is_over_when_all_that_it_started_is_gone(
    monkeypatch: pytest.MonkeyPatch, *, has_pidfd: bool
) -> None:
    """N7: a large process of the group, which takes its time to end, is waited for."""
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", _no_pidfd)
    stdout, theirs = os.pipe()  # closes when the last of the command's processes ends
    held: list[bool] = []
    over = threading.Event()

    def on_over(return_code: int) -> None:
        ended = select.poll()
        ended.register(stdout, select.POLLHUP)
        held.append(not ended.poll(0))
        over.set()

    saved = os.dup(1)
    os.dup2(theirs, 1)
    try:
        script = f'{sys.executable} -c "$0" & wait'
        command = GuardedCommand(
            ["sh", "-c", script, _LARGE], environment=os.environ, on_over=on_over
        )
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(theirs)
    try:
        assert os.read(stdout, 100).startswith(b"ready")
        command.signal(signal.SIGKILL)
        assert over.wait(WAIT_SECONDS)
        assert held == [False]
    finally:
        command.close()
        os.close(stdout)


def _no_pidfd(process_id: int, flags: int = 0) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.proves("N7")
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel for it")
def test_a_command_is_over_though_no_descriptor_was_left_to_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N7: who supervises it hears of its end as soon as it can be looked for."""
    over = threading.Event()
    starved = threading.Event()
    command = GuardedCommand(
        ["sleep", "600"], environment=os.environ, on_over=lambda _: over.set()
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pause = InterruptibleEvent.wait

    def note_pause(event: InterruptibleEvent, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "command-waiter":
            starved.set()
        return pause(event, timeout)

    monkeypatch.setattr(InterruptibleEvent, "wait", note_pause)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        command.signal(signal.SIGKILL)
        assert starved.wait(WAIT_SECONDS)
        assert not over.is_set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        assert over.wait(WAIT_SECONDS)
    finally:
        command.close()


@pytest.mark.proves("N7")
def test_processes_that_may_not_be_looked_at_are_not_of_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N7: where /proc is mounted with hidepid=1, those of other users refuse it."""
    read_text = Path.read_text

    def refuse(path: Path, *arguments: Any, **options: Any) -> str:
        if path.name == "stat" and path.parent.name != str(os.getpid()):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    command = GuardedCommand(
        ["sh", "-c", "exit 7"], environment=os.environ, on_over=codes.put
    )
    try:
        assert codes.get(timeout=WAIT_SECONDS) == 7
    finally:
        command.close()


def test_a_command_that_cannot_be_waited_for_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that may have no more threads is told so, and leaves nothing behind."""
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def begin(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(popen(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    with (
        no_more_threads("command-waiter"),
        pytest.raises(OSError, match="new thread"),
    ):
        GuardedCommand(["sleep", "600"], environment=os.environ, on_over=print)
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
