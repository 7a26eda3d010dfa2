"""
`StoreWriter`: the thread that writes to a store.

It does what it is told for one job in that order, and the jobs have turns
(`queryablestate.store.turns`).  Chunks that wait side by side are staged in one
transaction: while the disk takes one group, the next gathers.  When there is nothing to
do it removes rows that have expired, some at a time.

It says what came of it on its own thread; the one that is told takes it to the loop.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, final

from attrs import frozen

from nameservice import NameServiceError, get_logger
from nameservice.clock import NS_PER_US
from queryablestate.store.rows import check_chunk
from queryablestate.store.turns import FairTurns
from queryablestate.wire.codec import decode_rows


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from queryablestate.store.store import StateStore
    from queryablestate.wire.staging_messages import StageChunk


__all__ = ["StageTask", "StoreWriter"]

# LMDB holds in memory what a transaction writes, and keeps the pages of the largest.
_GROUP_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_GROUP_COUNT_MAX: Final = 1_000
# About one part in a hundred of a processor, and a round of a million rows in minutes.
_SWEEP_ROW_COUNT: Final = 2_000
_SWEEP_PAUSE_SECONDS: Final = 0.25


class ChunkPayload(Protocol):
    """The second frame of a chunk."""

    @property
    def buffer(self) -> memoryview:
        """Return what it holds, not copied."""

    def __len__(self) -> int:
        """Return how many bytes that is."""


@final
@frozen(kw_only=True)
class StageTask:
    """
    A chunk that waits to be staged.

    Attributes:
        writer: Who brought it: a routing id.
        chunk: Its envelope.
        rows: Its second frame, not decoded yet.
    """

    writer: bytes
    chunk: StageChunk
    rows: ChunkPayload


def _check(chunk: StageChunk, payload: memoryview) -> None:
    check_chunk(chunk, decode_rows(payload))


@final
class StoreWriter:
    """
    The thread that writes to a store.

    Args:
        store: No other writes to it.
        on_staged: Is told, on this thread, of each chunk whether it is on disk, or why
            not.
        job_size_bytes_max: How much of one job may be staged and not decided; None for
            as much as the store holds.
    """

    def __init__(
        self,
        store: StateStore,
        on_staged: Callable[
            [Sequence[tuple[StageTask, NameServiceError | None]]], None
        ],
        *,
        job_size_bytes_max: int | None = None,
    ) -> None:
        self._store = store
        self._job_size_bytes_max = job_size_bytes_max
        self._on_staged = on_staged
        self._log = get_logger(component="state-node", thread="writer")
        self._changed = threading.Condition()
        self._tasks: FairTurns[StageTask | Callable[[], object]] = FairTurns(
            size_bytes_max=_GROUP_SIZE_BYTES_MAX, count_max=_GROUP_COUNT_MAX
        )
        self._is_closing = False
        self._sweep_due = 0.0
        self._thread = threading.Thread(
            target=self._run, name="state-node-writer", daemon=True
        )
        self._thread.start()

    def stage(self, task: StageTask) -> None:
        """Stage a chunk, after what was asked for its job before."""
        self._put(task, task.chunk.job_id, len(task.rows))

    def run(self, action: Callable[[], object], *, job_id: str | None = None) -> None:
        """
        Call *action*, which sees to its own errors.

        Args:
            action: What is to be done.
            job_id: The job that it is for: it comes after what was asked for that one
                before.  None: it comes after everything that was asked for before, and
                before everything that is asked for later.
        """
        self._put(action, job_id, None)

    def close(self) -> Sequence[StageTask]:
        """End after what is being done now, and return the chunks that are left."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        left = self._tasks.take_all()
        return [task for task in left if isinstance(task, StageTask)]

    def _put(
        self,
        task: StageTask | Callable[[], object],
        job_id: str | None,
        size_bytes: int | None,
    ) -> None:
        with self._changed:
            self._tasks.put(task, job_id=job_id, size_bytes=size_bytes)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._tasks and not self._is_closing:
                    self._changed.wait(_SWEEP_PAUSE_SECONDS)
                if self._is_closing:
                    return
                tasks = self._tasks.take()
            try:
                self._do(tasks)
                del tasks  # and their rows, before the next ones are waited for
                if not self._tasks and time.monotonic() >= self._sweep_due:
                    self._sweep()
                    self._sweep_due = time.monotonic() + _SWEEP_PAUSE_SECONDS
            except Exception as error:  # noqa: BLE001 (one task, not the thread)
                self._log.error("loop.failed", where="writer", exc_info=error)

    def _do(self, tasks: Sequence[StageTask | Callable[[], object]]) -> None:
        chunks = [task for task in tasks if isinstance(task, StageTask)]
        if chunks:
            self._on_staged(self._stage(chunks))
        for task in tasks:
            if not isinstance(task, StageTask):
                task()

    def _stage(
        self, tasks: Sequence[StageTask]
    ) -> Sequence[tuple[StageTask, NameServiceError | None]]:
        """Stage chunks together, or one by one if one of them spoils it."""
        errors: dict[int, NameServiceError | None] = {}
        sound: list[tuple[StageChunk, memoryview]] = []
        indexes: list[int] = []
        for index, task in enumerate(tasks):
            payload = task.rows.buffer
            check = partial(_check, task.chunk, payload)
            errors[index] = self._attempt(check)
            if errors[index] is None:
                sound.append((task.chunk, payload))
                indexes.append(index)
        now_us = time.time_ns() // NS_PER_US
        size_bytes_max = self._job_size_bytes_max
        stage = partial(self._store.stage, sound, now_us, size_bytes_max)
        if self._attempt(stage) is not None:
            for index, one in zip(indexes, sound, strict=True):
                stage = partial(self._store.stage, [one], now_us, size_bytes_max)
                errors[index] = self._attempt(stage)
        return [(task, errors[index]) for index, task in enumerate(tasks)]

    def _attempt(self, action: Callable[[], object]) -> NameServiceError | None:
        """Do *action*, and return why it failed, or None."""
        try:
            action()
        except NameServiceError as error:
            return error
        except Exception as error:  # noqa: BLE001 (the writer is told, not left waiting)
            self._log.error("loop.failed", where="writer", exc_info=error)
            return NameServiceError(f"{type(error).__name__}: {error}")
        return None

    def _sweep(self) -> None:
        """Remove what has expired, until there is something better to do."""
        try:
            while self._store.sweep_expired(
                time.time_ns() // NS_PER_US, _SWEEP_ROW_COUNT
            ):
                if self._tasks or self._is_closing:
                    return
        except NameServiceError as error:
            self._log.warning("sweep.failed", error=str(error))
