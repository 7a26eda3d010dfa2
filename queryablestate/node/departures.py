"""
`Departures`: what one connection was handed, and who is told when it has gone.

What is on its way is counted in bytes: ZeroMQ would hold thousands of answers of 16 MB
for a proxy that does not read (rule B1).

A frame that is sent without a copy takes memory for longer than until the kernel has
it: pyzmq releases it in a thread of its own, which waits for its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

import zmq
from attrs import frozen

from nameservice.clock import NS_PER_MS
from zmqtransport import BytesInFlight


if TYPE_CHECKING:
    from nameservice import Clock
    from zmqtransport import ConnectionId


__all__ = ["Departures"]

_IN_FLIGHT_SIZE_BYTES_MAX: Final = 4 << 20
_LOOK_NS: Final = 5 * NS_PER_MS


@final
@frozen
class _Departure:
    """
    One message.

    Attributes:
        end_bytes: Up to where what was handed over must be gone.
        size_bytes: Its size.
        on_gone: Is told then.
        tracker: Says when a frame of it is released, if it is tracked.
    """

    end_bytes: int
    size_bytes: int
    on_gone: Callable[[], None]
    tracker: zmq.MessageTracker | None

    def has_gone(self, gone_bytes: int) -> bool:
        """Return whether it takes no memory of ours any more."""
        is_written = self.end_bytes <= gone_bytes
        return is_written and (self.tracker is None or self.tracker.done)


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
        self._departures: deque[_Departure] = deque()
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

    def add(
        self,
        size_bytes: int,
        on_gone: Callable[[], None] | None,
        payload: bytes | zmq.Frame | None = None,
    ) -> None:
        """
        Count a message that ZeroMQ has taken.

        Args:
            size_bytes: Of all its frames.
            on_gone: Is told when it has gone.
            payload: Its last frame: if that is tracked, until it is released, too.
        """
        if self._connection is None:
            if on_gone is not None:
                on_gone()
            return
        self._handed_bytes += size_bytes
        self._in_flight.add(self._connection, size_bytes)
        if on_gone is not None:
            self._told_bytes += size_bytes
            tracker = payload.tracker if isinstance(payload, zmq.Frame) else None
            self._departures.append(
                _Departure(self._handed_bytes, size_bytes, on_gone, tracker)
            )
            self._look()

    def over(self) -> None:
        """Take note that nothing is on its way any more: the connection is over."""
        self._look_due_ns = None
        if self._connection is not None:
            self._in_flight.forget(self._connection)
            self._connection = None
        self._handed_bytes = self._told_bytes = 0
        departures, self._departures = self._departures, deque()
        for departure in departures:
            departure.on_gone()

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
        while self._departures and self._departures[0].has_gone(gone_bytes):
            departure = self._departures.popleft()
            self._told_bytes -= departure.size_bytes
            departure.on_gone()
        if self._departures:
            self._look_due_ns = self._clock.now_ns() + _LOOK_NS
