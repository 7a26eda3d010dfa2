"""
`ProxyPort`: the socket that clients, writers and nodes of a proxy are connected to.

Here is who may come in, what is too big, too long or no message at all, whose
connection is over, and what cannot be sent.  What messages mean is decided elsewhere.

With CURVE, a key that is on the access list says who its holder is.  Where a caller may
have a token instead, every key is let in: the connection is then encrypted, so that the
token does not travel in clear, and who is at its other end is told by the token alone.
Whoever has neither comes no further than `Hello`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import RemoteProtocolError, get_logger
from queryablestate.proxy.links import LinkTable
from queryablestate.wire import codec
from queryablestate.wire.address import StateAddress
from queryablestate.wire.refusals import refusal_of
from zmqtransport import (
    Authenticator,
    ConnectionClosed,
    ConnectionLimiter,
    ConnectionMonitor,
    Endpoint,
    LogBudget,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    bind_socket,
    connection_count_possible,
    load_key_pair,
    new_context,
    open_socket,
    secure_server,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from nameservice import Clock
    from queryablestate.control.events import Link
    from queryablestate.proxy.config import ProxyConfig
    from queryablestate.wire.clients import ToProxy
    from zmqtransport import ConnectionEvent, CurveKeyPair, PollLoop


__all__ = ["ProxyPort"]

_NS_PER_MS: Final = 1_000_000
# What lies between our limit and this multiple of it is refused with a reason; ZeroMQ
# ends the connection of whoever sends more.
_FRAME_SIZE_FACTOR: Final = 2
# A node that stands still for a moment is not one that takes no more.
_SEND_QUEUE_COUNT_MAX: Final = 10_000
# What is said in the end (that this proxy leads no more) should still arrive.
_LINGER_MS: Final = 200


@final
class ProxyPort:
    """
    The port of a proxy; all of it belongs to the thread of *loop*.

    Args:
        config: Where it listens, whom it admits, its limits.
        loop: Serves the socket.
        clock: For what may be logged.
        on_message: Is told each message: over which link it came, what it is, its
            second frame, and which CURVE key its sender has proved to hold.
        on_closed: Is told which links are over.

    Attributes:
        endpoint: Where it listens.
        address: What is published, as `parse_address` takes it.

    Raises:
        ConfigurationError: If a port or a key cannot be used; nothing stays open then.
    """

    def __init__(
        self,
        config: ProxyConfig,
        *,
        loop: PollLoop,
        clock: Clock,
        on_message: Callable[[Link, ToProxy, bytes, str | None], None],
        on_closed: Callable[[Sequence[Link]], None],
    ) -> None:
        self._frame_size_bytes_max = config.frame_size_bytes_max
        self._uses_curve = config.uses_curve
        self._loop = loop
        self._clock = clock
        self._on_message = on_message
        self._on_closed = on_closed
        self._log = get_logger(component="query-proxy")
        self._budget = LogBudget()
        self._counts: dict[str, int] = {}
        self._links = LinkTable()
        self._events_waiting: list[ConnectionEvent] = []
        self._resources = ExitStack()
        try:
            self._open(config)
        except BaseException:
            self._resources.close()
            raise

    def _open(self, config: ProxyConfig) -> None:
        key_pair = _load_key_pair(config)
        context: ZMQContext = new_context()
        self._resources.callback(context.term)
        self._authenticator = Authenticator(
            context, None, may_log=partial(self.may_log, "unauthorized")
        )
        self._resources.callback(self._authenticator.close)
        self.admit(config)
        limits = SocketLimits(
            linger_ms=_LINGER_MS,
            send_queue_count_max=_SEND_QUEUE_COUNT_MAX,
            frame_size_bytes_max=config.frame_size_bytes_max * _FRAME_SIZE_FACTOR,
            # Above the session timeout: a paused node is no node that has died.
            silence_timeout_ms=max(60_000, 2 * config.session_timeout_ns // _NS_PER_MS),
        )
        self._router = open_socket(context, zmq.ROUTER, limits)
        self._resources.callback(self._router.close)
        secure_server(self._router, key_pair)
        self._monitor = ConnectionMonitor(self._router)
        self._resources.callback(self._monitor.close)
        self.endpoint = bind_socket(self._router, config.bind_endpoint)
        self.address = _published_address(config, self.endpoint, key_pair)
        self._limiter = ConnectionLimiter(
            self._connection_count_max(config), port=self.endpoint.port
        )
        loop = self._loop
        loop.add_readable(self._authenticator.socket, self._authenticator.handle)
        loop.add_readable(self._monitor.socket, self._watch)
        loop.add_socket(
            self._router, self._receive, frame_count_max=1 + codec.FRAME_COUNT_MAX
        )

    def _connection_count_max(self, config: ProxyConfig) -> int:
        """Return how many connections the port takes: files may be too few."""
        possible = max(1, connection_count_possible())
        if possible < config.connection_count_max:
            self._log.info(
                "connections.limited",
                connection_count_max=possible,
                connection_count_max_configured=config.connection_count_max,
                reason="the system's limit of open files: raise ulimit -n",
            )
        return min(possible, config.connection_count_max)

    def admit(self, config: ProxyConfig) -> None:
        """Admit whom *config* lists from now on; connections stay as they are."""
        access = config.access
        self._authenticator.allow_list = (
            access.allow_list() if self._uses_curve else None
        )
        self._authenticator.admits_unlisted = (
            self._uses_curve and access.is_key_optional
        )

    def close(self) -> None:
        """Close everything, when the loop ends."""
        self._resources.close()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the port by name."""
        return {
            "connections": self._limiter.connection_count,
            "connections_refused_total": self._limiter.refused_count,
            "connections_unauthorized_total": self._authenticator.refused_count,
            "links": len(self._links),
            **{f"{name}_total": count for name, count in sorted(self._counts.items())},
        }

    # -- in ----------------------------------------------------------------------------

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take one message."""
        routing_id = frames[0].bytes
        try:
            link = self._links.heard(frames[0], routing_id)
            message = self._decoded(frames)
        except RemoteProtocolError as error:
            self._drop(error)
            self._send_frames(routing_id, codec.encode(refusal_of(error, 0)), None)
            return
        payload = frames[2].bytes if len(frames) > 2 else b""
        public_key = None
        if self._uses_curve:
            public_key = self._authenticator.public_key_of(frames[0])
        self._on_message(link, message, payload, public_key)

    def _decoded(self, frames: Sequence[zmq.Frame]) -> ToProxy:
        """Return the message, or raise `RemoteProtocolError`."""
        if not 2 <= len(frames) <= 1 + codec.FRAME_COUNT_MAX:
            detail = f"a message has {len(frames) - 1} frames, or more"
            raise RemoteProtocolError("malformed", detail)
        size_bytes = sum(map(len, frames)) - len(frames[0])
        if size_bytes > self._frame_size_bytes_max:
            detail = (
                f"the message has {size_bytes:,} bytes, at most "
                f"{self._frame_size_bytes_max:,} are taken"
            )
            raise RemoteProtocolError("oversized", detail)
        return codec.decode_to_proxy(frames[1].bytes)

    def _watch(self) -> None:
        """Tell whose connection closed; see `zmqtransport.connections`."""
        events = [*self._events_waiting, *self._monitor.receive()]
        self._events_waiting = []
        self._limiter.observe(events)
        closed = [e.connection_id for e in events if isinstance(e, ConnectionClosed)]
        if not closed:
            return
        known = self._links.known(closed)
        self._loop.drain(self._router)
        self._events_waiting = self._monitor.receive()
        if self._events_waiting:
            self._loop.call_soon_threadsafe(self._watch)
        over = self._links.over(
            closed, known=known, events=[*events, *self._events_waiting]
        )
        if over:
            self._on_closed(over)

    # -- out ---------------------------------------------------------------------------

    def send(
        self, link: Link, message: msgspec.Struct, payload: bytes | None = None
    ) -> bool:
        """
        Send now or not at all; return whether ZeroMQ has taken it.

        Whoever waits for an answer that was not taken asks again.
        """
        routing_id = self._links.routing_id(link)
        return routing_id is not None and self._send_frames(
            routing_id, codec.encode(message), payload
        )

    def _send_frames(
        self, routing_id: bytes, envelope: bytes, payload: bytes | None
    ) -> bool:
        frames = (
            (routing_id, envelope)
            if payload is None
            else (routing_id, envelope, payload)
        )
        outcome = send_now(self._router, frames)
        if outcome is SendOutcome.SENT:
            return True
        self.count(f"messages_{outcome.value}")
        return False

    # -- what comes to nothing ---------------------------------------------------------

    def count(self, name: str) -> None:
        """Count something that has no other trace."""
        self._counts[name] = self._counts.get(name, 0) + 1

    def _drop(self, error: RemoteProtocolError) -> None:
        """Count what is no message, and say so if the log has room."""
        self.count(f"frames_{error.reason.replace('-', '_')}")
        if self.may_log(error.reason):
            self._log.warning(
                "frame.dropped", reason=error.reason, detail=error.detail[:200]
            )

    def may_log(self, kind: str) -> bool:
        """Return whether the log has room for one more line that a peer has caused."""
        now_ns = self._clock.now_ns()
        for name, count in self._budget.take_suppressed(now_ns=now_ns).items():
            self._log.warning("lines.left_out", reason=name, count=count)
        return self._budget.admits(kind, now_ns=now_ns)


def _load_key_pair(config: ProxyConfig) -> CurveKeyPair | None:
    """Return the proxy's own keys, or None if it does not use CURVE."""
    if config.curve_secret_key_file is None:
        return None
    assert config.curve_public_key_file is not None
    return load_key_pair(
        Path(config.curve_secret_key_file), Path(config.curve_public_key_file)
    )


def _published_address(
    config: ProxyConfig, endpoint: Endpoint, key_pair: CurveKeyPair | None
) -> str:
    """Return how others reach a proxy that listens at *endpoint*."""
    host = config.advertised_host
    published = endpoint if host is None else Endpoint(host=host, port=endpoint.port)
    return str(
        StateAddress(
            endpoint=published,
            server_public_key=None if key_pair is None else key_pair.public_key,
        )
    )
