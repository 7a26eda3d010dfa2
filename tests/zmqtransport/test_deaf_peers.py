"""`DeafPeers`: who is sent more and more, and reads nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from nameservice import ManualClock
from zmqtransport import (
    BytesInFlight,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionId,
    DeafPeers,
    TCPProgress,
)


pytestmark = pytest.mark.proves("B1", "N3")

ONE = ConnectionId(7)
LIMIT_BYTES = 1_000
SILENCE_NS = 5_000


class Told:
    """One connection, over which something is told again and again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.written: Counter[int] = Counter()
        self.look_count = 0
        self.in_flight = BytesInFlight(self._progress)
        self.deaf = DeafPeers(self.in_flight, self.clock, silence_ns=SILENCE_NS)

    def _progress(self, connection: ConnectionId) -> TCPProgress:
        self.look_count += 1
        written_bytes = self.written[connection]
        return TCPProgress(written_bytes=written_bytes, received_bytes=0, read_bytes=0)

    def is_deaf(self) -> bool:
        """Return whether the peer is deaf."""
        return self.deaf.is_deaf(ONE, LIMIT_BYTES)


def test_who_reads_nothing_for_long_enough() -> None:
    """B1: at the very moment, and not one earlier."""
    told = Told()
    told.in_flight.add(ONE, LIMIT_BYTES + 1)
    assert not told.is_deaf()
    told.clock.advance(SILENCE_NS - 1)
    assert not told.is_deaf()
    told.clock.advance(1)
    assert told.is_deaf()


def test_much_at_once_is_no_reason() -> None:
    """W7: a node that comes back is sent all that it has missed, and reads it."""
    told = Told()
    for _ in range(10):
        told.in_flight.add(ONE, 1_000 * LIMIT_BYTES)
        assert not told.is_deaf()
    for _ in range(10):
        told.clock.advance(SILENCE_NS - 1)
        told.written[ONE] += 1
        assert not told.is_deaf()


def test_what_others_look_at_is_no_silence() -> None:
    """A look of somebody else, for another bound, hides nothing of what was written."""
    told = Told()
    told.in_flight.add(ONE, 10 * LIMIT_BYTES)
    assert not told.is_deaf()
    told.clock.advance(SILENCE_NS)
    told.written[ONE] += 1
    told.in_flight.look_at_all()
    assert not told.is_deaf()


def test_who_has_little_to_read() -> None:
    """It may be silent for ever, and the kernel is not asked."""
    told = Told()
    told.in_flight.add(ONE, LIMIT_BYTES)
    for _ in range(3):
        assert not told.is_deaf()
        told.clock.advance(SILENCE_NS)
    assert told.look_count == 0
    # And silence begins when it has much.
    told.in_flight.add(ONE, 1)
    assert not told.is_deaf()


def test_who_has_read_is_not_silent_since_before() -> None:
    """Silence begins anew when there is much to read again."""
    told = Told()
    told.in_flight.add(ONE, LIMIT_BYTES + 1)
    assert not told.is_deaf()
    told.written[ONE] += LIMIT_BYTES + 1
    assert not told.is_deaf()
    told.clock.advance(SILENCE_NS)
    told.in_flight.add(ONE, LIMIT_BYTES + 1)
    assert not told.is_deaf()


@pytest.mark.parametrize("event", [ConnectionAccepted, ConnectionClosed])
def test_another_connection_of_that_number(
    event: type[ConnectionAccepted | ConnectionClosed],
) -> None:
    """What the one before has left unread, and its end, are not the next one's."""
    told = Told()
    told.in_flight.add(ONE, LIMIT_BYTES + 1)
    assert not told.is_deaf()
    told.deaf.end(ONE)
    assert told.deaf.has_ended(ONE)
    told.clock.advance(SILENCE_NS)
    told.in_flight.observe([event(connection_id=ONE)])
    told.deaf.observe([event(connection_id=ONE)])
    assert not told.deaf.has_ended(ONE)
    told.in_flight.add(ONE, LIMIT_BYTES + 1)
    assert not told.is_deaf()
