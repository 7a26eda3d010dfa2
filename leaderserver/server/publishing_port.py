"""
`PublishingPort`: the XPUB socket of a LeaderServer, on a thread of its own.

Subscriptions are work for the thread that the socket belongs to: libzmq enters each of
them there, and goes on as long as more come.  A flood of them would keep heartbeats
waiting (measured: long enough to cost a leader its lease).  So this port has a thread,
and the server's hands it what is to be published.

libzmq does not ask who may subscribe to what.  So only those come in here who may
observe everything; those who may observe some hear of changes over the request port.

What is handed over and not yet sent has a limit in bytes.  A change beyond it is
dropped, as one is that a slow subscriber has no room for; the gap shows in the
revisions (rule N1).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, final

import zmq

from leaderserver.server.core.topics import TopicTable
from nameservice import (
    DidNotHappenError,
    NameServiceError,
    RemoteProtocolError,
    get_logger,
)
from zmqtransport import (
    ZAP_DOMAIN_PUBLISHING,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionLimiter,
    Listener,
    PollLoop,
    connection_of,
    send_now,
)
from zmqtransport.log_budget import LogBudget


if TYPE_CHECKING:
    from collections.abc import Sequence

    from nameservice import Clock
    from zmqtransport import (
        ConnectionEvent,
        CurveKeyPair,
        Endpoint,
        SocketLimits,
        ZMQContext,
    )
    from zmqtransport.inflow import Inflow


__all__ = ["PublishingPort"]

_WAITING_BYTES_MAX: Final = 4 * 1024 * 1024


@final
class PublishingPort:
    """
    Publishes, and keeps what subscribers may do within its limits.

    Args:
        context: The server's, whose authenticator says who may connect.
        endpoint: Where to bind.
        limits: Of the socket.
        key_pair: The server's keys, or None.
        connections_max: How many subscribers there may be.
        topics: What they may subscribe to.
        inflow: Is told what came in.
        clock: When it is.

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
        connections_max: int,
        topics: TopicTable,
        inflow: Inflow,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._inflow = inflow
        self._budget = LogBudget()
        self._counts: Counter[str] = Counter()
        self._log = get_logger(component="leaderserver")
        self._handed_bytes = 0  # the server's thread counts these
        self._sent_bytes = 0  # and this one those
        self.listener = Listener(
            context,
            zmq.XPUB,
            endpoint,
            limits,
            key_pair,
            domain_secured=ZAP_DOMAIN_PUBLISHING,
        )
        try:
            self.loop = PollLoop(name="leaderserver-publisher", clock=clock)
        except BaseException:
            self.listener.close()
            raise
        self._socket = self.listener.socket
        self._socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        self.endpoint = self.listener.endpoint
        self.limiter = ConnectionLimiter(
            connections_max, port=self.endpoint.port, is_told_who_spoke=True
        )
        self.loop.at_end(self.listener.close)
        self.loop.add_readable(self.listener.monitor.socket, self._watch)
        self.loop.add_socket(self._socket, self._subscribe, frame_count_max=1)

    def start(self) -> None:
        """Begin to serve."""
        self.loop.start()

    def close(self) -> None:
        """Serve no more, and release everything.  Idempotent."""
        self.loop.stop()
        self.loop.join()

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send one message to all who subscribed to its topic, the first frame."""
        size_bytes = sum(map(len, frames))
        if self._handed_bytes - self._sent_bytes + size_bytes > _WAITING_BYTES_MAX:
            self._counts["broadcasts_dropped"] += 1
            return
        try:
            self.loop.call_soon_threadsafe(partial(self._send, frames, size_bytes))
        except DidNotHappenError:
            self._counts["broadcasts_dropped"] += 1
        else:
            self._handed_bytes += size_bytes

    def replace_keys(self, key_pair: CurveKeyPair) -> None:
        """
        Serve who connects from now on with *key_pair*, end all connections.

        Raises:
            LocalProtocolError: If it is closed.
        """
        self.loop.call_soon_threadsafe(partial(self._replace_keys, key_pair))

    def _replace_keys(self, key_pair: CurveKeyPair) -> None:
        try:
            events = self.listener.replace_keys(key_pair)
        except NameServiceError as error:
            self.loop.fail(error)
            return
        self._observe(events)

    def limit(
        self,
        *,
        connections_max: int,
        topics_per_connection_max: int,
        topics_max: int,
        bytes_max: int,
    ) -> None:
        """
        Take other limits soon; see `ConnectionLimiter` and `TopicTable`.

        Raises:
            LocalProtocolError: If it is closed.
        """

        def limit() -> None:
            self.limiter.connections_max = connections_max
            self._topics.limit(
                topics_per_connection_max=topics_per_connection_max,
                topics_max=topics_max,
                bytes_max=bytes_max,
            )

        self.loop.call_soon_threadsafe(limit)

    def disconnect_all(self) -> None:
        """
        End all connections: who still may, comes back at once.

        Raises:
            LocalProtocolError: If it is closed.
        """
        self.loop.call_soon_threadsafe(self._disconnect_all)

    def _disconnect_all(self) -> None:
        for connection in self._topics.connections:
            self.limiter.disconnect(connection)

    def figures(self) -> dict[str, int]:
        """Return its figures by name."""
        return {
            "subscribers": self.limiter.connection_count,
            "subscribers_refused_total": self.limiter.refused_count,
            "topics": len(self._topics),
            **{f"{name}_total": n for name, n in sorted(self._counts.items())},
        }

    def _send(self, frames: Sequence[bytes], size_bytes: int) -> None:
        self._sent_bytes += size_bytes
        send_now(self._socket, frames)

    def _watch(self) -> None:
        """Record connections that opened and closed."""
        self._observe(self.listener.monitor.receive())

    def _observe(self, events: Sequence[ConnectionEvent]) -> None:
        self.limiter.observe(events)
        now_ns = self._clock.now_ns()
        for event in events:
            match event:
                case ConnectionAccepted(connection_id=connection_id):
                    self._topics.opened(connection_id)
                    self._inflow.opened(connection_id, now_ns=now_ns)
                case ConnectionClosed(connection_id=connection_id):
                    self._topics.closed(connection_id)
                    self._inflow.closed(connection_id)
                case _:
                    pass

    def _subscribe(self, frames: list[zmq.Frame]) -> None:
        """Take one message of a subscriber; libzmq has acted on it already."""
        try:
            connection = connection_of(frames[0])
        except RemoteProtocolError:
            return  # libzmq's own: the subscriptions of a connection that closed
        if not self._topics.is_open(connection):
            self._watch()  # it may be new, and its report unread
        self.limiter.spoke(connection)
        now_ns = self._clock.now_ns()
        message = frames[0].bytes
        # Of ZMTP 3.1 a command, of 3.0 a frame; the former takes more.
        self._inflow.given(connection, [len(frame) for frame in frames])
        if message[:1] not in {b"\0", b"\1"}:
            self._counts["frames_not_a_subscription"] += 1
            if self._budget.admits("not-a-subscription", now_ns=now_ns):
                self._log.warning(
                    "frame.dropped",
                    reason="not-a-subscription",
                    detail="it came to the publishing port",
                )
        for excess in self._topics.changed(connection, message, now_ns=now_ns):
            self._counts["subscribers_ended"] += 1
            if self._budget.admits("subscriber", now_ns=now_ns):
                self._log.warning("subscriber.ended", reason="too many subscriptions")
            self.limiter.disconnect(excess)
