"""`NodePort`: where a node, or a reader of its rows, is asked, and by whom."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, final

from nameservice import NS_PER_SECOND, RemoteProtocolError, get_logger
from queryablestate.wire.codec import FRAME_COUNT_MAX
from zmqtransport import (
    Authenticator,
    DeafPeers,
    Port,
    SendOutcome,
    SocketLimits,
    connection_limit,
    open_files_bound,
)
from zmqtransport.inflow import Inflow
from zmqtransport.inflow_guard import InflowGuard


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import zmq

    from nameservice import Clock
    from queryablestate.node.config import NodeConfig
    from zmqtransport import (
        AllowList,
        BytesInFlight,
        ConnectionEvent,
        ConnectionId,
        CurveKeyPair,
        Endpoint,
        Peer,
        PollLoop,
        ZMQContext,
    )


__all__ = ["NodePort"]

_UNREAD_SIZE_BYTES_MAX: Final = 64 << 10
_SILENCE_NS: Final = 5 * NS_PER_SECOND
"""Who has more than that to read, and reads nothing for so long, is told no more."""


@final
class NodePort:
    """
    A port, and who may send anything there; for the thread of *loop*.

    A peer that reads nothing of what it is sent is ended (rule B1): what it is told can
    not be held back, and any number of peers may ask for it.  How many answers may wait
    is bounded before they are read: see `UnreadAnswers`.

    Args:
        config: How many connections there may be.
        bind: Where it listens.
        context: Of its sockets.
        key_pair: Its keys, or None.
        allow_list: Whom to admit, or None for all.
        frame_size_bytes_max: A peer that sends more is disconnected.
        loop: Serves it.
        clock: For what may be logged.
        component: Likewise: who says it.
        on_message: Is told each message of those that are admitted.
        on_closed: Is told which peers are over.
        in_flight: Is told what peers are sent, pages excepted: who copies asks for one
            when it has room.

    Attributes:
        port: The port.

    Raises:
        ConfigurationError: If it cannot be bound, or a key cannot be used.
    """

    def __init__(
        self,
        config: NodeConfig,
        bind: Endpoint,
        *,
        context: ZMQContext,
        key_pair: CurveKeyPair | None,
        allow_list: AllowList | None,
        frame_size_bytes_max: int,
        loop: PollLoop,
        clock: Clock,
        component: str,
        on_message: Callable[[Peer, list[zmq.Frame]], None],
        on_closed: Callable[[Sequence[Peer]], None],
        in_flight: BytesInFlight,
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._log = get_logger(component=component)
        self._in_flight = in_flight
        self._deaf = DeafPeers(in_flight, clock, silence_ns=_SILENCE_NS)
        self._connections: dict[bytes, ConnectionId] = {}
        with ExitStack() as resources:
            self._authenticator = Authenticator(
                context,
                allow_list,
                may_log=lambda: self.port.may_log("unauthorized"),
            )
            resources.callback(self._authenticator.close)
            inflow = Inflow.of_frames(
                frame_size_bytes_max, is_secured=key_pair is not None
            )
            self.port = Port(
                context,
                bind,
                SocketLimits(frame_size_bytes_max=frame_size_bytes_max),
                key_pair,
                authenticator=self._authenticator,
                connections_max=connection_limit(
                    config.connections_max,
                    # Half is for its files, and for connections that it opens itself;
                    # and a quarter comes on top for those over which no admitted peer
                    # has spoken yet.
                    open_files_bound(fifth_count=2),
                    log=self._log,
                ),
                inflow=inflow,
                loop=loop,
                clock=clock,
                component=component,
                frame_count_max=1 + FRAME_COUNT_MAX,
                on_message=self._admit,
                on_closed=self._closed,
                on_events=self._observe,
                is_told_who_spoke=True,
            )
            resources.callback(self.port.close)
            self._guard = InflowGuard(
                inflow,
                ports=(self.port.endpoint.port,),
                memory_limit_bytes=None,
                clock=clock,
                component=component,
                disconnect=self.port.limiter.disconnect,
            )
            resources.callback(self._guard.close)
            self._guard.start()
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Close it, when the loop ends."""
        self._resources.close()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the port by name."""
        return {
            **self.port.figures(),
            "connections_ended_total": self._guard.ended_count,
        }

    def public_key_of(self, frame: zmq.Frame) -> str | None:
        """Return whose key the sender of *frame* has proved to hold, or None."""
        return self._authenticator.public_key_of(frame)

    def send(self, peer: bytes, *frames: bytes) -> bool:
        """
        Send now or not at all; return whether ZeroMQ has taken it.

        A client whose answer was not taken asks the proxy when that is late.
        """
        connection = self._connections.get(peer)
        if connection is not None and not self._may_be_told(connection):
            return False
        return self._hand(peer, connection, frames) is SendOutcome.SENT

    def tell(self, peer: bytes, frame: bytes) -> None:
        """Send what a peer waits for; end one that leaves it no room."""
        connection = self._connections.get(peer)
        if connection is None:
            self._hand(peer, None, (frame,))
        elif (
            self._may_be_told(connection)
            and self._hand(peer, connection, (frame,)) is SendOutcome.FULL
        ):
            self._end(connection)

    def send_page(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send rows that a node copies; return whether ZeroMQ has taken them."""
        return self.port.send(peer, *frames) is SendOutcome.SENT

    def _may_be_told(self, connection: ConnectionId) -> bool:
        """Return whether a peer may be told more; end one that reads nothing."""
        if self._in_flight.of(connection) <= _UNREAD_SIZE_BYTES_MAX:
            return not self._deaf.has_ended(connection)
        if self._deaf.has_ended(connection):
            return False
        if self._deaf.is_deaf(connection, _UNREAD_SIZE_BYTES_MAX):
            self._end(connection)
            return False
        return True

    def _hand(
        self, peer: bytes, connection: ConnectionId | None, frames: Sequence[bytes]
    ) -> SendOutcome:
        """Hand ZeroMQ a message, and count it."""
        outcome = self.port.send(peer, *frames)
        if outcome is SendOutcome.SENT and connection is not None:
            self._in_flight.add(connection, sum(map(len, frames)))
        return outcome

    def _end(self, connection: ConnectionId) -> None:
        """Close a connection whose peer reads nothing; hand it nothing more."""
        self.port.count("peers_ended")
        if self.port.may_log("peer"):
            self._log.warning("peer.ended", reason="it does not read its answers")
        self._deaf.end(connection)
        self.port.limiter.disconnect(connection)

    def _observe(self, events: Sequence[ConnectionEvent]) -> None:
        self._in_flight.observe(events)
        self._deaf.observe(events)

    def _closed(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            if self._connections.get(peer.routing_id) == peer.connection:
                del self._connections[peer.routing_id]
        self._on_closed(peers)

    def _admit(self, peer: Peer, frames: list[zmq.Frame]) -> None:
        if self._deaf.has_ended(peer.connection):
            return
        # The allow-list may have changed since the peer has connected.
        if self._authenticator.principal_of(frames[0]) is None:
            self.port.drop(
                RemoteProtocolError("unauthorized", "it is on the allow-list no more")
            )
            return
        self.port.limiter.spoke(peer.connection)
        self._connections[peer.routing_id] = peer.connection
        self._on_message(peer, frames)
