"""
`MemoryPlan`: how the memory of a LeaderServer is divided; pure.

Theory of operation.  A limit that is enforced when it is reached is enforced on the
wrong one: on who comes next.  So the limit is divided beforehand.  Each kind of thing
that a client can make a server keep has a share of its own, and is refused when that
share is used up; one kind never takes the room of another.

What a thing costs was measured (Linux x86-64, Python 3.11, libzmq 4.3.5) as the growth
of the resident set of ``lodestar server`` per thing, and rounded up: a session 2.7 KiB,
a contender 0.5 KiB, a subscription 0.23 KiB, a watch of a leader store 1.2 KiB, a value
in such a store 0.17 KiB beside its bytes.  For a connection see
`zmqtransport.memory_growth`.
"""

from __future__ import annotations

from typing import Final, final

from attrs import frozen

from zmqtransport.memory_growth import CONNECTION_COST_BYTES


__all__ = [
    "COMPONENT_COST_BYTES",
    "CONTENDER_COST_BYTES",
    "MEMORY_LIMIT_BYTES_MIN",
    "SESSION_COST_BYTES",
    "SUBSCRIPTION_COST_BYTES",
    "VALUE_COST_BYTES",
    "WATCH_COST_BYTES",
    "MemoryPlan",
    "name_cost_bytes",
]

_MIB: Final = 1024 * 1024

MEMORY_LIMIT_BYTES_MIN: Final = 96 * _MIB
"""Less than this leaves too little beside the interpreter."""

_BASE_BYTES: Final = 64 * _MIB
"""What the interpreter and the libraries take, 46 MiB when idle, and what varies."""

SESSION_COST_BYTES: Final = 4 * 1024
COMPONENT_COST_BYTES: Final = 1024
CONTENDER_COST_BYTES: Final = 768
SUBSCRIPTION_COST_BYTES: Final = 320
WATCH_COST_BYTES: Final = 1_280
VALUE_COST_BYTES: Final = 256

# Parts of a hundred of what is left beside the base; they make ninety-six.
_CONNECTIONS_PERCENT: Final = 42
_STATE_PERCENT: Final = 14
_TOPICS_PERCENT: Final = 8
_REPLIES_PERCENT: Final = 10
_REQUESTS_PERCENT: Final = 10
_STORE_PERCENT: Final = 12


def name_cost_bytes(name: str) -> int:
    """Return what keeping *name* costs at most: four bytes for each character."""
    return 64 + 4 * len(name)


@final
@frozen(kw_only=True)
class MemoryPlan:
    """
    The shares of one limit.

    Attributes:
        limit_bytes: The limit of the whole process.
    """

    limit_bytes: int

    def _share(self, percent: int) -> int:
        return (self.limit_bytes - _BASE_BYTES) * percent // 100

    @property
    def connections_per_port_max(self) -> int:
        """Return how many connections each of the two ports may have."""
        return self._share(_CONNECTIONS_PERCENT) // CONNECTION_COST_BYTES // 2

    @property
    def state_bytes_max(self) -> int:
        """Return how much sessions and what they have may take, without values."""
        return self._share(_STATE_PERCENT)

    @property
    def topics_bytes_max(self) -> int:
        """Return how much the topics of the publishing port may take."""
        return self._share(_TOPICS_PERCENT)

    @property
    def replies_bytes_max(self) -> int:
        """Return how many bytes may wait for clients to read them, in all."""
        return self._share(_REPLIES_PERCENT)

    @property
    def replies_per_peer_bytes_max(self) -> int:
        """Return how many bytes may wait for one client to read them."""
        return self.replies_bytes_max // 4

    @property
    def requests_bytes_max(self) -> int:
        """Return how many bytes of requests may wait for the server, in all."""
        return self._share(_REQUESTS_PERCENT)

    @property
    def requests_per_connection_bytes_max(self) -> int:
        """Return how many bytes of requests of one connection may wait."""
        return self.requests_bytes_max // 2

    @property
    def memory_store_bytes_max(self) -> int:
        """
        Return how much leader stores may take that are kept in memory.

        With a data directory these are the values that were read from it.
        """
        return self._share(_STORE_PERCENT)
