"""
`UnreadAnswers`: what clients that ask the node itself have yet to read.

ZeroMQ would hold any number of answers for clients that do not read.  All of them are
bounded together, so that the number of connections does not matter (rule B1).  And one
connection may hold as much as is left for the others: so a few that do not read take no
room from the rest (dynamic thresholds, Choudhury and Hahne, 1998; rule B2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_MS
from zmqtransport.in_flight import BytesInFlight
from zmqtransport.tcp_counters import tcp_progress


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nameservice import Clock
    from zmqtransport import ConnectionEvent, ConnectionId
    from zmqtransport.tcp_counters import TCPProgress


__all__ = ["UNREAD_SIZE_BYTES_MAX", "UnreadAnswers"]

UNREAD_SIZE_BYTES_MAX: Final = 8 << 20
"""Of all connections; one answer may go beyond it."""

_PER_CONNECTION_SIZE_BYTES_MAX: Final = 2 << 20
_LOOK_NS: Final = 5 * NS_PER_MS
"""Between two looks at all connections: two system calls for each."""


@final
class UnreadAnswers:
    """
    Counts; for one thread.

    Args:
        clock: For how often all connections are looked at.
        progress: Says how far a connection has come.
    """

    def __init__(
        self,
        clock: Clock,
        progress: Callable[[ConnectionId], TCPProgress | None] = tcp_progress,
    ) -> None:
        self._clock = clock
        self._in_flight = BytesInFlight(progress)
        self._look_due_ns = clock.now_ns()

    def add(self, connection: ConnectionId, size_bytes: int) -> None:
        """Count what was sent."""
        self._in_flight.add(connection, size_bytes)

    def observe(self, events: Iterable[ConnectionEvent]) -> None:
        """Begin anew for connections that have opened, and forget those that closed."""
        self._in_flight.observe(events)

    def total_bytes(self) -> int:
        """Return what all have yet to read; asks the kernel."""
        return self._in_flight.look_at_all()

    def is_too_much(self, connection: ConnectionId) -> bool:
        """Return whether a connection is to be sent no more for now."""
        if not self._seems_too_much(connection):
            return False
        self._in_flight.look(connection)
        if not self._seems_too_much(connection):
            return False
        now_ns = self._clock.now_ns()
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            self._in_flight.look_at_all()
        return self._seems_too_much(connection)

    def _seems_too_much(self, connection: ConnectionId) -> bool:
        """Return whether it is by what is known: that is never too little."""
        left_bytes = UNREAD_SIZE_BYTES_MAX - self._in_flight.total_bytes
        own_bytes_max = min(_PER_CONNECTION_SIZE_BYTES_MAX, left_bytes)
        return self._in_flight.of(connection) > own_bytes_max
