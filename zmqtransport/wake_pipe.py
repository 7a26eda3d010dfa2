"""A pipe that wakes a loop, to which any thread may write without a lock."""

from __future__ import annotations

import contextlib
import os
from typing import Final, final

from nameservice import ConfigurationError, ForkGuard


__all__ = ["WakePipe"]

_READ_SIZE_BYTES: Final = 4_096


@final
class WakePipe:
    """
    What wakes the loop; not a ZeroMQ pair: any thread may write to it.

    There is no lock.  A thread that calls may be interrupted by a signal, whose handler
    closes the loop's owner and waits for the loop: it would wait for a lock that the
    interrupted thread holds.  So the pipe closes when no one can write to it any more.

    Raises:
        ConfigurationError: If the process may have no more open files.
    """

    _is_open = False

    def __init__(self) -> None:
        self._guard = ForkGuard()
        try:
            self.reader, self._writer = os.pipe()
        except OSError as error:
            message = "a new client or server needs more open files: raise ulimit -n"
            raise ConfigurationError(message) from error
        self._is_open = True
        for descriptor in (self.reader, self._writer):
            os.set_blocking(descriptor, False)

    def wake(self) -> None:
        """Make the poll return."""
        with contextlib.suppress(BlockingIOError):  # it was woken often enough
            os.write(self._writer, b"\0")

    def drain(self) -> None:
        """Empty the pipe: the loop has woken."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, _READ_SIZE_BYTES)

    def __del__(self) -> None:
        """Close it; in a child the numbers may be those of others by now."""
        if self._is_open and not self._guard.is_inherited:
            os.close(self.reader)
            os.close(self._writer)
