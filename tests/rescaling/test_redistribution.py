"""Operator state is redistributed by O1 and O2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nameservice import ConfigurationError
from rescaling import RedistributionMode, redistribute


SPLIT = RedistributionMode.SPLIT_DISTRIBUTE
UNION = RedistributionMode.UNION
BROADCAST = RedistributionMode.BROADCAST

Snapshots = list[dict[str, tuple[RedistributionMode, list[Any]]]]


def split(*lengths: int, name: str = "x") -> Snapshots:
    """Return one snapshot for each length, whose items name subtask and index."""
    return [
        {name: (SPLIT, [f"s{task}[{index}]" for index in range(length)])}
        for task, length in enumerate(lengths)
    ]


def items(snapshots: Snapshots, name: str = "x") -> list[list[Any]]:
    """Return the items of *name* in each of *snapshots*."""
    return [snapshot[name][1] for snapshot in snapshots]


@st.composite
def _snapshots(draw: st.DrawFn) -> Snapshots:
    """Up to 64 subtasks and nine names, with items that are all different."""
    parallelism = draw(st.integers(1, 64))
    modes = draw(
        st.dictionaries(
            st.sampled_from("abcdefghi"),
            st.sampled_from(RedistributionMode),
            min_size=1,
            max_size=9,
        )
    )
    snapshots: Snapshots = [{} for _ in range(parallelism)]
    for name, mode in modes.items():
        lengths = draw(
            st.lists(st.integers(0, 6), min_size=parallelism, max_size=parallelism)
        )
        for task, length in enumerate(lengths):
            if mode is BROADCAST:
                snapshots[task][name] = (mode, [(name, i) for i in range(lengths[0])])
            else:
                content = [(name, task, i) for i in range(length)]
                snapshots[task][name] = (mode, content)
    return snapshots


def is_even(lengths: list[int]) -> bool:
    """Return whether *lengths* differ by one at the most."""
    return max(lengths) - min(lengths) <= 1


class TestWorkedExamples:
    """The examples that the rule was written with."""

    def test_to_two(self) -> None:
        """O1: lists of lengths 5, 0, 1 go to two subtasks in runs of three."""
        assert items(redistribute(split(5, 0, 1), 2)) == [
            ["s0[0]", "s0[1]", "s0[2]"],
            ["s0[3]", "s0[4]", "s2[0]"],
        ]

    def test_to_four(self) -> None:
        """O1: the same to four are two, two, one, one."""
        result = items(redistribute(split(5, 0, 1), 4))
        assert [len(share) for share in result] == [2, 2, 1, 1]

    def test_to_as_many(self) -> None:
        """O1: unchanged parallelism leaves items where they are."""
        assert redistribute(split(5, 0, 1), 3) == split(5, 0, 1)

    def test_two_lists_to_four(self) -> None:
        """O1: 7 and 7 to four; a run may cross from one old subtask into the next."""
        assert items(redistribute(split(7, 7), 4)) == [
            ["s0[0]", "s0[1]", "s0[2]", "s0[3]"],
            ["s0[4]", "s0[5]", "s0[6]", "s1[0]"],
            ["s1[1]", "s1[2]", "s1[3]"],
            ["s1[4]", "s1[5]", "s1[6]"],
        ]

    def test_remainders_go_on_from_name_to_name(self) -> None:
        """O1: nine names of one item each to three subtasks are three items each."""
        snapshot = {name: (SPLIT, [name]) for name in "abcdefghi"}
        result = redistribute([snapshot], 3)
        totals = [sum(len(state[1]) for state in one.values()) for one in result]
        assert totals == [3, 3, 3]


class TestProperties:
    """What holds for every snapshot and every parallelism."""

    @settings(max_examples=400)
    @given(_snapshots(), st.integers(1, 64))
    def test_nothing_is_lost_and_shares_are_even(
        self, snapshots: Snapshots, new_parallelism: int
    ) -> None:
        """O1: split once and evenly, union for all, broadcast from an old one."""
        result = redistribute(snapshots, new_parallelism)
        assert len(result) == new_parallelism
        split_totals = [0] * new_parallelism
        for name in snapshots[0]:
            before = [item for part in items(snapshots, name) for item in part]
            after = items(result, name)
            match snapshots[0][name][0]:
                case RedistributionMode.UNION:
                    assert after == [before] * new_parallelism
                case RedistributionMode.BROADCAST:
                    assert after == [snapshots[0][name][1]] * new_parallelism
                case RedistributionMode.SPLIT_DISTRIBUTE:
                    dealt = [item for share in after for item in share]
                    assert sorted(dealt) == before == sorted(before)
                    if new_parallelism == len(snapshots):
                        assert after == items(snapshots, name)
                        continue
                    assert is_even([len(share) for share in after])
                    for index, share in enumerate(after):
                        split_totals[index] += len(share)
                        begin = before.index(share[0]) if share else 0
                        assert share == before[begin : begin + len(share)]
        assert is_even(split_totals)

    @given(_snapshots(), st.integers(1, 64))
    def test_the_order_of_names_does_not_matter(
        self, snapshots: Snapshots, new_parallelism: int
    ) -> None:
        """O1: the same snapshots are dealt alike, however their names are ordered."""
        turned = [dict(reversed(snapshot.items())) for snapshot in snapshots]
        assert redistribute(snapshots, new_parallelism) == redistribute(
            turned, new_parallelism
        )

    @given(_snapshots(), st.integers(1, 64))
    def test_assigned_items_are_where_they_belong(
        self, snapshots: Snapshots, new_parallelism: int
    ) -> None:
        """O2: also at unchanged parallelism, in the order in which they were."""
        names = {n for n, (mode, _) in snapshots[0].items() if mode is SPLIT}

        def belongs(item: tuple[str, int, int], parallelism: int) -> int:
            return item[2] % parallelism

        result = redistribute(
            snapshots, new_parallelism, assign=dict.fromkeys(names, belongs)
        )
        for name in names:
            before = [item for part in items(snapshots, name) for item in part]
            for index, share in enumerate(items(result, name)):
                belonging = [i for i in before if i[2] % new_parallelism == index]
                assert share == belonging


class TestUneven:
    """States that some subtasks do not have."""

    def test_broadcast_is_read_from_those_that_hold_it(self) -> None:
        """O1: new subtask i reads old snapshot i mod the number of those."""
        snapshots: Snapshots = [{"b": (BROADCAST, [1])}, {}, {"b": (BROADCAST, [2])}]
        assert items(redistribute(snapshots, 3), "b") == [[1], [2], [1]]

    def test_missing_split_state_is_empty(self) -> None:
        """A subtask that never wrote a state has nothing of it."""
        snapshots: Snapshots = [{}, {"x": (SPLIT, [1])}]
        assert items(redistribute(snapshots, 2)) == [[], [1]]

    def test_no_snapshots_are_empty_snapshots(self) -> None:
        """A first start has nothing to redistribute."""
        assert redistribute([], 2) == [{}, {}]

    def test_results_are_copies(self) -> None:
        """O1: what one subtask does to its items is not seen by another."""
        first, second = redistribute([{"u": (UNION, [1])}], 2)
        first["u"][1].append(2)
        assert second["u"][1] == [1]


class TestErrors:
    """What cannot be done is said."""

    def test_parallelism(self) -> None:
        """At least one subtask."""
        with pytest.raises(ConfigurationError, match="at least 1"):
            redistribute([], 0)

    def test_two_modes(self) -> None:
        """O2: one name under two modes is an error."""
        snapshots: Snapshots = [{"x": (SPLIT, [])}, {"x": (UNION, [])}]
        with pytest.raises(ConfigurationError, match="split-distribute in one"):
            redistribute(snapshots, 2)

    @pytest.mark.parametrize("index", [-1, 2, True, "0", None])
    def test_assigned_out_of_range(self, index: Any) -> None:
        """O2: an item must go to a subtask that there is."""
        with pytest.raises(ConfigurationError, match="must be a subtask, 0 to 1"):
            redistribute(split(1), 2, assign={"x": lambda _item, _parallelism: index})

    def test_assigning_what_is_not_split(self) -> None:
        """Union and broadcast state belongs to everybody."""
        with pytest.raises(ConfigurationError, match="only split-distribute"):
            redistribute([{"u": (UNION, [1])}], 2, assign={"u": lambda _i, _p: 0})
