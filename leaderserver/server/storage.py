"""
What a LeaderServer remembers: epochs, its incarnation, and the leader stores.

Without a data directory it is memory; with one, sqlite_storage.py keeps it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, final

from election import Put, VersionedValue
from leaderserver.server.core.lease_record import LeaseRecord
from leaderserver.server.core.memory_plan import VALUE_COST_BYTES, name_cost_bytes
from leaderserver.server.core.store_sizes import StoreLimits
from nameservice import StorageError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from election import StoreOperation


__all__ = [
    "DiskFullError",
    "LeaderStorage",
    "MemoryStorage",
    "ShortOfRoomError",
    "StorageBusyError",
    "UncertainWriteError",
    "check_version",
]


class UncertainWriteError(StorageError):
    """
    The disk failed while something was written: a restart will tell if it is there.

    The storage takes no more writes then.  After a failed fsync a later one that
    succeeds says nothing about what the failed one was to bring to the disk.
    """


class DiskFullError(StorageError):
    """There is no room for it, and nothing was written."""


class ShortOfRoomError(DiskFullError):
    """The last room is kept for what is small or frees some; it was not even tried."""


class StorageBusyError(StorageError):
    """Another process holds the database, and nothing was written."""


class LeaderStorage(Protocol):
    """
    What a `LeaderService` needs of its memory; not thread-safe.

    What changes something raises `UncertainWriteError` if it may have happened, and
    any other `StorageError` if it did not.  One thread may write while another one
    calls `get` and `list`.
    """

    @property
    def fatal_error(self) -> UncertainWriteError | None:
        """Return why it takes no more writes, or None."""

    @property
    def is_durable(self) -> bool:
        """Return whether it outlives the process."""

    @property
    def is_short(self) -> bool:
        """Return whether the disk is so full that values may be refused."""

    def batch(self) -> AbstractContextManager[None]:
        """
        Do what the block does in one transaction, or nothing of it.

        A commit that is refused within is undone by itself; the rest goes on.
        """

    def tidy(self) -> None:
        """Do what may be done between two batches; raises nothing."""

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""

    def admit_leases(
        self, incarnation: int, *, lease_ns: int, unrecorded_ns: int
    ) -> int:
        """
        Record that the server of *incarnation* admits leases of up to *lease_ns*.

        Args:
            incarnation: What `next_incarnation` has returned.
            lease_ns: The longest lease that it admits.
            unrecorded_ns: The longest that a server without a record may have admitted.

        Returns:
            The longest lease that may run, of this server or of an earlier one (E9).
        """

    def limit(self, limits: StoreLimits) -> None:
        """Take *limits* from the next commit on; on any thread."""

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable before returning."""

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return up to *count_max* paths that begin with *prefix*, after *after*."""

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """
        Do all of *operations*, each of another path, durably, or none.

        Raises:
            VersionMismatchError: If a path is not at its version.
        """

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""

    def close(self) -> None:
        """Release everything.  Idempotent."""


def check_version(operation: StoreOperation, version: int) -> None:
    """Raise `VersionMismatchError` if *operation* asks for another than *version*."""
    if operation.version is not None and operation.version != version:
        raise VersionMismatchError(operation.path, operation.version, version)


@final
class MemoryStorage:
    """Storage that ends with the process."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = StoreLimits() if limits is None else limits
        self._sizes_bytes: dict[str, int] = {}
        self._all_bytes = 0  # the sum of these, which each commit asks for
        self._incarnation = 0
        self._epochs: dict[str, int] = {}
        self._values: dict[str, dict[str, VersionedValue]] = {}

    @property
    def fatal_error(self) -> UncertainWriteError | None:
        """Return None: memory does not fail."""
        return None

    @property
    def is_durable(self) -> bool:
        """Return False."""
        return False

    @property
    def is_short(self) -> bool:
        """Return False."""
        return False

    def batch(self) -> AbstractContextManager[None]:
        """Return a block that does nothing: what is done alone cannot fail."""
        return contextlib.nullcontext()

    def tidy(self) -> None:
        """Do nothing."""

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""
        self._incarnation = max(self._incarnation + 1, at_least)
        return self._incarnation

    def admit_leases(
        self, incarnation: int, *, lease_ns: int, unrecorded_ns: int
    ) -> int:
        """Return the longest lease that may run: no earlier server is known."""
        del incarnation
        known = LeaseRecord(leases_ns={}, granted_incarnation=0)
        return known.longest_ns(lease_ns=lease_ns, unrecorded_ns=unrecorded_ns)

    def limit(self, limits: StoreLimits) -> None:
        """Take *limits* from the next commit on."""
        self._limits = limits

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        return dict(self._epochs)

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Keep *epoch*."""
        self._epochs[component_id] = epoch

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        return self._values.get(component_id, {}).get(path)

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return up to *count_max* paths that begin with *prefix*, after *after*."""
        paths = self._values.get(component_id, {})
        found = sorted(p for p in paths if p.startswith(prefix) and p > after)
        return found[:count_max]

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """Do all of *operations*, each of another path, or none."""
        values = self._values.get(component_id, {})
        growth_bytes = 0
        for operation in operations:
            path = operation.path
            present = values.get(path)
            check_version(operation, 0 if present is None else present.version)
            if present is not None:
                growth_bytes -= _cost_bytes(path, present.value)
            if isinstance(operation, Put):
                growth_bytes += _cost_bytes(path, operation.value)
        component_bytes = self._sizes_bytes.get(component_id, 0) + growth_bytes
        all_bytes = self._all_bytes + growth_bytes
        if growth_bytes > 0:  # what makes it smaller is never refused
            self._limits.check(
                component_id=component_id,
                component_bytes=component_bytes,
                all_bytes=all_bytes,
            )
        self._sizes_bytes[component_id] = component_bytes
        self._all_bytes = all_bytes
        values = self._values.setdefault(component_id, {})
        for operation in operations:
            present = values.get(operation.path)
            if isinstance(operation, Put):
                version = 1 if present is None else present.version + 1
                values[operation.path] = VersionedValue(
                    value=operation.value, version=version
                )
            elif present is not None:
                del values[operation.path]
        if not values:
            self.cleanup(component_id)

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._values.pop(component_id, None)
        self._all_bytes -= self._sizes_bytes.pop(component_id, 0)

    def close(self) -> None:
        """Do nothing: memory goes with its owner."""


def _cost_bytes(path: str, value: bytes) -> int:
    """Return what it takes to keep *value* in memory, at most."""
    return VALUE_COST_BYTES + name_cost_bytes(path) + len(value)
