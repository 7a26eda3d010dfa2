from __future__ import annotations

from zmqtransport import (
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    HandshakeSucceeded,
    accepted_last,
)
from zmqtransport.peers import PeerTable


SEVEN = ConnectionId(7)
EIGHT = ConnectionId(8)


class TestPeerTable:
    def test_a_link_is_over_with_its_connection(self) -> None:
        """Evidence of death concerns the connection that closed, and no other (E5)."""
        peers = PeerTable()
        assert peers.heard(SEVEN, b"a") == (7, b"a")
        assert peers.heard(EIGHT, b"b") == (8, b"b")
        assert peers.heard(SEVEN, b"a") == (7, b"a")
        assert len(peers) == 2
        known = peers.known([SEVEN])
        assert known == {SEVEN: [(7, b"a")]}
        assert peers.over([SEVEN], known=known, accepted=()) == [(7, b"a")]
        assert len(peers) == 1
        assert peers.known([SEVEN, EIGHT]) == {EIGHT: [(8, b"b")]}

    def test_what_is_drained_after_the_report_is_over_too(self) -> None:
        """A connection that closed at once is heard of after its end was reported."""
        peers = PeerTable()
        known = peers.known([SEVEN])
        assert known == {}
        peers.heard(SEVEN, b"a")
        assert peers.over([SEVEN], known=known, accepted=()) == [(7, b"a")]
        assert len(peers) == 0

    def test_a_number_that_is_used_again_is_another_connection(self) -> None:
        """Who came over the next connection of that number is not dead (E5)."""
        peers = PeerTable()
        peers.heard(SEVEN, b"old")
        known = peers.known([SEVEN])
        peers.heard(SEVEN, b"new")
        assert peers.over([SEVEN], known=known, accepted={SEVEN}) == [(7, b"old")]
        assert peers.known([SEVEN]) == {SEVEN: [(7, b"new")]}

    def test_a_connection_that_never_spoke_ends_nobody(self) -> None:
        """What was accepted anew before anybody spoke leaves nothing to end."""
        peers = PeerTable()
        peers.heard(SEVEN, b"new")
        assert peers.over([SEVEN], known={}, accepted={SEVEN}) == []
        assert peers.over([EIGHT], known={}, accepted=()) == []
        assert len(peers) == 1

    def test_one_end_is_told_once(self) -> None:
        """Two reports of one number in one batch end its links once."""
        peers = PeerTable()
        peers.heard(SEVEN, b"a")
        known = peers.known([SEVEN, SEVEN])
        assert peers.over([SEVEN, SEVEN], known=known, accepted=()) == [(7, b"a")]


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
