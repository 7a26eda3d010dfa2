"""
How fast is a value read: one, several at the same time, a thousand in one go.

Workload: 10,000 keys, values of 100 characters; each system in processes of its own,
over loopback; one client.  Units: microseconds of a ``get``; answers per second with 8,
64 and 512 under way; keys per second of one question for 1,000.  Bad: above 1.2 times
Flink's ``get``, below 2.5 times Flink's or 4 times redis-py's answers by asyncio with
64 under way, below ``MGET``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from benchmarks.peers._interface import (
    NotOfferedError,
    Reader,
    Row,
    Rows,
    opened,
)
from benchmarks.peers._sizes import Sizes
from benchmarks.peers.flink import flink_reader
from benchmarks.peers.floors import dict_reader, lmdb_reader, zmq_reader
from benchmarks.peers.lodestar import lodestar_reader
from benchmarks.peers.redis import RedisReader, async_redis_reader, redis_reader


__all__ = ["ask"]

_PEERS: Final[dict[str, Callable[[], AbstractContextManager[Reader]]]] = {
    "Lodestar": lodestar_reader,
    "Flink 1.10.3": flink_reader,
    "Redis 7, redis-py": redis_reader,
    "Redis 7, redis-py asyncio": async_redis_reader,
    "floor: bare pyzmq": zmq_reader,
    "floor: bare LMDB": lmdb_reader,
    "floor: rows to dicts": dict_reader,
}
_ONE: Final = "get, one at a time"


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    with ExitStack() as stack:
        openings = [one for one in _PEERS.items() if is_asked(one[0])]
        readers = opened(stack, openings, rows, _ONE)
        for reader in readers.values():
            reader.load(sizes.key_count)
        for number in range(-1, sizes.round_count):
            # The first round warms up: it is not counted.
            counted = Rows() if number < 0 else rows
            first = max(0, number) * sizes.get_count
            _one(sizes, readers, counted, first)
            for limit in sizes.outstanding_limits:
                _outstanding(sizes, readers, counted, limit)
            _many(sizes, readers, counted)
    return rows.rows()


def _one(sizes: Sizes, readers: dict[str, Reader], rows: Rows, first: int) -> None:
    for name, reader in readers.items():
        rows.add(_ONE, name, "us", reader.get_each(first, sizes.get_count))


def _outstanding(
    sizes: Sizes, readers: dict[str, Reader], rows: Rows, limit: int
) -> None:
    question = f"get, {limit} outstanding"
    count = sizes.outstanding_count
    for name, reader in readers.items():
        try:
            rate = count / reader.outstanding(0, count, limit)
        except NotOfferedError as error:
            rows.note(question, name, f"not offered: {error}")
        else:
            rows.add(question, name, "answers/s", [rate])
            if isinstance(reader, RedisReader):
                rows.note(question, name, "a pipeline of that many, again and again")


def _many(sizes: Sizes, readers: dict[str, Reader], rows: Rows) -> None:
    question = f"get_many of {sizes.many_count:,}"
    for name, reader in readers.items():
        for index in range(sizes.many_per_round):
            try:
                seconds = reader.get_many(index * sizes.many_count, sizes.many_count)
            except NotOfferedError as error:
                rows.note(question, name, f"not offered: {error}")
                break
            rows.add(question, name, "keys/s", [sizes.many_count / seconds])
