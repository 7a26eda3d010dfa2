"""Whose statement is next: each caller in turn, and none has every place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.turns import Turns


pytestmark = pytest.mark.proves("F6")


class TestTurns:
    def test_one_caller_leaves_a_place(self) -> None:
        """However many statements it has."""
        turns = Turns(3)
        for number in range(4):
            turns.ask("heavy", number)
        assert turns.next_tickets() == [0, 1]
        turns.ask("light", "x")
        assert turns.next_tickets() == ["x"]
        turns.done("light")
        assert turns.next_tickets() == []
        turns.done("heavy")
        assert turns.next_tickets() == [2]
        assert (turns.running_count, turns.waiting_count) == (2, 1)

    def test_a_single_place_goes_round(self) -> None:
        """It is a newcomer's turn before the second of one who waits already."""
        turns = Turns(1)
        for ticket in ("a1", "a2", "a3"):
            turns.ask("a", ticket)
        assert turns.next_tickets() == ["a1"]
        turns.ask("b", "b1")
        order = []
        caller = "a"
        for _ in range(3):
            turns.done(caller)
            (ticket,) = turns.next_tickets()
            order.append(ticket)
            caller = ticket[0]
        assert order == ["a2", "b1", "a3"]

    def test_who_has_gone_is_forgotten(self) -> None:
        """One that waits is withdrawn, one that runs is not."""
        turns = Turns(1)
        turns.ask("a", 1)
        turns.ask("a", 2)
        assert turns.next_tickets() == [1]
        assert not turns.withdraw("a", 1)
        assert turns.withdraw("a", 2)
        assert turns.waiting_count == 0

    def test_waiting_is_bounded(self) -> None:
        """For one caller, and for all."""
        turns = Turns(1, waiting_count_max=2)
        turns.ask("a", 1)
        turns.ask("a", 2)
        with pytest.raises(SQLError) as caught:
            turns.ask("a", 3)
        assert caught.value.sqlstate == "53300"
        many = Turns(1)
        for number in range(500):
            many.ask(f"caller-{number}", number)
        with pytest.raises(SQLError):
            many.ask("one more", 0)

    @given(
        st.integers(1, 4),
        st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40),
    )
    def test_places_are_neither_lost_nor_doubled(
        self, place_count: int, moves: list[tuple[str, bool]]
    ) -> None:
        """Whatever comes and goes, and none that could run is left waiting."""
        turns = Turns(place_count, waiting_count_max=100)
        running: list[str] = []
        for number, (caller, ends) in enumerate(moves):
            if ends and running:
                turns.done(running.pop(0))
            else:
                turns.ask(caller, (caller, number))
            running += [ticket[0] for ticket in turns.next_tickets()]
            assert len(running) == turns.running_count <= place_count
            most = max(1, place_count - 1)
            assert all(running.count(one) <= most for one in "abc")
            if turns.waiting_count and len(running) < place_count:
                assert any(running.count(one) == most for one in "abc")
