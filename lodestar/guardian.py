"""
Stands between ``lodestar elect`` and its command, so that neither outlives the other.

Run as a script by `lodestar.elect`, in a session and process group of its own::

    python -I -S guardian.py DESCRIPTOR COMMAND…

*DESCRIPTOR* is one end of a socket pair whose other end ``elect`` holds.

* ``elect`` is gone, by whatever signal: the socket closes, and the whole process group
  is killed.  (On Linux the kernel kills the command too should the guardian itself be
  killed first.)
* The command is gone: its return code, negative for a signal, is written to the socket,
  and what it left running in the group is killed, the guardian with it.

A process of its own rather than code run between ``fork`` and ``exec``: ``elect`` has
threads, after whose fork little may be done safely; and only somebody who is there can
kill what the command has started itself.  It needs the standard library alone, and no
time to start: a lease is short.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Final, NoReturn


if TYPE_CHECKING:
    from types import FrameType


__all__ = ["NOT_EXECUTABLE_EXIT_CODE", "NOT_FOUND_EXIT_CODE", "main"]

# As shells say it.
NOT_EXECUTABLE_EXIT_CODE: Final = 126
NOT_FOUND_EXIT_CODE: Final = 127

_PR_SET_PDEATHSIG: Final = 1

# What the command must die of is not for us: it is we who tell how it died.
_IGNORED: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# Python itself ignores the last one.
_RESTORED: Final = (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE)


def main(lifeline_fd: int, command: list[str]) -> NoReturn:
    """Run *command* until it ends, or until the other end of the lifeline is closed."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    lifeline = socket.socket(fileno=lifeline_fd)
    lifeline.set_inheritable(False)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    # A handler, for a signal that is ignored wakes no thread.
    signal.signal(signal.SIGCHLD, _wake)

    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(0):  # nothing is ever sent to us: it was closed
        _end_group()
    poll.register(wake_reader, select.POLLIN)

    guardian_pid = os.getpid()
    child_pid = os.fork()
    if child_pid == 0:
        _become(command, guardian_pid)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if lifeline.fileno() in ready:
            break
        os.read(wake_reader, 1)
        ended_pid, status = os.waitpid(child_pid, os.WNOHANG)
        if ended_pid:
            lifeline.sendall(str(os.waitstatus_to_exitcode(status)).encode("ascii"))
            break
    _end_group()


def _end_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("a process outlived its own SIGKILL")


def _wake(number: int, frame: FrameType | None) -> None:
    """Have the interpreter write to the descriptor that wakes the poll."""


def _become(command: list[str], guardian_pid: int) -> NoReturn:
    """Turn this process, the guardian's child, into *command*."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only here is it needed

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian_pid:
            os._exit(NOT_EXECUTABLE_EXIT_CODE)  # too late: it was killed already
    signal.set_wakeup_fd(-1)
    for number in _RESTORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - what we are for
    except OSError as error:
        sys.stderr.write(
            f"lodestar elect: cannot run {command[0]!r}: {error.strerror}\n"
        )
        sys.stderr.flush()
        os._exit(
            NOT_FOUND_EXIT_CODE
            if isinstance(error, FileNotFoundError)
            else NOT_EXECUTABLE_EXIT_CODE
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
