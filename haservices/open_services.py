"""
`OpenServices`: the elections and retrievers that end with their `HAServices`.

Closing begins for all of them at once.  The session ends when the last of them has
left: each election waits for its running action and its revoke callback to return, and
withdraws, before that.  So belief has ended before the name service can know (E4, E7).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from nameservice import LocalProtocolError, callback_waits, get_logger
from nameservice.interruptible import InterruptibleEvent


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderElection, StoreWatch
    from retrieval import LeaderRetriever


__all__ = ["OpenServices"]


@final
class OpenServices:
    """
    What one `HAServices` has handed out and must close.  Thread-safe.

    Args:
        end: Ends the session, once; called when nothing is open any more, on the
            thread that closed last.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        # Reentrant: a signal handler may close what its own thread is just opening.
        self._lock = threading.RLock()
        self._services: dict[LeaderElection | LeaderRetriever | StoreWatch, None] = {}
        self._is_closing = False
        self._is_ending = False
        self._is_ended = InterruptibleEvent()
        self._error: Exception | None = None

    def keep(self, service: LeaderElection | LeaderRetriever | StoreWatch) -> None:
        """
        Remember *service* until it is closed.

        Raises:
            LocalProtocolError: If everything is closed already.
        """
        with callback_waits.amid(), self._lock:
            self._services[service] = None
            if self._is_closing:  # in a signal handler, it may be, that came just now
                self._services.pop(service, None)
                message = "these services are closed: open new ones"
                raise LocalProtocolError(message)

    def forget(self, service: LeaderElection | LeaderRetriever | StoreWatch) -> None:
        """Forget *service*: it has closed."""
        with callback_waits.amid(), self._lock:
            self._services.pop(service, None)
        self._end_if_empty()

    def close(self) -> None:
        """
        Close what is open, each as its own ``close`` does, then end the session.

        Idempotent: a second caller waits for the same end.  Called inside a callback
        of one of them, or in a signal handler that has interrupted the opening or the
        closing of one, it does not wait: the rest happens when that returns.
        """
        with callback_waits.amid(), self._lock:
            self._is_closing = True
            left = tuple(self._services)
        lanes = [service.lane for service in left if service.lane is not None]
        is_inside = callback_waits.is_inside(lanes)
        for service in left:
            service.begin_close()
        self._end_if_empty()
        if not is_inside and callback_waits.wait(lanes, self._is_ended):
            for service in left:
                service.close()  # ends their threads, too
            self._raise_error()

    def _end_if_empty(self) -> None:
        with callback_waits.amid():
            with self._lock:
                if not self._is_closing or self._services or self._is_ending:
                    return
                self._is_ending = True
            try:
                self._end()
            except Exception as error:  # noqa: BLE001 - raised by the first that waited
                get_logger(component="services").warning(
                    "closing.failed", error=str(error)
                )
                self._error = error
            finally:
                self._is_ended.set()

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error
