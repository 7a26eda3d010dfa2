"""
`TCPProxy`: a TCP connection that can be cut, held up, reset and refused at will.

Theory of operation
-------------------
Each accepted connection is a *link*: two sockets and two *flows*, requests (towards
the target) and replies (back).  A flow has one bounded buffer.  When that is full its
source is not read any more, so back-pressure passes through and memory stays bounded.

A flow that is *cut* forwards nothing, neither bytes nor the end of the stream nor a
reset: the far side sees silence, as behind a black hole.  Its source may fill the
buffer meanwhile.  TCP never loses bytes from the middle of a stream, and nor does the
proxy: on `TCPProxy.heal` what was held back goes on in order, or the links that held
something are reset, as TCP does when it gives up.

One thread owns all sockets.  Other threads hand it commands and wait for them, so that
when `cut` has returned nothing passes any more.

::

    accepted ──► connecting to the target ──► forwarding ──both ends passed──► gone
                 (waits while requests are cut)    └─────a reset passed───────► gone
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, final

from haservices.testing.reserved_port import LOOPBACK_HOST, ReservedPort
from nameservice import LocalProtocolError


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


__all__ = ["TCPProxy"]

_BUFFER_SIZE_BYTES_MAX: Final = 262_144
_READ_SIZE_BYTES_MAX: Final = 65_536
_RETRY_SECONDS: Final = 0.02
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
_IN_PROGRESS: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})


@final
class _Flow:
    """One direction of a link: what was read and not yet written."""

    __slots__ = ("buffer", "has_ended", "has_passed_end", "is_dead", "is_reset")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.has_ended = False  # the source will send no more
        self.is_reset = False  # and ended without a proper end of stream
        self.has_passed_end = False  # the sink has been told so
        self.is_dead = False  # the sink takes nothing any more

    @property
    def holds(self) -> bool:
        """Return whether something waits to be passed on."""
        return not self.is_dead and (
            bool(self.buffer) or (self.has_ended and not self.has_passed_end)
        )

    @property
    def is_over(self) -> bool:
        return self.has_passed_end or self.is_dead


@final
class _Link:
    """A client's connection and ours to the target."""

    __slots__ = (
        "client",
        "give_up_at",
        "is_connected",
        "replies",
        "requests",
        "retry_at",
        "target",
    )

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.target: socket.socket | None = None
        self.is_connected = False
        # Seconds of the monotonic clock; None while no attempt has failed.
        self.retry_at: float | None = None
        self.give_up_at: float | None = None
        self.requests = _Flow()
        self.replies = _Flow()


@final
class TCPProxy:
    """
    Forwards a loopback port to *target* until it is told otherwise.

    It serves from construction on.  All methods are thread-safe, take effect before
    they return, and may be combined; `heal` ends every fault at once.

    Args:
        target: Where to forward: a port of the loopback interface, or (host, port).
        host: The loopback address to listen on.
        port: The port to listen on; 0 takes any that is free.
        buffer_size_bytes_max: How much each direction of each connection holds.
        patience_seconds: For how long a target that refuses is tried again before the
            client's connection is reset.  A client that would itself try again when
            refused cannot know behind a proxy, which accepts first.
    """

    def __init__(
        self,
        target: int | tuple[str, int],
        *,
        host: str = LOOPBACK_HOST,
        port: int = 0,
        buffer_size_bytes_max: int = _BUFFER_SIZE_BYTES_MAX,
        patience_seconds: float = 0.0,
    ) -> None:
        assert buffer_size_bytes_max > 0
        self._patience_seconds = patience_seconds
        self._target = (LOOPBACK_HOST, target) if isinstance(target, int) else target
        self._buffer_size_bytes_max = buffer_size_bytes_max
        self._reserved = ReservedPort(host=host, port=port)
        self._listener: socket.socket | None = self._reserved.listen()
        self._listener.settimeout(0)
        self._are_requests_cut = False
        self._are_replies_cut = False
        self._links: dict[socket.socket, _Link] = {}
        self._interests: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakee = socket.socketpair()
        self._wakee.settimeout(0)
        self._selector.register(self._wakee, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._held_changed = threading.Condition(self._lock)
        self._holds = False
        self._commands: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._work, name=f"tcp-proxy-{self.port}", daemon=True
        )
        self._thread.start()

    @property
    def host(self) -> str:
        """Return the address that it listens on."""
        return self._reserved.host

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        return self._reserved.port

    @property
    def address(self) -> str:
        """Return ``host:port``, as a URL takes it."""
        return f"{self.host}:{self.port}"

    @property
    def connection_count(self) -> int:
        """Return how many clients are connected."""
        with self._lock:
            return len(set(map(id, self._links.values())))

    def cut(self) -> None:
        """Pass nothing on either way; connections stay open, new ones are silent."""
        self._command(lambda: self._set_cut(requests=True, replies=True))

    def cut_requests(self) -> None:
        """Pass nothing on from clients to the target."""
        self._command(lambda: self._set_cut(requests=True, replies=None))

    def cut_replies(self) -> None:
        """Pass nothing on from the target to clients."""
        self._command(lambda: self._set_cut(requests=None, replies=True))

    def heal(self, *, deliver: bool = True) -> None:
        """
        End every cut and refusal.

        Args:
            deliver: Whether what was held back is passed on.  If not, the connections
                that held something are reset: what they held never arrives.
        """
        self._command(lambda: self._heal(deliver=deliver))

    def reset(self) -> None:
        """Reset every connection, on both sides; what they held never arrives."""
        self._command(self._reset)

    def refuse(self) -> None:
        """Refuse new connects until healed; connections that are open go on."""
        self._command(self._stop_listening)

    def wait_until_held(self, timeout_seconds: float) -> bool:
        """Return True as soon as a cut holds something back, False if none does."""
        with self._held_changed:
            return self._held_changed.wait_for(lambda: self._holds, timeout_seconds)

    def close(self) -> None:
        """Reset every connection and stop.  Idempotent."""
        with self._lock:
            self._is_closing = True
            self._wake()
        self._thread.join()

    def __enter__(self) -> TCPProxy:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- any thread ----------------------------------------------------------------

    def _command(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()
        with self._lock:
            if self._is_closing:
                message = "the proxy is closed"
                raise LocalProtocolError(message)
            self._commands.append((action, done))
            self._wake()
        done.result()

    def _wake(self) -> None:
        """Wake the thread; the lock is held, so the socket is still open."""
        if self._waker.fileno() >= 0:
            self._waker.send(b"\0")

    # -- the proxy's thread ----------------------------------------------------------

    def _work(self) -> None:
        while True:
            # What has arrived is taken in before commands, so that a command finds
            # everything that was sent before it was given.
            for key, mask in self._selector.select(self._seconds_to_retry()):
                self._handle(key.fileobj, mask)
            self._retry()
            with self._lock:
                commands = tuple(self._commands)
                self._commands.clear()
                is_closing = self._is_closing
            for action, done in commands:
                try:
                    action()
                except OSError as error:  # the port cannot be listened on again
                    done.set_exception(error)
                    continue
                self._take_stock()
                done.set_result(None)
            if is_closing:
                break
            self._take_stock()
        self._reset()
        self._stop_listening()
        self._selector.close()
        with self._lock:
            self._waker.close()
            self._wakee.close()
        self._reserved.close()

    def _handle(self, fileobj: object, mask: int) -> None:
        assert isinstance(fileobj, socket.socket)
        if fileobj is self._wakee:
            self._wakee.recv(4096)
            return
        if fileobj is self._listener:
            self._accept(fileobj)
            return
        link = self._links.get(fileobj)
        if link is None:
            return  # closed by an earlier event of this round
        if fileobj is link.target and not link.is_connected:
            self._finish_connecting(link, fileobj)
        elif mask & selectors.EVENT_READ:
            is_request = fileobj is link.client
            self._read(fileobj, link.requests if is_request else link.replies)
        self._pass_on(link)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client went away again
        client.settimeout(0)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(client)
        with self._lock:
            self._links[client] = link
        if not self._are_requests_cut:
            self._connect(link)
        self._pass_on(link)

    def _connect(self, link: _Link) -> None:
        target = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        target.settimeout(0)
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.target = target
        with self._lock:
            self._links[target] = link
        if target.connect_ex(self._target) not in _IN_PROGRESS:
            self._connecting_failed(link, target)

    def _finish_connecting(self, link: _Link, target: socket.socket) -> None:
        if target.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            link.is_connected = True
        else:
            self._connecting_failed(link, target)

    def _connecting_failed(self, link: _Link, target: socket.socket) -> None:
        now = time.monotonic()
        if link.give_up_at is None:
            link.give_up_at = now + self._patience_seconds
        if now >= link.give_up_at:
            self._drop(link)
            return
        link.retry_at = min(now + _RETRY_SECONDS, link.give_up_at)
        link.target = None
        self._close_socket(target)

    def _seconds_to_retry(self) -> float | None:
        """Return how long nothing needs to be tried again, or None for ever."""
        dues = [
            link.retry_at for link in self._all_links() if link.retry_at is not None
        ]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _retry(self) -> None:
        now = time.monotonic()
        for link in self._all_links():
            if link.retry_at is not None and link.retry_at <= now:
                link.retry_at = None
                if not self._are_requests_cut:
                    self._connect(link)
                    self._pass_on(link)

    def _read(self, source: socket.socket, flow: _Flow) -> None:
        room = self._buffer_size_bytes_max - len(flow.buffer)
        if flow.has_ended or flow.is_dead or room <= 0:
            return
        try:
            data = source.recv(min(room, _READ_SIZE_BYTES_MAX))
        except BlockingIOError:
            return
        except OSError:
            flow.has_ended = flow.is_reset = True
            return
        if data:
            flow.buffer += data
        else:
            flow.has_ended = True

    def _pass_on(self, link: _Link) -> None:
        """Write what may pass; then wait for what is missing, or end the link."""
        if link.client not in self._links:
            return
        if link.target is not None and link.is_connected:
            self._write_requests(link, link.target)
            if not self._are_replies_cut and link.client in self._links:
                self._write(link, link.replies, link.client, back=link.requests)
            # If the client turned out to be gone, the target hears of it here.
            self._write_requests(link, link.target)
        if link.client not in self._links:
            return  # a reset was passed on
        if link.requests.is_over and link.replies.is_over:
            self._drop(link, resets=False)
        else:
            self._watch(link)

    def _write_requests(self, link: _Link, target: socket.socket) -> None:
        if not self._are_requests_cut and target in self._links:
            self._write(link, link.requests, target, back=link.replies)

    def _write(
        self, link: _Link, flow: _Flow, sink: socket.socket, *, back: _Flow
    ) -> None:
        if flow.is_over:
            return
        try:
            while flow.buffer:
                del flow.buffer[: sink.send(flow.buffer)]
            if flow.has_ended and not flow.is_reset:
                sink.shutdown(socket.SHUT_WR)
                flow.has_passed_end = True
        except BlockingIOError:
            return
        except OSError:
            # The sink is gone: its own flow says so to the source, cut or not.
            flow.buffer.clear()
            flow.is_dead = True
            if not back.is_over:
                back.has_ended = back.is_reset = True
            return
        if flow.is_reset:
            self._drop(link)

    def _watch(self, link: _Link) -> None:
        """Ask to hear of what each socket of *link* can do next."""
        can_pass = link.is_connected
        self._ask(
            link.client,
            reads=self._has_room(link.requests),
            writes=can_pass and bool(link.replies.buffer) and not self._are_replies_cut,
        )
        if link.target is not None:
            self._ask(
                link.target,
                reads=can_pass and self._has_room(link.replies),
                writes=not can_pass
                or (bool(link.requests.buffer) and not self._are_requests_cut),
            )

    def _has_room(self, flow: _Flow) -> bool:
        return (
            not flow.has_ended
            and not flow.is_dead
            and len(flow.buffer) < self._buffer_size_bytes_max
        )

    def _ask(self, sock: socket.socket, *, reads: bool, writes: bool) -> None:
        wanted = (selectors.EVENT_READ if reads else 0) | (
            selectors.EVENT_WRITE if writes else 0
        )
        present = self._interests.get(sock, 0)
        if wanted == present:
            return
        if not wanted:
            self._selector.unregister(sock)
            del self._interests[sock]
            return
        if present:
            self._selector.modify(sock, wanted)
        else:
            self._selector.register(sock, wanted)
        self._interests[sock] = wanted

    def _drop(self, link: _Link, *, resets: bool = True) -> None:
        """Close both sockets of *link*, with a reset unless all has been passed on."""
        for sock in (link.client, link.target):
            if sock is None:
                continue
            if resets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._close_socket(sock)

    def _close_socket(self, sock: socket.socket) -> None:
        self._ask(sock, reads=False, writes=False)
        with self._lock:
            self._links.pop(sock, None)
        sock.close()

    def _all_links(self) -> list[_Link]:
        return [link for sock, link in self._links.items() if sock is link.client]

    def _take_stock(self) -> None:
        holds = any(
            (self._are_requests_cut and link.requests.holds)
            or (self._are_replies_cut and link.replies.holds)
            for link in self._all_links()
        )
        with self._held_changed:
            if holds != self._holds:
                self._holds = holds
                self._held_changed.notify_all()

    # -- commands ----------------------------------------------------------------------

    def _set_cut(self, *, requests: bool | None, replies: bool | None) -> None:
        if requests is not None:
            self._are_requests_cut = requests
        if replies is not None:
            self._are_replies_cut = replies
        for link in self._all_links():
            self._watch(link)

    def _heal(self, *, deliver: bool) -> None:
        if not deliver:
            for link in self._all_links():
                if (self._are_requests_cut and link.requests.holds) or (
                    self._are_replies_cut and link.replies.holds
                ):
                    self._drop(link)
        self._are_requests_cut = False
        self._are_replies_cut = False
        for link in self._all_links():
            if link.target is None and link.retry_at is None:
                self._connect(link)
            self._pass_on(link)
        if self._listener is None:
            self._listener = self._reserved.listen()
            self._listener.settimeout(0)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _reset(self) -> None:
        for link in self._all_links():
            self._drop(link)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
