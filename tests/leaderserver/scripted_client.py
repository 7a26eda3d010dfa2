"""
A client of a LeaderServer that does nothing by itself: every frame is the test's.

It has its own context, so that nothing it does depends on the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import zmq

from leaderserver import LeaderServer, codec
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    ConfirmRequest,
    DoneReply,
    FailedReply,
    Granted,
    HeartbeatRequest,
    Hello,
    RegisteredReply,
    RegisterRequest,
    Reply,
    ReplyBody,
    Request,
    RequestBody,
    ToClient,
    Welcome,
)
from leaderserver.operator_messages import StatusReply, StatusRequest
from zmqtransport import (
    CurveKeyPair,
    ZMQContext,
    ZMQSocket,
    framing,
    new_context,
    secure_client,
)


TIMEOUT_SECONDS = 30.0
_ATTEMPT_COUNT_MAX = 20


class ScriptedClient:
    """
    One DEALER socket, and the numbers of one session.  A context manager.

    Args:
        server: Whom to talk to.
        keys: Our keys and the server's public key, for CURVE.
        routing_id: What to call ourselves; by default ZeroMQ's server names us.
        is_immediate: Whether what is unread when a connection ends is lost with it, as
            it is for the clients that we ship.
    """

    def __init__(
        self,
        server: LeaderServer | str,
        *,
        keys: tuple[CurveKeyPair, str] | None = None,
        routing_id: bytes | None = None,
        is_immediate: bool = False,
    ) -> None:
        endpoint = server if isinstance(server, str) else server.endpoint
        self.context: ZMQContext = new_context()
        self.socket: ZMQSocket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, round(TIMEOUT_SECONDS * 1_000))
        self.socket.setsockopt(zmq.IMMEDIATE, int(is_immediate))
        if routing_id is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if keys is not None:
            secure_client(self.socket, keys[0], server_public_key=keys[1])
        self.socket.connect(endpoint)
        self.secret = bytes(32)
        self.session_id = ""
        self.number = 0
        self.acknowledged = 0
        self.pushed: list[ToClient] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Vanish, as a killed process does."""
        self.socket.close()
        self.context.term()

    def send(self, *frames: bytes) -> None:
        """Send *frames* as they are."""
        self.socket.send_multipart(frames)

    def receive(self, timeout_seconds: float = TIMEOUT_SECONDS) -> ToClient | None:
        """Return the next message, or None if there is none in time."""
        if not self.socket.poll(round(timeout_seconds * 1_000)):
            return None
        frames = self.socket.recv_multipart()
        return codec.decode_to_client(framing.decode(frames, size_bytes_max=2**30))

    def hello(
        self,
        *,
        nonce: bytes = b"n" * 16,
        session_timeout_seconds: float = 60,
        lease_seconds: float = 1,
    ) -> ToClient:
        """Ask for a session; return the answer, and keep what comes with it."""
        hello = Hello(
            nonce=nonce,
            session_timeout_ns=round(session_timeout_seconds * 1e9),
            lease_ns=round(lease_seconds * 1e9),
            client="raw",
        )
        self.send(*framing.encode(codec.encode(hello)))
        answer = self.receive()
        assert answer is not None, "no answer to a greeting"
        if isinstance(answer, Welcome):
            self.secret = answer.secret
            self.session_id = answer.session_id
        return answer

    def request(self, body: RequestBody, *, number: int | None = None) -> bytes:
        """Return *body* as the next request, encoded."""
        if number is None:
            self.number += 1
            number = self.number
        message = Request(secret=self.secret, number=number, body=body)
        return codec.encode(message)

    def say(self, body: RequestBody) -> int:
        """Send *body* as the next request; return its number."""
        self.send(*framing.encode(self.request(body)))
        return self.number

    def ask(self, body: RequestBody) -> ReplyBody:
        """Send *body*; return its answer, and keep what is pushed meanwhile."""
        number = self.say(body)
        while True:
            message = self.receive()
            assert message is not None, f"no answer to {body!r}"
            if isinstance(message, Reply) and message.number == number:
                return message.body
            self.pushed.append(message)

    def heartbeat(self) -> AcknowledgedHeartbeat:
        """Say that we are there; return the answer."""
        reply = self.ask(HeartbeatRequest(acknowledged=self.acknowledged))
        assert isinstance(reply, AcknowledgedHeartbeat)
        self.acknowledged = self.number
        return reply

    def register(self, component_id: str, contender_id: str) -> ReplyBody:
        """Enter a contender; return the answer."""
        return self.ask(
            RegisterRequest(
                component_id=component_id,
                contender_id=contender_id,
                confirm_timeout_ns=60_000_000_000,
                ticket=None,
                epoch_ended=0,
                claim=None,
            )
        )

    def wait_for_grant(self, contender_id: str) -> Granted:
        """Return the grant of a contender, heartbeating until it comes."""
        for _ in range(3_000):
            for message in self.pushed:
                if (
                    isinstance(message, Granted)
                    and message.affirmation.contender_id == contender_id
                ):
                    return message
            message_or_none = self.receive(timeout_seconds=0.01)
            if message_or_none is None:
                self.heartbeat()
            else:
                self.pushed.append(message_or_none)
        raise AssertionError("no grant")

    def lead(
        self, component_id: str, contender_id: str, address: str = "h:1"
    ) -> Granted:
        """
        Register, wait for the grant, confirm it; return it.

        On a busy machine a lease may go by between the two: then another grant comes.
        """
        assert isinstance(self.register(component_id, contender_id), RegisteredReply)
        for _ in range(_ATTEMPT_COUNT_MAX):
            granted = self.wait_for_grant(contender_id)
            affirmation = granted.affirmation
            confirmed = self.ask(
                ConfirmRequest(
                    component_id=component_id,
                    contender_id=contender_id,
                    leader_session_id=affirmation.leader_session_id,
                    confirm_count=1,
                    address=address,
                )
            )
            if confirmed == DoneReply():
                return granted
            assert isinstance(confirmed, FailedReply)
            assert confirmed.reason == "stale"
            self.pushed.remove(granted)
        raise AssertionError("granted again and again, and never in time")

    def figures(self) -> dict[str, str | int | float]:
        """Return the server's figures, as it tells them to its clients."""
        reply = self.ask(StatusRequest())
        assert isinstance(reply, StatusReply)
        return reply.figures


class ScriptedSubscriber:
    """One XSUB socket at the publishing port.  A context manager."""

    def __init__(self, server: LeaderServer, *topics: bytes) -> None:
        self.context: ZMQContext = new_context()
        self.socket: ZMQSocket = self.context.socket(zmq.XSUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, round(TIMEOUT_SECONDS * 1_000))
        host = server.endpoint.rpartition(":")[0]
        self.socket.connect(f"{host}:{server.publish_port}")
        for topic in topics:
            self.socket.send(b"\x01" + topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()
        self.context.term()

    def receive(
        self, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Sequence[bytes] | None:
        """Return the next broadcast, or None if there is none in time."""
        if not self.socket.poll(round(timeout_seconds * 1_000)):
            return None
        return self.socket.recv_multipart()
