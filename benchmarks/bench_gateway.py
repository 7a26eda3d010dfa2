"""
What a gateway adds to a `get`, and how many watchers one gateway tells of a change.

Workload: one node with 10,000 keys, one proxy, one gateway, each a process of its own
over loopback TCP, values of 100 characters.

*   ``GET …/keys/{key}``, one at a time over one connection, next to a ``get`` of a
    client in this process and to an endpoint of starlette that answers as many bytes
    and does nothing, served by uvicorn with the same parser.  Rounds alternate.  Bad: a
    median above twice the sum of the other two.
*   The same over 64 connections at once, with Debian's ``wrk``, next to the endpoint
    that does nothing.  Bad: an answer that is no 200.  Where ``wrk`` is missing, this
    part says so.
*   1,000 watchers of one key, and of a key each: how long after a batch has become
    visible until each has its event.  Bad: above a second for the last one.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import selectors
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from benchmarks._harness import Figure, figure, report, sized
from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from queryablestate import QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_KEY_COUNT: Final = sized(10_000, tiny=10)
_ROUND_COUNT: Final = sized(10, tiny=1)
_ASKED_PER_ROUND: Final = sized(200, tiny=2)
_CONNECTION_COUNT: Final = sized(64, tiny=2)
_LOAD_SECONDS: Final = sized(5, tiny=1)
_LOAD_ROUND_COUNT: Final = sized(3, tiny=1)
_WATCHER_COUNT: Final = sized(1_000, tiny=2)
_BATCH_COUNT: Final = sized(5, tiny=1)
_VALUE: Final = "v" * 100
_SEED: Final = 20_261_123
_PATH: Final = f"/v1/jobs/{JOB}/states/{STATE}/keys"

_BARE: Final = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

body = b'{"key":"key-000000001","value":{"value":"%s"},"generation":1}' % (b"v" * 100)

async def answer(request):
    return Response(body, media_type="application/json")

listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", 0))
listener.listen()
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
app = Starlette(routes=[Route("/keys/{key}", answer)])
config = uvicorn.Config(app, http="h11", log_level="critical", access_log=False)
uvicorn.Server(config).run(sockets=[listener])
"""


def run() -> None:
    """Measure and report."""
    keys = list(keys_of(_KEY_COUNT))
    with StateCluster(node_count=1) as cluster:
        cluster.write(keys, _VALUE, rows_per_batch=_KEY_COUNT)
        gateway = ("-m", "lodestar", "gateway", "--url", cluster.url)
        limits = ("--watch-count-per-caller-max", str(2 * _WATCHER_COUNT))
        with _serving(*gateway, *limits) as url, _serving("-c", _BARE) as bare:
            figures = _single(cluster.url, url, bare, keys)
            figures += _many_at_once(url, bare, keys[0])
            figures += _watchers("one key", cluster, url, keys[:1] * _WATCHER_COUNT)
            figures += _watchers("a key each", cluster, url, keys[:_WATCHER_COUNT])
    report("gateway", figures)


def _single(cluster_url: str, url: str, bare: str, keys: Sequence[str]) -> list[Figure]:
    """Return how long a key takes over HTTP, and what it is made of."""
    rng = random.Random(_SEED)
    times: dict[str, list[float]] = {"bare": [], "get": [], "gateway": []}
    with (
        QueryableStateClient(cluster_url) as client,
        contextlib.closing(_connection(url)) as gateway,
        contextlib.closing(_connection(bare)) as endpoint,
    ):
        for number in range(-1, _ROUND_COUNT):
            for key in rng.sample(keys, _ASKED_PER_ROUND):
                began = time.perf_counter_ns()
                _fetch(endpoint, f"/keys/{key}")
                then = time.perf_counter_ns()
                client.get(JOB, STATE, key)
                later = time.perf_counter_ns()
                _fetch(gateway, f"{_PATH}/{key}")
                over = time.perf_counter_ns()
                if number >= 0:
                    times["bare"].append((then - began) / 1e3)
                    times["get"].append((later - then) / 1e3)
                    times["gateway"].append((over - later) / 1e3)
    names = {
        "bare": "starlette endpoint that does nothing",
        "get": "get of a client",
        "gateway": "GET of a key at the gateway",
    }
    found = [figure(names[name], "us", values) for name, values in times.items()]
    share = found[2].median / (found[0].median + found[1].median)
    return [*found, figure("its share of the other two", "x", [share])]


def _many_at_once(url: str, bare: str, key: str) -> list[Figure]:
    """Return how many requests are answered in a second, by turns."""
    if shutil.which("wrk") is None:
        print("many at once: not measured, wrk is not installed (Debian: wrk)")
        return []
    endpoints = {
        "starlette endpoint that does nothing": f"{bare}/keys/{key}",
        "GET of a key at the gateway": f"{url}{_PATH}/{key}",
    }
    rates: dict[str, list[float]] = {name: [] for name in endpoints}
    for _ in range(_LOAD_ROUND_COUNT):
        for name, endpoint in endpoints.items():
            rates[name].append(_load(endpoint))
    return [
        figure(f"{name}, {_CONNECTION_COUNT} connections", "requests/s", values)
        for name, values in rates.items()
    ]


def _load(endpoint: str) -> float:
    """Return how many requests ``wrk`` has answered in a second."""
    done = subprocess.run(
        [
            *("wrk", "--threads", "1", "--connections", str(_CONNECTION_COUNT)),
            *("--duration", f"{_LOAD_SECONDS}s", endpoint),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=10 * _LOAD_SECONDS,
    )
    assert "Non-2xx" not in done.stdout, done.stdout
    rate = re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout)
    assert rate is not None, done.stdout
    return float(rate[1])


def _watchers(
    name: str, cluster: StateCluster, url: str, keys: Sequence[str]
) -> list[Figure]:
    """Return how long each of many watchers waits for an event."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    distinct = sorted(set(keys))
    waits_ms: list[float] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        began = time.perf_counter_ns()
        for key in keys:
            sock = stack.enter_context(socket.create_connection(address))
            sock.sendall(
                f"GET {_PATH}/{key}/watch HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            )
            sock.settimeout(0)
            selector.register(sock, selectors.EVENT_READ)
        _wait(selector, len(keys))
        ready_ms = (time.perf_counter_ns() - began) / 1e6
        for number in range(_BATCH_COUNT):
            cluster.write(
                distinct,
                f"{name} {number}",
                rows_per_batch=len(distinct),
                first_batch_id=_next_batch(cluster),
            )
            began = time.perf_counter_ns()
            waits_ms += [
                max(0, arrived - began) / 1e6 for arrived in _wait(selector, len(keys))
            ]
    return [
        figure(f"{len(keys):,} watchers of {name}: all begun", "ms", [ready_ms]),
        figure(f"{len(keys):,} watchers of {name}: told of a batch", "ms", waits_ms),
    ]


def _wait(selector: selectors.BaseSelector, count: int) -> list[int]:
    """Return when each of *count* watchers had its event."""
    arrived: dict[object, int] = {}
    while len(arrived) < count:
        for key, _ in selector.select(60):
            data = key.fileobj.recv(65_536)  # type: ignore[union-attr]
            assert data, "the gateway has ended a watch"
            if b"event: value" in data:
                arrived.setdefault(key.fileobj, time.perf_counter_ns())
    return list(arrived.values())


def _next_batch(cluster: StateCluster) -> int:
    """Return the number of the batch to be written next."""
    with QueryableStateClient(cluster.url) as client:
        batch_id = client.describe(JOB, STATE).batch_id
    return 0 if batch_id is None else batch_id + 1


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _fetch(connection: http.client.HTTPConnection, path: str) -> None:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, body


@contextlib.contextmanager
def _serving(*arguments: str) -> Iterator[str]:
    """Yield the URL that a process prints when it serves."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
