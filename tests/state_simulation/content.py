"""What each batch of each query writes: the same every time that it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final, TypeAlias

from attrs import frozen

from tests.state_simulation.scenario import MAX_PARALLELISM, StatePlan


__all__ = [
    "KEY_COUNT",
    "Contents",
    "Row",
    "after_batch",
    "map_keys",
    "number_of",
    "rows_of",
    "storage_key",
]

KEY_COUNT: Final = 10
_MAP_KEY_COUNT: Final = 3
_GROUP_SIZE_BYTES: Final = 2

Contents: TypeAlias = Mapping[bytes, tuple[bytes, ...]]
"""By storage key (with map key): one value, or the items of a list."""


@frozen
class Row:
    """
    One row.

    Attributes:
        key: The storage key, with the map key if there is one.
        value: What is stored, or None for a delete.
        order: What decides between rows of one key, or None.
    """

    key: bytes
    value: bytes | None
    order: bytes | None

    @property
    def group(self) -> int:
        """Return the key group."""
        return int.from_bytes(self.key[:_GROUP_SIZE_BYTES], "big")


def storage_key(number: int) -> bytes:
    """Return the storage key of the *number*-th key."""
    return (number % MAX_PARALLELISM).to_bytes(_GROUP_SIZE_BYTES, "big") + b"k%02d" % (
        number
    )


def number_of(encoded_key: bytes) -> int:
    """Return which key that is, without its key group."""
    return int(encoded_key[1:3])


def map_keys(key: bytes) -> list[bytes]:
    """Return all keys that a map under *key* may have, each with its map key."""
    return [key + b"m%d" % number for number in range(_MAP_KEY_COUNT)]


@lru_cache(maxsize=4_096)
def rows_of(seed: int, source: str, batch_id: int, state: StatePlan) -> Sequence[Row]:
    """Return the rows of one batch for one state."""
    rng = Random(f"{seed}/{source}/{batch_id}/{state.state_name}")
    rows: list[Row] = []
    count = rng.choice((0, 1, 2, 3, 5))
    numbers = [rng.randrange(KEY_COUNT) for _ in range(count)]
    if not (state.has_orders or state.kind == "list"):
        numbers = sorted(set(numbers))
    for index, number in enumerate(numbers):
        key = storage_key(number)
        if state.kind == "map":
            key = rng.choice(map_keys(key))
        is_delete = state.has_deletes and rng.random() < 0.2
        value = f"{source}/{batch_id}/{index}".encode()
        rows.append(
            Row(
                key=key,
                value=None if is_delete else value,
                order=b"%d" % rng.randrange(3) if state.has_orders else None,
            )
        )
    return tuple(rows)


def after_batch(
    before: Contents, rows: Sequence[Row], state: StatePlan, *, is_replaced: bool
) -> Contents:
    """Return what a state holds once *rows* are applied to what it held *before*."""
    contents = {} if is_replaced else dict(before)
    if state.kind == "list":
        for row in rows:
            assert row.value is not None
            contents[row.key] = (*contents.get(row.key, ()), row.value)
        return contents
    winners: dict[bytes, tuple[bytes, bool, bytes]] = {}
    for row in rows:
        rank = (row.order or b"", row.value is not None, row.value or b"")
        winners[row.key] = max(rank, winners.get(row.key, rank))
    for key, (_, is_put, value) in winners.items():
        if is_put:
            contents[key] = (value,)
        else:
            contents.pop(key, None)
    return contents
