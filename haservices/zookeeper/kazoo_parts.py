"""
What kazoo lacks: a handler, a connection and answers that do what we need of them.

kazoo does not tell which session timeout was negotiated nor when the handshake was
sent; it waits a whole session timeout for each server that does not answer; it does not
notice a dead connection while requests are being sent; it may leave a message in the
buffers of TLS; it cannot take back a watch; it tells answers and watches on two threads
of its own, in no order.  Of kazoo.recipe, where leaders overlap and watches leak,
nothing is used.

kazoo ships no types: only this file, connection.py and
translation.py see its objects.
"""

from __future__ import annotations

import errno
import logging
import math
import select
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from kazoo.client import KazooClient
from kazoo.handlers.threading import (
    AsyncResult,
    KazooTimeoutError,
    SequentialThreadingHandler,
)
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from nameservice import get_logger
from nameservice.clock import MS_PER_SECOND
from zmqtransport import close_socket_in_child


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices.event_loop import EventLoop
    from nameservice import Clock


__all__ = ["KazooConnection", "KazooHandler", "KazooLog", "RemoveWatches"]

_MESSAGE_COUNT_MAX: Final = 4
_DOUBLINGS_MAX: Final = 20  # longer than any session


class RemoveWatches(NamedTuple):
    """A request that kazoo does not know: take back all our watches of a node."""

    path: str
    type: int = 18

    def serialize(self) -> bytes:
        """Return the request as it is sent: the path, and the kind of watch."""
        text = self.path.encode()
        any_type = 3
        return len(text).to_bytes(4) + text + any_type.to_bytes(4)

    @staticmethod
    def deserialize(_data: bytes, _offset: int) -> bool:
        """Return what an empty answer says."""
        return True


@final
class _LoopQueue:
    """A queue of kazoo's that is our event loop."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def put(self, action: Callable[[], None]) -> None:
        self._loop.call(action)


class _Answer(AsyncResult):  # type: ignore[misc]
    """
    One of kazoo's answers, told on the loop in its place among all that happened.

    kazoo's own puts a callback into its queue when both are there, the answer and the
    callback.  An answer that is quicker than the caller, who has asked and is about to
    say what to do with it, is then told after watches that fired later.
    """

    def __init__(self, handler: KazooHandler, loop: EventLoop) -> None:
        super().__init__(handler)
        self._callbacks: list[Callable[[_Answer], None]]
        self._loop = loop
        self._is_on_its_way = False

    def _do_callbacks(self) -> None:
        if self._is_on_its_way:
            return
        if self._loop.is_current:
            self._tell()
        else:
            self._is_on_its_way = True
            self._loop.call(self._tell)

    def _tell(self) -> None:
        self._is_on_its_way = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without threads of its own, and with connects that end."""

    def __init__(
        self,
        loop: EventLoop,
        *,
        attempt_timeout_seconds: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _LoopQueue(loop)
        self._loop = loop
        self._attempt_timeout_seconds = attempt_timeout_seconds
        self._tls = tls

    # kazoo's own start and stop would care for two threads, and register with atexit,
    # which a forked child would then run.
    def start(self) -> None:
        """Count as running."""
        self._running = True

    def stop(self) -> None:
        """Do nothing: what comes after the end is still told on the loop."""

    def async_result(self) -> _Answer:
        """Return an answer to be."""
        return _Answer(self, self._loop)

    def select(
        self,
        readers: Sequence[socket.socket],
        writers: Sequence[socket.socket],
        _others: Sequence[socket.socket],
        timeout: float | None = None,
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        """
        Wait as ``select`` does, but not for what TLS has read already.

        kazoo's own opens a file descriptor for each call, and closes it again.
        """
        pending: list[socket.socket] = [
            reader
            for reader in readers
            if isinstance(reader, ssl.SSLSocket) and reader.pending()
        ]
        if pending:
            return pending, [], []
        poll = select.poll()
        for sock in (*readers, *writers):
            if sock.fileno() < 0:
                raise OSError(errno.EBADF, "the connection is closed")
            poll.register(sock, select.POLLIN if sock in readers else select.POLLOUT)
        # Rounded up: a little early would spin.
        timeout_ms = None if timeout is None else math.ceil(timeout * MS_PER_SECOND)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        return (
            [reader for reader in readers if reader.fileno() in ready],
            [writer for writer in writers if writer.fileno() in ready],
            [],
        )

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_: Any
    ) -> socket.socket:
        """Connect to one server, in plain text or with our own TLS settings."""
        connection = socket.create_connection(
            address, min(timeout, self._attempt_timeout_seconds)
        )
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            close_socket_in_child(connection)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
                close_socket_in_child(connection)
        except BaseException:
            connection.close()
            raise
        return connection


class KazooConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection; it also tells what was negotiated, and can be cut short."""

    def __init__(
        self,
        client: KazooClient,
        retry: KazooRetry,
        *,
        logger: logging.Logger,
        clock: Clock,
        attempt_timeout_seconds: float,
        server_count: int,
        on_ended: Callable[[], None],
    ) -> None:
        super().__init__(client, retry, logger=logger)
        self._clock = clock
        self._attempt_timeout_seconds = attempt_timeout_seconds
        self._server_count = server_count
        self._late_count = 0  # since the last handshake that was answered
        self._on_ended = on_ended
        self.session_timeout_ms = 0
        self.handshake_sent_ns = 0

    def zk_loop(self) -> None:
        """Do kazoo's work, on kazoo's thread; tell when that is over."""
        try:
            super().zk_loop()
        finally:
            self._on_ended()

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_ns = self._clock.now_ns()
        is_handshake = isinstance(request, Connect)
        if is_handshake:
            # A server that is just starting may accept, and never read what it is sent.
            # Servers that are slow have twice the time in each round: they would be
            # given up for ever, and each attempt is another write for them.
            doublings = min(self._late_count // self._server_count, _DOUBLINGS_MAX)
            timeout = min(timeout, self._attempt_timeout_seconds * 2**doublings)
        try:
            answer = super()._invoke(timeout, request, xid)
        except KazooTimeoutError:
            self._late_count += is_handshake
            raise
        if is_handshake:
            self._late_count = 0
            self.session_timeout_ms = answer[0].time_out
            self.handshake_sent_ns = sent_ns
        return answer

    def abort(self) -> None:
        """Make the present connection look broken, so that kazoo makes another."""
        present = self._socket
        if present is not None:
            try:
                present.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # broken already


class KazooLog(logging.Handler):
    """Takes kazoo's warnings: the newest are kept, all go to our log as debug lines."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log = get_logger(component="kazoo")
        self.messages: deque[str] = deque(maxlen=_MESSAGE_COUNT_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning, once."""
        message = record.getMessage()
        if message not in self.messages:
            self.messages.append(message)
        self._log.debug("kazoo.warned", message=message)
