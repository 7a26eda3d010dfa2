"""
How fast key groups move to a node that joins, and what readers notice of it.

Workload: one million keys of 100 bytes on one node, durably; a second node joins, and
half of the key groups move to it.  A client asks for one key after the other all the
while, on schedule, 200 a second; what it waits is counted from when it was to ask.
Name service, proxy and nodes are processes of their own over loopback TCP.

Floors, with as many bytes as were moved: LMDB scanned by one thread, as a source does
it; and pages of 1 MiB from a ROUTER to a DEALER, as a source sends them.  The move
writes the rows besides, and waits for the disk.

Bad: a question that fails; a p99 while rows move above 50 ms; less than a fifth of the
bytes per second of the slower floor.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Final, final

import zmq
from attrs import define, field

from benchmarks._harness import Figure, figure, report
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from haservices import HAConfig
from queryablestate import QueryableStateClient, StateOperations
from queryablestate.codec import encode_payload
from queryablestate.node_messages import StageChunk, StagedRows
from queryablestate.records import BatchDecided, BatchState, StageRecord
from queryablestate.store import StateStore


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.move_progress import MoveFigures


_KEY_COUNT: Final = 1_000_000
_ROWS_PER_BATCH: Final = 50_000
_VALUE: Final = "v" * 100
_STEADY_SECONDS: Final = 5.0
_TIMEOUT_SECONDS: Final = 300.0
_ASK_PAUSE_SECONDS: Final = 0.005
_GROUP_COUNT: Final = 64
_PAGE_SIZE_BYTES: Final = 1 << 20
_SEED: Final = 20_261_121


@final
@define
class _Reader:
    """Asks for one key after the other, until it is told to stop."""

    url: str
    keys: Sequence[str]
    waited: list[tuple[float, float]] = field(factory=list)  # when due, how long
    errors: list[str] = field(factory=list)
    stopping: threading.Event = field(factory=threading.Event)

    def run(self) -> None:
        """Ask on schedule; what is late is asked at once, and counts as late."""
        draw = random.Random(_SEED)
        with QueryableStateClient(self.url) as client:
            expected = client.get(JOB, STATE, self.keys[0])
            assert expected is not None
            due = time.perf_counter()
            while not self.stopping.is_set():
                due += _ASK_PAUSE_SECONDS
                self.stopping.wait(max(0.0, due - time.perf_counter()))
                try:
                    found = client.get(JOB, STATE, draw.choice(self.keys))
                    assert found == expected
                except Exception as error:  # noqa: BLE001 (counted, and reported)
                    self.errors.append(repr(error))
                self.waited.append((due, time.perf_counter() - due))

    def between(self, name: str, begin: float, end: float) -> Figure:
        """Return how long questions waited that were due in that time."""
        waited = [1_000 * long for due, long in self.waited if begin <= due < end]
        return figure(f"get, {name}", "ms", waited)


def run() -> None:
    """Measure and report."""
    figures: list[Figure] = []
    with StateCluster(node_count=1) as cluster:
        keys = list(keys_of(_KEY_COUNT))
        cluster.write(keys, _VALUE, rows_per_batch=_ROWS_PER_BATCH)
        reader = _Reader(cluster.url, keys)
        thread = threading.Thread(target=reader.run)
        thread.start()
        try:
            began = time.perf_counter()
            time.sleep(_STEADY_SECONDS)  # noqa: TID251 (a steady state is time)
            cluster.add_node()
            before = time.perf_counter()
            size_bytes = _move(cluster.url)
            moved = time.perf_counter()
            time.sleep(_STEADY_SECONDS)  # noqa: TID251 (a steady state is time)
            ended = time.perf_counter()
        finally:
            reader.stopping.set()
            thread.join()
    figures += [
        reader.between("before", began, before),
        reader.between("while rows move", before, moved),
        reader.between("after", moved, ended),
        figure("questions that failed", "", [float(len(reader.errors))]),
        figure(f"half of {_KEY_COUNT:,} keys moved", "s", [moved - before]),
        figure("moved", "MB/s", [size_bytes / 1e6 / (moved - before)]),
        figure("floor: LMDB scan", "MB/s", _scan()),
        figure("floor: ROUTER to DEALER", "MB/s", _stream(size_bytes)),
    ]
    report("state_move", figures)
    if reader.errors:
        print(f"the first that failed: {reader.errors[0]}")


def _move(url: str) -> int:
    """Rescale to two nodes, wait until that is done; return how much was copied."""
    size_bytes = 0

    def look(_: object, figures: MoveFigures) -> None:
        nonlocal size_bytes
        size_bytes = max(size_bytes, figures.size_bytes)

    with StateOperations(HAConfig(url=url)) as operations:
        begun = operations.rescale(JOB, node_count=2)
        operations.wait_until_rescaled(
            JOB, timeout_seconds=_TIMEOUT_SECONDS, since=begun, on_progress=look
        )
    return size_bytes


def _scan() -> list[float]:
    """Return how fast half of the keys are read, in rounds."""
    with (
        tempfile.TemporaryDirectory() as directory,
        StateStore.open(directory, node_id="n", is_durable=False) as store,
    ):
        _fill(store)
        values = []
        for _ in range(5):
            began = time.perf_counter()
            size_bytes = 0
            with store.copy_reader(JOB, range(_GROUP_COUNT)) as reader:
                for page in reader.pages(_PAGE_SIZE_BYTES):
                    size_bytes += sum(map(len, page.keys)) + sum(map(len, page.values))
            values.append(size_bytes / 1e6 / (time.perf_counter() - began))
    return values


def _fill(store: StateStore) -> None:
    """Put half of the keys into a store."""
    keys = sorted(
        (number % _GROUP_COUNT).to_bytes(2, "big") + b"\1" + key.encode() + b"\0\0"
        for number, key in enumerate(keys_of(_KEY_COUNT // 2))
    )
    chunks = []
    for index, first in enumerate(range(0, len(keys), _ROWS_PER_BATCH)):
        part = keys[first : first + _ROWS_PER_BATCH]
        rows = StagedRows(
            state_number=1, keys=part, values=[_VALUE.encode()] * len(part)
        )
        chunk = StageChunk(
            request_id=1,
            job_id=JOB,
            query_id="bench",
            writer_epoch=1,
            batch_id=0,
            stage_id=bytes(16),
            chunk_index=index,
            assignment_version=1,
        )
        chunks.append((chunk, encode_payload(rows)))
    store.stage(chunks, 1)
    state = BatchState(
        state_number=1, kind="value", has_ttl=False, generation=1, is_replaced=False
    )
    stage = StageRecord(
        stage_id=bytes(16), chunk_counts={"n": len(chunks)}, row_count=len(keys)
    )
    store.apply(
        JOB,
        BatchDecided(
            sequence=1,
            query_id="bench",
            writer_epoch=1,
            batch_id=0,
            assignment_version=1,
            decided_at_us=0,
            states=(state,),
            stages=(stage,),
        ),
    )


def _stream(size_bytes: int) -> list[float]:
    """Return how fast so many bytes go over a bare socket, in rounds."""
    page, values = bytes(_PAGE_SIZE_BYTES), []
    page_count = max(1, size_bytes // _PAGE_SIZE_BYTES)
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        context.socket(zmq.DEALER) as dealer,
    ):
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"")
        peer, _ = router.recv_multipart()

        def send() -> None:
            for _ in range(page_count):
                router.send_multipart([peer, page])

        for _ in range(5):
            thread = threading.Thread(target=send)
            began = time.perf_counter()
            thread.start()
            for _ in range(page_count):
                dealer.recv()
            seconds = time.perf_counter() - began
            thread.join()
            values.append(page_count * _PAGE_SIZE_BYTES / 1e6 / seconds)
    return values
