"""
`Departures`: what one connection was handed, and who is told when it has gone.

What is on its way is counted in bytes: ZeroMQ would hold thousands of answers of 16 MB
for a proxy that does not read (rule B1).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from nameservice.clock import NS_PER_MS
from zmqtransport import BytesInFlight


if TYPE_CHECKING:
    from collections.abc import Callable

    from nameservice import Clock
    from zmqtransport import ConnectionId


__all__ = ["Departures"]

_IN_FLIGHT_SIZE_BYTES_MAX: Final = 4 << 20
_LOOK_NS: Final = 5 * NS_PER_MS


@final
class Departures:
    """
    Counts what is handed to ZeroMQ for one connection at a time; for one thread.

    Args:
        clock: Says when to look again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._in_flight = BytesInFlight()
        self._connection: ConnectionId | None = None
        self._handed_bytes = 0
        # Up to where what was handed over must be gone, its size, and who is told then.
        self._departures: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._told_bytes = 0
        self._look_due_ns: int | None = None

    @property
    def is_congested(self) -> bool:
        """Return whether more waits to be sent than may wait for long (rule B1)."""
        connection = self._connection
        if connection is None:
            return False
        # Those whose leaving is told of are bounded by who reads them.
        small_max = _IN_FLIGHT_SIZE_BYTES_MAX + self._told_bytes
        return (
            self._in_flight.of(connection) > small_max
            and self._in_flight.look(connection) > small_max
        )

    def opened(self, connection_id: ConnectionId) -> None:
        """Count for another connection from now on; the one before is over."""
        self.over()
        self._connection = connection_id

    def add(self, size_bytes: int, on_gone: Callable[[], None] | None) -> None:
        """Count a message that ZeroMQ has taken; *on_gone* is told when it has gone."""
        if self._connection is None:
            if on_gone is not None:
                on_gone()
            return
        self._handed_bytes += size_bytes
        self._in_flight.add(self._connection, size_bytes)
        if on_gone is not None:
            self._told_bytes += size_bytes
            self._departures.append((self._handed_bytes, size_bytes, on_gone))
            self._look()

    def over(self) -> None:
        """Take note that nothing is on its way any more: the connection is over."""
        self._look_due_ns = None
        if self._connection is not None:
            self._in_flight.forget(self._connection)
            self._connection = None
        self._handed_bytes = self._told_bytes = 0
        departures, self._departures = self._departures, deque()
        for _, _, on_gone in departures:
            on_gone()

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` is to be called, or None."""
        return self._look_due_ns

    def advance(self) -> None:
        """Look what has gone meanwhile, if it is time."""
        if self._look_due_ns is not None and self._clock.now_ns() >= self._look_due_ns:
            self._look()

    def _look(self) -> None:
        """Tell of what the kernel has taken, and look again soon if that is not all."""
        self._look_due_ns = None
        if self._connection is None:
            return
        gone_bytes = self._handed_bytes - self._in_flight.look(self._connection)
        while self._departures and self._departures[0][0] <= gone_bytes:
            _, size_bytes, on_gone = self._departures.popleft()
            self._told_bytes -= size_bytes
            on_gone()
        if self._departures:
            self._look_due_ns = self._clock.now_ns() + _LOOK_NS
