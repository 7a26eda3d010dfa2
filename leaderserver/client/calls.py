"""`PendingCalls`: threads that wait for what the link's thread answers."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, TypeAlias, final

from nameservice import LocalProtocolError


if TYPE_CHECKING:
    from leaderserver.messages import ReplyBody
    from nameservice import NameServiceError


__all__ = ["CallReply", "PendingCalls"]

CallReply: TypeAlias = "ReplyBody | None"


@final
class PendingCalls:
    """Calls that were not answered yet.  Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._futures: dict[int, Future[CallReply]] = {}
        self._is_stopped = False

    def begin(self) -> tuple[int, Future[CallReply]]:
        """
        Return the id of a new call, and what completes with its answer.

        Raises:
            LocalProtocolError: If nothing will be answered any more.
        """
        call_id = next(self._ids)
        future: Future[CallReply] = Future()
        with self._lock:
            if self._is_stopped:
                message = "these services are closed: open new ones"
                raise LocalProtocolError(message)
            self._futures[call_id] = future
        return call_id, future

    def end(self, call_id: int) -> None:
        """Forget a call that is waited for no longer."""
        self._futures.pop(call_id, None)

    def complete(
        self, call_id: int, *, reply: CallReply, error: NameServiceError | None
    ) -> None:
        """Answer a call, unless it was answered or has ended."""
        future = self._futures.get(call_id)
        if future is not None:
            _settle(future, reply=reply, error=error)

    def stop(self, error: NameServiceError) -> None:
        """Answer those who still wait with *error*, and none after that."""
        with self._lock:
            self._is_stopped = True
            left = tuple(self._futures.values())
        for future in left:
            _settle(future, reply=None, error=error)


def _settle(
    future: Future[CallReply], *, reply: CallReply, error: NameServiceError | None
) -> None:
    """Complete *future* unless somebody has done so already."""
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(reply)
    except InvalidStateError:
        return
