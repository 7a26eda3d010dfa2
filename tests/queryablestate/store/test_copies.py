"""Copies of key groups between stores: fetched and brought up to date (S1, S2)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from nameservice import LocalProtocolError
from queryablestate import StagedDataMissingError
from queryablestate.store import copies
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_rows
from queryablestate.wire.copy_messages import CopiedRows
from queryablestate.wire.job_assignment import JoiningGroup
from queryablestate.wire.records import BatchState, SnapshotMarked, StateDropped
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    chunk,
    decided,
    key,
    stage_id,
    state,
    write,
)
from tests.queryablestate.store_copying import (
    copied,
    fetched,
    finished,
    hold,
    joining,
    kept_sequences,
    rows_by_group,
)
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def source(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path / "a", node_id=NODE, is_durable=False) as made:
        yield made


@pytest.fixture
def target(tmp_path: Path) -> Iterator[StateStore]:
    """Yield another empty store, of which the decisions say the same counts."""
    with StateStore.open(tmp_path / "b", node_id=NODE, is_durable=False) as made:
        yield made


def write_all(
    source: StateStore,
    value: bytes,
    *targets: StateStore,
    batch_state: BatchState | None = None,
) -> None:
    """Write a row in each of four key groups, to *source* and to others."""
    for store in (source, *targets):
        write(
            store, [(key(group), value) for group in range(4)], batch_state=batch_state
        )


def values(store: StateStore, *groups: int, number: int = 1) -> list[bytes | None]:
    """Return what the rows of `write_all` hold."""
    return WholeReader(store).get_values(number, [key(one) for one in groups], 1).values


def lost(store: StateStore, number: int = 1) -> tuple[tuple[int, int], ...]:
    """Return which key groups of a state are lost."""
    view = store.state(number)
    assert view is not None
    return view.lost


class TestCopy:
    @pytest.mark.proves("S2")
    def test_a_key_group_is_copied(
        self, source: StateStore, target: StateStore
    ) -> None:
        """With its rows and the marks of the states; others stay there (S2)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        held = hold(target, [], joining({1: 1, 2: 1}))
        assert (held.copied, held.missing, held.sequence_min) == ((), (1, 2), 1)
        assert copied(source, target, [1, 2]) == (1, 2)
        assert target.state(1) == source.state(1)
        assert values(target, 0, 1, 2, 3) == [None, b"1", b"1", None]
        held = hold(target, [], joining({1: 1, 2: 1}))
        assert (held.copied, held.missing, held.sequence_min) == ((1, 2), (), 0)
        hold(target, [1, 2], [])
        write_all(source, b"2", target)
        assert values(target, 0, 1, 2, 3) == [None, b"2", b"2", None]
        held_rows = rows_by_group(source, JOB, [1, 2])
        assert rows_by_group(target, JOB, range(4)) == held_rows

    @pytest.mark.proves("S2")
    def test_what_is_removed_is_removed_around_copies(
        self, source: StateStore, target: StateStore
    ) -> None:
        """S2: key groups leave, and one of them comes back before their rows went."""
        write_all(source, b"1", target)
        target.hold(JOB, [0], [])
        target.hold(JOB, [0], joining({1: 1}))
        sequence = fetched(source, target, [1])
        while not target.remove_unheld(JOB):
            pass
        assert finished(target, [1], sequence) == (1,)
        assert target.remove_unheld(JOB)
        assert sorted(rows_by_group(target, JOB, range(4))[1]) == [0, 1]

    @pytest.mark.proves("S2")
    @pytest.mark.parametrize(
        ("limit", "call_count"),
        [
            (("_REPLAYED_ENTRIES_MAX", 1), 5),
            (("_REPLAYED_ENTRIES_MAX", 2), 3),
            (("_REPLAYED_CHUNKS_MAX", 0), 5),
            (("_REPLAYED_CHUNKS_MAX", 8), 1),
        ],
    )
    def test_what_is_decided_meanwhile_is_kept_and_applied(
        self,
        source: StateStore,
        target: StateStore,
        monkeypatch: pytest.MonkeyPatch,
        limit: tuple[str, int],
        call_count: int,
    ) -> None:
        """Some entries with each call; each kind of rows comes out alike (S2)."""
        monkeypatch.setattr(copies, *limit)
        lists = state(2, kind="list")
        for store in (source, target):
            write(store, [(key(1), b"0")])
            write(store, [(key(1), b"i")], batch_state=lists)
        hold(target, [0], joining({1: 2}))
        sequence = fetched(source, target, [1])
        for store in (source, target):
            write(store, [(key(1), None), (key(1, "a"), b"a")])
            write(store, [(key(1), b"j"), (key(1), b"k")], batch_state=lists)
            store.apply(JOB, SnapshotMarked(sequence=5, snapshot_id="s"))
            write(store, [(key(1, "b"), b"b")], batch_state=state(is_replaced=True))
            write(store, [(key(1), None)], batch_state=lists)
            write(store, [(key(1), b"l")], batch_state=lists)
        assert kept_sequences(target) == [3, 4, 6, 7, 8]
        done = [target.finish_copy(JOB, [1], sequence) for _ in range(call_count)]
        assert done == [None] * (call_count - 1) + [(1,)]
        assert rows_by_group(target, JOB, [1]) == rows_by_group(source, JOB, [1])
        assert kept_sequences(target) == []
        assert target.finish_copy(JOB, [1], sequence) == (1,)

    @pytest.mark.proves("S2")
    def test_what_was_brought_further_is_not_mixed_with_older_rows(
        self,
        source: StateStore,
        target: StateStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """S2: the same entry is fetched again after a replay that went half way."""
        monkeypatch.setattr(copies, "_REPLAYED_ENTRIES_MAX", 1)
        write_all(source, b"1", target)
        hold(target, [], joining({1: 1}))
        with source.copy_reader(JOB, [1]) as reader:
            (page,) = reader.pages()
            target.put_copied(JOB, reader.states, page)
            for value in (b"2", b"3"):
                replaced = state(is_replaced=True)
                for store in (source, target):
                    write(
                        store, [(key(1, value.decode()), value)], batch_state=replaced
                    )
            assert target.finish_copy(JOB, [1], 1) is None
            target.put_copied(JOB, reader.states, page)
        assert finished(target, [1], 1) == (1,)
        assert rows_by_group(target, JOB, [1]) == rows_by_group(source, JOB, [1])

    @pytest.mark.proves("S2")
    def test_a_source_that_is_ahead_is_caught_up_with(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Entries up to its own leave the rows alone, also one that replaces (S2)."""
        write_all(source, b"1", target)
        hold(target, [0], joining({1: 1}))
        replaced = state(is_replaced=True)
        write_all(source, b"2", batch_state=replaced)
        write(source, [(key(1, "x"), b"x")])
        sequence = fetched(source, target, [1])
        with pytest.raises(LocalProtocolError, match="apply the entries up to there"):
            target.finish_copy(JOB, [1], sequence)
        write_all(target, b"2", batch_state=replaced)
        write(target, [(key(1, "x"), b"x")])
        assert finished(target, [1], sequence) == (1,)
        assert rows_by_group(target, JOB, [0, 1]) == rows_by_group(source, JOB, [0, 1])

    @pytest.mark.proves("Q1")
    def test_a_state_is_not_known_before_its_entry(
        self, source: StateStore, target: StateStore
    ) -> None:
        """A copy must not make others seem to be further than they are (Q1)."""
        write_all(source, b"1", target)
        hold(target, [0], joining({1: 1}))
        write_all(source, b"2", batch_state=state(2))
        sequence = fetched(source, target, [1])
        hold(target, [0], joining({1: 1}))
        assert target.state(2) is None
        assert WholeReader(target).get_values(2, [key(0), key(1)], NOW_US).view is None
        write_all(target, b"2", batch_state=state(2))
        assert finished(target, [1], sequence) == (1,)
        assert target.state(2) == source.state(2)
        assert values(target, 0, 1, number=2) == [b"2", b"2"]

    @pytest.mark.proves("Q1", "S6")
    def test_copies_of_a_job_that_was_forgotten_show_nothing(
        self, source: StateStore, target: StateStore
    ) -> None:
        """The node has left the job, and hears of copies before it is told anew."""
        write_all(source, b"1", target)
        hold(target, [], [])
        assert target.forget_left([]) == (JOB,)
        hold(target, [], joining({1: 1}))
        fetched(source, target, [1])
        assert target.state(1) is None
        assert WholeReader(target).get_values(1, [key(1)], NOW_US).view is None
        target.reset_job(JOB, 1, [], joining=joining({1: 1}))
        assert copied(source, target, [1]) == (1,)
        assert target.state(1) == source.state(1)

    @pytest.mark.proves("Q1", "S2")
    def test_states_of_before_are_known_from_the_source(
        self, source: StateStore, target: StateStore
    ) -> None:
        """No entry that the store will apply says what they are (S2, Q1)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        write_all(source, b"2", batch_state=state(2))
        sequence = fetched(source, target, [1])
        hold(target, [], joining({1: 1}))
        assert target.state(1) is None
        write_all(target, b"2", batch_state=state(2))
        assert finished(target, [1], sequence) == (1,)
        assert [target.state(one) for one in (1, 2)] == [
            source.state(one) for one in (1, 2)
        ]

    @pytest.mark.proves("S2")
    def test_a_state_that_was_dropped_does_not_come_back(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Whether its rows arrive before the entry that drops it or after it (S2)."""
        write_all(source, b"1", target)
        write_all(source, b"2", target, batch_state=state(2))
        write_all(source, b"3", target, batch_state=state(3))
        hold(target, [], joining({1: 3}))
        with source.copy_reader(JOB, [1]) as reader:
            pages = list(reader.pages(1))
            assert [page.state_number for page in pages] == [1, 2, 3]
            target.apply(JOB, StateDropped(sequence=4, state_number=3))
            hold(target, [], joining({1: 3}))
            target.put_copied(JOB, reader.states, pages[0])
            target.put_copied(JOB, reader.states, pages[1])
            target.apply(JOB, StateDropped(sequence=5, state_number=2))
            target.put_copied(JOB, reader.states, pages[1])
            target.put_copied(JOB, reader.states, pages[2])
        assert finished(target, [1], 3) == (1,)
        assert [target.state(number) is None for number in (1, 2, 3)] == [
            False,
            True,
            True,
        ]
        assert list(rows_by_group(target, JOB, [1])) == [1]

    @pytest.mark.proves("S2")
    def test_a_fetch_begins_with_nothing(
        self, source: StateStore, target: StateStore
    ) -> None:
        """What an earlier one has left may have been removed since (S2)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1, 2: 1}))
        fetched(source, target, [1, 2])
        for store in (source, target):
            write(store, [(key(1), None), (key(2), b"2")])
        assert copied(source, target, [1, 2]) == (1, 2)
        assert values(target, 1, 2) == [None, b"2"]

    @pytest.mark.proves("S2")
    def test_the_rows_of_another_moment_are_refused(
        self, source: StateStore, target: StateStore
    ) -> None:
        """To finish takes a page of that entry, of one after keeping began (S2)."""
        write_all(source, b"1", target)
        old = source.copy_reader(JOB, [1])
        write_all(source, b"2", target)
        held = hold(target, [], joining({1: 1}))
        assert held.sequence_min == 2  # what was before is not kept
        with pytest.raises(LocalProtocolError, match="put at least one page"):
            target.finish_copy(JOB, [1], 2)
        with old:
            for page in old.pages():
                target.put_copied(JOB, old.states, page)
        with pytest.raises(LocalProtocolError, match="put at least one page"):
            target.finish_copy(JOB, [1], 1)
        assert values(target, 1) == [None]

    def test_rows_that_nobody_copies_are_ignored(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Of a fetch that goes on when the copy was given up, or of other groups."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        with source.copy_reader(JOB, range(4)) as reader:
            (page,) = reader.pages()
            target.put_copied(JOB, reader.states, page)
            assert list(rows_by_group(target, JOB, range(4))[1]) == [1]
            hold(target, [], joining({2: 1}))
            narrow = replace(reader.states, key_groups=((1, 1),))
            target.put_copied(JOB, narrow, page)
        assert rows_by_group(target, JOB, range(4)) == {}
        assert target.finish_copy(JOB, [1], 1) == ()

    @pytest.mark.proves("S2")
    def test_staged_rows_stay_as_long_as_they_are_kept(
        self, source: StateStore, target: StateStore
    ) -> None:
        """They are decided and applied, and still not to be dropped for age (S2)."""
        write_all(source, b"1", target)
        hold(target, [0], joining({1: 1}))
        sequence = fetched(source, target, [1])
        write_all(source, b"2", target)
        target.stage([chunk([(key(1), b"late")], stage="z", batch_id=2)], NOW_US)
        assert target.drop_stages_older_than(NOW_US * 2) == 0
        assert finished(target, [1], sequence) == (1,)
        assert values(target, 0, 1) == [b"2", b"2"]
        assert kept_sequences(target) == []
        assert target.drop_stages_older_than(NOW_US * 2) == 0  # they went with it
        hold(target, [0], joining({1: 1, 2: 2}))
        write_all(source, b"3", target)
        assert kept_sequences(target) == [3]
        hold(target, [0], joining({1: 1}))  # given up
        assert kept_sequences(target) == []

    @pytest.mark.proves("W7")
    def test_a_reset_begins_copies_anew(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Complete ones too: their rows are gone (W7)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1, 2: 1}))
        assert copied(source, target, [1]) == (1,)
        write_all(source, b"2")
        target.reset_job(JOB, 2, [1])
        held = hold(target, [], joining({1: 1, 2: 1}))
        assert (held.copied, held.missing, held.sequence_min) == ((), (1, 2), 2)
        assert copied(source, target, [1, 2]) == (1, 2)
        assert values(target, 1, 2) == [b"2", b"2"]
        assert lost(target) == ()


@pytest.mark.proves("W7")
class TestLost:
    def test_a_copy_is_as_lost_as_its_source(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Sound and lost key groups of one state lie side by side (W7)."""
        write_all(source, b"1", target)
        hold(target, [0], joining({1: 1, 2: 1}))
        source.reset_job(JOB, 1, [1])
        hold(source, [1], [])
        assert copied(source, target, [1]) == (1,)
        assert lost(target) == ((1, 1),)
        hold(target, [0], joining({2: 1}))
        assert lost(target) == ()

    @pytest.mark.proves("S1")
    def test_a_copy_that_is_begun_anew_is_another_one(
        self, source: StateStore, target: StateStore
    ) -> None:
        """S1: though nothing was decided since, its source was a lost one (W7)."""
        begun = joining({1: 1})
        anew = [JoiningGroup(key_group=1, since=1, version=6)]
        write_all(source, b"1", target)
        hold(target, [], begun)
        assert copied(source, target, [1]) == (1,)
        assert hold(target, [], begun).copied == (1,)
        held = hold(target, [], anew)
        assert (held.copied, held.missing) == ((), (1,))
        assert copied(source, target, [1]) == (1,)
        assert hold(target, [], anew).copied == (1,)

    def test_a_kept_batch_that_replaces_completes_it(
        self, source: StateStore, target: StateStore
    ) -> None:
        """It was decided after the rows were lost (W7)."""
        source.reset_job(JOB, 0, [1])
        hold(target, [0], joining({1: 0}))
        sequence = fetched(source, target, [1])
        write_all(target, b"1", batch_state=state(is_replaced=True))
        assert lost(target) == ((1, 1),)
        assert finished(target, [1], sequence) == (1,)
        assert lost(target) == ()
        assert values(target, 1) == [b"1"]

    def test_a_batch_before_the_loss_does_not_complete_it(
        self, source: StateStore, target: StateStore
    ) -> None:
        """The source lost the rows after it had applied that batch (W7)."""
        write_all(source, b"1", target)
        hold(target, [0], joining({1: 1}))
        source.reset_job(JOB, 2, [1])
        sequence = fetched(source, target, [1])
        write_all(target, b"2", batch_state=state(is_replaced=True))
        assert finished(target, [1], sequence) == (1,)
        assert lost(target) == ((1, 1),)
        assert values(target, 0) == [b"2"]

    def test_a_later_fetch_may_find_it_sound(
        self, source: StateStore, target: StateStore
    ) -> None:
        """What an earlier fetch said of the same key groups counts no more (W7)."""
        source.reset_job(JOB, 1, [1])
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        fetched(source, target, [1])
        assert lost(target) == ((1, 1),)
        for store in (source, target):
            write_all(store, b"2", batch_state=state(is_replaced=True))
        assert copied(source, target, [1]) == (1,)
        assert lost(target) == ()

    @pytest.mark.proves("S2")
    def test_a_fetch_of_the_same_entry_may_find_it_lost(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Half of a sound copy is no copy, and not as good as a lost one (S2, W7)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        fetched(source, target, [1])
        source.reset_job(JOB, 1, [1])  # its disk is another one now
        with source.copy_reader(JOB, [1]) as reader:
            begin = CopiedRows(state_number=0, keys=[], values=[])
            target.put_copied(JOB, reader.states, begin)
        assert copied(source, target, [1]) == (1,)
        assert lost(target) == ((1, 1),)
        assert values(target, 1) == [None]


class TestReader:
    @pytest.mark.proves("Q1", "S2")
    def test_all_pages_are_of_one_moment(
        self, source: StateStore, target: StateStore
    ) -> None:
        """Whatever is applied, dropped or left behind meanwhile (Q1, S2)."""
        write_all(source, b"1")
        write_all(source, b"1", batch_state=state(2))
        with source.copy_reader(JOB, [1, 3]) as reader:
            pages = reader.pages(1)
            first = next(pages)
            write_all(source, b"3", batch_state=state(is_replaced=True))
            source.apply(JOB, StateDropped(sequence=4, state_number=2))
            hold(source, [0], [])
            write_all(source, b"5", batch_state=state(5))
            assert reader.sequence == reader.states.sequence == 2
            assert [one.state_number for one in reader.states.states] == [1, 2]
            assert [first, *pages] == [
                CopiedRows(number, [key(group)], [b"1"])
                for number in (1, 2)
                for group in (1, 3)
            ]

    @pytest.mark.parametrize("size_bytes", [1, 150, 1_000, 40_000, 1 << 20])
    def test_pages_are_cut_by_size(self, source: StateStore, size_bytes: int) -> None:
        """None is larger but for a single row, and none is smaller than need be."""
        sizes = [(7 * number) % 300 for number in range(600)]
        sizes[300] = 5_000
        rows = [
            (key(number % 5, f"{number:04}"), bytes(size))
            for number, size in enumerate(sizes)
        ]
        write(source, rows)
        with source.copy_reader(JOB, [0, 2, 3]) as reader:
            pages = list(reader.pages(size_bytes))
        found = [
            row for page in pages for row in zip(page.keys, page.values, strict=True)
        ]
        assert found == sorted(row for row in rows if row[0][1] in {0, 2, 3})
        taken = [
            [len(k) + len(v) for k, v in zip(page.keys, page.values, strict=True)]
            for page in pages
        ]
        assert all(sum(one) <= size_bytes or len(one) == 1 for one in taken)
        for one, following in pairwise(taken):
            assert sum(one) + following[0] > size_bytes

    def test_no_rows_are_a_page_too(
        self, source: StateStore, target: StateStore
    ) -> None:
        """It says what states there are."""
        write(source, [(key(0), b"1")])
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        with source.copy_reader(JOB, [1]) as reader:
            assert [len(page.keys) for page in reader.pages()] == [0]
        assert copied(source, target, [1]) == (1,)
        assert target.state(1) == source.state(1)

    @pytest.mark.proves("S2")
    def test_what_is_not_held_cannot_be_read(
        self, source: StateStore, target: StateStore
    ) -> None:
        """None takes half a copy, or none, for a whole one (S2)."""
        write_all(source, b"1")
        target.reset_job(JOB, 1, [])
        hold(target, [], joining({1: 1}))
        for group in (1, 2):
            with pytest.raises(LocalProtocolError, match=f"group {group} of"):
                target.copy_reader(JOB, [group])
        assert copied(source, target, [1]) == (1,)
        with target.copy_reader(JOB, [1]) as reader:
            assert len(list(reader.pages())) == 1
        with pytest.raises(LocalProtocolError, match="group 2 of"):
            target.copy_reader(JOB, [1, 2])


@pytest.mark.proves("S2")
class TestStagedPayloads:
    def test_only_rows_of_these_key_groups(self, source: StateStore) -> None:
        """Chunks in their order, orders with their rows; what lacks is told (S2)."""
        whole = [(key(1), b"2"), (key(3), None)]
        source.stage(
            [
                chunk([(key(group), b"1", b"%d" % group) for group in range(4)]),
                chunk([(key(0), b"2"), (key(2), b"2")], index=1),
                chunk(whole, index=2, state_number=7),
            ],
            NOW_US,
        )
        (stage,) = decided(1, {"a": 3}).stages
        payloads = list(source.staged_payloads(JOB, 1, 0, stage, [1, 3]))
        first, second = (decode_rows(payload) for payload in payloads)
        assert (first.keys, first.values) == ([key(1), key(3)], [b"1", b"1"])
        assert first.orders == [b"1", b"3"]
        assert (second.state_number, second.orders) == (7, None)
        assert (second.keys, second.values) == ([key(1), key(3)], [b"2", None])
        (more,) = decided(1, {"a": 4}).stages
        with pytest.raises(StagedDataMissingError):
            next(source.staged_payloads(JOB, 1, 0, more, [1]))
        elsewhere = replace(stage, chunk_counts={"other": 3})
        assert list(source.staged_payloads(JOB, 1, 0, elsewhere, [1])) == []
        assert stage.stage_id == stage_id("a")

    def test_chunks_are_read_one_by_one(self, source: StateStore) -> None:
        """S2: a stage may be larger than memory; what goes meanwhile is missing."""
        source.stage([chunk([(key(1), b"1")], index=i) for i in range(3)], NOW_US)
        (stage,) = decided(1, {"a": 3}).stages
        payloads = source.staged_payloads(JOB, 1, 0, stage, [1])
        assert decode_rows(next(payloads)).keys == [key(1)]
        source.discard_stages(JOB, 1, 0, [stage.stage_id])
        with pytest.raises(StagedDataMissingError):
            next(payloads)
