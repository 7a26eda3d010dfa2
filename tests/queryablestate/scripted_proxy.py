"""A proxy of a test's own: a real socket, real messages, and answers as wanted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias, final

import msgspec
import zmq

from haservices import HAServices
from nameservice import QUERY_PROXY, RemoteProtocolError
from queryablestate.wire.address import StateAddress
from queryablestate.wire.clients import Hello, Welcome
from queryablestate.wire.codec import decode_to_proxy, encode
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import NOT_LEADER, UNKNOWN_SESSION
from tests.recording import Record
from zmqtransport import (
    AllowList,
    Authenticator,
    CurveKeyPair,
    Endpoint,
    PollLoop,
    SocketLimits,
    ZMQContext,
    bind_socket,
    open_socket,
    parse_endpoint,
    secure_server,
    send_now,
)


Message: TypeAlias = "tuple[msgspec.Struct, bytes]"
"""What came: the message, and its second frame or nothing."""

Reply: TypeAlias = "msgspec.Struct | Sequence[bytes] | None"
"""An answer, or frames as they are to be sent, or silence."""

Handler: TypeAlias = "Callable[[msgspec.Struct, bytes], Reply]"

ANY_PORT = parse_endpoint("tcp://127.0.0.1:0")


def error_frame(code: str, request_id: int, *data: object) -> Refusal:
    """Return a refusal."""
    return Refusal(request_id=request_id, code=code, data=data)  # type: ignore[arg-type]  # tests may send anything


@final
class ScriptedProxy:
    """
    A ROUTER socket on a thread of its own.  A context manager.

    Sessions are handled here: a `Hello` is welcomed, an unknown secret is refused, and
    so is everything while it does not lead.  Everything else goes to *handle*.

    Attributes:
        handle: Answers requests; may be replaced at any time.
        requests: Whatever came in, rubbish excepted.
        is_leading: Whether it says that it leads.
        is_silent: Whether it answers nothing at all.
        greet: Answers a `Hello` in place of the default, if set.
    """

    def __init__(
        self,
        handle: Handler | None = None,
        *,
        endpoint: Endpoint = ANY_PORT,
        key_pair: CurveKeyPair | None = None,
        allow_list: AllowList | None = None,
        is_leading: bool = True,
        keys_per_request_max: int = 1_000,
    ) -> None:
        self.handle = handle
        self.requests: Record[msgspec.Struct] = Record()
        self.is_leading = is_leading
        self.is_silent = False
        self.greet: Callable[[Hello], Reply] | None = None
        self.keys_per_request_max = keys_per_request_max
        self._sessions: set[bytes] = set()
        self._numbers = itertools.count(1)
        self.last_routing_id = b""
        self._context: ZMQContext = zmq.Context()
        self._loop = PollLoop(name="scripted-proxy")
        self._loop.at_end(self._context.term)
        self._socket = open_socket(self._context, zmq.ROUTER, SocketLimits())
        self._loop.at_end(self._socket.close)
        if allow_list is not None:
            authenticator = Authenticator(self._context, allow_list)
            self._loop.at_end(authenticator.close)
            self._loop.add_readable(authenticator.socket, authenticator.handle)
            secure_server(self._socket, key_pair)
        elif key_pair is not None:  # any key at all is admitted
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(
                zmq.CURVE_SECRETKEY, key_pair.secret_key.encode("ascii")
            )
        self.endpoint = bind_socket(self._socket, endpoint)
        self.address = str(
            StateAddress(
                endpoint=self.endpoint,
                server_public_key=None if key_pair is None else key_pair.public_key,
            )
        )
        self._loop.add_socket(self._socket, self._receive)
        self._loop.start()

    def forget_sessions(self) -> None:
        """Know no session any more, as after a restart."""
        self._sessions.clear()

    def call(self, action: Callable[[], None]) -> None:
        """Have *action* done on the proxy's thread, and wait for it."""
        done = threading.Event()

        def act() -> None:
            try:
                action()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(act)
        assert done.wait(10)

    def send(self, routing_id: bytes, reply: Reply) -> None:
        """Send *reply*; on the proxy's thread."""
        if reply is None:
            return
        frames = [encode(reply)] if isinstance(reply, msgspec.Struct) else list(reply)
        send_now(self._socket, [routing_id, *frames])

    def close(self) -> None:
        """End at once; those who wait for an answer wait in vain.  Idempotent."""
        self._loop.stop()
        self._loop.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _receive(self, frames: list[zmq.Frame]) -> None:
        routing_id = frames[0].bytes
        self.last_routing_id = routing_id
        try:
            message = decode_to_proxy(frames[1].bytes)
        except RemoteProtocolError:
            return
        self.requests.add(message)
        if self.is_silent:
            return
        self.send(routing_id, self._answer(message, frames))

    def _answer(self, message: msgspec.Struct, frames: list[zmq.Frame]) -> Reply:
        request_id: int = message.request_id  # type: ignore[attr-defined]  # every request has one
        if not self.is_leading:
            return error_frame(NOT_LEADER, request_id)
        if isinstance(message, Hello):
            if self.greet is not None:
                return self.greet(message)
            session = f"session-{next(self._numbers)}".encode()
            self._sessions.add(session)
            return Welcome(
                request_id=request_id,
                session=session,
                leader_epoch=1,
                keys_per_request_max=self.keys_per_request_max,
                frame_size_bytes_max=1_000_000,
            )
        if message.session not in self._sessions:  # type: ignore[attr-defined]  # every other request has one
            return error_frame(UNKNOWN_SESSION, request_id)
        if self.handle is None:
            return None
        return self.handle(message, frames[2].bytes if len(frames) > 2 else b"")


@final
class Lead:
    """
    Leads ``QUERY_PROXY`` at an address, for the length of a ``with`` block.

    Leaving it ends the leadership, and the next in line is granted it.
    """

    def __init__(self, services: HAServices, address: str) -> None:
        self._address = address
        self._election = services.get_leader_election(QUERY_PROXY)
        self._leads = threading.Event()

    def grant_leadership(self, session: object) -> None:
        """Confirm at once."""
        leader_session_id = session.leader_session_id  # type: ignore[attr-defined]  # a LeaderSession
        self._election.confirm_leadership(leader_session_id, self._address)
        self._leads.set()

    def revoke_leadership(self) -> None:
        """Nothing is to be stopped."""

    def handle_error(self, error: Exception) -> None:
        """Fail loudly: no test expects one."""
        raise error

    def __enter__(self) -> Self:
        self._election.start(self)
        assert self._leads.wait(30)
        return self

    def close(self) -> None:
        """Lead no more."""
        self._election.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()
