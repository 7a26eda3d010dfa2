"""The queue of a data directory: writes in order and together, reads past them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from election import Delete, Put
from leaderserver.server.core.storage_queue import (
    CleanupTask,
    CommitTask,
    GetTask,
    ListTask,
    RecordEpochTask,
    StorageLimits,
    StorageQueue,
    StorageTask,
    StorageWork,
)


def epoch(component_id: str = "c/a", number: int = 1) -> RecordEpochTask:
    """Return a write of an epoch."""
    return RecordEpochTask(component_id=component_id, epoch=number)


def commit(component_id: str = "c/a", value: bytes = b"") -> CommitTask:
    """Return a write of a value."""
    return CommitTask(component_id=component_id, operations=(Put("p", value),))


def get(component_id: str = "c/a") -> GetTask:
    """Return a read."""
    return GetTask(component_id=component_id, path="p")


def tasks(work: StorageWork | None) -> list[StorageTask]:
    """Return what *work* is to do."""
    assert work is not None
    return [job.task for job in work.jobs]


class TestWrites:
    def test_what_waits_goes_together(self) -> None:
        """One batch, and so one fsync, for all that came while the disk was busy."""
        queue = StorageQueue()
        queue.add(epoch("c/a"))
        first = queue.next_work()
        for name in ("c/b", "c/c", "c/d"):
            queue.add(epoch(name))
        assert queue.next_work() is None, "one batch is under way at a time"
        assert first is not None
        queue.finished(first)
        assert tasks(queue.next_work()) == [epoch("c/b"), epoch("c/c"), epoch("c/d")]

    def test_a_batch_has_limits(self) -> None:
        """By number and by bytes; what is too large for any batch goes alone."""
        limits = StorageLimits(batch_count_max=2, batch_size_bytes_max=1_000)
        queue = StorageQueue(limits)
        large = commit(value=bytes(5_000))
        for task in (epoch("c/b"), epoch("c/c"), large, epoch("c/d")):
            queue.add(task)
        sizes = []
        while (work := queue.next_work()) is not None:
            sizes.append(len(work.jobs))
            queue.finished(work)
        assert sizes == [2, 1, 1]

    @pytest.mark.proves("L2", "N3")
    def test_an_epoch_gives_way_to_a_higher_one(self) -> None:
        """N3: but none passes a commit of an earlier leader of its component (L2)."""
        queue = StorageQueue()
        queue.add(epoch(number=1))
        work = queue.next_work()
        for task in (
            *(epoch(number=2), epoch("c/b"), get("c/a"), epoch(number=3)),
            *(commit(), epoch(number=4), epoch(number=5)),
        ):
            queue.add(task)
        assert len(queue) == 6
        assert tasks(work) == [epoch(number=1)]
        assert work is not None
        queue.finished(work)
        work = queue.next_work()
        expected = [epoch(number=3), epoch("c/b"), commit(), epoch(number=5)]
        assert tasks(work) == expected
        assert work is not None
        queue.finished(work)
        assert tasks(queue.next_work()) == [get("c/a")]

    def test_what_waits_has_limits(self) -> None:
        """By number and by bytes; an epoch is never refused (N3)."""
        queue = StorageQueue(StorageLimits(job_count_max=2, size_bytes_max=2_000))
        assert not queue.admits(commit(value=bytes(2_000)))
        assert queue.admits(commit(value=bytes(1_000)))
        queue.add(commit())
        queue.add(get())
        assert not queue.admits(get())
        assert queue.admits(epoch())
        work = queue.next_work()
        assert work is not None
        queue.finished(work)
        assert queue.admits(get())


class TestReads:
    def test_a_read_passes_writes_of_others(self) -> None:
        """A slow write of one component delays no read of another."""
        queue = StorageQueue()
        queue.add(commit("c/a"))
        write = queue.next_work()
        assert write is not None
        queue.add(get("c/b"))
        assert tasks(queue.next_work()) == [get("c/b")]

    @pytest.mark.proves("L1")
    def test_a_read_sees_what_was_written_before_it(self) -> None:
        """It waits for its component's earlier writes, and not for later ones (L1)."""
        queue = StorageQueue()
        queue.add(commit("c/a"))
        write = queue.next_work()
        assert write is not None
        queue.add(get("c/a"))
        queue.add(CleanupTask(component_id="c/a"))
        assert queue.next_work() is None
        queue.finished(write)
        cleanup = queue.next_work()
        assert tasks(cleanup) == [CleanupTask(component_id="c/a")]
        assert tasks(queue.next_work()) == [get("c/a")]

    @given(
        st.lists(
            st.one_of(
                st.sampled_from(
                    [
                        epoch("c/a"),
                        commit("c/a"),
                        CommitTask(component_id="c/b", operations=(Delete("p"),)),
                        get("c/a"),
                        get("c/b"),
                        ListTask(component_id="c/b", prefix="", after="", count_max=9),
                    ]
                ),
                st.sampled_from(["write", "read"]),
            ),
            max_size=40,
        )
    )
    def test_whatever_happens(self, script: list[StorageTask | str]) -> None:
        """Writes end in order; a read begins after its component's earlier writes."""
        queue = StorageQueue(StorageLimits(batch_count_max=3))
        under_way: dict[str, StorageWork] = {}
        added: list[tuple[int, StorageTask]] = []
        done: list[int] = []

        def finish(lane: str) -> None:
            work = under_way.pop(lane, None)
            if work is not None:
                queue.finished(work)
                done.extend(job.number for job in work.jobs)

        def start() -> None:
            while (work := queue.next_work()) is not None:
                under_way["write" if work.is_write else "read"] = work
                for job in work.jobs:
                    if isinstance(job.task, GetTask | ListTask):
                        earlier = {
                            number
                            for number, task in added
                            if number < job.number
                            and task.component_id == job.task.component_id
                            and not isinstance(task, GetTask | ListTask)
                        }
                        assert earlier <= set(done)

        for step in script:
            if isinstance(step, str):
                finish(step)
            else:
                added.append((queue.add(step), step))
            start()
        while under_way:
            finish("write")
            finish("read")
            start()
        assert sorted(done) == sorted({number for number, _ in added})
        writes = {n for n, task in added if not isinstance(task, GetTask | ListTask)}
        assert [n for n in done if n in writes] == sorted(writes)
        assert (len(queue), queue.size_bytes) == (0, 0)
        assert not any(queue.is_writing(name) for name in ("c/a", "c/b"))
