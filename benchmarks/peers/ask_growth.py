"""
How the cost of a read grows with the keys that are held, and with the nodes.

Workload: 10,000 to 10,000,000 keys, values of 100 characters, in one node, in Redis and
in bare LMDB; then 100,000 keys in 1, 2 and 4 nodes.  Units: microseconds of a ``get``;
answers per second with 64 under way.  Bad: a ``get`` that takes twice as long with a
thousand times the keys.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from benchmarks.peers._interface import NotOfferedError, Reader, Row, Rows, opened
from benchmarks.peers._sizes import Sizes
from benchmarks.peers.floors import lmdb_reader
from benchmarks.peers.lodestar import lodestar_reader
from benchmarks.peers.redis import redis_reader


__all__ = ["ask"]

_LIMIT: Final = 64
_SEED: Final = 20_261_123
_PEERS: Final[dict[str, Callable[[], AbstractContextManager[Reader]]]] = {
    "Lodestar": lodestar_reader,
    "Redis 7, redis-py": redis_reader,
    "floor: bare LMDB": lmdb_reader,
}


def ask(sizes: Sizes, is_asked: Callable[[str], bool]) -> list[Row]:
    """Measure."""
    rows = Rows()
    with ExitStack() as stack:
        openings = [one for one in _PEERS.items() if is_asked(one[0])]
        readers = opened(stack, openings, rows, "get among keys")
        for key_count in sizes.growth_key_counts:
            for reader in readers.values():
                reader.load(key_count)
            _measure(sizes, readers, rows, key_count)
    for node_count in sizes.growth_node_counts:
        with lodestar_reader(node_count=node_count) as reader:
            key_count = sizes.growth_key_counts[1]
            reader.load(key_count)
            _measure(
                sizes, {"Lodestar": reader}, rows, key_count, node_count=node_count
            )
    return rows.rows()


def _measure(
    sizes: Sizes,
    readers: dict[str, Reader],
    rows: Rows,
    key_count: int,
    *,
    node_count: int | None = None,
) -> None:
    what, count = ("keys", key_count) if node_count is None else ("nodes", node_count)
    one = f"get, {count:,} {what}"
    many = f"get, {_LIMIT} outstanding, {count:,} {what}"
    asked = sizes.outstanding_count
    generator = random.Random(_SEED)
    for number in range(-1, sizes.growth_round_count):
        chosen = [generator.randrange(key_count) for _ in range(sizes.get_count)]
        first = chosen[0]
        for name, reader in readers.items():
            values = [reader.get_each(index, 1)[0] for index in chosen]
            if number >= 0:
                rows.add(one, name, "us", values, at=("get", what, count))
            try:
                rate = asked / reader.outstanding(first, asked, _LIMIT)
            except NotOfferedError:
                continue
            if number >= 0:
                at = (f"get, {_LIMIT} outstanding", what, count)
                rows.add(many, name, "answers/s", [rate], at=at)
