"""The port of a node: what becomes of peers that do not read what they are told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import NS_PER_SECOND, ManualClock
from queryablestate.node.config import NodeConfig
from queryablestate.node.port import NodePort
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.recording import WAIT_SECONDS, Record, wait_until
from zmqtransport import (
    BytesInFlight,
    Peer,
    PollLoop,
    new_context,
    parse_endpoint,
)


pytestmark = [pytest.mark.shells, pytest.mark.proves("B1", "N3")]

SILENCE_NS = 5 * NS_PER_SECOND
WORD = b"w" * 4_000


@final
class Port:
    """
    A `NodePort` in a loop of its own.

    Attributes:
        came: Who has said something.
        closed: Who is over.
        clock: By which peers are silent.
    """

    def __init__(self, directory: Path) -> None:
        self.came: Record[Peer] = Record()
        self.closed: Record[Peer] = Record()
        self.clock = ManualClock()
        self.loop = PollLoop(name="port")
        context = new_context()
        self.loop.at_end(context.term)
        self.port = NodePort(
            NodeConfig(data_dir=directory),
            parse_endpoint("tcp://127.0.0.1:0"),
            context=context,
            key_pair=None,
            allow_list=None,
            frame_size_bytes_max=1 << 20,
            loop=self.loop,
            clock=self.clock,
            component="state-node",
            on_message=lambda peer, _: self.came.add(peer),
            on_closed=self._closed,
            in_flight=BytesInFlight(),
        )
        self.loop.at_end(self.port.close)
        self.loop.start()

    def _closed(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            self.closed.add(peer)

    @property
    def address(self) -> str:
        """Return where it listens."""
        return str(self.port.port.endpoint)

    def call(self, action: Callable[[], object]) -> None:
        """Do something in the loop's thread, and wait for it."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self.loop.call_soon_threadsafe(act)
        assert done.wait(WAIT_SECONDS)

    def ended_count(self) -> int:
        """Return how many peers were ended."""
        found: list[int] = []
        self.call(
            lambda: found.append(self.port.port.figures().get("peers_ended_total", 0))
        )
        return found[0]

    def answer(self, peer: Peer, count: int = 1) -> list[bool]:
        """Send something that often; return whether it was taken, each time."""
        sent: list[bool] = []

        def send() -> None:
            sent.extend(
                self.port.send(peer.routing_id, WORD, WORD) for _ in range(count)
            )

        self.call(send)
        return sent

    def tell(self, peer: Peer, count: int = 1, word: bytes = WORD) -> None:
        """Tell a peer something that often."""

        def tell() -> None:
            for _ in range(count):
                self.port.tell(peer.routing_id, word)

        self.call(tell)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    """A port without CURVE."""
    port = Port(tmp_path)
    try:
        yield port
    finally:
        port.loop.stop()
        port.loop.join()


@contextlib.contextmanager
def deaf_peer(port: Port) -> Iterator[tuple[zmq.Socket[bytes], Peer]]:
    """Yield one that reads when it is told to."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.RCVBUF, 4_096)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(port.address)
        count = len(port.came.items)
        socket.send(b"hello")
        yield socket, port.came.wait_for_count(count + 1)[count]


def test_who_reads_nothing_is_answered_no_more(port: Port) -> None:
    """B1: all frames count; what it asks for after that is not done."""
    with capture_logs() as logs, deaf_peer(port) as (socket, peer):
        assert all(port.answer(peer, 800))
        port.clock.advance(SILENCE_NS - 1)
        assert port.answer(peer) == [True]

        def is_silent() -> bool:
            port.clock.advance(SILENCE_NS)
            return port.answer(peer) == [False]

        wait_until(is_silent)  # the kernel may take some more for it
        assert port.answer(peer) == [False]
        assert port.ended_count() == 1
        port.tell(peer)
        assert port.ended_count() == 1
        socket.send(b"and this?")
        assert port.closed.wait_for_count(1) == (peer,)
        assert port.came.items[0] == peer
        assert [line["event"] for line in logs] == ["peer.ended"]


def test_who_reads_nothing_is_told_no_more(port: Port) -> None:
    """N3: refusals and receipts were counted nowhere."""
    with capture_logs(), deaf_peer(port) as (_, peer):
        port.tell(peer, 800)
        assert port.ended_count() == 0

        def is_silent() -> bool:
            port.clock.advance(SILENCE_NS)
            port.tell(peer)
            return port.ended_count() == 1

        wait_until(is_silent)
        assert port.closed.wait_for_count(1) == (peer,)


def test_what_has_no_room_is_not_left_out(port: Port) -> None:
    """N3: who leaves ZeroMQ no room is ended, and not told half."""
    with capture_logs(), deaf_peer(port) as (_, peer):
        port.tell(peer, 10_000, b"small")
        if not port.ended_count():  # the kernel has taken them all
            port.tell(peer, 10_000)
        assert port.closed.wait_for_count(1) == (peer,)
        assert port.ended_count() == 1


def test_who_reads_is_told_all(port: Port) -> None:
    """However slowly it does."""
    with deaf_peer(port) as (socket, peer):
        port.tell(peer, 600)
        for _ in range(600):
            port.clock.advance(SILENCE_NS)
            assert socket.recv() == WORD
        port.tell(peer)
        assert socket.recv() == WORD
        assert port.ended_count() == 0


def test_a_page_is_not_asked_about(port: Port) -> None:
    """S2: a node that copies rows has asked for it, and is told nothing else."""
    with deaf_peer(port) as (socket, peer):
        sent: list[bool] = []
        page = (WORD, bytes(100_000))
        for _ in range(50):
            port.clock.advance(SILENCE_NS)
            port.call(lambda: sent.append(port.port.send_page(peer.routing_id, page)))
        assert sent == [True] * 50
        for _ in range(50):
            assert tuple(socket.recv_multipart()) == page
        assert port.ended_count() == 0


def test_who_is_gone_is_forgotten(port: Port) -> None:
    """What is sent to it comes to nothing."""
    with ScriptedPeer(port.address) as scripted:
        scripted.send_frames(b"hello")
        peer = port.came.wait_for_count(1)[0]
        port.tell(peer)
        assert scripted.receive_frames() == [WORD]
    assert port.closed.wait_for_count(1) == (peer,)
    port.tell(peer)
    assert port.answer(peer) == [False]
    assert port.ended_count() == 0
