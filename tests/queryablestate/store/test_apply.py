from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import (
    JOB,
    NODE,
    NOW_US,
    chunk,
    decided,
    key,
    state,
    write,
)
from tests.queryablestate.whole_reads import WholeReader


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    """Yield an empty store."""
    with StateStore.open(tmp_path, node_id=NODE, is_durable=False) as made:
        yield made


def values(store: StateStore, *keys: bytes, number: int = 1) -> list[bytes | None]:
    """Return what a value state holds under *keys*."""
    return WholeReader(store).get_values(number, keys, NOW_US).values


def items(store: StateStore, one: bytes) -> list[bytes] | None:
    """Return all items of a list."""
    return WholeReader(store).get_items(1, [one], 0, None, NOW_US).values[0]


class TestWinners:
    @pytest.mark.proves("W2", "W3")
    def test_only_the_winning_stages_are_applied(self, store: StateStore) -> None:
        """An attempt that lost has brought rows too (W2, W3)."""
        store.stage(
            [chunk([(key(0), name.encode())], stage=name) for name in "abc"]
            + [chunk([(key(1), b"lost")], stage="c", index=1)],
            NOW_US,
        )
        store.apply(JOB, decided(1, {"b": 1}))
        assert values(store, key(0), key(1)) == [b"b", None]

    def test_a_later_stage_or_chunk_takes_the_place_of_an_earlier(
        self, store: StateStore
    ) -> None:
        """The order is that of the decision, not that of arrival."""
        brought = [
            chunk([(key(0), b"a0"), (key(1), b"a0")], stage="a"),
            chunk([(key(0), b"a1"), (key(2), b"a1")], stage="a", index=1),
            chunk([(key(0), b"b0"), (key(2), None), (key(3), b"b0")], stage="b"),
        ]
        for order in permutations(brought):
            sequence = store.positions().get(JOB, 0) + 1
            for one in order:
                store.stage([one], NOW_US)
            replaced = [state(is_replaced=True)]
            entry = decided(sequence, {"b": 1, "a": 2}, states=replaced)
            store.apply(JOB, entry)
            assert values(store, *map(key, range(4))) == [b"a1", b"a0", b"a1", b"b0"]

    def test_a_stage_without_chunks_here_is_fine(self, store: StateStore) -> None:
        """A task may have had rows for other nodes only."""
        store.stage([chunk([(key(0), b"1")], stage="b")], NOW_US)
        store.apply(JOB, decided(1, {"a": 0, "b": 1, "c": 0}))
        assert values(store, key(0)) == [b"1"]

    @pytest.mark.proves("W6")
    def test_a_batch_writes_several_states(self, store: StateStore) -> None:
        """Each chunk is of one of them (W6)."""
        store.stage(
            [
                chunk([(key(0), b"v")], state_number=1),
                chunk([(key(0), b"i")], state_number=2, index=1),
                chunk([(key(0) + b"m", b"e")], state_number=3, index=2),
                chunk([(key(0), b"w")], state_number=1, stage="b"),
            ],
            NOW_US,
        )
        states = [state(3, kind="map"), state(1), state(2, kind="list")]
        store.apply(JOB, decided(1, {"a": 3, "b": 1}, states=states))
        assert values(store, key(0)) == [b"w"]
        reader = WholeReader(store)
        assert reader.get_items(2, [key(0)], 0, None, NOW_US).values == [[b"i"]]
        assert reader.get_entries(3, [key(0)], NOW_US).values == [[b"m", b"e"]]

    @pytest.mark.proves("W4")
    def test_rows_of_a_state_that_is_not_decided_are_passed_over(
        self, store: StateStore
    ) -> None:
        """Another decision has them, or none: they do not stop the chain (W4)."""
        write(store, [(key(0), b"before")])
        store.stage([chunk([(key(0), b"1")], batch_id=5)], NOW_US)
        store.stage([chunk([(key(0), b"2")], batch_id=5, state_number=2, index=1)], 1)
        store.apply(JOB, decided(2, {"a": 2}, batch_id=5))
        assert store.positions() == {JOB: 2}
        assert values(store, key(0)) == [b"1"]
        assert store.state(2) is None


class TestOrders:
    @pytest.mark.proves("W6")
    def test_the_greatest_order_wins_over_all_stages(self, store: StateStore) -> None:
        """A delete too, and what was there before has no order (W6)."""
        write(store, [(key(0), b"zzz"), (key(1), b"zzz")])
        brought = [
            chunk([(key(0), b"a", b"2"), (key(1), b"a", b"1")], stage="a", batch_id=9),
            chunk([(key(0), b"b", b"1")], stage="a", index=1, batch_id=9),
            chunk([(key(1), None, b"2"), (key(2), b"c", b"0")], stage="b", batch_id=9),
        ]
        store.stage(brought, NOW_US)
        store.apply(JOB, decided(2, {"a": 2, "b": 1}, batch_id=9))
        assert values(store, *map(key, range(3))) == [b"a", None, b"c"]

    def test_rows_with_orders_win_over_rows_without(self, store: StateStore) -> None:
        """A writer sends one kind; both together are still told the same way."""
        brought = [
            chunk([(key(0), b"ordered", b"0")], stage="a"),
            chunk([(key(0), b"plain"), (key(1), b"plain")], stage="b"),
        ]
        store.stage(brought, NOW_US)
        store.apply(JOB, decided(1, {"a": 1, "b": 1}))
        assert values(store, key(0), key(1)) == [b"ordered", b"plain"]

    @pytest.mark.proves("W6")
    def test_items_are_appended_in_their_orders(self, store: StateStore) -> None:
        """Over all stages of a batch, but after what was there (W6)."""
        lists = [state(kind="list")]
        write(store, [(key(0), b"first")], batch_state=lists[0])
        brought = [
            chunk([(key(0), b"3", b"3"), (key(0), b"1", b"1")], stage="a", batch_id=9),
            chunk([(key(0), b"2", b"2"), (key(0), b"3'", b"3")], stage="b", batch_id=9),
        ]
        store.stage(brought, NOW_US)
        store.apply(JOB, decided(2, {"a": 1, "b": 1}, batch_id=9, states=lists))
        assert items(store, key(0)) == [b"first", b"1", b"2", b"3", b"3'"]

    @pytest.mark.proves("W6")
    def test_a_list_is_cleared_at_the_place_of_the_delete(
        self, store: StateStore
    ) -> None:
        """Items with smaller orders go, those with greater ones stay (W6)."""
        lists = [state(kind="list")]
        write(store, [(key(0), b"first")], batch_state=lists[0])
        store.stage(
            [
                chunk([(key(0), b"3", b"3")], stage="a", batch_id=9),
                chunk(
                    [(key(0), None, b"2"), (key(0), b"1", b"1")], index=1, batch_id=9
                ),
            ],
            NOW_US,
        )
        store.apply(JOB, decided(2, {"a": 2}, batch_id=9, states=lists))
        assert items(store, key(0)) == [b"3"]


class TestLists:
    @pytest.mark.proves("W6")
    def test_items_keep_the_order_of_stages_and_chunks(self, store: StateStore) -> None:
        """One list may get items from several tasks (W6)."""
        brought = [
            chunk([(key(0), b"b1")], stage="b"),
            chunk([(key(0), b"a3")], stage="a", index=1),
            chunk([(key(0), b"a1"), (key(0), b"a2")], stage="a", index=0),
        ]
        for one in brought:
            store.stage([one], NOW_US)
        store.apply(JOB, decided(1, {"a": 2, "b": 1}, states=[state(kind="list")]))
        assert items(store, key(0)) == [b"a1", b"a2", b"a3", b"b1"]

    @pytest.mark.proves("W5")
    def test_a_replaced_list_state_has_only_what_replaced_it(
        self, store: StateStore
    ) -> None:
        """As every other kind (W5)."""
        write(store, [(key(0), b"1")], batch_state=state(kind="list"))
        again = state(kind="list", is_replaced=True)
        write(store, [(key(0), b"2")], batch_state=again)
        assert items(store, key(0)) == [b"2"]
