"""
What this process knows of its own runs (rule W1).

A run is a process's own: it ends with it, and so does what is remembered here.  That is
the epoch that the run was born with, which is one number, however often queries were
started again; and the schemas that the leader has taken from it, which need not travel
again.

A run that has ended may still try to begin: what publishes for it waits for a name
service that is away.  So the process remembers, too, which run of a query asked to
begin last: another one is not born after it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeAlias, final

from attrs import define

from queryablestate.errors import StaleWriterError


if TYPE_CHECKING:
    from queryablestate.wire.clients import StateDeclaration


__all__ = ["OWN_RUNS", "OwnRuns", "RunKey"]

RunKey: TypeAlias = tuple[str, str, str, str]
"""Name service, job, query, run: a job is one of its name service."""

RUN_COUNT_MAX: Final = 100_000
"""Runs of one process; beyond that, the one that began first is forgotten."""


@final
@define(kw_only=True)
class _OwnRun:
    born_epoch: int | None = None
    states: tuple[StateDeclaration, ...] = ()


@final
class OwnRuns:
    """The first ticket of each run, and what it has declared last.  Thread-safe."""

    def __init__(self, count_max: int = RUN_COUNT_MAX) -> None:
        self._lock = threading.Lock()
        self._runs: dict[RunKey, _OwnRun] = {}
        self._newest: dict[tuple[str, str, str], RunKey] = {}
        self._count_max = count_max

    def begins(self, run: RunKey) -> None:
        """Take note that *run* asks to begin: it is newer than those before it."""
        with self._lock:
            if run not in self._runs:
                self._remember(run, _OwnRun())
                self._newest[run[:3]] = run

    def epoch_of(self, run: RunKey) -> int | None:
        """Return the first ticket that *run* has shown, or None."""
        with self._lock:
            known = self._runs.get(run)
            return None if known is None else known.born_epoch

    def born_epoch(self, run: RunKey, ticket: int) -> int:
        """
        Return the first ticket that *run* has shown, which is *ticket* if none is.

        Tickets rise.  A lower one is of a control plane that began anew, and the run
        is born again there.

        Raises:
            StaleWriterError: If it would be born after a newer run of its query.
        """
        with self._lock:
            known = self._runs.get(run)
            born_epoch = None if known is None else known.born_epoch
            if born_epoch is not None and born_epoch <= ticket:
                return born_epoch
            newest = self._newest.get(run[:3], run)
            if newest != run:
                raise StaleWriterError(run[2], 0, self._runs[newest].born_epoch or 0)
            self._remember(run, _OwnRun(born_epoch=ticket))
            return ticket

    def _remember(self, run: RunKey, known: _OwnRun) -> None:
        """Remember *known*, in place of the run that began first if all is full."""
        while run not in self._runs and len(self._runs) >= self._count_max:
            first = next(iter(self._runs))
            del self._runs[first]
            if self._newest.get(first[:3]) == first:
                del self._newest[first[:3]]
        self._runs[run] = known

    def declared(self, run: RunKey, states: tuple[StateDeclaration, ...]) -> None:
        """Take note of what the leader has taken from *run*, if that is known."""
        with self._lock:
            known = self._runs.get(run)
            if known is not None:
                known.states = states

    def has_declared(self, run: RunKey, states: tuple[StateDeclaration, ...]) -> bool:
        """Return whether *run* has declared just that the last time."""
        with self._lock:
            known = self._runs.get(run)
            return known is not None and known.states == states


OWN_RUNS: Final = OwnRuns()
"""Those of this process."""
