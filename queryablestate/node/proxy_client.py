"""
`QueryStateProxyClient`: joins a state node to the proxy server.

It finds the proxy leader by the name service, and keeps one DEALER connected to it,
over which the node registers, is given commands, is asked, and answers.  What to
connect to and what to say is `NodeCore`'s business; here are the socket, and what of it
is nothing that the core should see: frames that are no messages.

What is on its way is counted in bytes: ZeroMQ would hold thousands of answers of 16 MB
for a proxy that does not read (rule B1).  Large answers tell when they are gone, and
while too much is on its way, nothing more is read in the loop.

libzmq connects again by itself, with the exceptions of `zmqtransport.connections`
(*Finality*).  In these the core hears nothing for a while, and asks for a new
connection.
"""

from __future__ import annotations

from collections import deque
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
from nameservice.clock import NS_PER_MS
from queryablestate.connect.credentials import Credentials, dealer_to, load_caller_keys
from queryablestate.node.core.core import check_command
from queryablestate.node.core.events import (
    CommandReceived,
    NodeEvent,
    ProxyConnected,
    ProxyDisconnected,
    ProxyFound,
)
from queryablestate.wire.address import StateAddress, parse_address
from queryablestate.wire.codec import FRAME_COUNT_MAX, decode_to_node, encode
from queryablestate.wire.questions import Question
from zmqtransport import (
    BytesInFlight,
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
    from collections.abc import Callable

    import msgspec

    from haservices import HAServices
    from nameservice import Clock
    from retrieval import LeaderInformation
    from zmqtransport import ConnectionEvent, ConnectionId, Dealer


__all__ = ["NODE_TO_PROXY_SOCKET_LIMITS", "QueryStateProxyClient"]

NODE_TO_PROXY_SOCKET_LIMITS: Final = SocketLimits(
    send_queue_count_max=10_000,
    receive_queue_count_max=10_000,
    frame_size_bytes_max=64 * 1024 * 1024,
    silence_timeout_ms=10_000,
)

_IN_FLIGHT_SIZE_BYTES_MAX: Final = 4 << 20
_LOOK_NS: Final = 5 * NS_PER_MS


@final
class QueryStateProxyClient:
    """
    A node's connection to the proxy leader, whoever that is.

    All of it belongs to the thread of *loop*, but for `start` and `stop_finding`.

    Args:
        ha: The name service; stays its owner's.
        credentials: What the node shows a proxy.
        loop: Serves the socket.
        context: Of the socket.
        clock: For the log only.
        on_event: Is told what happens.
        on_question: Is told each question, with its second frame.

    Attributes:
        link: The number of the present connection; rises with each.
        problem: Why the last connection came to nothing, or None.
        counts: Frames that were dropped or not sent, by reason.
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
    ) -> None:
        self._ha = ha
        self._credentials = credentials
        self._loop = loop
        self._context = context
        self._clock = clock
        self._on_event = on_event
        self._on_question = on_question
        self._budget = LogBudget()
        self._log = get_logger(component="state-node")
        self._retriever = ha.get_leader_retriever(QUERY_PROXY)
        self._dealer: Dealer | None = None
        self._address = ""
        self._in_flight = BytesInFlight()
        self._connection: ConnectionId | None = None
        self._handed_bytes = 0
        # Up to where what was handed over must be gone, its size, and who is told then.
        self._departures: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._told_bytes = 0
        self._look_due_ns: int | None = None
        self.link = 0
        self.problem: NameServiceError | None = None
        self.counts: dict[str, int] = {}

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
            return  # the proxy that led has nobody to answer to yet; the node waits
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
        self._let_go()

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
                kernel has it, or it was not sent, or its connection is over.

        Returns:
            False if the proxy takes no more; True if it has been sent, or if nobody is
            there to be told.
        """
        if self._dealer is None or link not in {0, self.link}:
            if on_gone is not None:
                on_gone()
            return True
        envelope = encode(message)
        frames = [envelope] if payload is None else [envelope, payload]
        outcome = send_now(self._dealer.socket, frames)
        is_sent = outcome is SendOutcome.SENT
        if is_sent and self._connection is not None:
            size_bytes = sum(map(len, frames))
            self._handed_bytes += size_bytes
            self._in_flight.add(self._connection, size_bytes)
            if on_gone is not None:
                self._told_bytes += size_bytes
                self._departures.append((self._handed_bytes, size_bytes, on_gone))
                self._look()
        elif on_gone is not None:
            on_gone()
        if is_sent:
            return True
        self._drop(f"unsent-{outcome.value}", "the proxy takes no more")
        return False

    @property
    def is_congested(self) -> bool:
        """Return whether more waits to be sent than may wait for long (rule B1)."""
        connection = self._connection
        if connection is None:
            return False
        # Those whose leaving is told of are bounded by who reads them.
        small_max = _IN_FLIGHT_SIZE_BYTES_MAX + self._told_bytes
        return (
            self._in_flight.of(connection) > small_max
            and self._in_flight.look(connection) > small_max
        )

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` is to be called, or None."""
        return self._look_due_ns

    def advance(self) -> None:
        """Look what has gone meanwhile, if it is time."""
        if self._look_due_ns is not None and self._clock.now_ns() >= self._look_due_ns:
            self._look()

    def _look(self) -> None:
        """Tell of what the kernel has taken, and look again soon if that is not all."""
        self._look_due_ns = None
        if self._connection is None:
            return
        gone_bytes = self._handed_bytes - self._in_flight.look(self._connection)
        while self._departures and self._departures[0][0] <= gone_bytes:
            _, size_bytes, on_gone = self._departures.popleft()
            self._told_bytes -= size_bytes
            on_gone()
        if self._departures:
            self._look_due_ns = self._clock.now_ns() + _LOOK_NS

    def _let_go(self) -> None:
        """Take note that nothing is on its way any more: the connection is over."""
        self._look_due_ns = None
        if self._connection is not None:
            self._in_flight.forget(self._connection)
            self._connection = None
        self._handed_bytes = self._told_bytes = 0
        departures, self._departures = self._departures, deque()
        for _, _, on_gone in departures:
            on_gone()

    def _open(self, address: StateAddress) -> None:
        key_pair = load_caller_keys(self._credentials, self._ha.config, address)
        self._dealer = dealer_to(
            self._context, address, key_pair, NODE_TO_PROXY_SOCKET_LIMITS
        )
        self._dealer.serve(
            self._loop,
            on_event=self._watch,
            on_message=self._receive,
            frame_count_max=FRAME_COUNT_MAX,
        )

    def _watch(self, event: ConnectionEvent) -> None:
        match event:
            case ConnectionOpened(connection_id=connection_id):
                self._let_go()
                self._connection = connection_id
            case HandshakeSucceeded():
                self.problem = None
                self._on_event(ProxyConnected())
            case ConnectionClosed():
                self._let_go()
                self._on_event(ProxyDisconnected())
            case HandshakeFailed():
                self.problem = handshake_error(event, target=self._address)
                self._drop("handshake-failed", str(self.problem))
                self._on_event(ProxyDisconnected())
            case _:
                pass

    def _receive(self, frames: list[zmq.Frame]) -> None:
        """Take one message."""
        try:
            message = decode_to_node(frames[0].bytes)
            if isinstance(message, Question):
                payload = frames[1].bytes if len(frames) == FRAME_COUNT_MAX else b""
                self._on_question(message, payload)
                return
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
