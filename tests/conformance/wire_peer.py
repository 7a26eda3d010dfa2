"""A peer of a LeaderServer that speaks the wire protocol by hand, well or badly."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeVar, final

import zmq

from leaderserver import codec
from leaderserver.messages import (
    Hello,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    ToClient,
    ToServer,
    Welcome,
)
from nameservice import NS_PER_SECOND
from tests.recording import WAIT_SECONDS
from zmqtransport import CurveKeyPair, ZMQContext, ZMQSocket, framing


if TYPE_CHECKING:
    from types import TracebackType


M = TypeVar("M")


@final
class WirePeer:
    """
    One DEALER socket.  A context manager.

    Args:
        endpoint: Where requests go in: ``tcp://host:port``.
        routing_id: What it calls itself; by default ZeroMQ draws one.
        key_pair: Its CURVE keys, if it has any.
        server_key: The server's public CURVE key.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        routing_id: bytes | None = None,
        key_pair: CurveKeyPair | None = None,
        server_key: str | None = None,
    ) -> None:
        self._context: ZMQContext = zmq.Context()
        self._socket: ZMQSocket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if routing_id is not None:
            self._socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if key_pair is not None and server_key is not None:
            self._socket.setsockopt_string(zmq.CURVE_PUBLICKEY, key_pair.public_key)
            self._socket.setsockopt_string(zmq.CURVE_SECRETKEY, key_pair.secret_key)
            self._socket.setsockopt_string(zmq.CURVE_SERVERKEY, server_key)
        self._socket.connect(endpoint)
        self.secret = bytes(32)
        self.number = 0

    def send_frames(self, *frames: bytes) -> None:
        """Send *frames* as they are."""
        self._socket.send_multipart(frames)

    def send(self, message: ToServer) -> None:
        """Send a message as the protocol wants it."""
        self._socket.send_multipart(framing.encode(codec.encode(message)))

    def receive(self, timeout_seconds: float = WAIT_SECONDS) -> ToClient | None:
        """Return the next message, or None if none comes in time."""
        if not self._socket.poll(round(timeout_seconds * 1000)):
            return None
        frames = self._socket.recv_multipart()
        return codec.decode_to_client(framing.decode(frames, size_bytes_max=10_000_000))

    def receive_a(self, kind: type[M]) -> M:
        """Return the next message of *kind*, passing over others."""
        while (message := self.receive()) is not None:
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def hello(self, **settings: int) -> Welcome:
        """Open a session with *settings* of the Hello."""
        self.send(
            Hello(
                nonce=secrets.token_bytes(16),
                session_timeout_ns=settings.get(
                    "session_timeout_ns", 60 * NS_PER_SECOND
                ),
                lease_ns=settings.get("lease_ns", NS_PER_SECOND // 2),
                client="raw",
            )
        )
        welcome = self.receive_a(Welcome)
        self.secret = welcome.secret
        return welcome

    def post(self, body: RequestBody) -> int:
        """Send a request of the session; return its number."""
        self.number += 1
        self.send(Request(secret=self.secret, number=self.number, body=body))
        return self.number

    def ask(self, body: RequestBody) -> ReplyBody:
        """Send a request of the session; return the answer to it."""
        number = self.post(body)
        while (reply := self.receive_a(Reply)).number != number:
            pass
        return reply.body

    def close(self) -> None:
        """Close the connection; the session does not know."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> WirePeer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
