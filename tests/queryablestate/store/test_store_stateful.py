"""The store against a model that keeps everything in dictionaries."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import define, field
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nameservice import LocalProtocolError
from queryablestate import StagedDataMissingError, StaleWriterError
from queryablestate.store.groups import ALL_GROUPS
from queryablestate.store.state_view import StateView
from queryablestate.store.store import StateStore
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.records import BatchDecided, BatchState, Entry, StateDropped
from tests.queryablestate.store_batches import (
    NODE,
    Row,
    chunk,
    counted_sizes,
    decided,
    expiring,
    key,
    stage_id,
    staged_sizes,
    state,
)
from tests.queryablestate.whole_reads import WholeReader
from tests.tiers import machine_settings


GROUPS = range(3)
# An encoded key is in one group only; in their order the groups take turns.
KEYS = [key(group, text) for group, text in zip((0, 1, 2) * 2, "becfad", strict=True)]
MAP_KEYS = [b"\x01m", b"\x01n"]
QUERIES = {"q1": "x", "q2": "y", "q3": "y"}
KINDS = {
    "q1": [("value", False), ("list", True)],
    "q2": [("map", True), ("value", True)],
    "q3": [("list", False), ("map", False)],
}

NUMBERS = st.integers(0, 2**16)
Brought = tuple[str, int, bool, list[tuple[bytes, bytes, bytes | None, int, bytes]]]
"""Stage, which state, whether with orders; key, map key, value, lifetime, order."""

BROUGHT = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 1),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(KEYS),
            st.sampled_from(MAP_KEYS),
            st.sampled_from([None, b"", b"1", b"2"]),
            st.integers(-1, 6),
            st.sampled_from([b"", b"1", b"2"]),
        ),
        max_size=8,
    ),
)


@define
class ModelState:
    """A state: its view, and rows as they are stored."""

    view: dict[str, Any]
    values: dict[bytes, bytes] = field(factory=dict)
    lists: dict[bytes, list[bytes]] = field(factory=dict)


@define
class ModelBatch:
    """What is staged of a batch, in the order of arrival."""

    query_id: str
    received_at_us: int
    chunks: dict[tuple[str, int], tuple[int, Sequence[Row]]] = field(factory=dict)


def key_size_of(encoded: bytes) -> int:
    """Return how much of an encoded key with map key is the key."""
    return encoded.index(b"\0\0") + 2


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.open()
        self.now_us = 1
        self.tickets = 0
        self.state_count = 0
        self.check_count = 0
        self.epochs: dict[str, int] = {}
        self.batch_ids: dict[str, int] = {}
        self.states: dict[str, list[BatchState]] = {}
        self.chains: dict[str, list[Entry]] = {"x": [], "y": []}
        # The model of the store.
        self.positions: dict[str, int] = {}
        self.fences: dict[str, int] = {}
        self.staged: dict[tuple[str, int, int], ModelBatch] = {}
        self.model: dict[int, ModelState] = {}

    def open(self) -> None:
        """Open the directory, the first time or again."""
        self.store = StateStore.open(self.directory, node_id=NODE, is_durable=False)
        self.reader: WholeReader = WholeReader(self.store)

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.store.close()
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self) -> None:
        """Every query has a run and two states."""
        for query_id, kinds in KINDS.items():
            self.batch_ids[query_id] = 0
            self.run(query_id, is_fenced=False)
            self.states[query_id] = [
                state(self.next_state(), kind=kind, has_ttl=has_ttl)
                for kind, has_ttl in kinds
            ]

    def next_state(self) -> int:
        """Return a number that no state has had."""
        self.state_count += 1
        return self.state_count

    # Runs.

    @rule(query_id=st.sampled_from(sorted(QUERIES)), is_fenced=st.booleans())
    def run(self, query_id: str, is_fenced: bool) -> None:
        """A run begins, and the node may hear of it before its rows come."""
        self.tickets += 1
        self.epochs[query_id] = self.tickets
        if is_fenced:
            self.fence(query_id, self.tickets)

    @rule(query_id=st.sampled_from(sorted(QUERIES)), lower=st.integers(0, 3))
    def fence_again(self, query_id: str, lower: int) -> None:
        """An older fence is no news."""
        self.fence(query_id, max(1, self.fences.get(query_id, 1) - lower))

    def fence(self, query_id: str, writer_epoch: int) -> None:
        """Tell the store and the model."""
        job_id = QUERIES[query_id]
        self.store.fence(
            [WriterFence(job_id=job_id, query_id=query_id, writer_epoch=writer_epoch)]
        )
        self.fences[query_id] = max(self.fences.get(query_id, 0), writer_epoch)

    # Staging.

    @rule(query_id=st.sampled_from(sorted(QUERIES)), brought=BROUGHT)
    def stage(self, query_id: str, brought: Brought) -> None:
        """A task brings one more chunk of the next batch."""
        self.bring(query_id, brought)

    @rule(
        query_id=st.sampled_from(sorted(QUERIES)),
        some=st.lists(BROUGHT, min_size=1, max_size=3),
        replaced=st.sampled_from([(), (), (), (0,), (1,)]),
    )
    def write(
        self, query_id: str, some: list[Brought], replaced: tuple[int, ...]
    ) -> None:
        """All goes well: a batch is brought, decided and applied."""
        for brought in some:
            self.bring(query_id, brought)
        self.decide(query_id, list("bca"), 3, replaced, 1)
        job_id = QUERIES[query_id]
        for _ in range(3):
            if job_id in self.behind():
                self.apply(self.behind().index(job_id))

    def bring(self, query_id: str, brought: Brought) -> None:
        """Stage a chunk of the next batch, in the store and in the model."""
        stage, which, has_orders, drawn = brought
        batch_state = self.states[query_id][which]
        rows: list[Row] = []
        for storage_key, map_key, value, lifetime_us, order in drawn:
            row_key = storage_key + (map_key if batch_state.kind == "map" else b"")
            if value is not None and batch_state.has_ttl:
                expires_at_us = 0 if lifetime_us < 0 else self.now_us + lifetime_us
                value = expiring(value, expires_at_us)  # noqa: PLW2901 (a drawn one)
            rows.append((row_key, value, order) if has_orders else (row_key, value))
        staged_key = (
            QUERIES[query_id],
            self.epochs[query_id],
            self.batch_ids[query_id],
        )
        batch = self.staged.get(staged_key)
        taken = (
            [] if batch is None else [one for one in batch.chunks if one[0] == stage]
        )
        sent = chunk(
            rows,
            state_number=batch_state.state_number,
            stage=stage,
            index=len(taken),
            batch_id=staged_key[2],
            writer_epoch=staged_key[1],
            job_id=staged_key[0],
            query_id=query_id,
        )
        if staged_key[1] < self.fences.get(query_id, 0):
            with pytest.raises(StaleWriterError):
                self.store.stage([sent], self.now_us)
            return
        # The second one is what a writer sends again that had no answer.
        self.store.stage([sent, sent], self.now_us)
        if batch is None:
            batch = self.staged[staged_key] = ModelBatch(query_id, self.now_us)
        batch.received_at_us = self.now_us
        ordered = sorted(rows, key=lambda row: row[0])
        batch.chunks[stage, len(taken)] = (batch_state.state_number, ordered)

    @rule(age_us=st.sampled_from([0, 10, 20, 30]))
    def retain(self, age_us: int) -> None:
        """Batches that were not added to for long are given up."""
        before_us = self.now_us - age_us
        old = [
            staged_key
            for staged_key, batch in self.staged.items()
            if batch.received_at_us < before_us
        ]
        assert self.store.drop_stages_older_than(before_us) == len(old)
        for staged_key in old:
            del self.staged[staged_key]

    # The chain.

    @rule(
        query_id=st.sampled_from(sorted(QUERIES)),
        names=st.permutations("abc"),
        winner_count=st.integers(0, 3),
        replaced=st.sampled_from([(), (), (0,), (0, 1)]),
        skipped=st.integers(1, 2),
    )
    def decide(
        self,
        query_id: str,
        names: list[str],
        winner_count: int,
        replaced: tuple[int, ...],
        skipped: int,
    ) -> None:
        """The proxy takes some of the stages that are complete on this node."""
        job_id, writer_epoch = QUERIES[query_id], self.epochs[query_id]
        batch_id = self.batch_ids[query_id]
        batch = self.staged.get((job_id, writer_epoch, batch_id))
        counts = dict.fromkeys(names[:winner_count], 0)
        for name, _ in () if batch is None else batch.chunks:
            if name in counts:
                counts[name] += 1
        entry = decided(
            len(self.chains[job_id]) + 1,
            counts,
            states=[
                state(
                    one.state_number,
                    kind=one.kind,
                    has_ttl=one.has_ttl,
                    generation=writer_epoch,
                    is_replaced=place in replaced,
                )
                for place, one in enumerate(self.states[query_id])
            ],
            batch_id=batch_id,
            writer_epoch=writer_epoch,
            query_id=query_id,
            decided_at_us=self.now_us,
        )
        assert (
            self.store.missing_stages(job_id, writer_epoch, batch_id, entry.stages)
            == ()
        )
        self.chains[job_id].append(entry)
        self.batch_ids[query_id] += skipped

    @rule(query_id=st.sampled_from(sorted(QUERIES)), which=st.integers(0, 1))
    def drop_state(self, query_id: str, which: int) -> None:
        """A state is dropped, and another one begun under a new number."""
        chain = self.chains[QUERIES[query_id]]
        old = self.states[query_id][which]
        chain.append(
            StateDropped(sequence=len(chain) + 1, state_number=old.state_number)
        )
        self.states[query_id][which] = state(
            self.next_state(), kind=old.kind, has_ttl=old.has_ttl
        )

    def behind(self) -> list[str]:
        """Return the jobs that have entries which are not applied yet."""
        return [
            job_id
            for job_id, chain in self.chains.items()
            if self.positions.get(job_id, 0) < len(chain)
        ]

    @precondition(lambda self: bool(self.behind()))
    @rule(which=NUMBERS)
    def apply(self, which: int) -> None:
        """The next entry comes, with all its rows or without some of them."""
        behind = self.behind()
        job_id = behind[which % len(behind)]
        entry = self.chains[job_id][self.positions.get(job_id, 0)]
        if isinstance(entry, StateDropped):
            self.store.apply(job_id, entry)
            self.model.pop(entry.state_number, None)
        else:
            assert isinstance(entry, BatchDecided)
            chunks = self.winning_chunks(job_id, entry)
            if chunks is None:
                with pytest.raises(StagedDataMissingError):
                    self.store.apply(job_id, entry)
                return
            known = {one.state_number for one in entry.states}
            self.store.apply(job_id, entry)
            chunks = [one for one in chunks if one[0] in known]
            self.apply_to_model(job_id, entry, chunks)
        self.positions[job_id] = entry.sequence

    def winning_chunks(
        self, job_id: str, entry: BatchDecided
    ) -> list[tuple[int, Sequence[Row]]] | None:
        """Return what the model has of the winners, None if some of it is missing."""
        batch = self.staged.get((job_id, entry.writer_epoch, entry.batch_id))
        chunks: list[tuple[int, Sequence[Row]]] = []
        for stage in entry.stages:
            (name,) = (one for one in "abc" if stage_id(one) == stage.stage_id)
            for index in range(stage.chunk_counts[NODE]):
                if batch is None or (name, index) not in batch.chunks:
                    return None
                chunks.append(batch.chunks[name, index])
        return chunks

    def apply_to_model(
        self,
        job_id: str,
        entry: BatchDecided,
        chunks: list[tuple[int, Sequence[Row]]],
    ) -> None:
        """Do what the entry says, row by row."""
        for one in entry.states:
            old = self.model.get(one.state_number)
            lost = () if old is None or one.is_replaced else old.view["lost"]
            new = ModelState(
                view={
                    "job_id": job_id,
                    "generation": one.generation,
                    "batch_id": entry.batch_id,
                    "decided_at_us": entry.decided_at_us,
                    "kind": one.kind,
                    "has_ttl": one.has_ttl,
                    "lost": lost,
                }
            )
            if old is not None and not one.is_replaced:
                new.values, new.lists = old.values, old.lists
            self.model[one.state_number] = new
            rows = [
                row
                for number, some in chunks
                if number == one.state_number
                for row in some
            ]
            plain = [row for row in rows if len(row) == 2]
            ordered = [row for row in rows if len(row) == 3]
            if one.kind == "list":
                ordered.sort(key=lambda row: row[2:])  # stable; key by key below
            else:
                ordered.sort(
                    key=lambda row: (row[2:], row[1] is not None, row[1] or b"")
                )
            for row in plain + ordered:
                row_key, value = row[:2]
                if one.kind != "list":
                    if value is None:
                        new.values.pop(row_key, None)
                    else:
                        new.values[row_key] = value
                elif value is None:
                    new.lists.pop(row_key, None)
                else:
                    new.lists.setdefault(row_key, []).append(value)
        for staged_key, batch in list(self.staged.items()):
            if (
                staged_key[0] == job_id
                and batch.query_id == entry.query_id
                and staged_key[1:] <= (entry.writer_epoch, entry.batch_id)
            ):
                del self.staged[staged_key]
        self.fences[entry.query_id] = max(
            self.fences.get(entry.query_id, 0), entry.writer_epoch
        )

    @rule(job_id=st.sampled_from("xy"), which=NUMBERS, ahead=st.integers(2, 3))
    def apply_out_of_turn(self, job_id: str, which: int, ahead: int) -> None:
        """What was applied is passed over, what is ahead of its turn refused."""
        position = self.positions.get(job_id, 0)
        chain = self.chains[job_id]
        if 0 < position <= len(chain):
            self.store.apply(job_id, chain[which % position])
        with pytest.raises(LocalProtocolError):
            self.store.apply(job_id, decided(position + ahead, {}))

    @rule(job_id=st.sampled_from("xy"), is_all=st.booleans())
    def reset(self, job_id: str, is_all: bool) -> None:
        """The proxy leader finds that the node has lost what it had."""
        numbers = sorted(
            one.state_number
            for query_id, states in self.states.items()
            if QUERIES[query_id] == job_id
            for one in states
        )
        if not is_all:
            del numbers[::2]
        sequence = len(self.chains[job_id])
        self.store.reset_job(job_id, sequence, numbers)
        self.positions[job_id] = sequence
        for number, one in list(self.model.items()):
            if one.view["job_id"] == job_id:
                del self.model[number]
        for number in numbers:
            self.model[number] = ModelState(
                view={
                    "job_id": job_id,
                    "generation": 0,
                    "batch_id": None,
                    "decided_at_us": 0,
                    "kind": "",
                    "has_ttl": False,
                    "lost": ALL_GROUPS,
                }
            )

    # The world.

    @rule()
    def reopen(self) -> None:
        """The node restarts."""
        self.store.close()
        self.open()

    @rule(duration_us=st.integers(1, 5))
    def pass_time(self, duration_us: int) -> None:
        """Rows expire."""
        self.now_us += duration_us

    @rule(limit=st.integers(1, 10))
    def sweep(self, limit: int) -> None:
        """No reader can tell whether expired rows are still there."""
        assert 0 <= self.store.sweep_expired(self.now_us, limit) <= limit

    # What readers see.

    def live(self, one: ModelState, stored: bytes) -> bytes | None:
        """Return the value of a row, None if it has expired."""
        if not one.view["has_ttl"]:
            return stored
        expires_at_us = int.from_bytes(stored[:8], "big")
        return None if 0 < expires_at_us <= self.now_us else stored[8:]

    @invariant()
    def marks_are_those_of_the_model(self) -> None:
        """Positions and fences are what they should be (W1, W3)."""
        assert self.store.positions() == self.positions
        assert self.store.fences() == {
            (QUERIES[query_id], query_id): epoch
            for query_id, epoch in self.fences.items()
        }

    @invariant()
    def staged_bytes_are_counted(self) -> None:
        """What is staged and not decided is what is counted for its job (B4)."""
        assert counted_sizes(self.store) == staged_sizes(self.store)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        """Every way to read finds every row that is there, once (W6, Q1)."""
        self.check_count += 1
        for number in range(1, self.state_count + 1):
            one = self.model.get(number)
            view = None if one is None else StateView(**one.view)
            assert self.store.state(number) == view
            if one is None or view is None:
                assert self.reader.count(number, GROUPS, self.now_us) == (None, 0)
            elif one.view["kind"] == "list":
                self.check_lists(number, one, view)
            else:
                self.check_values(number, one, view)

    def check_values(self, number: int, one: ModelState, view: StateView) -> None:
        """Read a value or map state in every way."""
        live = {
            row_key: value
            for row_key, stored in one.values.items()
            if (value := self.live(one, stored)) is not None
        }
        row_keys = [*KEYS, *(one + other for one in KEYS for other in MAP_KEYS)]
        read = self.reader.get_values(number, row_keys, self.now_us)
        assert read.view == view
        assert read.values == [live.get(row_key) for row_key in row_keys]
        by_key = sorted((row_key[2:], value) for row_key, value in live.items())
        assert self.scanned(number, view) == by_key
        sizer = None
        count = len(live)
        if view.kind == "map":
            sizer = key_size_of
            maps: dict[bytes, list[bytes]] = {}
            for row_key in sorted(live):
                storage_key, map_key = row_key[:-2], row_key[-2:]
                maps.setdefault(storage_key, []).extend((map_key, live[row_key]))
            entries = self.reader.get_entries(number, KEYS, self.now_us)
            assert entries.values == [maps.get(one) for one in KEYS]
            count = len(maps)
        assert self.reader.count(number, GROUPS, self.now_us, sizer) == (view, count)

    def check_lists(self, number: int, one: ModelState, view: StateView) -> None:
        """Read a list state in every way."""
        lists = {
            storage_key: live
            for storage_key, items in one.lists.items()
            if (live := [v for i in items if (v := self.live(one, i)) is not None])
        }
        for start, stop in ((0, None), (-2, None), (1, -1)):
            read = self.reader.get_items(number, KEYS, start, stop, self.now_us)
            assert read.view == view
            assert read.values == [
                lists[one][start:stop] if one in lists else None for one in KEYS
            ]
        rows = self.scanned(number, view)
        row_keys = [row_key for row_key, _ in rows]
        assert row_keys == sorted(set(row_keys))
        assert [(row_key[:-8], value) for row_key, value in rows] == sorted(
            ((one[2:], value) for one, items in lists.items() for value in items),
            key=lambda row: row[0],
        )
        assert self.reader.count(number, GROUPS, self.now_us) == (view, len(lists))

    def scanned(self, number: int, view: StateView) -> list[tuple[bytes, bytes]]:
        """Return all rows, page by page, whatever the size of the pages."""
        rows: list[bytes] = []
        start: bytes | None = b""
        while start is not None:
            page = self.reader.scan(
                number, GROUPS, start, None, 1 + self.check_count % 3, self.now_us
            )
            assert page.view == view
            rows += page.rows
            start = page.next_start
        return list(zip(rows[::2], rows[1::2], strict=True))


TestStoreMachine = pytest.mark.proves("Q1", "W1", "W3", "W6")(StoreMachine.TestCase)
# Many steps: a batch is brought, decided and applied in three, and then replayed.
TestStoreMachine.settings = machine_settings(examples=100, steps=50)
