"""
Backups of a data directory: one file each, taken beside a running server.

Theory of operation
-------------------
A backup is a copy of the directory's database as of one moment, made by SQLite itself:
it takes no lock that a server would wait for, and the server may write meanwhile.  The
file is checked before it has its name, and again before anything is made of it.

A directory that is restored goes back in time.  Epochs must not (rule E2), and no one
may go on with what is not there any more:

* *Epochs.*  What was granted after the backup is not on record.  Its epochs carry
  incarnations that are at most the seconds since 2020, or a day more: a server refuses
  reports of epochs further ahead.  So the restored directory says that everything up to
  the incarnation of a day from now was granted and is over.  The next server begins
  above.
* *Leaders.*  One that leads may have committed after the backup, and must not lead on
  over a store without its commits.  Its claim is below what is over, so it is revoked,
  and every leader begins anew, by reading.
* *Leases.*  Which servers granted after the backup, and which leases they admitted, is
  not on record.  The longest one that is counts as that of a server of now, so that the
  next one waits for it, and at least for what a server without a record waits for.
* *Versions* of the leader store.  A path may have been at version 7 with another value,
  after the backup or after an earlier restore of it.  All versions are raised to the
  time of the restore, with room for millions of commits in each second before, so that
  none of them comes again.

What was committed after the backup is lost.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import os
import secrets
import sqlite3
import time
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen
from msgspec.msgpack import encode

from election.epochs import COUNTER_BITS, EVERY_COMPONENT
from leaderserver.server.storage_database import DATABASE_FILE_NAME, SCHEMA_VERSION
from leaderserver.server.storage_directory import (
    LOCK_FILE_NAME,
    DataDirectory,
    restoring_file,
)
from nameservice import ConfigurationError, StorageError
from nameservice.durable_files import rename, sync_directory, sync_file


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["BackupInformation", "back_up", "restore_backup"]

_APPLICATION_ID: Final = int.from_bytes(b"Ldst", "big")
_TABLES: Final = ("epochs", "store", "incarnation")
_EPOCH_ORIGIN_SECONDS: Final = 1_577_836_800
_AHEAD_SECONDS_MAX: Final = 24 * 60 * 60
_INCARNATION_MAX: Final = 2**31 - 3
_COMMIT_BITS: Final = 22  # in a second; versions stay below 2^53, as JSON wants it
_CHECKSUM_SIZE_BYTES: Final = 32
_EVERY_ROW: Final = {
    "epochs": "SELECT component_id, epoch FROM epochs ORDER BY component_id",
    "store": "SELECT component_id, path, value, version FROM store "
    "ORDER BY component_id, path",
    "incarnation": "SELECT number FROM incarnation",
    "leases": "SELECT incarnation, lease_ns FROM leases ORDER BY incarnation",
}
# What file systems without hard links say.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP})
# How long another process may hold the database before that is told.
_BUSY_TIMEOUT_SECONDS: Final = 10.0


@frozen(kw_only=True)
class BackupInformation:
    """
    What is in a backup.

    Attributes:
        taken_seconds: When it was taken, in seconds since 1970.
        component_count: Of how many components something is stored.
        value_count: How many values the leader stores hold.
        value_size_bytes: How large they are together.
    """

    taken_seconds: int
    component_count: int
    value_count: int
    value_size_bytes: int


def back_up(
    data_dir: str | os.PathLike[str], file: str | os.PathLike[str]
) -> BackupInformation:
    """
    Write a backup of *data_dir* to *file*; a server may be using the directory.

    Returns:
        What is in it, once it is checked and durable.

    Raises:
        ConfigurationError: If *data_dir* is no data directory, or *file* exists.
        StorageError: If something cannot be read or written, or is damaged.
    """
    source, target = Path(data_dir) / DATABASE_FILE_NAME, Path(file)
    if not source.is_file() or source.stat().st_size == 0:
        message = f"{data_dir} is no data directory of a LeaderServer"
        raise ConfigurationError(message)
    _check_absent(target)
    # Of this backup alone: another one into the same file may have begun.
    part = f".{target.name[:100]}.{secrets.token_hex(4)}.part"
    fresh = target.with_name(part)
    with ExitStack() as stack, _translated(f"cannot back up {data_dir} to {target}"):
        _make_file(fresh, stack)
        with _connect(source) as database, _connect(fresh) as copy:
            database.execute("PRAGMA query_only = ON")
            database.backup(copy)
            # One file, without a log beside it.
            copy.execute("PRAGMA journal_mode = DELETE").fetchone()
            copy.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            copy.execute("DROP TABLE IF EXISTS backup")
            copy.execute(
                "CREATE TABLE backup (taken_seconds INTEGER NOT NULL, checksum TEXT)"
            )
            copy.execute(
                "INSERT INTO backup VALUES (?, ?)", (int(time.time()), _checksum(copy))
            )
            information = _check(copy, source)
        sync_file(fresh)
        _give_name(fresh, target)
        sync_directory(target.absolute().parent)
    return information


def restore_backup(
    file: str | os.PathLike[str], data_dir: str | os.PathLike[str]
) -> BackupInformation:
    """
    Make a data directory of the backup *file*.

    Args:
        file: What `back_up` has written.
        data_dir: Where; made if it is not there.  It must be empty.

    Returns:
        What was in the backup.

    Raises:
        ConfigurationError: If *file* is no backup, or *data_dir* is not empty or used.
        StorageError: If something cannot be read or written, or is damaged.
    """
    source, target = Path(file), Path(data_dir)
    if not source.is_file():
        message = f"there is no file {source}"
        raise ConfigurationError(message)
    with ExitStack() as stack, _translated(f"cannot restore {source} to {target}"):
        fresh = restoring_file(target / DATABASE_FILE_NAME)
        with _connect(source) as backup:
            backup.execute("PRAGMA query_only = ON")
            information = _check_backup(backup, source)
            directory = DataDirectory(target, stack)
            _check_empty(target, fresh)
            _make_file(fresh, stack)
            with _connect(fresh) as copy:
                backup.backup(copy)
                _go_on_from(copy, information.taken_seconds)
        sync_file(fresh)
        rename(fresh, target / DATABASE_FILE_NAME)
        directory.mark()
    return information


def _go_on_from(copy: sqlite3.Connection, taken_seconds: int) -> None:
    """Make sure that nothing said after the backup was taken is said again."""
    if time.time() + _AHEAD_SECONDS_MAX < taken_seconds:
        # Then what a server has granted since the backup may be above a day from now.
        taken = dt.datetime.fromtimestamp(taken_seconds, tz=dt.UTC).isoformat()
        message = (
            f"the backup was taken at {taken}, more than a day from now by the clock "
            "of this machine, on which epochs depend: set the clock first"
        )
        raise ConfigurationError(message)
    (stored,) = copy.execute("SELECT number FROM incarnation").fetchone()
    (highest,) = copy.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()
    today = int(time.time()) - _EPOCH_ORIGIN_SECONDS
    incarnation = max(stored, highest >> COUNTER_BITS, today + _AHEAD_SECONDS_MAX)
    if incarnation >= _INCARNATION_MAX:
        message = (
            f"incarnation {incarnation} is too high: this machine's clock is wrong"
        )
        raise ConfigurationError(message)
    copy.execute("BEGIN")
    copy.execute("DROP TABLE backup")
    copy.execute("UPDATE incarnation SET number = ?", (incarnation + 1,))
    if copy.execute("SELECT name FROM sqlite_master WHERE name = 'leases'").fetchone():
        (lease_ns,) = copy.execute("SELECT max(lease_ns) FROM leases").fetchone()
        copy.execute("DELETE FROM leases")
        if lease_ns is not None:
            # Above what is over: no server is known to have waited for it.
            copy.execute(
                "INSERT INTO leases VALUES (?, ?)", (incarnation + 1, lease_ns)
            )
    copy.execute(
        "INSERT OR REPLACE INTO epochs VALUES (?, ?)",
        (EVERY_COMPONENT, ((incarnation + 1) << COUNTER_BITS) - 1),
    )
    copy.execute(
        "UPDATE store SET version = max(version + 1, ?)",
        ((incarnation + 1) << _COMMIT_BITS,),
    )
    copy.execute("PRAGMA application_id = 0")
    copy.execute("COMMIT")


# -- checks ----------------------------------------------------------------------------


def _check_absent(file: Path) -> None:
    if file.exists() or file.is_symlink():
        message = f"{file} exists already: a backup takes the place of nothing"
        raise ConfigurationError(message)


def _check_empty(directory: Path, fresh: Path) -> None:
    """Refuse a directory in which there is anything but what we leave behind."""
    ours = {LOCK_FILE_NAME, fresh.name, f"{fresh.name}-journal", "lost+found"}
    foreign = sorted({each.name for each in directory.iterdir()} - ours)
    if foreign:
        message = (
            f"{directory} is not empty (there is {foreign[0]!r}): a backup is restored "
            "to an empty directory only"
        )
        raise ConfigurationError(message)
    for leftover in (fresh, fresh.with_name(f"{fresh.name}-journal")):
        leftover.unlink(missing_ok=True)


def _check_backup(backup: sqlite3.Connection, source: Path) -> BackupInformation:
    (application_id,) = backup.execute("PRAGMA application_id").fetchone()
    if application_id != _APPLICATION_ID:
        message = f"{source} is no backup of a LeaderServer"
        raise ConfigurationError(message)
    information = _check(backup, source)
    columns = {name for (_, name, *_) in backup.execute("PRAGMA table_info(backup)")}
    if "checksum" in columns:  # backups of 0.1 have none
        (checksum,) = backup.execute("SELECT checksum FROM backup").fetchone()
        if checksum != _checksum(backup):
            message = f"{source} is damaged: it holds other rows than were written"
            raise StorageError(message)
    return information


def _checksum(database: sqlite3.Connection) -> str:
    """Return the checksum of all rows: SQLite looks at how they lie, not at values."""
    digest = blake2b(digest_size=_CHECKSUM_SIZE_BYTES)
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    for table, question in _EVERY_ROW.items():
        if table in names:  # an earlier version made none for leases
            digest.update(encode([table]))
            for row in database.execute(question):
                digest.update(encode(row))
    return digest.hexdigest()


def _check(database: sqlite3.Connection, source: Path) -> BackupInformation:
    """Return what is in *database*, all of which is read for that."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        message = (
            f"{source} has format {version}; this version of Lodestar reads format "
            f"{SCHEMA_VERSION}"
        )
        raise ConfigurationError(message)
    (problem,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if problem != "ok":
        message = f"{source} is damaged: {problem}"
        raise StorageError(message)
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    lost = [name for name in (*_TABLES, "backup") if name not in names]
    if lost:
        message = f"{source} is damaged: the table {lost[0]!r} is missing"
        raise StorageError(message)
    incarnation = database.execute("SELECT number FROM incarnation").fetchone()
    taken = database.execute("SELECT taken_seconds FROM backup").fetchone()
    if not all(row and type(row[0]) is int for row in (incarnation, taken)):
        message = f"{source} is damaged: a row is missing, or none of ours"
        raise StorageError(message)
    component_count, value_count, size_bytes = database.execute(
        "SELECT count(DISTINCT component_id), count(*), "
        "coalesce(sum(length(value)), 0) FROM store"
    ).fetchone()
    return BackupInformation(
        taken_seconds=taken[0],
        component_count=component_count,
        value_count=value_count,
        value_size_bytes=size_bytes,
    )


# -- files -----------------------------------------------------------------------------


@contextlib.contextmanager
def _connect(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that is there; nothing is made."""
    uri = f"{file.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(
        uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
    )
    with contextlib.closing(connection):
        yield connection


def _make_file(file: Path, stack: ExitStack) -> None:
    """Make an empty file that only we may read; without its new name it goes again."""
    file.unlink(missing_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    stack.callback(file.unlink, missing_ok=True)


def _give_name(fresh: Path, target: Path) -> None:
    """Make *fresh* be called *target*, unless there is such a file by now."""
    try:
        target.hardlink_to(fresh)  # unlike a renaming it takes the place of nothing
    except FileExistsError:
        _check_absent(target)
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _check_absent(target)
        fresh.rename(target)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite quotes what it cannot understand, which may be no text.
        message = f"{what}: {error}"
        raise StorageError(message) from error
