"""
How fast key groups move, there and back, and what readers notice of it.

Workload: one million keys of 100 bytes on one node, durably, in 128 key groups; a
second node joins.  Half of the key groups move to it, and back, three times.  Then,
with two nodes, each gets a copy of what the other one has (``replicas=2``), three
times.  A client asks for one key after the other all the while, on schedule, 200 a
second; what it waits is counted from when it was to ask.  Name service, proxy and nodes
are processes of their own over loopback TCP.  How much was moved is what nodes say that
they have fetched: keys and values as stored, and some bytes for each row.

Floors, with as many rows as were moved: LMDB scanned by one thread, as a source does
it; pages of 1 MiB from a ROUTER to a DEALER, as a source sends them; and sorted rows
put into a fresh LMDB, 8 MiB in a transaction, each waiting for the disk, as a target
does it.

Bad: a question that fails; a p99 while rows move above 50 ms; less than a third of the
bytes per second of the slowest floor.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Final, final

import lmdb
import zmq
from attrs import define, field, frozen

from benchmarks._harness import Figure, figure, report, sized, wait_until
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from haservices import HAConfig
from queryablestate import QueryableStateClient, StateOperations
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import encode_payload
from queryablestate.wire.records import BatchDecided, BatchState, StageRecord
from queryablestate.wire.staging_messages import StageChunk, StagedRows


if TYPE_CHECKING:
    from collections.abc import Sequence


_KEY_COUNT: Final = sized(1_000_000, tiny=1_000)
_ROWS_PER_BATCH: Final = 50_000
_VALUE: Final = "v" * 100
_STEADY_SECONDS: Final = sized(5.0, tiny=0.2)
_ROUND_COUNT: Final = sized(3, tiny=1)
_FLOOR_ROUND_COUNT: Final = sized(5, tiny=1)
_LOOK_PAUSE_SECONDS: Final = 0.005
_ASK_PAUSE_SECONDS: Final = 0.005
_GROUP_COUNT: Final = 64
_PAGE_SIZE_BYTES: Final = 1 << 20
_PAGES_PER_COMMIT: Final = 8
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

    def during(self, name: str, spans: Sequence[tuple[float, float]]) -> list[Figure]:
        """Return how long questions waited that were due then; nothing if none was."""
        waited = [
            1_000 * long
            for due, long in self.waited
            if any(begin <= due < end for begin, end in spans)
        ]
        return [figure(f"get, {name}", "ms", waited)] if waited else []


@final
@frozen(kw_only=True)
class _Moved:
    """One move: when it was, and how much was copied for it."""

    began: float
    ended: float
    row_count: int
    size_bytes: int

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return self.ended - self.began

    @property
    def megabytes_per_second(self) -> float:
        """Return how fast it was."""
        return self.size_bytes / 1e6 / self.seconds


def run() -> None:
    """Measure and report."""
    moved: list[_Moved] = []
    replicated: list[_Moved] = []
    with StateCluster(node_count=1, has_node_logs=True) as cluster:
        keys = list(keys_of(_KEY_COUNT))
        cluster.write(keys, _VALUE, rows_per_batch=_ROWS_PER_BATCH)
        reader = _Reader(cluster.url, keys)
        thread = threading.Thread(target=reader.run)
        thread.start()
        try:
            began = time.perf_counter()
            time.sleep(_STEADY_SECONDS)  # noqa: TID251 (a steady state is time)
            before = time.perf_counter()
            cluster.add_node()
            for _ in range(_ROUND_COUNT):
                moved.append(_move(cluster, node_count=2))
                moved.append(_move(cluster, node_count=1))
            _move(cluster, node_count=2)
            for _ in range(_ROUND_COUNT):
                replicated.append(_move(cluster, replica_count=2))
                _move(cluster, replica_count=1)
            ended = time.perf_counter()
            time.sleep(_STEADY_SECONDS)  # noqa: TID251 (a steady state is time)
            after = time.perf_counter()
        finally:
            reader.stopping.set()
            thread.join()
    row_count = sorted(one.row_count for one in moved)[len(moved) // 2]
    size_bytes = sorted(one.size_bytes for one in moved)[len(moved) // 2]
    put = _put(row_count)
    rate = figure("moved", "MB/s", [one.megabytes_per_second for one in moved])
    slowest = figure("floor: LMDB put, durable", "MB/s", put)
    figures = [
        *reader.during("before", [(began, before)]),
        *reader.during("while rows move", [(one.began, one.ended) for one in moved]),
        *reader.during(
            "while copies are made", [(one.began, one.ended) for one in replicated]
        ),
        *reader.during("after", [(ended, after)]),
        figure("questions that failed", "", [float(len(reader.errors))]),
        figure("rows in a move", "", [float(one.row_count) for one in moved]),
        figure("half of the keys moved", "s", [one.seconds for one in moved]),
        rate,
        figure("a second copy of all keys", "s", [one.seconds for one in replicated]),
        figure("copied", "MB/s", [one.megabytes_per_second for one in replicated]),
        figure("floor: LMDB scan", "MB/s", _scan()),
        figure("floor: ROUTER to DEALER", "MB/s", _stream(size_bytes)),
        slowest,
        figure("moved by LMDB put", "x", [rate.median / slowest.median]),
    ]
    report("state_move", figures)
    if reader.errors:
        print(f"the first that failed: {reader.errors[0]}")


def _move(
    cluster: StateCluster,
    *,
    node_count: int | None = None,
    replica_count: int | None = None,
) -> _Moved:
    """Rescale, and wait until all rows are where they are to be."""
    rows_before, size_before_bytes = cluster.copied()
    with StateOperations(HAConfig(url=cluster.url)) as operations:
        began = time.perf_counter()
        operations.rescale(JOB, node_count=node_count, replica_count=replica_count)
        # `wait_until_rescaled` looks less and less often, which would be measured.
        wait_until(
            lambda: all(one.is_done for one in operations.rescalings(JOB)),
            pause_seconds=_LOOK_PAUSE_SECONDS,
        )
        ended = time.perf_counter()
    row_count, size_bytes = cluster.copied()
    return _Moved(
        began=began,
        ended=ended,
        row_count=row_count - rows_before,
        size_bytes=size_bytes - size_before_bytes,
    )


def _scan() -> list[float]:
    """Return how fast half of the keys are read, in rounds."""
    with (
        tempfile.TemporaryDirectory() as directory,
        StateStore.open(directory, node_id="n", is_durable=False) as store,
    ):
        _fill(store)
        values = []
        for _ in range(_FLOOR_ROUND_COUNT):
            began = time.perf_counter()
            size_bytes = 0
            with store.copy_reader(JOB, range(_GROUP_COUNT)) as reader:
                for page in reader.pages(_PAGE_SIZE_BYTES):
                    size_bytes += sum(map(len, page.keys)) + sum(map(len, page.values))
            values.append(size_bytes / 1e6 / (time.perf_counter() - began))
    return values


def _put(row_count: int) -> list[float]:
    """Return how fast *row_count* rows are put into a fresh environment, in rounds."""
    value = _VALUE.encode()
    rows = [(key, value) for key in _row_keys(row_count)]
    size_bytes = sum(len(key) + len(value) for key, _ in rows)
    rows_per_commit = _PAGES_PER_COMMIT * _PAGE_SIZE_BYTES * row_count // size_bytes
    values = []
    for _ in range(_FLOOR_ROUND_COUNT):
        with tempfile.TemporaryDirectory() as directory:
            environment = lmdb.open(directory, map_size=1 << 30)
            began = time.perf_counter()
            for first in range(0, row_count, rows_per_commit):
                part = rows[first : first + rows_per_commit]
                with environment.begin(write=True) as transaction:
                    transaction.cursor().putmulti(part, append=True)
            seconds = time.perf_counter() - began
            environment.close()
        values.append(size_bytes / 1e6 / seconds)
    return values


def _row_keys(count: int) -> list[bytes]:
    """Return *count* sorted row keys."""
    return sorted(
        (number % _GROUP_COUNT).to_bytes(2, "big") + b"\1" + key.encode() + b"\0\0"
        for number, key in enumerate(keys_of(count))
    )


def _fill(store: StateStore) -> None:
    """Put half of the keys into a store."""
    keys = _row_keys(_KEY_COUNT // 2)
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
    """Return how fast *size_bytes* go over a bare socket, in rounds."""
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

        for _ in range(_FLOOR_ROUND_COUNT):
            thread = threading.Thread(target=send)
            began = time.perf_counter()
            thread.start()
            for _ in range(page_count):
                dealer.recv()
            seconds = time.perf_counter() - began
            thread.join()
            values.append(page_count * _PAGE_SIZE_BYTES / 1e6 / seconds)
    return values
