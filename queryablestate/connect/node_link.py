"""`NodeLink`: a connection to one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import zmq

from nameservice import NameServiceError, RemoteProtocolError
from queryablestate.connect.credentials import dealer_to
from queryablestate.wire.address import parse_address
from queryablestate.wire.codec import decode_from_node
from zmqtransport import (
    ConnectFailed,
    ConnectionClosed,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeSucceeded,
    SendOutcome,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    handshake_error,
    receive_now,
    send_now,
)


if TYPE_CHECKING:
    from collections.abc import Iterator

    from queryablestate.wire.staging_messages import ChunkRefused, ChunkStaged


__all__ = ["NODE_SOCKET_LIMITS", "NodeLink"]

NODE_SOCKET_LIMITS: Final = SocketLimits(
    frame_size_bytes_max=1024 * 1024,  # acknowledgements only
    silence_timeout_ms=10_000,
)


@final
class NodeLink:
    """
    A socket to one address.  For one thread at a time.

    Attributes:
        address: Where it leads to.
        key_pair: As whom it speaks there, or None.
        is_open: Whether messages can be sent.
        problem: What went wrong last, if that says more than that it is closed.

    Raises:
        ConfigurationError: If no socket can connect to *address*.
        AuthenticationError: If we have keys, and *address* has none.
    """

    def __init__(
        self,
        context: ZMQContext,
        address: str,
        key_pair: CurveKeyPair | None,
        limits: SocketLimits = NODE_SOCKET_LIMITS,
    ) -> None:
        self.address = address
        self.key_pair = key_pair
        self.is_open = False
        self.problem: NameServiceError | None = None
        self._dealer = dealer_to(context, parse_address(address), key_pair, limits)

    @property
    def sockets(self) -> tuple[ZMQSocket, ZMQSocket]:
        """Return what to poll for reading."""
        return (self._dealer.monitor.socket, self._dealer.socket)

    def is_over(self) -> bool:
        """Take note of what happened; return whether the link is of no more use."""
        for event in self._dealer.monitor.receive():
            match event:
                case HandshakeSucceeded():
                    self.is_open = True
                case HandshakeFailed():
                    self.problem = handshake_error(event, target=self.address)
                    return True
                case ConnectFailed() | ConnectionClosed():
                    return True
                case _:
                    pass
        return False

    def send(self, *frames: bytes) -> bool:
        """Send a message, if that is possible at once; return whether it was."""
        if not self.is_open:
            return False
        outcome = send_now(self._dealer.socket, frames)
        return outcome is SendOutcome.SENT

    def replies(self) -> Iterator[ChunkStaged | ChunkRefused]:
        """Yield what the node has answered; what is malformed is a `problem`."""
        while True:
            try:
                frames = receive_now(self._dealer.socket, frame_count_max=1)
            except zmq.Again:
                return
            try:
                yield decode_from_node(frames[0].buffer)
            except RemoteProtocolError as error:
                self.problem = error

    def close(self) -> None:
        """Close the socket.  Idempotent."""
        self._dealer.close()
