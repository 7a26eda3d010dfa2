"""What a LeaderServer remembers in a data directory: the tables of one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from election import Put, VersionedValue
from leaderserver.server.core.lease_record import LeaseRecord
from leaderserver.server.core.store_sizes import StoreLimits
from leaderserver.server.storage import check_version
from leaderserver.server.storage_database import StorageDatabase


if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from election import StoreOperation
    from leaderserver.server.storage import UncertainWriteError


__all__ = ["SQLiteStorage"]


@final
class SQLiteStorage:
    """
    Storage in a data directory; every change is durable when its call returns.

    One thread may write while another one reads.

    Args:
        directory: Made if it is not there; one server at a time may use it.
        limits: How much it may hold.

    Raises:
        ConfigurationError: If another server uses it, or it cannot be used at all.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        limits: StoreLimits | None = None,
    ) -> None:
        self._limits = StoreLimits() if limits is None else limits
        self._database = StorageDatabase(directory)

    @property
    def is_durable(self) -> bool:
        """Return True."""
        return True

    @property
    def fatal_error(self) -> UncertainWriteError | None:
        """Return why it takes no more writes, or None."""
        return self._database.fatal_error

    @property
    def is_short(self) -> bool:
        """Return whether the disk is so full that values may be refused."""
        return self._database.is_short

    def batch(self) -> AbstractContextManager[None]:
        """Do what the block does in one transaction, or nothing of it."""
        return self._database.batch()

    def tidy(self) -> None:
        """Merge the log if it is time, and see to the reserve; between two batches."""
        self._database.tidy()

    # -- writing -------------------------------------------------------------------

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""

        def record(database: sqlite3.Connection) -> int:
            row = database.execute("SELECT number FROM incarnation").fetchone()
            (stored,) = self._database.check_row(row, int)
            highest = max(
                (epoch >> 32 for epoch in self.recorded_epochs().values()), default=0
            )
            number: int = max(stored + 1, highest + 1, at_least)
            database.execute("UPDATE incarnation SET number = ?", (number,))
            return number

        return self._database.write(record)

    def admit_leases(
        self, incarnation: int, *, lease_ns: int, unrecorded_ns: int
    ) -> int:
        """Record leases; return the longest that may run."""

        def record(database: sqlite3.Connection) -> int:
            database.execute(
                "CREATE TABLE IF NOT EXISTS leases (incarnation INTEGER PRIMARY KEY, "
                "lease_ns INTEGER NOT NULL)"
            )
            epochs = self.recorded_epochs().values()
            check_row = self._database.check_row
            leases = database.execute("SELECT * FROM leases")
            known = LeaseRecord(
                leases_ns=dict(check_row(row, int, int) for row in leases),
                granted_incarnation=max((epoch >> 32 for epoch in epochs), default=0),
            )
            database.execute("DELETE FROM leases")
            database.executemany(
                "INSERT INTO leases VALUES (?, ?)",
                [*known.needed().items(), (incarnation, lease_ns)],
            )
            return known.longest_ns(lease_ns=lease_ns, unrecorded_ns=unrecorded_ns)

        return self._database.write(record)

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable before returning."""
        self._database.write(
            lambda database: database.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (component_id) "
                "DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (component_id, epoch),
            )
        )

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """Do all of *operations* durably, or none."""
        puts = [operation for operation in operations if isinstance(operation, Put)]
        size_bytes = sum(len(put.value) + len(put.path) for put in puts)

        def write(database: sqlite3.Connection) -> None:
            if puts:
                self._database.check_room(size_bytes)
                self._check_limits(database, component_id, operations, size_bytes)
            for operation in operations:
                row = database.execute(
                    "SELECT version FROM store WHERE component_id = ? AND path = ?",
                    (component_id, operation.path),
                ).fetchone()
                (version,) = self._database.check_row(row or (0,), int)
                check_version(operation, version)
                if isinstance(operation, Put):
                    database.execute(
                        "INSERT OR REPLACE INTO store VALUES (?, ?, ?, ?)",
                        (component_id, operation.path, operation.value, version + 1),
                    )
                else:
                    database.execute(
                        "DELETE FROM store WHERE component_id = ? AND path = ?",
                        (component_id, operation.path),
                    )

        self._database.write(write, size_bytes=size_bytes, may_use_reserve=not puts)

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._database.write(
            lambda database: database.execute(
                "DELETE FROM store WHERE component_id = ?", (component_id,)
            )
        )

    def _check_limits(
        self,
        database: sqlite3.Connection,
        component_id: str,
        operations: Sequence[StoreOperation],
        size_bytes: int,
    ) -> None:
        """Raise `StoreFullError` if *operations*, with *size_bytes*, are too much."""
        ((pages,), (free,), (page_size,)) = (
            database.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
        all_bytes = (pages - free) * page_size + size_bytes
        limits = self._limits
        if all_bytes <= min(limits.bytes_per_component_max, limits.bytes_max):
            return
        # Counted only where all together might be too much for one.
        in_place_bytes = sum(
            database.execute(
                "SELECT coalesce(sum(length(path) + length(value)), 0) FROM store "
                "WHERE component_id = ? AND path = ?",
                (component_id, operation.path),
            ).fetchone()[0]
            for operation in operations
        )
        if size_bytes <= in_place_bytes:
            return  # what makes it no larger is never refused
        (held,) = database.execute(
            "SELECT coalesce(sum(length(path) + length(value)), 0) FROM store "
            "WHERE component_id = ?",
            (component_id,),
        ).fetchone()
        limits.check(
            component_id=component_id,
            component_bytes=held + size_bytes - in_place_bytes,
            all_bytes=all_bytes - in_place_bytes,
        )

    # -- reading -------------------------------------------------------------------

    def limit(self, limits: StoreLimits) -> None:
        """Take *limits* from the next commit on."""
        self._limits = limits

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        with self._database.reading() as database:
            rows = database.execute("SELECT component_id, epoch FROM epochs")
            return dict(self._database.check_row(row, str, int) for row in rows)

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        with self._database.reading() as database:
            row = database.execute(
                "SELECT value, version FROM store WHERE component_id = ? AND path = ?",
                (component_id, path),
            ).fetchone()
        if row is None:
            return None
        value, version = self._database.check_row(row, bytes, int)
        return VersionedValue(value=value, version=version)

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return up to *count_max* paths that begin with *prefix*, after *after*."""
        with self._database.reading() as database:
            rows = database.execute(
                "SELECT path FROM store WHERE component_id = ? AND path > ? "
                "AND substr(path, 1, ?) = ? ORDER BY path LIMIT ?",
                (component_id, after, len(prefix), prefix, count_max),
            ).fetchall()
        return [path for (path,) in (self._database.check_row(r, str) for r in rows)]

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._database.close()
