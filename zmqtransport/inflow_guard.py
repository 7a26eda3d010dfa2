"""
`InflowGuard`: a thread that ends connections of which too much waits (rule N3).

It has a thread of its own, because what it guards against is worst while the server's
thread does nothing: libzmq's thread goes on reading.  It looks at the process's memory
a hundred times a second, or less often, down to ten times, while memory does not grow
and libzmq cannot fill the room that is left meanwhile; and at the connections only when
memory has grown by more than new connections take (`MemoryGrowth`); then it looks more
often for a while.  What must go, `Inflow` says.

What counts as growth, and how often it looks then, goes by how much may wait: a limit
of 19 MiB is a few milliseconds away, and who may have 256 has data of its own that come
and go.  Files that are mapped, such as a store of LMDB's, are not counted.

It also has the C library return what was freed, where `FreedMemory` says so, once
connections were ended, and when memory has not grown for a second after much waited.
"""

from __future__ import annotations

import os
import socket as stdlib_socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from nameservice import NS_PER_SECOND, get_logger
from nameservice.allocation import return_freed
from nameservice.interruptible import InterruptibleEvent
from zmqtransport import ConnectionId, tcp_progress
from zmqtransport.freed_memory import FreedMemory
from zmqtransport.memory_growth import MemoryGrowth
from zmqtransport.tcp_counters import tcp_received_bytes


if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nameservice import Clock
    from zmqtransport.inflow import Inflow


__all__ = ["InflowGuard"]

_INTERVAL_SECONDS: Final = 0.01
_BYTES_PER_SECOND: Final = 16 << 30
"""Divides what may wait: then it is looked at ten times before that has come."""

_QUIET_SECONDS_MAX: Final = 0.1
_QUIET_BYTES_PER_SECOND: Final = 4 << 30
"""Divides what there is room for while little comes; libzmq took 1.8 GB/s at most."""
_QUIET_PART: Final = 64

_GROWTH_PART: Final = 8
_PAUSE_FACTOR: Final = 4
"""A look at thousands of connections takes a while, and the server waits for it."""
_GROWING_NS: Final = NS_PER_SECOND
_STALL_NS: Final = NS_PER_SECOND // 10
_FREED_NS: Final = NS_PER_SECOND // 10
_URGENT_PERCENT: Final = 85
_RESIDENT: Final = "/proc/self/statm"
_RESIDENT_SIZE_MAX: Final = 256
_DESCRIPTORS: Final = Path("/proc/self/fd")


@final
class InflowGuard:
    """
    Watches what comes in over the ports of a server.

    Args:
        inflow: What the server was given.
        ports: The ports that it is bound to.
        memory_limit_bytes: What the process may take; None where the process does
            other things, too, whose memory says nothing of connections.
        clock: When it is.
        component: Whose they are, for the log.
        disconnect: Ends a connection, from any thread.

    Attributes:
        ended_count: How many connections it has ended.
    """

    def __init__(
        self,
        inflow: Inflow,
        *,
        ports: Collection[int],
        memory_limit_bytes: int | None,
        clock: Clock,
        component: str,
        disconnect: Callable[[ConnectionId], None],
    ) -> None:
        self.ended_count = 0
        self._ended_ns: int | None = None
        self._look_due_ns = 0
        self._given_count = 0
        self._given_ns = 0
        self._has_much_waited = False
        self._inflow = inflow
        self._ports = frozenset(ports)
        self.limit(memory_limit_bytes)
        self._clock = clock
        self._disconnect = disconnect
        self._page_size_bytes = os.sysconf("SC_PAGE_SIZE")
        self._resident: int | None = None
        self._freed = FreedMemory()
        self._has_ended = InterruptibleEvent()
        self._log = get_logger(component=component)
        self._thread = threading.Thread(
            target=self._run, name=f"{component}-inflow", daemon=True
        )

    def limit(self, memory_limit_bytes: int | None) -> None:
        """Set how much the process may take from now on; see the class."""
        self._limit_bytes = memory_limit_bytes

    def start(self) -> None:
        """Begin to watch; where the system does not tell, there is nothing to do."""
        try:
            # Kept open: what it guards against may take the last descriptor.
            self._resident = os.open(_RESIDENT, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # it is not Linux
        except OSError as error:
            self._log.warning("inflow.unwatched", error=str(error))
            return
        self._thread.start()

    def close(self) -> None:
        """Watch no more.  Idempotent."""
        self._has_ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._resident is not None:
            os.close(self._resident)
            self._resident = None

    def _run(self) -> None:
        resident_bytes, own_bytes = self._taken_bytes()
        growth = MemoryGrowth(own_bytes, self._inflow.connection_count)
        grown_ns: int | None = None
        is_quiet = True
        calm: tuple[object, ...] | None = None
        interval_seconds = self._interval_seconds(is_quiet=True, has_grown=False)
        looked_ns = self._clock.now_ns()
        while not self._has_ended.wait(interval_seconds):
            now_ns = self._clock.now_ns()
            figures = self._figures()
            if figures == calm:
                # An idle server: all that follows would say what it said last.
                looked_ns = now_ns
                continue
            before_bytes = own_bytes
            resident_bytes, own_bytes = self._return_freed(*self._taken_bytes())
            is_quiet = own_bytes - before_bytes <= self._inflow.bytes_max // _QUIET_PART
            connection_count = self._inflow.connection_count
            is_urgent = self._is_above(_URGENT_PERCENT, resident_bytes)
            if self._given_count != self._inflow.given_count:
                # It was given that since the last look, and perhaps right after it.
                self._given_count, self._given_ns = self._inflow.given_count, looked_ns
            looked_ns = now_ns
            must_look = is_urgent or growth.is_unexplained(
                own_bytes,
                connection_count,
                growth_bytes_max=self._inflow.bytes_max // _GROWTH_PART,
            )
            if is_urgent or (must_look and now_ns >= self._look_due_ns):
                self._look(is_urgent=is_urgent)
                grown_ns = now_ns
                growth.looked(own_bytes, connection_count)
                took_ns = self._clock.now_ns() - now_ns
                self._look_due_ns = now_ns + took_ns * _PAUSE_FACTOR
            elif grown_ns is not None and now_ns - grown_ns >= _GROWING_NS:
                grown_ns = None
                if self._has_much_waited:  # and may have gone by itself
                    self._has_much_waited = False
                    return_freed()
            self._return_of_ended(now_ns)
            is_calm = is_quiet and not must_look and grown_ns is None
            if not is_calm or self._ended_ns is not None or figures != self._figures():
                calm = None  # also where memory was returned since the look
            else:
                calm = figures
            interval_seconds = self._interval_seconds(
                is_quiet=is_quiet, has_grown=grown_ns is not None
            )

    def _figures(self) -> tuple[object, ...]:
        """Return all that a look goes by, but for the time."""
        inflow = self._inflow
        return (
            self._read_resident(),
            self._limit_bytes,
            inflow.bytes_max,
            inflow.connection_count,
            inflow.given_count,
        )

    def _interval_seconds(self, *, is_quiet: bool, has_grown: bool) -> float:
        """Return how long to wait for the next look: an idle server should not wake."""
        room_bytes = self._inflow.bytes_max
        if has_grown:
            return min(_INTERVAL_SECONDS, room_bytes / _BYTES_PER_SECOND)
        if not is_quiet:
            return _INTERVAL_SECONDS
        room_bytes -= self._inflow.waiting_bytes  # when that was looked at last
        limit_bytes = self._limit_bytes
        if limit_bytes is not None:
            last_bytes = limit_bytes * (100 - _URGENT_PERCENT) // 100
            room_bytes = min(room_bytes, last_bytes)
        return min(
            max(_INTERVAL_SECONDS, room_bytes / _QUIET_BYTES_PER_SECOND),
            _QUIET_SECONDS_MAX,
        )

    def _is_above(self, percent: int, resident_bytes: int) -> bool:
        """Return whether that is more than *percent* of what the process may take."""
        limit_bytes = self._limit_bytes
        return limit_bytes is not None and resident_bytes * 100 > limit_bytes * percent

    def _return_freed(self, resident_bytes: int, own_bytes: int) -> tuple[int, int]:
        """Return what was freed if that is worth it; return what is taken now."""
        is_worth_it = self._freed.is_worth_returning(resident_bytes, self._limit_bytes)
        if is_worth_it and return_freed():
            resident_bytes, own_bytes = self._taken_bytes()
            self._freed.returned(resident_bytes)
        return resident_bytes, own_bytes

    def _return_of_ended(self, now_ns: int) -> None:
        """Return what connections had that were ended, once libzmq has freed it."""
        if self._ended_ns is not None and now_ns - self._ended_ns >= _FREED_NS:
            self._ended_ns = None
            return_freed()

    def _taken_bytes(self) -> tuple[int, int]:
        """Return how much is resident, and how much of that is of no file."""
        fields = self._read_resident().split()
        resident, shared = int(fields[1]), int(fields[2])
        page_size_bytes = self._page_size_bytes
        return resident * page_size_bytes, (resident - shared) * page_size_bytes

    def _read_resident(self) -> bytes:
        assert self._resident is not None
        return os.pread(self._resident, _RESIDENT_SIZE_MAX, 0)

    def _look(self, *, is_urgent: bool) -> None:
        now_ns = self._clock.now_ns()
        connections = self._inflow.connections
        if now_ns - self._given_ns > _STALL_NS:
            connections = self._find_connections() or connections
        before = self._inflow.before()
        # Of most connections one system call says that nothing waits.
        progress = {
            connection: known
            for connection in connections
            if (received_bytes := tcp_received_bytes(connection)) is not None
            and self._inflow.may_wait(connection, received_bytes)
            and (known := tcp_progress(connection)) is not None
        }
        ended = self._inflow.excess(
            progress, before, now_ns=now_ns, is_urgent=is_urgent
        )
        if self._inflow.waiting_bytes > self._inflow.bytes_max // _GROWTH_PART:
            self._has_much_waited = True
        for connection in ended:
            self._disconnect(connection)
        if ended:
            self.ended_count += len(ended)
            if self._ended_ns is None:
                self._ended_ns = now_ns
            self._log.warning(
                "peers.ended",
                reason="more came than could be taken",
                connection_count=len(ended),
            )

    def _find_connections(self) -> list[ConnectionId]:
        """Return the connections of our ports, the new ones too; none if unknown."""
        found = []
        try:
            paths = tuple(_DESCRIPTORS.iterdir())
        except OSError:
            return []  # out of descriptors: no connection is new, either
        for path in paths:
            descriptor = int(path.name)
            # Looked at in place.  To copy a descriptor and close the copy would take
            # away all locks that this process has on its file, SQLite's among them.
            try:
                view = stdlib_socket.socket(fileno=descriptor)
            except OSError:
                continue  # no socket, or closed meanwhile
            try:
                if self._is_ours(view):
                    found.append(ConnectionId(descriptor))
            finally:
                view.detach()
        return found

    def _is_ours(self, connection: stdlib_socket.socket) -> bool:
        try:
            return connection.getsockname()[
                1
            ] in self._ports and not connection.getsockopt(
                stdlib_socket.SOL_SOCKET, stdlib_socket.SO_ACCEPTCONN
            )
        except (OSError, IndexError):
            return False  # of a family without ports
