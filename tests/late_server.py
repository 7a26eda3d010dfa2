"""A way to a server whose answers come late."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import final


@final
class LateServer:
    """
    Passes on what comes to it to a server, and its answers after a while.

    Args:
        target_port: The server's, on loopback.

    Attributes:
        late_seconds: How much later each answer comes.
    """

    def __init__(self, target_port: int) -> None:
        self.late_seconds = 0.0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Return where it is, as ``host:port``."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """End all connections; others are taken."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                self._ends += (client, server)
                for way in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pass_on, args=way)
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(
        self,
        source: socket.socket,
        target: socket.socket,
        is_answer: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if is_answer and self._is_over.wait(self.late_seconds):
                    break
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def late_server(target_port: int) -> Iterator[LateServer]:
    """Yield a way to a server on loopback, on time at first."""
    server = LateServer(target_port)
    try:
        yield server
    finally:
        server.close()
