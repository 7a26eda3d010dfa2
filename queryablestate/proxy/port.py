"""
`ProxyPort`: the socket that clients, writers and nodes of a proxy are connected to.

Here is who may come in, what is too big, too long or no message at all, and what cannot
be sent; connections are the business of `zmqtransport.port`.  What messages mean is
decided elsewhere.

With CURVE, a key that is on the access list says who its holder is.  Where a caller may
have a token instead, every key is admitted: the connection is then encrypted, so that
the token does not travel in clear, and who is at its other end is told by the token
alone.  A client that has neither comes no further than `Hello`, and its connection has
no place for good: of those that no caller and no node came over, the oldest goes first.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import RemoteProtocolError, get_logger
from nameservice.clock import NS_PER_MS
from queryablestate.control.events import LinkId
from queryablestate.wire import codec
from queryablestate.wire.address import StateAddress
from queryablestate.wire.node_messages import ApplyEntries
from queryablestate.wire.questions import Answer, Refusal
from queryablestate.wire.refusals import error_label, refusal_of
from zmqtransport import (
    Authenticator,
    BytesInFlight,
    Endpoint,
    Port,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    connection_limit,
    load_key_files,
    new_context,
    open_files_bound,
)
from zmqtransport.inflow import Inflow
from zmqtransport.inflow_guard import InflowGuard


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import msgspec

    from nameservice import Clock
    from queryablestate.proxy.config import ProxyConfig
    from queryablestate.wire.clients import ToProxy
    from zmqtransport import ConnectionId, CurveKeyPair, Peer, PollLoop


__all__ = ["ProxyPort"]

# What lies between our limit and this multiple of it is refused with a reason; ZeroMQ
# ends the connection of a client that sends more.
_FRAME_SIZE_FACTOR: Final = 2
# A node that stands still for a moment is not one that takes no more.
_SEND_QUEUE_COUNT_MAX: Final = 10_000
# What is said in the end (that this proxy leads no more) should still arrive.
_LINGER_MS: Final = 200
_COPIED_MAX: Final = 64 << 10
"""Of a payload; a larger one is passed on as it came."""

_LINK_SIZE_BYTES_MAX: Final = 64 << 20
"""Of payloads that wait to be sent over one link; one always may."""

_ALL_SIZE_BYTES_MAX: Final = 256 << 20
"""Over all links; small payloads always may."""


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
        why_not: Says what a large message is refused with, by its link, its head and
            the same key, or None: it is decoded only then.

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
        on_message: Callable[[LinkId, ToProxy, bytes | memoryview, str | None], None],
        on_closed: Callable[[Sequence[LinkId]], None],
        why_not: Callable[[LinkId, codec.Head, str | None], msgspec.Struct | None],
    ) -> None:
        self._frame_size_bytes_max = config.frame_size_bytes_max
        self._uses_curve = config.uses_curve
        self._on_message = on_message
        self._on_closed = on_closed
        self._why_not = why_not
        self._in_flight = BytesInFlight()
        self._encoded: tuple[ApplyEntries, bytes] | None = None
        self._resources = ExitStack()
        try:
            self._open(config, loop, clock)
        except BaseException:
            self._resources.close()
            raise

    def _open(self, config: ProxyConfig, loop: PollLoop, clock: Clock) -> None:
        key_pair, _ = load_key_files(
            config.curve_secret_key_file, config.curve_public_key_file
        )
        context: ZMQContext = new_context()
        self._resources.callback(context.term)
        self._authenticator = Authenticator(
            context, None, may_log=lambda: self._port.may_log("unauthorized")
        )
        self._resources.callback(self._authenticator.close)
        self.admit(config)
        self._inflow = Inflow.of_frames(
            config.frame_size_bytes_max * _FRAME_SIZE_FACTOR,
            is_secured=config.uses_curve,
        )
        self._port = Port(
            context,
            config.bind_endpoint,
            SocketLimits(
                linger_ms=_LINGER_MS,
                send_queue_count_max=_SEND_QUEUE_COUNT_MAX,
                frame_size_bytes_max=config.frame_size_bytes_max * _FRAME_SIZE_FACTOR,
                # Above the session timeout: a paused node is no node that has died.
                silence_timeout_ms=max(
                    60_000, 2 * config.session_timeout_ns // NS_PER_MS
                ),
            ),
            key_pair,
            authenticator=self._authenticator,
            connections_max=connection_limit(
                config.connections_max,
                open_files_bound(fifth_count=4),  # a quarter on top: see `admitted`
                log=get_logger(component="query-proxy"),
            ),
            inflow=self._inflow,
            loop=loop,
            clock=clock,
            component="query-proxy",
            frame_count_max=1 + codec.FRAME_COUNT_MAX,
            on_message=self._receive,
            on_closed=self._closed,
            on_events=self._in_flight.observe,
            is_told_who_spoke=True,
        )
        self._resources.callback(self._port.close)
        self._guard = InflowGuard(
            self._inflow,
            ports=(self._port.endpoint.port,),
            memory_limit_bytes=None,
            clock=clock,
            component="query-proxy",
            disconnect=self._port.limiter.disconnect,
        )
        self._resources.callback(self._guard.close)
        self._guard.start()
        self.endpoint = self._port.endpoint
        self.address = _published_address(config, self.endpoint, key_pair)

    def admit(self, config: ProxyConfig) -> None:
        """Admit whom *config* lists from now on; connections stay as they are."""
        access = config.access
        self._authenticator.allow_list = (
            access.allow_list() if self._uses_curve else None
        )
        self._authenticator.admits_unlisted = (
            self._uses_curve and access.is_key_optional
        )

    def admitted(self, link: LinkId) -> None:
        """
        Note that a caller, or a node, is at the other end: its connection may stay.

        Where a token will do, every key may connect: that it spoke proves nothing here.
        """
        peer = self._port.peers.get(link)
        if peer is not None:
            self._port.limiter.spoke(peer.connection)

    def joined(self, link: LinkId) -> None:
        """Note that a node is at the other end: it sends what it was asked for."""
        self.admitted(link)
        peer = self._port.peers.get(link)
        if peer is not None:
            self._inflow.trust(peer.connection)

    def close(self) -> None:
        """Close everything, when the loop ends."""
        self._resources.close()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the port by name."""
        return {
            "links": len(self._port.peers),
            "in_flight_bytes": self._in_flight.look_at_all(),
            **self._port.figures(),
            "connections_ended_total": self._guard.ended_count,
        }

    def count(self, name: str) -> None:
        """Count something that has no other trace."""
        self._port.count(name)

    def may_log(self, kind: str) -> bool:
        """Return whether the log has room for one more line that a peer has caused."""
        return self._port.may_log(kind)

    # -- in ----------------------------------------------------------------------------

    def _receive(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        """Take one message."""
        link = LinkId(peer.number)
        public_key = None
        if self._uses_curve:
            public_key = self._authenticator.public_key_of(frames[0])
        try:
            self._check_size(frames)
            if len(frames[1]) > codec.ENVELOPE_SIZE_BYTES_MAX:
                head = codec.decode_head(frames[1].buffer)
                refusal = self._why_not(link, head, public_key)
                if refusal is not None:
                    self._send(peer, refusal, None)
                    return
            message = codec.decode_to_proxy(frames[1].bytes)
        except RemoteProtocolError as error:
            self._port.drop(error)
            self._send(peer, refusal_of(error, 0), None)
            return
        payload: bytes | memoryview = b""
        if len(frames) > 2:
            # Large values are passed on as they are, and never copied.
            is_opaque = isinstance(message, Answer) and len(frames[2]) > _COPIED_MAX
            payload = frames[2].buffer if is_opaque else frames[2].bytes
        self._on_message(link, message, payload, public_key)

    def _check_size(self, frames: Sequence[zmq.Frame]) -> None:
        """Raise `RemoteProtocolError` if that is too much for a message."""
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

    def _closed(self, peers: Sequence[Peer]) -> None:
        self._on_closed([LinkId(peer.number) for peer in peers])

    # -- out ---------------------------------------------------------------------------

    def send(
        self,
        link: LinkId,
        message: msgspec.Struct,
        payload: bytes | memoryview | None = None,
    ) -> bool:
        """
        Send now or not at all; return whether ZeroMQ has taken it.

        It does not take a payload while too many bytes wait for that link, or for all
        of them (rule B1).  A client whose answer was not taken asks again.
        """
        peer = self._port.peers.get(link)
        return peer is not None and self._send(peer, message, payload)

    def _has_room(self, connection: ConnectionId, size_bytes: int) -> bool:
        """Return whether so much more may wait for a connection."""
        flight = self._in_flight
        own_max, all_max = _LINK_SIZE_BYTES_MAX, _ALL_SIZE_BYTES_MAX
        if (
            flight.of(connection) + size_bytes > own_max
            and flight.look(connection) + size_bytes > own_max
            and flight.of(connection)
        ):
            return False
        return (
            size_bytes <= _COPIED_MAX
            or flight.total_bytes + size_bytes <= all_max
            or flight.look_at_all() + size_bytes <= all_max
        )

    def _send(
        self,
        peer: Peer,
        message: msgspec.Struct,
        payload: bytes | memoryview | None,
    ) -> bool:
        if isinstance(message, Refusal):
            self.count(f"errors_{error_label(message.code)}")
        # An entry goes to all nodes of a job, and may be large.
        if not isinstance(message, ApplyEntries):
            envelope = codec.encode(message)
        elif self._encoded is not None and self._encoded[0] is message:
            envelope = self._encoded[1]
        else:
            envelope = codec.encode(message)
            self._encoded = (message, envelope)
        frames: list[bytes | zmq.Frame] = [envelope]
        if payload is not None:
            if not self._has_room(peer.connection, len(payload)):
                self.count("messages_held_back")
                return False
            frames.append(payload if isinstance(payload, bytes) else _frame_of(payload))
        outcome = self._port.send(peer.routing_id, *frames)
        if outcome is SendOutcome.SENT:
            self._in_flight.add(peer.connection, sum(map(len, frames)))
            return True
        self.count(f"messages_{outcome.value}")
        return False


def _frame_of(payload: memoryview) -> zmq.Frame:
    """Return the frame that *payload* is the buffer of: it is sent without a copy."""
    frame = payload.obj
    assert isinstance(frame, zmq.Frame)
    return frame


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
