"""
The LMDB environment of a store: opened, locked, and its errors translated.

This file and its users `store_staging`, `store_apply` and `store_reader` are all that
know LMDB; none of its exceptions leaves them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar, final

import lmdb

from nameservice import ConfigurationError, StorageError
from nameservice.durable_files import make_directory, replace_text, sync_directory
from queryablestate.store.layout import (
    FORMAT,
    IDENTITY_KEY,
    META_DATABASE,
    SLOT_COUNT_MAX,
    STAGED_DATABASE,
    Identity,
    decode_identity,
    encode_record,
    slot_name,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lmdb import Transaction, _Database


__all__ = ["StoreEnvironment", "is_damage"]

T = TypeVar("T")

LOCK_FILE_NAME: Final = "lock"
_DATA_FILE_NAME: Final = "data.mdb"
_SIZE_FILE_NAME: Final = "size"
_READER_COUNT_MAX: Final = 126
_SIZE_BYTES_MIN: Final = 1 << 20
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
# What LMDB says of a file that is no environment, or one that makes no sense.  All else
# comes of the system: too many open files, no memory, no right to read it.
_DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
# A write takes more than that at once, or there is another reason why it failed.
_DISK_ROOM_BYTES_MIN: Final = 1 << 20


@final
class StoreEnvironment:
    """
    An open data directory.

    Attributes:
        meta: The database of marks.
        staged: The database of chunks.
        slots: The databases of rows; the writer adds to the end, readers look.
        identity: Whose directory it is.

    Args:
        directory: Made if it is not there.
        node_id: Whose it is to be, or None for whose it is; drawn for a new one.
        size_bytes_max: Beyond which it does not grow; rounded down to whole pages.
        is_durable: Whether a commit waits for the disk.

    Raises:
        StorageError: If another process has it, it belongs to another node, or it
            cannot be used at all.
        ConfigurationError: If *size_bytes_max* is below 1 MiB.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        node_id: str | None,
        size_bytes_max: int,
        is_durable: bool,
    ) -> None:
        if size_bytes_max < _SIZE_BYTES_MIN:
            raise ConfigurationError(
                f"size_bytes_max must be at least {_SIZE_BYTES_MIN:,} bytes, "
                f"not {size_bytes_max:,}"
            )
        self._directory = Path(directory)
        self._size_bytes_max = size_bytes_max
        self._stack = contextlib.ExitStack()
        try:
            with self.translated("open"):
                make_directory(self._directory)
                self._lock()
                self._check_size()
                self._open(is_durable=is_durable)
                self.identity = self._identify(node_id)
                if is_durable:
                    self._note_size()
                    # LMDB sees to what is in its files only.
                    sync_directory(self._directory)
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
            raise StorageError(
                f"the data directory {self._directory} is in use by another node: "
                "stop that one, or choose another directory"
            ) from error
        # A forked child has the descriptor too, and may live longer than the node: to
        # close our own would leave the lock with it.
        self._stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)

    def _check_size(self) -> None:
        """
        Refuse a file that is shorter than it was: LMDB never makes it so.

        To read a page beyond its end is a SIGBUS, that is, the end of the process
        without a word; and what is appended later makes such pages zeros.
        """
        note = self._directory / _SIZE_FILE_NAME
        data = self._directory / _DATA_FILE_NAME
        if not (data.exists() or data.is_symlink()):
            note.unlink(missing_ok=True)  # it is of another file than the new one
            return
        try:
            known_bytes = int(note.read_text("ascii"))
            size_bytes = data.stat().st_size
        except (FileNotFoundError, ValueError):
            return  # a store of an earlier version, or one that is not durable
        if size_bytes < known_bytes:
            raise StorageError(
                f"{data} is cut off: it has {size_bytes:,} bytes, and had "
                f"{known_bytes:,}: bring all of it back, or remove the directory, and "
                "the node is refilled; if it is whole, and another copy than before, "
                f"remove {note}"
            )

    def _note_size(self) -> None:
        """
        Take note of how long the file is at least; without room, go on without.

        It is synced before: what a commit that failed has appended might be lost with
        the power, and the store is sound without it.
        """
        note = self._directory / _SIZE_FILE_NAME
        with contextlib.suppress(OSError):
            with (self._directory / _DATA_FILE_NAME).open("rb") as data:
                os.fsync(data.fileno())
                size_bytes = os.fstat(data.fileno()).st_size
            replace_text(note, f"{size_bytes}\n")

    def _open(self, *, is_durable: bool) -> None:
        page_size = os.sysconf("SC_PAGE_SIZE")
        self.environment = lmdb.open(
            os.fspath(self._directory),
            map_size=self._size_bytes_max // page_size * page_size,
            max_dbs=SLOT_COUNT_MAX + 2,
            max_readers=_READER_COUNT_MAX,
            max_spare_txns=8,  # a reader's transaction is kept and renewed
            # A disk that is full is an error of `write`; in a writable map it would be
            # a SIGBUS, that is, the end of the process.
            writemap=False,
            readahead=False,  # keys are asked for at random
            sync=is_durable,
            metasync=is_durable,
            mode=0o600,
        )
        self._stack.callback(self.environment.close)
        if is_durable:
            self._stack.callback(self._note_size)
        self.environment.reader_check()  # those of a process that was killed
        with self.environment.begin(write=True) as transaction:
            self.meta = self.environment.open_db(META_DATABASE, txn=transaction)
            self.staged = self.environment.open_db(STAGED_DATABASE, txn=transaction)
            names = set(transaction.cursor().iternext(values=False))
            self.slots: list[_Database] = []
            while slot_name(len(self.slots)) in names:
                name = slot_name(len(self.slots))
                self.slots.append(self.environment.open_db(name, txn=transaction))

    def _identify(self, node_id: str | None) -> Identity:
        with self.environment.begin(db=self.meta, write=True) as transaction:
            stored = transaction.get(IDENTITY_KEY)
            if stored is None:
                identity = Identity(
                    format=FORMAT,
                    node_id=node_id or f"node-{secrets.token_hex(8)}",
                    store_id=secrets.token_hex(16),
                    control_id=None,
                )
                transaction.put(IDENTITY_KEY, encode_record(identity))
                return identity
        identity = decode_identity(stored)
        if identity.format != FORMAT:
            raise StorageError(
                f"the data directory {self._directory} has format {identity.format}; "
                f"this program reads format {FORMAT}: use the program that wrote it, "
                "or an empty directory"
            )
        if node_id not in {None, identity.node_id}:
            raise StorageError(
                f"the data directory {self._directory} belongs to node "
                f"{identity.node_id!r}, not to {node_id!r}: use that name, or an "
                "empty directory"
            )
        return identity

    @property
    def name(self) -> str:
        """Return the last part of the path of its directory."""
        return self._directory.name

    @contextmanager
    def writing(self) -> Iterator[Transaction[bytes]]:
        """Commit what the block does, or nothing of it; for the writing thread."""
        with (
            self.translated("write to"),
            self.environment.begin(write=True) as transaction,
        ):
            yield transaction

    def write(self, action: Callable[[Transaction[bytes]], T]) -> T:
        """
        Commit what *action* does, or nothing of it; for what may fill the store.

        LMDB gives pages that a transaction has freed to the next but one.  If there are
        too few, *action* is called again after a transaction that changes nothing: else
        a job might stand still for want of pages that a dropped state has freed.
        """
        try:
            with self.writing() as transaction:
                return action(transaction)
        except StorageError as error:
            if not isinstance(error.__cause__, lmdb.MapFullError):
                raise
        self.replace_identity(self.identity)
        with self.writing() as transaction:
            return action(transaction)

    @contextmanager
    def reading(self) -> Iterator[Transaction[bytes]]:
        """Look at one snapshot; from any thread."""
        with self.translated("read"), self.environment.begin() as transaction:
            yield transaction

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Raise `StorageError` for whatever the disk or LMDB says in the block."""
        try:
            yield
        except (lmdb.Error, OSError) as error:
            raise self.storage_error(what, error) from error

    def storage_error(self, what: str, error: lmdb.Error | OSError) -> StorageError:
        """Return what to raise instead of *error*."""
        if isinstance(error, lmdb.MapFullError):
            return self.full_error()
        if what == "write to" and self._is_disk_full(error):
            full = StorageError(
                f"the disk of the data directory {self._directory} is full: make room "
                f"on it, and the node goes on by itself ({error})"
            )
            full.reason = "disk_full"
            return full
        return StorageError(
            f"cannot {what} the data directory {self._directory}: {error}"
        )

    def full_error(self, used_bytes: int | None = None) -> StorageError:
        """Return what to raise if there is no room below the limit of the store."""
        used = "" if used_bytes is None else f", of which {used_bytes:,} are in use"
        full = StorageError(
            f"the data directory {self._directory} has no room for it within "
            f"{self._size_bytes_max:,} bytes{used}: start the node with a greater "
            "size_bytes_max (lodestar node --size-bytes-max), or drop states that are "
            "not in use"
        )
        full.reason = "store_full"
        return full

    def _is_disk_full(self, error: lmdb.Error | OSError) -> bool:
        """Return whether a write failed because the disk has no room."""
        # LMDB says "Input/output error" when only a part of a page could be written.
        text = str(error)
        if any(os.strerror(code) in text for code in _NO_ROOM):
            return True
        if os.strerror(errno.EIO) not in text:
            return False
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _DISK_ROOM_BYTES_MIN

    def open_slots(self, slot_count: int) -> None:
        """
        See to it that there are *slot_count* databases of rows, before they are used.

        In a transaction of its own: only when that is over may readers use the handles,
        and a mark that they see must not name a slot they cannot open yet.
        """
        names = [slot_name(slot) for slot in range(len(self.slots), slot_count)]
        if names:
            with self.writing() as transaction:
                opened = [
                    self.environment.open_db(name, txn=transaction) for name in names
                ]
            self.slots += opened

    def replace_identity(self, identity: Identity) -> None:
        """Store *identity* instead of the present one."""
        with self.writing() as transaction:
            transaction.put(IDENTITY_KEY, encode_record(identity), db=self.meta)
        self.identity = identity

    def close(self) -> None:
        """Release everything.  Idempotent."""
        self._stack.close()


def is_damage(error: StorageError) -> bool:
    """Return whether a store will not be there later either, as far as one can tell."""
    cause = error.__cause__
    if isinstance(cause, lmdb.Error):
        return isinstance(cause, _DAMAGE)
    is_no_directory = isinstance(cause, FileExistsError | NotADirectoryError)
    is_of_now = isinstance(cause, OSError) or error.reason != StorageError.reason
    return is_no_directory or not is_of_now
