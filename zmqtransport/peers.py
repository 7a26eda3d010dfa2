"""
`PeerTable`: which routing ids spoke over which connection; pure.

Theory of operation.  A session is bound to what its newest request came over.  That a
connection closed is told by its file descriptor alone, and the system gives the same
number to the next connection at once: a session that has just arrived over the new one
must not be taken for one that was left with the old one.  ZeroMQ draws a new routing
id for every connection, so a *link*, (connection, routing id), is never used twice by
peers that leave this to ZeroMQ (all of ours), and it is links that sessions are bound
to.

What a connection brought before it closed may still wait in the socket when the report
of its end is read.  So the shell asks for the links that were `known` when it read the
reports, drains the socket, and then asks what is `over`: the links that were known;
and those that the draining brought, unless the same number was accepted anew meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zmqtransport.connections import ConnectionId


__all__ = ["Link", "PeerTable"]

Link: TypeAlias = "tuple[ConnectionId, bytes]"
"""A connection and the routing id that speaks over it."""


@final
class PeerTable:
    """The links over which something came, by connection."""

    def __init__(self) -> None:
        self._routing_ids: dict[ConnectionId, dict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._routing_ids)

    def heard(self, connection: ConnectionId, routing_id: bytes) -> Link:
        """Record that *routing_id* spoke over *connection*; return the link."""
        self._routing_ids.setdefault(connection, {})[routing_id] = None
        return (connection, routing_id)

    def known(
        self, connections: Collection[ConnectionId]
    ) -> Mapping[ConnectionId, Sequence[Link]]:
        """Return the links of those of *connections* over which something came."""
        return {
            connection: self._links(connection)
            for connection in dict.fromkeys(connections)
            if connection in self._routing_ids
        }

    def over(
        self,
        closed: Collection[ConnectionId],
        *,
        known: Mapping[ConnectionId, Sequence[Link]],
        accepted: Collection[ConnectionId],
    ) -> Sequence[Link]:
        """
        Forget and return the links that are over.

        Args:
            closed: The connections that were reported as closed.
            known: Their links at the time of the report.
            accepted: The connections accepted after the last end of that number.
        """
        links: list[Link] = []
        for connection in dict.fromkeys(closed):
            ended = known.get(connection, ())
            if connection not in accepted:
                ended = self._links(connection)
            links += ended
            routing_ids = self._routing_ids.get(connection, {})
            for _, routing_id in ended:
                routing_ids.pop(routing_id, None)
            if not routing_ids:
                self._routing_ids.pop(connection, None)
        return links

    def _links(self, connection: ConnectionId) -> Sequence[Link]:
        return [(connection, name) for name in self._routing_ids.get(connection, ())]
