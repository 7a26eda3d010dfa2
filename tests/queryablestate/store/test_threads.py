from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import NameServiceError
from queryablestate import StagingQuotaError, StaleWriterError
from queryablestate.store.store import StateStore
from queryablestate.store.threads import StageTask, StoreWriter
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.records import StageRecord
from queryablestate.wire.staging_messages import StageChunk, StagedRows
from tests.queryablestate.node_entries import batch
from tests.queryablestate.proxy_for_nodes import rows


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS: Final = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Return an empty store."""
    with StateStore.open(tmp_path, node_id="n", is_durable=False) as one:
        yield one


def task(
    number: int = 0,
    chunk_rows: StagedRows | bytes | None = None,
    *,
    writer_epoch: int = 1,
    job_id: str = "job",
) -> StageTask:
    """Return a chunk that waits to be staged."""
    if chunk_rows is None:
        chunk_rows = rows(a=b"1")
    payload = (
        chunk_rows if isinstance(chunk_rows, bytes) else encode_payload(chunk_rows)
    )
    chunk = StageChunk(
        request_id=number,
        job_id=job_id,
        query_id="q",
        writer_epoch=writer_epoch,
        batch_id=1,
        stage_id=bytes(16),
        chunk_index=number,
        assignment_version=1,
    )
    return StageTask(writer=b"w", chunk=chunk, rows=zmq.Frame(payload))


class Hands:
    """A writing thread, held until it is released, and what it says."""

    def __init__(self, store: StateStore) -> None:
        self.results: list[list[tuple[int, NameServiceError | None]]] = []
        self.done = threading.Semaphore(0)
        self.go = threading.Event()
        self.writer = StoreWriter(store, self.staged, job_size_bytes_max=10_000)

    def staged(self, results: object) -> None:
        """Take note of what became of a group of chunks."""
        assert isinstance(results, list)
        self.results.append([(one.chunk.request_id, error) for one, error in results])
        self.done.release()

    def hold(self) -> None:
        """Gather what comes."""

        def wait() -> None:
            self.go.wait(TIMEOUT_SECONDS)

        self.writer.run(wait)

    def wait(self) -> list[tuple[int, NameServiceError | None]]:
        """Return what is said of the next group."""
        self.go.set()
        assert self.done.acquire(timeout=TIMEOUT_SECONDS)
        return self.results[-1]


@pytest.fixture
def hands(store: StateStore) -> Iterator[Hands]:
    """Return a writing thread."""
    one = Hands(store)
    yield one
    one.go.set()
    one.writer.close()


class TestWriter:
    @pytest.mark.proves("W2")
    def test_chunks_that_wait_are_staged_together(
        self, hands: Hands, store: StateStore
    ) -> None:
        """W2: one transaction for all of them, each acknowledged when it is over."""
        hands.hold()
        for number in range(5):
            hands.writer.stage(task(number))
        assert hands.wait() == [(number, None) for number in range(5)]
        stage = StageRecord(stage_id=bytes(16), chunk_counts={"n": 5}, row_count=5)
        assert store.missing_stages("job", 1, 1, [stage]) == ()

    def test_everything_is_done_in_the_order_in_which_it_was_asked(
        self, hands: Hands
    ) -> None:
        """What stands between two chunks keeps them apart."""
        order: list[str] = []
        hands.hold()
        hands.writer.stage(task(0))
        hands.writer.run(lambda: order.append(f"after {len(hands.results)}"))
        hands.writer.stage(task(1))
        assert hands.wait() in ([(0, None)], [(1, None)])
        assert hands.done.acquire(timeout=TIMEOUT_SECONDS)
        assert hands.results == [[(0, None)], [(1, None)]]
        assert order == ["after 1"]

    @pytest.mark.proves("B4")
    def test_what_waits_of_one_job_does_not_delay_another(self, hands: Hands) -> None:
        """B4: an entry is applied before what is left of another job's."""
        order: list[str] = []
        all_done = threading.Event()
        hands.hold()
        for number in range(10):
            apply = partial(order.append, f"large {number}")
            hands.writer.run(apply, job_id="large")
        hands.writer.run(partial(order.append, "small"), job_id="small")
        hands.writer.run(all_done.set)
        hands.go.set()
        assert all_done.wait(TIMEOUT_SECONDS)
        assert order.index("small") == 1
        assert len(order) == 11

    def test_a_bad_chunk_does_not_harm_its_neighbours(self, hands: Hands) -> None:
        """Each is told its own."""
        hands.hold()
        hands.writer.stage(task(0))
        hands.writer.stage(task(1, b"\xc1"))
        hands.writer.stage(task(2))
        results = dict(hands.wait())
        assert results[0] is None
        assert results[1] is not None
        assert results[2] is None

    @pytest.mark.proves("W1")
    def test_a_run_that_is_over_does_not_harm_the_new_one(
        self, hands: Hands, store: StateStore
    ) -> None:
        """W1: of chunks of two runs only the older are refused."""
        store.fence([WriterFence(job_id="job", query_id="q", writer_epoch=2)])
        hands.hold()
        hands.writer.stage(task(0, writer_epoch=1))
        hands.writer.stage(task(1, writer_epoch=2))
        results = dict(hands.wait())
        assert isinstance(results[0], StaleWriterError)
        assert results[1] is None

    @pytest.mark.proves("B4")
    def test_a_job_over_its_quota_does_not_harm_another(self, hands: Hands) -> None:
        """B4: of chunks of two jobs only those of the one are refused."""
        hands.hold()
        hands.writer.stage(task(0, rows(a=bytes(10_001))))
        hands.writer.stage(task(1, job_id="other"))
        results = dict(hands.wait())
        assert isinstance(results[0], StagingQuotaError)
        assert results[1] is None

    def test_an_error_of_ours_ends_neither_thread_nor_answers(
        self, hands: Hands
    ) -> None:
        """What was not foreseen is logged and told, and the thread goes on."""
        with capture_logs() as logs:
            hands.writer.run(lambda: 1 // 0)
            hands.writer.stage(task(0))
            assert hands.wait() == [(0, None)]
        assert [log["event"] for log in logs] == ["loop.failed"]

    def test_what_nobody_foresaw_is_answered_too(
        self, hands: Hands, store: StateStore
    ) -> None:
        """A writer is never left waiting, and its neighbour not harmed."""
        stage = store.stage

        def picky(
            chunks: Sequence[tuple[StageChunk, bytes | memoryview]],
            now_us: int,
            job_size_bytes_max: int | None = None,
        ) -> None:
            if any(chunk.request_id == 1 for chunk, _ in chunks):
                raise ZeroDivisionError
            stage(chunks, now_us, job_size_bytes_max)

        store.stage = picky  # type: ignore[method-assign]  # a mistake of ours
        hands.hold()
        hands.writer.stage(task(0))
        hands.writer.stage(task(1))
        with capture_logs() as logs:
            results = dict(hands.wait())
        assert results[0] is None
        assert "ZeroDivisionError" in str(results[1])
        assert {log["event"] for log in logs} == {"loop.failed"}

    def test_what_is_left_at_the_end_is_given_back(self, hands: Hands) -> None:
        """The one that brought it can be told."""
        hands.hold()
        chunk = task(0)
        hands.writer.stage(chunk)
        hands.writer.run(lambda: None)
        closing = threading.Timer(0.05, hands.go.set)
        closing.start()
        left = hands.writer.close()
        closing.join()
        assert list(left) in ([chunk], [])  # the thread may have come to it first
        if not left:
            assert hands.results == [[(0, None)]]

    @pytest.mark.proves("W6")
    def test_expired_rows_are_removed_when_there_is_nothing_to_do(
        self, hands: Hands, store: StateStore
    ) -> None:
        """W6: rows past their time take up no space for ever."""
        past = (time.time_ns() // 1_000 - 1).to_bytes(8, "big")
        hands.writer.stage(task(0, rows(a=past + b"1")))
        assert hands.wait() == [(0, None)]
        stage = StageRecord(stage_id=bytes(16), chunk_counts={"n": 1}, row_count=1)
        applied = threading.Event()

        def apply() -> None:
            store.apply("job", batch(1, stages=(stage,), has_ttl=True))
            applied.set()

        swept = threading.Event()
        sweep = store.sweep_expired

        def watched(now_us: int, limit: int) -> int:
            count = sweep(now_us, limit)
            if count:
                swept.set()
            return count

        store.sweep_expired = watched  # type: ignore[method-assign]  # to see it happen
        hands.writer.run(apply)
        assert applied.wait(TIMEOUT_SECONDS)
        assert swept.wait(TIMEOUT_SECONDS)
