"""Redis 7 by redis-py with hiredis: blocking, and by asyncio."""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from benchmarks.peers._install import clients_directory, debian_program
from benchmarks.peers._interface import VALUE, key_of
from benchmarks.peers._processes import Guarded, free_ports, guarded, wait_until


__all__ = [
    "RedisReader",
    "async_redis_reader",
    "redis_module",
    "redis_reader",
    "redis_server",
]

_CONNECTIONS_MAX: Final = 1_024


def redis_module(name: str = "redis") -> Any:
    """Return a module of redis-py, which is kept apart from what the product needs."""
    directory = str(clients_directory())
    if directory not in sys.path:
        sys.path.append(directory)
    importlib.import_module("hiredis")
    return importlib.import_module(name)


@contextmanager
def redis_server() -> Iterator[tuple[int, Guarded]]:
    """Run a server that keeps all in memory; yield its port and process."""
    program = debian_program("redis-server", "redis-server")
    redis = redis_module()
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
            *("--appendonly", "no", "--enable-debug-command", "local"),
        ]
        with guarded(command, Path(directory) / "log") as server:
            client = redis.Redis(port=port)

            def is_ready() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            wait_until(is_ready, server)
            client.close()
            yield port, server


def _load(client: Any, first_count: int, key_count: int) -> None:
    for first in range(first_count, key_count, 10_000):
        numbers = range(first, min(first + 10_000, key_count))
        client.mset({key_of(number): VALUE for number in numbers})


@final
class RedisReader:
    """The blocking client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._key_count = 0

    def load(self, key_count: int) -> None:
        """Set them by ``MSET``."""
        _load(self._client, self._key_count, key_count)
        self._key_count = key_count

    def _keys(self, first: int, count: int) -> list[str]:
        numbers = range(first, first + count)
        return [key_of(number % self._key_count) for number in numbers]

    def get_each(self, first: int, count: int) -> list[float]:
        """Call ``get``."""
        values = []
        for key in self._keys(first, count):
            began = time.perf_counter_ns()
            value = self._client.get(key)
            values.append((time.perf_counter_ns() - began) / 1_000)
            assert value
        return values

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Send pipelines of *limit* ``GET``: all a blocking client can do."""
        keys = self._keys(first, count)
        began = time.perf_counter()
        for index in range(0, count, limit):
            pipeline = self._client.pipeline(transaction=False)
            for key in keys[index : index + limit]:
                pipeline.get(key)
            pipeline.execute()
        return time.perf_counter() - began

    def get_many(self, first: int, count: int) -> float:
        """Call ``MGET``."""
        keys = self._keys(first, count)
        began = time.perf_counter()
        values = self._client.mget(keys)
        seconds = time.perf_counter() - began
        assert None not in values
        return seconds


@final
class _AsyncRedisReader:
    """The client for asyncio."""

    def __init__(self, blocking: Any, client: Any, runner: asyncio.Runner) -> None:
        self._blocking = blocking
        self._client = client
        self._runner = runner
        self._key_count = 0

    def load(self, key_count: int) -> None:
        """Set them by ``MSET``."""
        _load(self._blocking, self._key_count, key_count)
        self._key_count = key_count

    def _keys(self, first: int, count: int) -> list[str]:
        numbers = range(first, first + count)
        return [key_of(number % self._key_count) for number in numbers]

    def get_each(self, first: int, count: int) -> list[float]:
        """Await ``get``."""

        async def ask() -> list[float]:
            values = []
            for key in self._keys(first, count):
                began = time.perf_counter_ns()
                await self._client.get(key)
                values.append((time.perf_counter_ns() - began) / 1_000)
            return values

        return self._runner.run(ask())

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Await ``get`` in *limit* tasks, with a connection for each."""
        keys = self._keys(first, count)

        async def ask(share: Sequence[str]) -> None:
            for key in share:
                await self._client.get(key)

        async def ask_all() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(ask(keys[part::limit]) for part in range(limit)))
            return time.perf_counter() - began

        return self._runner.run(ask_all())

    def get_many(self, first: int, count: int) -> float:
        """Await ``MGET``."""
        keys = self._keys(first, count)

        async def ask() -> float:
            began = time.perf_counter()
            await self._client.mget(keys)
            return time.perf_counter() - began

        return self._runner.run(ask())


@contextmanager
def redis_reader() -> Iterator[RedisReader]:
    """Start a server and a blocking client."""
    with redis_server() as (port, _), redis_module().Redis(port=port) as client:
        yield RedisReader(client)


@contextmanager
def async_redis_reader() -> Iterator[_AsyncRedisReader]:
    """Start a server of its own, and a client for asyncio."""
    with (
        redis_server() as (port, _),
        redis_module().Redis(port=port) as blocking,
        asyncio.Runner() as runner,
    ):
        # One connection for each question under way; by default no more than 100.
        client = redis_module("redis.asyncio").Redis(
            port=port, max_connections=_CONNECTIONS_MAX
        )
        try:
            yield _AsyncRedisReader(blocking, client, runner)
        finally:
            runner.run(client.aclose())
