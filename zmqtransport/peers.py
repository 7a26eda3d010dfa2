"""
`PeerTable`: which routing ids spoke over which connection, and who has gone; pure.

Theory of operation.  A session is bound to what its newest request came over.  That a
connection closed is told by its file descriptor alone, and the system gives the same
number to the next connection at once: a session that has just arrived over the new one
must not be taken for one that was left with the old one.  ZeroMQ draws a new routing
id for every connection, so a connection and a routing id together are never used twice
by peers that leave this to ZeroMQ (all of ours).  Each such pair is a `Peer`, with a
number of its own, and it is peers that sessions are bound to.

Reports and words come over different queues.  The shell reads all reports that wait
before it adds a new peer, so whose connection was accepted is known by then.  What a
connection has brought may be read long after the report of its end: after a pause of a
server thousands of requests wait, and their clients have connected anew, under the same
numbers.  Who speaks so late must not live on: a dead leader would, by a heartbeat.  It
is known by any of these:

*   its number has ended, and is not in use again;
*   its routing id has spoken over a connection that has ended since; or
*   another speaks over that number whose routing id was drawn later.  ZeroMQ counts
    them up as connections are made (4.3.5, ``router_t::identify_peer``: a zero byte,
    then 32 bits), and one connection has one.

So one stays only if all that it has said is read after its end and its number is in use
again, and only until who has the number now speaks, or goes.  A peer may name itself,
too, as none of ours does; of such names no order is known.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, final

import attrs


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zmqtransport.connections import ConnectionId


__all__ = ["Peer", "PeerTable"]


_DRAWN_COUNT: Final = 1 << 32
_DRAWN_SIZE_BYTES: Final = 5
# More than a port has connections; the oldest are forgotten.
_GONE_COUNT_MAX: Final = 10_000


@final
@attrs.frozen(eq=False)
class Peer:
    """
    Who speaks over one connection; two are equal if they are the same object.

    Attributes:
        number: No other peer of its table ever has it.
        connection: Over which it speaks.
        routing_id: How to send to it.
    """

    number: int
    connection: ConnectionId
    routing_id: bytes

    @property
    def drawn_number(self) -> int | None:
        """
        Return which number ZeroMQ has drawn for it; None if it names itself otherwise.

        A name of its own that looks like a drawn one is against ZeroMQ's rules.
        """
        name = self.routing_id
        if len(name) != _DRAWN_SIZE_BYTES or name[0]:
            return None
        return int.from_bytes(name)


@final
class PeerTable:
    """The peers of which something came, by connection and by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_connection: dict[ConnectionId, dict[bytes, Peer]] = {}
        self._by_number: dict[int, Peer] = {}
        self._ended: set[ConnectionId] = set()
        self._gone: dict[bytes, Peer] = {}  # the oldest first
        self._over: dict[Peer, None] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def get(self, number: int) -> Peer | None:
        """Return the peer of that number, or None if its connection is over."""
        return self._by_number.get(number)

    def find(self, connection: ConnectionId, routing_id: bytes) -> Peer | None:
        """Return the peer that has spoken before, or None."""
        peers = self._by_connection.get(connection)
        return None if peers is None else peers.get(routing_id)

    def add(self, connection: ConnectionId, routing_id: bytes) -> Peer:
        """
        Return the peer that speaks, which is not in the table; all reports are read.

        It is a new one, or one that was removed: who was told of its end knows it.
        """
        gone = self._gone.get(routing_id)
        if gone is None or gone.connection != connection:
            peer = Peer(next(self._numbers), connection, routing_id)
        else:
            peer = gone
        others = self._by_connection.setdefault(connection, {})
        if connection in self._ended or gone is not None:
            self._end(peer)
        else:
            living = (
                one for one in others.values() if one.routing_id not in self._gone
            )
            self._over.update(dict.fromkeys(_superseded([peer, *living])))
        others[routing_id] = self._by_number[peer.number] = peer
        return peer

    def accepted(self, connection: ConnectionId) -> None:
        """Record a report: that number is in use, possibly again."""
        self._ended.discard(connection)

    def closed(self, connection: ConnectionId) -> None:
        """Record a report: who has spoken over *connection* is over."""
        self._ended.add(connection)
        for peer in self._by_connection.get(connection, {}).values():
            self._end(peer)

    def is_gone(self, peer: Peer) -> bool:
        """Return whether the connection of *peer* is over, as far as is known."""
        return self._gone.get(peer.routing_id) == peer

    @property
    def has_over(self) -> bool:
        """Return whether `over` has somebody to return."""
        return bool(self._over)

    def over(self) -> Sequence[Peer]:
        """
        Return who is over, each once.

        They are in the table, to be found for what they have said still, until they
        are removed.
        """
        over, self._over = self._over, {}
        return tuple(over)

    def remove(self, peers: Iterable[Peer]) -> Sequence[Peer]:
        """Forget *peers*; return those that were there, each once."""
        return [peer for peer in peers if self._remove(peer)]

    def _end(self, peer: Peer) -> None:
        """Tell *peer* as over, and know it by its name if it speaks again."""
        self._over[peer] = None
        if peer.drawn_number is not None:  # others may be used again
            self._gone[peer.routing_id] = peer
            if len(self._gone) > _GONE_COUNT_MAX:
                del self._gone[next(iter(self._gone))]

    def _remove(self, peer: Peer) -> bool:
        if self._by_number.pop(peer.number, None) is None:
            return False
        peers = self._by_connection[peer.connection]
        del peers[peer.routing_id]
        if not peers:
            del self._by_connection[peer.connection]
        return True


def _superseded(peers: Iterable[Peer]) -> Sequence[Peer]:
    """Return those of *peers* that ZeroMQ has named, without the one named last."""
    drawn = {peer: n for peer in peers if (n := peer.drawn_number) is not None}
    if len(drawn) < 2:
        return []
    # The numbers go round: each is less than half of them behind the last one.
    first = next(iter(drawn.values()))
    half = _DRAWN_COUNT // 2
    last = max(drawn, key=lambda peer: (drawn[peer] - first + half) % _DRAWN_COUNT)
    return [peer for peer in drawn if peer is not last]
