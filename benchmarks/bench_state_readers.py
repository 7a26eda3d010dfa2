"""
How the rate of reads grows with clients and reader processes, and what saturates.

Workload: one node with 10,000 keys and values of 100 characters, with 0, 1 and 2 reader
processes (``lodestar node --readers``), and 1, 2 and 4 client processes.  Each of them
begins at once, and asks for a second in each round; the three nodes take turns.

*   ``get``: an asyncio program with 64 outstanding.  The client has more to do than the
    node.  The floor is an echo of bare pyzmq that is asked by as many processes.
*   ``count`` of all keys, one at a time: the node has nearly all to do.

Units: answers a second of all clients together, and processors that the node, its
readers, the clients and the proxy were busy with meanwhile: 1 is a whole one.  Where
these add up to what the machine has, the machine saturates, and more processes gain
nothing.  Bad: with a processor to spare, two readers below 1.5 times one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from benchmarks._harness import Figure, figure, report, sized
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from queryablestate import AsyncQueryableStateClient, QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_KEY_COUNT: Final = sized(10_000, tiny=20)
_OUTSTANDING_COUNT: Final = sized(64, tiny=2)
_CLIENT_COUNTS: Final = sized((1, 2, 4), tiny=(1,))
_READER_COUNTS: Final = sized((0, 1, 2), tiny=(0, 1))
_VERBS: Final = ("get", "count")
_ROUND_COUNT: Final = sized(5, tiny=1)
_ROUND_SECONDS: Final = sized(1.0, tiny=0.1)
_WARM_UP_SECONDS: Final = sized(0.5, tiny=0.05)
_VALUE: Final = "v" * 100
_ENVELOPE: Final = b"e" * 160
_PAYLOAD_SIZE_BYTES: Final = 110
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def run() -> None:
    """Measure and report."""
    rates: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    with ExitStack() as stack:
        keys = list(keys_of(_KEY_COUNT))
        clusters = {}
        for reader_count in _READER_COUNTS:
            cluster = StateCluster(node_count=1, reader_count=reader_count)
            clusters[reader_count] = stack.enter_context(cluster)
            cluster.write(keys, _VALUE, rows_per_batch=_KEY_COUNT)
        echo_port = stack.enter_context(_echo())
        for client_count, _ in itertools.product(_CLIENT_COUNTS, range(_ROUND_COUNT)):
            name = f"echo, bare, {client_count} clients"
            rate, _ = _measure("floor", str(echo_port), client_count, {})
            rates.setdefault(name, []).append(rate)
            for verb, (reader_count, cluster) in itertools.product(
                _VERBS, clusters.items()
            ):
                name = f"{verb}, {reader_count} readers, {client_count} clients"
                pids = _processes_of(cluster)
                rate, used = _measure(verb, cluster.url, client_count, pids)
                rates.setdefault(name, []).append(rate)
                for who, processors in used.items():
                    busy.setdefault(f"{name}: {who}", []).append(processors)
    report(
        "state_readers",
        [
            *(figure(name, "answers/s", values) for name, values in rates.items()),
            *_ratios(rates),
            *(figure(name, "processors", values) for name, values in busy.items()),
        ],
    )


def _ratios(rates: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return how much more readers answer than the node by itself does, by rounds."""
    return [
        figure(
            f"{verb}, {reader_count} readers by none, {client_count} clients",
            "x",
            [
                one / other
                for one, other in zip(
                    rates[f"{verb}, {reader_count} readers, {client_count} clients"],
                    rates[f"{verb}, 0 readers, {client_count} clients"],
                    strict=True,
                )
            ],
        )
        for verb in _VERBS
        for client_count in _CLIENT_COUNTS
        for reader_count in _READER_COUNTS
        if reader_count
    ]


def _processes_of(cluster: StateCluster) -> dict[str, Sequence[int]]:
    """Return the processes of a cluster, by what they are."""
    (node,) = cluster.node_pids
    children: list[int] = []
    for path in Path(f"/proc/{node}/task").glob("*/children"):
        children += map(int, path.read_text().split())
    return {"node": [node], "readers": children, "proxy": [cluster.proxy_pid]}


def _measure(
    verb: str, where: str, client_count: int, pids: Mapping[str, Sequence[int]]
) -> tuple[float, dict[str, float]]:
    """Return the answers a second of that many clients, and who was how busy."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", __spec__.name, verb, where],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(client_count)
        ]
        everybody = {**pids, "clients": [client.pid for client in clients]}
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        before = {who: sum(map(_ticks, ids)) for who, ids in everybody.items()}
        began = time.perf_counter()
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        answers = 0.0
        for client in clients:
            assert client.stdout is not None
            answers += float(client.stdout.readline())
        seconds = time.perf_counter() - began
        used = {
            who: (sum(map(_ticks, ids)) - before[who]) / _TICKS_PER_SECOND / seconds
            for who, ids in everybody.items()
        }
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
    return answers, used


def _ticks(pid: int) -> int:
    """Return how long a process has been busy; it has not been waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@contextmanager
def _echo() -> Iterator[int]:
    """Yield the port of an echo."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks._relay", "node", str(_PAYLOAD_SIZE_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as echo:
        assert echo.stdout is not None
        assert echo.stdin is not None
        yield int(echo.stdout.readline())
        echo.stdin.close()


# -- what the clients run ------------------------------------------------------


def _await_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


async def _get(url: str) -> float:
    """Return how many keys a second were answered, with 64 outstanding."""
    async with AsyncQueryableStateClient(url) as client:
        keys = itertools.cycle(keys_of(_KEY_COUNT))
        ends_at = time.perf_counter() + _WARM_UP_SECONDS
        count = 0

        async def ask() -> None:
            nonlocal count
            while time.perf_counter() < ends_at:
                await client.get(JOB, STATE, next(keys))
                count += 1

        await asyncio.gather(*(ask() for _ in range(_OUTSTANDING_COUNT)))
        _await_go()
        count = 0
        began = time.perf_counter()
        ends_at = began + _ROUND_SECONDS
        await asyncio.gather(*(ask() for _ in range(_OUTSTANDING_COUNT)))
        return count / (time.perf_counter() - began)


def _count(url: str) -> float:
    """Return how many counts of all keys a second are made, one at a time."""
    with QueryableStateClient(url) as client:

        def ask(seconds: float) -> float:
            count = 0
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                assert client.count(JOB, STATE) == _KEY_COUNT
                count += 1
            return count / (time.perf_counter() - began)

        ask(_WARM_UP_SECONDS)
        _await_go()
        return ask(_ROUND_SECONDS)


def _floor(port: str) -> float:
    """Return how many messages a second an echo answers, with 64 outstanding."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(_OUTSTANDING_COUNT):
            dealer.send_multipart([_ENVELOPE, b"k" * 13])
        _await_go()
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < _ROUND_SECONDS:
            dealer.recv_multipart()
            dealer.send_multipart([_ENVELOPE, b"k" * 13])
            count += 1
        return count / (time.perf_counter() - began)


def main() -> None:
    """Be one client."""
    _, verb, where = sys.argv
    match verb:
        case "get":
            rate = asyncio.run(_get(where))
        case "count":
            rate = _count(where)
        case _:
            rate = _floor(where)
    print(rate, flush=True)
    # Its processor time is read before it ends.
    threading.Thread(target=sys.stdin.read, daemon=False).start()


if __name__ == "__main__":
    main()
