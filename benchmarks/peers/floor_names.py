"""
The floor of questions about leaders: bare pyzmq, which decides and remembers nothing.

A ROUTER answers as many bytes as it was sent; what is announced goes out over an XPUB
to one SUB for each listener, all of a process in one thread.  So it has the messages of
a LeaderServer, each as small as it can be, and no session, right, order or record.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import zmq

from benchmarks.peers._names import Listened, Tally, address_of
from benchmarks.peers._processes import Guarded, free_ports, guarded


__all__ = ["BARE_PYZMQ"]

_TOPIC: Final = b"c"
_ANNOUNCE: Final = b"announce"
_REGISTER: Final = b"register"


@final
class _Service:
    def __init__(
        self, address: str, server: Guarded, dealer: zmq.Socket[bytes]
    ) -> None:
        self.address = address
        self.server = server
        self._dealer = dealer
        self.announce(address_of(0))

    def announce(self, value: str) -> None:
        """Have the server send *value* on."""
        self._dealer.send_multipart([_ANNOUNCE, value.encode()])
        self._dealer.recv_multipart()

    def register(self, prefix: str, count: int) -> float:
        """Send a message for each, and wait for as many answers."""
        began = time.perf_counter()
        for index in range(count):
            self._dealer.send_multipart([_REGISTER, f"{prefix}-{index}".encode()])
        for _ in range(count):
            self._dealer.recv_multipart()
        return time.perf_counter() - began


@contextmanager
def _serve() -> Iterator[_Service]:
    port, publish_port = free_ports(2)
    command = [
        *(sys.executable, "-m", "benchmarks.peers.floor_names"),
        *(str(port), str(publish_port)),
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        guarded(command, Path(directory) / "log") as server,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        dealer.connect(f"tcp://127.0.0.1:{port}")
        yield _Service(str(publish_port), server, dealer)


def _run_server(port: str, publish_port: str) -> None:
    """Answer for as long as the process lives; send each subscriber what is newest."""
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        context.socket(zmq.XPUB) as publisher,
    ):
        router.bind(f"tcp://127.0.0.1:{port}")
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        publisher.bind(f"tcp://127.0.0.1:{publish_port}")
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(publisher, zmq.POLLIN)
        value = b""
        while True:
            for socket, _ in poller.poll():
                if socket is publisher:
                    publisher.recv()
                    publisher.send_multipart([_TOPIC, value])
                    continue
                sender, what, text = router.recv_multipart()
                if what == _ANNOUNCE:
                    value = text
                    publisher.send_multipart([_TOPIC, value])
                router.send_multipart([sender, what, text])


def _listen(address: str, count: int, tally: Tally) -> None:
    """Serve all listeners in one thread, until standard input ends."""
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, count + 10)
    poller = zmq.Poller()
    for _ in range(count):
        socket = context.socket(zmq.SUB)
        socket.subscribe(_TOPIC)
        socket.connect(f"tcp://127.0.0.1:{address}")
        poller.register(socket, zmq.POLLIN)

    def listen() -> None:
        newest: dict[zmq.Socket[bytes], bytes] = {}
        while True:
            for socket, _ in poller.poll():
                _, value = socket.recv_multipart()
                # A further subscriber brings it to all of them again.
                if newest.get(socket) != value:
                    newest[socket] = value
                    tally.told(value.decode())

    threading.Thread(target=listen, daemon=True).start()
    sys.stdin.read()


BARE_PYZMQ: Final = Listened(serve=_serve, listen=_listen)


if __name__ == "__main__":
    _run_server(*sys.argv[1:])
