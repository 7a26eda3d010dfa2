"""
What a LeaderServer remembers: epochs, its incarnation, and the leader stores.

With a data directory it is one SQLite file, every change durable when the call
returns, and a lock that keeps a second server out.  Without one it is memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, final

from election import Put, VersionedValue
from nameservice import ConfigurationError, StorageError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from election import StoreOperation


__all__ = ["LeaderStorage", "MemoryStorage", "SQLiteStorage"]

DATABASE_FILE_NAME: Final = "leaderserver.sqlite"
LOCK_FILE_NAME: Final = "lock"
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE epochs (component_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE store (
    component_id TEXT NOT NULL, path TEXT NOT NULL,
    value BLOB NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (component_id, path)
) WITHOUT ROWID;
CREATE TABLE incarnation (number INTEGER NOT NULL);
INSERT INTO incarnation VALUES (0);
"""


class LeaderStorage(Protocol):
    """What a `LeaderService` needs of its memory; not thread-safe."""

    @property
    def is_durable(self) -> bool:
        """Return whether it outlives the process."""

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""

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
        Do all of *operations* durably, or none.

        Raises:
            VersionMismatchError: If a path is not at its version.
        """

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""

    def close(self) -> None:
        """Release everything.  Idempotent."""


def _check_version(operation: StoreOperation, present: VersionedValue | None) -> None:
    version = 0 if present is None else present.version
    if operation.version is not None and operation.version != version:
        raise VersionMismatchError(operation.path, operation.version, version)


@final
class MemoryStorage:
    """Storage that ends with the process."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._epochs: dict[str, int] = {}
        self._values: dict[str, dict[str, VersionedValue]] = {}

    @property
    def is_durable(self) -> bool:
        """Return False."""
        return False

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""
        self._incarnation = max(self._incarnation + 1, at_least)
        return self._incarnation

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
        """Do all of *operations*, or none."""
        values = self._values.get(component_id, {})
        for operation in operations:
            _check_version(operation, values.get(operation.path))
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

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._values.pop(component_id, None)

    def close(self) -> None:
        """Do nothing: memory goes with its owner."""


@final
class SQLiteStorage:
    """
    Storage in a data directory.

    Args:
        directory: Made if it is not there; one server at a time may use it.

    Raises:
        ConfigurationError: If another server uses it, or it cannot be used at all.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._stack = contextlib.ExitStack()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            self._stack.close()
            message = f"cannot use the data directory {self._directory}: {error}"
            raise ConfigurationError(message) from error
        except BaseException:
            self._stack.close()
            raise

    def _lock(self) -> None:
        descriptor = os.open(
            self._directory / LOCK_FILE_NAME,
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        self._stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = (
                f"the data directory {self._directory} is in use by another "
                "LeaderServer: stop that one, or choose another directory"
            )
            raise ConfigurationError(message) from error
        # A forked child has the descriptor too, and may live longer than the server:
        # to close our own would leave the lock with it.
        self._stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)

    def _open(self) -> sqlite3.Connection:
        # One thread uses the connection at a time, but the thread that opens and
        # closes a server is seldom the one that runs it.
        database = sqlite3.connect(
            self._directory / DATABASE_FILE_NAME,
            isolation_level=None,
            check_same_thread=False,
        )
        self._stack.callback(database.close)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;"
            )
        elif version != _SCHEMA_VERSION:
            message = (
                f"the data directory {self._directory} has format {version}; this "
                f"server reads format {_SCHEMA_VERSION}"
            )
            raise ConfigurationError(message)
        return database

    @property
    def is_durable(self) -> bool:
        """Return True."""
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what the block does, or roll it back; translate SQLite's errors."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            message = f"cannot write to the data directory {self._directory}: {error}"
            raise StorageError(message) from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._database
        except sqlite3.Error as error:
            message = f"cannot read the data directory {self._directory}: {error}"
            raise StorageError(message) from error

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""
        with self._transaction() as database:
            (stored,) = database.execute("SELECT number FROM incarnation").fetchone()
            highest = max(
                (epoch >> 32 for epoch in self.recorded_epochs().values()), default=0
            )
            number = max(stored + 1, highest + 1, at_least)
            database.execute("UPDATE incarnation SET number = ?", (number,))
        return int(number)

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        with self._reading() as database:
            return dict(database.execute("SELECT component_id, epoch FROM epochs"))

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable before returning."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (component_id) "
                "DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (component_id, epoch),
            )

    def get(self, component_id: str, path: str) -> VersionedValue | None:
        """Return what is under *path*, or None."""
        with self._reading() as database:
            row = database.execute(
                "SELECT value, version FROM store WHERE component_id = ? AND path = ?",
                (component_id, path),
            ).fetchone()
        return None if row is None else VersionedValue(value=row[0], version=row[1])

    def list(
        self, component_id: str, prefix: str, *, after: str, count_max: int
    ) -> Sequence[str]:
        """Return up to *count_max* paths that begin with *prefix*, after *after*."""
        with self._reading() as database:
            rows = database.execute(
                "SELECT path FROM store WHERE component_id = ? AND path > ? "
                "AND substr(path, 1, ?) = ? ORDER BY path LIMIT ?",
                (component_id, after, len(prefix), prefix, count_max),
            ).fetchall()
        return [path for (path,) in rows]

    def commit(self, component_id: str, operations: Sequence[StoreOperation]) -> None:
        """Do all of *operations* durably, or none."""
        with self._transaction() as database:
            for operation in operations:
                present = self.get(component_id, operation.path)
                _check_version(operation, present)
                if isinstance(operation, Put):
                    version = 1 if present is None else present.version + 1
                    database.execute(
                        "INSERT OR REPLACE INTO store VALUES (?, ?, ?, ?)",
                        (component_id, operation.path, operation.value, version),
                    )
                else:
                    database.execute(
                        "DELETE FROM store WHERE component_id = ? AND path = ?",
                        (component_id, operation.path),
                    )

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        with self._transaction() as database:
            database.execute(
                "DELETE FROM store WHERE component_id = ?", (component_id,)
            )

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._stack.close()
