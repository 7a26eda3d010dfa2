"""Peers of a proxy, by hand: real sockets, real messages, no cleverness."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

import msgspec
import zmq

from nameservice import AuthenticationError, NameServiceError
from queryablestate.connect.credentials import secure_to
from queryablestate.wire.address import parse_address
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DescribeState,
    DrawTicket,
    Hello,
    RunBound,
    StateDeclaration,
    StateDescribed,
    StateDescription,
    TicketDrawn,
    Welcome,
)
from queryablestate.wire.codec import decode_to_client, decode_to_node, encode
from queryablestate.wire.node_messages import (
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
)
from queryablestate.wire.questions import (
    Answer,
    Ask,
    GetValues,
    Question,
    Reading,
    Refusal,
)
from queryablestate.wire.refusals import error_of
from tests.queryablestate.control_plane import VALUE as SCHEMA
from zmqtransport import (
    ConnectionMonitor,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeSucceeded,
    SocketLimits,
    connect_socket,
    handshake_error,
    open_socket,
)


if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from queryablestate.wire.clients import ToClient, ToNodeFrame
    from zmqtransport import ZMQContext


__all__ = ["ScriptedNode", "ScriptedPeer", "check_not_let_in", "is_refused"]

# Generous: it bounds how long a broken test takes, not how fast the code must be.
WAIT_SECONDS: Final = 30.0

T = TypeVar("T", bound=msgspec.Struct)


class _Dealer:
    """
    A DEALER that is connected to a proxy; a context manager.

    With *keeps_unread* it receives what had come before the connection ended: our own
    clients do not, unless they were receiving (libzmq, ``ZMQ_IMMEDIATE``).
    """

    def __init__(
        self,
        address: str,
        *,
        keys: CurveKeyPair | None = None,
        keeps_unread: bool = False,
    ) -> None:
        self._context: ZMQContext = zmq.Context()
        limits = SocketLimits(
            frame_size_bytes_max=64 * 1024 * 1024, is_immediate=not keeps_unread
        )
        self.socket = open_socket(self._context, zmq.DEALER, limits)
        self._monitor = ConnectionMonitor(self.socket)
        parsed = parse_address(address)
        self.address = address
        secure_to(self.socket, parsed, keys)
        connect_socket(self.socket, parsed.endpoint)

    def wait_until_open(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        """Return when messages can flow; `AuthenticationError` if they never will."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            self._monitor.socket.poll(100)
            for event in self._monitor.receive():
                if isinstance(event, HandshakeSucceeded):
                    return
                if isinstance(event, HandshakeFailed) and event.is_final:
                    raise handshake_error(event, target=self.address)
        raise AssertionError("no connection")

    def send_frames(self, *frames: bytes) -> None:
        """Send one message of any frames."""
        self.socket.send_multipart(frames)

    def send(self, message: msgspec.Struct, payload: bytes | None = None) -> None:
        """Send a message."""
        self.send_frames(encode(message), *([] if payload is None else [payload]))

    def receive_frames(self, timeout_seconds: float = WAIT_SECONDS) -> list[bytes]:
        """Return the next message as it came."""
        assert self.socket.poll(round(timeout_seconds * 1_000)), "nothing came"
        return self.socket.recv_multipart()

    def close(self) -> None:
        """Close the connection.  Idempotent."""
        self._monitor.close()
        self.socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


@final
class ScriptedPeer(_Dealer):
    """
    A client or writer; what it is answered is returned as it is.

    Attributes:
        session: The secret of its session; replaced by `hello`.
        payload: The second frame of the last answer.
        ticket: The one that it has drawn last.
    """

    def __init__(
        self,
        address: str,
        *,
        keys: CurveKeyPair | None = None,
        keeps_unread: bool = False,
    ) -> None:
        super().__init__(address, keys=keys, keeps_unread=keeps_unread)
        self.session = b""
        self.payload = b""
        self.ticket = 0
        self._numbers = itertools.count(1)

    def hello(self, token: str | None = None) -> Welcome:
        """Open a session; raise what the proxy refuses it with."""
        number = next(self._numbers)
        self.send(Hello(request_id=number, token=token))
        answer = self.answer(number)
        if isinstance(answer, Refusal):
            raise error_of(answer)
        assert isinstance(answer, Welcome)
        self.session = answer.session
        return answer

    def begin(
        self, kind: type[T], payload: bytes | None = None, **fields: object
    ) -> int:
        """Send a request under the session; return its number."""
        number = next(self._numbers)
        fields = {"session": self.session, **fields}
        self.send(kind(request_id=number, **fields), payload)
        return number

    def ask(
        self, kind: type[T], payload: bytes | None = None, **fields: object
    ) -> ToClient:
        """Send a request under the session; return the answer, a refusal or not."""
        return self.answer(self.begin(kind, payload, **fields))

    def error(
        self, kind: type[T], payload: bytes | None = None, **fields: object
    ) -> NameServiceError:
        """Return the error that a request is refused with."""
        answer = self.ask(kind, payload, **fields)
        assert isinstance(answer, Refusal), answer
        return error_of(answer)

    def make_state(
        self, job_id: str = "flights", state_name: str = "aircraft"
    ) -> StateDescription:
        """Draw a ticket, bind a run, commit an empty batch; return the state."""
        states = (StateDeclaration(state_name=state_name, schema=SCHEMA),)
        drawn = self.ask(DrawTicket, job_id=job_id, max_parallelism=4, states=states)
        assert isinstance(drawn, TicketDrawn), drawn
        self.ticket = drawn.ticket
        bound = self.ask(
            BindRun,
            job_id=job_id,
            ticket=drawn.ticket,
            born_epoch=drawn.ticket,
            query_id=f"query of {state_name}",
            run_id=f"run {drawn.ticket}",
            states=states,
            on_new_query="continue",
        )
        assert isinstance(bound, RunBound), bound
        state = self.describe(job_id, state_name)
        deadline = time.monotonic() + WAIT_SECONDS
        while state.batch_id is None:
            # No node need apply it: that it is decided is enough.
            self.ask(
                CommitBatch,
                job_id=job_id,
                query_id=f"query of {state_name}",
                run_id=f"run {drawn.ticket}",
                writer_epoch=bound.run.writer_epoch,
                batch_id=0,
                assignment_version=drawn.assignment_version,
                state_numbers=(bound.run.states[0].state_number,),
                is_complete=False,
                on_new_query="refuse",
                stages=(),
                timeout_ms=20,
            )
            state = self.describe(job_id, state_name)
            assert time.monotonic() < deadline
        return state

    def describe(
        self, job_id: str = "flights", state_name: str = "aircraft"
    ) -> StateDescription:
        """Return what the proxy says of a state."""
        told = self.ask(DescribeState, job_id=job_id, state_name=state_name)
        assert isinstance(told, StateDescribed), told
        return told.description

    def begin_get(
        self,
        state: StateDescription,
        *,
        keys: Sequence[bytes] = (b"a",),
        node_index: int = 0,
        deadline_ms: int | None = 20_000,
    ) -> int:
        """Ask for keys of a state; return the number of the request."""
        return self.begin(
            Ask,
            msgspec.msgpack.encode(keys),
            state_number=state.state_number,
            assignment_version=state.assignment_version,
            node_index=node_index,
            operation=GetValues(),
            key_count=len(keys),
            deadline_ms=deadline_ms,
        )

    def get(
        self,
        state: StateDescription,
        *,
        keys: Sequence[bytes] = (b"a",),
        node_index: int = 0,
        deadline_ms: int | None = 20_000,
    ) -> ToClient:
        """Ask for keys of a state; return the answer."""
        return self.answer(
            self.begin_get(
                state, keys=keys, node_index=node_index, deadline_ms=deadline_ms
            )
        )

    def answer(
        self, request_id: int, timeout_seconds: float = WAIT_SECONDS
    ) -> ToClient:
        """Return the answer to a request; what else came is thrown away."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left_seconds = max(0.0, deadline - time.monotonic())
            frames = self.receive_frames(left_seconds)
            message = decode_to_client(frames[0])
            if message.request_id == request_id:
                self.payload = frames[1] if len(frames) > 1 else b""
                return message


@final
class ScriptedNode(_Dealer):
    """A node that does nothing by itself."""

    def __init__(
        self,
        address: str,
        node_id: str = "node",
        *,
        token: str | None = None,
        keys: CurveKeyPair | None = None,
    ) -> None:
        super().__init__(address, keys=keys)
        self.node_id = node_id
        self.registration_id = f"process of {node_id}"
        self._token = token
        self._numbers = itertools.count(1)

    def register(self, **fields: object) -> ToNodeFrame:
        """Ask to be taken, and return the answer."""
        fields = {
            "token": self._token,
            "node_id": self.node_id,
            "store_id": f"disk of {self.node_id}",
            "registration_id": self.registration_id,
            "address": "tcp://127.0.0.1:1",
            "positions": (),
        } | fields
        self.send(RegisterNode(**fields))  # type: ignore[arg-type]  # tests may send anything
        return self.receive()

    def join(self) -> NodeRegistered:
        """Register, and be taken."""
        answer = self.register()
        assert isinstance(answer, NodeRegistered), answer
        return answer

    def join_again(self) -> NodeRegistered:
        """Be told to register, and do so."""
        told = self.receive()
        assert isinstance(told, NodeRefused), told
        assert told.reason == "unknown"
        return self.join()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(
            NodeHeartbeat(
                registration_id=self.registration_id, number=next(self._numbers)
            )
        )

    def receive(self, timeout_seconds: float = WAIT_SECONDS) -> ToNodeFrame:
        """Return the next message; the second frame of a question is left out."""
        return decode_to_node(self.receive_frames(timeout_seconds)[0])

    def receive_question(self) -> Question:
        """Return the next question; what else comes is passed over."""
        while True:
            message = self.receive()
            if isinstance(message, Question):
                return message

    def answer(
        self,
        question: Question,
        values: bytes,
        *,
        batch_id: int | None = 0,
        has_missing: bool = False,
    ) -> None:
        """Answer a question."""
        reading = Reading(generation=1, batch_id=batch_id, age_ms=0)
        self.send(
            Answer(
                question_id=question.question_id,
                reading=reading,
                has_missing=has_missing,
            ),
            values,
        )


def is_refused(answer: ToClient, code: str) -> bool:
    """Return whether *answer* is a refusal of that code."""
    return isinstance(answer, Refusal) and answer.code == code


def check_not_let_in(peer: _Dealer) -> None:
    """Return if the handshake of *peer* is refused."""
    try:
        peer.wait_until_open()
    except AuthenticationError:
        return
    raise AssertionError("it was let in")
