"""`ReadingThread`: slices of real reads of a real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from nameservice import NameServiceError, StorageError, SystemClock
from queryablestate.node.core.read_schedule import (
    DropReason,
    ReadAsked,
    ReadId,
    ReadLimits,
)
from queryablestate.node.reading import LongRead, ReadingThread
from queryablestate.store.reader import StoreReader
from queryablestate.store.steps import ReadWork, Steps
from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import (
    NODE,
    NOW_US,
    expiring,
    key,
    state,
    write,
)


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS: Final = 60.0
FOREVER_NS: Final = 1 << 62
ROW_COUNT: Final = 3_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield a store with a state of 3,000 rows with TTL."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        stored = expiring(b"x", NOW_US + 1_000)
        rows = [(key(0, f"{number:05}"), stored) for number in range(ROW_COUNT)]
        write(made, rows, batch_state=state(has_ttl=True))
        yield made


class Reads:
    """A reading thread, and what it says."""

    def __init__(self, store: StateStore, **limits: int) -> None:
        self.clock = SystemClock()
        self.thread = ReadingThread(
            store, clock=self.clock, limits=ReadLimits(**limits)
        )
        self.told: Queue[tuple[int, Any, int]] = Queue()
        self.number = 0
        self.go = threading.Event()
        self.slices: list[int] = []
        self.is_gone_at_once = False

    def begin(
        self,
        asker: str = "a",
        *,
        pauses: int = 0,
        row_count: int = 1,
        until_ns: int = FOREVER_NS,
        error: Exception | None = None,
        holds_rows: bool = False,
    ) -> ReadId:
        """Have something read that pauses so often, for as long as a slice takes."""
        self.number += 1
        number = self.number

        def steps(reader: StoreReader, work: ReadWork) -> Steps[int]:
            for _ in range(pauses):
                self.slices.append(number)
                work.row_count += row_count
                ended_ns = self.clock.now_ns() + 4_000_000
                while self.clock.now_ns() < ended_ns:
                    pass
                yield
            if error is not None:
                raise error
            _, count = yield from reader.count(1, [0], NOW_US, work)
            return count

        return self.ask(steps, number, asker, until_ns, holds_rows=holds_rows)

    def hold(self) -> ReadId:
        """Keep the thread busy until `go` is set."""
        begun = threading.Event()
        self.number += 1

        def steps(_: StoreReader, __: ReadWork) -> Steps[str]:
            begun.set()
            assert self.go.wait(TIMEOUT_SECONDS)
            yield
            return "held"

        read_id = self.ask(steps, self.number, "hold", FOREVER_NS)
        assert begun.wait(TIMEOUT_SECONDS)
        return read_id

    def ask(
        self,
        steps: Any,
        number: int,
        asker: str,
        until_ns: int,
        *,
        holds_rows: bool = False,
    ) -> ReadId:
        """Have *steps* taken."""

        def done(result: object) -> None:
            if self.is_gone_at_once:
                self.thread.gone((0, number))
            self.told.put((number, result, 0))

        def failed(error: NameServiceError, work: ReadWork) -> None:
            self.told.put((number, error, work.row_count))

        def dropped(reason: DropReason, work: ReadWork) -> None:
            self.told.put((number, reason, work.row_count))

        read_id = (0, number)
        asked = ReadAsked(
            read_id=read_id, asker=asker, deadline_ns=until_ns, holds_rows=holds_rows
        )
        self.thread.read(
            LongRead(
                asked=asked,
                begin=steps,
                size_of=lambda _: 100,
                done=done,
                failed=failed,
                dropped=dropped,
            )
        )
        return read_id

    def next(self) -> tuple[int, Any, int]:
        """Return what is told next."""
        return self.told.get(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def reads(store: StateStore) -> Iterator[Reads]:
    """Yield a reading thread."""
    one = Reads(store)
    yield one
    one.go.set()
    one.thread.close()


@pytest.mark.proves("B2")
class TestSlices:
    """How reads share the thread."""

    def test_a_read_is_done_in_slices(self, reads: Reads) -> None:
        """B2: and its result is that of all of them."""
        reads.begin(pauses=3)
        assert reads.next() == (1, ROW_COUNT, 0)
        assert reads.slices == [1, 1, 1]

    def test_another_asker_waits_for_one_slice(self, reads: Reads) -> None:
        """B2: whatever has been asked for before."""
        reads.hold()
        for _ in range(5):
            reads.begin("greedy", pauses=10_000)
        reads.begin("modest", pauses=1)
        reads.go.set()
        # The one that held the thread used its share up, and may be told last.
        told = {reads.next()[0] for _ in range(2)}
        assert told == {1, 7}
        assert reads.slices.index(7) <= 1

    def test_a_snapshot_is_kept_between_slices(
        self, store: StateStore, reads: Reads
    ) -> None:
        """Q1: what is applied meanwhile is not seen, by this read."""
        counted = threading.Event()
        applied = threading.Event()

        def steps(reader: StoreReader, work: ReadWork) -> Steps[int]:
            inner = reader.count(1, [0], NOW_US, work)
            next(inner)
            counted.set()
            assert applied.wait(TIMEOUT_SECONDS)
            yield
            _, count = yield from inner
            return count

        reads.ask(steps, 1, "a", FOREVER_NS)
        assert counted.wait(TIMEOUT_SECONDS)
        stored = expiring(b"x", NOW_US + 1_000)
        write(store, [(key(0, "zzz"), stored)], batch_state=state(has_ttl=True))
        applied.set()
        assert reads.next()[1] == ROW_COUNT
        reads.number = 1
        reads.begin()
        assert reads.next()[1] == ROW_COUNT + 1


class TestEnds:
    """How a read comes to nothing."""

    @pytest.mark.proves("B2")
    def test_it_ends_at_its_deadline(self, reads: Reads) -> None:
        """B2: whether it has begun or not; what it has read is told."""
        reads.begin(pauses=10_000, until_ns=reads.clock.now_ns() + 30_000_000)
        number, reason, row_count = reads.next()
        assert (number, reason) == (1, DropReason.LATE)
        assert row_count == len(reads.slices) >= 1
        reads.hold()
        reads.begin(until_ns=reads.clock.now_ns())
        reads.go.set()
        told = [reads.next() for _ in range(2)]
        assert (3, DropReason.LATE, 0) in told

    @pytest.mark.proves("B2")
    def test_it_ends_at_its_deadline_though_nothing_happens(
        self, store: StateStore
    ) -> None:
        """B2: while memory is short, and nothing else comes."""
        reads = Reads(store, unsent_size_bytes_max=50)
        first = reads.begin()
        assert reads.next()[1] == ROW_COUNT
        asked = ReadAsked(
            read_id=(0, 9),
            asker="a",
            deadline_ns=reads.clock.now_ns() + 10_000_000,
            holds_rows=True,
        )
        ended = threading.Event()
        reads.thread.read(
            LongRead(
                asked=asked,
                begin=lambda reader, work: reader.count(1, [0], NOW_US, work),
                size_of=lambda _: 0,
                done=lambda _: None,
                failed=lambda _, __: None,
                dropped=lambda _, __: ended.set(),
            )
        )
        assert ended.wait(TIMEOUT_SECONDS)
        assert reads.thread.held_size_bytes == 100
        reads.thread.gone(first)
        assert reads.thread.held_size_bytes == 0
        reads.thread.close()

    @pytest.mark.proves("B2")
    def test_it_ends_when_it_is_wanted_no_more(self, reads: Reads) -> None:
        """B2: one read, or all of them."""
        reads.hold()
        first = reads.begin(pauses=10_000)
        reads.thread.cancel([first, (5, 5)])
        reads.begin(pauses=10_000)
        reads.begin(pauses=10_000)
        reads.go.set()
        told = {reads.next()[:2] for _ in range(2)}
        assert told == {(2, DropReason.CANCELLED), (1, "held")}
        reads.thread.cancel_all()
        told = {reads.next()[:2] for _ in range(2)}
        assert told == {(3, DropReason.CANCELLED), (4, DropReason.CANCELLED)}
        assert len(reads.thread) == 0

    @pytest.mark.proves("B1")
    def test_an_answer_may_be_gone_at_once(self, store: StateStore) -> None:
        """B1: the loop may have sent it before the thread looks again."""
        reads = Reads(store, unsent_size_bytes_max=50)
        reads.is_gone_at_once = True
        for number in range(1, 4):
            reads.begin(holds_rows=True)
            assert reads.next() == (number, ROW_COUNT, 0)
            assert reads.thread.held_size_bytes == 0
        reads.thread.close()

    def test_what_waits_is_bounded(self, store: StateStore) -> None:
        """N3: a read that does not fit is refused, not queued without end."""
        reads = Reads(store, waiting_count_max=2)
        reads.hold()
        reads.begin()
        reads.begin()
        reads.go.set()
        told = {reads.next()[:2] for _ in range(3)}
        assert told == {(1, "held"), (2, ROW_COUNT), (3, DropReason.NO_ROOM)}
        reads.thread.close()

    def test_an_error_ends_one_read(self, reads: Reads) -> None:
        """It is told; one of ours is logged as well, and the thread goes on."""
        reads.begin(error=StorageError("the disk"), pauses=1)
        number, error, row_count = reads.next()
        assert (number, str(error), row_count) == (1, "the disk", 1)
        with capture_logs() as logs:
            reads.begin(error=ZeroDivisionError("on purpose"))
            number, error, _ = reads.next()
        assert number == 2
        assert isinstance(error, NameServiceError)
        assert [log["event"] for log in logs] == ["loop.failed"]
        reads.begin()
        assert reads.next() == (3, ROW_COUNT, 0)

    def test_it_closes_with_reads_that_have_begun(self, store: StateStore) -> None:
        """Their snapshots are released, and the store can be closed."""
        reads = Reads(store)
        for name in "abc":
            reads.begin(name, pauses=10_000)
        while len(reads.slices) < 4:
            threading.Event().wait(0.001)
        reads.thread.close()
        reads.thread.close()
        assert reads.told.empty()
        store.close()
