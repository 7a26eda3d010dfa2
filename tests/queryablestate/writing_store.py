"""
A process that stages and applies batch after batch, until it is killed.

Run as ``python -m tests.queryablestate.writing_store DIRECTORY``.  It prints
``staged N`` and ``applied N`` when the store has said so.  What batch N is follows
from N.
"""

from __future__ import annotations

import random
import sys

from queryablestate.store.store import StateStore
from queryablestate.wire.records import Entry, StateDropped
from queryablestate.wire.staging_messages import StageChunk
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    Row,
    chunk,
    decided,
    key,
    state,
)


VALUES = 1
LISTS = 2
DROPPED = 3
BATCH_COUNT_MAX = 2_000
STAGES = {"a": 2, "b": 1}


def rows_of(sequence: int) -> dict[int, list[Row]]:
    """Return what batch *sequence* brings to each state, each key once in a state."""
    draw = random.Random(sequence)
    keys = draw.sample(range(5_000), 1_500)
    values: list[Row] = [
        (
            key(number % 16, f"{number:05}"),
            None if number % 10 == 0 else b"%d %d" % (sequence, number) * 20,
        )
        for number in keys
    ]
    items: list[Row] = [
        (key(number), b"%d" % sequence) for number in draw.sample(range(16), 8)
    ]
    return {VALUES: values, LISTS: items, DROPPED: values[:100]}


def is_replaced(sequence: int) -> bool:
    """Return whether batch *sequence* replaces the values."""
    return sequence % 7 == 0


def entry_of(sequence: int) -> Entry:
    """Return an entry of the chain."""
    if sequence % 5 == 0:
        return StateDropped(sequence=sequence, state_number=DROPPED)
    states = [
        state(VALUES, is_replaced=is_replaced(sequence)),
        state(LISTS, kind="list"),
        state(DROPPED),
    ]
    return decided(sequence, STAGES, states=states, batch_id=sequence)


def chunks_of(sequence: int) -> list[tuple[StageChunk, bytes]]:
    """Return the chunks of a batch."""
    places = [("a", 0), ("a", 1), ("b", 0)]
    return [
        chunk(
            rows,
            state_number=number,
            stage=stage,
            index=index,
            batch_id=sequence,
        )
        for (number, rows), (stage, index) in zip(
            rows_of(sequence).items(), places, strict=True
        )
    ]


def main(directory: str) -> None:
    """Write until there is an end of it."""
    with StateStore.open(directory, node_id=NODE) as store:
        write(store)


def write(store: StateStore) -> None:
    """Stage and apply batch after batch."""
    for _ in range(BATCH_COUNT_MAX):
        sequence = store.positions().get(JOB, 0) + 1
        entry = entry_of(sequence)
        if not isinstance(entry, StateDropped):
            store.stage(chunks_of(sequence), NOW_US)
            print("staged", sequence, flush=True)
        store.apply(JOB, entry)
        print("applied", sequence, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
