"""
How fast state is answered, next to a bare pyzmq relay of two hops in the same run.

Workload: one node with 10,000 keys, one proxy, one client, each a process of its own
over loopback TCP, values of 100 characters.

*   ``get``: one at a time; the relay carries as many bytes and does nothing with them.
    Rounds of both alternate.  Bad: a median above twice the relay's.
*   64 outstanding ``get`` of one asyncio client.  Bad: below 60,000 answers a second
    on two cores.
*   ``get_many`` of 1,000 keys.  Bad: below 300,000 keys a second.
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
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from benchmarks._harness import Figure, figure, report
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from queryablestate import AsyncQueryableStateClient, QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_KEY_COUNT: Final = 10_000
_ROUND_COUNT: Final = 10
_GETS_PER_ROUND: Final = 300
_OUTSTANDING_COUNT: Final = 64
_ANSWERS_PER_ROUND: Final = 20_000
_MANY_COUNT: Final = 1_000
_MANY_PER_ROUND: Final = 20
_VALUE: Final = "v" * 100
_ENVELOPE_SIZE_BYTES: Final = 160
_PAYLOAD_SIZE_BYTES: Final = 110
_MILLION: Final = 1_000_000
_ROWS_PER_BATCH: Final = 50_000
_SEED: Final = 20_261_121


def run() -> None:
    """Measure and report."""
    figures: list[Figure] = []
    with StateCluster(node_count=1) as cluster:
        keys = list(keys_of(_KEY_COUNT))
        cluster.write(keys, _VALUE, rows_per_batch=_KEY_COUNT)
        figures += _single(cluster.url, keys)
        figures.append(_many(cluster.url, keys))
        figures.append(asyncio.run(_outstanding(cluster.url, keys)))
        pid = cluster.node_pids[0]
        keys = list(keys_of(_MILLION))
        figures.append(figure("RssAnon, 10,000 keys", "MiB", [_anonymous_mib(pid)]))
    with StateCluster(node_count=1) as cluster:
        cluster.write(keys, _VALUE, rows_per_batch=_ROWS_PER_BATCH)
        with QueryableStateClient(cluster.url) as client:
            chosen = random.Random(_SEED).sample(keys, 100_000)
            for first in range(0, len(chosen), _MANY_COUNT):
                client.get_many(JOB, STATE, chosen[first : first + _MANY_COUNT])
        figures.append(
            figure(
                "RssAnon, 1,000,000 keys", "MiB", [_anonymous_mib(cluster.node_pids[0])]
            )
        )
    report("state_reads", figures)


def _single(url: str, keys: Sequence[str]) -> list[Figure]:
    """Return the latencies of the relay and of ``get``, in alternating rounds."""
    relay_us: list[float] = []
    get_us: list[float] = []
    with _relay() as dealer, QueryableStateClient(url) as client:
        envelope = b"e" * _ENVELOPE_SIZE_BYTES
        payload = b"p" * len(keys[0])
        for number in range(-1, _ROUND_COUNT):
            for index in range(_GETS_PER_ROUND):
                began = time.perf_counter_ns()
                dealer.send_multipart([envelope, payload])
                dealer.recv_multipart()
                if number >= 0:
                    relay_us.append((time.perf_counter_ns() - began) / 1_000)
                del index
            for index in range(_GETS_PER_ROUND):
                began = time.perf_counter_ns()
                client.get(JOB, STATE, keys[index])
                if number >= 0:
                    get_us.append((time.perf_counter_ns() - began) / 1_000)
    relay = figure("relay of two hops, bare", "us", relay_us)
    get = figure("get, one at a time", "us", get_us)
    ratio = figure("get by relay (medians)", "x", [get.median / relay.median])
    return [relay, get, ratio]


@contextmanager
def _relay() -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that is connected to a relay with an echo behind it."""
    command = [sys.executable, "-m", "benchmarks._relay"]
    with (
        subprocess.Popen(
            [*command, "relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as relay,
    ):
        assert relay.stdout is not None
        port = relay.stdout.readline().strip()
        with (
            subprocess.Popen(
                [*command, "echo", port, str(_PAYLOAD_SIZE_BYTES)],
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


def _many(url: str, keys: Sequence[str]) -> Figure:
    """Return the keys per second of ``get_many``."""
    values = []
    asked = keys[:_MANY_COUNT]
    with QueryableStateClient(url) as client:
        for number in range(-1, _ROUND_COUNT):
            began = time.perf_counter()
            for _ in range(_MANY_PER_ROUND):
                assert len(client.get_many(JOB, STATE, asked)) == _MANY_COUNT
            seconds = time.perf_counter() - began
            if number >= 0:
                values.append(_MANY_COUNT * _MANY_PER_ROUND / seconds)
    return figure(f"get_many of {_MANY_COUNT:,} keys", "keys/s", values)


async def _outstanding(url: str, keys: Sequence[str]) -> Figure:
    """Return the answers per second with that many questions always outstanding."""
    values = []
    async with AsyncQueryableStateClient(url) as client:

        async def ask(share: Sequence[str]) -> None:
            for key in share:
                await client.get(JOB, STATE, key)

        asked = [keys[index % len(keys)] for index in range(_ANSWERS_PER_ROUND)]
        shares = [
            asked[first::_OUTSTANDING_COUNT] for first in range(_OUTSTANDING_COUNT)
        ]
        for number in range(-1, _ROUND_COUNT):
            began = time.perf_counter()
            await asyncio.gather(*(ask(share) for share in shares))
            if number >= 0:
                values.append(_ANSWERS_PER_ROUND / (time.perf_counter() - began))
    return figure(f"get, {_OUTSTANDING_COUNT} outstanding", "answers/s", values)


def _anonymous_mib(pid: int) -> float:
    """Return the anonymous memory of a process: what no file stands behind."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1_024
    raise RuntimeError(f"process {pid} tells no RssAnon")
