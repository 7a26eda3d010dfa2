"""
`DeafPeers`: who is sent more and more, and reads nothing.

Some messages cannot be held back: a node goes by what it is told, a writer waits for
what became of its batch, and who is told that too much waits is told so by one more
message.  To leave one out would be to tell half.  So a peer for which much waits, and
that has read nothing for a while, loses its connection (rules B1, N3), and begins anew.

Time decides, and not bytes alone: a node that comes back is sent at once what it has
missed, and that is any number of bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from zmqtransport.connections import ConnectionAccepted, ConnectionClosed


if TYPE_CHECKING:
    from collections.abc import Iterable

    from nameservice import Clock
    from zmqtransport.connections import ConnectionEvent, ConnectionId
    from zmqtransport.in_flight import BytesInFlight


__all__ = ["DeafPeers"]


@final
class DeafPeers:
    """
    Says who reads nothing; for one thread.

    Where the system does not tell how much is written, no peer is deaf: there the
    number of messages that ZeroMQ holds has to do.

    Args:
        in_flight: Counts all that is sent.
        clock: When it is.
        silence_ns: For how long a peer may read nothing.
    """

    def __init__(
        self, in_flight: BytesInFlight, clock: Clock, *, silence_ns: int
    ) -> None:
        self._in_flight = in_flight
        self._clock = clock
        self._silence_ns = silence_ns
        # How much a connection had written when it was last seen to write, and when.
        self._last_written: dict[ConnectionId, tuple[int, int]] = {}
        self._ended: set[ConnectionId] = set()

    def observe(self, events: Iterable[ConnectionEvent]) -> None:
        """Begin anew for connections that have opened, and forget those that closed."""
        for event in events:
            if isinstance(event, ConnectionAccepted | ConnectionClosed):
                self._last_written.pop(event.connection_id, None)
                self._ended.discard(event.connection_id)

    def is_deaf(self, connection: ConnectionId, size_bytes_max: int) -> bool:
        """
        Return whether more than that waits for a peer, and it reads nothing.

        Ask before each message that cannot be held back: nothing else is looked at.
        """
        flight = self._in_flight
        if (
            flight.of(connection) <= size_bytes_max
            or flight.look(connection) <= size_bytes_max
        ):
            self._last_written.pop(connection, None)
            return False
        now_ns = self._clock.now_ns()
        written_bytes = flight.written_of(connection)
        known = self._last_written.get(connection)
        if known is None or known[0] != written_bytes:
            self._last_written[connection] = (written_bytes, now_ns)
            return False
        return now_ns - known[1] >= self._silence_ns

    def end(self, connection: ConnectionId) -> None:
        """
        Note that a connection is ended.

        It lives on in ZeroMQ until what it brought is read.  ZeroMQ takes what it is
        handed for it meanwhile: hand it nothing, and do nothing that it has asked for.
        """
        self._ended.add(connection)

    def has_ended(self, connection: ConnectionId) -> bool:
        """Return whether that was done, and its end was not seen yet."""
        return connection in self._ended
