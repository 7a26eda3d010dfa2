"""`PendingCalls`: threads that wait for what the link's thread answers."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, TypeAlias, final

from nameservice import LocalProtocolError


if TYPE_CHECKING:
    from leaderserver.messages import ReplyBody
    from nameservice import NameServiceError


__all__ = ["CallReply", "PendingCall", "PendingCalls"]

CallReply: TypeAlias = "ReplyBody | None"


@final
class PendingCall:
    """
    A call that one thread waits for, and another one answers, once.

    A lock that is held until then: a ``Future`` takes some 5 % of a whole request.

    Attributes:
        call_id: Its id.
    """

    __slots__ = ("_error", "_lock", "_reply", "call_id")

    def __init__(self, call_id: int) -> None:
        self.call_id = call_id
        self._reply: CallReply = None
        self._error: NameServiceError | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def settle(self, *, reply: CallReply, error: NameServiceError | None) -> None:
        """Answer it."""
        self._reply, self._error = reply, error
        self._lock.release()

    def wait(self, timeout_seconds: float) -> CallReply:
        """
        Return the answer.

        Raises:
            NameServiceError: What it was answered with instead.
            TimeoutError: If there is none in time.
        """
        if not self._lock.acquire(timeout=timeout_seconds):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._reply


@final
class PendingCalls:
    """
    Calls that were not answered yet.  Thread-safe.

    There is no lock: a thread that begins a call may be interrupted by a signal, whose
    handler closes the client, and would wait for it.
    """

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._calls: dict[int, PendingCall] = {}
        self._is_stopped = False

    def begin(self) -> PendingCall:
        """
        Return a new call.

        Raises:
            LocalProtocolError: If nothing will be answered any more.
        """
        call = PendingCall(next(self._ids))
        self._calls[call.call_id] = call  # before the look: `stop` looks after its own
        if self._is_stopped:
            self.end(call)
            message = "these services are closed: open new ones"
            raise LocalProtocolError(message)
        return call

    def end(self, call: PendingCall) -> None:
        """Forget a call that is waited for no longer."""
        self._calls.pop(call.call_id, None)

    def complete(
        self, call_id: int, *, reply: CallReply, error: NameServiceError | None
    ) -> None:
        """Answer a call, unless it was answered or has ended."""
        call = self._calls.pop(call_id, None)
        if call is not None:
            call.settle(reply=reply, error=error)

    def stop(self, error: NameServiceError) -> None:
        """Answer those who still wait with *error*, and none after that."""
        self._is_stopped = True
        for call_id in list(self._calls):
            self.complete(call_id, reply=None, error=error)
