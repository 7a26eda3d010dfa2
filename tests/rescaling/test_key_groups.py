"""Key groups are Flink's, to the last formula."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from rescaling import (
    KeyGroupRange,
    default_max_parallelism,
    key_group_ranges,
    operator_index,
)


sizes = st.integers(1, 32_768).flatmap(
    lambda most: st.tuples(st.just(most), st.integers(1, min(most, 256)))
)


class TestRanges:
    """Every key group has one owner, and the owners have nearly equal shares."""

    @given(sizes)
    def test_ranges_cover_every_key_group_once(self, sizes: tuple[int, int]) -> None:
        """They follow each other without a gap, and differ by one at the most."""
        max_parallelism, parallelism = sizes
        ranges = key_group_ranges(max_parallelism, parallelism=parallelism)
        assert len(ranges) == parallelism
        assert ranges[0].first == 0
        assert ranges[-1].last == max_parallelism - 1
        for one, other in itertools.pairwise(ranges):
            assert other.first == one.last + 1
        lengths = {len(one) for one in ranges}
        assert max(lengths) - min(lengths) <= 1

    @given(sizes, st.data())
    def test_index_and_range_agree(
        self, sizes: tuple[int, int], data: st.DataObject
    ) -> None:
        """A key group lies in the range of the instance that owns it, and no other."""
        max_parallelism, parallelism = sizes
        key_group = data.draw(st.integers(0, max_parallelism - 1))
        index = operator_index(
            key_group, max_parallelism=max_parallelism, parallelism=parallelism
        )
        ranges = key_group_ranges(max_parallelism, parallelism=parallelism)
        assert [key_group in one for one in ranges].index(True) == index

    def test_worked_example(self) -> None:
        """128 key groups on three instances, both ends inclusive."""
        assert key_group_ranges(128, parallelism=3) == (
            KeyGroupRange(first=0, last=42),
            KeyGroupRange(first=43, last=85),
            KeyGroupRange(first=86, last=127),
        )
        assert operator_index(57, max_parallelism=128, parallelism=3) == 1

    def test_range_is_a_collection_of_key_groups(self) -> None:
        """It iterates over its key groups, and contains nothing else."""
        one = KeyGroupRange(first=3, last=5)
        assert list(one) == [3, 4, 5]
        assert 2 not in one
        assert 6 not in one
        assert "3" not in one


class TestDefault:
    """The default leaves room to grow."""

    @pytest.mark.parametrize(
        ("parallelism", "expected"),
        [
            (1, 128),
            (85, 128),
            (86, 256),
            (128, 256),
            (4_096, 8_192),
            (21_845, 32_768),
            (21_846, 32_768),
            (32_768, 32_768),
        ],
    )
    def test_next_power_of_two(self, parallelism: int, expected: int) -> None:
        """Of one and a half times the parallelism, between 128 and 32,768."""
        assert default_max_parallelism(parallelism) == expected


class TestBounds:
    """What is out of its range is an error that names it."""

    @pytest.mark.parametrize("max_parallelism", [0, -1, 32_769])
    def test_max_parallelism(self, max_parallelism: int) -> None:
        """1 to 32,768."""
        with pytest.raises(ConfigurationError, match="max_parallelism must be"):
            key_group_ranges(max_parallelism, parallelism=1)

    @pytest.mark.parametrize("parallelism", [0, 129])
    def test_parallelism(self, parallelism: int) -> None:
        """1 to the max parallelism."""
        with pytest.raises(ConfigurationError, match="parallelism must be 1 to max"):
            operator_index(0, max_parallelism=128, parallelism=parallelism)

    @pytest.mark.parametrize("key_group", [-1, 128])
    def test_key_group(self, key_group: int) -> None:
        """0 to the max parallelism, exclusive."""
        with pytest.raises(ConfigurationError, match="key_group must be 0 to 127"):
            operator_index(key_group, max_parallelism=128, parallelism=2)

    @pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3)])
    def test_range(self, first: int, last: int) -> None:
        """From 0 upwards."""
        with pytest.raises(ConfigurationError, match="0 <= first <= last"):
            KeyGroupRange(first=first, last=last)
