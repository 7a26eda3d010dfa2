"""
The floors under reads: bare pyzmq, by the proxy's way and without it.

``python -m benchmarks._relay relay`` binds a ROUTER and prints its port: whatever comes
from one peer goes to the other.  ``python -m benchmarks._relay echo PORT SIZE``
connects a DEALER to it and answers each message with SIZE bytes.  ``python -m
benchmarks._relay node SIZE`` binds a ROUTER, prints its port, and answers likewise
without a relay.  All end when their input does.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

import zmq


_HELLO: Final = b"echo"


def _end_with_input() -> None:
    """End this process when its parent does."""

    def wait() -> None:
        sys.stdin.buffer.read()
        # The main thread blocks in ZeroMQ; there is nothing to save.
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def relay() -> None:
    """Pass messages between the echo and everybody else."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        print(port, flush=True)
        echo, hello = router.recv_multipart()
        assert hello == _HELLO
        print("ready", flush=True)
        while True:
            sender, *frames = router.recv_multipart()
            if sender == echo:
                router.send_multipart(frames)
            else:
                router.send_multipart([echo, sender, *frames])


def echo(port: int, size_bytes: int) -> None:
    """Answer each message with *size_bytes* bytes."""
    value = b"v" * size_bytes
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(_HELLO)
        while True:
            sender, envelope, _ = dealer.recv_multipart()
            dealer.send_multipart([sender, envelope, value])


def node(size_bytes: int) -> None:
    """Answer each message with *size_bytes* bytes, without a relay."""
    value = b"v" * size_bytes
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        while True:
            sender, envelope, _ = router.recv_multipart()
            router.send_multipart([sender, envelope, value])


if __name__ == "__main__":
    _end_with_input()
    match sys.argv[1:]:
        case ["relay"]:
            relay()
        case ["node", size]:
            node(int(size))
        case [_, port, size]:
            echo(int(port), int(size))
