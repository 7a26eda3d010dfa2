from __future__ import annotations

import itertools

import pytest

from zmqtransport import (
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    HandshakeSucceeded,
    Peer,
    PeerTable,
    accepted_last,
)


SEVEN = ConnectionId(7)
EIGHT = ConnectionId(8)


def drawn(number: int) -> bytes:
    """Return a routing id as ZeroMQ draws it."""
    return b"\0" + number.to_bytes(4)


class TestPeerTable:
    def test_a_peer_is_over_with_its_connection(self) -> None:
        """Evidence of death concerns the connection that closed, and no other (E5)."""
        peers = PeerTable()
        a, b = peers.heard(SEVEN, b"a"), peers.heard(EIGHT, b"b")
        assert (a.connection, a.routing_id) == (7, b"a")
        assert (b.connection, b.routing_id) == (8, b"b")
        assert peers.heard(SEVEN, b"a") is a
        assert len(peers) == 2
        known = peers.known([SEVEN, SEVEN])
        assert known == {SEVEN: [a]}
        assert peers.over([SEVEN], known=known, accepted=()) == [a]
        assert len(peers) == 1
        assert peers.known([SEVEN, EIGHT]) == {EIGHT: [b]}

    def test_a_peer_is_found_by_its_number_while_it_is_there(self) -> None:
        """An answer goes to who asked, or nowhere."""
        peers = PeerTable()
        gone, stays = peers.heard(SEVEN, b"a"), peers.heard(EIGHT, b"b")
        assert peers.get(gone.number) is gone
        peers.over([SEVEN], known=peers.known([SEVEN]), accepted=())
        assert peers.get(gone.number) is None
        assert peers.get(stays.number) is stays

    def test_no_number_is_used_twice(self) -> None:
        """An answer to who is gone must not go to who came after."""
        peers = PeerTable()
        numbers = set()
        for _ in range(3):
            numbers.add(peers.heard(SEVEN, b"a").number)
            peers.over([SEVEN], known=peers.known([SEVEN]), accepted=())
        assert len(numbers) == 3

    def test_equal_words_are_not_the_same_peer(self) -> None:
        """A session is bound to one connection, and to no copy of it."""
        assert Peer(1, SEVEN, b"a") != Peer(1, SEVEN, b"a")

    def test_what_is_drained_after_the_report_is_over_too(self) -> None:
        """A connection that closed at once is heard of after its end was reported."""
        peers = PeerTable()
        known = peers.known([SEVEN])
        assert known == {}
        late = peers.heard(SEVEN, b"a")
        assert peers.over([SEVEN], known=known, accepted=()) == [late]
        assert len(peers) == 0

    def test_a_number_that_is_used_again_is_another_connection(self) -> None:
        """Who came over the next connection of that number is not dead (E5)."""
        peers = PeerTable()
        old = peers.heard(SEVEN, b"old")
        known = peers.known([SEVEN])
        new = peers.heard(SEVEN, b"new")
        assert peers.over([SEVEN], known=known, accepted={SEVEN}) == [old]
        assert peers.known([SEVEN]) == {SEVEN: [new]}
        assert peers.get(new.number) is new

    def test_a_connection_that_never_spoke_ends_nobody(self) -> None:
        """What was accepted anew before anybody spoke leaves nothing to end."""
        peers = PeerTable()
        peers.heard(SEVEN, b"new")
        assert peers.over([SEVEN], known={}, accepted={SEVEN}) == []
        assert peers.over([EIGHT], known={}, accepted=()) == []
        assert len(peers) == 1

    def test_who_speaks_late_is_over_when_asked_for_again(self) -> None:
        """E5: what is read long after the report is said by no one who lives."""
        peers = PeerTable()
        peers.heard(SEVEN, drawn(1))
        peers.over([SEVEN], known=peers.known([SEVEN]), accepted=())
        assert not peers.has_late
        late = [peers.heard(SEVEN, drawn(1)), peers.heard(SEVEN, b"called so")]
        assert peers.has_late
        assert peers.over([], known={}, accepted=()) == late
        assert not peers.has_late
        assert len(peers) == 0

    @pytest.mark.parametrize("is_told_first", [False, True])
    def test_a_number_in_use_again_has_not_ended(self, *, is_told_first: bool) -> None:
        """E5: who comes over the next connection lives, told of before or after."""
        peers = PeerTable()
        peers.over([SEVEN], known={}, accepted=())
        if is_told_first:
            peers.accepted([SEVEN, EIGHT])
        peers.heard(SEVEN, drawn(1))
        assert peers.has_late is not is_told_first
        assert peers.over([], known={}, accepted={SEVEN}) == []
        assert len(peers) == 1

    @pytest.mark.parametrize("first", [1, 2**31, 2**32 - 2])
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_over_one_number_the_last_one_lives(
        self, first: int, order: tuple[int, ...]
    ) -> None:
        """E5: what those before it have said may be read before or after its words."""
        peers = PeerTable()
        heard = {
            index: peers.heard(SEVEN, drawn((first + index) % 2**32)) for index in order
        }
        assert peers.has_late
        over = peers.over([], known={}, accepted=())
        assert set(over) == {heard[0], heard[1]}
        assert peers.get(heard[2].number) is heard[2]
        assert not peers.has_late

    def test_who_names_itself_is_not_late(self) -> None:
        """Such names are not counted up: which came last is not known."""
        peers = PeerTable()
        peers.heard(SEVEN, b"mine")
        peers.heard(SEVEN, drawn(1))
        peers.heard(SEVEN, b"other")
        assert not peers.has_late

    def test_one_end_is_told_once(self) -> None:
        """Two reports of one number in one batch end its peers once."""
        peers = PeerTable()
        peer = peers.heard(SEVEN, b"a")
        known = peers.known([SEVEN, SEVEN])
        assert peers.over([SEVEN, SEVEN], known=known, accepted=()) == [peer]
        assert peers.over([SEVEN], known=known, accepted=()) == []


class TestAcceptedLast:
    def test_the_last_report_of_a_number_counts(self) -> None:
        """A number may end and be given away again within a few reports."""
        accepted, closed = (
            [kind(connection_id=n) for n in (SEVEN, EIGHT)]
            for kind in (ConnectionAccepted, ConnectionClosed)
        )
        assert accepted_last([accepted[0], closed[0], accepted[0]]) == {SEVEN}
        assert accepted_last([*accepted, closed[1]]) == {SEVEN}
        assert accepted_last([HandshakeSucceeded(), *closed]) == set()
