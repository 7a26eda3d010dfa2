"""
What a LeaderServer remembers: epochs, its incarnation, and the leader stores.

With a data directory it is one SQLite file, every change durable when the call
returns, and a lock that keeps a second server out.  Without one it is memory.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

from election import Put, VersionedValue
from leaderserver.server.core.lease_record import LeaseRecord
from leaderserver.server.core.store_sizes import StoreLimits
from leaderserver.server.storage_directory import DataDirectory, way_out
from nameservice import ConfigurationError, StorageError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from election import StoreOperation


__all__ = [
    "DiskFullError",
    "LeaderStorage",
    "MemoryStorage",
    "SQLiteStorage",
    "ShortOfRoomError",
    "StorageBusyError",
    "UncertainWriteError",
]

T = TypeVar("T")

DATABASE_FILE_NAME: Final = "leaderserver.sqlite"
SCHEMA_VERSION: Final = 1
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


_CREATION: Final = f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
_TABLES: Final = ("epochs", "store", "incarnation")
# How long another process may hold the database before that is told.
_BUSY_TIMEOUT_SECONDS: Final = 2.0
# Pages of the file that are kept for epochs and for the lists of what is free.
_SPARE_PAGE_COUNT: Final = 16
# What SQLite reports before the last frame of a commit is written: without that frame
# a recovery drops the others.  Everything else may come after it: a failed fsync, or
# an index that cannot grow once the frames are in the file.
_CERTAIN_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL})
# SQLite's log is merged into its file when about so much was written to it.
_MERGE_SIZE_BYTES: Final = 1 << 20
_PAGE_SIZE_BYTES: Final = 4_096


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
        """Let *limits* hold from the next commit on; on any thread."""

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


def _check_version(operation: StoreOperation, version: int) -> None:
    if operation.version is not None and operation.version != version:
        raise VersionMismatchError(operation.path, operation.version, version)


@final
class MemoryStorage:
    """Storage that ends with the process."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = StoreLimits() if limits is None else limits
        self._sizes_bytes: dict[str, int] = {}
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
        """Let *limits* hold from the next commit on."""
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
        """Do all of *operations*, or none."""
        values = self._values.get(component_id, {})
        for operation in operations:
            present = values.get(operation.path)
            _check_version(operation, 0 if present is None else present.version)
        growth_bytes = 0
        for path, operation in {o.path: o for o in operations}.items():
            present = values.get(path)
            if present is not None:
                growth_bytes -= len(path) + len(present.value)
            if isinstance(operation, Put):
                growth_bytes += len(path) + len(operation.value)
        component_bytes = self._sizes_bytes.get(component_id, 0) + growth_bytes
        if growth_bytes > 0:  # what makes it smaller is never refused
            self._limits.check(
                component_id=component_id,
                component_bytes=component_bytes,
                all_bytes=sum(self._sizes_bytes.values()) + growth_bytes,
            )
        self._sizes_bytes[component_id] = component_bytes
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
        self._sizes_bytes.pop(component_id, None)

    def close(self) -> None:
        """Do nothing: memory goes with its owner."""


@final
class SQLiteStorage:
    """
    Storage in a data directory.

    Theory of operation.  SQLite appends what a transaction changes to a log, syncs
    that, and merges it into its file later.  We merge every megabyte or so, so that
    the log stays within the reserve: on a full disk the reserve is given back, the log
    merged, and what frees room or is small is written after all.  Values are taken
    again when the reserve is whole, or when they fit into what was freed in the file.

    One thread may write while another one reads; each has a connection.

    Args:
        directory: Made if it is not there; one server at a time may use it.

    Raises:
        ConfigurationError: If another server uses it, or it cannot be used at all.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        limits: StoreLimits | None = None,
    ) -> None:
        self._limits = StoreLimits() if limits is None else limits
        path = Path(directory)
        self._file = path / DATABASE_FILE_NAME
        self._fatal_error: UncertainWriteError | None = None
        self._unmerged_bytes = 0
        self._is_log_stuck = False
        self._is_in_batch = False
        self._stack = contextlib.ExitStack()
        try:
            self._directory = DataDirectory(path, self._stack)
            try:
                self._open()
            except sqlite3.Error:
                # On a full disk even to open takes room.
                if not self._directory.reserve.give_back():
                    raise
                self._open()
            self._directory.mark()
            self._restore_reserve()
        except (OSError, sqlite3.Error) as error:
            self._stack.close()
            message = f"cannot use the data directory {path}: {error}"
            if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
                message += f"; {way_out(path)}"
            raise ConfigurationError(message) from error
        except BaseException:
            self._stack.close()
            raise

    # -- opening -------------------------------------------------------------------

    def _open(self) -> None:
        if self._directory.is_new(self._file):
            self._make()
        self._database = self._connect()
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        # What is deleted need not be overwritten, which would take as much room as it
        # held; some builds of SQLite do so by default.
        self._database.execute("PRAGMA secure_delete = OFF")
        # We merge the log ourselves: SQLite says nothing of a merge that fails.
        self._database.execute("PRAGMA wal_autocheckpoint = 0")
        self._check_content()
        # What an earlier server could not bring to the disk may be in the log, and be
        # read from it, until the memory of the machine is lost.  Merged, it is in a
        # file that has been synced since.
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._readings = self._connect()
        self._readings.execute("PRAGMA query_only = ON")

    def _connect(self) -> sqlite3.Connection:
        # One thread uses a connection at a time, but the thread that opens and closes
        # a server is seldom the one that runs it.
        connection = sqlite3.connect(
            self._file,
            timeout=_BUSY_TIMEOUT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        self._stack.callback(connection.close)
        return connection

    def _make(self) -> None:
        """Make an empty database; it has its name only once it is whole."""
        fresh = self._file.with_name(self._file.name + ".new")
        for leftover in (fresh, fresh.with_name(fresh.name + "-journal")):
            leftover.unlink(missing_ok=True)
        # SQLite gives its log the mode of the database.
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as made:
            made.execute("PRAGMA synchronous = FULL")
            made.executescript(_CREATION)
        fresh.replace(self._file)
        self._directory.sync()

    def _check_content(self) -> None:
        """Find out now whether what every start needs is there."""
        database = self._database
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            message = (
                f"the data directory {self._directory.path} has format {version}; this "
                f"server reads format {SCHEMA_VERSION}"
            )
            raise ConfigurationError(message)
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not (version or names or self._directory.is_marked):
            # Its first start was cut short, by a version that did not rename it.
            database.executescript(_CREATION)
            return
        lost = [name for name in _TABLES if name not in names]
        if lost:
            problem = f"the table {lost[0]!r} is missing"
        elif database.execute("SELECT number FROM incarnation").fetchone() is None:
            problem = "the record of incarnations is missing"
        else:
            # Not the values, which may be many: those are checked when they are read.
            (problem,) = database.execute("PRAGMA quick_check(epochs)").fetchone()
            if problem == "ok":
                return
        message = f"{self._file} is damaged: {problem}; {way_out(self._directory.path)}"
        raise ConfigurationError(message)

    # -- writing -------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Return True."""
        return True

    @property
    def fatal_error(self) -> UncertainWriteError | None:
        """Return why it takes no more writes, or None."""
        return self._fatal_error

    @property
    def is_short(self) -> bool:
        """Return whether the disk is so full that values may be refused."""
        return self._is_log_stuck or not self._directory.reserve.is_whole

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Do what the block does in one transaction, or nothing of it."""
        assert not self._is_in_batch
        self._is_in_batch = True
        try:
            with self._transaction():
                yield
        finally:
            self._is_in_batch = False

    def tidy(self) -> None:
        """Merge the log if it is time, and see to the reserve; between two batches."""
        if self._fatal_error is None and (
            self.is_short or self._unmerged_bytes >= _MERGE_SIZE_BYTES
        ):
            self._merge()
            self._restore_reserve()

    def _write(
        self,
        action: Callable[[sqlite3.Connection], T],
        *,
        size_bytes: int = 0,
        may_use_reserve: bool = True,
    ) -> T:
        """Return what *action* returns once what it did is durable."""
        if self._is_in_batch:
            with self._savepoint():
                return self._counted(action(self._database), size_bytes)
        try:
            with self._transaction():
                return self._counted(action(self._database), size_bytes)
        except DiskFullError:
            if not may_use_reserve or not self._directory.reserve.give_back():
                raise
        self._merge()
        with self._transaction():
            return self._counted(action(self._database), size_bytes)

    def _counted(self, result: T, size_bytes: int) -> T:
        """Count what the log has grown by, about."""
        self._unmerged_bytes += size_bytes + 2 * _PAGE_SIZE_BYTES
        return result

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises; its transaction goes on."""
        database = self._database
        try:
            database.execute("SAVEPOINT job")
            try:
                yield
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK TO job")
                    database.execute("RELEASE job")
                raise
            database.execute("RELEASE job")
        except sqlite3.Error as error:
            raise self._not_written(error) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block does, or roll it back; translate SQLite's errors."""
        if self._fatal_error is not None:
            raise StorageError(f"nothing more is written: {self._fatal_error}")
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._not_written(error) from error
        try:
            database.execute("COMMIT")
        except sqlite3.Error as error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            if _primary_code(error) in _CERTAIN_CODES:
                raise self._not_written(error) from error
            raise self._fail("while it wrote", error) from error

    def _merge(self) -> None:
        """Bring SQLite's log into its file, so that the log begins anew."""
        try:
            try:
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                is_full = _primary_code(error) == sqlite3.SQLITE_FULL
                if not is_full or not self._directory.reserve.give_back():
                    raise
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if _primary_code(error) not in _CERTAIN_CODES:
                # What is in the log is safe there, and the caller's write with it.
                self._fail("while it merged its log", error)
            self._is_log_stuck = True
        else:
            self._is_log_stuck = False
            self._unmerged_bytes = 0

    def _restore_reserve(self) -> None:
        """Take back the reserve as far as there is room; without, go on without."""
        if not self._is_log_stuck:
            self._directory.reserve.restore()

    def _check_room(self, size_bytes: int) -> None:
        """Refuse values that only the last room of a full disk could hold."""
        if not self.is_short:
            return
        (page_count,) = self._database.execute("PRAGMA freelist_count").fetchone()
        room_bytes = (page_count - _SPARE_PAGE_COUNT) * _PAGE_SIZE_BYTES
        if self._is_log_stuck or room_bytes < size_bytes * 5 // 4:
            message = (
                f"cannot write to the data directory {self._directory.path}: the disk "
                "is full; deleting is possible"
            )
            raise ShortOfRoomError(message)

    def _check_limits(
        self, database: sqlite3.Connection, component_id: str, size_bytes: int
    ) -> None:
        """Raise `StoreFullError` if *size_bytes* more are too much."""
        ((pages,), (free,), (page_size,)) = (
            database.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
        all_bytes = (pages - free) * page_size + size_bytes
        component_bytes = all_bytes
        if all_bytes > self._limits.bytes_per_component_max:
            # Counted only where all together might be too much for one.
            (held,) = database.execute(
                "SELECT coalesce(sum(length(path) + length(value)), 0) FROM store "
                "WHERE component_id = ?",
                (component_id,),
            ).fetchone()
            component_bytes = held + size_bytes
        self._limits.check(
            component_id=component_id,
            component_bytes=component_bytes,
            all_bytes=all_bytes,
        )

    def _not_written(self, error: sqlite3.Error) -> StorageError:
        message = f"cannot write to the data directory {self._directory.path}: {error}"
        match _primary_code(error):
            case sqlite3.SQLITE_FULL:
                return DiskFullError(message)
            case sqlite3.SQLITE_BUSY:
                return StorageBusyError(message)
            case _:
                return StorageError(message)

    def _fail(self, when: str, error: sqlite3.Error) -> UncertainWriteError:
        """Take no more writes; return why."""
        self._fatal_error = UncertainWriteError(
            f"the data directory {self._directory.path} failed {when}: {error} "
            f"({error.sqlite_errorname}); check the disk, then start the server again"
        )
        return self._fatal_error

    def next_incarnation(self, *, at_least: int) -> int:
        """Return, and record, an incarnation above every recorded one."""

        def record(database: sqlite3.Connection) -> int:
            (stored,) = database.execute("SELECT number FROM incarnation").fetchone()
            highest = max(
                (epoch >> 32 for epoch in self.recorded_epochs().values()), default=0
            )
            number = max(int(stored) + 1, highest + 1, at_least)
            database.execute("UPDATE incarnation SET number = ?", (number,))
            return number

        return self._write(record)

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
            known = LeaseRecord(
                leases_ns=dict(database.execute("SELECT * FROM leases")),
                granted_incarnation=max((epoch >> 32 for epoch in epochs), default=0),
            )
            database.execute("DELETE FROM leases")
            database.executemany(
                "INSERT INTO leases VALUES (?, ?)",
                [*known.needed().items(), (incarnation, lease_ns)],
            )
            return known.longest_ns(lease_ns=lease_ns, unrecorded_ns=unrecorded_ns)

        return self._write(record)

    def record_epoch(self, component_id: str, epoch: int) -> None:
        """Make *epoch* durable before returning."""
        self._write(
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
                self._check_room(size_bytes)
                self._check_limits(database, component_id, size_bytes)
            for operation in operations:
                row = database.execute(
                    "SELECT version FROM store WHERE component_id = ? AND path = ?",
                    (component_id, operation.path),
                ).fetchone()
                version = 0 if row is None else row[0]
                _check_version(operation, version)
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

        self._write(write, size_bytes=size_bytes, may_use_reserve=not puts)

    def cleanup(self, component_id: str) -> None:
        """Remove what is stored of *component_id*, but for its epoch."""
        self._write(
            lambda database: database.execute(
                "DELETE FROM store WHERE component_id = ?", (component_id,)
            )
        )

    # -- reading -------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._readings
        except sqlite3.Error as error:
            path = self._directory.path
            message = f"cannot read the data directory {path}: {error}"
            if _is_damage(error):
                message += f"; {way_out(path)}"
            raise StorageError(message) from error

    def limit(self, limits: StoreLimits) -> None:
        """Let *limits* hold from the next commit on."""
        self._limits = limits

    def recorded_epochs(self) -> Mapping[str, int]:
        """Return the highest epoch recorded of each component."""
        with self._reading() as database:
            return dict(database.execute("SELECT component_id, epoch FROM epochs"))

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

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._stack.close()


def _primary_code(error: sqlite3.Error) -> int:
    """Return the error's code without what SQLite adds to say where it came from."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _is_damage(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
