"""Lodestar: a LeaderServer, a proxy and nodes, each a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, final

from benchmarks._state_cluster import JOB, STATE, StateCluster
from benchmarks.peers._interface import VALUE, key_of
from queryablestate import AsyncQueryableStateClient, QueryableStateClient


__all__ = ["LodestarReader", "lodestar_reader"]

_ROWS_PER_BATCH: Final = 50_000
_KEYS_AT_ONCE: Final = 1_000_000


@final
class LodestarReader:
    """The blocking client one at a time, that of asyncio for many at the same time."""

    def __init__(
        self,
        cluster: StateCluster,
        client: QueryableStateClient,
        async_client: AsyncQueryableStateClient,
        runner: asyncio.Runner,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._async_client = async_client
        self._runner = runner
        self._key_count = 0
        self._batch_id = 0

    def load(self, key_count: int) -> None:
        """Publish the rows in batches, as Spark's tasks do."""
        for first in range(self._key_count, key_count, _KEYS_AT_ONCE):
            numbers = range(first, min(first + _KEYS_AT_ONCE, key_count))
            self._cluster.write(
                [key_of(number) for number in numbers],
                VALUE,
                rows_per_batch=_ROWS_PER_BATCH,
                first_batch_id=self._batch_id,
            )
            self._batch_id += -(-len(numbers) // _ROWS_PER_BATCH)
        self._key_count = key_count

    def _keys(self, first: int, count: int) -> list[str]:
        numbers = range(first, first + count)
        return [key_of(number % self._key_count) for number in numbers]

    def get_each(self, first: int, count: int) -> list[float]:
        """Call ``get``."""
        values = []
        for key in self._keys(first, count):
            began = time.perf_counter_ns()
            row = self._client.get(JOB, STATE, key)
            values.append((time.perf_counter_ns() - began) / 1_000)
            assert row
        return values

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Call ``get`` of the client for asyncio in *limit* tasks."""
        keys = self._keys(first, count)

        async def ask(share: Sequence[str]) -> None:
            for key in share:
                await self._async_client.get(JOB, STATE, key)

        async def ask_all() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(ask(keys[part::limit]) for part in range(limit)))
            return time.perf_counter() - began

        return self._runner.run(ask_all())

    def get_many(self, first: int, count: int) -> float:
        """Call ``get_many``."""
        keys = self._keys(first, count)
        began = time.perf_counter()
        rows = self._client.get_many(JOB, STATE, keys)
        seconds = time.perf_counter() - began
        assert len(rows) == count
        return seconds


@contextmanager
def lodestar_reader(*, node_count: int = 1) -> Iterator[LodestarReader]:
    """Start a cluster and the clients."""
    with (
        StateCluster(node_count=node_count) as cluster,
        QueryableStateClient(cluster.url) as client,
        asyncio.Runner() as runner,
    ):

        async def connect() -> AsyncQueryableStateClient:
            return AsyncQueryableStateClient(cluster.url)

        async_client = runner.run(connect())
        try:
            yield LodestarReader(cluster, client, async_client, runner)
        finally:
            runner.run(async_client.close())
