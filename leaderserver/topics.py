"""
`TopicTable`: what the connections to the publishing port subscribe to; pure.

Theory of operation.  libzmq keeps the subscriptions of an XPUB socket itself, and has
no limit for them but the size of one frame.  It can be made to report every one of
them (``XPUB_VERBOSER``), with the connection that it came over.  This table counts
them, and names the connection that must go when there are too many: one that has more
topics than a session may have, one that changes them faster than any client of ours,
and, when all together are too many, the one that has the most, so that a flood never
drives out those who were there with few.

What a connection sent before it closed is still reported afterwards.  So only those
that are open count: a table that learned of a topic after the end of its connection
would never forget it.

What is not bounded so: what libzmq reads from a connection before we see it, which is
what the peer can send between two turns of our loop.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from attrs import Factory, define

from nameservice.clock import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Sequence

    from transport.connections import ConnectionId


__all__ = ["TopicTable"]


@define(kw_only=True)
class _Subscriber:
    """
    One connection.

    Attributes:
        topics: What it has subscribed to.
        change_count: Its reports within the present second.
        second_until_ns: When that second is over.
    """

    topics: dict[bytes, None] = Factory(dict)
    change_count: int = 0
    second_until_ns: int = 0


@final
class TopicTable:
    """
    The topics of each connection, and all topics.

    Args:
        topics_per_connection_max: Topics of one connection.
        topics_max: Different topics of all connections.
    """

    def __init__(self, *, topics_per_connection_max: int, topics_max: int) -> None:
        self._topics_per_connection_max = topics_per_connection_max
        # A client that connects again subscribes to all that it had at once; twice
        # that within a second, and a little for those with few, is no client of ours.
        self._changes_per_second_max = 2 * topics_per_connection_max + 100
        self._topics_max = topics_max
        self._subscribers: dict[ConnectionId, _Subscriber] = {}  # the open ones
        self._topics: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def connection_count(self) -> int:
        """Return how many connections are open, those to be ended not counted."""
        return len(self._subscribers)

    def opened(self, connection: ConnectionId) -> None:
        """Take note of a new connection; what had that number before is over."""
        self.closed(connection)
        self._subscribers[connection] = _Subscriber()

    def changed(
        self, connection: ConnectionId, message: bytes, *, now_ns: int
    ) -> Sequence[ConnectionId]:
        """
        Take one message of a subscriber.

        Args:
            connection: Whence it came.
            message: One byte, 1 to subscribe and 0 to end it, then the topic; any
                other message only counts as a change.
            now_ns: When it is.

        Returns:
            The connections that must be ended; they are forgotten here.
        """
        subscriber = self._subscribers.get(connection)
        if subscriber is None:
            return ()
        if now_ns >= subscriber.second_until_ns:
            subscriber.second_until_ns = now_ns + NS_PER_SECOND
            subscriber.change_count = 0
        subscriber.change_count += 1
        topic = message[1:]
        match message[:1]:
            case b"\x01" if topic not in subscriber.topics:
                subscriber.topics[topic] = None
                self._topics[topic] += 1
            case b"\x00" if topic in subscriber.topics:
                del subscriber.topics[topic]
                self._release(topic)
            case _:
                pass
        if (
            subscriber.change_count > self._changes_per_second_max
            or len(subscriber.topics) > self._topics_per_connection_max
        ):
            self.closed(connection)
            return (connection,)
        ended: list[ConnectionId] = []
        while len(self._topics) > self._topics_max:
            largest = max(
                self._subscribers, key=lambda c: (len(self._subscribers[c].topics), c)
            )
            self.closed(largest)
            ended.append(largest)
        return tuple(ended)

    def closed(self, connection: ConnectionId) -> None:
        """Forget what a connection subscribed to."""
        subscriber = self._subscribers.pop(connection, None)
        if subscriber is not None:
            for topic in subscriber.topics:
                self._release(topic)

    def _release(self, topic: bytes) -> None:
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]
