from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queryablestate.store import holdings as store_holdings
from queryablestate.store.groups import ALL_GROUPS
from queryablestate.store.store import StateStore
from queryablestate.wire.job_plan import JobHolding
from tests.queryablestate.store_batches import JOB, NODE, NOW_US, key, state, write
from tests.queryablestate.store_copying import hold, joining, rows_by_group
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield a store with two rows in each of four key groups, and another job."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        for number in (1, 2):
            rows = [(key(g, text), b"1") for g in range(4) for text in "ab"]
            write(made, rows, batch_state=state(number))
        write(made, [(key(1), b"other")], batch_state=state(3), job_id="other")
        yield made


def groups_of(store: StateStore, number: int = 1) -> list[int]:
    """Return the key groups that have rows."""
    return sorted(rows_by_group(store, JOB, range(8)).get(number, {}))


def count_rows(store: StateStore) -> int:
    """Return how many rows there are of the job, held or not."""
    states = rows_by_group(store, JOB, range(8)).values()
    return sum(len(rows) for groups in states for rows in groups.values())


def lost(store: StateStore, number: int = 1) -> tuple[tuple[int, int], ...]:
    """Return which key groups of a state are lost."""
    view = store.state(number)
    assert view is not None
    return view.lost


class TestHold:
    def test_everything_is_held_by_who_was_told_nothing(
        self, store: StateStore
    ) -> None:
        """And by who is told so."""
        held = hold(store, range(8), [])
        assert (held.copied, held.missing, held.sequence_min) == ((), (), 0)
        assert groups_of(store) == [0, 1, 2, 3]
        assert lost(store) == ()

    @pytest.mark.proves("S2")
    def test_key_groups_that_leave_are_removed(self, store: StateStore) -> None:
        """From every state of the job, and of no other one; the position stays (S2)."""
        view = store.state(1)
        for _ in range(2):
            hold(store, [0, 2], [])
            assert groups_of(store, 1) == groups_of(store, 2) == [0, 2]
            assert store.state(1) == view
        reader = WholeReader(store)
        assert reader.get_values(3, [key(1)], NOW_US).values == [b"other"]
        assert reader.count(1, [0, 2], NOW_US)[1] == 4
        assert store.positions() == {JOB: 2, "other": 1}

    @pytest.mark.proves("S2")
    def test_rows_of_others_are_passed_over(self, store: StateStore) -> None:
        """A batch may have been sent by an older assignment (S2)."""
        hold(store, [0, 2], [])
        write(store, [(key(group), b"%d" % group) for group in range(4)])
        read = WholeReader(store).get_values(1, [key(g) for g in range(4)], NOW_US)
        assert read.values == [b"0", None, b"2", None]
        assert read.view is not None
        assert read.view.batch_id == 3

    @pytest.mark.proves("S1")
    def test_what_joins_again_begins_with_nothing(self, store: StateStore) -> None:
        """Rows of a copy that was not in sync may be old (S1)."""
        held = hold(store, [0], joining({1: 2, 2: 2}))
        assert (held.missing, held.sequence_min) == ((1, 2), 2)
        assert groups_of(store) == [0]
        assert hold(store, [0], joining({1: 2, 2: 9})).sequence_min == 9

    @pytest.mark.proves("W7")
    def test_what_is_in_sync_and_not_here_is_lost(self, store: StateStore) -> None:
        """No answer rather than a wrong one, until a batch replaces it (W7)."""
        hold(store, [0], joining({1: 2}))
        hold(store, [0, 1, 3], [])
        assert lost(store) == ((1, 1), (3, 3))
        assert store.lost_states() == {JOB: [1, 2]}
        rows = [(key(group), b"2") for group in range(4)]
        write(store, rows, batch_state=state(is_replaced=True))
        assert lost(store) == ()
        assert groups_of(store) == [0, 1, 3]
        hold(store, [0], [])
        assert lost(store, 2) == ()

    @pytest.mark.proves("W7")
    def test_a_reset_loses_what_is_held(self, store: StateStore) -> None:
        """And what leaves is not lost any more (W7)."""
        store.reset_job(JOB, 9, [1])
        assert lost(store) == ALL_GROUPS
        hold(store, [0, 1, 3], [])
        assert lost(store) == ((0, 1), (3, 3))
        hold(store, [0], [])
        store.reset_job(JOB, 10, [1, 2])
        assert lost(store) == lost(store, 2) == ((0, 0),)

    @pytest.mark.proves("W7", "S1")
    def test_a_reset_begins_with_what_is_assigned(self, store: StateStore) -> None:
        """W7, S1: what is in sync is lost, and what is copied is kept from then on."""
        hold(store, [0, 1], joining({2: 2}))
        told = joining({1: 5, 3: 5})
        store.reset_job(
            JOB, 9, [1], key_groups=[0, 2], joining=told, assignment_version=7
        )
        expected = JobHolding(
            job_id=JOB, version=7, unfinished=(1, 3), lost=((0, 0), (2, 2))
        )
        assert store.holding(JOB) == expected
        held = store.hold(JOB, [0, 2], told, assignment_version=7)
        assert (held.missing, held.sequence_min) == ((1, 3), 9)
        assert store.holding(JOB) == expected

    @pytest.mark.proves("W7")
    def test_what_there_can_be_is_told(self, store: StateStore) -> None:
        """W7: a state of before a copy was begun, or completed, is told by it."""
        assert (store.holding(JOB), store.holdings()) == (None, [])
        store.hold(JOB, [0], joining({1: 2}), assignment_version=2)
        store.hold(JOB, [0, 4], joining({1: 2}), assignment_version=3)
        begun = JobHolding(job_id=JOB, version=3, unfinished=(1,), lost=((4, 4),))
        assert store.holding(JOB) == begun
        assert store.holdings() == [begun]
        store.hold(JOB, [0], [], assignment_version=4)
        assert store.holding(JOB) == JobHolding(job_id=JOB, version=4)

    @pytest.mark.proves("W7")
    @pytest.mark.parametrize("copied_version", [0, 3, 4])
    def test_an_older_state_stays_one_until_it_begins_anew(
        self, store: StateStore, copied_version: int
    ) -> None:
        """W7: the next process that registers it must tell so, too."""
        store.hold(JOB, [0, 1], (), assignment_version=3)
        for version in (5, 6):
            store.hold(
                JOB,
                [0, 1],
                (),
                assignment_version=version,
                copied_version=copied_version,
            )
            is_older = copied_version == 4
            told = JobHolding(job_id=JOB, version=0 if is_older else version)
            assert store.holding(JOB) == told
        store.reset_job(JOB, 9, [1], key_groups=[0, 1], assignment_version=6)
        store.hold(JOB, [0, 1], (), assignment_version=7, copied_version=copied_version)
        lost = ((0, 1),)
        assert store.holding(JOB) == JobHolding(job_id=JOB, version=7, lost=lost)

    @pytest.mark.proves("W7")
    def test_so_does_one_whose_copy_is_not_complete(self, store: StateStore) -> None:
        """W7: it was, when it was put into use; without rows to copy it need not be."""
        told = joining({1: 2})
        store.hold(JOB, [0], told, assignment_version=3)
        store.hold(JOB, [0, 1], (), assignment_version=4, copied_version=3)
        assert store.holding(JOB) == JobHolding(job_id=JOB, version=0, lost=((1, 1),))
        store.hold(JOB, [0], told, assignment_version=5)
        store.hold(JOB, [0, 1], (), assignment_version=6)
        assert store.holding(JOB) == JobHolding(job_id=JOB, version=6, lost=((1, 1),))

    @pytest.mark.proves("S2")
    def test_many_rows_are_removed_a_few_at_a_time(
        self, store: StateStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Batches are applied in between; the last row goes all the same (S2)."""
        monkeypatch.setattr(store_holdings, "_REMOVED_COUNT_MAX", 2)
        store.hold(JOB, [1], [])
        counts = [count_rows(store)]
        while not store.remove_unheld(JOB):
            write(store, [(key(group, "a"), b"new") for group in range(4)])
            counts.append(count_rows(store))
        assert counts == [16, 14, 12, 10, 8, 6, 4]
        assert groups_of(store, 1) == groups_of(store, 2) == [1]
        read = WholeReader(store).get_values(1, [key(1, "a")], NOW_US)
        assert read.values == [b"new"]
        store.hold(JOB, [], [])
        assert [store.remove_unheld(JOB) for _ in range(3)] == [False, False, True]
        assert rows_by_group(store, JOB, range(8)) == {}

    @pytest.mark.proves("S1")
    def test_nothing_is_removed_of_what_nobody_has_told(
        self, store: StateStore
    ) -> None:
        """All of it is held, and other jobs are others' business (S1)."""
        assert store.remove_unheld(JOB)
        assert groups_of(store) == [0, 1, 2, 3]
        hold(store, [], [])
        assert store.remove_unheld("other")
        assert WholeReader(store).get_values(3, [key(1)], NOW_US).values == [b"other"]

    @pytest.mark.proves("S2")
    def test_a_removal_that_was_interrupted_is_done_later(
        self, store: StateStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The mark comes first: what it does not name is not read meanwhile (S2)."""

        def fail(*_: object) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(store_holdings, "remove_rows", fail)
            with pytest.raises(KeyboardInterrupt):
                hold(store, [0], joining({1: 2}))
        assert groups_of(store) == [0, 1, 2, 3]
        held = hold(store, [0], joining({1: 3}))
        assert held.missing == (1,)
        assert groups_of(store) == [0]
