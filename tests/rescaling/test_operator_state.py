"""A subtask's states: modes, snapshots, limits, and what may be in them (O2)."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from nameservice import ConfigurationError
from rescaling import (
    OperatorStateError,
    OperatorStateStore,
    RedistributionMode,
    SnapshotTooLargeError,
    UnsupportedItemError,
    redistribute,
)
from rescaling.operator_state import (
    check_takeover,
    decode_items,
    decode_snapshot,
    encode_snapshot,
    encoded_states,
)


SPLIT = RedistributionMode.SPLIT_DISTRIBUTE
UNION = RedistributionMode.UNION
BROADCAST = RedistributionMode.BROADCAST


def nested(depth: int) -> list[Any]:
    """Return an empty list that is *depth* lists deep."""
    item: list[Any] = []
    for _ in range(depth - 1):
        item = [item]
    return item


def random_item(rng: random.Random, depth: int = 3) -> Any:
    """Return any plain value."""
    kinds = 9 if depth else 6
    match rng.randrange(kinds):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice([0, -1, 2**64 - 1, -(2**63), rng.randrange(10**9)])
        case 3:
            return rng.choice([0.0, -1.5, float("inf"), rng.random()])
        case 4:
            return rng.choice(["", "a", "\U0001f600", "\x00", "x" * 300])
        case 5:
            return rng.choice([b"", b"\xff\x00", b"y" * 70])
        case 6:
            return [random_item(rng, depth - 1) for _ in range(rng.randrange(4))]
        case 7:
            return tuple(random_item(rng, depth - 1) for _ in range(rng.randrange(4)))
        case _:
            return {
                random_item(rng, 0): random_item(rng, depth - 1)
                for _ in range(rng.randrange(4))
            }


class TestListStates:
    @pytest.mark.proves("O2")
    @pytest.mark.parametrize("mode", [SPLIT, UNION])
    def test_items_are_kept_in_order(self, mode: RedistributionMode) -> None:
        """O2: what was added last stands last; update and clear replace everything."""
        store = OperatorStateStore()
        state = store.list_state("x") if mode is SPLIT else store.union_list_state("x")
        assert state.get() == []
        state.add(("p0", 7))
        state.add(("p1", 9))
        assert state.get() == [("p0", 7), ("p1", 9)]
        assert len(state) == 2
        assert store.snapshot() == {"x": (mode, [("p0", 7), ("p1", 9)])}
        state.update(item for item in state.get() if item[0] == "p1")
        assert state.get() == [("p1", 9)]
        state.clear()
        assert store.snapshot() == {"x": (mode, [])}

    def test_what_get_returns_is_the_callers(self) -> None:
        """The state changes by its methods alone."""
        state = OperatorStateStore().list_state("x")
        state.get().append(1)
        assert state.get() == []

    def test_two_handles_are_one_state(self) -> None:
        """One that asks for a name again has what the first has."""
        store = OperatorStateStore()
        first, second = store.list_state("x"), store.list_state("x")
        first.add(1)
        second.update([*second.get(), 2])
        assert first.get() == [1, 2]


class TestBroadcastStates:
    def test_it_is_a_table(self) -> None:
        """A key has one value, the last; keys that go are gone, and may be missing."""
        store = OperatorStateStore()
        state = store.broadcast_state("rules")
        state.put("a", 1)
        state.put(("b", 2), [3])
        state.put("a", 4)
        assert state.get("a") == 4
        assert state.get("c") is None
        assert state.get("c", 5) == 5
        assert "a" in state
        assert "c" not in state
        assert state.items() == [("a", 4), (("b", 2), [3])]
        assert store.snapshot() == {"rules": (BROADCAST, [("a", 4), (("b", 2), [3])])}
        state.remove("a")
        state.remove("c")
        assert len(state) == 1
        state.clear()
        assert state.items() == []


class TestNames:
    @pytest.mark.proves("O2")
    def test_one_name_has_one_mode(self) -> None:
        """O2: the same name under two modes is an error, whichever comes first."""
        makers = ["list_state", "union_list_state", "broadcast_state"]
        for first in makers:
            for second in makers:
                store = OperatorStateStore()
                getattr(store, first)("x")
                if first == second:
                    getattr(store, second)("x")
                    continue
                with pytest.raises(ConfigurationError, match="give them different"):
                    getattr(store, second)("x")

    @pytest.mark.proves("O2")
    def test_a_restored_name_keeps_its_mode(self) -> None:
        """O2: also over a restart with another version of the function."""
        store = OperatorStateStore()
        store.restore({"x": (SPLIT, [1])})
        with pytest.raises(ConfigurationError, match="'x' is split-distribute already"):
            store.union_list_state("x")
        with pytest.raises(ConfigurationError, match="cannot be broadcast"):
            store.restore({"x": (BROADCAST, [])})

    @pytest.mark.parametrize("name", ["", "x" * 256])
    def test_names_have_a_length(self, name: str) -> None:
        """1 to 255 characters."""
        with pytest.raises(ConfigurationError, match=f"not {len(name)}"):
            OperatorStateStore().list_state(name)

    @pytest.mark.proves("O2")
    def test_the_order_of_names_is_their_own(self) -> None:
        """O2: a snapshot does not tell in which order states were asked for."""
        names = [f"state-{number}" for number in range(20)]
        snapshots = []
        for seed in range(5):
            random.Random(seed).shuffle(names)
            store = OperatorStateStore()
            for name in names:
                store.list_state(name).add(name)
            snapshots.append(store.encoded_snapshot())
        assert len(set(snapshots)) == 1
        assert list(decode_snapshot(snapshots[0])) == sorted(names)


class TestRestoring:
    @pytest.mark.proves("O1", "O2")
    def test_restored_is_what_was_left(self) -> None:
        """O1, O2: every mode, every item, and states that are not asked for again."""
        store = OperatorStateStore()
        store.list_state("l").update([("p", 1), ("q", 2)])
        store.union_list_state("u").add({"a": [1, (2, b"3")]})
        store.broadcast_state("b").put("k", "v")
        snapshot = store.snapshot()
        other = OperatorStateStore()
        assert other.list_state("new").get() == []
        other.list_state("l").add("old")
        other.restore(snapshot)
        assert other.list_state("l").get() == [("p", 1), ("q", 2)]
        assert other.broadcast_state("b").get("k") == "v"
        assert other.snapshot() == {**snapshot, "new": (SPLIT, [])}

    def test_handles_outlive_a_restore(self) -> None:
        """What was returned for a state before shows what was restored."""
        store = OperatorStateStore()
        items, table = store.list_state("l"), store.broadcast_state("b")
        items.add(1)
        table.put("old", 1)
        store.restore({"l": (SPLIT, [2]), "b": (BROADCAST, [("new", 2)])})
        assert items.get() == [2]
        assert table.items() == [("new", 2)]
        store.restore({})
        assert items.get() == []
        assert table.items() == []

    def test_a_snapshot_is_a_copy_to_the_last(self) -> None:
        """What a function does to an item afterwards is not in the snapshot."""
        store = OperatorStateStore()
        item = {"a": [1]}
        store.list_state("x").add(item)
        snapshot = store.snapshot()
        item["a"].append(2)
        assert snapshot == {"x": (SPLIT, [{"a": [1]}])}

    @pytest.mark.proves("O1")
    def test_redistributed_broadcast_state_is_a_table_again(self) -> None:
        """O1: new subtasks take over the table of an old one."""
        store = OperatorStateStore()
        store.broadcast_state("b").put(1, "one")
        for share in redistribute([store.snapshot()], 3):
            other = OperatorStateStore()
            other.restore(share)
            assert other.broadcast_state("b").items() == [(1, "one")]

    @pytest.mark.parametrize("items", [[1], [(1, 2, 3)], [([], 1)]])
    def test_a_table_is_made_of_pairs(self, items: list[Any]) -> None:
        """A broadcast state that is none is an error that names it."""
        with pytest.raises(ConfigurationError, match="'b' holds what is no pair"):
            OperatorStateStore().restore({"b": (BROADCAST, items)})


class TestItems:
    @pytest.mark.proves("O2")
    def test_plain_values_come_back_as_they_were(self) -> None:
        """O2: equal, and of the very types, in 2,000 random snapshots."""
        rng = random.Random(20)
        for _ in range(2_000):
            items = [random_item(rng) for _ in range(rng.randrange(5))]
            snapshot = {"x": (SPLIT, items)}
            back = decode_snapshot(encode_snapshot(snapshot))
            assert repr(back) == repr(snapshot)

    @pytest.mark.proves("O2")
    @pytest.mark.parametrize(
        ("item", "detail"),
        [
            ({1, 2}, "of the type set"),
            ([1, {"a": (object(),)}], "of the type object"),
            (SPLIT, "of the type RedistributionMode"),
            (type("Text", (str,), {})("x"), "of the type Text"),
            ({(1, 2): 3}, "a dict with a key of the type tuple"),
            (2**64, "more than 64 bits"),
            (-(2**63) - 1, "more than 64 bits"),
            ({"a": 2**64}, "more than 64 bits"),
            ("\ud800", "no Unicode text"),
            (("\ud800",), "no Unicode text"),
            (nested(33), "nested more than 32 deep"),
        ],
    )
    def test_what_would_not_come_back_is_refused(self, item: Any, detail: str) -> None:
        """O2: while it is written, with the name of the state."""
        store = OperatorStateStore()
        store.list_state("x").add(item)
        with pytest.raises(UnsupportedItemError, match=detail) as raised:
            store.snapshot()
        assert raised.value.state_name == "x"

    def test_the_deepest_item_comes_back(self) -> None:
        """32 lists in one another are still kept."""
        snapshot = {"x": (SPLIT, [nested(32)])}
        assert decode_snapshot(encode_snapshot(snapshot)) == snapshot

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xc1",
            msgspec.msgpack.encode({"x": 1}),
            msgspec.msgpack.encode([("x", "sideways", b"\x90")]),
            msgspec.msgpack.encode([("x", "union", b"")]),
            msgspec.msgpack.encode(
                [("x", "union", msgspec.msgpack.encode([msgspec.msgpack.Ext(9, b"")]))]
            ),
        ],
    )
    def test_what_is_no_snapshot_is_an_error(self, data: bytes) -> None:
        """Nothing of msgspec's escapes."""
        with pytest.raises(OperatorStateError, match="are no snapshot"):
            decode_snapshot(data)


class TestEncodedStates:
    """A snapshot taken apart, its items still in bytes (O5)."""

    def test_items_are_those_of_the_snapshot(self) -> None:
        """For any plain values: what is told of a state is what it holds."""
        rng = random.Random(7)
        for _ in range(200):
            snapshot = {
                name: (mode, [random_item(rng) for _ in range(rng.randrange(4))])
                for name, mode in (("a", SPLIT), ("b", UNION))
            }
            parts = encoded_states(encode_snapshot(snapshot))
            assert {
                name: (mode, decode_items(items))
                for name, (mode, items) in parts.items()
            } == snapshot

    def test_what_is_no_snapshot_is_an_error(self) -> None:
        """Damaged bytes are never half a state."""
        with pytest.raises(OperatorStateError, match="no snapshot"):
            encoded_states(b"\xc1")
        with pytest.raises(OperatorStateError, match="no items"):
            decode_items(b"\x01")


class TestLimits:
    @pytest.mark.proves("O2")
    def test_a_snapshot_above_its_limit_is_refused_when_it_is_written(self) -> None:
        """O2: with the largest state and its size; one byte less is taken."""
        probe = OperatorStateStore()
        probe.list_state("small").add(1)
        probe.union_list_state("large").add(b"x" * 1_000)
        size_bytes = len(probe.encoded_snapshot())
        for limit in (size_bytes, size_bytes - 1):
            store = OperatorStateStore(snapshot_size_bytes_max=limit)
            store.restore(probe.snapshot())
            if limit == size_bytes:
                assert store.snapshot() == probe.snapshot()
                continue
            with pytest.raises(SnapshotTooLargeError) as raised:
                store.snapshot()
            assert raised.value.state_name == "large"
            assert 1_000 < raised.value.state_size_bytes < raised.value.size_bytes
            assert raised.value.size_bytes == size_bytes
            assert raised.value.size_bytes_max == limit

    @pytest.mark.proves("O2")
    def test_the_default_is_64_mebibytes(self) -> None:
        """O2: per subtask."""
        store = OperatorStateStore()
        state = store.list_state("x")
        state.add(bytes(64 * 1024 * 1024 - 100))
        assert len(store.encoded_snapshot()) <= 64 * 1024 * 1024
        state.add(bytes(100))
        with pytest.raises(SnapshotTooLargeError, match="limit of 67,108,864"):
            store.snapshot()

    def test_a_limit_is_positive(self) -> None:
        """At least 1."""
        with pytest.raises(ConfigurationError, match="at least 1, not 0"):
            OperatorStateStore(snapshot_size_bytes_max=0)

    @pytest.mark.proves("O2")
    def test_one_name_in_two_modes_is_refused_when_it_is_written(self) -> None:
        """
        O2: one subtask has a list, another a union list, of the same name.

        Each of the snapshots is fine, and so is the next batch.  When the number of
        subtasks changes they are refused, and no function can mend that then: states
        that were restored are in the next snapshot, too.
        """
        stores = [OperatorStateStore(), OperatorStateStore()]
        stores[0].list_state("rules").add(1)
        stores[1].union_list_state("rules").add(2)
        snapshots = [store.encoded_snapshot() for store in stores]
        with pytest.raises(ConfigurationError, match="different names"):
            redistribute([decode_snapshot(one) for one in snapshots], 3)
        with pytest.raises(ConfigurationError, match="different names"):
            check_takeover(snapshots, size_bytes_max=1_000)

    @pytest.mark.proves("O2")
    def test_union_state_is_counted_for_all_subtasks_together(self) -> None:
        """O2: what only fails when it is restored is refused before."""
        snapshots = [
            encode_snapshot({"u": (UNION, [bytes(100)]), "l": (SPLIT, [bytes(900)])})
            for _ in range(8)
        ]
        check_takeover(snapshots, size_bytes_max=1_000)
        with pytest.raises(SnapshotTooLargeError) as raised:
            check_takeover(snapshots, size_bytes_max=800)
        assert raised.value.state_name == "u"
        assert raised.value.is_union
        assert raised.value.size_bytes > 800

    @pytest.mark.proves("O2")
    def test_what_is_taken_over_is_counted_over_all_states(self) -> None:
        """
        O2: two union states and a table, each within the limit and not all together.

        With more subtasks each would have to leave all of them again, and could not.
        """
        snapshots = [
            encode_snapshot(
                {
                    "a": (UNION, [bytes(100)]),
                    "b": (UNION, [bytes(120)]),
                    "t": (BROADCAST, [("key", bytes(300 + number))]),
                }
            )
            for number in range(4)
        ]
        share = redistribute([decode_snapshot(one) for one in snapshots], 5)[3]
        store = OperatorStateStore(snapshot_size_bytes_max=1_200)
        store.restore(share)
        with pytest.raises(SnapshotTooLargeError):
            store.snapshot()
        with pytest.raises(SnapshotTooLargeError) as raised:
            check_takeover(snapshots, size_bytes_max=1_200)
        assert (raised.value.state_name, raised.value.is_union) == ("b", True)
        assert 480 < raised.value.state_size_bytes < 500
        assert 1_200 < raised.value.size_bytes < 1_250
        check_takeover(snapshots, size_bytes_max=1_250)
