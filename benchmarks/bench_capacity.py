"""
How much memory and disk each thing takes that a cluster keeps.

Workload: each process is one of its own, as in production, on loopback.  Some things
of a kind are made, then more of them; what a process has grown by in between is divided
by how many more there are.  So what it takes when it is idle does not count.

=================  ===================================================================
session            connected clients of a LeaderServer that ask nothing
contender          elections of one client, a component each, that lead and confirmed
subscription       retrievers of one client, a component each
stored value       of 1 KiB in a leader store, in memory and with a data directory
row                a key of 13 characters with a value of 10, 100 and 1,000, one node
job, key group     jobs with one state and one row; 128 key groups, and 4,096
reader             clients of a proxy that have asked for one key
=================  ===================================================================

Units: bytes.  Memory is what belongs to a process alone (``RssAnon``): pages of a
node's files that the system keeps in memory do not count, since it takes them back.
Disk is pages in use; a file keeps its greatest size.

Bad: more than 2.2 times the disk of key, value and 24 bytes for a row; more memory of a
LeaderServer for a thing than its memory plan counts (`MemoryPlan`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import lmdb

from benchmarks._harness import Figure, figure, report, sized, wait_until
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from haservices import campaign, open_ha_services
from nameservice import QUERY_PROXY
from queryablestate import QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from election import LeaderElection, LeaderSession
    from haservices import HAServices

_SESSION_COUNTS: Final = sized((40, 140), tiny=(1, 2))
_CONTENDER_COUNTS: Final = sized((200, 900), tiny=(1, 2))
_SUBSCRIPTION_COUNTS: Final = sized((500, 5_500), tiny=(1, 2))
_VALUE_COUNTS: Final = sized((1_500, 4_500), tiny=(1, 2))
_VALUE_SIZE_BYTES: Final = 1_024
_ROW_COUNTS: Final = sized((20_000, 120_000), tiny=(10, 20))
_ROW_VALUE_SIZES: Final = sized((10, 100, 1_000), tiny=(10,))
_ROWS_PER_BATCH: Final = sized(20_000, tiny=10)
_JOB_COUNTS: Final = sized((5, 25), tiny=(1, 2))
_FEW_GROUPS: Final = sized(128, tiny=2)
_MANY_GROUPS: Final = sized(4_096, tiny=4)
_READER_COUNTS: Final = sized((20, 100), tiny=(1, 2))
_TIMEOUT_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = sized(1.0, tiny=0.01)


def run() -> None:
    """Measure and report."""
    figures = [
        *_sessions(),
        *_subscriptions(),
        *_contenders(),
        *_stored_values(),
        *_rows(),
        *_jobs_and_readers(),
    ]
    report("capacity", figures)


# -- a LeaderServer --------------------------------------------------------------------


@contextmanager
def _server(*options: str) -> Iterator[tuple[str, int]]:
    """Run a LeaderServer; yield its URL and its process."""
    arguments = ["server", "--bind", "tcp://127.0.0.1:0", "--log-level", "warning"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lodestar", *arguments, *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait(_TIMEOUT_SECONDS)
        process.stdout.close()


def _sessions() -> Iterator[Figure]:
    with _server() as (url, pid), ExitStack() as opened:
        yield _one("LeaderServer, idle: memory", _memory_bytes(pid))

        def open_until(count: int) -> None:
            while len(clients) < count:
                clients.append(opened.enter_context(open_ha_services(url)))

        clients: list[HAServices] = []
        (ours, server) = _growth(
            open_until, _SESSION_COUNTS, lambda: _memory_bytes("self"), pid=pid
        )
        yield _one("session: memory of the LeaderServer", server)
        yield _one("session: memory of the client", ours)


class _Contender:
    """Confirms what it is granted."""

    def __init__(self, election: LeaderElection) -> None:
        self._election = election

    def grant_leadership(self, session: LeaderSession) -> None:
        self._election.confirm_leadership(session.leader_session_id, "127.0.0.1:8000")

    def revoke_leadership(self) -> None:
        """Do nothing."""

    def handle_error(self, error: Exception) -> None:
        """Do nothing: what is missing is missed at the end."""


def _contenders() -> Iterator[Figure]:
    with _server() as (url, pid), open_ha_services(url) as ha, ExitStack() as opened:

        def contend_until(count: int) -> None:
            for number in range(made[0], count):
                election = ha.get_leader_election(f"job-{number}")
                opened.enter_context(election)
                election.start(_Contender(election))
            made[0] = count
            wait_until(lambda: _figure(ha, "leaders") == count)

        made = [0]
        (ours, server) = _growth(
            contend_until, _CONTENDER_COUNTS, lambda: _memory_bytes("self"), pid=pid
        )
        yield _one("contender: memory of the LeaderServer", server)
        yield _one("contender: memory of the client", ours)


def _subscriptions() -> Iterator[Figure]:
    with _server() as (url, pid), open_ha_services(url) as ha, ExitStack() as opened:

        def subscribe_until(count: int) -> None:
            for number in range(made[0], count):
                retriever = ha.get_leader_retriever(f"job-{number}")
                opened.enter_context(retriever)
            made[0] = count
            wait_until(lambda: _figure(ha, "subscriptions") == count)

        made = [0]
        (ours, server) = _growth(
            subscribe_until,
            _SUBSCRIPTION_COUNTS,
            lambda: _memory_bytes("self"),
            pid=pid,
        )
        yield _one("subscription: memory of the LeaderServer", server)
        yield _one("subscription: memory of the client", ours)


def _stored_values() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        _, memory = _stored_value(directory)
        yield _one("value of 1 KiB: memory, no data directory", memory)
        disk, memory = _stored_value(directory, "--data-dir", directory)
        yield _one("value of 1 KiB: disk", disk)
        yield _one("value of 1 KiB: memory beside the disk", memory)


def _stored_value(directory: str, *options: str) -> tuple[float, float]:
    """Return what a value takes of *directory*, and of the LeaderServer's memory."""
    value = b"v" * _VALUE_SIZE_BYTES
    with (
        _server(*options) as (url, pid),
        open_ha_services(url) as ha,
        campaign(ha, "job", "127.0.0.1:8000") as leadership,
    ):
        store = ha.get_leader_store("job")

        def put_until(count: int) -> None:
            for number in range(made[0], count):
                store.put(f"{number:06d}", value, session=leadership.session)
            made[0] = count

        made = [0]
        return _growth(
            put_until, _VALUE_COUNTS, lambda: _size_bytes(directory), pid=pid
        )


# -- queryable state -------------------------------------------------------------------


def _rows() -> Iterator[Figure]:
    for size in _ROW_VALUE_SIZES:
        with StateCluster(node_count=1) as cluster:
            if size == _ROW_VALUE_SIZES[0]:
                yield _one("node, idle: memory", _memory_bytes(cluster.node_pids[0]))
                yield _one("proxy, idle: memory", _memory_bytes(cluster.proxy_pid))
            yield from _rows_of(cluster, size)


def _rows_of(cluster: StateCluster, size: int) -> Iterator[Figure]:
    keys = list(keys_of(_ROW_COUNTS[-1]))
    directory = cluster.node_directory(0)

    def write_until(count: int) -> None:
        cluster.write(
            keys[batches[0] * _ROWS_PER_BATCH : count],
            "v" * size,
            rows_per_batch=_ROWS_PER_BATCH,
            first_batch_id=batches[0],
        )
        batches[0] = count // _ROWS_PER_BATCH

    batches = [0]
    disk, _ = _growth(
        write_until,
        _ROW_COUNTS,
        lambda: _pages_bytes(directory),
        pid=cluster.node_pids[0],
    )
    yield _one(f"row, value of {size:,}: disk, pages in use", disk)
    file_bytes = _size_bytes(directory) / _ROW_COUNTS[-1]
    yield _one(f"row, value of {size:,}: disk, file", file_bytes)
    memory = _memory_bytes(cluster.node_pids[0])
    yield _one(f"node with {_ROW_COUNTS[-1]:,} of these: memory", memory)


def _jobs_and_readers() -> Iterator[Figure]:
    for groups in (_FEW_GROUPS, _MANY_GROUPS):
        with StateCluster(node_count=1) as cluster:
            yield from _jobs(cluster, groups)
            if groups == _FEW_GROUPS:
                yield from _readers(cluster)


def _jobs(cluster: StateCluster, groups: int) -> Iterator[Figure]:
    with open_ha_services(cluster.url) as ha:
        store = ha.get_leader_store(QUERY_PROXY)

        def stored_bytes() -> float:
            found = (store.get(path) for path in store.list())
            return float(sum(len(one.value) for one in found if one is not None))

        def begin_until(count: int) -> None:
            for number in range(made[0], count):
                cluster.write(
                    ["key"],
                    "v",
                    rows_per_batch=1,
                    job_id=f"{JOB}-{number}",
                    max_parallelism=groups,
                )
            made[0] = count

        made = [0]
        kept, memory = _growth(
            begin_until, _JOB_COUNTS, stored_bytes, pid=cluster.proxy_pid
        )
        yield _one(f"job with {groups:,} key groups: leader store", kept)
        yield _one(f"job with {groups:,} key groups: memory of the proxy", memory)


def _readers(cluster: StateCluster) -> Iterator[Figure]:
    with ExitStack() as opened:

        def ask_until(count: int) -> None:
            while len(clients) < count:
                client = opened.enter_context(QueryableStateClient(cluster.url))
                assert client.get(f"{JOB}-0", STATE, "key") is not None
                clients.append(client)

        clients: list[QueryableStateClient] = []
        ours, proxy = _growth(
            ask_until,
            _READER_COUNTS,
            lambda: _memory_bytes("self"),
            pid=cluster.proxy_pid,
        )
        yield _one("reader: memory of the proxy", proxy)
        yield _one("reader: memory of the client", ours)


# -- measuring -------------------------------------------------------------------------


def _one(name: str, value: float) -> Figure:
    return figure(name, "bytes", [value])


def _growth(
    make_until: Callable[[int], None],
    counts: tuple[int, int],
    measure: Callable[[], float],
    *,
    pid: int,
) -> tuple[float, float]:
    """
    Return what one more thing takes: what *measure* tells, and memory of *pid*.

    Args:
        make_until: Takes a number, and makes things until there are as many.
        counts: How many things first, and then.
        measure: Tells how much there is of something.
        pid: The process.
    """
    first, last = counts
    found = []
    for count in counts:
        make_until(count)
        time.sleep(_SETTLE_SECONDS)  # noqa: TID251 (nothing tells that memory is at rest)
        found.append((measure(), _memory_bytes(pid)))
    (measured, memory), (measured_then, memory_then) = found
    more = last - first
    return (measured_then - measured) / more, (memory_then - memory) / more


def _memory_bytes(pid: int | str) -> float:
    """Return what belongs to a process alone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return float(value.split()[0]) * 1_024
    raise AssertionError(pid)


def _size_bytes(directory: str | Path) -> float:
    """Return what the files in *directory* take of the disk."""
    files = [path.stat() for path in Path(directory).rglob("*") if path.is_file()]
    return float(sum(one.st_blocks * 512 for one in files))


def _pages_bytes(directory: Path) -> float:
    """Return what the pages in use take of a node's data directory."""
    size_bytes = 0
    for file in directory.rglob("data.mdb"):
        with lmdb.open(str(file.parent), readonly=True, max_dbs=64) as environment:
            with environment.begin() as transaction:
                names = list(transaction.cursor().iternext(values=False))
            for name in names:
                database = environment.open_db(name, create=False)
                with environment.begin() as transaction:
                    found = transaction.stat(database)
                pages = found["branch_pages"] + found["leaf_pages"]
                size_bytes += (pages + found["overflow_pages"]) * found["psize"]
    return float(size_bytes)


def _figure(ha: HAServices, name: str) -> int:
    return int(ha.operations.status()[name])
