"""Questions that wait for late nodes; no I/O."""

from __future__ import annotations

import gc
import weakref
from typing import Final

import pytest
from attrs import evolve

from queryablestate.control.events import LinkId
from queryablestate.control.routes import KvStateLocation
from queryablestate.proxy.access import ANONYMOUS_CALLER, Caller
from queryablestate.proxy.read_parking import (
    ParkedQuestion,
    ParkedQuestions,
    owner_of,
)
from queryablestate.wire.questions import Ask, GetValues


CLIENT: Final = LinkId(1)
OTHER: Final = LinkId(2)
# The node ``a`` is away, and others have copies of what it has.
AWAY: Final = KvStateLocation(
    job_id="job",
    state_name="state",
    state_number=1,
    generation=1,
    batch_id=3,
    assignment_version=1,
    node_ids=("a", "b"),
    links=(None, LinkId(11)),
    key_groups=((0,), (1,)),
    sole_key_groups=((), ()),
)


def asked(
    number: int,
    *,
    deadline_ns: int = 100,
    client: LinkId = CLIENT,
    size_bytes: int = 1,
    caller: Caller = ANONYMOUS_CALLER,
    state_number: int = 1,
    node_index: int = 0,
) -> ParkedQuestion:
    """Return a question."""
    ask = Ask(
        request_id=number,
        session=b"",
        state_number=state_number,
        assignment_version=1,
        node_index=node_index,
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


def park(
    parked: ParkedQuestions,
    one: ParkedQuestion,
    *,
    location: KvStateLocation = AWAY,
    is_away: bool = True,
) -> list[ParkedQuestion]:
    """Have *one* wait, and return what is turned away."""
    return parked.park(one, location, is_away=is_away)


def refused(parked: ParkedQuestions, one: ParkedQuestion) -> bool:
    """Return whether there is no room for *one*, at no other's cost."""
    return park(parked, one) == [one]


class TestRoom:
    def test_there_are_so_many_at_most(self) -> None:
        """One more is turned away, and takes no room."""
        parked = parking(count_max=2)
        assert park(parked, asked(1)) == []
        assert park(parked, asked(2)) == []
        assert refused(parked, asked(3))
        assert len(parked) == 2

    def test_they_have_a_size_together(self) -> None:
        """To the byte; and what goes gives its room back."""
        parked = parking(size_bytes_max=10)
        assert park(parked, asked(1, size_bytes=6)) == []
        assert refused(parked, asked(2, size_bytes=5))
        assert park(parked, asked(3, size_bytes=4, client=OTHER)) == []
        assert refused(parked, asked(4, size_bytes=1))
        parked.forget(OTHER)
        assert park(parked, asked(5, size_bytes=4)) == []

    @pytest.mark.proves("B2")
    def test_one_caller_does_not_take_the_room_of_others(self) -> None:
        """B2: what it has beyond its part goes to those who come, the newest first."""
        parked = parking(count_max=4)
        greedy = [asked(number) for number in range(4)]
        for one in greedy:
            assert park(parked, one) == []  # no other wants any
        first, second, third = (asked(9 + n, client=OTHER) for n in range(3))
        assert park(parked, first) == [greedy[3]]
        assert park(parked, second) == [greedy[2]]
        assert park(parked, third) == [third]  # each has its half
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
            assert park(parked, one) == []
        other = asked(9, size_bytes=45)
        turned_away = park(parked, other)
        assert [one.ask.request_id for one in turned_away] == [2, 1]
        assert other in parked.take_all()

    @pytest.mark.proves("B2")
    def test_what_is_turned_away_leaves_no_deadline_behind(self) -> None:
        """B2: the next one is looked for when it is due."""
        parked = parking(count_max=1)
        park(parked, asked(1, deadline_ns=50))
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
        park(parked, first)
        park(parked, second)
        assert parked.take_all() == [first, second]
        assert len(parked) == 0
        assert parked.next_deadline_ns() is None
        assert park(parked, first) == []


class TestDeadlines:
    def test_the_late_are_taken_out_at_their_deadline(self) -> None:
        """Not one nanosecond earlier, and the others stay."""
        parked = parking()
        late, later = asked(1, deadline_ns=50), asked(2, deadline_ns=60)
        park(parked, later)
        park(parked, late)
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
        park(parked, asked(1, deadline_ns=50))
        park(parked, asked(2, deadline_ns=60, client=OTHER))
        parked.forget(CLIENT)
        assert parked.next_deadline_ns() == 60
        assert len(parked) == 1

    @pytest.mark.proves("B2")
    def test_who_goes_leaves_no_deadlines_behind(self) -> None:
        """B2: what is kept is bounded by what waits, whatever comes and goes."""
        parked = parking(count_max=10_000, size_bytes_max=10_000)
        park(parked, asked(0, deadline_ns=1, client=OTHER))
        for number in range(1, 5_001):
            client = LinkId(10 + number)
            park(parked, asked(number, deadline_ns=number, client=client))
            parked.forget(client)
        assert len(parked._deadlines) <= 1_002
        assert parked._of_client.keys() == {OTHER}
        assert parked.next_deadline_ns() == 1

    def test_nobody_waits(self) -> None:
        """Then there is nothing to take, nothing to forget."""
        parked = parking()
        parked.forget(CLIENT)
        assert parked.take_late(now_ns=10**18) == []
        assert parked.take_all() == []


class Watched:
    """Says who counts as away, and counts how often it is asked."""

    def __init__(self, *away: str) -> None:
        self.away = set(away)
        self.count = 0

    def __call__(self, node_id: str) -> bool:
        """Return whether that node counts as away."""
        self.count += 1
        return node_id in self.away


class TestChanges:
    """What waits is looked at when what it waits for is another, and only then."""

    LATER = evolve(AWAY, batch_id=4)

    def test_nothing_has_changed(self) -> None:
        """No question is worth a look, and each waits on."""
        parked = parking()
        park(parked, asked(1))
        assert parked.changed({1: AWAY}, Watched("a")) == []
        assert len(parked) == 1

    def test_a_route_that_is_another(self) -> None:
        """Those that wait for it are looked at, in the order in which they came."""
        parked = parking()
        questions = [asked(n, node_index=n % 2) for n in range(4)]
        for one in questions:
            park(parked, one, is_away=False)
        other = asked(9, state_number=2)
        beside = evolve(AWAY, state_number=2)
        park(parked, other, location=beside)
        locations = {1: self.LATER, 2: beside}
        assert parked.changed(locations, Watched("a")) == questions
        assert parked.changed(locations, Watched("a")) == []
        assert parked.changed({2: beside}, Watched("a")) == questions  # it is gone
        assert parked.changed({}, Watched("a")) == [other]

    def test_a_node_that_counts_as_away_now(self) -> None:
        """And one that may be coming after all."""
        parked = parking()
        one = asked(1)
        park(parked, one, is_away=False)
        assert parked.changed({1: AWAY}, Watched()) == []
        assert parked.changed({1: AWAY}, Watched("a")) == [one]
        assert parked.changed({1: AWAY}, Watched("a")) == []
        assert parked.changed({1: AWAY}, Watched("b")) == [one]

    def test_before_the_first_batch_no_node_is_waited_for(self) -> None:
        """Who comes and goes changes nothing."""
        parked = parking()
        empty = evolve(AWAY, batch_id=None)
        park(parked, asked(1), location=empty, is_away=False)
        watched = Watched("a")
        assert parked.changed({1: empty}, watched) == []
        assert watched.count == 0

    def test_an_assignment_may_have_fewer_nodes(self) -> None:
        """Then there is no such node to be asked for."""
        parked = parking()
        one = asked(1, node_index=1)
        park(parked, one)
        fewer = evolve(AWAY, node_ids=("a",), links=(None,), assignment_version=2)
        assert parked.changed({1: fewer}, Watched("a")) == [one]

    def test_doubt(self) -> None:
        """All are looked at once."""
        parked = parking()
        one = asked(1)
        park(parked, one)
        parked.doubt()
        assert parked.changed({1: AWAY}, Watched("a")) == [one]
        assert parked.changed({1: AWAY}, Watched("a")) == []

    def test_who_goes_on_waits_no_more(self) -> None:
        """What is left of it is nothing."""
        parked = parking()
        one, other = asked(1), asked(2)
        park(parked, one)
        park(parked, other)
        parked.free(one)
        assert parked.changed({1: self.LATER}, Watched("a")) == [other]
        parked.free(other)
        assert len(parked) == 0
        assert parked.next_deadline_ns() is None
        assert parked._groups == {}
        assert parked._of_client == {}

    @pytest.mark.proves("B2")
    def test_what_a_look_costs(self) -> None:
        """B2: one answer for each node of a state, whatever number waits for it."""
        parked = parking(count_max=1_000, size_bytes_max=1_000)
        for number in range(1_000):
            park(parked, asked(number, node_index=number % 2), is_away=False)
        watched = Watched()
        assert parked.changed({1: AWAY}, watched) == []
        assert watched.count == 2


@pytest.mark.proves("B1")
def test_what_is_gone_takes_no_memory() -> None:
    """B1: a question may be large, and an early deadline may stand before its own."""
    parked = ParkedQuestions(count_max=10, size_bytes_max=100)
    parked.park(asked(0, deadline_ns=1, client=OTHER), AWAY, is_away=False)
    gone = asked(1)
    parked.park(gone, AWAY, is_away=False)
    seen = weakref.ref(gone)
    del gone
    parked.forget(CLIENT)
    gc.collect()
    assert seen() is None
    assert len(parked) == 1
