"""`OpenStore`: a store of a node that is open, with the threads that touch it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias, final

from queryablestate.node.copying.serving import CopyServer
from queryablestate.node.reading import ReadingThread
from queryablestate.store.threads import StageTask, StoreWriter


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock, NameServiceError
    from queryablestate.node.copying.limits import CopyLimits
    from queryablestate.node.core.read_schedule import ReadLimits
    from queryablestate.store.reader import StoreReader
    from queryablestate.store.store import StateStore


__all__ = ["OpenStore", "Staged"]

Staged: TypeAlias = "Sequence[tuple[StageTask, NameServiceError | None]]"
"""Chunks that are on disk, or why they are not."""


@final
class OpenStore:
    """
    A store with those who touch it.

    Attributes:
        store: For one thread to write, any to read.
        reader: The loop's.
        reading: Reads at length.
        writer: Writes.
        copier: Reads what other nodes copy.
        control_id: Whose rows it holds, or is about to.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        on_staged: Callable[[OpenStore, Staged], None],
        read_limits: ReadLimits,
        clock: Clock,
        send_page: Callable[[OpenStore, bytes, Sequence[bytes]], None],
        copy_limits: CopyLimits,
        staged_bytes_per_job_max: int,
    ) -> None:
        self.store = store
        self.reader: StoreReader = store.reader()
        self.control_id = store.control_id
        self.reading = ReadingThread(store, clock=clock, limits=read_limits)
        self.writer = StoreWriter(
            store,
            partial(on_staged, self),
            job_size_bytes_max=staged_bytes_per_job_max,
        )
        self.copier = CopyServer(
            store, clock=clock, send=partial(send_page, self), limits=copy_limits
        )

    def close(self) -> Sequence[StageTask]:
        """End the threads, close the store, return the chunks that are left."""
        self.copier.close()
        self.reading.close()
        left = self.writer.close()
        self.store.close()
        return left

    def bind(self) -> None:
        """See to it that the store says whose rows it holds; on the writer's thread."""
        if self.control_id is not None:
            self.store.bind_control(self.control_id)
