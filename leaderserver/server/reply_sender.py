"""
`ReplySender`: the way out of a LeaderServer, with its queues in bytes (rule N3).

What may wait for whom is decided by `ReplyQueues`; here are the socket and the looks at
the kernel.  A client that reads costs no more than before: what it is sent goes to
ZeroMQ at once.  For one that does not, its queue is tried again every few milliseconds:
a ROUTER does not tell when there is room again.

A connection that is ended lives on in ZeroMQ until what it brought is read: ZeroMQ does
not look at it while its queue is full, and takes what it is handed for it (measured).
So nothing more is handed, and what it has asked for is not done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from leaderserver import codec
from leaderserver.messages import FailedReply, Failure, Reply, UncertainReply
from leaderserver.operator_messages import (
    ComponentsReply,
    ContendersReply,
    SessionsReply,
    StatusReply,
)
from leaderserver.server.core.reply_queues import ReplyQueues
from leaderserver.store_messages import PathsReply, ValueReply
from nameservice import NS_PER_SECOND, LocalProtocolError, get_logger
from zmqtransport import SendOutcome, framing, send_now, tcp_progress


if TYPE_CHECKING:
    from collections.abc import Callable

    from leaderserver.messages import ToClient
    from leaderserver.server.core.reply_queues import QueueLimits
    from nameservice import Clock
    from zmqtransport import ConnectionId, ZMQSocket


__all__ = ["ReplySender"]

_RETRY_NS: Final = 5 * NS_PER_SECOND // 1_000
_BULK: Final = (
    ComponentsReply,
    ContendersReply,
    PathsReply,
    SessionsReply,
    StatusReply,
    ValueReply,
)


@final
class ReplySender:
    """
    Sends over one ROUTER, and keeps what can not go yet.

    It belongs to the thread of the loop.

    Args:
        router: Where answers go out.
        limits: How much may wait.
        clock: When it is.
        disconnect: Ends a connection.
        count: Counts what became of a message that was not sent, by name.
        may_log: Is asked before each line that a client causes.

    Attributes:
        sent_bytes: What ZeroMQ has taken.
    """

    def __init__(
        self,
        router: ZMQSocket,
        limits: QueueLimits,
        *,
        clock: Clock,
        disconnect: Callable[[ConnectionId], None],
        count: Callable[[str], None],
        may_log: Callable[[str], bool],
    ) -> None:
        self._router = router
        self._queues = ReplyQueues(limits)
        self._clock = clock
        self._disconnect = disconnect
        self._count = count
        self._may_log = may_log
        self._connections: dict[bytes, ConnectionId] = {}
        self._ended: dict[bytes, ConnectionId] = {}
        self._retry_due_ns: int | None = None
        self._log = get_logger(component="leaderserver")
        self.sent_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes wait to be read, as far as is known."""
        return self._queues.queued_bytes

    @property
    def waiting_count(self) -> int:
        """Return how many clients have not read what is there for them."""
        return len(self._queues.waiting)

    def limit(self, limits: QueueLimits) -> None:
        """Set how much may wait from the next message on."""
        self._queues.limits = limits

    def heard(self, peer: bytes, connection: ConnectionId) -> bool:
        """
        Record which connection leads to *peer*.

        Returns:
            False if that was ended: do nothing that *peer* has asked for.
        """
        if peer in self._ended:
            if self._ended[peer] == connection:
                return False
            del self._ended[peer]  # it is back: a client may name itself
        self._connections[peer] = connection
        return True

    def closed(self, peer: bytes, connection: ConnectionId) -> None:
        """Drop what waits for *peer* if that was its connection: it is over."""
        if self._ended.get(peer) == connection:
            del self._ended[peer]
        if self._connections.get(peer, connection) == connection:
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        self._connections.pop(peer, None)
        self._queues.forget(peer)

    def send(self, peer: bytes, message: ToClient) -> None:
        """Send *message*, or keep it until its client has read what came before."""
        if peer in self._ended:
            self._count("replies_unroutable")
            return
        try:
            payload = codec.encode(message)
        except LocalProtocolError as error:
            self._count("replies_unencodable")
            self._log.error("message.unencodable", error=str(error))
            if not isinstance(message, Reply):
                return
            # Whatever was asked has been done: that is all that can be said of it.
            doubt = UncertainReply(detail=str(error))
            message = Reply(number=message.number, body=doubt)
            payload = codec.encode(message)
        if self._queues.hand_at_once(peer, len(payload)):
            self._hand_over(peer, payload)
            self._settle(peer)
            return
        is_bulk = isinstance(message, Reply) and isinstance(message.body, _BULK)
        if not self._queues.admits(peer, len(payload), is_bulk=is_bulk):
            self._look(peer)
            if not self._queues.admits(peer, len(payload), is_bulk=is_bulk):
                self._refuse(peer, message, is_bulk=is_bulk)
                return
        self._queues.add(peer, payload, is_bulk=is_bulk)
        self._flush(peer)

    def next_deadline_ns(self) -> int | None:
        """Return when `retry` is due, or None if nothing waits."""
        return self._retry_due_ns

    def retry(self) -> None:
        """Send what there is room for now, if it is time to try again."""
        now_ns = self._clock.now_ns()
        if self._retry_due_ns is None or now_ns < self._retry_due_ns:
            return
        self._retry_due_ns = None
        for peer in self._queues.waiting:
            self._look(peer)
            self._flush(peer)

    def _refuse(self, peer: bytes, message: ToClient, *, is_bulk: bool) -> None:
        """Tell a client that it has to read first; if it can be told even that."""
        self._count("replies_full")
        if not is_bulk or not isinstance(message, Reply):
            return
        failed = FailedReply(
            reason=Failure.LIMIT_REACHED,
            detail="too much waits already for this client to read it",
        )
        payload = codec.encode(Reply(number=message.number, body=failed))
        if self._queues.admits(peer, len(payload), is_bulk=False):
            self._queues.add(peer, payload, is_bulk=False)
            self._flush(peer)

    def _flush(self, peer: bytes) -> None:
        """Hand ZeroMQ what it may have."""
        has_looked = False
        while True:
            payload = self._queues.take(peer)
            if payload is None:
                if has_looked or not self._queues.is_waiting(peer):
                    break
                has_looked = True
                self._look(peer)
                continue
            if not self._hand_over(peer, payload) or not self._queues.is_waiting(peer):
                break
        self._settle(peer)

    def _hand_over(self, peer: bytes, payload: bytes) -> bool:
        """Hand ZeroMQ what counts as handed already; return whether it took it."""
        outcome = send_now(self._router, [peer, *framing.encode(payload)])
        if outcome is SendOutcome.FULL:
            self._queues.put_back(peer, payload)
            return False
        if outcome is SendOutcome.UNROUTABLE:
            self._count("replies_unroutable")
            self._forget(peer)
            return False
        self.sent_bytes += len(payload)
        return True

    def _settle(self, peer: bytes) -> None:
        """Forget a client that nothing is known of; come back to what waits."""
        if peer not in self._connections:
            self._queues.forget(peer)  # nothing would tell us when it is over
        elif self._retry_due_ns is None and self._queues.is_waiting(peer):
            self._retry_due_ns = self._clock.now_ns() + _RETRY_NS
        if self._queues.is_over_limit:
            self._make_room()

    def _look(self, peer: bytes) -> None:
        """See how much the connection of *peer* has taken."""
        connection = self._connections.get(peer)
        progress = None if connection is None else tcp_progress(connection)
        written_bytes = None if progress is None else progress.written_bytes
        self._queues.written(peer, written_bytes)

    def _make_room(self) -> None:
        """Look at all connections, then end those with the most."""
        for peer in self._queues.holders():
            self._look(peer)
        while self._queues.is_over_limit:
            greediest = self._queues.greediest()
            assert greediest is not None
            connection = self._connections.get(greediest)
            self._forget(greediest)
            self._count("peers_ended")
            if self._may_log("peer"):
                self._log.warning("peer.ended", reason="it does not read its replies")
            if connection is not None:
                self._ended[greediest] = connection
                self._disconnect(connection)
