"""
`LeaderStoreThread`: the thread in which a proxy reads and writes the leader store.

The store belongs to the name service, and a write may take as long as that does.  The
proxy's own thread must not wait meanwhile: readers are asking.  So what is to be loaded
or written is handed over here, one thing at a time, and what came of it is handed back.

A proxy that begins to lead reads a record for each entry that is kept of each chain.
One after the other that took 0.8 ms each (measured, LeaderServer, busy machine), and a
new leader has to confirm in time: so they are read some at a time.

**A store that was lost.**  A LeaderServer without a data directory comes back with an
empty store, and its leader goes on leading.  What that knows must not be written there
piece by piece: the next leader could make nothing of it.  So every write counts up the
version of one path, the *witness*, and is refused where that is not as it was left;
then everything is read anew, and what is there is what there is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, final

from election import Put
from haservices.event_loop import EventLoop
from nameservice import (
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StorageError,
    SystemClock,
    VersionMismatchError,
    get_logger,
)
from queryablestate.control.job import leader_paths as paths
from queryablestate.control.large_writes import LARGE
from queryablestate.control.stored_control import StoredControl, stored_control


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderSession, LeaderStore, StoreOperation


__all__ = ["LeaderStoreThread", "load_control"]

_READER_COUNT: Final = 8


def load_control(
    store: LeaderStore, *, is_wanted: Callable[[], bool] = lambda: True
) -> StoredControl:
    """
    Return everything that the control plane has left in *store*.

    Only its leader may rely on that: no other writes meanwhile.

    Args:
        store: The leader store of the proxies.
        is_wanted: Asked before each record is read.

    Raises:
        StorageError: If a record cannot be read, or does not fit the others.
        DidNotHappenError: If it is not wanted any more.
        UnreachableError: If the name service does not answer in time.
    """

    def read(path: str) -> bytes:
        if not is_wanted():
            raise DidNotHappenError("what the proxies have stored is not wanted now")
        found = store.get(path)
        if found is None:
            raise StorageError(
                f"{path!r} vanished from the leader store while it was read"
            )
        return found.value

    found = store.get(paths.COUNTERS)
    values = {} if found is None else {paths.COUNTERS: found.value}
    listed = [
        path for prefix in ("nodes/", "jobs/", LARGE) for path in store.list(prefix)
    ]
    readers = ThreadPoolExecutor(_READER_COUNT, thread_name_prefix="control-reader")
    try:
        values.update(zip(listed, readers.map(read, listed), strict=True))
    finally:
        readers.shutdown(cancel_futures=True)
    return stored_control(values)


@final
class LeaderStoreThread:
    """
    Loads from and writes to one leader store, in a thread of its own, in order.

    Thread-safe.  Callbacks are called in its thread: they hand over.
    """

    def __init__(self, store: LeaderStore) -> None:
        self._store = store
        self._log = get_logger(component="leader-store")
        self._load_number = 0
        self._witness_version: int | None = None  # None before anything was read
        self._is_closed = False
        self._loop = EventLoop("leader-store", SystemClock())
        self._loop.start()

    def load(
        self,
        on_loaded: Callable[[StoredControl], None],
        on_failed: Callable[[NameServiceError], None],
    ) -> None:
        """
        Read everything; one of the two is told.

        A load that was asked for before, and is not over, fails.
        """
        self._load_number += 1
        number = self._load_number

        def is_wanted() -> bool:
            return number == self._load_number and not self._is_closed

        def load() -> None:
            try:
                # First: a write that arrives meanwhile makes the next one fail.
                witness = self._store.get(paths.WITNESS)
                stored = load_control(self._store, is_wanted=is_wanted)
            except NameServiceError as error:
                on_failed(error)
            except Exception as error:  # noqa: BLE001 (ours; who waits must be told)
                self._log.error("load.failed", exc_info=error)
                on_failed(StorageError(f"the leader store cannot be read: {error!r}"))
            else:
                self._witness_version = 0 if witness is None else witness.version
                on_loaded(stored)

        self._do(load)

    def cancel_load(self) -> None:
        """Have a load that is under way end soon: it is not wanted any more."""
        self._load_number += 1

    def write(
        self,
        operations: Sequence[StoreOperation],
        session: LeaderSession,
        on_written: Callable[[], None],
        on_refused: Callable[[NameServiceError], None],
        on_uncertain: Callable[[NameServiceError], None],
    ) -> None:
        """
        Commit *operations*; one of the three is told.

        Args:
            operations: All of them, or none.
            session: The leadership under which they are written.
            on_written: They are.
            on_refused: Nothing was written, for sure, and why not.
            on_uncertain: It is not known whether they are, or the store is not the one
                that was read; and why.
        """

        def write() -> None:
            version = self._witness_version
            witness = [] if version is None else [Put(paths.WITNESS, b"", version)]
            try:
                self._store.commit([*operations, *witness], session=session)
            except (MayHaveHappenedError, VersionMismatchError) as error:
                on_uncertain(error)
            except NameServiceError as error:
                on_refused(error)
            except Exception as error:  # noqa: BLE001 (ours; who waits must be told)
                self._log.error("write.failed", exc_info=error)
                on_uncertain(
                    MayHaveHappenedError(f"the leader store failed: {error!r}")
                )
            else:
                if version is not None:
                    self._witness_version = version + 1
                on_written()

        self._do(write)

    def close(self) -> None:
        """
        End after what is being done now, and wait for it.  Idempotent.

        What was asked for and has not begun is not done, and its asker is not told.
        """
        self._is_closed = True
        if not self._loop.is_current:
            self._loop.stop()

    def _do(self, task: Callable[[], None]) -> None:
        """Do *task* on the thread, after what was asked for before."""
        self._loop.call(lambda: None if self._is_closed else task())
