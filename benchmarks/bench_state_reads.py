"""
How fast state is answered, without the proxy and through it, next to bare pyzmq.

Workload: one node with 10,000 keys, one proxy, one client for each way, each a process
of its own but for the clients, over loopback TCP, values of 100 characters.  Rounds of
all that is compared alternate, so that they meet the same machine.

*   ``get``: one at a time.  The floors carry as many bytes and do nothing with them: an
    echo for the nodes' way, a relay and an echo for the proxy's.  Bad: a median above
    three times its floor's without the proxy, above twice through it.
*   64 outstanding ``get`` of one asyncio client.  Bad: below 60,000 answers a second
    on two cores.
*   ``get_many`` of 1,000 keys.  Bad: below 300,000 keys a second.
*   ``scan`` of all keys, and ``count``.  Bad: slower without the proxy than through it.
*   The anonymous memory of a node with a million keys of 100 bytes, after they were
    written and some were read.  Bad: above 300 MiB.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from benchmarks._harness import Figure, figure, report, sized
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from queryablestate import AsyncQueryableStateClient, QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


_KEY_COUNT: Final = sized(10_000, tiny=20)
_ROUND_COUNT: Final = sized(10, tiny=1)
_GETS_PER_ROUND: Final = sized(300, tiny=2)
_OUTSTANDING_COUNT: Final = sized(64, tiny=2)
_ANSWERS_PER_ROUND: Final = sized(20_000, tiny=4)
_MANY_COUNT: Final = sized(1_000, tiny=10)
_MANY_PER_ROUND: Final = sized(20, tiny=1)
_VALUE: Final = "v" * 100
_ENVELOPE_SIZE_BYTES: Final = 160
_PAYLOAD_SIZE_BYTES: Final = 110
_LARGE_KEY_COUNT: Final = sized(1_000_000, tiny=40)
_LARGE_ASKED_COUNT: Final = sized(100_000, tiny=20)
_ROWS_PER_BATCH: Final = sized(50_000, tiny=20)
_SEED: Final = 20_261_121
_FLOOR: Final = (sys.executable, "-m", "benchmarks._relay")


def run() -> None:
    """Measure and report."""
    figures: list[Figure] = []
    with StateCluster(node_count=1) as cluster:
        keys = list(keys_of(_KEY_COUNT))
        cluster.write(keys, _VALUE, rows_per_batch=_KEY_COUNT)
        figures += _single(cluster.url, keys)
        figures += _together(cluster.url, keys)
        figures += asyncio.run(_outstanding(cluster.url, keys))
        pid = cluster.node_pids[0]
        keys = list(keys_of(_LARGE_KEY_COUNT))
        figures.append(
            figure(f"RssAnon, {_KEY_COUNT:,} keys", "MiB", [_anonymous_mib(pid)])
        )
    with StateCluster(node_count=1) as cluster:
        cluster.write(keys, _VALUE, rows_per_batch=_ROWS_PER_BATCH)
        with QueryableStateClient(cluster.url) as client:
            chosen = random.Random(_SEED).sample(keys, _LARGE_ASKED_COUNT)
            for first in range(0, len(chosen), _MANY_COUNT):
                client.get_many(JOB, STATE, chosen[first : first + _MANY_COUNT])
        figures.append(
            figure(
                f"RssAnon, {_LARGE_KEY_COUNT:,} keys",
                "MiB",
                [_anonymous_mib(cluster.node_pids[0])],
            )
        )
    report("state_reads", figures)


def _single(url: str, keys: Sequence[str]) -> list[Figure]:
    """Return the latencies of the floors and of ``get``, in alternating rounds."""
    envelope = b"e" * _ENVELOPE_SIZE_BYTES
    payload = b"p" * len(keys[0])
    times_us: dict[str, list[float]] = {}
    with _echo() as echo, _relay() as relay, _clients(url, keys[0]) as clients:

        def carry(dealer: zmq.Socket[bytes]) -> Callable[[str], object]:
            def ask(_: str) -> object:
                dealer.send_multipart([envelope, payload])
                return dealer.recv_multipart()

            return ask

        asked: dict[str, Callable[[str], object]] = {
            "echo, bare": carry(echo),
            "get without the proxy": partial(clients[True].get, JOB, STATE),
            "relay and echo, bare": carry(relay),
            "get through the proxy": partial(clients[False].get, JOB, STATE),
        }
        for number in range(-1, _ROUND_COUNT):
            for name, ask in asked.items():
                values = times_us.setdefault(name, [])
                for key in keys[:_GETS_PER_ROUND]:
                    began = time.perf_counter_ns()
                    ask(key)
                    if number >= 0:
                        values.append((time.perf_counter_ns() - began) / 1_000)
    found = {name: figure(name, "us", values) for name, values in times_us.items()}
    names = list(found)
    ratios = [
        figure(f"{one} by {other}", "x", [found[one].median / found[other].median])
        for one, other in (
            (names[1], names[0]),
            (names[3], names[2]),
            (names[3], names[1]),
        )
    ]
    return [*found.values(), *ratios]


def _together(url: str, keys: Sequence[str]) -> list[Figure]:
    """Return the rates of ``get_many`` and ``scan``, and the time of ``count``."""
    many = keys[:_MANY_COUNT]
    values: dict[tuple[str, str], list[float]] = {}
    with _clients(url, keys[0]) as clients:
        for number in range(-1, _ROUND_COUNT):
            for is_direct, client in clients.items():
                began = time.perf_counter()
                for _ in range(_MANY_PER_ROUND):
                    assert len(client.get_many(JOB, STATE, many)) == _MANY_COUNT
                many_ended = time.perf_counter()
                assert sum(1 for _ in client.scan(JOB, STATE)) == len(keys)
                scan_ended = time.perf_counter()
                assert client.count(JOB, STATE) == len(keys)
                count_ended = time.perf_counter()
                if number < 0:
                    continue
                for name, unit, value in (
                    (
                        f"get_many of {_MANY_COUNT:,} keys",
                        "keys/s",
                        _MANY_COUNT * _MANY_PER_ROUND / (many_ended - began),
                    ),
                    ("scan", "rows/s", len(keys) / (scan_ended - many_ended)),
                    ("count", "us", (count_ended - scan_ended) * 1_000_000),
                ):
                    name = f"{name} {_way(is_direct)}"  # noqa: PLW2901
                    values.setdefault((name, unit), []).append(value)
    return [figure(name, unit, found) for (name, unit), found in values.items()]


async def _outstanding(url: str, keys: Sequence[str]) -> list[Figure]:
    """Return the answers per second with that many questions always outstanding."""
    asked = [keys[index % len(keys)] for index in range(_ANSWERS_PER_ROUND)]
    shares = [asked[first::_OUTSTANDING_COUNT] for first in range(_OUTSTANDING_COUNT)]
    values: dict[bool, list[float]] = {True: [], False: []}

    async def ask(client: AsyncQueryableStateClient, share: Sequence[str]) -> None:
        for key in share:
            await client.get(JOB, STATE, key)

    async with (
        AsyncQueryableStateClient(url) as direct,
        AsyncQueryableStateClient(url, direct=False) as proxied,
    ):
        for number in range(-1, _ROUND_COUNT):
            for is_direct, client in ((True, direct), (False, proxied)):
                began = time.perf_counter()
                await asyncio.gather(*(ask(client, share) for share in shares))
                if number >= 0:
                    seconds = time.perf_counter() - began
                    values[is_direct].append(_ANSWERS_PER_ROUND / seconds)
    return [
        figure(
            f"get, {_OUTSTANDING_COUNT} outstanding, {_way(is_direct)}",
            "answers/s",
            found,
        )
        for is_direct, found in values.items()
    ]


def _way(is_direct: bool) -> str:  # noqa: FBT001 (what it is about)
    return "without the proxy" if is_direct else "through the proxy"


@contextmanager
def _clients(url: str, key: str) -> Iterator[dict[bool, QueryableStateClient]]:
    """Yield a client for each way, by whether it asks nodes; the way is open."""
    with (
        QueryableStateClient(url) as direct,
        QueryableStateClient(url, direct=False) as proxied,
    ):
        clients = {True: direct, False: proxied}
        for client in clients.values():
            for _ in range(_GETS_PER_ROUND):
                client.get(JOB, STATE, key)
        yield clients


@contextmanager
def _echo() -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that is connected to an echo."""
    with (
        subprocess.Popen(
            [*_FLOOR, "node", str(_PAYLOAD_SIZE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as echo,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        assert echo.stdout is not None
        assert echo.stdin is not None
        dealer.connect(f"tcp://127.0.0.1:{echo.stdout.readline().strip()}")
        yield dealer
        echo.stdin.close()


@contextmanager
def _relay() -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that is connected to a relay with an echo behind it."""
    with (
        subprocess.Popen(
            [*_FLOOR, "relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as relay,
    ):
        assert relay.stdout is not None
        port = relay.stdout.readline().strip()
        with (
            subprocess.Popen(
                [*_FLOOR, "echo", port, str(_PAYLOAD_SIZE_BYTES)],
                stdin=subprocess.PIPE,
            ) as echo,
            zmq.Context() as context,
            context.socket(zmq.DEALER) as dealer,
        ):
            assert relay.stdout.readline().strip() == "ready"
            dealer.connect(f"tcp://127.0.0.1:{port}")
            yield dealer
            for process in (echo, relay):
                assert process.stdin is not None
                process.stdin.close()


def _anonymous_mib(pid: int) -> float:
    """Return the anonymous memory of a process: what no file stands behind."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError(f"process {pid} tells no RssAnon")
