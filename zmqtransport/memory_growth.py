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


__all__ = ["CONNECTION_COST_BYTES", "MemoryGrowth"]

CONNECTION_COST_BYTES: Final = 44 * 1024
"""
What a connection takes for itself: two queues of 256 slots each, for the most part.

Measured (Linux x86-64, Python 3.11, libzmq 4.3.5) as the growth of the resident set of
``lodestar server``: 37 KiB, and rounded up.
"""


@final
class MemoryGrowth:
    """
    What the process took when connections were looked at last, or least since.

    Args:
        taken_bytes: What it takes now.
        connection_count: How many connections there are.
    """

    def __init__(self, taken_bytes: int, connection_count: int) -> None:
        self._calm_bytes = taken_bytes
        self._connection_count = connection_count

    def is_unexplained(
        self, taken_bytes: int, connection_count: int, *, growth_bytes_max: int
    ) -> bool:
        """
        Return whether connections must be looked at: more was taken than they do.

        Args:
            taken_bytes: What the process takes now.
            connection_count: How many connections there are.
            growth_bytes_max: How much more is no reason yet.
        """
        self._calm_bytes = min(self._calm_bytes, taken_bytes)
        opened_count = max(0, connection_count - self._connection_count)
        explained_bytes = growth_bytes_max + opened_count * CONNECTION_COST_BYTES
        return taken_bytes > self._calm_bytes + explained_bytes

    def looked(self, taken_bytes: int, connection_count: int) -> None:
        """Begin anew: connections were looked at, and took that."""
        self._calm_bytes = taken_bytes
        self._connection_count = connection_count
