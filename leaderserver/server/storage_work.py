"""
Doing what a `StorageQueue` hands out, on whatever thread.

A batch of writes is one transaction, and each of its commits is undone by itself if it
is refused.  A transaction that fails as a whole is tried again one write at a time: a
value for which the disk has no room must not keep an epoch from being recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from leaderserver.server.core.storage_queue import (
    CleanupTask,
    CommitTask,
    GetTask,
    ListTask,
    RecordEpochTask,
)
from leaderserver.server.core.store_sizes import StoreFullError
from leaderserver.server.storage import (
    ShortOfRoomError,
    StorageBusyError,
    UncertainWriteError,
)
from nameservice import ConfigurationError, StorageError, VersionMismatchError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election import VersionedValue
    from leaderserver.server.core.storage_queue import StorageTask, StorageWork
    from leaderserver.server.storage import LeaderStorage
    from nameservice import NameServiceError


__all__ = ["Outcome", "perform_storage_task", "perform_storage_work"]

# Raised before anything of the task was written: the rest of a batch goes on.
_REFUSALS: Final = (
    VersionMismatchError,
    ConfigurationError,
    StoreFullError,
    ShortOfRoomError,
)

Outcome: TypeAlias = "VersionedValue | tuple[str, ...] | NameServiceError | None"
"""What a read found, why a task was not done, or None for a write that is done."""


def perform_storage_work(
    storage: LeaderStorage, work: StorageWork
) -> Sequence[Outcome]:
    """Return the outcomes of the jobs of *work*, in their order; raise nothing."""
    tasks = [job.task for job in work.jobs]
    if not work.is_write:
        return [_perform_alone(storage, task) for task in tasks]
    try:
        return _perform_together(storage, tasks)
    finally:
        storage.tidy()


def perform_storage_task(storage: LeaderStorage, task: StorageTask) -> Outcome:
    """Return the outcome of *task*, which nothing else waits with; raise nothing."""
    if isinstance(task, GetTask | ListTask):
        return _perform_alone(storage, task)
    try:
        return _perform_alone(storage, task)
    finally:
        storage.tidy()


def _perform_together(
    storage: LeaderStorage, tasks: Sequence[StorageTask]
) -> Sequence[Outcome]:
    if len(tasks) == 1:
        return [_perform_alone(storage, tasks[0])]
    outcomes: list[Outcome] = []
    try:
        with storage.batch():
            for task in tasks:
                outcomes.append(_perform(storage, task))  # noqa: PERF401 (kept if one raises)
    except UncertainWriteError as error:
        outcomes += [None] * (len(tasks) - len(outcomes))
        return [error if outcome is None else outcome for outcome in outcomes]
    except StorageBusyError as error:
        return [error] * len(tasks)  # one by one, each would wait as long
    except StorageError:
        return [_perform_alone(storage, task) for task in tasks]
    return outcomes


def _perform_alone(storage: LeaderStorage, task: StorageTask) -> Outcome:
    try:
        return _perform(storage, task)
    except StorageError as error:
        return error


def _perform(storage: LeaderStorage, task: StorageTask) -> Outcome:
    """Return the outcome of *task*; a `StorageError` is raised."""
    try:
        match task:
            case RecordEpochTask(component_id=component_id, epoch=epoch):
                storage.record_epoch(component_id, epoch)
            case CommitTask(component_id=component_id, operations=operations):
                storage.commit(component_id, operations)
            case CleanupTask(component_id=component_id):
                storage.cleanup(component_id)
            case GetTask(component_id=component_id, path=path):
                return storage.get(component_id, path)
            case ListTask(component_id=component_id, prefix=prefix):
                return tuple(
                    storage.list(
                        component_id, prefix, after=task.after, count_max=task.count_max
                    )
                )
            case _:
                assert_never(task)
    except _REFUSALS as error:
        return error
    return None
