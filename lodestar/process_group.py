"""Waiting until a process group is gone that was killed, though it is not our child."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path
from typing import Final

from nameservice.interruptible import InterruptibleEvent


__all__ = ["wait_until_group_gone"]

_PROCESSES: Final = Path("/proc")
_PAUSE_SECONDS: Final = 0.005
_STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def wait_until_group_gone(group_id: int) -> None:
    """
    Return once no process of a group runs that was killed as a whole; on Linux only.

    A process that was killed closes its files only after it has freed its memory: that
    takes a second for some gigabytes, and for ever where a disk hangs.  One that no
    one has waited for counts as gone.  Elsewhere than on Linux it returns at once.

    Args:
        group_id: Of the group.  It must not be ours.
    """
    if not _PROCESSES.is_dir():
        return
    pause = InterruptibleEvent()  # is never set: `wait` is a pause
    while True:
        try:
            # One look is enough: none of them can start another once all are killed.
            for entry in _PROCESSES.iterdir():
                if entry.name.isdigit() and _state_in(entry, group_id) is not None:
                    _wait_until_gone(entry, group_id)
        except OSError as error:
            if error.errno not in _STARVED:
                raise
            pause.wait(_PAUSE_SECONDS)  # nothing can be looked at just now
        else:
            return


def _wait_until_gone(entry: Path, group_id: int) -> None:
    try:
        descriptor = os.pidfd_open(int(entry.name))
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3
        pause = InterruptibleEvent()  # is never set: `wait` is a pause
        while _state_in(entry, group_id) not in {None, "Z", "X"}:
            pause.wait(_PAUSE_SECONDS)
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    finally:
        os.close(descriptor)


def _state_in(entry: Path, group_id: int) -> str | None:
    """Return the state of a process, or None if there is none of that group."""
    try:
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno in _STARVED:
            raise
        return None  # it is gone, or another user's, which `hidepid=1` shuts off
    # The program's name comes before, and may have spaces and parentheses.
    state, _, group, *_ = text.rpartition(")")[2].split()
    return state if int(group) == group_id else None
