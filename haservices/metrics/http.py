"""
`BoundedHTTPServer`: answers a few short questions over HTTP, whatever clients do.

Theory of operation.  One thread serves every connection, and waits for none: sockets do
not block.  A connection has one request and one answer, a deadline for both, and a size
for what it may send.  When there are too many connections, the oldest one ends for the
new one: clients that are slow on purpose push out each other, and one that asks at once
is answered.  So neither slow clients nor many of them hold the thread, and what it asks
the server for is bounded by who gives the answers (`serving`).
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from attrs import define, field, frozen

from nameservice import Clock, ConfigurationError, get_logger
from nameservice.clock import NS_PER_SECOND
from nameservice.interruptible import InterruptibleEvent
from nameservice.uninterrupted import detached


__all__ = ["BoundedHTTPServer", "HTTPAnswer", "parse_address"]

_REQUEST_SIZE_BYTES_MAX: Final = 8 * 1024
_CONNECTION_COUNT_MAX: Final = 64
_CONNECTION_SECONDS_MAX: Final = 5.0
_BACKLOG: Final = 128
_NO_DESCRIPTOR_SECONDS: Final = 0.1
_RECEIVE_SIZE_BYTES: Final = 4 * 1024
_PORT_MAX: Final = 65_535
_LOOPBACK: Final = "127.0.0.1"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@final
@frozen
class HTTPAnswer:
    """
    What is answered.

    Attributes:
        status: One of the statuses that have a reason here.
        body: What is said.
        content_type: What that is.
    """

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


@final
@define(eq=False)
class _Connection:
    """One connection: what has come, or what is left to be sent."""

    socket: socket.socket
    deadline_ns: int
    received: bytearray = field(factory=bytearray)
    to_send: memoryview | None = None


@final
class BoundedHTTPServer:
    """
    Serves from the moment it is made until `close`.

    Args:
        address: ``HOST:PORT``; see `parse_address`.
        answer: Is told a path, in the thread of this server; must return soon.
        clock: What deadlines are measured by.

    Attributes:
        url: Where it is reached, with the real port.

    Raises:
        ConfigurationError: If *address* is malformed, or cannot be listened at.
    """

    def __init__(
        self, address: str, answer: Callable[[str], HTTPAnswer], clock: Clock
    ) -> None:
        self._answer = answer
        self._clock = clock
        self._log = get_logger(component="metrics")
        self._listener = _listen(address)
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}  # the oldest one first
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._over = InterruptibleEvent()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection.  Idempotent."""
        detached(self._close)

    def _close(self) -> None:
        self._over.set()
        with suppress(OSError):
            self._wake.send(b"\0")
        self._thread.join()

    # -- the thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._turn()
        finally:
            for connection in list(self._connections.values()):
                self._end(connection)
            self._selector.close()
            for one in (self._listener, self._wake, self._woken):
                one.close()

    def _turn(self) -> None:
        """Wait for something to do, or for a deadline, and do it."""
        for key, _ in self._selector.select(self._wait_seconds()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is not self._woken:
                connection = self._connections.get(key.fd)
                if connection is not None:
                    self._serve(connection)
        now_ns = self._clock.now_ns()
        for connection in list(self._connections.values()):
            if now_ns >= connection.deadline_ns:
                self._end(connection)

    def _wait_seconds(self) -> float | None:
        first = next(iter(self._connections.values()), None)
        if first is None:
            return None
        return max(0, first.deadline_ns - self._clock.now_ns()) / NS_PER_SECOND

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return  # it is gone already
        except OSError:  # there is no file descriptor left
            if not self._end_oldest():
                self._over.wait(_NO_DESCRIPTOR_SECONDS)
            return
        accepted.settimeout(0)
        if len(self._connections) >= _CONNECTION_COUNT_MAX:
            self._end_oldest()
        deadline_ns = self._clock.now_ns() + round(
            _CONNECTION_SECONDS_MAX * NS_PER_SECOND
        )
        connection = _Connection(accepted, deadline_ns)
        self._connections[accepted.fileno()] = connection
        self._selector.register(accepted, selectors.EVENT_READ)

    def _end_oldest(self) -> bool:
        """End the oldest connection; return whether there was one."""
        oldest = next(iter(self._connections.values()), None)
        if oldest is None:
            return False
        self._end(oldest)
        return True

    def _end(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _serve(self, connection: _Connection) -> None:
        """Read or write as much as there is, and room for."""
        try:
            if connection.to_send is None:
                self._read(connection)
            if connection.to_send is not None:
                sent = connection.socket.send(connection.to_send)
                connection.to_send = connection.to_send[sent:]
                if not connection.to_send:
                    connection.socket.shutdown(socket.SHUT_WR)
                    self._end(connection)
        except BlockingIOError:
            pass
        except OSError:  # it is gone
            self._end(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(_RECEIVE_SIZE_BYTES)
        received = connection.received
        received += data
        if b"\r\n\r\n" in received or b"\n\n" in received:
            reply = self._reply(bytes(received))
        elif len(received) > _REQUEST_SIZE_BYTES_MAX:
            reply = _encoded(HTTPAnswer(431, b"the request is too large\n"))
        elif not data:
            raise ConnectionResetError
        else:
            return
        connection.to_send = memoryview(reply)
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _reply(self, request: bytes) -> bytes:
        """Return the answer to *request*, whose headers are of no meaning here."""
        words = request.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _encoded(HTTPAnswer(400, b"this is no HTTP/1.1 request\n"))
        if words[0] not in {b"GET", b"HEAD"}:
            return _encoded(HTTPAnswer(405, b"ask with GET\n"))
        path = words[1].split(b"?", 1)[0].decode("ascii", "replace")
        try:
            answer = self._answer(path)
        except Exception:  # noqa: BLE001 (a mistake of ours ends no server)
            self._log.exception("metrics.failed")
            answer = HTTPAnswer(500, b"it failed: see the log\n")
        return _encoded(answer, has_body=words[0] == b"GET")


def parse_address(text: str) -> tuple[str, int]:
    """
    Return host and port of ``HOST:PORT``, ``:PORT`` or ``PORT``.

    Without a host it is the loopback address: who wants others to read metrics says so.
    ``*`` is every interface.  An IPv6 address has brackets.

    Raises:
        ConfigurationError: If *text* is none of these.
    """
    host, _, port_text = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = "?"
    is_port = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if host == "?" or not is_port or int(port_text) > _PORT_MAX:
        raise ConfigurationError(
            f"{text!r} is no address for metrics: write HOST:PORT, e.g. "
            "127.0.0.1:9400, [::1]:9400, or *:9400 for every interface"
        )
    return ("0.0.0.0" if host == "*" else host or _LOOPBACK), int(port_text)  # noqa: S104


def _listen(text: str) -> socket.socket:
    host, port = parse_address(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            listener.settimeout(0)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"cannot serve metrics at {text}: {error}; name another address, or end "
            "what listens there"
        ) from error
    return listener


def _encoded(answer: HTTPAnswer, *, has_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (answer.body if has_body else b"")
