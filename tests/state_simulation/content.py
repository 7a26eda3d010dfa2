"""What each batch of each query writes: the same every time that it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Final, TypeAlias

from attrs import frozen

from queryablestate.schema.key_groups import GROUP_SIZE_BYTES
from queryablestate.schema.keys import KeyCodec
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.values import ValueCodec
from queryablestate.store.rows import EXPIRY_SIZE_BYTES
from tests.simulation.timeline import MS
from tests.state_simulation.scenario import MAX_PARALLELISM, StatePlan
from tests.state_simulation.wall_clock import wall_clock_us_at


__all__ = [
    "KEYS",
    "MAP_KEYS",
    "Contents",
    "Row",
    "after_batch",
    "count_of",
    "entry_key",
    "expiry_us_of",
    "live_at",
    "map_keys",
    "moments",
    "rows_of",
    "schema_of",
    "storage_key",
    "stored_value",
    "winners",
]

_KEY_COUNT: Final = 10
_EXPIRY_NS_MAX: Final = 15_000 * MS
_KEY_FIELDS: Final = (Field("key", AtomicType.STRING),)
_MAP_KEY_FIELDS: Final = (Field("inner", AtomicType.STRING),)
_VALUE_FIELDS: Final = (Field("value", AtomicType.BINARY),)
_KEY_CODEC: Final = KeyCodec(
    _KEY_FIELDS, max_parallelism=MAX_PARALLELISM, map_fields=_MAP_KEY_FIELDS
)
_VALUE_CODEC: Final = ValueCodec(_VALUE_FIELDS)

KEYS: Final = tuple(f"k{number}" for number in range(_KEY_COUNT))
"""The keys that there are, as users write them."""

MAP_KEYS: Final = ("m0", "m1", "m2")
"""The second keys of a map state."""

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
        return int.from_bytes(self.key[:GROUP_SIZE_BYTES], "big")


def schema_of(state: StatePlan) -> StateSchema:
    """Return the columns of a state."""
    kind = StateKind(state.kind)
    return StateSchema(
        kind=kind,
        key=_KEY_FIELDS,
        map_key=_MAP_KEY_FIELDS if kind is StateKind.MAP else (),
        value=_VALUE_FIELDS,
        has_ttl=state.has_ttl,
    )


@lru_cache(maxsize=64)
def storage_key(key: str) -> bytes:
    """Return the storage key of one of `KEYS`."""
    return _KEY_CODEC.storage_key(key)


@lru_cache(maxsize=64)
def entry_key(key: str, map_key: str) -> bytes:
    """Return the storage key of one entry of a map."""
    return _KEY_CODEC.map_entry_key(key, map_key)


def map_keys(key: str) -> list[bytes]:
    """Return the storage keys of all entries that a map under *key* may have."""
    return [entry_key(key, map_key) for map_key in MAP_KEYS]


@lru_cache(maxsize=4_096)
def stored_value(value: bytes) -> bytes:
    """Return a row as it is stored."""
    return _VALUE_CODEC.encode_row((value,))


def count_of(contents: Contents, kind: str) -> int:
    """Return how many keys there are: a map counts once."""
    if kind != "map":
        return len(contents)
    return sum(not contents.keys().isdisjoint(map_keys(key)) for key in KEYS)


@lru_cache(maxsize=4_096)
def rows_of(seed: int, source: str, batch_id: int, state: StatePlan) -> Sequence[Row]:
    """Return the rows of one batch for one state."""
    rng = Random(f"{seed}/{source}/{batch_id}/{state.state_name}")
    rows: list[Row] = []
    count = rng.choice((0, 1, 2, 3, 5))
    keys = [rng.choice(KEYS) for _ in range(count)]
    if not (state.has_orders or state.kind == "list"):
        keys = sorted(set(keys))
    for index, name in enumerate(keys):
        key = storage_key(name)
        if state.kind == "map":
            key = rng.choice(map_keys(name))
        is_delete = state.has_deletes and rng.random() < 0.2
        value = stored_value(f"{source}/{batch_id}/{index}".encode())
        if state.has_ttl:
            value = _expiry(rng) + value
        rows.append(
            Row(
                key=key,
                value=None if is_delete else value,
                order=b"%d" % rng.randrange(3) if state.has_orders else None,
            )
        )
    return tuple(rows)


def _expiry(rng: Random) -> bytes:
    """Return when a row expires: at any time, whenever its batch comes, or never."""
    if rng.random() < 0.3:
        return bytes(EXPIRY_SIZE_BYTES)
    at_us = wall_clock_us_at(rng.randrange(_EXPIRY_NS_MAX))
    return at_us.to_bytes(EXPIRY_SIZE_BYTES, "big")


def live_at(contents: Contents, state: StatePlan, now_us: int) -> Contents:
    """Return what there is for readers at some time, without its expiry (rule W6)."""
    if not state.has_ttl:
        return contents
    live = {}
    for key, values in contents.items():
        left = tuple(
            value[EXPIRY_SIZE_BYTES:]
            for value in values
            if not 0 < expiry_us_of(value) <= now_us
        )
        if left:
            live[key] = left
    return live


def expiry_us_of(value: bytes) -> int:
    """Return when a stored value expires; 0 for never."""
    return int.from_bytes(value[:EXPIRY_SIZE_BYTES], "big")


def moments(
    contents: Contents, state: StatePlan, first_us: int, last_us: int
) -> list[int]:
    """Return one time for each of the different contents from *first_us* on."""
    if not state.has_ttl:
        return [first_us]
    expiries = {expiry_us_of(value) for row in contents.values() for value in row}
    return [first_us, *sorted(us for us in expiries if first_us < us <= last_us)]


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
    for row in winners(rows, state):
        if row.value is None:
            contents.pop(row.key, None)
        else:
            contents[row.key] = (row.value,)
    return contents


def winners(rows: Sequence[Row], state: StatePlan) -> Sequence[Row]:
    """Return *rows* without those that others of the same key outdo."""
    if state.kind == "list":
        return rows
    found: dict[bytes, Row] = {}
    for row in rows:
        found[row.key] = max(row, found.get(row.key, row), key=_rank)
    return tuple(found.values())


def _rank(row: Row) -> tuple[bytes, bool, bytes]:
    return row.order or b"", row.value is not None, row.value or b""
