"""
`ReplyQueues`: what waits for each client to read it, counted in bytes; pure.

Theory of operation.  ZeroMQ counts messages, not bytes: a thousand replies of 1 MB are
within its limit.  So what is to go out waits here, and ZeroMQ is handed no more than a
*window* of bytes that it has not yet written to the connection.  How much it has
written, the shell learns from the kernel (`zmqtransport.tcp_counters`) and tells here.

Each client has two lanes.  What is urgent (acknowledgements, grants, revocations) goes
first and stays in order; what is *bulk* (values and lists that somebody asked for) goes
after it.  A client that does not read has a limit in bytes; what is bulk and has no
room is refused, and the client told so.  If all together are too many, the one with the
most loses its connection: a flood never costs those with few.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from attrs import Factory, define, field, frozen, validators

from zmqtransport.in_flight import HandedBytes


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["QueueLimits", "ReplyQueues"]


@final
@frozen(kw_only=True)
class QueueLimits:
    """
    How much may wait.

    Attributes:
        bytes_per_peer_max: Of one client; one message, however large, always may.
        bytes_max: Of all clients.
        count_per_peer_max: Messages of one client.
        window_bytes: What ZeroMQ may have of one client's, beyond one message.
        overhead_bytes: What the transport adds to each message, at least: more than it
            adds would never be seen to be written.
    """

    bytes_per_peer_max: int = field(validator=validators.ge(1))
    bytes_max: int = field(validator=validators.ge(1))
    count_per_peer_max: int = field(validator=validators.ge(1))
    window_bytes: int = field(default=256 * 1024, validator=validators.ge(1))
    overhead_bytes: int = field(default=0, validator=validators.ge(0))


@define(kw_only=True)
class _Peer:
    """
    One client.

    Attributes:
        urgent: Goes first.
        bulk: Goes when nothing is urgent.
        queued_bytes: Both together.
        handed: What ZeroMQ has, and has not been seen to have written.
    """

    urgent: deque[bytes] = Factory(deque)
    bulk: deque[bytes] = Factory(deque)
    queued_bytes: int = 0
    handed: HandedBytes = Factory(HandedBytes)

    @property
    def count(self) -> int:
        return len(self.urgent) + len(self.bulk)

    @property
    def held_bytes(self) -> int:
        return self.queued_bytes + self.handed.size_bytes


@final
class ReplyQueues:
    """
    The queues of all clients, which are known by their routing ids.

    Use: `hand_at_once`, or `admits` and then `add`; then `take` until it returns None,
    and `put_back` what could not be sent.  While `take` returns None though something
    waits, the window is full: look at the connection, tell `written`, and take again.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._peers: dict[bytes, _Peer] = {}
        self._waiting: dict[bytes, None] = {}
        self._bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Return how much waits, and is with ZeroMQ as far as is known."""
        return self._bytes

    @property
    def waiting(self) -> Sequence[bytes]:
        """Return the clients for which something waits here, the longest first."""
        return tuple(self._waiting)

    def is_waiting(self, peer: bytes) -> bool:
        """Return whether something waits here for *peer*."""
        return peer in self._waiting

    @property
    def is_over_limit(self) -> bool:
        """Return whether all together have more than they may."""
        return self._bytes > self.limits.bytes_max

    def admits(self, peer: bytes, size_bytes: int, *, is_bulk: bool) -> bool:
        """
        Return whether a message of that size may be added.

        What is urgent is small, and refused only by its count.
        """
        state = self._peers.get(peer)
        if state is None:
            return True
        if state.count >= self.limits.count_per_peer_max:
            return False
        return (
            not is_bulk
            or state.held_bytes == 0
            or state.held_bytes + size_bytes <= self.limits.bytes_per_peer_max
        )

    def hand_at_once(self, peer: bytes, size_bytes: int) -> bool:
        """
        Count a message of that size as handed to ZeroMQ, if it may be; return whether.

        It may if nothing waits before it, and the window has room.
        """
        state = self._peers.get(peer)
        if state is None:
            state = self._peers[peer] = _Peer()
        elif state.urgent or state.bulk:
            return False
        limits, handed = self.limits, state.handed
        size_bytes += limits.overhead_bytes
        if handed.size_bytes and handed.size_bytes + size_bytes > min(
            limits.window_bytes, limits.bytes_per_peer_max
        ):
            return False
        handed.size_bytes += size_bytes
        self._bytes += size_bytes
        return True

    def add(self, peer: bytes, payload: bytes, *, is_bulk: bool) -> None:
        """Queue *payload* for *peer*."""
        state = self._peers.get(peer)
        if state is None:
            state = self._peers[peer] = _Peer()
        (state.bulk if is_bulk else state.urgent).append(payload)
        size_bytes = len(payload) + self.limits.overhead_bytes
        state.queued_bytes += size_bytes
        self._bytes += size_bytes
        self._waiting[peer] = None

    def take(self, peer: bytes) -> bytes | None:
        """Return the next message to hand to ZeroMQ, or None if none may go now."""
        state = self._peers.get(peer)
        if state is None:
            return None
        lane = state.urgent or state.bulk
        if not lane:
            return None
        size_bytes = len(lane[0]) + self.limits.overhead_bytes
        handed = state.handed
        if handed.size_bytes and (
            handed.size_bytes + size_bytes > self.limits.window_bytes
        ):
            return None
        payload = lane.popleft()
        state.queued_bytes -= size_bytes
        handed.size_bytes += size_bytes
        if not state.count:
            self._waiting.pop(peer, None)
        return payload

    def put_back(self, peer: bytes, payload: bytes) -> None:
        """Make *payload*, which was taken and could not be sent, go first again."""
        state = self._peers[peer]
        state.urgent.appendleft(payload)
        size_bytes = len(payload) + self.limits.overhead_bytes
        state.queued_bytes += size_bytes
        state.handed.size_bytes -= size_bytes
        self._waiting[peer] = None

    def written(self, peer: bytes, written_bytes: int | None) -> None:
        """Tell `HandedBytes.written` of the connection of *peer*."""
        state = self._peers.get(peer)
        if state is not None:
            self._bytes -= state.handed.written(written_bytes)

    def holders(self) -> Sequence[bytes]:
        """Return the clients for which anything waits, here or with ZeroMQ."""
        return tuple(peer for peer, state in self._peers.items() if state.held_bytes)

    def greediest(self) -> bytes | None:
        """Return the client that has the most, or None if there is none."""
        return max(
            self._peers,
            key=lambda peer: self._peers[peer].held_bytes,
            default=None,
        )

    def forget(self, peer: bytes) -> None:
        """Drop what waits for *peer*: its connection is over."""
        state = self._peers.pop(peer, None)
        self._waiting.pop(peer, None)
        if state is not None:
            self._bytes -= state.held_bytes
