"""
`ReadOnlyStore`: the rows of a node, as a process sees them that never writes.

Processes may read with LMDB while another one writes: each transaction is a snapshot,
as in the node itself.  The node holds the lock of the directory; this one takes none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final, overload

import lmdb

from nameservice import StorageError
from queryablestate.store.layout import (
    META_DATABASE,
    SLOT_COUNT_MAX,
    slot_name,
)
from queryablestate.store.marks import state_mark
from queryablestate.store.reader import StoreReader
from queryablestate.store.state_view import StateView, view_of


if TYPE_CHECKING:
    from lmdb import _Database


__all__ = ["ReadOnlyStore"]

_SPARE_TRANSACTION_COUNT: Final = 8


@final
class ReadOnlyStore:
    """
    A store that another process writes; any thread may read through its `reader`.

    Args:
        directory: Of the store.
        size_bytes_max: As the process that writes has it.

    Attributes:
        environment: The LMDB environment.
        meta: The database of marks.
        slots: The databases of rows, opened as they are asked for.

    Raises:
        StorageError: If it cannot be opened.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, size_bytes_max: int
    ) -> None:
        page_size = os.sysconf("SC_PAGE_SIZE")
        self._directory = os.fspath(directory)
        try:
            self.environment = lmdb.open(
                self._directory,
                map_size=size_bytes_max // page_size * page_size,
                max_dbs=SLOT_COUNT_MAX + 2,
                max_spare_txns=_SPARE_TRANSACTION_COUNT,
                readonly=True,
                create=False,
                readahead=False,  # keys are asked for at random
            )
            self.meta = self.environment.open_db(META_DATABASE, create=False)
        except lmdb.Error as error:
            raise self.storage_error("open", error) from error
        self.slots: Sequence[_Database] = _Slots(self.environment)

    def reader(self) -> StoreReader:
        """Return a reader; one for each thread that reads."""
        return StoreReader(self)

    def state(self, state_number: int) -> StateView | None:
        """
        Return what is known of a state, or None.

        Raises:
            StorageError: If the store cannot be read.
        """
        try:
            with self.environment.begin() as transaction:
                mark = state_mark(transaction, self.meta, state_number)
        except lmdb.Error as error:
            raise self.storage_error("read", error) from error
        return None if mark is None or mark.is_hidden else view_of(mark)

    def prepare(self, state_number: int) -> None:
        """Open the slot of a state, so that it can be read from now on."""
        with contextlib.suppress(lmdb.Error, IndexError):
            with self.environment.begin() as transaction:
                mark = state_mark(transaction, self.meta, state_number)
            if mark is not None:
                self.slots[mark.slot]

    def storage_error(self, what: str, error: lmdb.Error | OSError) -> StorageError:
        """Return what to raise instead of *error*."""
        return StorageError(
            f"cannot {what} the data directory {self._directory}: {error}"
        )

    def close(self) -> None:
        """Release everything."""
        self.environment.close()


@final
class _Slots(Sequence[Any]):
    """
    Databases of rows by slot.

    A transaction that was begun before its slot was opened does not see it: that read
    fails, and the next one does not.
    """

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._opened: dict[int, _Database] = {}
        self._lock = Lock()  # one thread at a time may open (LMDB)

    def __len__(self) -> int:
        return SLOT_COUNT_MAX

    @overload
    def __getitem__(self, slot: int) -> _Database: ...
    @overload
    def __getitem__(self, slot: slice) -> Sequence[_Database]: ...
    def __getitem__(self, slot: int | slice) -> _Database | Sequence[_Database]:
        if isinstance(slot, slice):
            raise TypeError("one slot at a time")
        known = self._opened.get(slot)
        if known is None:
            with self._lock:
                known = self._environment.open_db(slot_name(slot), create=False)
                self._opened[slot] = known
        return known
