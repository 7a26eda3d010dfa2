"""Which process an object belongs to: services do not survive ``fork()``."""

from __future__ import annotations

import os
from typing import final

from nameservice.errors import ForkedClientError


__all__ = ["ForkGuard"]


@final
class ForkGuard:
    """
    Remembers the process that made it.

    A child inherits sockets, locks and the memory of threads that it does not
    have.  Every public operation of a service asks its guard first (rule E10).
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Return whether this process is not the one that made the guard."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """
        Return in the process that made the guard.

        Raises:
            ForkedClientError: In any other process.
        """
        if os.getpid() != self._pid:
            raise ForkedClientError
