"""
`NodeLink`: a writer's connection to one node; and those that a process keeps.

Spark uses its Python workers again and again, and a handshake costs more than a small
batch: links that have answered everything wait here for the next task.  A link on
which anything went wrong is closed; a new one has no history.

Spark's daemon forks its workers.  What a process has opened before a fork is its own:
the child begins with nothing, and never touches what it has inherited.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import NameServiceError, RemoteProtocolError
from queryablestate.address import parse_address
from queryablestate.codec import decode_from_node
from queryablestate.credentials import secure_to
from queryablestate.proxy_connection import ProxyConnection
from transport import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionMonitor,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeSucceeded,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    connect_socket,
    handshake_error,
    open_socket,
    receive_now,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from haservices import HAConfig
    from queryablestate.credentials import Credentials
    from queryablestate.node_messages import ChunkRefused, ChunkStaged


__all__ = [
    "NodeLink",
    "WriterConnections",
    "close_writer_connections",
    "writer_connections",
]

NODE_SOCKET_LIMITS: Final = SocketLimits(
    frame_size_bytes_max=1024 * 1024,  # acknowledgements only
    heartbeat_interval_ms=3_000,
    heartbeat_timeout_ms=10_000,
)

_LINKS_KEPT_COUNT_MAX: Final = 64


@final
class NodeLink:
    """
    A socket to one address.  For one thread at a time.

    Attributes:
        address: Where it leads to.
        key_pair: As whom it speaks there, or None.
        is_open: Whether messages can be sent.
        problem: What went wrong last, if that says more than that it is closed.

    Raises:
        ConfigurationError: If nobody can connect to *address*.
        AuthenticationError: If we have keys, and *address* has none.
    """

    def __init__(
        self,
        context: ZMQContext,
        address: str,
        key_pair: CurveKeyPair | None,
        limits: SocketLimits = NODE_SOCKET_LIMITS,
    ) -> None:
        self.address = address
        self.key_pair = key_pair
        self.is_open = False
        self.problem: NameServiceError | None = None
        self._resources = ExitStack()
        target = parse_address(address)
        try:
            self._socket = open_socket(context, zmq.DEALER, limits)
            self._resources.callback(self._socket.close)
            secure_to(self._socket, target, key_pair)
            self._monitor = ConnectionMonitor(self._socket)
            self._resources.callback(self._monitor.close)
            connect_socket(self._socket, target.endpoint)
        except BaseException:
            self._resources.close()
            raise

    @property
    def sockets(self) -> tuple[ZMQSocket, ZMQSocket]:
        """Return what to poll for reading."""
        return (self._monitor.socket, self._socket)

    def is_over(self) -> bool:
        """Take note of what happened; return whether the link is of no more use."""
        for event in self._monitor.receive():
            match event:
                case HandshakeSucceeded():
                    self.is_open = True
                case HandshakeFailed():
                    self.problem = handshake_error(event, target=self.address)
                    return True
                case ConnectFailed() | ConnectionClosed():
                    return True
                case _:
                    pass
        return False

    def send(self, *frames: bytes) -> bool:
        """Send a message, if that is possible at once; return whether it was."""
        if not self.is_open:
            return False
        outcome = send_now(self._socket, frames)
        return outcome is SendOutcome.SENT

    def replies(self) -> Iterator[ChunkStaged | ChunkRefused]:
        """Yield what the node has answered; what is malformed is a `problem`."""
        while True:
            try:
                frames = receive_now(self._socket, frame_count_max=1)
            except zmq.Again:
                return
            try:
                yield decode_from_node(frames[0].buffer)
            except RemoteProtocolError as error:
                self.problem = error

    def close(self) -> None:
        """Close the socket.  Idempotent."""
        self._resources.close()


@final
class WriterConnections:
    """What one process keeps open for writers.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._context: ZMQContext | None = None
        self._links: list[NodeLink] = []
        self._in_use_count = 0
        self._proxies: dict[tuple[HAConfig, Credentials], ProxyConnection] = {}

    def proxy(
        self,
        config: HAConfig,
        credentials: Credentials,
        *,
        first_address: str | None = None,
    ) -> ProxyConnection:
        """Return this process's way to the proxy leader; see `ProxyConnection`."""
        with self._lock:
            held = self._proxies.get((config, credentials))
            if held is None:
                held = ProxyConnection(config, credentials, first_address=first_address)
                self._proxies[config, credentials] = held
            return held

    def take_link(self, address: str, key_pair: CurveKeyPair | None) -> NodeLink:
        """
        Return a link to *address* that nobody else uses, opened now if need be.

        Give it back.

        Raises:
            ConfigurationError: If nobody can connect there.
            AuthenticationError: If we have keys, and *address* has none.
        """
        over: list[NodeLink] = []
        found: NodeLink | None = None
        with self._lock:
            for link in [one for one in self._links if one.address == address]:
                if link.key_pair != key_pair:
                    continue
                self._links.remove(link)
                if not link.is_over():
                    found = link
                    break
                over.append(link)
            if self._context is None:
                self._context = zmq.Context()
            context = self._context
            self._in_use_count += 1
        for link in over:
            link.close()
        if found is not None:
            return found
        try:
            return NodeLink(context, address, key_pair)
        except BaseException:
            with self._lock:
                self._in_use_count -= 1
            raise

    def give_back(self, link: NodeLink, *, is_sound: bool) -> None:
        """
        Take back what `take_link` gave.

        Args:
            link: The link.
            is_sound: Whether every request on it was answered; if so, it is kept.
        """
        over = [] if is_sound else [link]
        with self._lock:
            self._in_use_count -= 1
            if is_sound:
                self._links.append(link)
                over = self._links[:-_LINKS_KEPT_COUNT_MAX]
                del self._links[:-_LINKS_KEPT_COUNT_MAX]
        for one in over:
            one.close()

    def close(self) -> None:
        """Close what is kept; who asks again opens anew."""
        with self._lock:
            links, self._links = self._links, []
            proxies, self._proxies = tuple(self._proxies.values()), {}
            context = None
            if not self._in_use_count:  # else a later call, or the end, sees to it
                context, self._context = self._context, None
        for link in links:
            link.close()
        for proxy in proxies:
            proxy.close()
        if context is not None:
            context.term()


_connections = WriterConnections()
# What a child inherits is kept and never touched: were it collected, its sockets,
# which are the parent's, would be closed.
_inherited: list[WriterConnections] = []


def writer_connections() -> WriterConnections:
    """Return what this process keeps open for writers."""
    return _connections


def close_writer_connections() -> None:
    """
    Close what writers have opened in this process.  Idempotent.

    For programs that outlive their last write; it is done at exit anyway.
    """
    _connections.close()


def _forget() -> None:
    global _connections  # noqa: PLW0603 - a forked child begins anew, lock included
    _inherited.append(_connections)
    _connections = WriterConnections()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_writer_connections)
