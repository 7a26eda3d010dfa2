"""
`Inflow`: what came in over each connection, and how much of it still waits; pure.

Theory of operation.  libzmq reads from a connection before the server asks for it, and
limits that by messages only: their bytes, and the frames of a message that never ends,
have no limit.  The kernel knows how much was read (`zmqtransport.tcp_progress`), the
server how much it was given; the difference waits inside libzmq.  Here the two are
compared, and the connections named that must go: those with too much, and, when all
together have too much, the ones with the most.

The two are known of different moments: while the kernel is asked, more comes, and is
given to the server on another thread.  So what was given is noted before, and looked at
again after.  An old connection has received what was given before, at least; and what
was given since the kernel was asked can only make less seem to wait.

What ZMTP itself sends (handshake, pings) is read and never given to the server, so each
connection is allowed a little more, and more with its age.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import define, frozen

from nameservice.clock import NS_PER_SECOND
from zmqtransport import framing


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zmqtransport.connections import ConnectionId
    from zmqtransport.tcp_counters import TCPProgress


__all__ = ["GivenBefore", "Inflow"]

_ALLOWANCE_BYTES: Final = 64 * 1024
_ALLOWANCE_BYTES_PER_SECOND: Final = 1_000


@define
class _Given:
    """
    What the server was given of one connection.

    Attributes:
        opened_ns: Since when.
        size_bytes: How much, as it was on the connection, at most.
        bytes_max: What may wait of it, apart from all others; None for a stranger.
    """

    opened_ns: int
    size_bytes: int = 0
    bytes_max: int | None = None


@final
@frozen
class GivenBefore:
    """
    What the server had been given of one connection, before the kernel was asked.

    Attributes:
        of: The connection that had the number then.
        size_bytes: How much that was.
    """

    of: _Given
    size_bytes: int


@final
class Inflow:
    """
    What the server was given of each connection.

    Several threads may use it at once, as long as each connection has one that calls
    `opened`, `given` and `closed`.

    Args:
        bytes_per_connection_max: What may wait of one connection.
        bytes_max: What may wait of all strangers.
        frame_overhead_bytes: What a frame takes beside its content, at least.

    Attributes:
        given_count: How many messages the server was given, of any connection.
        waiting_bytes: How much of all waited when `excess` was called last.
    """

    def __init__(
        self,
        *,
        bytes_per_connection_max: int,
        bytes_max: int,
        frame_overhead_bytes: int,
    ) -> None:
        self.limit(
            bytes_per_connection_max=bytes_per_connection_max, bytes_max=bytes_max
        )
        self._frame_overhead_bytes = frame_overhead_bytes
        self.given_count = 0
        self.waiting_bytes = 0
        self._given: dict[ConnectionId, _Given] = {}

    @classmethod
    def of_frames(cls, frame_size_bytes_max: int, *, is_secured: bool) -> Inflow:
        """
        Return one for a port that takes frames of up to *frame_size_bytes_max*.

        Of a connection four such frames may wait, which is a writer's window of chunks,
        or 64 MiB; of all strangers 256 MiB, or eight frames.
        """
        per_connection = max(64 << 20, 4 * frame_size_bytes_max)
        return cls(
            bytes_per_connection_max=per_connection,
            bytes_max=max(256 << 20, 2 * per_connection),
            frame_overhead_bytes=framing.frame_overhead_bytes(is_secured=is_secured),
        )

    @property
    def connections(self) -> Sequence[ConnectionId]:
        """Return the connections that are open."""
        return tuple(self._given)

    @property
    def connection_count(self) -> int:
        """Return how many connections are open."""
        return len(self._given)

    @property
    def bytes_max(self) -> int:
        """Return what may wait of all strangers."""
        return self._bytes_max

    def limit(self, *, bytes_per_connection_max: int, bytes_max: int) -> None:
        """Set how much may wait from now on; see the class."""
        self._bytes_per_connection_max = bytes_per_connection_max
        self._bytes_max = bytes_max

    def opened(self, connection: ConnectionId, *, now_ns: int) -> None:
        """Record a new connection; what had that number before is over."""
        self._given[connection] = _Given(now_ns)

    def admit(self, connection: ConnectionId, bytes_max: int | None = None) -> None:
        """
        Have a connection be no stranger from now on: it has a limit of its own.

        Args:
            connection: The connection.
            bytes_max: What may wait of it; None for as much as of a stranger.  Of all
                who are admitted together there is no limit.
        """
        given = self._given.get(connection)
        if given is not None:
            given.bytes_max = (
                self._bytes_per_connection_max if bytes_max is None else bytes_max
            )

    def dismiss(self, connection: ConnectionId) -> None:
        """Have a connection be a stranger again."""
        given = self._given.get(connection)
        if given is not None:
            given.bytes_max = None

    def may_wait(self, connection: ConnectionId, received_bytes: int) -> bool:
        """
        Return whether anything worth a closer look may wait of a connection.

        Args:
            connection: The connection.
            received_bytes: What the kernel has received of it, read or not.
        """
        given = self._given.get(connection)
        if given is None:
            return True
        # Less than was given: the number is another connection's, and new here.
        return not 0 <= received_bytes - given.size_bytes <= _ALLOWANCE_BYTES

    def closed(self, connection: ConnectionId) -> None:
        """Forget a connection."""
        self._given.pop(connection, None)

    def given(self, connection: ConnectionId, frame_sizes_bytes: Iterable[int]) -> None:
        """Record one message that the server was given."""
        self.given_count += 1
        given = self._given.get(connection)
        if given is not None:
            for size_bytes in frame_sizes_bytes:
                size_bytes += self._frame_overhead_bytes  # noqa: PLW2901
                # A frame's length takes one byte up to 255, and eight above.
                given.size_bytes += size_bytes if size_bytes <= 257 else size_bytes + 7

    def before(self) -> Mapping[ConnectionId, GivenBefore]:
        """Return what was given of each connection, for `excess`."""
        return {
            connection: GivenBefore(given, given.size_bytes)
            for connection, given in self._given.copy().items()
        }

    def excess(
        self,
        progress: Mapping[ConnectionId, TCPProgress],
        before: Mapping[ConnectionId, GivenBefore],
        *,
        now_ns: int,
        is_urgent: bool = False,
    ) -> Sequence[ConnectionId]:
        """
        Return the connections that must be ended.

        Args:
            progress: How far each connection has come since it opened.
            before: What `before` has returned before that was asked.
            now_ns: When it is.
            is_urgent: Whether memory is all but used up: then each must go of which
                more waits than is allowed to any.
        """
        waiting = {
            connection: size_bytes
            for connection, known in progress.items()
            if (
                size_bytes := self._waiting(
                    connection, known, before.get(connection), now_ns=now_ns
                )
            )
            > 0
        }
        self.waiting_bytes = sum(waiting.values())
        admitted = {
            connection: given.bytes_max
            for connection in waiting
            if (given := self._given.get(connection)) is not None
            and given.bytes_max is not None
        }
        ended = [
            connection
            for connection, bytes_max in admitted.items()
            if waiting.pop(connection) > bytes_max
        ]
        total_bytes = sum(waiting.values())
        # Ending a connection frees nothing before the server has handled what came
        # over it, so room is made for a while.
        goal_bytes = (
            total_bytes if total_bytes <= self._bytes_max else self._bytes_max // 2
        )
        if is_urgent:
            goal_bytes = 0
        for connection in sorted(waiting, key=lambda c: (-waiting[c], c)):
            size_bytes = waiting[connection]
            if total_bytes <= goal_bytes and (
                size_bytes <= self._bytes_per_connection_max
            ):
                break
            ended.append(connection)
            total_bytes -= size_bytes
        return ended

    def _waiting(
        self,
        connection: ConnectionId,
        progress: TCPProgress,
        before: GivenBefore | None,
        *,
        now_ns: int,
    ) -> int:
        read = progress.read_bytes
        given = self._given.get(connection)
        if given is not (None if before is None else before.of):
            return 0  # it came or went meanwhile: of which one that was is not known
        if (
            given is None
            or before is None
            or progress.received_bytes < before.size_bytes
        ):
            # A new connection that the server has not heard of yet, under an old
            # number perhaps: the server was given none of it.
            return read - _ALLOWANCE_BYTES
        age_seconds = max(0, now_ns - given.opened_ns) // NS_PER_SECOND
        allowance = _ALLOWANCE_BYTES + age_seconds * _ALLOWANCE_BYTES_PER_SECOND
        return read - given.size_bytes - allowance
