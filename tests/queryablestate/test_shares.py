from __future__ import annotations

import pytest

from queryablestate.shares import Shares


def shares(count_max: int, size_bytes_max: int = 1_000) -> Shares[int]:
    """Return places."""
    return Shares(count_max=count_max, size_bytes_max=size_bytes_max)


@pytest.mark.proves("B2")
class TestShares:
    """Places that are few."""

    def test_one_owner_may_have_all(self) -> None:
        """While no other one wants any; then it is refused more itself (B2)."""
        some = shares(3)
        assert [some.take("a", one, 0) for one in range(4)] == [[], [], [], [3]]
        assert list(some) == [0, 1, 2]
        assert len(some) == 3

    def test_the_greediest_gives_up_its_newest(self) -> None:
        """Until the newcomer has as much (B2)."""
        some = shares(4)
        for one in range(4):
            assert some.take("a", one, 0) == []
        assert some.take("b", 10, 0) == [3]
        assert some.take("b", 11, 0) == [2]
        assert some.take("b", 12, 0) == [12]
        assert some.take("a", 4, 0) == [4]
        assert list(some) == [0, 1, 10, 11]

    def test_a_third_one_takes_of_those_who_have_most(self) -> None:
        """Of two that have as much, of the one that came first."""
        some = shares(4)
        for one in range(2):
            some.take("a", one, 0)
            some.take("b", 10 + one, 0)
        assert some.take("c", 20, 0) == [1]
        assert some.take("c", 21, 0) == [21]
        assert some.take("d", 30, 0) == [11]

    def test_bytes_are_shared_like_places(self) -> None:
        """Who has the largest part of what is short has most."""
        some = shares(100, 10)
        assert some.take("a", 1, 4) == []
        assert some.take("a", 2, 4) == []
        assert some.take("b", 3, 3) == [2]
        assert some.size_bytes == 7
        assert some.take("b", 4, 11) == [4]
        assert some.size_bytes == 7

    def test_who_has_many_small_ones_makes_no_room_for_bytes(self) -> None:
        """
        B2: places were not short, and giving them up makes no room to speak of.

        Some callers that filled the room with a few large questions had others, of a
        larger part of the places, give up thousands of small ones for the next one.
        """
        some = shares(100, 1_000)
        for one in range(50):
            assert some.take("many", one, 1) == []
        for one in (100, 101):
            assert some.take("large", one, 300) == []
        assert some.take("other", 200, 300) == []
        assert not some.has_part("many", 60)
        assert some.take("many", 50, 60) == [101]
        assert some.take("other", 201, 300) == [201]
        assert len(some) == 53

    def test_who_has_its_part_is_known_beforehand(self) -> None:
        """It would not keep a place; who has less gets one, at the cost of others."""
        some = shares(4, 100)
        for one in range(3):
            assert not some.has_part("a", 0)
            some.take("a", one, 0)
        assert not some.has_part("b", 100)
        assert some.has_part("b", 101)
        some.take("b", 10, 40)
        assert some.has_part("a", 0)
        assert not some.has_part("b", 0)
        assert some.take("b", 11, 0) == [2]
        assert some.has_part("b", 0)
        assert not some.has_part("c", 30)
        assert some.take("c", 20, 30) == [1]

    def test_a_limit_that_is_lowered_holds_for_who_comes_next(self) -> None:
        """Nothing goes before that."""
        some = shares(4)
        for one in range(4):
            some.take("a", one, 0)
        some.limit(2)
        assert len(some) == 4
        assert some.take("b", 10, 0) == [3, 2, 1]

    def test_more_than_one_may_have_to_go(self) -> None:
        """Room is made until the newcomer fits."""
        some = shares(100, 10)
        for one in range(5):
            some.take("a", one, 2)
        assert some.take("b", 9, 5) == [4, 3, 2]
        assert list(some) == [0, 1, 9]

    def test_a_place_that_is_free_is_given_again(self) -> None:
        """Whichever had it."""
        some = shares(1)
        assert some.take("a", 1, 5) == []
        some.free(1)
        assert 1 not in some
        assert some.size_bytes == 0
        assert some.take("b", 2, 0) == []
        some.clear()
        assert len(some) == 0
        assert some.take("a", 3, 0) == []
        assert 3 in some
