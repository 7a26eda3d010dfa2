"""
Run one command so that it never outlives the process that asked for it.

Started as a script: ``python -I process_guard.py PARENT_PID COMMAND…``.  It writes the
command's process id as a line on standard output, and ends when the command has ended,
with its exit code.  Until then it waits for the death of its parent, and kills the
command when that comes.

`prctl(PR_SET_PDEATHSIG)` in the command itself would not do: it follows the *thread*
that started the command, and a thread may end long before its process.  Between this
guard, which has one thread, and the command it is right, and covers the guard's own
death.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import Final


_PARENT_CHECK_MS: Final = 500
_PR_SET_PDEATHSIG: Final = 1


def _die_with_guard() -> None:
    """Ask the kernel to kill the command when the guard dies; Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(parent_pid: int, process: subprocess.Popen[bytes]) -> None:
    """Return when *process* has ended or our parent is no longer *parent_pid*."""
    try:
        parent, ours = os.pidfd_open(parent_pid), os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, a kernel before 5.3, or gone already
        while os.getppid() == parent_pid:
            try:
                process.wait(_PARENT_CHECK_MS / 1000)
            except subprocess.TimeoutExpired:
                continue
            return
        return
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(ours, select.POLLIN)
    # If the parent had died before its descriptor was opened, the number may be
    # somebody else's by now; but then it is our parent no more.
    if os.getppid() == parent_pid:
        poll.poll()


def main(parent_pid: int, command: list[str]) -> int:
    """Run *command*, and return its exit code as a shell would."""
    if os.getppid() != parent_pid:
        return 1
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        # The guard has one thread, so nothing can be locked in the forked child.
        preexec_fn=_die_with_guard if sys.platform == "linux" else None,  # noqa: PLW1509
    )
    sys.stdout.write(f"{process.pid}\n")
    sys.stdout.close()
    _wait(parent_pid, process)
    process.kill()
    returncode = process.wait()
    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
