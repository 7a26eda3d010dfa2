"""
`OpenServices`: the elections and retrievers that end with their `HAServices`.

Closing begins for all of them at once.  The session ends when the last of them has
left: each election waits for its running action and its revoke callback to return, and
withdraws, before that.  So belief has ended before the name service can know (E4, E7).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias, final

from nameservice import LocalProtocolError, callback_waits, get_logger
from nameservice.interruptible import InterruptibleEvent
from nameservice.uninterrupted import Errand, uninterrupted


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from election import LeaderElection, StoreWatch
    from retrieval import LeaderRetriever


__all__ = ["OpenServices"]

_Service: TypeAlias = "LeaderElection | LeaderRetriever | StoreWatch"


@final
class OpenServices:
    """
    What one `HAServices` has handed out and must close.  Thread-safe.

    Args:
        end: Ends the session, once; called when nothing is open any more, on a thread
            of its own: it may take long, and who closes may be told not to wait.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        # Not taken where a signal handler may interrupt: see `uninterrupted`.
        self._lock = threading.Lock()  # guards _is_ending
        self._services: dict[_Service, None] = {}
        self._is_closing = False
        self._is_ending = False
        self._is_ended = InterruptibleEvent()
        self._errors: deque[Exception] = deque()

    def keep(self, service: _Service) -> None:
        """
        Remember *service* until it is closed.

        Raises:
            LocalProtocolError: If everything is closed already.
        """
        self._services[service] = None
        if self._is_closing:  # after that: `close` looks after it has said so
            self.forget(service)
            message = "these services are closed: open new ones"
            raise LocalProtocolError(message)

    def forget(self, service: _Service) -> None:
        """Forget *service*: it has closed."""
        self._services.pop(service, None)
        if self._is_closing:
            uninterrupted(self._end_if_empty)

    def close(self) -> None:
        """
        Close what is open, each as its own ``close`` does, then end the session.

        Idempotent: a second caller waits for the same end.  Called inside a callback
        of one of them, it does not wait: the rest happens when that returns.  A signal
        handler may call it at any moment; what one raises while this waits does not
        break the closing off.
        """
        self._is_closing = True
        left = list(self._services)
        lanes = [
            lane for lane in (service.lane for service in left) if lane is not None
        ]
        for service in left:
            service.announce_closing()
        uninterrupted(lambda: self._begin_closing(left))
        if not callback_waits.is_inside(lanes) and callback_waits.wait(
            lanes, self._is_ended
        ):
            for lane in lanes:
                lane.join()  # ends its thread, too
            with contextlib.suppress(IndexError):
                raise self._errors.popleft()

    def _begin_closing(self, left: Sequence[_Service]) -> None:
        """Begin to close all of *left*; what one of them raises keeps no other open."""
        for service in left:
            try:
                service.begin_close()
            except Exception as error:  # noqa: BLE001 - raised by the first that waited
                self._errors.append(error)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        with self._lock:
            if not self._is_closing or self._services or self._is_ending:
                return
            self._is_ending = True
        Errand(self._end_session, self._is_ended.set).begin()

    def _end_session(self) -> None:
        try:
            self._end()
        except Exception as error:  # noqa: BLE001 - raised by the first that waited
            get_logger(component="services").warning("closing.failed", error=str(error))
            self._errors.append(error)
