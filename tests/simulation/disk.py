"""The disk of the server's machine, in memory: it forgets, fails and breaks as told."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, final

from election import Put
from election.epochs import COUNTER_BITS
from leaderserver.server.core.lease_record import LeaseRecord
from leaderserver.server.storage import MemoryStorage, UncertainWriteError
from nameservice import StorageError


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

    from election import StoreOperation, VersionedValue
    from leaderserver.server.core.store_sizes import StoreLimits


__all__ = ["DiskStorage"]


@final
class DiskStorage:
    """
    Storage that outlives its process if the scenario says so, and may fail.

    It does what `SQLiteStorage` does with one file, in memory.
    """

    def __init__(self, *, is_durable: bool, rng: Random) -> None:
        self._memory = MemoryStorage()
        self._is_durable = is_durable
        self._rng = rng
        self._incarnation = 0
        self._leases: dict[int, int] = {}
        self.failure = 0.0
        self.is_breaking = False
        self.writes: list[bytes] = []
        self._fatal_error: UncertainWriteError | None = None

    @property
    def fatal_error(self) -> UncertainWriteError | None:
        """Return why it takes no more writes, or None."""
        return self._fatal_error

    def opened(self) -> None:
        """Take writes again: another process has opened it."""
        self._fatal_error = None

    @property
    def is_short(self) -> bool:
        """Return False: a disk that fails now and then is not full."""
        return False

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Do what the block does, or nothing of it."""
        before, count = deepcopy(self._memory), len(self.writes)
        try:
            yield
        except BaseException:
            self._memory = before
            del self.writes[count:]
            raise

    def tidy(self) -> None:
        """Do nothing."""

    @property
    def is_durable(self) -> bool:
        """Return whether it outlives the process."""
        return self._is_durable

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""
        highest = max(
            (epoch >> COUNTER_BITS for epoch in self.recorded_epochs().values()),
            default=0,
        )
        self._incarnation = max(self._incarnation + 1, highest + 1, at_least)
        return self._incarnation

    def admit_leases(
        self, incarnation: int, *, lease_ns: int, unrecorded_ns: int
    ) -> int:
        """Take note of leases; return the longest that may run."""
        epochs = self.recorded_epochs().values()
        known = LeaseRecord(
            leases_ns=self._leases,
            granted_incarnation=max((e >> COUNTER_BITS for e in epochs), default=0),
        )
        self._leases = {**known.needed(), incarnation: lease_ns}
        return known.longest_ns(lease_ns=lease_ns, unrecorded_ns=unrecorded_ns)

    def limit(self, limits: StoreLimits) -> None:
        """Take *limits* from the next commit on."""
        self._memory.limit(limits)

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        return self._memory.recorded_epochs()

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable, or fail."""
        self._fail_perhaps()
        self._lose_perhaps()
        known = self.recorded_epochs().get(component_id, 0)
        self._memory.record_epoch(component_id, max(known, epoch))
        self._break_perhaps()

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        return self._memory.get(component_id, path)

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return paths that begin with *prefix*, after *after*."""
        return self._memory.list(component_id, prefix, after=after, count_max=count_max)

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """Do all of *operations*, or fail."""
        self._fail_perhaps()
        self._lose_perhaps()
        self._memory.commit(component_id, operations)
        self.writes += [o.value for o in operations if isinstance(o, Put)]
        self._break_perhaps()

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._memory.cleanup(component_id)

    def close(self) -> None:
        """Do nothing: the next process opens it again."""

    def _fail_perhaps(self) -> None:
        if self.failure and self._rng.random() < self.failure:
            raise StorageError("the disk is full")
        if self._fatal_error is not None:
            raise StorageError(str(self._fatal_error))

    def _lose_perhaps(self) -> None:
        """Break before the write is done, half of the times."""
        if self.is_breaking and self._rng.random() < 0.5:
            self._break_perhaps()

    def _break_perhaps(self) -> None:
        """Fail a sync: what was written may or may not be there."""
        if self.is_breaking:
            self.is_breaking = False
            self._fatal_error = UncertainWriteError("a sync failed")
            raise self._fatal_error
