"""Numbers for connections, from first word to end; frames of a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from nameservice import RemoteProtocolError
from queryablestate.proxy.links import LinkTable
from zmqtransport import (
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionId,
    ZMQContext,
    connection_of,
    receive_now,
)


WAIT_MS = 20_000


class Peers:
    """A ROUTER and whoever connects to it."""

    def __init__(self) -> None:
        self._context: ZMQContext = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._dealers: list[zmq.Socket[bytes]] = []

    def frame(self) -> zmq.Frame:
        """Return the first frame of a message over a new connection."""
        dealer = self._context.socket(zmq.DEALER)
        self._dealers.append(dealer)
        dealer.connect(f"tcp://127.0.0.1:{self._port}")
        return self.frame_again(len(self._dealers) - 1)

    def frame_again(self, index: int) -> zmq.Frame:
        """Return one over a connection that there is."""
        self._dealers[index].send(b"x")
        assert self._router.poll(WAIT_MS)
        return receive_now(self._router, frame_count_max=8)[0]

    def close(self) -> None:
        """Close everything."""
        for socket in (*self._dealers, self._router):
            socket.close(linger=0)
        self._context.term()


@pytest.fixture
def peers() -> Iterator[Peers]:
    """Nobody is connected yet."""
    peers = Peers()
    yield peers
    peers.close()


class TestNumbers:
    def test_a_link_has_one_number_as_long_as_it_lasts(self, peers: Peers) -> None:
        """Whatever is said over it, and whoever else speaks."""
        table = LinkTable()
        first, other = peers.frame(), peers.frame()
        link = table.heard(first, first.bytes)
        assert table.heard(other, other.bytes) != link
        again = peers.frame_again(0)
        assert table.heard(again, again.bytes) == link
        assert table.routing_id(link) == first.bytes
        assert len(table) == 2

    def test_a_frame_that_knows_no_connection_is_refused(self) -> None:
        """Nobody could tell when its sender is gone."""
        with pytest.raises(RemoteProtocolError):
            LinkTable().heard(zmq.Frame(b"x"), b"x")

    def test_no_number_is_used_twice(self, peers: Peers) -> None:
        """An answer to who is gone must not go to who came after."""
        table = LinkTable()
        frame = peers.frame()
        connection = connection_of(frame)
        links = set()
        for _ in range(3):
            links.add(table.heard(frame, frame.bytes))
            known = table.known([connection])
            closed = [ConnectionClosed(connection_id=connection)]
            table.over([connection], known=known, events=closed)
        assert len(links) == 3


class TestEnds:
    def test_a_closed_connection_ends_its_links(self, peers: Peers) -> None:
        """Once, and no others."""
        table = LinkTable()
        frame, other = peers.frame(), peers.frame()
        link, stays = table.heard(frame, frame.bytes), table.heard(other, other.bytes)
        connection = connection_of(frame)
        known = table.known([connection, connection])
        events = [ConnectionClosed(connection_id=connection)] * 2
        over = table.over([connection, connection], known=known, events=events)
        assert list(over) == [link]
        assert table.routing_id(link) is None
        assert table.routing_id(stays) == other.bytes
        assert len(table) == 1

    def test_what_came_last_ends_with_it(self, peers: Peers) -> None:
        """A link that was first heard after the end was reported ended with it, too."""
        table = LinkTable()
        frame = peers.frame()
        connection = connection_of(frame)
        known = table.known([connection])
        link = table.heard(frame, frame.bytes)
        closed = [ConnectionClosed(connection_id=connection)]
        assert list(table.over([connection], known=known, events=closed)) == [link]

    def test_the_next_holder_of_the_number_stays(self, peers: Peers) -> None:
        """The system has given it to another connection, which has spoken by now."""
        table = LinkTable()
        frame = peers.frame()
        connection = connection_of(frame)
        gone = table.heard(frame, frame.bytes)
        known = table.known([connection])
        next_link = table.heard(frame, b"another routing id")
        events: list[ConnectionEvent] = [
            ConnectionClosed(connection_id=connection),
            ConnectionAccepted(connection_id=connection),
        ]
        assert list(table.over([connection], known=known, events=events)) == [gone]
        assert table.routing_id(next_link) == b"another routing id"

    def test_nobody_spoke_over_it(self) -> None:
        """Then nothing is over."""
        table = LinkTable()
        connection = ConnectionId(99)
        known = table.known([connection])
        closed = [ConnectionClosed(connection_id=connection)]
        assert list(table.over([connection], known=known, events=closed)) == []
