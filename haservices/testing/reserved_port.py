"""`ReservedPort`: a port of the loopback interface that stays ours while we restart."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, final


if TYPE_CHECKING:
    from types import TracebackType


__all__ = ["LOOPBACK_HOST", "ReservedPort"]

LOOPBACK_HOST: Final = "127.0.0.1"


@final
class ReservedPort:
    """
    Holds a port so that no other process is given it between a server's two lives.

    It binds the port and never listens: connects are refused, the system hands the
    port to no process that asks for any, and a server that sets ``SO_REUSEADDR`` (as
    Java's do) may bind and listen beside it.

    Args:
        host: The loopback address to hold it on.
        port: Which one; 0 takes any that is free.

    Raises:
        OSError: If *port* is taken.
    """

    def __init__(self, *, host: str = LOOPBACK_HOST, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.host: Final = host
        self.port: Final[int] = self._socket.getsockname()[1]

    def listen(self, backlog: int = 128) -> socket.socket:
        """Return a new socket of the caller's that listens on the port."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Release the port.  Idempotent."""
        self._socket.close()

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
