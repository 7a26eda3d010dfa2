"""Room for a batch is made sure of before it is decided (W3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameservice import StorageError
from queryablestate.store.restores import LoadMark
from queryablestate.store.store import StateStore
from queryablestate.wire.copy_messages import CopiedRows, CopiedState, CopiedStates
from queryablestate.wire.job_assignment import JoiningGroup
from queryablestate.wire.records import StateDropped
from queryablestate.wire.snapshot_messages import LoadedState
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
from tests.queryablestate.whole_reads import WholeReader


MIB = 1 << 20
LIMIT = 4 * MIB

LOADED = LoadedState(
    snapshot_number=1,
    state_number=7,
    kind="value",
    has_ttl=False,
    generation=1,
    batch_id=1,
    decided_at_us=1,
)

pytestmark = pytest.mark.proves("W3")


def opened(path: Path, size_bytes_max: int = LIMIT) -> StateStore:
    """Return a store that is not durable, for speed."""
    return StateStore.open(
        path, node_id=NODE, size_bytes_max=size_bytes_max, is_durable=False
    )


def some_rows(count: int, *, first: int = 0, size_bytes: int = 900) -> list[Row]:
    """Return rows of different keys."""
    return [
        (key(0, f"{number:06}"), bytes(size_bytes))
        for number in range(first, first + count)
    ]


def fill(store: StateStore, row_count: int) -> int:
    """Apply that many rows, some at a time, and return the last entry."""
    for sequence, first in enumerate(range(0, row_count, 300), 1):
        rows = some_rows(300, first=first)
        store.stage([chunk(rows, batch_id=sequence)], NOW_US)
        store.apply(JOB, decided(sequence, {"a": 1}, batch_id=sequence))
    return sequence


def stage_each(store: StateStore, chunks: list[tuple[StageChunk, bytes]]) -> None:
    """Stage chunks, each in a transaction of its own."""
    for one in chunks:
        store.stage([one], NOW_US)


def load_each(store: StateStore, state_number: int, count: int) -> None:
    """Load pages of rows of a snapshot, each in a transaction of its own."""
    for number in range(count):
        rows = some_rows(100, first=100 * number)
        keys, values = [row[0] for row in rows], [row[1] or b"" for row in rows]
        store.restores.put("r", state_number, keys, values)


def copy_each(store: StateStore, state_number: int, count: int) -> None:
    """Copy pages of rows of another node, each in a transaction of its own."""
    header = CopiedStates(
        key_groups=((0, 0),),
        sequence=1,
        states=(
            CopiedState(
                state_number=state_number,
                kind="value",
                has_ttl=False,
                generation=1,
                batch_id=1,
                decided_at_us=1,
                lost=(),
            ),
        ),
    )
    for number in range(count):
        rows = some_rows(100, first=100 * number)
        page = CopiedRows(
            state_number=state_number,
            keys=[row[0] for row in rows],
            values=[row[1] or b"" for row in rows],
        )
        store.put_copied("other", header, page)


class TestReserve:
    """What is not refused can be applied."""

    @pytest.mark.parametrize("row_count", [100, 400, 700, 1_000, 1_300, 1_600, 1_900])
    @pytest.mark.parametrize("kind", ["value", "list"])
    @pytest.mark.parametrize("is_replaced", [False, True])
    def test_what_has_room_is_applied(
        self,
        tmp_path: Path,
        row_count: int,
        kind: str,
        is_replaced: bool,
    ) -> None:
        """However full the store is, the answer is right; a refusal changes nothing."""
        one = state(kind=kind, is_replaced=is_replaced)
        entry = decided(4, {"a": 1}, batch_id=9, states=[one])
        with opened(tmp_path) as store:
            assert fill(store, 900) == 3
            store.stage([chunk(some_rows(row_count), batch_id=9)], NOW_US)
            before = store.state(1)
            try:
                store.reserve(JOB, entry)
            except StorageError:
                assert row_count > 400
                with pytest.raises(StorageError):  # it did not refuse too much
                    store.apply(JOB, entry)
                assert (store.positions(), store.state(1)) == ({JOB: 3}, before)
            else:
                assert row_count < 1_900
                assert (store.positions(), store.state(1)) == ({JOB: 3}, before)
                store.apply(JOB, entry)
                assert store.positions() == {JOB: 4}

    def test_few_rows_may_change_many_pages(self, tmp_path: Path) -> None:
        """A page that is changed is copied: what was staged says little of the room."""
        rows: list[Row] = [(key(0, f"{n * 3:06}"), b"x") for n in range(900)]
        with opened(tmp_path, 5 * MIB) as store:
            entry = decided(fill(store, 2_700) + 1, {"a": 1}, batch_id=99)
            staged, payload = chunk(rows, batch_id=99)
            assert len(payload) < 20_000
            store.stage([(staged, payload)], NOW_US)
            with pytest.raises(StorageError, match="no room"):
                store.reserve(JOB, entry)
            with pytest.raises(StorageError, match="no room"):
                store.apply(JOB, entry)

    def test_the_error_says_what_to_change(self, tmp_path: Path) -> None:
        """It names the directory, what is in use, the limit, and what raises it."""
        with opened(tmp_path) as store:
            store.stage([chunk(some_rows(3_000))], NOW_US)
            with pytest.raises(StorageError) as caught:
                store.reserve(JOB, decided(1, {"a": 1}))
        text = str(caught.value)
        assert str(tmp_path) in text
        assert "within 4,194,304 bytes" in text
        used = int(text.partition("of which ")[2].split()[0].replace(",", ""))
        assert 2_700_000 < used < LIMIT
        assert "--size-bytes-max" in text
        assert "drop states" in text

    def test_a_greater_limit_makes_room(self, tmp_path: Path) -> None:
        """What was staged is there, and is applied."""
        entry = decided(1, {"a": 1})
        with opened(tmp_path) as store:
            store.stage([chunk(some_rows(3_000))], NOW_US)
            with pytest.raises(StorageError):
                store.reserve(JOB, entry)
        with opened(tmp_path, 4 * LIMIT) as store:
            store.reserve(JOB, entry)
            store.apply(JOB, entry)
            assert WholeReader(store).count(1, [0], NOW_US)[1] == 3_000

    def test_a_state_that_is_dropped_makes_room(self, tmp_path: Path) -> None:
        """It can be dropped in a store that has refused a batch."""
        with opened(tmp_path) as store:
            last = fill(store, 1_800)
            batch = decided(last + 2, {"a": 1}, batch_id=99, states=[state(2)])
            rows = some_rows(1_000)
            store.stage([chunk(rows, state_number=2, batch_id=99)], NOW_US)
            with pytest.raises(StorageError):
                store.reserve(JOB, batch)
            store.apply(JOB, StateDropped(sequence=last + 1, state_number=1))
            store.reserve(JOB, batch)
            store.apply(JOB, batch)
            assert WholeReader(store).count(2, [0], NOW_US)[1] == 1_000


class TestPromises:
    """What was promised to a batch is not given to others."""

    def test_chunks_do_not_take_what_was_promised(self, tmp_path: Path) -> None:
        """They are refused until the batch is applied, and it is."""
        entry = decided(1, {"a": 1})
        with opened(tmp_path) as store:
            store.stage([chunk(some_rows(1_200))], NOW_US)
            store.reserve(JOB, entry)
            rows = some_rows(100)
            others = [
                chunk(rows, job_id="other", batch_id=number) for number in range(40)
            ]
            with pytest.raises(StorageError, match="no room"):
                stage_each(store, others)
            store.apply(JOB, entry)
            stage_each(store, others[-1:])

    def test_a_restore_does_not_take_what_was_promised(self, tmp_path: Path) -> None:
        """It is refused, like chunks; the batch that was decided meanwhile is not."""
        entry = decided(1, {"a": 1})
        mark = LoadMark(restore_id="r", job_id="other", began_at_us=5)
        with opened(tmp_path) as store:
            store.stage([chunk(some_rows(1_200))], NOW_US)
            store.reserve(JOB, entry)
            store.restores.begin(mark, [LOADED])
            with pytest.raises(StorageError, match="no room"):
                load_each(store, 7, 40)
            store.apply(JOB, entry)
            load_each(store, 7, 2)

    def test_a_copy_does_not_take_what_was_promised(self, tmp_path: Path) -> None:
        """It is refused, like chunks; the batch that was decided meanwhile is not."""
        entry = decided(1, {"a": 1})
        with opened(tmp_path) as store:
            store.hold("other", [], [JoiningGroup(key_group=0, since=1)])
            store.stage([chunk(some_rows(1_200))], NOW_US)
            store.reserve(JOB, entry)
            with pytest.raises(StorageError, match="no room"):
                copy_each(store, 7, 40)
            store.apply(JOB, entry)
            copy_each(store, 7, 2)

    def test_two_batches_do_not_get_the_same_room(self, tmp_path: Path) -> None:
        """The second is refused, though it would fit alone."""
        with opened(tmp_path) as store:
            for job_id in (JOB, "other"):
                store.stage([chunk(some_rows(600), job_id=job_id)], NOW_US)
            entry = decided(1, {"a": 1})
            another = decided(1, {"a": 1}, states=[state(2)])
            store.reserve(JOB, entry)
            store.reserve(JOB, entry)  # asked again
            with pytest.raises(StorageError):
                store.reserve("other", another)
            store.apply(JOB, entry)
            store.reserve("other", another)

    def test_a_large_store_is_not_asked_twice(self, tmp_path: Path) -> None:
        """Where there is far more room than can be needed, nothing is tried out."""
        with opened(tmp_path, 256 * MIB) as store:
            store.stage([chunk(some_rows(100))], NOW_US)
            assert store.reserve_ample(JOB, 1, 0)
        with opened(tmp_path) as store:
            assert not store.reserve_ample(JOB, 1, 0)
