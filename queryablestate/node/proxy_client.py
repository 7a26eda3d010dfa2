"""
`QueryStateProxyClient`: joins a state node to the proxy server.

It finds the proxy leader by the name service, and keeps one DEALER connected to it,
over which the node registers, is given commands, is asked, and answers.  What to
connect to and what to say is `NodeCore`'s business; here are the socket, and what of it
is nothing that the core should see: frames that are no messages.

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
    ConnectionClosed,
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

    def send(
        self, message: msgspec.Struct, payload: bytes | None = None, *, link: int = 0
    ) -> bool:
        """
        Send now, or not at all.

        Args:
            message: The first frame.
            payload: The second.
            link: The connection that *message* answers over; 0 for the present one.

        Returns:
            False if the proxy takes no more; True if it has been sent, or if nobody is
            there to be told.
        """
        if self._dealer is None or link not in {0, self.link}:
            return True
        frames = [encode(message)] if payload is None else [encode(message), payload]
        outcome = send_now(self._dealer.socket, frames)
        if outcome is SendOutcome.SENT:
            return True
        self._drop(f"unsent-{outcome.value}", "the proxy takes no more")
        return False

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
            case HandshakeSucceeded():
                self.problem = None
                self._on_event(ProxyConnected())
            case ConnectionClosed():
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
