"""Questions that wait for late nodes; no I/O."""

from __future__ import annotations

from typing import Final

from queryablestate.access import ANONYMOUS_CALLER
from queryablestate.control_events import Link
from queryablestate.questions import Ask, GetValues
from queryablestate.read_parking import AskedQuestion, ParkedQuestions


CLIENT: Final = Link(1)
OTHER: Final = Link(2)


def asked(
    number: int, *, deadline_ns: int = 100, client: Link = CLIENT, size_bytes: int = 1
) -> AskedQuestion:
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
    return AskedQuestion(
        client, ANONYMOUS_CALLER, ask, bytes(size_bytes), 0, deadline_ns
    )


def parking(*, count_max: int = 10, size_bytes_max: int = 100) -> ParkedQuestions:
    """Return an empty place."""
    return ParkedQuestions(count_max=count_max, size_bytes_max=size_bytes_max)


class TestRoom:
    def test_there_are_so_many_at_most(self) -> None:
        """One more is turned away, and takes no room."""
        parked = parking(count_max=2)
        assert parked.park(asked(1))
        assert parked.park(asked(2))
        assert not parked.park(asked(3))
        assert len(parked) == 2

    def test_they_have_a_size_together(self) -> None:
        """To the byte; and what goes gives its room back."""
        parked = parking(size_bytes_max=10)
        assert parked.park(asked(1, size_bytes=6, client=OTHER))
        assert not parked.park(asked(2, size_bytes=5))
        assert parked.park(asked(3, size_bytes=4))
        assert not parked.park(asked(4, size_bytes=1))
        parked.forget(OTHER)
        assert parked.park(asked(5, size_bytes=6))

    def test_everything_can_be_taken_out(self) -> None:
        """In the order in which it came."""
        parked = parking(size_bytes_max=2)
        first, second = asked(1), asked(2)
        parked.park(first)
        parked.park(second)
        assert parked.take_all() == [first, second]
        assert len(parked) == 0
        assert parked.next_deadline_ns() is None
        assert parked.park(first)


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
