"""
`CopyCall`: one request to another node, and what it answers (rule S2).

It has a connection of its own, so that to be done with it is to close that.  A node
that says nothing for long, or anything that makes no sense, has failed; the caller
asks again, or another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from msgspec.structs import replace

from nameservice import LocalProtocolError, NameServiceError, RemoteProtocolError
from queryablestate.connect.node_link import NodeLink
from queryablestate.wire.codec import FRAME_COUNT_MAX, decode_from_copy_source, encode
from queryablestate.wire.copy_messages import AllowPages, CloseCopy, CopyRefused


if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

    from nameservice import Clock
    from queryablestate.node.copying.limits import CopyLimits
    from queryablestate.wire.copy_messages import FromCopySource, OpenCopy, ReadStages
    from zmqtransport import CurveKeyPair, PollLoop, SocketLimits, ZMQContext


__all__ = ["COPY_ID", "CopyCall", "CopyCaller"]

COPY_ID = 1
"""The only one of its connection."""

_ALIVE_COUNT = 3  # the other side hears from us more often than it must


@final
class CopyCaller:
    """
    What calls have in common.  Belongs to the thread of *loop*.

    Attributes:
        loop: Whose thread waits for answers.
        context: Of the connections.
        key_pair: As whom the node speaks to others, or None.
        socket_limits: Of each connection.
        clock: What silence is measured by.
        limits: How long it may last.
        secret: What other nodes are shown; may be replaced at any time.
    """

    def __init__(
        self,
        loop: PollLoop,
        context: ZMQContext,
        key_pair: CurveKeyPair | None,
        *,
        socket_limits: SocketLimits,
        clock: Clock,
        limits: CopyLimits,
    ) -> None:
        self.loop = loop
        self.context = context
        self.key_pair = key_pair
        self.socket_limits = socket_limits
        self.clock = clock
        self.limits = limits
        self.secret = b""

    def call(
        self,
        address: str | None,
        request: OpenCopy | ReadStages,
        *,
        on_message: Callable[[FromCopySource, zmq.Frame | None], None],
        on_failed: Callable[[str], None],
    ) -> CopyCall:
        """Ask a node; see `CopyCall`."""
        return CopyCall(
            self,
            address,
            replace(request, secret=self.secret),
            on_message=on_message,
            on_failed=on_failed,
        )

    def post(self, action: Callable[[], None]) -> None:
        """Have *action* called in the thread, from any; not while it ends."""
        try:
            self.loop.call_soon_threadsafe(action)
        except LocalProtocolError:
            return  # the node is closing


@final
class CopyCall:
    """
    Asks *address*, and tells what it says until it is closed.

    Args:
        caller: Whose thread it belongs to.
        address: The node that is asked.
        request: What it is asked.
        on_message: Is told what it answers, with the second frame if there is one; what
            it raises ends the call.
        on_failed: Is told once that nothing more will come, and why.  Not for what was
            closed, and not before the constructor has returned.
    """

    def __init__(
        self,
        caller: CopyCaller,
        address: str | None,
        request: OpenCopy | ReadStages,
        *,
        on_message: Callable[[FromCopySource, zmq.Frame | None], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._caller = caller
        self._request = request
        self._on_message = on_message
        self._on_failed = on_failed
        self._heard_ns = self._said_ns = caller.clock.now_ns()
        self._link: NodeLink | None = None
        self._is_asked = False
        self._unsaid_count = 0  # pages that it was not told it may send
        self._problem: str | None = None  # told with the next tick
        if address is None:
            self._problem = "the node is away"
            return
        try:
            self._link = link = NodeLink(
                caller.context, address, caller.key_pair, caller.socket_limits
            )
        except NameServiceError as error:
            self._problem = str(error)
            return
        monitor, socket = link.sockets
        caller.loop.add_readable(monitor, self._watch)
        caller.loop.add_socket(socket, self._receive, frame_count_max=FRAME_COUNT_MAX)

    def allow(self, page_count: int) -> None:
        """Have *page_count* more pages sent; 0 to be heard."""
        if self._link is None or not self._is_asked:
            return
        self._unsaid_count += page_count
        message = AllowPages(copy_id=COPY_ID, page_count=self._unsaid_count)
        if self._link.send(encode(message)):
            self._said_ns = self._caller.clock.now_ns()
            self._unsaid_count = 0

    def let_time_pass(self, now_ns: int) -> None:
        """Say that we are there, or give up; for the caller, several times a second."""
        limits = self._caller.limits
        if self._problem is not None:
            self._fail(self._problem)
        elif self._link is None:
            return
        elif now_ns - self._heard_ns > limits.silence_ns:
            seconds = limits.silence_ns / 1_000_000_000
            self._fail(f"{self._link.address} has said nothing for {seconds:g} s")
        elif not self._is_asked:
            self._ask()
        elif self._unsaid_count or (
            now_ns - self._said_ns > limits.silence_ns // _ALIVE_COUNT
        ):
            self.allow(0)

    def close(self) -> None:
        """Be done with it.  Idempotent."""
        self._problem = None
        link, self._link = self._link, None
        if link is not None:
            if self._is_asked:
                link.send(encode(CloseCopy(copy_id=COPY_ID)))
            for socket in link.sockets:
                self._caller.loop.remove_socket(socket)
            link.close()

    def _watch(self) -> None:
        link = self._link
        if link is None:
            return
        if link.is_over():
            # What it said before is worth nothing without the rest.
            problem = link.problem
            self._fail(f"{link.address} is not there" if not problem else str(problem))
        else:
            self._ask()

    def _ask(self) -> None:
        """Send the request, once the link is open."""
        # libzmq tells its monitor before its socket: sending may not be possible yet.
        if self._link is not None and not self._is_asked:
            self._is_asked = self._link.send(encode(self._request))

    def _receive(self, frames: list[zmq.Frame]) -> None:
        self._heard_ns = self._caller.clock.now_ns()
        try:
            if len(frames) > FRAME_COUNT_MAX:
                raise RemoteProtocolError("malformed", f"{len(frames)} frames")
            message = decode_from_copy_source(frames[0].buffer)
            if message.copy_id != COPY_ID:
                raise RemoteProtocolError("malformed", "another copy_id")
            if isinstance(message, CopyRefused):
                self._fail(f"{message.reason}: {message.detail}")
            else:
                self._on_message(message, frames[1] if len(frames) > 1 else None)
        except NameServiceError as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self.close()
        self._on_failed(reason)
