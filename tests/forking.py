"""A real ``fork()`` for tests of rule E10."""

from __future__ import annotations

import os
import select
import signal
import warnings
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable


CHILD_TIMEOUT_SECONDS = 30.0


def run_in_child(action: Callable[[], object]) -> str:
    """
    Return in words what *action* does in a forked child.

    Returns:
        ``repr`` of what it returned, or the name of the exception that it raised.
    """
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # Since 3.12 Python warns of forking a process with threads: that is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_and_exit(action, write_end)
    os.close(write_end)
    try:
        is_ready, _, _ = select.select([read_end], [], [], CHILD_TIMEOUT_SECONDS)
        if not is_ready:
            os.kill(pid, signal.SIGKILL)
        answer = os.read(read_end, 65_536).decode() if is_ready else "hung"
    finally:
        os.close(read_end)
        os.waitpid(pid, 0)
    return answer


def _run_and_exit(action: Callable[[], object], write_end: int) -> None:
    """Answer and leave at once: nothing of the parent's may be cleaned up here."""
    try:
        answer = repr(action())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        answer = type(error).__name__
    os.write(write_end, answer.encode())
    os._exit(0)
