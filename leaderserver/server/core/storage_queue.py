"""
What waits for the data directory, and in which order it gets there.

Theory of operation
-------------------
Two lanes lead to the storage: one writes, one reads, and neither waits for the other.

*Writes* are done in the order in which they were asked for.  What waits when the lane
is free goes in one batch, and so with one fsync: twenty grants cost what one costs.
Since the order is kept, a successor's epoch is on record only after every commit of its
predecessor is decided, and its grant comes after that (rules E2, L2).

*Reads* wait for the writes of their own component that were asked for before them, and
for nothing else: a read that follows an acknowledged commit sees it, and a slow write
of one component delays no read of another.

An epoch that waits when a higher one of its component is to be recorded gives way to
it, if nothing else was asked of that component in between: it was never granted.  So a
disk that hangs does not gather an epoch for each contender that comes and goes.

Each lane has one batch under way.  The shell asks `next_work` until there is none, does
it wherever it likes, and says `finished`.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, final

from attrs import Factory, define, evolve, field, frozen, validators

from election import Put, StoreOperation


__all__ = [
    "CleanupTask",
    "CommitTask",
    "GetTask",
    "ListTask",
    "RecordEpochTask",
    "StorageJob",
    "StorageLimits",
    "StorageQueue",
    "StorageTask",
    "StorageWork",
]

# What a task costs beside the values that it carries.
_TASK_SIZE_BYTES = 256


@frozen(kw_only=True)
class RecordEpochTask:
    """Make *epoch* durable."""

    component_id: str
    epoch: int


@frozen(kw_only=True)
class CommitTask:
    """Do all of *operations*, or none."""

    component_id: str
    operations: tuple[StoreOperation, ...]


@frozen(kw_only=True)
class CleanupTask:
    """Remove what is stored of *component_id*, but for its epoch."""

    component_id: str


@frozen(kw_only=True)
class GetTask:
    """Read what is under *path*."""

    component_id: str
    path: str


@frozen(kw_only=True)
class ListTask:
    """Read up to *count_max* paths that begin with *prefix*, after *after*."""

    component_id: str
    prefix: str
    after: str
    count_max: int


StorageTask: TypeAlias = RecordEpochTask | CommitTask | CleanupTask | GetTask | ListTask


@frozen(kw_only=True)
class StorageJob:
    """A task, the number by which its outcome is known, and about what it holds."""

    number: int
    task: StorageTask
    size_bytes: int


@frozen(kw_only=True)
class StorageWork:
    """
    What to do next, in this order.

    Attributes:
        is_write: Which lane it takes; all of its jobs are writes, or all are reads.
        jobs: At least one.
    """

    is_write: bool
    jobs: tuple[StorageJob, ...]


@frozen(kw_only=True)
class StorageLimits:
    """
    The limits of a `StorageQueue`.

    Attributes:
        job_count_max: How many requests may wait or be under way; epochs come on top,
            of which one at the most waits for a component behind its other writes.
        size_bytes_max: What they may hold in sum.
        batch_count_max: How many jobs go in one batch.
        batch_size_bytes_max: No job joins a batch that holds as much.
    """

    job_count_max: int = field(default=10_000, validator=validators.ge(1))
    size_bytes_max: int = field(default=16 << 20, validator=validators.ge(1))
    batch_count_max: int = field(default=1_000, validator=validators.ge(1))
    batch_size_bytes_max: int = field(default=1 << 20, validator=validators.ge(1))


@define
class _Lane:
    """What one lane does, and what waits for it."""

    waiting: deque[StorageJob] = Factory(deque)
    is_busy: bool = False


@final
class StorageQueue:
    """Tasks in, batches out.  Not thread-safe: one shell drives it."""

    def __init__(self, limits: StorageLimits | None = None) -> None:
        self._limits = StorageLimits() if limits is None else limits
        self._writes = _Lane()
        self._reads = _Lane()
        self._number = 0
        self._job_count = 0
        self._size_bytes = 0
        # Of each component, its newest write that is not finished; and the reads that
        # wait for one of those.
        self._newest_writes: dict[str, int] = {}
        self._behind: dict[int, list[StorageJob]] = {}
        # Of each record that waits, the epoch that it is to be.
        self._epochs: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many jobs wait or are under way."""
        return self._job_count

    @property
    def size_bytes(self) -> int:
        """Return what they hold in sum, about."""
        return self._size_bytes

    def admits(self, task: StorageTask) -> bool:
        """Return whether there is room for *task*; for an epoch there always is."""
        return isinstance(task, RecordEpochTask) or (
            self._job_count < self._limits.job_count_max
            and self._size_bytes + _size_bytes(task) <= self._limits.size_bytes_max
        )

    def is_writing(self, component_id: str) -> bool:
        """Return whether a write of that component is not finished."""
        return component_id in self._newest_writes

    def add(self, task: StorageTask) -> int:
        """Enter *task*; return its number, which is that of one that it replaces."""
        before = self._newest_writes.get(task.component_id)
        if isinstance(task, RecordEpochTask) and before in self._epochs:
            self._epochs[before] = task.epoch
            return before
        self._number += 1
        self._job_count += 1
        size_bytes = _size_bytes(task)
        self._size_bytes += size_bytes
        job = StorageJob(number=self._number, task=task, size_bytes=size_bytes)
        if isinstance(task, RecordEpochTask):
            self._epochs[job.number] = task.epoch
        if not isinstance(task, GetTask | ListTask):
            self._newest_writes[task.component_id] = job.number
            self._writes.waiting.append(job)
        elif before is None:
            self._reads.waiting.append(job)
        else:
            self._behind.setdefault(before, []).append(job)
        return job.number

    def next_work(self) -> StorageWork | None:
        """Return a batch for a lane that is free, or None; it is under way then."""
        for lane in (self._writes, self._reads):
            if lane.waiting and not lane.is_busy:
                lane.is_busy = True
                return StorageWork(is_write=lane is self._writes, jobs=self._take(lane))
        return None

    def finished(self, work: StorageWork) -> None:
        """Record that *work* is done, well or not."""
        lane = self._writes if work.is_write else self._reads
        assert lane.is_busy
        lane.is_busy = False
        for job in work.jobs:
            self._job_count -= 1
            self._size_bytes -= job.size_bytes
            if work.is_write:
                component_id = job.task.component_id
                if self._newest_writes[component_id] == job.number:
                    del self._newest_writes[component_id]
                self._reads.waiting.extend(self._behind.pop(job.number, ()))

    def _take(self, lane: _Lane) -> tuple[StorageJob, ...]:
        jobs: list[StorageJob] = []
        size_bytes = 0
        while (
            lane.waiting
            and len(jobs) < self._limits.batch_count_max
            and size_bytes < self._limits.batch_size_bytes_max
        ):
            job = lane.waiting.popleft()
            if isinstance(job.task, RecordEpochTask):
                epoch = self._epochs.pop(job.number)
                job = evolve(job, task=evolve(job.task, epoch=epoch))
            jobs.append(job)
            # What is read may be as large as the largest value.
            size_bytes += job.size_bytes
            if isinstance(job.task, GetTask):
                size_bytes += self._limits.batch_size_bytes_max // 8
        return tuple(jobs)


def _size_bytes(task: StorageTask) -> int:
    size_bytes = _TASK_SIZE_BYTES
    if isinstance(task, CommitTask):
        size_bytes += sum(
            len(operation.path)
            + (len(operation.value) if isinstance(operation, Put) else 0)
            for operation in task.operations
        )
    return size_bytes
