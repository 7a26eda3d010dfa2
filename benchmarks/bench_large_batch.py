"""
What a large batch costs others: how long their commits wait for the writing thread.

Workload: one store on disk with its writing thread.  A job has a state of a million
rows (12 bytes of key, 40 of value), and a batch writes all of them once more: whole, or
in 10 or 100 batches of a part of the key groups each.  Meanwhile another job stages and
applies ten rows again and again, one after the other.  One transaction is one batch:
readers see all of it or nothing, and no other job writes meanwhile.
Unit: seconds for an entry of the large job; milliseconds for a commit of the small one
at rest, and its longest beside the large one.  Bad: a longest wait of more than one
entry of the large job and a moment.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._harness import Figure, figure, report, sized
from queryablestate.store.store import StateStore
from queryablestate.store.threads import StageTask, StoreWriter
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.records import BatchDecided, BatchState, StageRecord
from queryablestate.wire.staging_messages import StageChunk, StagedRows


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import NameServiceError


_NODE = "node"
_GROUP_COUNT = sized(100, tiny=2)
_PART_COUNTS = sized((1, 10, 100), tiny=(1, 2))
_ROWS_PER_GROUP = sized(10_000, tiny=10)
_VALUE = bytes(40)
_SMALL_ROW_COUNT = 10
_REST_COUNT = sized(50, tiny=1)
_STAGE_ID = bytes(16)


class _Payload:
    """A second frame that is in memory already."""

    def __init__(self, rows: StagedRows) -> None:
        self.buffer = memoryview(encode_payload(rows))

    def __len__(self) -> int:
        return len(self.buffer)


class _Job:
    """A job with one state, whose batches are staged and applied by a thread."""

    def __init__(self, job_id: str, number: int, store: StateStore) -> None:
        self._job_id = job_id
        self._number = number
        self._store = store
        self._sequences = itertools.count(1)

    def write(
        self,
        writer: StoreWriter,
        staged: threading.Semaphore,
        groups: Sequence[int],
        row_count: int,
    ) -> float:
        """Write *row_count* rows of these groups; return the seconds of the entry."""
        sequence = next(self._sequences)
        for index, group in enumerate(groups):
            prefix = group.to_bytes(2, "big") + b"\1"
            rows = StagedRows(
                state_number=self._number,
                keys=[
                    prefix + row.to_bytes(7, "big") + b"\0\0"
                    for row in range(row_count)
                ],
                values=[_VALUE] * row_count,
            )
            chunk = StageChunk(
                request_id=1,
                job_id=self._job_id,
                query_id="query",
                writer_epoch=1,
                batch_id=sequence,
                stage_id=_STAGE_ID,
                chunk_index=index,
                assignment_version=1,
            )
            writer.stage(StageTask(writer=b"", chunk=chunk, rows=_Payload(rows)))
            staged.acquire()
        stage = StageRecord(
            stage_id=_STAGE_ID, chunk_counts={_NODE: len(groups)}, row_count=row_count
        )
        state = BatchState(
            state_number=self._number,
            kind="value",
            has_ttl=False,
            generation=1,
            is_replaced=False,
        )
        entry = BatchDecided(
            sequence=sequence,
            query_id="query",
            writer_epoch=1,
            batch_id=sequence,
            assignment_version=1,
            decided_at_us=1,
            states=(state,),
            stages=(stage,),
        )
        took: list[float] = []
        applied = threading.Event()
        apply = partial(self._apply, entry, took, applied)
        writer.run(apply, job_id=self._job_id)
        applied.wait()
        return took[0]

    def _apply(
        self, entry: BatchDecided, took: list[float], applied: threading.Event
    ) -> None:
        began = time.perf_counter()
        self._store.apply(self._job_id, entry)
        took.append(time.perf_counter() - began)
        applied.set()


def _small_commit_ms(write: Callable[[], float]) -> float:
    began = time.perf_counter()
    write()
    return (time.perf_counter() - began) * 1_000


def _measure(part_count: int, figures: list[Figure]) -> None:
    """Write a million rows twice, the second time in *part_count* parts."""
    staged = {"large": threading.Semaphore(0), "small": threading.Semaphore(0)}

    def on_staged(
        results: Sequence[tuple[StageTask, NameServiceError | None]],
    ) -> None:
        for task, error in results:
            assert error is None, error
            staged[task.chunk.job_id].release()

    with (
        tempfile.TemporaryDirectory(prefix="large-batch-") as folder,
        StateStore.open(folder, node_id=_NODE) as store,
    ):
        writer = StoreWriter(store, on_staged)
        large, small = _Job("large", 1, store), _Job("small", 2, store)
        groups = range(_GROUP_COUNT)
        large.write(writer, staged["large"], groups, _ROWS_PER_GROUP)
        commit = partial(
            small.write, writer, staged["small"], range(1), _SMALL_ROW_COUNT
        )
        at_rest = [_small_commit_ms(commit) for _ in range(_REST_COUNT)]
        beside: list[float] = []
        over = threading.Event()

        def go_on() -> None:
            beside.append(_small_commit_ms(commit))  # one, however short the other is
            while not over.is_set():
                beside.append(_small_commit_ms(commit))

        thread = threading.Thread(target=go_on)
        thread.start()
        size = _GROUP_COUNT // part_count
        seconds = [
            large.write(
                writer, staged["large"], groups[first : first + size], _ROWS_PER_GROUP
            )
            for first in range(0, _GROUP_COUNT, size)
        ]
        over.set()
        thread.join()
        writer.close()
    row_count = _GROUP_COUNT * _ROWS_PER_GROUP // part_count
    figures += [
        figure(f"an entry of {row_count:,} rows", "s", seconds),
        figure("a commit of ten rows, at rest", "ms", at_rest),
        figure(f"a commit of ten rows beside {row_count:,}", "ms", beside),
    ]


def run() -> list[Figure]:
    """Measure, and return the figures."""
    figures: list[Figure] = []
    for part_count in _PART_COUNTS:
        _measure(part_count, figures)
    report("large_batch", figures)
    return figures
