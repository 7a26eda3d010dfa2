from __future__ import annotations

import pytest

from leaderserver.server.core.topics import TopicTable
from nameservice import NS_PER_SECOND
from zmqtransport import ConnectionId


A = ConnectionId(7)
B = ConnectionId(8)
C = ConnectionId(9)


def make(*, topics_per_connection_max: int, topics_max: int) -> TopicTable:
    """Return a table with three open connections."""
    topics = TopicTable(
        topic_size_bytes=1,
        topics_per_connection_max=topics_per_connection_max,
        topics_max=topics_max,
    )
    for connection in (A, B, C):
        topics.opened(connection)
    return topics


def subscribe(topics: TopicTable, connection: ConnectionId, *names: bytes) -> list[int]:
    """Return who must be ended after *connection* subscribed to *names*."""
    return [
        ended
        for name in names
        for ended in topics.changed(connection, b"\x01" + name, now_ns=0)
    ]


class TestTopicTable:
    def test_topics_are_counted_once(self) -> None:
        """Two subscribers of one topic, or one that repeats it, are one topic."""
        topics = make(topics_per_connection_max=2, topics_max=3)
        assert subscribe(topics, A, b"x", b"x", b"y") == []
        assert subscribe(topics, B, b"x") == []
        assert len(topics) == 2
        assert topics.connection_count == 3

    def test_what_ends_is_forgotten(self) -> None:
        """A topic is gone with its last subscriber, or its last connection."""
        topics = make(topics_per_connection_max=2, topics_max=3)
        subscribe(topics, A, b"x", b"y")
        subscribe(topics, B, b"x")
        assert topics.changed(A, b"\x00x", now_ns=0) == ()
        assert len(topics) == 2
        assert topics.changed(A, b"\x00x", now_ns=0) == ()  # repeated
        topics.closed(B)
        assert len(topics) == 1
        topics.closed(A)
        topics.closed(A)
        assert len(topics) == 0
        assert topics.connection_count == 1

    def test_only_open_connections_count(self) -> None:
        """What was sent before the end, and reported after it, leaves nothing."""
        topics = make(topics_per_connection_max=2, topics_max=3)
        subscribe(topics, A, b"x")
        topics.closed(A)
        assert subscribe(topics, A, b"y") == []
        assert len(topics) == 0
        topics.opened(A)
        subscribe(topics, A, b"z")
        topics.opened(A)
        assert len(topics) == 0

    @pytest.mark.proves("N3")
    def test_a_connection_with_too_many_topics_must_go(self) -> None:
        """The limit itself is fine, one above it is not (N3)."""
        topics = make(topics_per_connection_max=2, topics_max=9)
        assert subscribe(topics, B, b"x") == []
        assert subscribe(topics, A, b"x", b"y") == []
        assert subscribe(topics, A, b"z") == [A]
        assert len(topics) == 1
        assert topics.connection_count == 2

    @pytest.mark.proves("N3")
    def test_a_flood_does_not_drive_out_others(self) -> None:
        """When all together are too many, the one with the most goes (N3)."""
        topics = make(topics_per_connection_max=9, topics_max=4)
        subscribe(topics, A, b"1", b"2", b"3", b"4")
        assert subscribe(topics, B, b"5") == [A]
        assert len(topics) == 1

    def test_shared_topics_take_as_many_as_needed(self) -> None:
        """Ending one connection frees nothing that others have too."""
        topics = make(topics_per_connection_max=9, topics_max=2)
        subscribe(topics, A, b"1", b"2")
        subscribe(topics, B, b"1", b"2")
        assert subscribe(topics, C, b"3") == [B, A]
        assert len(topics) == 1

    @pytest.mark.proves("N3")
    def test_endless_change_is_a_flood(self) -> None:
        """Subscribing and unsubscribing one topic for ever is bounded as well (N3)."""
        topics = make(topics_per_connection_max=10, topics_max=100)
        changes = [topics.changed(A, b"\x01x", now_ns=5) for _ in range(121)]
        assert changes == [()] * 120 + [(A,)]
        assert topics.connection_count == 2

    def test_a_new_second_is_a_new_count(self) -> None:
        """Who changes a lot, slowly, is welcome; strange messages count, too."""
        topics = make(topics_per_connection_max=10, topics_max=100)
        for now_ns in (0, NS_PER_SECOND):
            for _ in range(120):
                assert not topics.changed(A, b"hello", now_ns=now_ns)
        assert topics.changed(A, b"", now_ns=2 * NS_PER_SECOND - 1) == (A,)

    def test_a_topic_of_another_size_is_no_clients_of_ours(self) -> None:
        """N3: libzmq takes memory for each byte of a topic."""
        for message in (b"\x01", b"\x01xy", b"\x00xy"):
            topics = make(topics_per_connection_max=10, topics_max=100)
            assert topics.changed(A, message, now_ns=0) == (A,)
            assert len(topics) == 0

    def test_bytes_bound_a_connection_and_all(self) -> None:
        """N3: one connection may take half of what all may."""
        cost = 256 + 64 + 48
        topics = TopicTable(
            topic_size_bytes=1,
            topics_per_connection_max=100,
            topics_max=100,
            bytes_max=4 * cost,
        )
        for connection in (A, B, C):
            topics.opened(connection)
        assert subscribe(topics, A, b"1", b"2") == []
        assert subscribe(topics, B, b"3", b"4") == []
        assert subscribe(topics, C, b"5") == [B]
        assert subscribe(topics, C, b"6") == []
        assert subscribe(topics, C, b"7") == [C]
