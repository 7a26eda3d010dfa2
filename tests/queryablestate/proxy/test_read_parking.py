"""Questions that wait for late nodes; no I/O."""

from __future__ import annotations

from typing import Final

import pytest

from queryablestate.control.events import LinkId
from queryablestate.proxy.access import ANONYMOUS_CALLER, Caller
from queryablestate.proxy.read_parking import (
    ParkedQuestion,
    ParkedQuestions,
    owner_of,
)
from queryablestate.wire.questions import Ask, GetValues


CLIENT: Final = LinkId(1)
OTHER: Final = LinkId(2)


def asked(
    number: int,
    *,
    deadline_ns: int = 100,
    client: LinkId = CLIENT,
    size_bytes: int = 1,
    caller: Caller = ANONYMOUS_CALLER,
) -> ParkedQuestion:
    """Return a question."""
    ask = Ask(
        request_id=number,
        session=b"",
        state_number=1,
        assignment_version=1,
        node_index=0,
        operation=GetValues(),
        key_count=1,
        deadline_ms=1,
    )
    return ParkedQuestion(
        client,
        caller,
        ask,
        bytes(size_bytes),
        0,
        deadline_ns,
        owner_of(client, caller),
        size_bytes,
    )


def parking(*, count_max: int = 10, size_bytes_max: int = 100) -> ParkedQuestions:
    """Return an empty place."""
    return ParkedQuestions(count_max=count_max, size_bytes_max=size_bytes_max)


def refused(parked: ParkedQuestions, one: ParkedQuestion) -> bool:
    """Return whether there is no room for *one*, at no other's cost."""
    return parked.park(one) == [one]


class TestRoom:
    def test_there_are_so_many_at_most(self) -> None:
        """One more is turned away, and takes no room."""
        parked = parking(count_max=2)
        assert parked.park(asked(1)) == []
        assert parked.park(asked(2)) == []
        assert refused(parked, asked(3))
        assert len(parked) == 2

    def test_they_have_a_size_together(self) -> None:
        """To the byte; and what goes gives its room back."""
        parked = parking(size_bytes_max=10)
        assert parked.park(asked(1, size_bytes=6)) == []
        assert refused(parked, asked(2, size_bytes=5))
        assert parked.park(asked(3, size_bytes=4, client=OTHER)) == []
        assert refused(parked, asked(4, size_bytes=1))
        parked.forget(OTHER)
        assert parked.park(asked(5, size_bytes=4)) == []

    @pytest.mark.proves("B2")
    def test_one_caller_does_not_take_the_room_of_others(self) -> None:
        """B2: what it has beyond its part goes to those who come, the newest first."""
        parked = parking(count_max=4)
        greedy = [asked(number) for number in range(4)]
        for one in greedy:
            assert parked.park(one) == []  # no other wants any
        first, second, third = (asked(9 + n, client=OTHER) for n in range(3))
        assert parked.park(first) == [greedy[3]]
        assert parked.park(second) == [greedy[2]]
        assert parked.park(third) == [third]  # each has its half
        assert refused(parked, asked(5))
        assert parked.take_all() == [*greedy[:2], first, second]

    @pytest.mark.proves("B2")
    def test_a_caller_is_one_over_all_its_connections(self) -> None:
        """B2: more connections are no more room; in bytes as in places."""
        parked = parking(size_bytes_max=90)
        named = Caller(name="greedy")
        for number in range(3):
            link = LinkId(100 + number)
            one = asked(number, size_bytes=30, client=link, caller=named)
            assert parked.park(one) == []
        other = asked(9, size_bytes=45)
        turned_away = parked.park(other)
        assert [one.ask.request_id for one in turned_away] == [2, 1]
        assert other in parked.take_all()

    @pytest.mark.proves("B2")
    def test_what_is_turned_away_leaves_no_deadline_behind(self) -> None:
        """B2: the next one is looked for when it is due."""
        parked = parking(count_max=1)
        parked.park(asked(1, deadline_ns=50))
        assert parked.next_deadline_ns() == 50
        assert parked.take_late(now_ns=50) != []
        assert parked.next_deadline_ns() is None
        parked = parking(size_bytes_max=1)
        assert refused(parked, asked(1, size_bytes=2))
        assert parked.next_deadline_ns() is None

    def test_everything_can_be_taken_out(self) -> None:
        """In the order in which it came."""
        parked = parking(size_bytes_max=2)
        first, second = asked(1), asked(2)
        parked.park(first)
        parked.park(second)
        assert parked.take_all() == [first, second]
        assert len(parked) == 0
        assert parked.next_deadline_ns() is None
        assert parked.park(first) == []


class TestDeadlines:
    def test_the_late_are_taken_out_at_their_deadline(self) -> None:
        """Not one nanosecond earlier, and the others stay."""
        parked = parking()
        late, later = asked(1, deadline_ns=50), asked(2, deadline_ns=60)
        parked.park(later)
        parked.park(late)
        assert parked.next_deadline_ns() == 50
        assert parked.take_late(now_ns=49) == []
        assert parked.take_late(now_ns=50) == [late]
        assert parked.next_deadline_ns() == 60
        assert parked.take_late(now_ns=59) == []
        assert parked.take_late(now_ns=1_000) == [later]
        assert parked.next_deadline_ns() is None

    def test_who_leaves_has_no_deadlines(self) -> None:
        """The next one is that of somebody who is there."""
        parked = parking()
        parked.park(asked(1, deadline_ns=50))
        parked.park(asked(2, deadline_ns=60, client=OTHER))
        parked.forget(CLIENT)
        assert parked.next_deadline_ns() == 60
        assert len(parked) == 1

    def test_nobody_waits(self) -> None:
        """Then there is nothing to take, nothing to forget."""
        parked = parking()
        parked.forget(CLIENT)
        assert parked.take_late(now_ns=10**18) == []
        assert parked.take_all() == []
