"""`raw_peer`: a connection that speaks ZMTP by hand, and so can stop in mid-frame."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


__all__ = ["FRAME_SIZE_BYTES", "frame_of_many", "raw_peer", "send_without_end"]

FRAME_SIZE_BYTES: Final = 65_536
# ZeroMQ RFC 23: the greeting of NULL, and its READY.
_GREETING: Final = (
    b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0")
).ljust(64, b"\0")
_READY: Final = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"


def frame_of_many() -> bytes:
    """Return a frame that others of its message follow."""
    return b"\x03" + FRAME_SIZE_BYTES.to_bytes(8, "big") + bytes(FRAME_SIZE_BYTES)


@contextmanager
def raw_peer(port: int) -> Iterator[socket.socket]:
    """Yield a connection to a ROUTER of this machine, once both have greeted."""
    with socket.create_connection(("127.0.0.1", port), timeout=20.0) as connection:
        connection.sendall(_GREETING + b"\x04" + bytes([len(_READY)]) + _READY)
        stream = connection.makefile("rb")
        stream.read(len(_GREETING))
        head = stream.read(2)
        if len(head) < 2:
            raise ConnectionResetError("it was ended before it had greeted")
        size_bytes = head[1]
        # Frames that come with the greeting may end the connection.
        assert b"READY" in stream.read(size_bytes)
        # Who is ended while it sends need not notice: the kernel at the other end may
        # have read all, and takes no more.
        connection.settimeout(2.0)
        yield connection


def send_without_end(port: int, *, until: float) -> None:
    """
    Send frame after frame of messages that have no last one, over four connections.

    Args:
        port: Of this machine.
        until: When to stop, as `time.monotonic` tells it.
    """
    frame = frame_of_many()

    def go_on() -> None:
        while time.monotonic() < until:
            # That it is ended is what the server should do; then comes the next one.
            with contextlib.suppress(OSError), raw_peer(port) as connection:
                while time.monotonic() < until:
                    connection.sendall(frame)

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
