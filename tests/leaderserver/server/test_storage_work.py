"""Doing what waits for a data directory: together if possible, else one by one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from election import Put, VersionedValue
from leaderserver.server.core.storage_queue import (
    CommitTask,
    GetTask,
    ListTask,
    RecordEpochTask,
    StorageJob,
    StorageTask,
    StorageWork,
)
from leaderserver.server.core.store_sizes import StoreFullError, StoreLimits
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.server.storage import (
    DiskFullError,
    StorageBusyError,
    UncertainWriteError,
)
from leaderserver.server.storage_database import DATABASE_FILE_NAME
from leaderserver.server.storage_work import Outcome, perform_storage_work
from nameservice import StorageError, VersionMismatchError


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SQLiteStorage]:
    """Yield a storage that is empty."""
    with contextlib.closing(SQLiteStorage(tmp_path)) as made:
        yield made


def put(path: str, value: bytes = b"v", version: int | None = None) -> CommitTask:
    """Return a write of a value."""
    operations = (Put(path, value, version),)
    return CommitTask(component_id="c/a", operations=operations)


def perform(storage: SQLiteStorage, *tasks: StorageTask) -> list[Outcome]:
    """Return what comes of *tasks*, which go together."""
    jobs = tuple(
        StorageJob(number=n, task=task, size_bytes=0) for n, task in enumerate(tasks)
    )
    is_write = not isinstance(tasks[0], GetTask | ListTask)
    return list(
        perform_storage_work(storage, StorageWork(is_write=is_write, jobs=jobs))
    )


class TestTogether:
    def test_a_refused_commit_undoes_itself_only(self, storage: SQLiteStorage) -> None:
        """Its first operation too; those beside it are done (L1)."""
        both = CommitTask(
            component_id="c/a", operations=(Put("b", b""), Put("a", b"", version=7))
        )
        outcomes = perform(storage, put("a"), both, put("c"))
        assert outcomes[0] is None
        assert isinstance(outcomes[1], VersionMismatchError)
        assert outcomes[2] is None
        listed = ListTask(component_id="c/a", prefix="", after="", count_max=9)
        assert perform(storage, listed) == [("a", "c")]

    def test_a_later_commit_sees_an_earlier_one(self, storage: SQLiteStorage) -> None:
        """Versions count within a batch as they do over two."""
        outcomes = perform(storage, put("a", version=0), put("a", b"w", version=1))
        assert outcomes == [None, None]
        (found,) = perform(storage, GetTask(component_id="c/a", path="a"))
        assert found == VersionedValue(value=b"w", version=2)

    def test_a_full_store_keeps_no_batch_apart(self, tmp_path: Path) -> None:
        """One that may hold no more costs the others no transaction of their own."""
        limits = StoreLimits(bytes_per_component_max=100_000)
        with contextlib.closing(SQLiteStorage(tmp_path / "data", limits)) as storage:
            statements: list[str] = []
            storage._database._connection.set_trace_callback(statements.append)
            greedy = put("a", bytes(200_000))
            epochs = [
                RecordEpochTask(component_id=f"c/{number}", epoch=7)
                for number in range(3)
            ]
            outcomes = perform(storage, epochs[0], greedy, *epochs[1:])
            assert isinstance(outcomes.pop(1), StoreFullError)
            assert outcomes == [None] * 3
            assert statements.count("COMMIT") == 1
            assert len(storage.recorded_epochs()) == 3

    def test_another_process_that_holds_it_is_told(
        self, storage: SQLiteStorage, tmp_path: Path
    ) -> None:
        """Once for all of them, not one after the other."""
        storage._database._connection.execute("PRAGMA busy_timeout = 0")
        intruder = sqlite3.connect(tmp_path / DATABASE_FILE_NAME, isolation_level=None)
        intruder.execute("BEGIN IMMEDIATE")
        outcomes = perform(storage, put("a"), put("b"))
        assert all(isinstance(outcome, StorageBusyError) for outcome in outcomes)
        intruder.execute("ROLLBACK")
        intruder.close()
        assert perform(storage, put("a"), put("b")) == [None, None]


class TestOneByOne:
    def test_what_has_no_room_keeps_nothing_else_out(
        self, storage: SQLiteStorage
    ) -> None:
        """An epoch is recorded though the value beside it does not fit (E2)."""
        (pages,) = storage._database._connection.execute("PRAGMA page_count").fetchone()
        storage._database._connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        epoch = RecordEpochTask(component_id="c/a", epoch=7)
        outcomes = perform(storage, put("a", bytes(900_000)), epoch, put("b"))
        assert isinstance(outcomes[0], DiskFullError)
        assert outcomes[1:] == [None, None]
        assert storage.recorded_epochs() == {"c/a": 7}

    def test_what_failed_for_good_is_said_of_each(self, storage: SQLiteStorage) -> None:
        """Nothing is written any more, and it is certain that it is not."""
        storage._database._fatal_error = UncertainWriteError("a sync failed")
        outcomes = perform(storage, put("a"), put("b"))
        assert all(isinstance(outcome, StorageError) for outcome in outcomes)
        assert not any(isinstance(o, UncertainWriteError) for o in outcomes)
