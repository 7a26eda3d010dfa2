"""
`Port`: a server's ROUTER, who is connected to it, and whose connection is over.

What is the same for each server stands here: binding, admitting, the limit of
connections, which peer a message came from, the end of a connection in the right order
(`zmqtransport.connections`), and what comes to nothing.  What a message means, how
large it may be and what is answered is decided by the server.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, final

import zmq

from nameservice import (
    DidNotHappenError,
    LocalProtocolError,
    RemoteProtocolError,
    get_logger,
)
from zmqtransport.connection_limiter import ConnectionLimiter
from zmqtransport.connections import (
    ConnectionAccepted,
    ConnectionClosed,
    connection_of,
)
from zmqtransport.listeners import Listener
from zmqtransport.log_budget import LogBudget
from zmqtransport.peers import PeerTable
from zmqtransport.sockets import SendOutcome, send_now


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nameservice import Clock
    from zmqtransport.authentication import Authenticator
    from zmqtransport.connections import ConnectionEvent
    from zmqtransport.curve import CurveKeyPair
    from zmqtransport.endpoints import Endpoint
    from zmqtransport.inflow import Inflow
    from zmqtransport.loop import PollLoop
    from zmqtransport.peers import Peer
    from zmqtransport.sockets import SocketLimits, ZMQContext


__all__ = ["Port"]


@final
class Port:
    """
    A bound ROUTER; all of it belongs to the thread of *loop*, which serves it.

    Close it when the loop ends, before *authenticator*.

    Args:
        context: Of the socket.
        endpoint: Where to bind.
        limits: Of the socket.
        key_pair: The server's keys, or None.
        authenticator: Says who may connect; it is served, too.
        connections_max: How many connections there may be.
        inflow: Is told what came in.
        loop: Serves it.
        clock: For what may be logged.
        component: What is logged is bound to it.
        frame_count_max: Longer messages are cut, the routing id counted.
        on_message: Is told each message: who sent it, and all its frames.
        on_closed: Is told which peers are over.
        on_events: Is told what happens to connections, each event once.
        is_told_who_spoke: Whether ``limiter.spoke`` will be called.

    Attributes:
        endpoint: Where it is bound: with the real port.
        socket: The ROUTER.
        limiter: Keeps connections at or below their limit.
        listener: Replaces its keys.
        peers: Who has said something.

    Raises:
        ConfigurationError: If it cannot be bound; nothing stays open then.
    """

    def __init__(
        self,
        context: ZMQContext,
        endpoint: Endpoint,
        limits: SocketLimits,
        key_pair: CurveKeyPair | None,
        *,
        authenticator: Authenticator,
        connections_max: int,
        inflow: Inflow,
        loop: PollLoop,
        clock: Clock,
        component: str,
        frame_count_max: int,
        on_message: Callable[[Peer, list[zmq.Frame]], None],
        on_closed: Callable[[Sequence[Peer]], None] = lambda _: None,
        on_events: Callable[[Sequence[ConnectionEvent]], None] = lambda _: None,
        is_told_who_spoke: bool = False,
    ) -> None:
        self._authenticator = authenticator
        self._inflow = inflow
        self._loop = loop
        self._clock = clock
        self._on_message = on_message
        self._on_closed = on_closed
        self._on_events = on_events
        self._log = get_logger(component=component)
        self._budget = LogBudget()
        self._counts: Counter[str] = Counter()
        self._is_watch_due = False
        self._received_bytes = 0
        self._sent_bytes = 0
        self.peers = PeerTable()
        self.listener = Listener(context, zmq.ROUTER, endpoint, limits, key_pair)
        self.endpoint = self.listener.endpoint
        self.socket = self.listener.socket
        self.limiter = ConnectionLimiter(
            connections_max,
            port=self.endpoint.port,
            is_told_who_spoke=is_told_who_spoke,
        )
        loop.add_readable(authenticator.socket, authenticator.handle)
        loop.add_readable(self.listener.monitor.socket, self.watch)
        loop.add_socket(self.socket, self._receive, frame_count_max=frame_count_max)

    def close(self) -> None:
        """Close the socket and what belongs to it, when the loop ends."""
        self.listener.close()

    def figures(self) -> Mapping[str, int]:
        """Return the figures of the port by name."""
        return {
            "connections": self.limiter.connection_count,
            "connections_refused_total": self.limiter.refused_count,
            "connections_unauthorized_total": self._authenticator.refused_count,
            "received_bytes_total": self._received_bytes,
            "sent_bytes_total": self._sent_bytes,
            **{f"{name}_total": count for name, count in sorted(self._counts.items())},
        }

    def send(self, routing_id: bytes, *frames: bytes | zmq.Frame) -> SendOutcome:
        """Send one message now or not at all; return what became of it."""
        outcome = send_now(self.socket, (routing_id, *frames))
        if outcome is SendOutcome.SENT:
            self._sent_bytes += sum(map(len, frames))
        return outcome

    def admit(self, peer: Peer, bytes_max: int | None = None) -> None:
        """Have *peer* be no stranger (`Inflow.admit`), unless it is over."""
        # The number of a connection that is over may be another one's by now.
        if not self.peers.is_gone(peer):
            self._inflow.admit(peer.connection, bytes_max)

    def dismiss(self, peer: Peer) -> None:
        """Have *peer* be a stranger again, unless it is over."""
        if not self.peers.is_gone(peer):
            self._inflow.dismiss(peer.connection)

    # -- in ----------------------------------------------------------------------------

    def _receive(self, frames: list[zmq.Frame]) -> None:
        try:
            connection = connection_of(frames[0])
        except RemoteProtocolError as error:
            self.drop(error)
            return
        _, *sizes_bytes = map(len, frames)
        self._received_bytes += sum(sizes_bytes)
        self._inflow.given(connection, sizes_bytes)
        routing_id = frames[0].bytes
        peer = self.peers.find(connection, routing_id)
        if peer is None:
            self._take(self.listener.monitor.receive())
            peer = self.peers.add(connection, routing_id)
        if self.peers.has_over:
            self._watch_soon()
        self._on_message(peer, frames)

    def watch(self, told: Sequence[ConnectionEvent] = ()) -> None:
        """
        Tell whose connection closed, behind what it has brought.

        Args:
            told: What was read from the monitor elsewhere.
        """
        self._is_watch_due = False
        self._take([*told, *self.listener.monitor.receive()])
        over = self.peers.over()
        if not over:
            return
        self._loop.drain(self.socket)
        over = self.peers.remove(over)
        if over:
            self._on_closed(over)

    def _take(self, events: Sequence[ConnectionEvent]) -> None:
        """Take what the monitor has told."""
        now_ns = self._clock.now_ns()
        for event in events:
            match event:
                case ConnectionAccepted(connection_id=connection):
                    self._inflow.opened(connection, now_ns=now_ns)
                    self.peers.accepted(connection)
                case ConnectionClosed(connection_id=connection):
                    self._inflow.closed(connection)
                    self.peers.closed(connection)
                case _:
                    pass
        if events:
            self.limiter.observe(events)
            self._on_events(events)

    def _watch_soon(self) -> None:
        """Watch behind what waits."""
        if self._is_watch_due:
            return
        # If the loop has no room for calls, with the next message; when it ends, never.
        with suppress(LocalProtocolError, DidNotHappenError):
            self._loop.call_soon_threadsafe(self.watch)
            self._is_watch_due = True

    # -- what comes to nothing ---------------------------------------------------------

    def count(self, name: str) -> None:
        """Count something that has no other trace."""
        self._counts[name] += 1

    def drop(self, error: RemoteProtocolError) -> None:
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
