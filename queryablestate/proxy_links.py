"""
`LinkTable`: numbers for the connections of a proxy, from first word to end.

A link is a connection and the routing id that speaks over it; why it takes both, and
why the order of draining matters, is told in `leaderserver.peers`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, final

from queryablestate.control_events import Link
from transport import ConnectionAccepted, ConnectionClosed, connection_of


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import zmq

    from transport import ConnectionEvent, ConnectionId


__all__ = ["LinkTable"]


@final
class LinkTable:
    """Links by number, by what spoke over them, and by connection."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._links: dict[tuple[ConnectionId, bytes], Link] = {}
        self._routing_ids: dict[Link, bytes] = {}
        self._of_connection: dict[ConnectionId, dict[Link, bytes]] = {}

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
            self._links[connection, routing_id] = link
            self._routing_ids[link] = routing_id
            self._of_connection.setdefault(connection, {})[link] = routing_id
        return link

    def routing_id(self, link: Link) -> bytes | None:
        """Return how to send over *link*, or None if it is over."""
        return self._routing_ids.get(link)

    def known(
        self, connections: Collection[ConnectionId]
    ) -> Mapping[ConnectionId, Sequence[Link]]:
        """Return the links of those connections, as they are now."""
        return {
            connection: list(self._of_connection.get(connection, ()))
            for connection in connections
        }

    def over(
        self,
        closed: Collection[ConnectionId],
        *,
        known: Mapping[ConnectionId, Sequence[Link]],
        events: Sequence[ConnectionEvent],
    ) -> Sequence[Link]:
        """
        Forget and return the links that are over.

        Args:
            closed: The connections that were reported as closed.
            known: Their links at the time of the report.
            events: All reports until now: a number that was accepted anew since its
                last end belongs to somebody else.
        """
        is_accepted: dict[ConnectionId, bool] = {}
        for event in events:
            if isinstance(event, ConnectionAccepted | ConnectionClosed):
                is_accepted[event.connection_id] = isinstance(event, ConnectionAccepted)
        ended: list[Link] = []
        for connection in dict.fromkeys(closed):
            links = self._of_connection.get(connection, {})
            over = known[connection] if is_accepted.get(connection) else list(links)
            for link in over:
                routing_id = links.pop(link, None)
                if routing_id is not None:
                    del self._links[connection, routing_id]
                    del self._routing_ids[link]
                    ended.append(link)
            if not links:
                self._of_connection.pop(connection, None)
        return ended
