"""`OpenServices`: the elections and retrievers that end with their `HAServices`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from nameservice import LocalProtocolError


if TYPE_CHECKING:
    from election import LeaderElection
    from retrieval import LeaderRetriever


__all__ = ["OpenServices"]


@final
class OpenServices:
    """What one `HAServices` has handed out and must close; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._services: dict[LeaderElection | LeaderRetriever, None] = {}
        self._is_closed = False

    def keep(self, service: LeaderElection | LeaderRetriever) -> None:
        """
        Remember *service* until it is closed.

        Raises:
            LocalProtocolError: If everything is closed already.
        """
        with self._lock:
            if self._is_closed:
                message = "these services are closed: open new ones"
                raise LocalProtocolError(message)
            self._services[service] = None

    def forget(self, service: LeaderElection | LeaderRetriever) -> None:
        """Take note that *service* has been closed."""
        with self._lock:
            self._services.pop(service, None)

    def begin_closing(self) -> bool:
        """Let nothing more be kept; return whether this was the first time."""
        with self._lock:
            is_first = not self._is_closed
            self._is_closed = True
            return is_first

    def close_all(self) -> None:
        """Close what is open, each as its own ``close`` does."""
        with self._lock:
            left = tuple(self._services)
        for service in left:
            service.close()
