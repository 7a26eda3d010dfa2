"""A command that a verb runs: in a process group of its own, under a guardian."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from lodestar import guardian
from lodestar.process_group import wait_until_group_gone
from nameservice import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


__all__ = [
    "GuardedCommand",
    "check_command",
    "exit_code_of_command",
    "reap_orphans",
    "start_thread",
]

# A shell tells of a death by signal N as 128 + N.
_SIGNAL_EXIT_CODE_BASE: Final = 128


def check_command(command: Sequence[str]) -> None:
    """
    Return if there is such a command.

    Raises:
        ConfigurationError: If none was given, or it is not there.
    """
    if not command:
        message = "there is no command to run: write it last, after '--'"
        raise ConfigurationError(message)
    if shutil.which(command[0]) is None:
        message = f"there is no command {command[0]!r}"
        raise ConfigurationError(message)


def exit_code_of_command(return_code: int) -> int:
    """Return what a verb ends with for a command, as a shell would."""
    if return_code < 0:
        return _SIGNAL_EXIT_CODE_BASE - return_code
    return return_code


def reap_orphans() -> None:
    """
    Wait for ended processes that the kernel has made our children.

    It does so where we are a container's first process: with all that a command has
    left, in its process group or not.  For where no command of ours runs, nor any
    other child that is waited for elsewhere.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def start_thread(thread: threading.Thread) -> None:
    """
    Start *thread*.

    Raises:
        OSError: If there may be no more threads: as where there may be no more
            processes, which the kernel counts together.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


@final
class GuardedCommand:
    """
    A running command and all of its process group.

    Args:
        command: What to run.
        environment: Its environment.
        on_over: Called once on another thread when it is gone, with its return code,
            negative for a signal.
        is_aside: Whether our standard input and output are another's: it reads
            nothing, and what it writes goes to our standard error.  Nothing waits then
            for what it has started: a check that a hanging disk holds has failed.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        on_over: Callable[[int], None],
        is_aside: bool = False,
    ) -> None:
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
                    *(str(theirs.fileno()), *command),
                ],
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL if is_aside else None,
                stdout=sys.stderr if is_aside else None,
            )
        self._is_aside = is_aside
        self._on_over = on_over
        self._lock = threading.Lock()
        self._waiter = threading.Thread(
            target=self._wait, name="command-waiter", daemon=True
        )
        try:
            start_thread(self._waiter)
        except BaseException:
            # Without one who waits for it there is no word of it, nor an end.
            self._lifeline.close()
            self._process.wait()
            raise

    def signal(self, number: signal.Signals) -> None:
        """Send *number* to the command and to all of its process group."""
        # The group bears the guardian's id, which no other has until the guardian
        # has been waited for.
        with self._lock:
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End what is left of it, and wait until it is gone."""
        if self._waiter.is_alive():
            self._lifeline.shutdown(socket.SHUT_RDWR)
        self._waiter.join()
        self._lifeline.close()

    def reap(self) -> bool:
        """
        Wait for processes of its group that the kernel has made our children.

        It does so where we are a container's first process.  They were killed with
        their guardian, or by it, and would be zombies for as long as we run.

        Returns:
            Whether none is left.
        """
        assert self._process.returncode is not None
        with contextlib.suppress(ChildProcessError):
            while True:
                ended_pid, _ = os.waitpid(-self._process.pid, os.WNOHANG)
                if ended_pid == 0:
                    return False
        return True

    def _wait(self) -> None:
        """Wait for the guardian's word, or for its death, and tell."""
        with self._lifeline.makefile("rb") as lines:
            word = lines.read()
        if not word:
            # Somebody killed the guardian, and with it our only word of the command:
            # no process may be left behind.
            self.signal(signal.SIGKILL)
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        if not self._is_aside:
            # All of its group are killed by now, and some may not be gone yet.
            wait_until_group_gone(self._process.pid)
        with self._lock:
            self._process.wait()
        self._on_over(int(word) if word else -signal.SIGKILL)
