from __future__ import annotations

import pytest

from queryablestate.store.turns import FairTurns


@pytest.fixture
def turns() -> FairTurns[str]:
    """Return turns in which four chunks of 25 bytes are taken together, or fewer."""
    return FairTurns(size_bytes_max=100, count_max=5)


def put_chunks(turns: FairTurns[str], job_id: str, count: int, size: int = 25) -> None:
    """Have *count* chunks of a job wait."""
    for number in range(count):
        turns.put(f"{job_id}{number}", job_id=job_id, size_bytes=size)


def all_of(turns: FairTurns[str]) -> list[list[str]]:
    """Take everything, and return it as it was taken."""
    taken = []
    while turns:
        taken.append(list(turns.take()))
    return taken


def test_nothing_waits_at_first(turns: FairTurns[str]) -> None:
    """One that takes then is given nothing."""
    assert not turns
    assert turns.take() == []


class TestOneJob:
    """What is asked for one job is done in that order."""

    def test_chunks_are_taken_together(self, turns: FairTurns[str]) -> None:
        """As many as the limit has room for."""
        put_chunks(turns, "a", 6)
        assert all_of(turns) == [["a0", "a1", "a2", "a3"], ["a4", "a5"]]

    def test_no_more_than_so_many(self, turns: FairTurns[str]) -> None:
        """However small they are."""
        put_chunks(turns, "a", 6, size=1)
        assert all_of(turns) == [["a0", "a1", "a2", "a3", "a4"], ["a5"]]

    def test_one_is_taken_whatever_its_size(self, turns: FairTurns[str]) -> None:
        """A chunk that is larger than the limit goes alone."""
        put_chunks(turns, "a", 2, size=101)
        assert all_of(turns) == [["a0"], ["a1"]]

    def test_what_stands_between_chunks_keeps_them_apart(
        self, turns: FairTurns[str]
    ) -> None:
        """An entry is applied alone, between the chunks before and after it."""
        put_chunks(turns, "a", 2)
        turns.put("entry", job_id="a")
        put_chunks(turns, "a", 1)
        assert all_of(turns) == [["a0", "a1"], ["entry"], ["a0"]]


@pytest.mark.proves("B4")
class TestSeveralJobs:
    """B4: much of one job delays little of another."""

    def test_chunks_of_all_are_staged_together(self, turns: FairTurns[str]) -> None:
        """Each has an equal part of the limit."""
        put_chunks(turns, "a", 5)
        put_chunks(turns, "b", 3)
        assert all_of(turns) == [
            ["a0", "a1", "b0", "b1"],
            ["a2", "a3", "b2"],
            ["a4"],
        ]

    def test_a_commit_waits_for_one_turn_of_the_others(
        self, turns: FairTurns[str]
    ) -> None:
        """However many chunks and entries of another job came before it."""
        put_chunks(turns, "a", 50)
        for number in range(50):
            turns.put(f"c-entry{number}", job_id="c")
        turns.put("b-entry", job_id="b")
        assert [list(turns.take()) for _ in range(3)] == [
            ["a0"],
            ["c-entry0"],
            ["b-entry"],
        ]

    def test_the_limit_holds_for_all_together(self, turns: FairTurns[str]) -> None:
        """A job that had no room comes first the next time."""
        for job_id in "abc":
            put_chunks(turns, job_id, 2, size=60)
        assert all_of(turns) == [["a0", "b0"], ["c0", "a1"], ["b1", "c1"]]


class TestTheWholeStore:
    """What concerns all jobs changes places with nothing."""

    def test_it_comes_after_what_was_there(self, turns: FairTurns[str]) -> None:
        """And before what came later, also of a job that has not waited."""
        put_chunks(turns, "a", 5)
        turns.put("store")
        turns.put("other")
        turns.put("b-entry", job_id="b")
        put_chunks(turns, "a", 1)
        assert all_of(turns) == [
            ["a0", "a1", "a2", "a3"],
            ["a4"],
            ["store"],
            ["other"],
            ["b-entry"],
            ["a0"],
        ]

    def test_what_is_left_can_be_taken_at_once(self, turns: FairTurns[str]) -> None:
        """To give it back."""
        put_chunks(turns, "a", 2)
        turns.put("store")
        turns.put("b-entry", job_id="b")
        assert turns.take_all() == ["a0", "a1", "store", "b-entry"]
        assert not turns
