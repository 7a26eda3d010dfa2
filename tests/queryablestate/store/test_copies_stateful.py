"""
Two stores that come and go as copies of key groups, against one that has all of them.

The machine is what the proxy leader, the writers and the nodes do, in any order: roles
change at one moment of the chain, and a store hears of it later; rows are brought to
all that have a role; entries are applied, copies fetched page by page, and brought up
to date.  Whatever is a complete copy is, byte for byte, what the third store had after
the same entry.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nameservice import LocalProtocolError
from queryablestate.store import copies
from queryablestate.store.copy_reader import CopyReader
from queryablestate.store.groups import is_in
from queryablestate.store.state_view import StateView
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_rows
from queryablestate.wire.copy_messages import CopiedRows
from queryablestate.wire.records import BatchState, Entry, SnapshotMarked, StateDropped
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    Row,
    chunk,
    counted_sizes,
    decided,
    key,
    stage_id,
    staged_sizes,
    state,
)
from tests.queryablestate.store_copying import (
    Rows,
    joining,
    rows_by_group,
    state_numbers,
)
from tests.tiers import machine_settings


GROUPS = range(4)
KINDS = [("value", False), ("list", False), ("value", True), ("list", True)]
SYNC = -1
"""The role of a node that has an in-sync copy; others are named by their *since*."""

NODES = st.integers(0, 1)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(GROUPS),
        st.sampled_from("ab"),
        st.sampled_from([None, b"", b"1", b"22"]),
        st.sampled_from([b"", b"1", b"2"]),
    ),
    max_size=8,
)


BATCHES = st.fixed_dictionaries(
    {
        "brought": st.lists(
            st.tuples(st.integers(0, 3), st.booleans(), ROWS), min_size=1, max_size=4
        ),
        "replaced": st.sampled_from([(), (), (), (0,), (1, 3)]),
        "too_many": NODES,
        "late": st.sampled_from([(), (), (1,), (0, 3)]),
    }
)
MOVES = st.fixed_dictionaries(
    {
        "groups": st.sets(st.sampled_from(GROUPS), min_size=1),
        "is_from_node": st.booleans(),
        "size_bytes": st.sampled_from([1, 60, 1_000]),
        "step_count": st.integers(1, 5),
        "is_prompt": st.booleans(),
    }
)
RARELY = st.integers(0, 3)


@define
class Fetch:
    """A copy on its way."""

    groups: dict[int, int]
    reader: CopyReader
    pages: Iterator[CopiedRows]
    source: StateStore
    lost: set[tuple[int, int]]
    is_whole: bool
    is_over: bool = False


@define
class Node:
    """
    A store, what it should hold, and what it was told.

    Attributes:
        roles: Of each key group: `SYNC`, or since when it is joining.
        entries: The chain, with the counts of chunks that were brought here.
        held: What it was told to hold; everything before the first time.
        told: What it was told to copy, and since when.
        complete: Copies that it has completed, and since when they were begun.
        good: Key groups of which it is a copy.
        lost: States and key groups without their rows.
        is_whole: Whether the marks of states are those of the chain.
    """

    directory: Path
    store: StateStore
    roles: dict[int, int]
    entries: list[Entry] = field(factory=list)
    held: set[int] = field(factory=lambda: set(GROUPS))
    told: dict[int, int] = field(factory=dict)
    complete: dict[int, int] = field(factory=dict)
    good: set[int] = field(factory=set)
    lost: set[tuple[int, int]] = field(factory=set)
    is_whole: bool = True
    fetch: Fetch | None = None

    @property
    def position(self) -> int:
        """Return the last entry applied."""
        return self.store.positions().get(JOB, 0)


class CopyMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.whole = self.open("whole")
        self.nodes = [
            Node(self.directory / name, self.open(name), dict.fromkeys(groups, SYNC))
            for name, groups in (("node-a", GROUPS), ("node-b", ()))
        ]
        self.nodes[0].good = set(GROUPS)
        self.states: dict[int, BatchState] = {}
        self.number = 0
        self.history: list[dict[int, dict[int, Rows]]] = []
        self.views: list[dict[int, StateView | None]] = []
        self.replaced: list[set[int]] = []
        for which in range(len(KINDS)):
            self.new_state(which)
        self.note(set())

    def open(self, name: str) -> StateStore:
        """Open a store, the first time or again."""
        return StateStore.open(self.directory / name, node_id=NODE, is_durable=False)

    def teardown(self) -> None:
        """Leave nothing behind."""
        for node in self.nodes:
            self.cancel(node)
            node.store.close()
        self.whole.close()
        shutil.rmtree(self.directory)

    def new_state(self, which: int) -> None:
        """Begin a state of a kind."""
        kind, has_ttl = KINDS[which]
        self.number += 1
        self.states[which] = state(self.number, kind=kind, has_ttl=has_ttl)

    def note(self, replaced: set[int]) -> None:
        """Remember what the whole store has after its last entry."""
        numbers = range(1, self.number + 1)
        self.history.append(rows_by_group(self.whole, JOB, GROUPS))
        self.views.append({number: self.whole.state(number) for number in numbers})
        self.replaced.append(replaced)

    @property
    def head(self) -> int:
        """Return the last entry of the chain."""
        return len(self.history) - 1

    # Writers and the leader.

    @rule(
        batches=st.lists(BATCHES, min_size=2, max_size=4),
        index=NODES,
        move=MOVES,
    )
    def stream(
        self, batches: list[dict[str, Any]], index: int, move: dict[str, Any]
    ) -> None:
        """Batches go on being committed while a node copies."""
        for batch in batches:
            self.write(**batch)
            self.advance(index, **move)

    @rule(batch=BATCHES)
    def write_one(self, batch: dict[str, Any]) -> None:
        """A batch is brought and decided."""
        self.write(**batch)

    def write(
        self,
        brought: list[tuple[int, bool, list[tuple[int, str, bytes | None, bytes]]]],
        replaced: tuple[int, ...],
        too_many: int,
        late: tuple[int, ...],
    ) -> None:
        """
        A batch is brought and decided.

        One node may get rows of all key groups, and those of the *late* ones are
        collected from another, as if roles had changed in between.
        """
        sequence = self.head + 1
        counts: dict[str, int] = {}
        places: list[tuple[str, int, int, list[Row]]] = []
        for place, (which, has_orders, drawn) in enumerate(brought):
            stage = "ab"[place // 2]
            rows = [self.row(which, row, has_orders=has_orders) for row in drawn]
            index = counts.get(stage, 0)
            counts[stage] = index + 1
            places.append((stage, index, which, rows))
        states = [
            state(
                one.state_number,
                kind=one.kind,
                has_ttl=one.has_ttl,
                is_replaced=which in replaced,
            )
            for which, one in self.states.items()
        ]
        self.bring(self.whole, sequence, places, GROUPS)
        self.whole.apply(
            JOB, decided(sequence, counts, states=states, batch_id=sequence)
        )
        # What was applied is gone from there: another one has it for who collects.
        with (
            tempfile.TemporaryDirectory() as directory,
            StateStore.open(directory, node_id=NODE, is_durable=False) as other,
        ):
            self.bring(other, sequence, places, GROUPS)
            for index, node in enumerate(self.nodes):
                groups = set(node.roles) - set(late)
                if index == too_many:
                    groups |= set(GROUPS) - set(late)
                here = self.bring(node.store, sequence, places, groups)
                collected = set(node.roles) & set(late)
                here = self.collect(other, node, counts, here, collected)
                node.entries.append(
                    decided(sequence, here, states=states, batch_id=sequence)
                )
        self.note({self.states[which].state_number for which in replaced})

    def row(
        self,
        which: int,
        row: tuple[int, str, bytes | None, bytes],
        *,
        has_orders: bool,
    ) -> Row:
        """Return a row of a chunk."""
        group, text, value, order = row
        if value is not None and self.states[which].has_ttl:
            value = bytes(8) + value
        storage_key = key(group, text)
        return (storage_key, value, order) if has_orders else (storage_key, value)

    def bring(
        self,
        store: StateStore,
        sequence: int,
        places: Sequence[tuple[str, int, int, list[Row]]],
        groups: set[int] | range,
    ) -> dict[str, int]:
        """Stage the rows of some key groups, and return how many chunks each has."""
        counts: dict[str, int] = {}
        for stage, _, which, rows in places:
            index = counts.setdefault(stage, 0)
            here = [row for row in rows if int.from_bytes(row[0][:2], "big") in groups]
            if here or groups is GROUPS:
                sent = chunk(
                    here,
                    state_number=self.states[which].state_number,
                    stage=stage,
                    index=index,
                    batch_id=sequence,
                )
                store.stage([sent], 1)
                counts[stage] = index + 1
        return counts

    def collect(
        self,
        source: StateStore,
        node: Node,
        whole: dict[str, int],
        here: dict[str, int],
        groups: set[int],
    ) -> dict[str, int]:
        """Bring a node what it lacks from one that has it, stage by stage."""
        counts: dict[str, int] = {}
        sequence = self.head + 1
        entry = decided(sequence, whole, batch_id=sequence)
        for name, stage in zip(whole, entry.stages, strict=True):
            counts[name] = here.get(name, 0)
            payloads = list(source.staged_payloads(JOB, 1, sequence, stage, groups))
            assert stage.stage_id == stage_id(name)
            for index, payload in enumerate(payloads):
                rows = decode_rows(payload)
                assert {int.from_bytes(k[:2], "big") for k in rows.keys} <= groups
                envelope, _ = chunk(
                    [], stage=name + "c", index=index, batch_id=sequence
                )
                node.store.stage([(envelope, payload)], 1)
            counts[name + "c"] = len(payloads)
        return counts

    @rule(which=st.integers(0, 3))
    def drop_state(self, which: int) -> None:
        """A state is dropped, and another one begun."""
        number = self.states[which].state_number
        self.decide(StateDropped(sequence=self.head + 1, state_number=number))
        self.new_state(which)

    @rule()
    def mark_snapshot(self) -> None:
        """An entry that changes nothing."""
        self.decide(SnapshotMarked(sequence=self.head + 1, snapshot_id="s"))

    def decide(self, entry: Entry) -> None:
        """Add an entry to the chain of everybody."""
        self.whole.apply(JOB, entry)
        for node in self.nodes:
            node.entries.append(entry)
        self.note(set())

    @rule(index=NODES, groups=st.sets(st.sampled_from(GROUPS), min_size=1))
    def join(self, index: int, groups: set[int]) -> None:
        """A node is to copy key groups; so is one that was a copy."""
        node = self.nodes[index]
        for group in groups:
            if node.roles.get(group, SYNC) != SYNC:
                continue  # it is being copied already
            node.roles[group] = self.head
            node.good.discard(group)

    @rule(
        index=NODES,
        groups=st.sets(st.sampled_from(GROUPS), min_size=1),
        chance=RARELY,
    )
    def leave(self, index: int, groups: set[int], chance: int) -> None:
        """A node is no copy any more."""
        if chance:
            return
        node = self.nodes[index]
        for group in groups:
            node.roles.pop(group, None)
            node.good.discard(group)

    @rule(index=NODES)
    def promote(self, index: int) -> None:
        """What is copied completely is in sync from now on."""
        node = self.nodes[index]
        for group, since in node.complete.items():
            if node.roles.get(group) == since:
                node.roles[group] = SYNC

    # Nodes.

    @rule(index=NODES)
    def tell(self, index: int) -> None:
        """A node hears what it is to hold, once more or for the first time (S2)."""
        node = self.nodes[index]
        held = {group for group, role in node.roles.items() if role == SYNC}
        told = {group: role for group, role in node.roles.items() if role != SYNC}
        fetch = node.fetch
        if fetch is not None and not fetch.groups.items() <= told.items():
            self.cancel(node)
        complete = {
            group: since
            for group, since in node.complete.items()
            if told.get(group) == since
        }
        absent = held - node.held - set(node.complete)
        node.lost = {one for one in node.lost if one[1] in held or one[1] in complete}
        node.lost |= {
            (number, group) for number in state_numbers(node.store) for group in absent
        }
        node.good |= absent
        answer = node.store.hold(JOB, held, joining(told))
        assert answer.copied == tuple(sorted(complete))
        assert answer.missing == tuple(sorted(set(told) - set(complete)))
        assert answer.sequence_min >= max(
            (told[group] for group in answer.missing), default=0
        )
        node.held, node.told, node.complete = held, told, complete

    @rule(index=NODES)
    def remove(self, index: int) -> None:
        """Rows of what a node does not hold any more go, before or after others."""
        node = self.nodes[index]
        if node.store.remove_unheld(JOB):
            kept = node.held | set(node.told)
            assert rows_by_group(node.store, JOB, set(GROUPS) - kept) == {}

    @precondition(lambda self: any(node.position < self.head for node in self.nodes))
    @rule(index=NODES, count=st.integers(1, 3))
    def apply(self, index: int, count: int) -> None:
        """A node goes on with the chain."""
        self.apply_next(self.nodes[index], count)

    def apply_next(self, node: Node, count: int) -> None:
        """Apply entries, to a store and to what is lost of it."""
        for entry in node.entries[node.position :][:count]:
            node.store.apply(JOB, entry)
            node.lost = {
                (number, group)
                for number, group in node.lost
                if number not in self.replaced[entry.sequence]
                and node.store.state(number) is not None
            }

    @rule(index=NODES, move=MOVES)
    def move(self, index: int, move: dict[str, Any]) -> None:
        """A node copies, and nothing else happens."""
        self.advance(index, **move)

    def advance(
        self,
        index: int,
        *,
        is_from_node: bool,
        size_bytes: int,
        step_count: int,
        groups: set[int],
        is_prompt: bool,
    ) -> None:
        """Have a node do what is next, or copy more if there is nothing."""
        if is_prompt:
            self.apply_next(self.nodes[index], self.head)
        if all(role == SYNC for role in self.nodes[index].roles.values()):
            self.join(index, groups)
        for _ in range(step_count):
            node = self.nodes[index]
            fetch = node.fetch
            told = {group: role for group, role in node.roles.items() if role != SYNC}
            if told != node.told:
                self.tell(index)
            elif fetch is not None and not fetch.is_over:
                self.put(index, 5)
            elif fetch is not None and node.position < fetch.reader.sequence:
                self.apply_next(node, 1)
            elif fetch is not None:
                self.finish(index, 1)
            elif set(told) - set(node.complete):
                self.fetch(index, is_from_node, size_bytes)
            else:
                self.promote(index)

    @rule(index=NODES, is_from_node=st.booleans(), size_bytes=st.integers(1, 60))
    def fetch(self, index: int, is_from_node: bool, size_bytes: int) -> None:
        """A node begins to fetch what it lacks, from one that is far enough (S2)."""
        node, other = self.nodes[index], self.nodes[1 - index]
        groups = {
            group: since
            for group, since in node.told.items()
            if group not in node.complete
        }
        there = {
            group: since
            for group, since in groups.items()
            if other.roles.get(group) == SYNC and group in other.good
        }
        source = self.whole
        if is_from_node and there:
            groups, source = there, other.store
        answer = node.store.hold(JOB, node.held, joining(node.told))
        at = source.positions().get(JOB, 0)
        if not groups or at < answer.sequence_min:
            return
        self.cancel(node)
        reader = source.copy_reader(JOB, groups)
        assert reader.sequence == at
        is_other = source is not self.whole
        node.fetch = Fetch(
            groups,
            reader,
            reader.pages(size_bytes),
            source,
            lost=set(other.lost) if is_other else set(),
            is_whole=other.is_whole or not is_other,
        )

    @rule(index=NODES, count=st.integers(1, 20))
    def put(self, index: int, count: int) -> None:
        """Pages arrive."""
        node = self.nodes[index]
        fetch = node.fetch
        for _ in range(count):
            page = None if fetch is None else next(fetch.pages, None)
            if fetch is None or page is None:
                break
            node.store.put_copied(JOB, fetch.reader.states, page)
        else:
            return
        if fetch is not None:
            fetch.reader.close()
            fetch.is_over = True

    @rule(index=NODES, count=st.integers(1, 3))
    def finish(self, index: int, count: int) -> None:
        """A copy is brought up to date, two kept entries at a time (S2)."""
        node = self.nodes[index]
        fetch = node.fetch
        if fetch is None or not fetch.is_over:
            return
        sequence = fetch.reader.sequence
        if node.position < sequence:
            with pytest.raises(LocalProtocolError, match="apply the entries"):
                node.store.finish_copy(JOB, tuple(fetch.groups), sequence)
            return
        for _ in range(count):
            done = node.store.finish_copy(JOB, tuple(fetch.groups), sequence)
            if done is not None:
                break
        else:
            return
        assert done == tuple(sorted(fetch.groups))
        node.fetch = None
        found = set().union(*self.replaced[sequence + 1 : node.position + 1])
        for group, since in fetch.groups.items():
            node.complete[group] = since
            if node.roles.get(group) == since:
                node.good.add(group)
                node.is_whole |= fetch.is_whole
        node.lost |= {
            (number, group)
            for number, group in fetch.lost
            if group in fetch.groups
            and number not in found
            and node.store.state(number) is not None
        }

    def cancel(self, node: Node) -> None:
        """Fetch no more."""
        if node.fetch is not None:
            node.fetch.reader.close()
            node.fetch = None

    @rule(index=NODES, chance=RARELY)
    def restart(self, index: int, chance: int) -> None:
        """A node ends and comes back; copies that were not complete are begun anew."""
        if chance:
            return
        node = self.nodes[index]
        self.cancel(node)
        for one in self.nodes:
            if one.fetch is not None and one.fetch.source is node.store:
                self.cancel(one)
        node.store.close()
        node.store = self.open(node.directory.name)

    @rule(index=NODES, chance=RARELY)
    def reset(self, index: int, chance: int) -> None:
        """A node begins anew at the head of the chain: its rows are lost (W7)."""
        if chance:
            return
        node = self.nodes[index]
        self.cancel(node)
        numbers = [
            number for number, view in self.views[-1].items() if view is not None
        ]
        node.store.reset_job(JOB, self.head, numbers)
        node.lost = {(number, group) for number in numbers for group in node.held}
        node.good &= node.held
        node.complete = {}
        node.is_whole = False

    @rule(index=NODES)
    def retain(self, index: int) -> None:
        """Stages that are not added to are given up, but not those that are kept."""
        node = self.nodes[index]
        if node.position == self.head:
            node.store.drop_stages_older_than(1_000)

    # What must hold.

    @invariant()
    def staged_bytes_are_counted(self) -> None:
        """What is staged, and not kept for copies, is what is counted (B4)."""
        for node in self.nodes:
            assert counted_sizes(node.store) == staged_sizes(node.store)

    @invariant()
    def copies_are_equal(self) -> None:
        """Every complete copy is what the whole store had after that entry (S1, S2)."""
        for node in self.nodes:
            position = node.position
            found = rows_by_group(node.store, JOB, node.good)
            for number, view in self.views[position].items():
                there = self.history[position].get(number, {})
                here = found.get(number, {})
                for group in node.good:
                    if (number, group) not in node.lost:
                        assert here.get(group) == there.get(group)
                self.check_view(node, number, view)

    def check_view(self, node: Node, number: int, view: StateView | None) -> None:
        """What a reader is told of a state is of that entry too (Q1, W7)."""
        seen = node.store.state(number)
        for group in node.good:
            is_lost = seen is not None and is_in(seen.lost, group)
            assert is_lost == ((number, group) in node.lost)
        if node.is_whole and node.good:
            assert (seen is None) == (view is None)
            if seen is not None and view is not None:
                assert (seen.generation, seen.batch_id, seen.decided_at_us) == (
                    view.generation,
                    view.batch_id,
                    view.decided_at_us,
                )
                assert (seen.kind, seen.has_ttl) == (view.kind, view.has_ttl)


@pytest.fixture(autouse=True)
def _few_entries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch up in more than one step: the store may be closed between two."""
    monkeypatch.setattr(copies, "_REPLAYED_ENTRIES_MAX", 2)


TestCopyMachine = pytest.mark.proves("Q1", "S1", "S2", "W7")(CopyMachine.TestCase)
# Many steps: to join, hear of it, fetch and finish are four, and batches come between.
TestCopyMachine.settings = machine_settings(examples=100, steps=60)
