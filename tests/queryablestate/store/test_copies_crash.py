from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from queryablestate.store.hold_marks import copies_under_way
from queryablestate.store.store import StateStore
from tests.queryablestate import copying_store
from tests.queryablestate.copying_store import (
    copies_of,
    hold_again,
    mark_of,
    number_of,
)
from tests.queryablestate.killed import said_until_killed
from tests.queryablestate.store.test_store_crash import Model
from tests.queryablestate.store_batches import JOB, NODE
from tests.queryablestate.store_copying import kept_sequences, rows_by_group
from tests.queryablestate.writing_store import LISTS


KILL_COUNT = 10


def content(store: StateStore, groups: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
    """Return what the states hold in these key groups, items of a list as one."""
    found: dict[int, dict[bytes, bytes]] = {}
    for number, rows_of in rows_by_group(store, JOB, groups).items():
        held = found.setdefault(number, {})
        for rows in rows_of.values():
            for row_key, value in rows:
                storage_key = row_key[:-8] if number == LISTS else row_key
                held[storage_key] = held.get(storage_key, b"") + value + b";"
    return found


def expected(model: Model, groups: Iterable[int]) -> dict[int, dict[bytes, bytes]]:
    """Return what they should hold."""
    wanted = {group.to_bytes(2, "big") for group in groups}
    found = {
        number_of(number, model.sequence): {
            storage_key: b"".join(value + b";" for value in values)
            for storage_key, values in held.items()
            if storage_key[:2] in wanted
        }
        for number, held in model.states.items()
    }
    return {number: held for number, held in found.items() if held}


@pytest.mark.proves("S1", "S2")
@pytest.mark.shells
def test_a_kill_leaves_no_half_copy(tmp_path: Path) -> None:
    """What is complete is all there, as of the position, and nothing else (S1, S2)."""
    draw = random.Random(7)
    model = Model()
    said: list[list[str]] = []
    under_way = 0
    for _ in range(KILL_COUNT):
        said += said_until_killed(
            copying_store,
            tmp_path,
            line_count=draw.randint(30, 300),
            more_seconds=draw.uniform(0, 0.02),
        )
        with StateStore.open(tmp_path / "part", node_id=NODE) as store:
            position = store.positions().get(JOB, 0)
            model.advance(position)
            copies = set(copies_of(store)) & set(copying_store.GROUPS)
            assert content(store, copies) == expected(model, copies)
            under_way += bool(copies_under_way(mark_of(store)))
            held = hold_again(store)
            copying = set(held.missing)
            assert copies_of(store) == sorted(copies)
            assert content(store, set(range(16)) - copies - copying) == {}
            if not copying:
                assert kept_sequences(store) == []
    assert {"held", "put", "replayed", "complete"} <= {words[0] for words in said}
    assert under_way > 0
