"""
`ConnectionLimiter`: how many connections a server's socket takes, and which go.

Unbinding a socket while there are too many is no way: libzmq ends every connection that
the listener accepted, too, and without an event (measured); a `ConnectionMonitor` tells
of each of them as closed, once the listener is.  So a `ConnectionLimiter` shuts down,
by its descriptor, each connection that is accepted above the limit; the peer sees it
close in its handshake, and tries again later.
"""

from __future__ import annotations

import errno
import os
import resource
import socket as stdlib_socket
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from nameservice import get_logger
from zmqtransport.connections import ConnectionAccepted, ConnectionClosed


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nameservice.log import Logger
    from zmqtransport.connections import ConnectionEvent, ConnectionId


__all__ = [
    "ConnectionLimiter",
    "connection_count_possible",
    "connection_limit",
    "open_files_bound",
]

_DESCRIPTORS_KEPT_COUNT: Final = 128


def connection_count_possible() -> int:
    """
    Return for how many connections this process may have file descriptors.

    Keep the limits of all servers of a process together at or below it: a process
    without free descriptors cannot open its files, and libzmq spins until there are
    some.
    """
    descriptor_count_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, descriptor_count_max - _DESCRIPTORS_KEPT_COUNT)


def open_files_bound(*, fifth_count: int) -> tuple[int, str]:
    """
    Return as a bound of `connection_limit` what there are file descriptors for.

    Args:
        fifth_count: How many fifths of `connection_count_possible` the connections may
            take: those that have not spoken yet, and what the server opens itself, come
            on top.
    """
    possible = max(1, connection_count_possible() * fifth_count // 5)
    return possible, "the system's limit of open files: raise ulimit -n"


def connection_limit(configured: int, *bounds: tuple[int, str], log: Logger) -> int:
    """
    Return how many connections a port takes, and log it if they are too few.

    Args:
        configured: How many it should take.
        bounds: How many it can take, and why not more.
        log: Of the server.
    """
    possible, reason = min(bounds)
    if possible >= configured:
        return configured
    log.info(
        "connections.limited",
        connections_max=possible,
        connections_max_configured=configured,
        reason=reason,
    )
    return possible


@final
class ConnectionLimiter:
    """
    Keeps the connections of a server's socket at or below a limit, and can end one.

    The newest goes: those who are connected are not disturbed by those who come.  The
    limit holds after each `observe`; between two of them more may be open for a moment,
    at most a thousand (`Listener` holds the rest back).  Not thread-safe.

    Every peer that connects could fill all places and say nothing.  So a server may
    tell who `spoke`, under a key that it admits; then only those hold a place for good.
    Those that have not spoken yet have a quarter of the limit on top, and of them the
    oldest goes: a flood of them drives out itself, and who speaks at once has spoken
    before its turn comes.

    Attributes:
        connections_max: The limit; may be replaced at any time, and ends nothing.
        refused_count: How many connections were shut down.
    """

    def __init__(
        self, connections_max: int, *, port: int, is_told_who_spoke: bool = False
    ) -> None:
        """
        Start with no connection.

        Args:
            connections_max: At least 1.
            port: The port that the socket is bound to.
            is_told_who_spoke: Whether `spoke` will be called.
        """
        assert connections_max >= 1
        self._is_told_who_spoke = is_told_who_spoke
        self._silent: dict[ConnectionId, None] = {}  # the oldest first
        self.connections_max = connections_max
        self.refused_count = 0
        self._port = port
        self._open: set[ConnectionId] = set()
        self._is_full = False
        self._log = get_logger(component="connection-limiter", port=port)

    @property
    def connection_count(self) -> int:
        """Return how many connections are open, those just refused not counted."""
        return len(self._open) + len(self._silent)

    @property
    def silent_count(self) -> int:
        """Return how many of them have not spoken yet."""
        return len(self._silent)

    def spoke(self, connection_id: ConnectionId) -> None:
        """Record that somebody who is admitted has said something."""
        if connection_id not in self._silent:
            return
        del self._silent[connection_id]
        if len(self._open) < self.connections_max:
            self._open.add(connection_id)
        else:
            self._refuse({connection_id: None})

    def observe(self, events: Iterable[ConnectionEvent]) -> None:
        """
        Count *events*, then shut down what is too much.

        Give it all the events that wait: a connection that is over already should not
        be shut down, because its descriptor may belong to the next one.
        """
        excess: dict[ConnectionId, None] = {}
        for event in events:
            match event:
                case ConnectionAccepted(connection_id=connection_id):
                    excess.pop(connection_id, None)
                    self._open.discard(connection_id)
                    self._silent.pop(connection_id, None)
                    if len(self._open) >= self.connections_max:
                        excess[connection_id] = None
                    elif self._is_told_who_spoke:
                        self._silent[connection_id] = None
                        if self._is_too_silent():
                            oldest = next(iter(self._silent))
                            del self._silent[oldest]
                            excess[oldest] = None
                    else:
                        self._open.add(connection_id)
                case ConnectionClosed(connection_id=connection_id):
                    excess.pop(connection_id, None)
                    self._open.discard(connection_id)
                    self._silent.pop(connection_id, None)
                case _:
                    pass
        self._refuse(excess)

    def _is_too_silent(self) -> bool:
        room = self.connections_max - len(self._open)
        return len(self._silent) > max(room, self.connections_max // 4, 1)

    def _refuse(self, excess: Collection[ConnectionId]) -> None:
        for connection_id in excess:
            self.refused_count += 1
            self.disconnect(connection_id)
        self._tell(len(excess))

    def _tell(self, excess_count: int) -> None:
        """Log when the limit begins and ceases to bite, not each refusal."""
        if excess_count and not self._is_full:
            self._is_full = True
            self._log.warning(
                "connections.refused", connections_max=self.connections_max
            )
        elif self._is_full and len(self._open) < self.connections_max:
            self._is_full = False
            self._log.info(
                "connections.admitted_again", refused_count=self.refused_count
            )

    def disconnect(self, connection_id: ConnectionId) -> None:
        """
        End a connection from outside libzmq, which sees its peer gone and closes it.

        `ConnectionClosed` follows.  The descriptor is libzmq's: if it was closed a
        moment ago it may be another connection of the same port by now, whose client
        then connects once more.  It can be nothing else: the port is checked on a
        duplicate that stays the same.  Of a file none is made: to close it would take
        away all locks that this process has on that file.
        """
        try:
            if not stat.S_ISSOCK(os.fstat(connection_id).st_mode):
                return
            copy = os.dup(connection_id)
        except OSError as error:
            if error.errno == errno.EMFILE:
                self._shut_down_in_place(connection_id)
            return  # else closed meanwhile
        try:
            duplicate = stdlib_socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # the number belongs to something else by now
            return
        with duplicate:
            self._shut_down(duplicate)

    def _shut_down_in_place(self, connection_id: ConnectionId) -> None:
        """End a connection where no descriptor is left for a duplicate."""
        try:
            view = stdlib_socket.socket(fileno=connection_id)
        except OSError:
            return  # closed meanwhile
        try:
            self._shut_down(view)
        finally:
            view.detach()

    def _shut_down(self, connection: stdlib_socket.socket) -> None:
        # It may be closed by the peer meanwhile, or of a family without ports.
        with suppress(OSError, IndexError):
            if connection.getsockname()[1] == self._port:
                connection.shutdown(stdlib_socket.SHUT_RDWR)
