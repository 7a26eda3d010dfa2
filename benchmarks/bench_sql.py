"""
How fast `lodestar sql` answers psycopg, next to a ``get`` of our own client.

Workload: one node, one proxy and one server of SQL, each a process of its own over
loopback; 150,000 keys in each of two states, values of 20 characters.

*   A prepared ``SELECT … WHERE key = $1``, one at a time.  Bad: a median above 1.5 ms
    where that of ``get`` is 0.3.
*   The same while another session joins both states again and again.  Bad: a median
    above three times that.
*   A join of both states, 300,000 rows in all.  Bad: a median above 2 s.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from benchmarks._harness import Figure, figure, report, sized
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from queryablestate import QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_OTHER_JOB: Final = "other"
_KEY_COUNT: Final = sized(150_000, tiny=20)
_POINT_COUNT: Final = sized(2_000, tiny=2)
_WARM_UP_COUNT: Final = sized(100, tiny=1)
_JOIN_COUNT: Final = sized(5, tiny=1)
_VALUE: Final = "v" * 20
_POINT: Final = f"SELECT value FROM {JOB}.{STATE} WHERE key = %s"
_JOIN: Final = (
    f"SELECT count(*), min(a.value) FROM {JOB}.{STATE} a "
    f"JOIN {_OTHER_JOB}.{STATE} b ON a.key = b.key"
)


def run() -> None:
    """Measure and report."""
    import psycopg  # noqa: PLC0415 (of this benchmark alone)

    connect: Any = psycopg.connect
    keys = list(keys_of(_KEY_COUNT))
    figures: list[Figure] = []
    with StateCluster(node_count=1) as cluster:
        for job_id in (JOB, _OTHER_JOB):
            cluster.write(keys, _VALUE, rows_per_batch=50_000, job_id=job_id)
        with QueryableStateClient(cluster.url) as client:
            values = _timed(keys, lambda key: client.get(JOB, STATE, key))
            figures.append(figure("get", "ms", values))
        with _server(cluster.url) as dsn, connect(dsn, autocommit=True) as connection:

            def point(key: str) -> Any:
                return connection.execute(_POINT, [key], prepare=True).fetchone()

            figures.append(figure("point SELECT", "ms", _timed(keys, point)))
            joins = []
            for _ in range(_JOIN_COUNT + 1):
                began = time.perf_counter()
                assert connection.execute(_JOIN).fetchone()[0] == _KEY_COUNT
                joins.append((time.perf_counter() - began) * 1e3)
            row_count = 2 * _KEY_COUNT
            figures.append(figure(f"join over {row_count:,} rows", "ms", joins[1:]))
            with _joining(connect, dsn):
                figures.append(
                    figure("point SELECT beside joins", "ms", _timed(keys, point))
                )
    report("sql", figures)


def _timed(keys: Sequence[str], ask: Any) -> list[float]:
    """Return how long each question took, in milliseconds."""
    found = []
    for number in range(-_WARM_UP_COUNT, _POINT_COUNT):
        key = keys[number * 71 % len(keys)]
        began = time.perf_counter()
        assert ask(key)
        if number >= 0:
            found.append((time.perf_counter() - began) * 1e3)
    return found


@contextmanager
def _server(url: str) -> Iterator[str]:
    """Run a server of SQL; yield what psycopg connects with."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "lodestar", "sql", "--url", url),
            *("--bind", "127.0.0.1:0", "--log-level", "warning"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        host, _, port = address.rpartition(":")
        yield f"host={host} port={port} user=bench dbname={JOB}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def _joining(connect: Any, dsn: str) -> Iterator[None]:
    """Have another session join all the while."""
    is_over = threading.Event()

    def join() -> None:
        with connect(dsn, autocommit=True) as other:
            while not is_over.is_set():
                other.execute(_JOIN).fetchone()

    thread = threading.Thread(target=join)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
