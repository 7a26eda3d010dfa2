"""
What one caller's large reads cost the others, and a node (rules B1, B2).

Workload: one node, one proxy, each a process of its own over loopback TCP.  One client
asks the node for one small value every 2 ms, then another one asks the proxy for it;
beside them a process asks, as fast as it can, for one value of 15 MB, or for 15 values
of 1 MB (four questions at once), for 10,000 small values at once (two), or scans the
small ones (ten scans at once).  Rounds without and with the other process alternate.

The greedy process needs processors, too, and takes them from all on the machine.  So
the same small questions are also put, beside the same process, to a *bystander*:
another cluster, which answers no other question.  What is lost there is lost to the
machine; what is lost beyond it is lost to the node that both callers share.

Bad: a p99 beside it above twice the bystander's; more than 64 MiB of anonymous memory
of the node above its rest.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._harness import Figure, figure, report, sized
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from nameservice import NameServiceError
from queryablestate import QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_SMALL_COUNT: Final = sized(200_000, tiny=100)
_LARGE: Final = [f"large-{number}" for number in range(15)]
_LARGE_SIZE_BYTES: Final = sized(1_000_000, tiny=1_000)
_LARGEST: Final = "z-largest"  # scans end before it
_LARGEST_SIZE_BYTES: Final = sized(15_000_000, tiny=15_000)
_ROUND_COUNT: Final = sized(3, tiny=1)
_ROUND_SECONDS: Final = sized(4.0, tiny=0.2)
_WARM_UP_SECONDS: Final = sized(1.0, tiny=0.1)
_PAUSE_SECONDS: Final = 0.002
_SAMPLE_SECONDS: Final = 0.01
_FIRST_SECONDS: Final = 60.0
_MANY: Final = sized(10_000, tiny=10)
_THREADS: Final = sized(
    {"15 MB": 4, "15 times 1 MB": 4, "10,000 keys": 2, "scans": 10},
    tiny={"15 MB": 1, "15 times 1 MB": 1, "10,000 keys": 1, "scans": 1},
)
_WAYS: Final = {"direct": True, "by proxy": False}


def run() -> None:
    """Measure and report."""
    figures: list[Figure] = []
    with StateCluster(node_count=1) as cluster, StateCluster(node_count=1) as other:
        keys = list(keys_of(_SMALL_COUNT))
        cluster.write(keys, "v" * 100, rows_per_batch=50_000)
        large = "l" * _LARGE_SIZE_BYTES
        cluster.write(_LARGE, large, rows_per_batch=5, first_batch_id=100)
        largest = "l" * _LARGEST_SIZE_BYTES
        cluster.write([_LARGEST], largest, rows_per_batch=1, first_batch_id=200)
        other.write(keys, "v" * 100, rows_per_batch=50_000)
        with ExitStack() as resources:
            clients, bystanders = (
                {
                    way: resources.enter_context(
                        QueryableStateClient(each.url, direct=is_direct)
                    )
                    for way, is_direct in _WAYS.items()
                }
                for each in (cluster, other)
            )
            for client in (*clients.values(), *bystanders.values()):
                _measure(client, keys[0], _WARM_UP_SECONDS)
            for manner in _THREADS:
                figures += _beside(cluster, clients, bystanders, keys, manner)
    report("greedy_reads", figures)


def _beside(
    cluster: StateCluster,
    clients: Mapping[str, QueryableStateClient],
    bystanders: Mapping[str, QueryableStateClient],
    keys: Sequence[str],
    manner: str,
) -> list[Figure]:
    """Return what is measured alone, and beside a greedy process."""
    alone: dict[str, list[float]] = {way: [] for way in _WAYS}
    beside: dict[str, list[float]] = {way: [] for way in _WAYS}
    elsewhere: dict[str, list[float]] = {way: [] for way in _WAYS}
    pid = cluster.node_pids[0]
    rest = _anonymous_mib(pid)
    peaks: list[float] = []
    for _ in range(_ROUND_COUNT):
        for way, client in clients.items():
            alone[way] += _measure(client, keys[0], _ROUND_SECONDS)
        with _greedy(cluster.url, manner), _watched(pid, peaks):
            for way, client in clients.items():
                beside[way] += _measure(client, keys[0], _ROUND_SECONDS)
                bystander = bystanders[way]
                elsewhere[way] += _measure(bystander, keys[0], _ROUND_SECONDS)
    figures = []
    for way in _WAYS:
        before = figure(f"get {way}, alone ({manner})", "us", alone[way])
        after = figure(f"get {way}, beside {manner}", "us", beside[way])
        floor = figure(f"the bystander's {way}, {manner}", "us", elsewhere[way])
        by_rest, by_floor = after.p99 / before.p99, after.p99 / floor.p99
        figures += [
            before,
            after,
            floor,
            figure(f"p99 {way}, beside {manner} by alone", "x", [by_rest]),
            figure(f"p99 {way}, beside {manner} by bystander's", "x", [by_floor]),
        ]
    growth = max(peaks) - rest
    return [
        *figures,
        figure(f"RssAnon of the node above rest, {manner}", "MiB", [growth]),
    ]


def _measure(client: QueryableStateClient, key: str, seconds: float) -> list[float]:
    """Ask at a steady pace for so long; return how long each answer took, in us."""
    pause = threading.Event()  # is never set: it waits
    durations = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter_ns()
        client.get(JOB, STATE, key)
        durations.append((time.perf_counter_ns() - began) / 1_000)
        pause.wait(_PAUSE_SECONDS)
    return durations


@contextmanager
def _watched(pid: int, peaks: list[float]) -> Iterator[None]:
    """Add the greatest anonymous memory of a process to *peaks*."""
    done = threading.Event()
    peak = 0.0

    def watch() -> None:
        nonlocal peak
        while not done.wait(_SAMPLE_SECONDS):
            peak = max(peak, _anonymous_mib(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(peak)


@contextmanager
def _greedy(url: str, manner: str) -> Iterator[None]:
    """Have another process ask for much, as long as the block runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_greedy_reads", url, manner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()
            print("   ", manner, process.stdout.readline().strip())


def _ask_for_much(url: str, manner: str) -> None:
    """Ask until the input ends."""
    is_over = threading.Event()
    begun = threading.Semaphore(0)
    told = {"answered": 0}
    many = list(keys_of(_MANY))

    def ask_once(client: QueryableStateClient) -> None:
        try:
            match manner:
                case "scans":
                    for _ in client.scan(JOB, STATE, limit=20_000):
                        pass
                case "10,000 keys":
                    client.get_many(JOB, STATE, many)
                case "15 MB":
                    client.get(JOB, STATE, _LARGEST)
                case _:
                    client.get_many(JOB, STATE, _LARGE)
            told["answered"] += 1
        except NameServiceError as error:
            name = type(error).__name__
            told[name] = told.get(name, 0) + 1

    def ask() -> None:
        with QueryableStateClient(url) as client:
            ask_once(client)
            begun.release()
            while not is_over.is_set():
                ask_once(client)

    threads = [
        threading.Thread(target=ask, daemon=True) for _ in range(_THREADS[manner])
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        # What only the first answers take is not measured.
        assert begun.acquire(timeout=_FIRST_SECONDS), "a first answer is late"
    print("ready", flush=True)
    sys.stdin.read()
    is_over.set()
    for thread in threads:
        thread.join()
    print(told, flush=True)


def _anonymous_mib(pid: int) -> float:
    """Return the anonymous memory of a process: what no file stands behind."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError(f"process {pid} tells no RssAnon")


if __name__ == "__main__":
    _ask_for_much(*sys.argv[1:])
