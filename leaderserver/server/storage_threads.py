"""
The threads that write and read a data directory, so that no other thread waits for it.

One thread writes, one reads; what they do is handed out by the server's loop
(`leaderserver.server.core.storage_queue`), and what came of it is handed back to it.
The writing thread closes the storage when both have ended: a disk that hangs keeps
neither the loop nor the thread that closes the server.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeAlias, final

from leaderserver.server.storage import UncertainWriteError
from leaderserver.server.storage_work import perform_storage_work
from nameservice import get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage import LeaderStorage
    from leaderserver.server.storage_work import Outcome

    OnDone: TypeAlias = Callable[[StorageWork, Sequence[Outcome]], None]


__all__ = ["StorageThreads"]

_CLOSE_TIMEOUT_SECONDS: Final = 10.0


@final
class StorageThreads:
    """
    Two threads around a storage, which belongs to them from now on.

    Args:
        storage: Closed by `close`.
        on_done: Is told the outcomes, on the thread that did the work.

    Raises:
        RuntimeError: If the process may have no more threads; the storage stays its
            owner's.
    """

    def __init__(self, storage: LeaderStorage, on_done: OnDone) -> None:
        self._storage = storage
        self._on_done = on_done
        self._log = get_logger(component="leaderserver")
        self._writes: SimpleQueue[StorageWork | None] = SimpleQueue()
        self._reads: SimpleQueue[StorageWork | None] = SimpleQueue()
        self._reader = Thread(target=self._read, name="leaderserver-reads", daemon=True)
        self._writer = Thread(
            target=self._write, name="leaderserver-writes", daemon=True
        )
        self._reader.start()
        try:
            self._writer.start()
        except RuntimeError:
            self._reads.put(None)
            self._reader.join()
            raise

    def submit(self, work: StorageWork) -> None:
        """Do *work* soon, after what was submitted before it for the same lane."""
        (self._writes if work.is_write else self._reads).put(work)

    def close(self) -> None:
        """Finish what is under way, close the storage; wait, but not for ever."""
        self._reads.put(None)
        self._writes.put(None)
        self._writer.join(_CLOSE_TIMEOUT_SECONDS)
        if self._writer.is_alive():
            self._log.error("storage.hangs", waited_seconds=_CLOSE_TIMEOUT_SECONDS)

    def _read(self) -> None:
        while (work := self._reads.get()) is not None:
            self._do(work)

    def _write(self) -> None:
        while (work := self._writes.get()) is not None:
            self._do(work)
        self._reads.put(None)
        self._reader.join()
        self._storage.close()

    def _do(self, work: StorageWork) -> None:
        outcomes: Sequence[Outcome]
        try:
            outcomes = perform_storage_work(self._storage, work)
        except Exception as error:  # noqa: BLE001 (a mistake of ours: others go on)
            self._log.error("loop.failed", where="storage", exc_info=error)
            outcomes = [UncertainWriteError(f"the server failed: {error!r}")] * len(
                work.jobs
            )
        self._on_done(work, outcomes)
