"""
A process that applies batches to two stores and copies key groups, until it is killed.

Run as ``python -m tests.queryablestate.copying_store DIRECTORY``.  One store has all
key groups, the other one is told, every few batches, to leave some and to copy others.
It prints ``held``, ``put``, ``replayed`` and ``complete`` when the store has said so,
and ``applied N``.  What batch N is follows from N, as in `writing_store`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from queryablestate.store.hold_marks import admitted, copies_under_way
from queryablestate.store.holdings import Held
from queryablestate.store.layout import HoldMark
from queryablestate.store.marks import hold_mark
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_rows, encode_payload
from queryablestate.wire.records import BatchDecided, Entry, StateDropped
from queryablestate.wire.staging_messages import StageChunk
from tests.queryablestate import writing_store
from tests.queryablestate.store_batches import JOB, NODE, NOW_US
from tests.queryablestate.store_copying import hold, joining
from tests.queryablestate.writing_store import DROPPED


GROUPS = range(16)
BATCH_COUNT_MAX = 2_000
PAGE_SIZE_BYTES = 2_000


def number_of(state_number: int, sequence: int) -> int:
    """Return the number of a state: one that was dropped is not used again."""
    if state_number != DROPPED:
        return state_number
    return DROPPED + (sequence - 1) // 5


def entry_of(sequence: int) -> Entry:
    """Return an entry of the chain."""
    entry = writing_store.entry_of(sequence)
    if isinstance(entry, BatchDecided):
        states = [
            replace(one, state_number=number_of(one.state_number, sequence))
            for one in entry.states
        ]
        return replace(entry, states=tuple(states))
    return StateDropped(sequence=sequence, state_number=number_of(DROPPED, sequence))


def chunks_of(sequence: int) -> list[tuple[StageChunk, bytes]]:
    """Return the chunks of a batch."""
    chunks = []
    for envelope, payload in writing_store.chunks_of(sequence):
        rows = decode_rows(payload)
        number = number_of(rows.state_number, sequence)
        rows = replace(rows, state_number=number)
        chunks.append((envelope, encode_payload(rows)))
    return chunks


def mark_of(store: StateStore) -> HoldMark | None:
    """Return which key groups the store knows to have."""
    with store._environment.reading() as transaction:
        return hold_mark(transaction, store._environment.meta, JOB)


def copies_of(store: StateStore) -> list[int]:
    """Return the key groups that are held or complete."""
    runs = admitted(mark_of(store))
    return [group for first, last in runs for group in range(first, last + 1)]


def hold_again(store: StateStore) -> Held:
    """
    Tell a store what it was told before, and that what is complete is in sync.

    What is left over of anything else is removed.
    """
    held = [group for group in copies_of(store) if group in GROUPS]
    copies = copies_under_way(mark_of(store))
    return hold(store, held, joining({one.key_group: one.since for one in copies}))


def say(*words: object) -> None:
    """Tell those who read along."""
    print(*words, flush=True)


class Copying:
    """The two stores, and what is done to them."""

    def __init__(self, whole: StateStore, store: StateStore) -> None:
        self.whole = whole
        self.store = store

    def write(self) -> None:
        """Commit a batch; it is applied to the whole store alone."""
        sequence = self.whole.positions().get(JOB, 0) + 1
        entry = entry_of(sequence)
        if isinstance(entry, BatchDecided):
            self.store.stage(chunks_of(sequence), NOW_US)
            self.whole.stage(chunks_of(sequence), NOW_US)
        self.whole.apply(JOB, entry)

    def apply(self, count: int) -> None:
        """Go on with the chain."""
        head = self.whole.positions().get(JOB, 0)
        position = self.store.positions().get(JOB, 0)
        for sequence in range(position + 1, min(position + count, head) + 1):
            self.store.apply(JOB, entry_of(sequence))
            say("applied", sequence)

    def move(self, draw: random.Random) -> None:
        """Leave some key groups and copy others, while batches are committed."""
        since = self.whole.positions().get(JOB, 0)
        changed = set(draw.sample(GROUPS, 8))
        held = set(copies_of(self.store)) & set(GROUPS) - changed
        told = joining(dict.fromkeys(sorted(changed)[::2], since))
        missing = self.store.hold(JOB, held, told)
        say("held")
        self.write()
        while not self.store.remove_unheld(JOB):
            say("removed")
        self.copy(missing.missing, draw)

    def copy(self, key_groups: Iterable[int], draw: random.Random) -> None:
        """Copy, while batches are committed and applied."""
        groups = tuple(key_groups)
        if not groups:
            return
        with self.whole.copy_reader(JOB, groups) as reader:
            for index, page in enumerate(reader.pages(PAGE_SIZE_BYTES)):
                self.store.put_copied(JOB, reader.states, page)
                say("put")
                if index % 20 == 10:
                    self.write()
                    self.apply(draw.randint(0, 2))
            sequence = reader.sequence
        self.apply(BATCH_COUNT_MAX)
        while self.store.finish_copy(JOB, groups, sequence) is None:
            say("replayed")
        say("complete")


def main(directory: str) -> None:
    """Copy until there is an end of it."""
    with (
        StateStore.open(Path(directory, "whole"), node_id=NODE) as whole,
        StateStore.open(Path(directory, "part"), node_id=NODE) as store,
    ):
        copying = Copying(whole, store)
        if mark_of(store) is not None:
            draw = random.Random(whole.positions().get(JOB, 0))
            # What was under way must be at the head before it is brought up to date.
            missing = hold_again(store)
            if whole.positions().get(JOB, 0) >= missing.sequence_min:
                copying.copy(missing.missing, draw)
        while (sequence := whole.positions().get(JOB, 0)) < BATCH_COUNT_MAX:
            copying.write()
            copying.apply(2)
            copying.move(random.Random(sequence))


if __name__ == "__main__":
    main(sys.argv[1])
