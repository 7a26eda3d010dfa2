from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from zmqtransport import (
    BytesInFlight,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    HandshakeSucceeded,
    TCPProgress,
)


ONE, OTHER = ConnectionId(7), ConnectionId(8)


class Kernel:
    """How far each connection has come, as a test says."""

    def __init__(self) -> None:
        self.written: dict[int, int | None] = {}
        self.look_count = 0

    def progress(self, connection_id: ConnectionId) -> TCPProgress | None:
        """Return what a test says."""
        self.look_count += 1
        written_bytes = self.written.get(connection_id, 0)
        if written_bytes is None:
            return None
        return TCPProgress(written_bytes=written_bytes, received_bytes=0, read_bytes=0)


@pytest.mark.proves("B1")
class TestCounting:
    """What was handed over, less what has been written since."""

    def test_what_is_written_is_gone(self) -> None:
        """Each connection for itself; what was written before counts once."""
        kernel = Kernel()
        flight = BytesInFlight(kernel.progress)
        assert flight.add(ONE, 100) == 100
        assert flight.add(ONE, 50) == 150
        assert flight.add(OTHER, 1) == 1
        kernel.written[ONE] = 120
        assert flight.of(ONE) == 150
        assert flight.look(ONE) == 30
        assert flight.look(ONE) == 30
        assert (flight.of(ONE), flight.of(OTHER), flight.total_bytes) == (30, 1, 31)
        assert (flight.written_of(ONE), flight.written_of(OTHER)) == (120, 0)
        assert (flight.above(1), flight.above(0)) == ([ONE], [ONE, OTHER])

    def test_more_cannot_be_gone_than_was_handed_over(self) -> None:
        """The transport adds to each message: that is not saved up."""
        kernel = Kernel()
        flight = BytesInFlight(kernel.progress)
        flight.add(ONE, 100)
        kernel.written[ONE] = 190
        assert flight.look(ONE) == 0
        flight.add(ONE, 60)
        assert flight.look(ONE) == 60
        assert flight.total_bytes == 60

    def test_a_look_that_sees_less_than_one_before_takes_nothing_twice(self) -> None:
        """What was seen to be written once is not seen to be written again."""
        kernel = Kernel()
        flight = BytesInFlight(kernel.progress)
        flight.add(ONE, 100)
        kernel.written[ONE] = 60
        assert flight.look(ONE) == 40
        kernel.written[ONE] = 20  # acknowledged bytes moved on between two calls
        assert flight.look(ONE) == 40
        kernel.written[ONE] = 70
        assert flight.look(ONE) == 30
        assert flight.total_bytes == 30

    def test_nothing_need_be_asked_of_an_idle_connection(self) -> None:
        """It has written all."""
        kernel = Kernel()
        flight = BytesInFlight(kernel.progress)
        assert (flight.look(ONE), flight.of(ONE)) == (0, 0)
        assert kernel.look_count == 0

    def test_where_the_kernel_does_not_tell_all_is_gone(self) -> None:
        """ZeroMQ's own limit has to do there."""
        kernel = Kernel()
        kernel.written[ONE] = None
        flight = BytesInFlight(kernel.progress)
        flight.add(ONE, 100)
        assert flight.look(ONE) == 0

    def test_a_connection_that_is_over_holds_nothing(self) -> None:
        """Its number may be given to another one."""
        kernel = Kernel()
        flight = BytesInFlight(kernel.progress)
        flight.add(ONE, 100)
        kernel.written[ONE] = 60
        flight.look(ONE)
        flight.add(OTHER, 7)
        flight.forget(ONE)
        flight.forget(ONE)
        assert flight.total_bytes == 7
        flight.add(ONE, 100)
        for kind in (ConnectionClosed, ConnectionAccepted):
            flight.observe([HandshakeSucceeded(), kind(connection_id=ONE)])
            assert flight.total_bytes == 7
            flight.add(ONE, 100)
        flight.forget(ONE)
        flight.add(ONE, 50)
        kernel.written[ONE] = 20
        assert flight.look(ONE) == 30
        kernel.written[OTHER] = 3
        assert flight.look_at_all() == 34


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


def test_the_kernel_is_asked(pair: tuple[socket.socket, socket.socket]) -> None:
    """What a real connection has taken is gone."""
    sender, receiver = pair
    flight = BytesInFlight()
    connection = ConnectionId(sender.fileno())
    flight.add(connection, 10)
    flight.look(connection)  # opening it counts as a byte
    flight.add(connection, 991)
    before = flight.of(connection)
    sender.sendall(bytes(600))
    assert receiver.recv(600, socket.MSG_WAITALL) == bytes(600)
    until = time.monotonic() + 30.0
    # The two numbers that are added up are read one after the other.
    while flight.look(connection) > before - 600 and time.monotonic() < until:
        pass
    assert flight.of(connection) == before - 600


_CHUNK_SIZE_BYTES = 64 << 10
_FLOW_SIZE_BYTES = 256 << 20


@pytest.mark.proves("B1")
def test_no_more_is_gone_of_a_fast_flow_than_was_written(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The kernel's counters move on while they are read, and nothing counts twice."""
    sender, receiver = pair
    sent_bytes = 0

    def send() -> None:
        nonlocal sent_bytes
        while sent_bytes < _FLOW_SIZE_BYTES:
            sender.sendall(bytes(_CHUNK_SIZE_BYTES))
            sent_bytes += _CHUNK_SIZE_BYTES
        sender.shutdown(socket.SHUT_WR)

    def receive() -> None:
        while receiver.recv(1 << 20):
            pass

    flight = BytesInFlight()
    connection = ConnectionId(sender.fileno())
    flight.add(connection, _FLOW_SIZE_BYTES)
    threads = [threading.Thread(target=target) for target in (send, receive)]
    for thread in threads:
        thread.start()
    excess_bytes = 0
    while sent_bytes < _FLOW_SIZE_BYTES:
        gone_bytes = _FLOW_SIZE_BYTES - flight.look(connection)
        written_bytes_max = sent_bytes + _CHUNK_SIZE_BYTES
        excess_bytes = max(excess_bytes, gone_bytes - written_bytes_max)
    for thread in threads:
        thread.join()
    assert excess_bytes <= 2  # opening and closing it count as a byte each
