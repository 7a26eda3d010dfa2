from __future__ import annotations

import random
from pathlib import Path

import pytest
from attrs import define, field

from queryablestate.store.store import StateStore
from queryablestate.wire.records import BatchDecided, StateDropped
from tests.queryablestate import writing_store
from tests.queryablestate.killed import said_until_killed
from tests.queryablestate.store_batches import JOB, NODE, NOW_US
from tests.queryablestate.whole_reads import WholeReader
from tests.queryablestate.writing_store import DROPPED, LISTS, VALUES


KILL_COUNT = 10


@define
class Model:
    """What the entries up to one of the chain make of nothing."""

    sequence: int = 0
    states: dict[int, dict[bytes, list[bytes]]] = field(factory=dict)

    def advance(self, sequence: int) -> None:
        """Apply the entries up to *sequence*."""
        while self.sequence < sequence:
            self.sequence += 1
            entry = writing_store.entry_of(self.sequence)
            if not isinstance(entry, BatchDecided):
                assert isinstance(entry, StateDropped)
                self.states.pop(entry.state_number, None)
                continue
            if writing_store.is_replaced(self.sequence):
                self.states.pop(VALUES, None)
            for number, rows in writing_store.rows_of(self.sequence).items():
                held = self.states.setdefault(number, {})
                for storage_key, value, *_ in rows:
                    if value is None:
                        held.pop(storage_key, None)
                    elif number == LISTS:
                        held.setdefault(storage_key, []).append(value)
                    else:
                        held[storage_key] = [value]

    def scanned(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return key and value of all rows of a state as a scan finds them."""
        held = self.states.get(number, {})
        keys = sorted(held, key=lambda storage_key: storage_key[2:])
        if number == LISTS:  # keys that differ in their group only
            keys = sorted(held)
        return [(one[2:], value) for one in keys for value in held[one]]


def scanned(store: StateStore, number: int) -> list[tuple[bytes, bytes]]:
    """Return key and value of all rows of a state, items without their index."""
    reader = WholeReader(store)
    if number == LISTS:
        rows: list[tuple[bytes, bytes]] = []
        for group in range(16):
            page = reader.scan(number, [group], b"", None, 10_000, NOW_US)
            assert page.next_start is None
            rows += [
                (row_key[:-8], value)
                for row_key, value in zip(page.rows[::2], page.rows[1::2], strict=True)
            ]
        return rows
    page = reader.scan(number, range(16), b"", None, 10_000, NOW_US)
    assert page.next_start is None
    return list(zip(page.rows[::2], page.rows[1::2], strict=True))


@pytest.mark.proves("W2", "W3", "W7")
@pytest.mark.shells
def test_a_kill_leaves_all_of_an_entry_or_nothing(tmp_path: Path) -> None:
    """And everything that was acknowledged, staged or applied, once (W2, W3, W7)."""
    draw = random.Random(5)
    model = Model()
    for _ in range(KILL_COUNT):
        said = said_until_killed(
            writing_store,
            tmp_path,
            line_count=draw.randint(3, 12),
            more_seconds=draw.uniform(0, 0.02),
        )
        applied = max([int(n) for word, n in said if word == "applied"], default=0)
        staged = max([int(n) for word, n in said if word == "staged"], default=0)
        with StateStore.open(tmp_path, node_id=NODE) as store:
            position = store.positions().get(JOB, 0)
            assert position >= max(applied, model.sequence)
            model.advance(position)
            for number in (VALUES, LISTS, DROPPED):
                assert scanned(store, number) == model.scanned(number)
                view = store.state(number)
                assert (view is not None) == (number in model.states)
            entry = writing_store.entry_of(position + 1)
            if isinstance(entry, BatchDecided):
                missing = store.missing_stages(JOB, 1, position + 1, entry.stages)
                # Both stages came in one call: both are there, or neither.
                assert len(missing) in {0, 2}
                assert missing == () or staged <= position
    assert model.sequence > KILL_COUNT
