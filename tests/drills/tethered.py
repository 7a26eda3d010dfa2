"""
Run one command that does not outlive its caller.

Started as a script: ``python -I -S tethered.py PARENT_PID COMMAND…``.  It becomes the
command, so that process id, pipes and signals are the command's own.

The kernel's promise (``PR_SET_PDEATHSIG``) holds over ``exec`` and reaches a stopped
process too, which a closed pipe would not.  It follows the *thread* that started us:
drills start their processes on the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final


_PR_SET_PDEATHSIG: Final = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Become *command*, unless the parent has gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent_pid:
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
