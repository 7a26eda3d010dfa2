"""Whose connection is over, by numbers that are given again (E5)."""

from __future__ import annotations

import itertools

import pytest

from zmqtransport import ConnectionId, Peer, PeerTable


SEVEN = ConnectionId(7)
EIGHT = ConnectionId(8)


def drawn(number: int) -> bytes:
    """Return a routing id as ZeroMQ draws it."""
    return b"\0" + number.to_bytes(4)


def ended(peers: PeerTable) -> list[Peer]:
    """Return who is over, and have the table forget them."""
    return list(peers.remove(peers.over()))


@pytest.mark.proves("E5")
class TestPeerTable:
    def test_a_peer_is_over_with_its_connection(self) -> None:
        """E5: evidence of death concerns the connection that closed, and no other."""
        peers = PeerTable()
        a, b = peers.add(SEVEN, b"a"), peers.add(EIGHT, b"b")
        assert (a.connection, a.routing_id) == (7, b"a")
        assert (b.connection, b.routing_id) == (8, b"b")
        assert peers.find(SEVEN, b"a") is a
        assert peers.find(SEVEN, b"b") is None
        assert len(peers) == 2
        assert not peers.has_over
        peers.closed(SEVEN)
        assert peers.has_over
        assert ended(peers) == [a]
        assert not peers.has_over
        assert len(peers) == 1
        assert peers.find(SEVEN, b"a") is None
        assert peers.find(EIGHT, b"b") is b

    def test_a_peer_is_found_by_its_number_while_it_is_there(self) -> None:
        """An answer goes to who asked, or nowhere."""
        peers = PeerTable()
        gone, stays = peers.add(SEVEN, b"a"), peers.add(EIGHT, b"b")
        assert peers.get(gone.number) is gone
        peers.closed(SEVEN)
        ended(peers)
        assert peers.get(gone.number) is None
        assert peers.get(stays.number) is stays

    def test_no_number_is_used_twice(self) -> None:
        """An answer to who is gone must not go to who came after."""
        peers = PeerTable()
        numbers = set()
        for _ in range(3):
            numbers.add(peers.add(SEVEN, b"a").number)
            peers.closed(SEVEN)
            ended(peers)
        assert len(numbers) == 3

    def test_equal_words_are_not_the_same_peer(self) -> None:
        """A session is bound to one connection, and to no copy of it."""
        assert Peer(1, SEVEN, b"a") != Peer(1, SEVEN, b"a")

    def test_who_is_over_is_found_until_it_is_removed(self) -> None:
        """E5: what it has said still is said by the same peer."""
        peers = PeerTable()
        peer = peers.add(SEVEN, b"a")
        peers.closed(SEVEN)
        over = peers.over()
        assert peers.find(SEVEN, b"a") is peer
        assert peers.remove(over) == [peer]
        assert peers.find(SEVEN, b"a") is None

    def test_who_speaks_after_its_end_is_over_too(self) -> None:
        """E5: what is read long after the report is said by no one who lives."""
        peers = PeerTable()
        first = peers.add(SEVEN, drawn(1))
        peers.closed(SEVEN)
        assert ended(peers) == [first]
        late = [peers.add(SEVEN, drawn(1)), peers.add(SEVEN, b"called so")]
        assert peers.has_over
        assert ended(peers) == late
        assert len(peers) == 0

    def test_a_number_that_is_used_again_is_another_connection(self) -> None:
        """E5: who came over the next connection of that number is not dead."""
        peers = PeerTable()
        old = peers.add(SEVEN, b"old")
        peers.closed(SEVEN)
        peers.accepted(SEVEN)
        new = peers.add(SEVEN, b"new")
        assert ended(peers) == [old]
        assert peers.find(SEVEN, b"new") is new
        assert peers.get(new.number) is new

    @pytest.mark.parametrize("first", [0, 1, 2**31, 2**32 - 2])
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_over_one_number_who_was_named_last_lives(
        self, first: int, order: tuple[int, ...]
    ) -> None:
        """E5: what those before it have said may be read before or after its words."""
        peers = PeerTable()
        heard = {
            index: peers.add(SEVEN, drawn((first + index) % 2**32)) for index in order
        }
        assert set(ended(peers)) == {heard[0], heard[1]}
        assert peers.get(heard[2].number) is heard[2]

    def test_who_names_itself_is_not_superseded(self) -> None:
        """Such names are not counted up: which came last is not known."""
        peers = PeerTable()
        peers.add(SEVEN, b"mine")
        peers.add(SEVEN, drawn(1))
        peers.add(SEVEN, b"other")
        assert not peers.has_over

    def test_who_spoke_and_has_gone_is_known_by_its_name(self) -> None:
        """E5: who has its number now may be silent for long."""
        peers = PeerTable()
        first = peers.add(SEVEN, drawn(5))
        peers.closed(SEVEN)
        assert ended(peers) == [first]
        peers.accepted(SEVEN)
        assert peers.add(SEVEN, drawn(5)) is first  # so its evidence of death stays
        assert ended(peers) == [first]
        assert len(peers) == 0

    @pytest.mark.parametrize("name", [drawn(6), b"\0longer than a drawn one", b"own"])
    def test_no_name_of_who_has_gone_ends_who_is_there(self, name: bytes) -> None:
        """E5: who names itself against the rules ends no one by it."""
        peers = PeerTable()
        peers.add(SEVEN, name)
        peers.closed(SEVEN)
        peers.accepted(SEVEN)
        here = peers.add(SEVEN, drawn(5))
        ended(peers)
        peers.add(SEVEN, name)
        assert here not in ended(peers)
        assert peers.get(here.number) is here

    def test_of_those_who_have_gone_the_oldest_are_forgotten(self) -> None:
        """N3: what is known of them does not grow."""
        peers = PeerTable()
        for number in range(10_001):
            peers.add(SEVEN, drawn(number))
            peers.closed(SEVEN)
            ended(peers)
            peers.accepted(SEVEN)
        assert len(peers._gone) == 10_000
        assert peers.add(SEVEN, drawn(0)) not in ended(peers)

    def test_one_end_is_told_once(self) -> None:
        """E5: two reasons for one end are one end."""
        peers = PeerTable()
        peer = peers.add(SEVEN, drawn(1))
        peers.add(SEVEN, drawn(2))
        peers.closed(SEVEN)
        peers.closed(SEVEN)
        over = list(peers.over())
        assert over.count(peer) == 1
        assert peers.remove([*over, peer]) == over
        assert ended(peers) == []
