"""
What ZeroMQ holds of a connection's messages, in bytes.

ZeroMQ counts messages, not bytes: a thousand messages of 16 MB are within its limit.
So a sender of large ones counts what it hands over, and what the kernel has taken of
that (`zmqtransport.tcp_counters`): `HandedBytes` counts that for one connection,
`BytesInFlight` for many.  The kernel is asked only when it matters: it is two system
calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define

from zmqtransport.connections import ConnectionAccepted, ConnectionClosed
from zmqtransport.tcp_counters import tcp_progress


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zmqtransport.connections import ConnectionEvent, ConnectionId
    from zmqtransport.tcp_counters import TCPProgress


__all__ = ["BytesInFlight", "HandedBytes"]


@final
@define
class HandedBytes:
    """
    What one connection was handed and has not been seen to have written.

    Attributes:
        size_bytes: How much that is; add the size of what ZeroMQ takes.
        written_bytes: What the connection had written when it was last looked at.
    """

    size_bytes: int = 0
    written_bytes: int = 0

    def written(self, written_bytes: int | None) -> int:
        """
        Record how much the connection has written since it opened.

        Args:
            written_bytes: What the kernel says, which is no more than that; None if it
                can not tell: then ZeroMQ's own limit has to do, and all is taken for
                written.

        Returns:
            How much less is counted for it.
        """
        gone_bytes = self.size_bytes
        if written_bytes is not None:
            gone_bytes = min(gone_bytes, max(0, written_bytes - self.written_bytes))
            # A look may see less than the one before: that is not to be written again.
            self.written_bytes = max(self.written_bytes, written_bytes)
        self.size_bytes -= gone_bytes
        return gone_bytes


@final
class BytesInFlight:
    """
    Counts; for one thread.

    Count every message of a connection, or what is written seems more than it is.
    Where the system does not tell how much is written, all of it is.

    Args:
        progress: Says how far a connection has come.

    Attributes:
        total_bytes: Of all connections, as far as is known.
    """

    def __init__(
        self,
        progress: Callable[[ConnectionId], TCPProgress | None] = tcp_progress,
    ) -> None:
        self._progress = progress
        self._connections: dict[ConnectionId, HandedBytes] = {}
        self.total_bytes = 0

    def add(self, connection_id: ConnectionId, size_bytes: int) -> int:
        """Count a message that ZeroMQ has taken; return `of` the connection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            connection = self._connections[connection_id] = HandedBytes()
        connection.size_bytes += size_bytes
        self.total_bytes += size_bytes
        return connection.size_bytes

    def of(self, connection_id: ConnectionId) -> int:
        """Return what a connection has not written, as far as is known."""
        connection = self._connections.get(connection_id)
        return 0 if connection is None else connection.size_bytes

    def above(self, size_bytes: int) -> Sequence[ConnectionId]:
        """Return the connections that have not written more than that, if known."""
        return [
            connection_id
            for connection_id, connection in self._connections.items()
            if connection.size_bytes > size_bytes
        ]

    def written_of(self, connection_id: ConnectionId) -> int:
        """Return what a connection had written when it was last looked at."""
        connection = self._connections.get(connection_id)
        return 0 if connection is None else connection.written_bytes

    def look(self, connection_id: ConnectionId) -> int:
        """Ask the kernel, and return `of` the connection."""
        connection = self._connections.get(connection_id)
        if connection is None or not connection.size_bytes:
            return 0
        progress = self._progress(connection_id)
        self.total_bytes -= connection.written(
            None if progress is None else progress.written_bytes
        )
        return connection.size_bytes

    def look_at_all(self) -> int:
        """Ask the kernel of all connections, and return the total."""
        for connection_id in self._connections:
            self.look(connection_id)
        return self.total_bytes

    def observe(self, events: Iterable[ConnectionEvent]) -> None:
        """Begin anew for connections that have opened, and forget those that closed."""
        for event in events:
            if isinstance(event, ConnectionAccepted | ConnectionClosed):
                self.forget(event.connection_id)

    def forget(self, connection_id: ConnectionId) -> None:
        """Count no more for a connection: it is over."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self.total_bytes -= connection.size_bytes
