"""Tests for queryablestate.store.restores, with a store on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from nameservice import StorageError
from queryablestate.store.restores import LoadMark, RestoredRowsMissingError
from queryablestate.store.store import StateStore
from queryablestate.wire.records import SnapshotRestored
from queryablestate.wire.snapshot_messages import LoadedState
from tests.queryablestate.store_batches import JOB, NODE, NOW_US, decided, key, state
from tests.queryablestate.whole_reads import WholeReader


ID: Final = "0a" * 16
OTHER_ID: Final = "0b" * 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Return an empty store."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as one:
        yield one


def loaded(number: int = 1, *, has_ttl: bool = False) -> LoadedState:
    """Return a state as the proxy describes it."""
    return LoadedState(
        snapshot_number=500 + number,
        state_number=number,
        kind="value",
        has_ttl=has_ttl,
        generation=3,
        batch_id=12,
        decided_at_us=77,
    )


def mark_of(restore_id: str = ID, job_id: str = JOB, began_at_us: int = 5) -> LoadMark:
    """Return whose rows they are."""
    return LoadMark(restore_id=restore_id, job_id=job_id, began_at_us=began_at_us)


def fill(store: StateStore, restore_id: str = ID, *, number: int = 1) -> None:
    """Load a row into each of two key groups."""
    store.restores.begin(mark_of(restore_id), [loaded(number)])
    store.restores.put(restore_id, number, [key(0), key(3)], [b"zero", b"three"])
    store.restores.finish(restore_id)


def restored(sequence: int, restore_id: str = ID, number: int = 1) -> SnapshotRestored:
    """Return the entry that shows what was loaded."""
    return SnapshotRestored(
        sequence=sequence, restore_id=restore_id, state_numbers=(number,)
    )


def values(store: StateStore, number: int = 1) -> list[bytes | None] | None:
    """Return what readers find under both keys, or None if there is no state."""
    read = WholeReader(store).get_values(number, [key(0), key(3)], NOW_US)
    return None if read.view is None else read.values


class TestShowing:
    """One entry gives all of it to the job."""

    @pytest.mark.proves("Q1")
    def test_nothing_of_it_is_seen_before(self, store: StateStore) -> None:
        """Not its rows, not its state, not its job (Q1)."""
        fill(store)
        assert values(store) is None
        assert store.state(1) is None
        assert store.positions() == {}
        assert store.lost_states() == {}
        assert store.copy_reader(JOB, [0, 3]).states.states == ()

    @pytest.mark.proves("W4")
    def test_the_entry_shows_all_of_it(self, store: StateStore) -> None:
        """With the batch that it is as of; batches go on from there (W4)."""
        fill(store)
        store.reset_job(JOB, 40, ())
        store.apply(JOB, restored(41))
        assert values(store) == [b"zero", b"three"]
        view = store.state(1)
        assert view is not None
        assert (view.job_id, view.generation, view.batch_id) == (JOB, 3, 12)
        assert store.positions() == {JOB: 41}
        assert store.restores.drop(lambda _: True) == 0
        store.apply(JOB, decided(42, {}, states=[state()], batch_id=13))
        assert values(store) == [b"zero", b"three"]

    @pytest.mark.proves("S6", "S1")
    def test_a_job_that_has_gone_past_it_finds_nothing(self, store: StateStore) -> None:
        """S6, S1: rows of the state come from another node, and are the job's."""
        fill(store)
        store.reset_job(JOB, 40, (1,), "")
        view = store.state(1)
        assert view is not None
        assert (view.job_id, values(store)) == (JOB, [None, None])
        assert store.restores.drop(lambda _: True) == 0

    @pytest.mark.parametrize("restore_id", [ID, None])
    def test_a_job_that_is_to_show_it_keeps_it(
        self, store: StateStore, restore_id: str | None
    ) -> None:
        """The entry follows; or nobody knows yet whether one will."""
        fill(store, OTHER_ID, number=2)
        fill(store)
        store.reset_job(JOB, 40, (), restore_id)
        store.apply(JOB, restored(41))
        assert values(store) == [b"zero", b"three"]

    def test_it_survives_that_the_process_ends_in_between(self, tmp_path: Path) -> None:
        """What is loaded is on disk, and so is what is shown."""
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            fill(store)
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            assert values(store) is None
            store.reset_job(JOB, 40, ())
            store.apply(JOB, restored(41))
        with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as store:
            assert values(store) == [b"zero", b"three"]
            store.apply(JOB, restored(41))  # again: it is applied
            assert values(store) == [b"zero", b"three"]

    @pytest.mark.proves("S2")
    def test_rows_of_key_groups_that_went_elsewhere_are_not_shown(
        self, store: StateStore
    ) -> None:
        """They were held when they were loaded, and are not any more (S2)."""
        fill(store)
        store.hold(JOB, [0, 1], ())
        store.reset_job(JOB, 40, ())
        store.apply(JOB, restored(41))
        assert values(store) == [b"zero", None]

    @pytest.mark.parametrize("restore_id", [OTHER_ID, "never"])
    def test_what_is_not_here_stops_the_job(
        self, store: StateStore, restore_id: str
    ) -> None:
        """Nothing is shown rather than the rows of another restore."""
        fill(store)
        store.restores.begin(mark_of(OTHER_ID, "other job"), [loaded(2)])
        store.reset_job(JOB, 40, ())
        with pytest.raises(RestoredRowsMissingError, match="are not here"):
            store.apply(JOB, restored(41, restore_id))
        assert store.positions() == {JOB: 40}
        assert values(store) is None

    def test_what_is_here_in_part_is_not_shown(self, store: StateStore) -> None:
        """A load that was begun, and is not over, is no rows of a job."""
        store.restores.begin(mark_of(), [loaded()])
        store.restores.put(ID, 1, [key(0)], [b"zero"])
        store.reset_job(JOB, 40, ())
        with pytest.raises(RestoredRowsMissingError, match="are not here"):
            store.apply(JOB, restored(41))
        assert values(store) is None
        store.restores.drop(lambda _: True)
        with pytest.raises(StorageError, match="has been dropped"):
            store.restores.finish(ID)


class TestDropping:
    """What comes to nothing leaves nothing."""

    def test_a_job_is_loaded_once(self, store: StateStore) -> None:
        """What an earlier attempt has loaded goes when a new one begins."""
        fill(store)
        fill(store, OTHER_ID, number=2)
        with pytest.raises(StorageError, match="has been dropped"):
            store.restores.put(ID, 1, [key(0)], [b"late"])
        assert store.restores.drop(lambda mark: mark.restore_id == ID) == 0
        assert store.restores.drop(lambda mark: mark.restore_id == OTHER_ID) == 1

    def test_what_is_dropped_makes_room(self, store: StateStore) -> None:
        """Its slot is empty when another state takes it."""
        fill(store)
        assert store.restores.drop(lambda mark: mark.job_id == JOB) == 1
        store.restores.begin(mark_of(OTHER_ID), [loaded(2)])
        store.restores.finish(OTHER_ID)
        store.reset_job(JOB, 40, ())
        store.apply(JOB, restored(41, OTHER_ID, number=2))
        assert values(store, 2) == [None, None]

    def test_rows_of_a_state_that_is_there_are_not_written_over(
        self, store: StateStore
    ) -> None:
        """Numbers of states are given out once; one that comes twice is refused."""
        fill(store)
        store.reset_job(JOB, 40, ())
        store.apply(JOB, restored(41))
        with pytest.raises(StorageError, match="already"):
            store.restores.begin(mark_of(OTHER_ID), [loaded(1)])
        assert values(store) == [b"zero", b"three"]
        assert store.restores.drop(lambda _: True) == 0

    def test_it_is_swept_like_other_rows(self, store: StateStore) -> None:
        """A row that has expired may go before anybody could see it."""
        store.restores.begin(mark_of(), [loaded(1, has_ttl=True)])
        expired = (5).to_bytes(8, "big") + b"old"
        store.restores.put(ID, 1, [key(0)], [expired])
        assert store.sweep_expired(NOW_US, 100) == 1
