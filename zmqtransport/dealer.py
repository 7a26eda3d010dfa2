"""`Dealer`: a client's socket, and what happens to its connection."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, final

import zmq

from zmqtransport.connections import ConnectionMonitor
from zmqtransport.sockets import connect_socket, open_socket


if TYPE_CHECKING:
    from collections.abc import Callable

    from zmqtransport.connections import ConnectionEvent
    from zmqtransport.endpoints import Endpoint
    from zmqtransport.loop import MessageHandler, PollLoop
    from zmqtransport.sockets import SocketLimits, ZMQContext, ZMQSocket


__all__ = ["Dealer"]


@final
class Dealer:
    """
    A socket that connects to one endpoint, with its monitor; they are closed together.

    Args:
        context: Of the socket.
        endpoint: Where it connects to; what comes of it is told by *monitor*.
        limits: Of the socket.
        secure: Gives the socket its keys, if it is to have any.
        socket_type: ``DEALER``; ``SUB`` for who listens to broadcasts.

    Attributes:
        endpoint: Likewise.
        socket: The socket.
        monitor: Tells what happens to its connection.

    Raises:
        ConfigurationError: If no socket can connect to *endpoint*, or the process may
            have no more sockets.
    """

    def __init__(
        self,
        context: ZMQContext,
        endpoint: Endpoint,
        limits: SocketLimits,
        *,
        secure: Callable[[ZMQSocket], None],
        socket_type: int = zmq.DEALER,
    ) -> None:
        self.endpoint = endpoint
        self._resources = ExitStack()
        try:
            self.socket = open_socket(context, socket_type, limits)
            self._resources.callback(self.socket.close)
            secure(self.socket)
            self.monitor = ConnectionMonitor(self.socket)
            self._resources.callback(self.monitor.close)
            connect_socket(self.socket, endpoint)
        except BaseException:
            self._resources.close()
            raise

    def serve(
        self,
        loop: PollLoop,
        *,
        on_event: Callable[[ConnectionEvent], None],
        on_message: MessageHandler,
        frame_count_max: int,
    ) -> None:
        """
        Have *loop* serve it until it is closed; on the loop's thread.

        Events come first: a message is taken when the connection is known to be there.
        """

        def watch() -> None:
            for event in self.monitor.receive():
                if self.socket.closed:
                    return  # an earlier event has put another in its place
                on_event(event)

        loop.add_readable(self.monitor.socket, watch)
        self._resources.callback(loop.remove_socket, self.monitor.socket)
        loop.add_socket(self.socket, on_message, frame_count_max=frame_count_max)
        self._resources.callback(loop.remove_socket, self.socket)

    def close(self) -> None:
        """Serve it no more, and close it.  Idempotent."""
        self._resources.close()
