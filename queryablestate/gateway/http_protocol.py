"""
`BoundedProtocol`: uvicorn's HTTP/1.1, with bounds on what slow clients may hold.

uvicorn bounds the size of a request's head and the time between two requests.  What it
leaves open is bounded here: how long a head may take, how many connections there are,
and how long an ended connection may keep what its client does not read.  Nor does
uvicorn end an answer whose client has left: one that waits would keep its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from queryablestate.gateway.headers import SECURITY_HEADERS
from queryablestate.gateway.problems import Problem


if TYPE_CHECKING:
    from queryablestate.gateway.config import GatewayConfig


__all__ = ["ABORT", "IS_GONE", "WHEN_GONE", "BoundedProtocol", "protocol_for"]

ABORT: Final = "lodestar.abort"
IS_GONE: Final = "lodestar.is_gone"
WHEN_GONE: Final = "lodestar.when_gone"
"""Extensions of a request's scope: end its connection at once; whether it has ended;
what is to be called if it ends before the answer does."""

_NUMBERS: Final = itertools.count()
_RESET: Final = struct.pack("ii", 1, 0)
_LOGGER: Final = logging.getLogger("lodestar.gateway.http")
_LOGGER.disabled = True


class BoundedProtocol(H11Protocol):
    """
    One connection.  `protocol_for` makes the class that one gateway uses.

    Attributes:
        limits: Its limits.
        ended_counts: Connections that were ended, by reason.
    """

    limits: ClassVar[GatewayConfig]
    ended_counts: ClassVar[dict[str, int]]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # What clients send wrong is no event: a flood of it would fill the log.
        self.logger = _LOGGER
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._is_aborted = False
        self._leave: Callable[[], object] | None = None
        self._number = next(_NUMBERS)

    @property
    def is_idle(self) -> bool:
        """Return whether no request is answered on it now."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Begin to wait for the head of a request."""
        if len(self.connections) >= self.limits.connection_count_max:
            self._make_room()
        super().connection_made(transport)
        # Head and body are written apart.  asyncio does this itself for sockets that
        # were made for TCP by name, which those of a listener are not.
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._forget_head()
        if self._end_timer is not None:
            self._end_timer.cancel()
        super().connection_lost(exc)
        leave, self._leave = self._leave, None
        if leave is not None and not self.is_idle:
            leave()

    def data_received(self, data: bytes) -> None:
        """Take what has come; a head that has begun is to be there in time."""
        super().data_received(data)
        if self.is_idle and self._head_timer is None:
            self._expect_head()

    def handle_events(self) -> None:
        """Begin requests whose head is there."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._forget_head()
            # The task that answers has not run yet, and will find it there.
            scope: dict[str, Any] = self.scope  # type: ignore[assignment]
            extensions = scope.setdefault("extensions", {})
            extensions[ABORT] = self._abort_answer
            extensions[IS_GONE] = self.transport.is_closing
            extensions[WHEN_GONE] = self._when_gone
            self._leave = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP with a problem document, and end."""
        cycle: Any = self.cycle
        if not self.is_idle and cycle.response_started:
            # In the midst of an answer the problem would be read as a part of it.
            self._abort("malformed")
            return
        self.ended_counts["malformed"] = self.ended_counts.get("malformed", 0) + 1
        problem = Problem(
            name="bad-request",
            detail="this is no HTTP/1.1 request, or its head is more than "
            f"{self.limits.header_size_bytes_max:,} bytes",
        )
        body = problem.encoded()
        headers = {
            **SECURITY_HEADERS,
            **problem.all_headers(),
            "content-length": str(len(body)),
            "connection": "close",
        }
        if not self.transport.is_closing():
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"HTTP/1.1 400 Bad Request\r\n{lines}\r\n"
            self.transport.write(head.encode("latin-1") + body)
        self._end()

    def on_response_complete(self) -> None:
        """Wait for the next request; or for the end, if no other one is to come."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_in_time()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection on which nothing is asked any more."""
        super().timeout_keep_alive_handler()
        self._end()

    # -- ending ------------------------------------------------------------------------

    def reset(self) -> None:
        """
        End it at once, so that no client takes half of an answer for the whole.

        Where an answer has no length, as for HTTP/1.0, the end of the connection is its
        end: it must not look like one that was closed.
        """
        if not self.is_idle or self._has_unsent:
            raw: socket.socket = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has ended by itself
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    @property
    def _has_unsent(self) -> bool:
        """Return whether some of an answer that is complete has not left us yet."""
        if self.transport.get_write_buffer_size() > 0:
            return True
        # Of HTTPS that is what is not encrypted yet; what is, waits out of sight.
        return self.scheme == "https" and self.transport.is_closing()

    def _end(self) -> None:
        """Close, and do not wait for ever until all of it was read."""
        self.transport.close()
        self._abort_in_time()

    def _abort_in_time(self) -> None:
        if self._end_timer is None:
            self._end_timer = self.loop.call_later(
                self.limits.write_seconds, self.reset
            )

    def _when_gone(self, leave: Callable[[], object]) -> None:
        self._leave = leave
        if self.transport.is_closing():
            leave()

    def _abort(self, reason: str) -> None:
        self._is_aborted = True
        self.ended_counts[reason] = self.ended_counts.get(reason, 0) + 1
        self.reset()

    def _abort_answer(self) -> None:
        self._abort("unfinished")

    def _make_room(self) -> None:
        """End the oldest connection without a request, or any, for a new one."""
        connections: list[BoundedProtocol] = list(self.connections)  # type: ignore[arg-type]
        # What was ended in this turn of the loop is still among them.
        connections = [one for one in connections if not one._is_aborted]  # noqa: SLF001
        if len(connections) < self.limits.connection_count_max:
            return
        idle = [one for one in connections if one.is_idle] or connections
        oldest = min(idle, key=lambda one: one._number)  # noqa: SLF001 (one of ours)
        oldest._abort("crowded")  # noqa: SLF001

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(
            self.limits.request_seconds, self._abort, "late"
        )

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def protocol_for(config: GatewayConfig) -> type[BoundedProtocol]:
    """Return the class of connections of a gateway with these limits."""
    return type(
        "GatewayProtocol", (BoundedProtocol,), {"limits": config, "ended_counts": {}}
    )
