"""
`ProxyPort`: the socket that clients, writers and nodes of a proxy are connected to.

Here is who may come in, what is too big, too long or no message at all, and what cannot
be sent; connections are the business of `zmqtransport.port`.  What messages mean is
decided elsewhere.

What waits to be read is counted with all its frames (rule B1).  Where there is no room,
answers and questions are held back, which their sender says in another way.  All else
(what nodes are to do, what became of a batch, refusals) is sent all the same, to a peer
that reads; one that does not is ended, for it is not to be told half.

With CURVE, a key that is on the access list says who its holder is.  Where a caller may
have a token instead, every key is admitted: the connection is then encrypted, so that
the token does not travel in clear, and who is at its other end is told by the token
alone.  A client that has neither comes no further than `Hello`, and its connection has
no place for good: of those that no caller and no node came over, the oldest goes first.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final, get_args

import zmq

from nameservice import RemoteProtocolError, get_logger
from nameservice.clock import NS_PER_MS
from queryablestate.control.events import LinkId
from queryablestate.proxy.encoded_routes import EncodedRoutes
from queryablestate.wire import codec
from queryablestate.wire.address import StateAddress
from queryablestate.wire.clients import (
    JobsListed,
    NodesListed,
    StateDescribed,
    StatesListed,
    ToNodeFrame,
)
from queryablestate.wire.node_messages import (
    ApplyEntries,
    ConnectionJoined,
    NodeRefused,
    NodeRegistered,
)
from queryablestate.wire.operation_messages import RescalingsListed
from queryablestate.wire.questions import Answer, Question, Refusal, Told
from queryablestate.wire.refusals import error_label, refusal_of
from zmqtransport import (
    Authenticator,
    BytesInFlight,
    DeafPeers,
    Endpoint,
    Port,
    SendOutcome,
    SocketLimits,
    UnreadAnswers,
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
    from zmqtransport import (
        ConnectionEvent,
        ConnectionId,
        CurveKeyPair,
        Peer,
        PollLoop,
    )


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
"""Of what waits to be sent over one link; one message always may."""

_ALL_SIZE_BYTES_MAX: Final = 256 << 20
"""Over all links."""

_NODE_SIZE_BYTES_MAX: Final = 1 << 30
"""Of what waits of what a node has sent, which it was asked for."""

_ROOM_NS: Final = 100 * NS_PER_MS
"""Between two looks for peers that leave others no room."""

# Exact types: they have no subclasses, and a look at each message should be cheap.
_HELD_BACK: Final = frozenset(
    {
        Question,
        Told,
        JobsListed,
        NodesListed,
        RescalingsListed,
        StateDescribed,
        StatesListed,
    }
)
"""Who waits for these can be told that they were not sent."""

_TO_NODES: Final = frozenset(get_args(ToNodeFrame)) - {NodeRefused}
"""Who is refused need not be a node."""


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
        self._unread = UnreadAnswers(
            self._in_flight,
            clock,
            bytes_max=_ALL_SIZE_BYTES_MAX,
            bytes_per_connection_max=_LINK_SIZE_BYTES_MAX,
        )
        self._deaf = DeafPeers(
            self._in_flight,
            clock,
            # A node that stands still for less than that has not died.
            silence_ns=config.session_timeout_ns,
        )
        self._clock = clock
        self._room_due_ns = clock.now_ns()
        self._log = get_logger(component="query-proxy")
        self._encoded: tuple[ApplyEntries, bytes] | None = None
        self._routes = EncodedRoutes()
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
        inflow = Inflow.of_frames(
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
            inflow=inflow,
            loop=loop,
            clock=clock,
            component="query-proxy",
            frame_count_max=1 + codec.FRAME_COUNT_MAX,
            on_message=self._receive,
            on_closed=self._closed,
            on_events=self._observe,
            is_told_who_spoke=True,
        )
        self._resources.callback(self._port.close)
        self._guard = InflowGuard(
            inflow,
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
        if self._deaf.has_ended(peer.connection):
            return
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

    def _observe(self, events: Sequence[ConnectionEvent]) -> None:
        self._in_flight.observe(events)
        self._deaf.observe(events)

    # -- out ---------------------------------------------------------------------------

    def send(
        self,
        link: LinkId,
        message: msgspec.Struct,
        payload: bytes | memoryview | None = None,
    ) -> bool:
        """
        Send now or not at all; return whether ZeroMQ has taken it.

        It does not take answers and questions while too many bytes wait for that link,
        or for all of them (rule B1): say so to who waits for them.  Of all else,
        whatever it does not take is the end of that link, if it is not over yet.
        """
        peer = self._port.peers.get(link)
        return peer is not None and self._send(peer, message, payload)

    def _send(
        self,
        peer: Peer,
        message: msgspec.Struct,
        payload: bytes | memoryview | None,
    ) -> bool:
        kind = type(message)
        if kind is Refusal:
            assert isinstance(message, Refusal)
            self.count(f"errors_{error_label(message.code)}")
        frames: list[bytes | zmq.Frame] = [self._envelope(message)]
        if payload is not None:
            frames.append(payload if isinstance(payload, bytes) else _frame_of(payload))
        size_bytes = sum(map(len, frames))
        is_held_back = payload is not None or kind in _HELD_BACK
        if not self._has_room(peer, kind, size_bytes, is_held_back=is_held_back):
            return False
        outcome = self._port.send(peer.routing_id, *frames)
        if outcome is SendOutcome.SENT:
            self._in_flight.add(peer.connection, size_bytes)
            if kind is NodeRegistered or kind is ConnectionJoined:
                self._port.admit(peer, _NODE_SIZE_BYTES_MAX)
            elif kind is NodeRefused:
                self._port.dismiss(peer)
            return True
        self.count(f"messages_{outcome.value}")
        if outcome is SendOutcome.FULL and not is_held_back:
            self._end(peer.connection)
        return False

    def _envelope(self, message: msgspec.Struct) -> bytes:
        """Return the first frame; what many are sent is encoded once."""
        kind = type(message)
        if kind is Question or kind is Told:
            return codec.encode(message)
        if isinstance(message, StateDescribed | StatesListed):
            return codec.encode(self._routes.with_routes(message))
        if not isinstance(message, ApplyEntries):
            return codec.encode(message)
        # An entry goes to all nodes of a job, and may be large.
        if self._encoded is None or self._encoded[0] is not message:
            self._encoded = (message, codec.encode(message))
        return self._encoded[1]

    def _has_room(
        self,
        peer: Peer,
        kind: type[msgspec.Struct],
        size_bytes: int,
        *,
        is_held_back: bool,
    ) -> bool:
        """Return whether a message may wait for a peer; end one that reads nothing."""
        connection, unread = peer.connection, self._unread
        if self._deaf.has_ended(connection):
            return False
        if is_held_back:
            if kind is Question:
                is_full = unread.is_link_full(connection, size_bytes)
            else:
                is_full = unread.is_too_much(connection, size_bytes)
            if is_full:
                self.count("messages_held_back")
                if not self._in_flight.of(connection):
                    self._make_room()  # it is not its own fault
            return not is_full
        size_bytes_max = unread.share_bytes
        if kind in _TO_NODES:
            size_bytes_max = _LINK_SIZE_BYTES_MAX
        if not self._deaf.is_deaf(connection, size_bytes_max):
            return True
        self._end(connection)
        return False

    def _make_room(self) -> None:
        """End the one that has most of all that have too much, and read nothing."""
        now_ns = self._clock.now_ns()
        if now_ns < self._room_due_ns:
            return
        self._room_due_ns = now_ns + _ROOM_NS
        share_bytes = self._unread.share_bytes
        deaf = [
            connection
            for connection in self._in_flight.above(share_bytes)
            if not self._deaf.has_ended(connection)
            and self._deaf.is_deaf(connection, share_bytes)
        ]
        if deaf:
            self._end(max(deaf, key=self._in_flight.of))

    def _end(self, connection: ConnectionId) -> None:
        """Close a connection whose peer reads nothing; hand it nothing more."""
        self.count("peers_ended")
        if self.may_log("peer"):
            self._log.warning("peer.ended", reason="it does not read its answers")
        self._deaf.end(connection)
        self._port.limiter.disconnect(connection)


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
