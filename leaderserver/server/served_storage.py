"""
`ServedStorage`: the storage of a server's loop, and what becomes of what it is given.

In memory there is nothing to wait for: the service works on it by itself.  A data
directory has threads of its own (`leaderserver.server.storage_threads`), which are
handed what waits, and whose outcomes come back to the loop.  When the storage can go on
no more, all that waits is refused, and the loop ends.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, final

from leaderserver.server.core.store_sizes import StoreLimits
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import LeaderStorage, MemoryStorage
from leaderserver.server.storage_threads import StorageThreads
from nameservice import DidNotHappenError, LocalProtocolError, StorageError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leaderserver.server.config import ServerConfig
    from leaderserver.server.core.storage_queue import StorageWork
    from leaderserver.server.storage_work import Outcome
    from zmqtransport import PollLoop


__all__ = ["ServedStorage"]

# How long to wait before the loop is told again what it had no room for.
_OVERLOAD_PAUSE_SECONDS: Final = 0.05


@final
class ServedStorage:
    """
    What *config* says that outlives the server, or does not.

    Args:
        config: Where, and how much.
        loop: Of the server, whose thread everything belongs to.

    Attributes:
        storage: For the service, when it starts.

    Raises:
        ConfigurationError: See `LeaderServer.start`.
    """

    def __init__(self, config: ServerConfig, loop: PollLoop) -> None:
        self._loop = loop
        self._threads: StorageThreads | None = None
        limits = _limits(config)
        self.storage: LeaderStorage = (
            MemoryStorage(limits)
            if config.data_dir is None
            else SQLiteStorage(config.data_dir, limits)
        )

    def start(
        self,
        next_work: Callable[[], StorageWork | None],
        take: Callable[[StorageWork, Sequence[Outcome]], None],
    ) -> None:
        """
        Begin to work, if the service does not.

        Args:
            next_work: Returns what waits, or None.
            take: Is told in the loop what came of it.
        """
        self._next_work = next_work
        self._take = take
        if self.storage.is_durable:
            self._threads = StorageThreads(self.storage, self._did)

    def close(self) -> None:
        """Finish what is under way, and release the storage."""
        if self._threads is None:
            self.storage.close()
        else:
            self._threads.close()

    def limit(self, config: ServerConfig) -> None:
        """Take the limits of *config* from now on."""
        self.storage.limit(_limits(config))

    def work(self) -> None:
        """Hand what waits to the threads."""
        if self._threads is not None and self._loop.failure is None:
            while (work := self._next_work()) is not None:
                self._threads.submit(work)

    def _did(self, work: StorageWork, outcomes: Sequence[Outcome]) -> None:
        """Bring what came of *work* to the loop; on a thread of the storage."""
        while True:
            try:
                self._loop.call_soon_threadsafe(
                    partial(self._take_outcomes, work, outcomes)
                )
            except LocalProtocolError:
                return  # the loop has ended: there is no thread to tell any more
            except DidNotHappenError:
                time.sleep(_OVERLOAD_PAUSE_SECONDS)  # noqa: TID251 (nothing tells of room)
            else:
                return

    def _take_outcomes(self, work: StorageWork, outcomes: Sequence[Outcome]) -> None:
        fatal_error = self.storage.fatal_error
        if fatal_error is None:
            self._take(work, outcomes)
            return
        if self._loop.failure is None:
            self._loop.fail(fatal_error)
        self._take(work, outcomes)
        refusal = StorageError(f"nothing more is written: {fatal_error}")
        while (refused := self._next_work()) is not None:
            self._take(refused, [refusal] * len(refused.jobs))


def _limits(config: ServerConfig) -> StoreLimits:
    return StoreLimits(
        bytes_max=config.store_bytes,
        bytes_per_component_max=config.store_bytes_per_component,
    )
