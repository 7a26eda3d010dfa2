"""
With which epochs the runs of this process were born (rule W1).

A run is a process's own: it ends with it, and so does what is remembered here.  What is
shown to the proxy leader is one number, however often queries were started again.
"""

from __future__ import annotations

import threading
from typing import Final, TypeAlias, final


__all__ = ["RUN_BIRTHS", "RunBirths", "RunKey"]

RunKey: TypeAlias = tuple[str, str, str, str]
"""Name service, job, query, run: a job is one of its name service."""

RUN_COUNT_MAX: Final = 100_000
"""Runs of one process; beyond that, the one that began first is forgotten."""


@final
class RunBirths:
    """The first ticket of each run.  Thread-safe."""

    def __init__(self, count_max: int = RUN_COUNT_MAX) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[RunKey, int] = {}
        self._count_max = count_max

    def born_epoch(self, run: RunKey, ticket: int) -> int:
        """
        Return the first ticket that *run* has shown, which is *ticket* if none is.

        Tickets rise.  A lower one is of a control plane that began anew, and the run
        is born again there.
        """
        with self._lock:
            known = self._epochs.get(run)
            if known is not None and known <= ticket:
                return known
            while len(self._epochs) >= self._count_max:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[run] = ticket
            return ticket


RUN_BIRTHS: Final = RunBirths()
"""Those of this process."""
