"""
One side of `benchmarks.against`: a cluster and its client, of whichever checkout runs.

Reads ``question count`` from its input, asks as often, and prints what one call took:
the time, then the processor time of each of `PROCESSES`, in microseconds.  It uses what
checkouts have had since `StateCluster` came.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks._state_cluster import JOB, STATE, StateCluster, keys_of
from haservices import campaign, open_ha_services
from queryablestate import AsyncQueryableStateClient, QueryableStateClient


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


PROCESSES: Final = ("client", "server", "proxy", "node")
_KEY_COUNT: Final = 10_000
_MANY_COUNT: Final = 1_000
_OUTSTANDING_COUNT: Final = 64
_VALUE: Final = "v" * 100


async def _answer() -> None:
    """Answer the questions that come, to the end of the input."""
    keys = list(keys_of(_KEY_COUNT))
    is_proxied = "direct" in inspect.signature(QueryableStateClient).parameters
    options: dict[str, Any] = {"direct": False} if is_proxied else {}
    async with AsyncExitStack() as opened:
        cluster = opened.enter_context(StateCluster(node_count=1))
        cluster.write(keys, _VALUE, rows_per_batch=_KEY_COUNT)
        ha = opened.enter_context(open_ha_services(cluster.url))
        leadership = opened.enter_context(campaign(ha, "turns", "host:1"))
        store = ha.get_leader_store("turns")
        client = opened.enter_context(QueryableStateClient(cluster.url, **options))
        many = await opened.enter_async_context(
            AsyncQueryableStateClient(cluster.url, **options)
        )

        def put(count: int) -> None:
            for _ in range(count):
                store.put("path", _VALUE.encode(), session=leadership.session)

        def get(count: int) -> None:
            for _ in range(count):
                store.get("path")

        def get_state(count: int) -> None:
            for index in range(count):
                client.get(JOB, STATE, keys[index % _KEY_COUNT])

        def get_many(count: int) -> None:
            for _ in range(count):
                client.get_many(JOB, STATE, keys[:_MANY_COUNT])

        async def get_outstanding(count: int) -> None:
            async def ask(first: int) -> None:
                for index in range(first, count, _OUTSTANDING_COUNT):
                    await many.get(JOB, STATE, keys[index % _KEY_COUNT])

            await asyncio.gather(*map(ask, range(_OUTSTANDING_COUNT)))

        questions: dict[str, Callable[[int], Awaitable[None] | None]] = {
            "put": put,
            "get": get,
            "get_state": get_state,
            "get_many": get_many,
            "get_outstanding": get_outstanding,
        }
        pids = {"client": os.getpid()} | _children()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            question, count_text = line.split()
            count = int(count_text)
            before = [_processor_ns(pids[name]) for name in PROCESSES]
            began_ns = time.perf_counter_ns()
            asked = questions[question](count)
            if asked is not None:
                await asked
            took_ns = time.perf_counter_ns() - began_ns
            used = [
                _processor_ns(pids[name]) - used_ns
                for name, used_ns in zip(PROCESSES, before, strict=True)
            ]
            print(*(one / count / 1_000 for one in (took_ns, *used)), flush=True)


def _children() -> dict[str, int]:
    """Return the processes of the cluster by their verbs."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    verbs = {}
    for pid in map(int, children):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        verbs[arguments[arguments.index("lodestar") + 1]] = pid
    return verbs


def _processor_ns(pid: int) -> int:
    """Return what all threads of a process have used that are there now."""
    used_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            used_ns += int(thread.read_text().split()[0])
    return used_ns


if __name__ == "__main__":
    asyncio.run(_answer())
