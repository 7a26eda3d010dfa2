"""Operator state is redistributed by O1 and O2."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest

from nameservice import ConfigurationError
from rescaling import RedistributionMode, redistribute
from rescaling.redistribution import carry_over
from tests.tiers import nightly_after


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


def random_snapshots(rng: random.Random) -> Snapshots:
    """
    Return what 1 to 64 subtasks left of up to nine states.

    Items of a split or union state are numbered in the order of (old subtask, index),
    so that a run of them is a range.  Not every subtask holds every state, and all
    hold the same of a broadcast state half of the time.
    """
    parallelism = rng.choice([1, 2, 3, rng.randint(1, 16), rng.randint(1, 64)])
    snapshots: Snapshots = [{} for _ in range(parallelism)]
    for name in rng.sample("abcdefghi", rng.randint(0, 9)):
        mode = rng.choice([SPLIT, SPLIT, UNION, BROADCAST])
        length_max = rng.choice([0, 1, 6])
        is_everywhere = rng.random() < 0.7
        is_alike = rng.random() < 0.5
        count = 0
        for snapshot in snapshots:
            if is_everywhere or rng.random() < 0.5:
                length = rng.randint(0, length_max)
                first = 0 if mode is BROADCAST and is_alike else count
                snapshot[name] = (mode, list(range(first, first + length)))
                count += length
    return snapshots


def naively_redistributed(
    snapshots: Snapshots, parallelism: int, assigned: set[str]
) -> Snapshots:
    """Return what O1 and O2 say, by dealing one item at a time."""
    result: Snapshots = [{} for _ in range(parallelism)]
    next_subtask = 0
    for name in sorted({name for snapshot in snapshots for name in snapshot}):
        left = [snapshot[name] for snapshot in snapshots if name in snapshot]
        mode = left[0][0]
        everything = [item for _, part in left for item in part]
        for subtask in result:
            subtask[name] = (mode, [])
        if mode is UNION:
            for subtask in result:
                subtask[name][1].extend(everything)
        elif mode is BROADCAST:
            for index, subtask in enumerate(result):
                subtask[name][1].extend(left[index % len(left)][1])
        elif name in assigned:
            for item in everything:
                result[belongs(item, parallelism)][name][1].append(item)
        elif parallelism == len(snapshots):
            for index, snapshot in enumerate(snapshots):
                if name in snapshot:
                    result[index][name][1].extend(snapshot[name][1])
        else:
            turns = [(next_subtask + n) % parallelism for n in range(len(everything))]
            order = [(next_subtask + n) % parallelism for n in range(parallelism)]
            next_subtask = (next_subtask + len(everything)) % parallelism
            # Each has as many items as it had turns, and they are one run.
            for index in order:
                for _ in range(turns.count(index)):
                    result[index][name][1].append(everything.pop(0))
    return result


def belongs(item: int, parallelism: int) -> int:
    """Return where an assigned item belongs."""
    return item * 7 % parallelism


def is_even(lengths: list[int]) -> bool:
    """Return whether *lengths* differ by one at the most."""
    return max(lengths) - min(lengths) <= 1


@pytest.mark.proves("O1")
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


@pytest.mark.proves("O1")
class TestProperties:
    """What holds for every snapshot and parallelism: 3,000 cases, at night 12,000."""

    @pytest.mark.proves("O2")
    @pytest.mark.parametrize("seed", nightly_after(3, range(12)))
    def test_everything_is_where_the_rules_say(self, seed: int) -> None:
        """O1, O2: as a naive model says, and by what the rules promise."""
        rng = random.Random(seed)
        for _ in range(1_000):
            snapshots = random_snapshots(rng)
            parallelism = rng.choice([len(snapshots), 1, 2, 3, rng.randint(1, 64)])
            modes = {n: state[0] for s in snapshots for n, state in s.items()}
            split_names = sorted(n for n, mode in modes.items() if mode is SPLIT)
            assigned = {name for name in split_names if rng.random() < 0.2}
            before = copy.deepcopy(snapshots)
            result = redistribute(
                snapshots, parallelism, assign=dict.fromkeys(assigned, belongs)
            )
            assert result == naively_redistributed(snapshots, parallelism, assigned)
            assert snapshots == before
            assert [list(share) for share in result] == [sorted(modes)] * parallelism
            if len(snapshots) != parallelism:
                self.check_dealt(before, result, set(split_names) - assigned)

    def check_dealt(self, before: Snapshots, after: Snapshots, names: set[str]) -> None:
        """See that *names* are dealt in even runs, once each, and evenly in all."""
        totals = [0] * len(after)
        for name in names:
            count = sum(len(s[name][1]) for s in before if name in s)
            shares = items(after, name)
            assert sorted(itertools.chain(*shares)) == list(range(count))
            for index, share in enumerate(shares):
                assert len(share) in {
                    count // len(after),
                    -(-count // len(after)),
                }
                assert share == list(range(share[0], share[-1] + 1)) if share else True
                totals[index] += len(share)
        assert is_even(totals)

    def test_the_order_of_names_does_not_matter(self) -> None:
        """O1: the same snapshots are dealt alike, however their names are ordered."""
        rng = random.Random(12)
        for _ in range(500):
            snapshots = random_snapshots(rng)
            turned = [dict(reversed(snapshot.items())) for snapshot in snapshots]
            parallelism = rng.randint(1, 64)
            assert redistribute(snapshots, parallelism) == redistribute(
                turned, parallelism
            )


class TestCarryingOver:
    """What the subtasks of one batch leave to those of the next."""

    @pytest.mark.proves("O1", "O2")
    def test_everything_stays_while_their_number_does(self) -> None:
        """O1, O3: union state too; only assigned items go where they belong (O2)."""
        rng = random.Random(13)
        for _ in range(500):
            snapshots = random_snapshots(rng)
            parallelism = len(snapshots)
            assert carry_over(snapshots, parallelism) == snapshots
            modes = {n: state[0] for s in snapshots for n, state in s.items()}
            assigned = set(sorted(n for n in modes if modes[n] is SPLIT)[:2])
            result = carry_over(
                snapshots, parallelism, assign=dict.fromkeys(assigned, belongs)
            )
            moved = naively_redistributed(snapshots, parallelism, assigned)
            for index, share in enumerate(result):
                stayed = snapshots[index].keys() - assigned
                assert {n: share[n] for n in stayed} == {
                    n: snapshots[index][n] for n in stayed
                }
                assert {n: share[n] for n in assigned} == {
                    n: moved[index][n] for n in assigned
                }

    @pytest.mark.proves("O1")
    def test_everything_is_redistributed_when_their_number_changes(self) -> None:
        """O1: more subtasks or fewer share what there is."""
        snapshots: Snapshots = [{"u": (UNION, [i]), "x": (SPLIT, [i])} for i in (1, 2)]
        assert carry_over(snapshots, 1) == redistribute(snapshots, 1)
        assert carry_over(snapshots, 3) == redistribute(snapshots, 3)

    @pytest.mark.proves("O2")
    def test_the_same_is_wrong_as_when_redistributing(self) -> None:
        """O2: two modes of one name; what is not split cannot be assigned."""
        snapshots: Snapshots = [{"x": (SPLIT, [])}, {"x": (UNION, [])}]
        with pytest.raises(ConfigurationError, match="split-distribute in one"):
            carry_over(snapshots, 2)
        with pytest.raises(ConfigurationError, match="only split-distribute"):
            carry_over([{"u": (UNION, [1])}], 1, assign={"u": belongs})

    def test_results_are_copies(self) -> None:
        """What a subtask does to its items is not seen in what was left."""
        snapshots: Snapshots = [{"x": (SPLIT, [1])}]
        carry_over(snapshots, 1)[0]["x"][1].append(2)
        assert snapshots == [{"x": (SPLIT, [1])}]


class TestUneven:
    """States that some subtasks do not have."""

    @pytest.mark.proves("O1")
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

    @pytest.mark.proves("O1")
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

    @pytest.mark.proves("O2")
    def test_two_modes(self) -> None:
        """O2: one name under two modes is an error."""
        snapshots: Snapshots = [{"x": (SPLIT, [])}, {"x": (UNION, [])}]
        with pytest.raises(ConfigurationError, match="split-distribute in one"):
            redistribute(snapshots, 2)

    @pytest.mark.proves("O2")
    @pytest.mark.parametrize("index", [-1, 2, True, "0", None])
    def test_assigned_out_of_range(self, index: Any) -> None:
        """O2: an item must go to a subtask that there is."""
        with pytest.raises(ConfigurationError, match="must be a subtask, 0 to 1"):
            redistribute(split(1), 2, assign={"x": lambda _item, _parallelism: index})

    def test_assigning_what_is_not_split(self) -> None:
        """Union and broadcast state belongs to everybody."""
        with pytest.raises(ConfigurationError, match="only split-distribute"):
            redistribute([{"u": (UNION, [1])}], 2, assign={"u": lambda _i, _p: 0})
