"""
`LinkTable`: numbers for the connections of a proxy, from first word to end.

What a link is, and why the order of draining matters, is told in `zmqtransport.peers`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias, final

from queryablestate.control.events import Link
from zmqtransport import accepted_last, connection_of
from zmqtransport.peers import PeerTable


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import zmq

    from zmqtransport import ConnectionEvent, ConnectionId
    from zmqtransport.peers import Link as PeerLink


__all__ = ["LinkTable"]

Known: TypeAlias = "Mapping[ConnectionId, Sequence[PeerLink]]"


@final
class LinkTable:
    """Links by number, and by what spoke over them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._peers = PeerTable()
        self._links: dict[PeerLink, Link] = {}
        self._routing_ids: dict[Link, bytes] = {}

    def __len__(self) -> int:
        return len(self._links)

    def heard(self, frame: zmq.Frame, routing_id: bytes) -> Link:
        """
        Return the link over which *frame* came.

        Raises:
            RemoteProtocolError: If the frame does not know its connection.
        """
        connection = connection_of(frame)
        link = self._links.get((connection, routing_id))
        if link is None:
            link = Link(next(self._numbers))
            self._links[self._peers.heard(connection, routing_id)] = link
            self._routing_ids[link] = routing_id
        return link

    def routing_id(self, link: Link) -> bytes | None:
        """Return how to send over *link*, or None if it is over."""
        return self._routing_ids.get(link)

    def known(self, connections: Collection[ConnectionId]) -> Known:
        """Return what spoke over those connections until now; for `over`."""
        return self._peers.known(connections)

    def over(
        self,
        closed: Collection[ConnectionId],
        *,
        known: Known,
        events: Sequence[ConnectionEvent],
    ) -> Sequence[Link]:
        """
        Forget and return the links that are over.

        Args:
            closed: The connections that were reported as closed.
            known: What spoke over them at the time of the report.
            events: All reports until now: a number that was accepted anew since its
                last end belongs to somebody else.
        """
        accepted = accepted_last(events)
        ended: list[Link] = []
        for peer in self._peers.over(closed, known=known, accepted=accepted):
            link = self._links.pop(peer, None)
            if link is not None:
                del self._routing_ids[link]
                ended.append(link)
        return ended
