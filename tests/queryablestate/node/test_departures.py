"""What was handed over to a connection, and when it takes no memory any more (B1)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from nameservice.clock import NS_PER_MS, ManualClock
from queryablestate.node.departures import Departures
from tests.recording import wait_until
from zmqtransport import ConnectionId


pytestmark = pytest.mark.proves("B1")

SIZE_BYTES = 100_000


class Stage:
    """A connection to the kernel, whose other end reads all, and what was handed it."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.clock = ManualClock()
        self.departures = Departures(self.clock)
        self.departures.opened(ConnectionId(sender.fileno()))
        self.gone: list[str] = []
        self._sender = sender
        self._receiver = receiver

    def add(self, name: str, payload: bytes | zmq.Frame) -> None:
        """Hand one message over."""
        self.departures.add(len(payload), lambda: self.gone.append(name), payload)

    def write(self, size_bytes: int) -> None:
        """Have the kernel take what was handed over."""
        self._sender.sendall(bytes(size_bytes))
        assert self._receiver.recv(size_bytes, socket.MSG_WAITALL)

    def look(self) -> list[str]:
        """Return what has gone, as of when it is looked at next."""
        self.clock.advance(10 * NS_PER_MS)
        self.departures.advance()
        return self.gone


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return an open connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    with sender, receiver:
        yield Stage(sender, receiver)


def test_what_the_kernel_has_is_gone(stage: Stage) -> None:
    """What is copied takes no memory of ours from then on."""
    stage.add("copied", bytes(SIZE_BYTES))
    assert stage.look() == []
    stage.write(SIZE_BYTES)
    wait_until(lambda: stage.look() == ["copied"])
    assert stage.departures.next_deadline_ns() is None


def test_a_frame_that_is_not_released_is_not_gone(stage: Stage) -> None:
    """The kernel has it, and pyzmq's thread has not had its turn yet."""
    frame = zmq.Frame(bytearray(SIZE_BYTES), copy=False, track=True)
    tracker = frame.tracker
    assert tracker is not None
    stage.add("kept", frame)
    stage.add("copied", bytes(SIZE_BYTES))
    stage.write(2 * SIZE_BYTES)
    for _ in range(10):
        assert stage.look() == []
    assert stage.departures.next_deadline_ns() is not None
    del frame
    tracker.wait(30.0)
    wait_until(lambda: stage.look() == ["kept", "copied"])


def test_what_was_on_a_connection_that_is_over_is_gone(stage: Stage) -> None:
    """Nothing is waited for that nothing will tell of."""
    stage.add("one", bytes(SIZE_BYTES))
    stage.departures.over()
    assert stage.gone == ["one"]
