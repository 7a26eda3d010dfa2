"""
`PeerTable`: which routing ids spoke over which connection; pure.

Theory of operation.  A session is bound to what its newest request came over.  That a
connection closed is told by its file descriptor alone, and the system gives the same
number to the next connection at once: a session that has just arrived over the new one
must not be taken for one that was left with the old one.  ZeroMQ draws a new routing
id for every connection, so a connection and a routing id together are never used twice
by peers that leave this to ZeroMQ (all of ours).  Each such pair is a `Peer`, with a
number of its own, and it is peers that sessions are bound to.

What a connection brought before it closed may still wait in the socket when the report
of its end is read.  So the shell asks for the peers that were `known` when it read the
reports, drains the socket, and then asks which are `over`: the peers that were known;
and those that the draining brought, unless the same number was accepted anew meanwhile.

Draining ends after a burst, and what a connection brought may come later still: after
a pause of a server thousands of requests wait, and their clients have connected anew
under the same numbers.  Who speaks so late is a new `Peer`, bound to a connection that
is over or is another's; a dead leader would live on by it.  It is known by two facts:

*   its number has ended, and is not in use again; or
*   another speaks over that number whose routing id was drawn later.  ZeroMQ counts
    them up as connections are made (4.3.5, ``router_t::identify_peer``: a zero byte,
    then 32 bits), and one connection has one.

The table tells such a peer by `over`, too, which the shell asks as soon as `has_late`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias, final

import attrs


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from zmqtransport.connections import ConnectionId


__all__ = ["Peer", "PeerTable"]


_DRAWN_COUNT: Final = 1 << 32


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
    def is_named_by_zmq(self) -> bool:
        """Return whether ZeroMQ has drawn its routing id: none of its own begins so."""
        return self.routing_id.startswith(b"\0")

    @property
    def drawn_number(self) -> int:
        """Return which number ZeroMQ has drawn: it begins anywhere, and goes round."""
        return int.from_bytes(self.routing_id[1:]) % _DRAWN_COUNT


_Known: TypeAlias = "Mapping[ConnectionId, Sequence[Peer]]"


@final
class PeerTable:
    """The peers of which something came, by connection and by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_connection: dict[ConnectionId, dict[bytes, Peer]] = {}
        self._by_number: dict[int, Peer] = {}
        self._ended: set[ConnectionId] = set()
        self._late: list[Peer] = []
        self._superseded: list[Peer] = []

    def __len__(self) -> int:
        return len(self._by_number)

    def heard(self, connection: ConnectionId, routing_id: bytes) -> Peer:
        """Return the peer that spoke, a new one if it is the first time."""
        peers = self._by_connection.get(connection)
        if peers is None:
            peers = self._by_connection[connection] = {}
        elif (peer := peers.get(routing_id)) is not None:
            return peer
        peer = Peer(next(self._numbers), connection, routing_id)
        if connection in self._ended:
            self._late.append(peer)
        elif peer.is_named_by_zmq:
            self._superseded += _all_but_newest([peer, *peers.values()])
        peers[routing_id] = self._by_number[peer.number] = peer
        return peer

    @property
    def has_late(self) -> bool:
        """Return whether somebody spoke whose connection seems to be over."""
        return bool(self._late or self._superseded)

    def accepted(self, connections: Iterable[ConnectionId]) -> None:
        """Record that the numbers of *connections* are in use again."""
        self._ended.difference_update(connections)

    def get(self, number: int) -> Peer | None:
        """Return the peer of that number, or None if its connection is over."""
        return self._by_number.get(number)

    def known(self, connections: Collection[ConnectionId]) -> _Known:
        """Return the peers of those of *connections* over which something came."""
        return {
            connection: list(self._by_connection[connection].values())
            for connection in dict.fromkeys(connections)
            if connection in self._by_connection
        }

    def over(
        self,
        closed: Collection[ConnectionId],
        *,
        known: _Known,
        accepted: Collection[ConnectionId],
    ) -> Sequence[Peer]:
        """
        Forget and return the peers whose connection is over.

        Args:
            closed: The connections that were reported as closed.
            known: Their peers at the time of the report.
            accepted: The connections accepted after the last end of that number.
        """
        ended: list[Peer] = []
        for connection in dict.fromkeys(closed):
            if connection in accepted:
                ended += known.get(connection, ())
            else:
                ended += self._by_connection.get(connection, {}).values()
                self._ended.add(connection)
        ended += self._superseded
        ended += [
            peer
            for peer in self._late
            if peer.connection in self._ended and peer.connection not in accepted
        ]
        self._late, self._superseded = [], []
        return [peer for peer in ended if self._remove(peer)]

    def _remove(self, peer: Peer) -> bool:
        """Forget *peer*; return whether it was there."""
        if self._by_number.pop(peer.number, None) is None:
            return False
        peers = self._by_connection[peer.connection]
        del peers[peer.routing_id]
        if not peers:
            del self._by_connection[peer.connection]
        return True


def _all_but_newest(peers: Iterable[Peer]) -> Sequence[Peer]:
    """Return those of *peers* that are named by ZeroMQ, but the one named last."""
    named = [peer for peer in peers if peer.is_named_by_zmq]
    newest = named[0]
    for peer in named[1:]:
        if (peer.drawn_number - newest.drawn_number) % _DRAWN_COUNT < _DRAWN_COUNT // 2:
            newest = peer
    return [peer for peer in named if peer is not newest]
