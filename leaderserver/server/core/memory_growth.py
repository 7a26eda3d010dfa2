"""
`MemoryGrowth`: whether a server's memory grows for a reason that must be looked for.

Every connection takes memory for itself, and a thousand come within a moment when
clients return after a restart.  To look at all connections for every few of them that
open would take more of the processor than to serve them: it was half of what a server
did while 5,000 listeners came back (measured).  So what opened connections are reckoned
at is no reason.

Only those above the highest number since the last look count.  What a closed connection
had is used by the next one, so clients that come and go earn no room in which something
else could grow unseen.
"""

from __future__ import annotations

from typing import Final, final

from leaderserver.server.core.memory_plan import CONNECTION_COST_BYTES


__all__ = ["MemoryGrowth"]

_GROWTH_BYTES: Final = 2 * 1024 * 1024


@final
class MemoryGrowth:
    """
    What the process took when connections were looked at last, or least since.

    Args:
        resident_bytes: What it takes now.
        connection_count: How many connections there are.
    """

    def __init__(self, resident_bytes: int, connection_count: int) -> None:
        self._calm_bytes = resident_bytes
        self._connection_count = connection_count

    def is_unexplained(self, resident_bytes: int, connection_count: int) -> bool:
        """Return whether connections must be looked at: more was taken than they do."""
        self._calm_bytes = min(self._calm_bytes, resident_bytes)
        opened_count = max(0, connection_count - self._connection_count)
        explained_bytes = _GROWTH_BYTES + opened_count * CONNECTION_COST_BYTES
        return resident_bytes > self._calm_bytes + explained_bytes

    def looked(self, resident_bytes: int, connection_count: int) -> None:
        """Begin anew: connections were looked at, and took that."""
        self._calm_bytes = resident_bytes
        self._connection_count = connection_count
