"""
`BytesInFlight`: what ZeroMQ holds of each connection's messages, in bytes.

ZeroMQ counts messages, not bytes: a thousand messages of 16 MB are within its limit.
So whoever sends large ones counts what it hands over, and what the kernel has taken of
that (`zmqtransport.tcp_counters`).  The kernel is asked only when it matters: it is two
system calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define

from zmqtransport.tcp_counters import tcp_progress


if TYPE_CHECKING:
    from collections.abc import Callable

    from zmqtransport.connections import ConnectionId
    from zmqtransport.tcp_counters import TCPProgress


__all__ = ["BytesInFlight"]


@final
@define
class _Connection:
    """What one connection has been handed, and what it had written when looked at."""

    handed_bytes: int = 0
    written_bytes: int = 0


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
        self._connections: dict[ConnectionId, _Connection] = {}
        self.total_bytes = 0

    def add(self, connection_id: ConnectionId, size_bytes: int) -> int:
        """Count a message that ZeroMQ has taken; return `of` the connection."""
        connection = self._connections.get(connection_id)
        if connection is None:
            connection = self._connections[connection_id] = _Connection()
        connection.handed_bytes += size_bytes
        self.total_bytes += size_bytes
        return connection.handed_bytes

    def of(self, connection_id: ConnectionId) -> int:
        """Return what a connection has not written, as far as is known."""
        connection = self._connections.get(connection_id)
        return 0 if connection is None else connection.handed_bytes

    def look(self, connection_id: ConnectionId) -> int:
        """Ask the kernel, and return `of` the connection."""
        connection = self._connections.get(connection_id)
        if connection is None or not connection.handed_bytes:
            return 0
        progress = self._progress(connection_id)
        gone_bytes = connection.handed_bytes
        if progress is not None:
            newly_bytes = max(0, progress.written_bytes - connection.written_bytes)
            connection.written_bytes = progress.written_bytes
            gone_bytes = min(gone_bytes, newly_bytes)
        connection.handed_bytes -= gone_bytes
        self.total_bytes -= gone_bytes
        return connection.handed_bytes

    def look_at_all(self) -> int:
        """Ask the kernel of all connections, and return the total."""
        for connection_id in self._connections:
            self.look(connection_id)
        return self.total_bytes

    def forget(self, connection_id: ConnectionId) -> None:
        """Count no more for a connection: it is over."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self.total_bytes -= connection.handed_bytes
