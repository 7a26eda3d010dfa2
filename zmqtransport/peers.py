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
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias, final

import attrs


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zmqtransport.connections import ConnectionId


__all__ = ["Peer", "PeerTable"]


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


_Known: TypeAlias = "Mapping[ConnectionId, Sequence[Peer]]"


@final
class PeerTable:
    """The peers of which something came, by connection and by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._by_connection: dict[ConnectionId, dict[bytes, Peer]] = {}
        self._by_number: dict[int, Peer] = {}

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
        peers[routing_id] = self._by_number[peer.number] = peer
        return peer

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
        over: list[Peer] = []
        for connection in dict.fromkeys(closed):
            peers = self._by_connection.get(connection, {})
            ended = known.get(connection, ())
            if connection not in accepted:
                ended = list(peers.values())
            for peer in ended:
                if self._by_number.pop(peer.number, None) is not None:
                    del peers[peer.routing_id]
                    over.append(peer)
            if not peers:
                self._by_connection.pop(connection, None)
        return over
