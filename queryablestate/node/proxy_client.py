"""
`QueryStateProxyClient`: joins a state node to the proxy server.

It finds the proxy leader by the name service, and keeps one DEALER connected to it,
over which the node registers, is given commands, is asked, and answers.  What to
connect to and what to say is `NodeCore`'s business; here are the socket, and what of it
is nothing that the core should see: frames that are no messages.

What is on its way is counted in bytes (`queryablestate.node.departures`).  Answers that
are large tell when they are gone, and while too much is on its way, nothing more is
read in the loop.  Large ones have a connection of their own
(`queryablestate.node.second_connection`).

libzmq connects again by itself, with the exceptions of `zmqtransport.connections`
(*Finality*).  In these the core hears nothing for a while, and asks for a new
connection.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import (
    QUERY_PROXY,
    LocalProtocolError,
    NameServiceError,
    RemoteProtocolError,
    get_logger,
)
from nameservice.clock import earliest
from queryablestate.connect.credentials import Credentials, dealer_to, load_caller_keys
from queryablestate.node.core.core import check_command
from queryablestate.node.core.events import (
    CommandReceived,
    NodeEvent,
    ProxyConnected,
    ProxyDisconnected,
    ProxyFound,
)
from queryablestate.node.departures import Departures
from queryablestate.node.second_connection import (
    LARGE_SIZE_BYTES_MIN,
    SecondConnection,
)
from queryablestate.wire.address import StateAddress, parse_address
from queryablestate.wire.codec import FRAME_COUNT_MAX, decode_to_node, encode
from queryablestate.wire.node_messages import ConnectionJoined
from queryablestate.wire.questions import Question
from zmqtransport import (
    ConnectionClosed,
    ConnectionOpened,
    HandshakeFailed,
    HandshakeSucceeded,
    LogBudget,
    PollLoop,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    handshake_error,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from haservices import HAServices
    from nameservice import Clock
    from queryablestate.wire.node_messages import JoinConnection
    from retrieval import LeaderInformation
    from zmqtransport import ConnectionEvent, Dealer


__all__ = ["NODE_TO_PROXY_SOCKET_LIMITS", "QueryStateProxyClient"]

NODE_TO_PROXY_SOCKET_LIMITS: Final = SocketLimits(
    send_queue_count_max=10_000,
    receive_queue_count_max=10_000,
    frame_size_bytes_max=64 * 1024 * 1024,
    silence_timeout_ms=10_000,
)


@final
class QueryStateProxyClient:
    """
    A node's connection to the proxy that leads.

    All of it belongs to the thread of *loop*, but for `start` and `stop_finding`.

    Args:
        ha: The name service; stays its owner's.
        credentials: What the node shows a proxy.
        loop: Serves the socket.
        context: Of the socket.
        clock: For the log only.
        on_event: Is told what happens.
        on_question: Is told each question, with its second frame.
        join: Returns what a second connection says of itself; None if there may be
            none now.

    Attributes:
        link: The number of the present connection; rises with each.
        problem: Why the last connection came to nothing, or None.
        counts: Frames that were dropped or not sent, by reason.
        received_bytes: Of all messages.
        sent_bytes: Likewise.
    """

    def __init__(
        self,
        ha: HAServices,
        credentials: Credentials,
        *,
        loop: PollLoop,
        context: ZMQContext,
        clock: Clock,
        on_event: Callable[[NodeEvent], None],
        on_question: Callable[[Question, bytes], None],
        join: Callable[[], JoinConnection | None] = lambda: None,
    ) -> None:
        self._ha = ha
        self._credentials = credentials
        self._loop = loop
        self._context = context
        self._clock = clock
        self._on_event = on_event
        self._on_question = on_question
        self._join = join
        self._budget = LogBudget()
        self._log = get_logger(component="state-node")
        self._retriever = ha.get_leader_retriever(QUERY_PROXY)
        self._dealer: Dealer | None = None
        self._address = ""
        self._first = Departures(clock)
        self._second: SecondConnection | None = None
        self._has_no_second = False
        self.link = 0
        self.problem: NameServiceError | None = None
        self.counts: dict[str, int] = {}
        self.received_bytes = 0
        self.sent_bytes = 0

    # -- finding -------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look for the proxy leader; from any thread."""
        self._retriever.start(self)

    def stop_finding(self) -> None:
        """Look no more; from any thread but the loop's.  Idempotent."""
        self._retriever.close()

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Tell the node who leads; on the retriever's thread."""
        if leader is None:
            return  # the proxy that led has no one to answer to yet; the node waits
        event = ProxyFound(address=leader.address, epoch=leader.epoch)
        self._post(partial(self._on_event, event))

    def handle_error(self, error: Exception) -> None:
        """Take note of trouble with the name service; what was known stays."""
        self._log.warning("retrieval.failed", error=str(error))

    def _post(self, action: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(action)
        except LocalProtocolError:
            return  # the node is closing

    # -- the connection ------------------------------------------------------------

    def connect(self, text: str) -> None:
        """Leave the present connection, and open one to the address *text*."""
        self.disconnect()
        self._has_no_second = False
        self.link += 1
        self._address = text
        try:
            self._open(parse_address(text))
        except NameServiceError as error:
            # The core asks again after a while: keys and the network may change.
            self.problem = error
            self._drop("unconnected", str(error))

    def disconnect(self) -> None:
        """Close the present connection, if there is one."""
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None
        self._over()

    def _over(self) -> None:
        """Note that the first connection is over; the second one was joined to it."""
        self._first.over()
        if self._second is not None:
            self._second.close()
            self._second = None

    def send(
        self,
        message: msgspec.Struct,
        payload: bytes | zmq.Frame | None = None,
        *,
        link: int = 0,
        on_gone: Callable[[], None] | None = None,
    ) -> bool:
        """
        Send now, or not at all.

        Args:
            message: The first frame.
            payload: The second.
            link: The connection that *message* answers over; 0 for the present one.
            on_gone: Is called once, when the message takes no memory any more: the
                kernel has it and it is released, or it was not sent, or its connection
                is over.

        Returns:
            False if the proxy takes no more; True if it has been sent, or if none is
            there to be told.
        """
        if self._dealer is None or link not in {0, self.link}:
            if on_gone is not None:
                on_gone()
            return True
        envelope = encode(message)
        frames = [envelope] if payload is None else [envelope, payload]
        is_large = payload is not None and len(payload) > LARGE_SIZE_BYTES_MIN
        size_bytes = sum(map(len, frames))
        if is_large and self._sent_over_second(frames, on_gone):
            self.sent_bytes += size_bytes
            return True
        outcome = send_now(self._dealer.socket, frames)
        if outcome is SendOutcome.SENT:
            self.sent_bytes += size_bytes
            self._first.add(size_bytes, on_gone, payload)
            return True
        if on_gone is not None:
            on_gone()
        self._drop(f"unsent-{outcome.value}", "the proxy takes no more")
        return False

    @property
    def is_congested(self) -> bool:
        """Return whether more waits to be sent than may wait for long (rule B1)."""
        second = self._second
        return self._first.is_congested or (
            second is not None and second.departures.is_congested
        )

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` is to be called, or None."""
        first_ns, second = self._first.next_deadline_ns(), self._second
        if second is None:
            return first_ns
        return earliest((first_ns, second.departures.next_deadline_ns()))

    def advance(self) -> None:
        """Look what has gone meanwhile, if it is time."""
        self._first.advance()
        if self._second is not None:
            self._second.departures.advance()

    def _sent_over_second(
        self,
        frames: Sequence[bytes | zmq.Frame],
        on_gone: Callable[[], None] | None,
    ) -> bool:
        """Send a large answer over a connection of its own, if that can be used."""
        if self._second is None:
            self._open_second()
        return self._second is not None and self._second.send(frames, on_gone)

    def _open_second(self) -> None:
        """Open a second connection, if there may be one and there was none yet."""
        if self._has_no_second or self._join() is None:
            return
        try:
            dealer = self._dealer_to(parse_address(self._address))
        except NameServiceError as error:
            self._has_no_second = True
            self._drop("unconnected", str(error))
            return
        self._second = SecondConnection(
            dealer,
            self._join,
            loop=self._loop,
            clock=self._clock,
            on_lost=lambda: self._on_event(ProxyDisconnected()),
        )

    def _dealer_to(self, address: StateAddress) -> Dealer:
        key_pair = load_caller_keys(self._credentials, self._ha.config, address)
        return dealer_to(self._context, address, key_pair, NODE_TO_PROXY_SOCKET_LIMITS)

    def _open(self, address: StateAddress) -> None:
        self._dealer = self._dealer_to(address)
        self._dealer.serve(
            self._loop,
            on_event=self._watch,
            on_message=self._receive,
            frame_count_max=FRAME_COUNT_MAX,
        )

    def _watch(self, event: ConnectionEvent) -> None:
        match event:
            case ConnectionOpened(connection_id=connection_id):
                self._first.opened(connection_id)
            case HandshakeSucceeded():
                self.problem = None
                self._on_event(ProxyConnected())
            case ConnectionClosed():
                # ZeroMQ makes another: what was asked over this one is not for that.
                self.link += 1
                self._over()
                self._on_event(ProxyDisconnected())
            case HandshakeFailed():
                self.problem = handshake_error(event, target=self._address)
                self._drop("handshake-failed", str(self.problem))
                self._on_event(ProxyDisconnected())
            case _:
                pass

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take one message."""
        self.received_bytes += sum(map(len, frames))
        try:
            message = decode_to_node(frames[0].bytes)
            if isinstance(message, Question):
                payload = frames[1].bytes if len(frames) == FRAME_COUNT_MAX else b""
                self._on_question(message, payload)
                return
            if isinstance(message, ConnectionJoined):
                return  # it is for the second connection
            check_command(message)
        except RemoteProtocolError as error:
            self._drop(error.reason, error.detail)
            return
        self._on_event(CommandReceived(command=message))

    def _drop(self, reason: str, detail: str) -> None:
        """Count what comes to nothing, and say so if the log has room."""
        name = reason.replace("-", "_")
        self.counts[name] = self.counts.get(name, 0) + 1
        if self._budget.admits(reason, now_ns=self._clock.now_ns()):
            self._log.warning("proxy.frame_dropped", reason=reason, detail=detail[:200])
