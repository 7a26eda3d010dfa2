"""`UnreadAnswers`: what peers that do not read may have a server hold."""

from __future__ import annotations

from collections import Counter

import pytest

from nameservice import ManualClock
from zmqtransport import (
    BytesInFlight,
    ConnectionClosed,
    ConnectionId,
    TCPProgress,
    UnreadAnswers,
)


pytestmark = pytest.mark.proves("B1", "B2")

UNREAD_SIZE_BYTES_MAX = 8 << 20
ANSWER_SIZE_BYTES = 512 << 10
MS = 1_000_000


class Clients:
    """Connections, of which some read."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: Counter[int] = Counter()
        self.look_count = 0
        self.in_flight = BytesInFlight(self._progress)
        self.answers = UnreadAnswers(
            self.in_flight,
            self.clock,
            bytes_max=UNREAD_SIZE_BYTES_MAX,
            bytes_per_connection_max=2 << 20,
        )

    def _progress(self, connection: ConnectionId) -> TCPProgress:
        self.look_count += 1
        written_bytes = self.written[connection]
        return TCPProgress(written_bytes=written_bytes, received_bytes=0, read_bytes=0)

    def fill(
        self,
        number: int,
        size_bytes: int = ANSWER_SIZE_BYTES,
        *,
        is_size_known: bool = False,
    ) -> int:
        """Have one that does not read ask on; return what is held for it."""
        held_bytes = 0
        known_bytes = size_bytes if is_size_known else None
        while not self.answers.is_too_much(ConnectionId(number), known_bytes):
            self.in_flight.add(ConnectionId(number), size_bytes)
            held_bytes += size_bytes
        return held_bytes


def test_one_that_does_not_read() -> None:
    """B1: has two mebibytes, and an answer more."""
    clients = Clients()
    assert clients.fill(1) == (2 << 20) + ANSWER_SIZE_BYTES


def test_any_number_that_do_not_read() -> None:
    """B1: there is one bound for all of them; B2: another has room after them."""
    clients = Clients()
    held_bytes = sum(clients.fill(number) for number in range(100))
    assert held_bytes == clients.answers.total_bytes()
    assert held_bytes <= UNREAD_SIZE_BYTES_MAX + ANSWER_SIZE_BYTES


def test_a_few_leave_room_for_another() -> None:
    """B2: with ten that do not read, one that does is answered."""
    clients = Clients()
    answer_size_bytes = 10_000
    for number in range(10):
        while not clients.answers.is_too_much(ConnectionId(number)):
            clients.in_flight.add(ConnectionId(number), answer_size_bytes)
    reader = ConnectionId(11)
    for _ in range(1_000):
        assert not clients.answers.is_too_much(reader)
        clients.in_flight.add(reader, answer_size_bytes)
        clients.written[reader] += answer_size_bytes


def test_what_was_read_counts_no_more() -> None:
    """B1: and what is over neither; all are looked at, not too often."""
    clients = Clients()
    for number in range(100):
        clients.fill(number)
    fresh = ConnectionId(200)
    clients.in_flight.add(fresh, 3 << 20)
    assert clients.answers.is_too_much(fresh)
    looks = clients.look_count
    clients.written.update(dict.fromkeys(range(50), 1 << 30))
    assert clients.answers.is_too_much(fresh)
    assert clients.look_count == looks + 1
    clients.clock.advance(5 * MS)
    clients.written[fresh] += 3 << 20
    assert not clients.answers.is_too_much(fresh)
    clients.in_flight.observe(
        ConnectionClosed(connection_id=ConnectionId(number))
        for number in range(50, 100)
    )
    assert clients.answers.total_bytes() == 0


def test_what_is_known_to_be_large_has_to_fit() -> None:
    """B1: into what one connection may have, unless it has nothing; and into all."""
    clients = Clients()
    assert clients.fill(1, 1_500_000, is_size_known=True) == 1_500_000
    assert clients.fill(2, 3 << 20, is_size_known=True) == 3 << 20
    assert clients.fill(3, 3 << 20, is_size_known=True) == 3 << 20
    assert clients.fill(4, 3 << 20, is_size_known=True) == 0
    assert clients.answers.total_bytes() <= UNREAD_SIZE_BYTES_MAX


def test_a_few_small_answers_always_may_wait() -> None:
    """B2: who reads is answered, whatever others have been sent."""
    clients = Clients()
    clients.in_flight.add(ConnectionId(1), 2 * UNREAD_SIZE_BYTES_MAX)
    assert clients.answers.is_too_much(ConnectionId(2), (64 << 10) + 1)
    assert clients.fill(2, 64 << 10, is_size_known=True) == 128 << 10
    clients.written[2] += 64 << 10
    assert not clients.answers.is_too_much(ConnectionId(2), 64 << 10)
    assert clients.answers.share_bytes == 64 << 10


def test_small_answers_of_any_number() -> None:
    """B1: they are bounded as large ones are, but for a few for each connection."""
    clients = Clients()
    held_bytes = [
        clients.fill(number, 33_000, is_size_known=True) for number in range(100)
    ]
    assert held_bytes[0] <= (2 << 20) + 33_000
    assert held_bytes[-1] == 66_000
    assert sum(held_bytes) <= UNREAD_SIZE_BYTES_MAX + 100 * 66_000


def test_a_link_that_many_wait_for() -> None:
    """B2: what others leave unread takes no room from small questions to a node."""
    clients = Clients()
    node = ConnectionId(1)
    clients.in_flight.add(ConnectionId(2), 2 * UNREAD_SIZE_BYTES_MAX)
    clients.in_flight.add(node, 2 << 20)
    assert not clients.answers.is_link_full(node, 64 << 10)
    assert clients.answers.is_link_full(node, (64 << 10) + 1)
    clients.in_flight.add(node, 1)
    assert clients.answers.is_link_full(node, 1)
    clients.written[node] += 1
    assert not clients.answers.is_link_full(node, 1)


def test_small_answers_go_on_where_others_have_taken_all() -> None:
    """B2: what cannot be held back, such as what nodes have missed, is beyond it."""
    clients = Clients()
    clients.in_flight.add(ConnectionId(1), 2 * UNREAD_SIZE_BYTES_MAX)
    for _ in range(64):
        assert not clients.answers.is_too_much(ConnectionId(2), 1_000)
        clients.in_flight.add(ConnectionId(2), 1_000)
    assert clients.answers.is_too_much(ConnectionId(2), 100_000)
