"""
`UnreadAnswers`: what peers that ask have yet to read.

ZeroMQ would hold any number of answers for peers that do not read.  All of them are
bounded together, so that the number of connections does not matter (rule B1).  And one
connection may hold as much as is left for the others: so a few that do not read take no
room from the rest (dynamic thresholds, Choudhury and Hahne, 1998; rule B2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_MS


if TYPE_CHECKING:
    from nameservice import Clock
    from zmqtransport.connections import ConnectionId
    from zmqtransport.in_flight import BytesInFlight


__all__ = ["UnreadAnswers"]

_SMALL_SIZE_BYTES: Final = 64 << 10
"""So much of small answers always may wait for a connection, and one more."""

_LOOK_NS: Final = 5 * NS_PER_MS
"""Between two looks at all connections: two system calls for each."""


@final
class UnreadAnswers:
    """
    Says who may be sent more; for one thread.

    Args:
        in_flight: What was sent is counted there: all frames.
        clock: For how often all connections are looked at.
        bytes_max: Of all connections; one answer may go beyond it.
        bytes_per_connection_max: Of one; likewise.
    """

    def __init__(
        self,
        in_flight: BytesInFlight,
        clock: Clock,
        *,
        bytes_max: int,
        bytes_per_connection_max: int,
    ) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._bytes_max = bytes_max
        self._bytes_per_connection_max = bytes_per_connection_max
        self._look_due_ns = clock.now_ns()

    def total_bytes(self) -> int:
        """Return what all have yet to read; asks the kernel."""
        return self._in_flight.look_at_all()

    @property
    def share_bytes(self) -> int:
        """Return beyond how much a connection holds more than its share."""
        left_bytes = self._bytes_max - self._in_flight.total_bytes
        share_bytes = min(self._bytes_per_connection_max, left_bytes)
        return max(_SMALL_SIZE_BYTES, share_bytes)

    def is_too_much(
        self, connection: ConnectionId, size_bytes: int | None = None
    ) -> bool:
        """
        Return whether a connection is to be sent no more for now.

        Args:
            connection: That of the peer.
            size_bytes: Of what it would be sent, all frames; None if that is not known.
                Where it is known, what is large has to fit, and a few small answers may
                always wait: who reads is answered, however much others leave unread.
        """
        if not self._seems_too_much(connection, size_bytes):
            return False
        self._in_flight.look(connection)
        if not self._seems_too_much(connection, size_bytes):
            return False
        now_ns = self._clock.now_ns()
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            self._in_flight.look_at_all()
        return self._seems_too_much(connection, size_bytes)

    def _seems_too_much(self, connection: ConnectionId, size_bytes: int | None) -> bool:
        """Return whether it is by what is known: that is never too little."""
        own_bytes = self._in_flight.of(connection)
        left_bytes = self._bytes_max - self._in_flight.total_bytes
        own_bytes_max = min(self._bytes_per_connection_max, left_bytes)
        if size_bytes is None:
            return own_bytes > own_bytes_max
        if size_bytes <= _SMALL_SIZE_BYTES:
            return own_bytes > max(_SMALL_SIZE_BYTES, own_bytes_max)
        fits = not own_bytes or (
            own_bytes + size_bytes <= self._bytes_per_connection_max
        )
        return not fits or own_bytes > own_bytes_max or size_bytes > left_bytes

    def is_link_full(self, connection: ConnectionId, size_bytes: int) -> bool:
        """
        Return whether a peer that is asked is to be asked no more for now.

        That is one that many wait for: what others leave unread takes no room from
        small questions.
        """
        if size_bytes > _SMALL_SIZE_BYTES:
            return self.is_too_much(connection, size_bytes)
        own_bytes_max = self._bytes_per_connection_max
        return (
            self._in_flight.of(connection) > own_bytes_max
            and self._in_flight.look(connection) > own_bytes_max
        )
