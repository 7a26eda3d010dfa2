"""
`TopicTable`: what the connections to the publishing port subscribe to; pure.

Theory of operation.  libzmq keeps the subscriptions of an XPUB socket itself, and has
no limit for them but the size of one frame.  It can be made to report every one of
them (``XPUB_VERBOSER``), with the connection that it came over.  This table counts
them, and names the connection that must go: one with a topic of a size that no client
of ours has, one that has more topics than a session may have, one that changes them
faster than any client of ours, and, when all together are too many, the one that has
the most, so that a flood never drives out those who were there with few.

What a connection sent before it closed is still reported afterwards.  So only those
that are open count: a table that learned of a topic after the end of its connection
would never forget it.  And what comes over one that is not open may come over a new
one: the shell reads what waits of openings before it tells of such a change.

What is not bounded so: what libzmq reads from a connection before we see it.  The
socket's receive queue and its largest frame bound that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define

from nameservice.clock import NS_PER_SECOND


if TYPE_CHECKING:
    from collections.abc import Sequence

    from zmqtransport.connections import ConnectionId


__all__ = ["TopicTable"]


# A subscription of one connection, here and in libzmq; and a node of libzmq's tree for
# each byte of a topic.
_SUBSCRIPTION_COST_BYTES: Final = 256
_TOPIC_COST_BYTES: Final = 64
_TOPIC_BYTE_COST_BYTES: Final = 48


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
        topic_size_bytes: The size of every topic.
        topics_per_connection_max: Topics of one connection.
        topics_max: Different topics of all connections.
        bytes_max: What all of them may cost, here and in libzmq; one connection may
            cost half of that.
    """

    def __init__(
        self,
        *,
        topic_size_bytes: int,
        topics_per_connection_max: int,
        topics_max: int,
        bytes_max: int = 2**40,
    ) -> None:
        self._topic_size_bytes = topic_size_bytes
        self._topic_cost_bytes = (
            _TOPIC_COST_BYTES + _TOPIC_BYTE_COST_BYTES * topic_size_bytes
        )
        self.limit(
            topics_per_connection_max=topics_per_connection_max,
            topics_max=topics_max,
            bytes_max=bytes_max,
        )
        self._subscribers: dict[ConnectionId, _Subscriber] = {}  # the open ones
        self._topics: Counter[bytes] = Counter()
        self._subscription_count = 0

    def __len__(self) -> int:
        return len(self._topics)

    def limit(
        self, *, topics_per_connection_max: int, topics_max: int, bytes_max: int
    ) -> None:
        """Set the limits from the next change on; see the class."""
        self._bytes_max = bytes_max
        self._topics_per_connection_max = min(
            topics_per_connection_max,
            bytes_max // 2 // (self._topic_cost_bytes + _SUBSCRIPTION_COST_BYTES),
        )
        # A client that connects again subscribes to all that it had at once; twice
        # that within a second, and a little for those with few, is no client of ours.
        self._changes_per_second_max = 2 * topics_per_connection_max + 100
        self._topics_max = topics_max

    @property
    def connections(self) -> Sequence[ConnectionId]:
        """Return the open connections, those to be ended not counted."""
        return tuple(self._subscribers)

    @property
    def connection_count(self) -> int:
        """Return how many connections are open, those to be ended not counted."""
        return len(self._subscribers)

    def is_open(self, connection: ConnectionId) -> bool:
        """Return whether that one is open, and is not to be ended."""
        return connection in self._subscribers

    def opened(self, connection: ConnectionId) -> None:
        """Record a new connection; what had that number before is over."""
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
        is_change = message[:1] in {b"\x00", b"\x01"}
        is_strange = is_change and len(topic) != self._topic_size_bytes
        match message[:1]:
            case b"\x01" if topic not in subscriber.topics:
                subscriber.topics[topic] = None
                self._topics[topic] += 1
                self._subscription_count += 1
            case b"\x00" if topic in subscriber.topics:
                del subscriber.topics[topic]
                self._release(topic)
            case _:
                pass
        if (
            subscriber.change_count > self._changes_per_second_max
            or len(subscriber.topics) > self._topics_per_connection_max
            or is_strange
        ):
            self.closed(connection)
            return (connection,)
        ended: list[ConnectionId] = []
        while self._is_too_much:
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

    @property
    def _is_too_much(self) -> bool:
        cost_bytes = (
            self._subscription_count * _SUBSCRIPTION_COST_BYTES
            + len(self._topics) * self._topic_cost_bytes
        )
        return len(self._topics) > self._topics_max or cost_bytes > self._bytes_max

    def _release(self, topic: bytes) -> None:
        self._subscription_count -= 1
        self._topics[topic] -= 1
        if not self._topics[topic]:
            del self._topics[topic]
