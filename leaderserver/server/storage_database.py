"""
The database of a data directory: durable transactions, a full disk, a disk that fails.

SQLite appends what a transaction changes to a log, syncs that, and merges it into its
file later.  We merge every megabyte or so, so that the log stays within the reserve: on
a full disk the reserve is given back, the log merged, and what frees room or is small
is written after all.  Values are taken again when the reserve is whole, or when they
fit into what was freed in the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from leaderserver.server.storage import (
    DiskFullError,
    ShortOfRoomError,
    StorageBusyError,
    UncertainWriteError,
)
from leaderserver.server.storage_directory import DataDirectory, way_out
from nameservice import ConfigurationError, StorageError
from nameservice.durable_files import rename


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["DATABASE_FILE_NAME", "SCHEMA_VERSION", "StorageDatabase"]

T = TypeVar("T")
Row = TypeVar("Row", bound="tuple[Any, ...]")

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
# SQLite's log is merged into its file when about so much was written to it.
_MERGE_SIZE_BYTES: Final = 1 << 20
_PAGE_SIZE_BYTES: Final = 4_096
# SQLite quotes what it cannot understand; where that is no text, Python raises this.
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


@final
class StorageDatabase:
    """
    What an `SQLiteStorage` writes to and reads from.

    One thread may write while another one reads; each has a connection.

    Args:
        directory: Made if it is not there; one server at a time may use it.

    Raises:
        ConfigurationError: If another server uses it, or it cannot be used at all.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
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
        except (OSError, *_ERRORS) as error:
            self._stack.close()
            message = f"cannot use the data directory {path}: {error}"
            if not isinstance(error, OSError) and _is_damage(error):
                message += f"; {way_out(path)}"
            raise ConfigurationError(message) from error
        except BaseException:
            self._stack.close()
            raise

    # -- opening -------------------------------------------------------------------

    def _open(self) -> None:
        if self._directory.is_new(self._file):
            self._make()
        self._connection = self._connect()
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        # What is deleted need not be overwritten, which would take as much room as it
        # held; some builds of SQLite do so by default.
        self._connection.execute("PRAGMA secure_delete = OFF")
        # We merge the log ourselves: SQLite says nothing of a merge that fails.
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._check_content()
        # What an earlier server could not bring to the disk may be in the log, and be
        # read from it, until the memory of the machine is lost.  Merged, it is in a
        # file that has been synced since.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
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
        rename(fresh, self._file)

    def _check_content(self) -> None:
        """Find out now whether what every start needs is there."""
        database = self._connection
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

    def write(
        self,
        action: Callable[[sqlite3.Connection], T],
        *,
        size_bytes: int = 0,
        may_use_reserve: bool = True,
    ) -> T:
        """Return what *action* returns once what it did is durable."""
        if self._is_in_batch:
            with self._savepoint():
                return self._counted(action(self._connection), size_bytes)
        try:
            with self._transaction():
                return self._counted(action(self._connection), size_bytes)
        except DiskFullError:
            if not may_use_reserve or not self._directory.reserve.give_back():
                raise
        self._merge()
        with self._transaction():
            return self._counted(action(self._connection), size_bytes)

    def _counted(self, result: T, size_bytes: int) -> T:
        """Count what the log has grown by, about."""
        self._unmerged_bytes += size_bytes + 2 * _PAGE_SIZE_BYTES
        return result

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises; its transaction goes on."""
        database = self._connection
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
        database = self._connection
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
            refusal = self._not_written(error)
            # These come before the last frame of a commit is written: without that
            # frame a recovery drops the others.  Everything else may come after it: a
            # failed fsync, or an index that cannot grow once the frames are there.
            if isinstance(refusal, DiskFullError | StorageBusyError):
                raise refusal from error
            raise self._fail("while it wrote", error) from error

    def _merge(self) -> None:
        """Bring SQLite's log into its file, so that the log begins anew."""
        try:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            except sqlite3.Error as error:
                if not (
                    self._is_for_want_of_room(error)
                    and self._directory.reserve.give_back()
                ):
                    raise
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            refusal = self._not_written(error)
            if not isinstance(refusal, DiskFullError | StorageBusyError):
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

    def check_room(self, size_bytes: int) -> None:
        """Refuse values that only the last room of a full disk could hold."""
        if not self.is_short:
            return
        (page_count,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        room_bytes = (page_count - _SPARE_PAGE_COUNT) * _PAGE_SIZE_BYTES
        if self._is_log_stuck or room_bytes < size_bytes * 5 // 4:
            message = (
                f"cannot write to the data directory {self._directory.path}: the disk "
                "is full; deleting is possible"
            )
            raise ShortOfRoomError(message)

    def _not_written(self, error: sqlite3.Error) -> StorageError:
        message = f"cannot write to the data directory {self._directory.path}: "
        if self._is_for_want_of_room(error):
            return DiskFullError(
                f"{message}the disk, or a quota on it, is full ({error})"
            )
        if _primary_code(error) == sqlite3.SQLITE_BUSY:
            return StorageBusyError(f"{message}{error}")
        return StorageError(f"{message}{error}")

    def _is_for_want_of_room(self, error: sqlite3.Error) -> bool:
        """
        Return whether there is no room for what was to be written.

        SQLite knows that of a disk only.  A quota that is used up is a failed write to
        it, as one to a broken disk is: so we look whether there is any room.
        """
        if _primary_code(error) == sqlite3.SQLITE_FULL:
            return True
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return code == sqlite3.SQLITE_IOERR_WRITE and self._directory.is_full()

    def _fail(self, when: str, error: sqlite3.Error) -> UncertainWriteError:
        """Take no more writes; return why."""
        self._fatal_error = UncertainWriteError(
            f"the data directory {self._directory.path} failed {when}: {error} "
            f"({error.sqlite_errorname}); check the disk, then start the server again"
        )
        return self._fatal_error

    # -- reading -------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection that reads; translate SQLite's errors."""
        try:
            yield self._readings
        except _ERRORS as error:
            path = self._directory.path
            message = f"cannot read the data directory {path}: {error}"
            if _is_damage(error):
                message += f"; {way_out(path)}"
            raise StorageError(message) from error

    def check_row(self, row: Row, *kinds: type) -> Row:
        """
        Return *row* if its values are of these kinds; SQLite takes any everywhere.

        Raises:
            StorageError: If they are not: we have not written that.
        """
        if tuple(map(type, row)) != kinds:
            raise StorageError(
                f"{self._file} is damaged: a row is none of ours; "
                f"{way_out(self._directory.path)}"
            )
        return row

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._stack.close()


def _primary_code(error: sqlite3.Error) -> int:
    """Return the error's code without what SQLite adds to say where it came from."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    return isinstance(error, UnicodeDecodeError) or _primary_code(error) in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    )
