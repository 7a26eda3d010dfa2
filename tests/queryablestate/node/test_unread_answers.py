"""`UnreadAnswers`: what clients that do not read may have a node hold."""

from __future__ import annotations

from collections import Counter

import pytest

from nameservice import ManualClock
from queryablestate.node.unread_answers import UNREAD_SIZE_BYTES_MAX, UnreadAnswers
from zmqtransport import ConnectionClosed, ConnectionId
from zmqtransport.tcp_counters import TCPProgress


pytestmark = pytest.mark.proves("B1", "B2")

ANSWER_SIZE_BYTES = 512 << 10
MS = 1_000_000


class Clients:
    """Connections, of which some read."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: Counter[int] = Counter()
        self.look_count = 0
        self.answers = UnreadAnswers(self.clock, self._progress)

    def _progress(self, connection: ConnectionId) -> TCPProgress:
        self.look_count += 1
        written_bytes = self.written[connection]
        return TCPProgress(written_bytes=written_bytes, received_bytes=0, read_bytes=0)

    def fill(self, number: int) -> int:
        """Have one that does not read ask on; return what is held for it."""
        held_bytes = 0
        while not self.answers.is_too_much(ConnectionId(number)):
            self.answers.add(ConnectionId(number), ANSWER_SIZE_BYTES)
            held_bytes += ANSWER_SIZE_BYTES
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
            clients.answers.add(ConnectionId(number), answer_size_bytes)
    reader = ConnectionId(11)
    for _ in range(1_000):
        assert not clients.answers.is_too_much(reader)
        clients.answers.add(reader, answer_size_bytes)
        clients.written[reader] += answer_size_bytes


def test_what_was_read_counts_no_more() -> None:
    """B1: and what is over neither; all are looked at, not too often."""
    clients = Clients()
    for number in range(100):
        clients.fill(number)
    fresh = ConnectionId(200)
    clients.answers.add(fresh, 3 << 20)
    assert clients.answers.is_too_much(fresh)
    looks = clients.look_count
    clients.written.update(dict.fromkeys(range(50), 1 << 30))
    assert clients.answers.is_too_much(fresh)
    assert clients.look_count == looks + 1
    clients.clock.advance(5 * MS)
    clients.written[fresh] += 3 << 20
    assert not clients.answers.is_too_much(fresh)
    clients.answers.observe(
        ConnectionClosed(connection_id=ConnectionId(number))
        for number in range(50, 100)
    )
    assert clients.answers.total_bytes() == 0
