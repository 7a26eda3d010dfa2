"""What all servers share: who is connected, who has gone, what comes to nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, final

import pytest
import zmq
from structlog.testing import capture_logs

from nameservice import ConfigurationError, ManualClock, RemoteProtocolError
from nameservice.clock import NS_PER_SECOND
from tests.recording import Record, wait_until
from zmqtransport import (
    Authenticator,
    ConnectionAccepted,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionMonitor,
    CurveKeyPair,
    Endpoint,
    Peer,
    PollLoop,
    Port,
    SendOutcome,
    SocketLimits,
    TCPProgress,
    ZMQContext,
    connect_socket,
    new_context,
    open_socket,
    parse_endpoint,
)
from zmqtransport.inflow import Inflow


pytestmark = pytest.mark.shells

LOOPBACK = parse_endpoint("tcp://127.0.0.1:0")
WAIT_SECONDS = 20.0
# More than a loop reads before it looks elsewhere, less than ZeroMQ keeps for it.
MANY_COUNT = 500


@final
class Server:
    """
    A `Port` in a loop of its own.

    Attributes:
        came: What came: from whom, and the frame behind the routing id.
        clock: What the log goes by.
        closed: The peers that are over, behind what they brought.
        events: What happened to connections.
    """

    def __init__(self, endpoint: Endpoint = LOOPBACK, **settings: Any) -> None:
        self.came: Record[tuple[Peer, bytes]] = Record()
        self.closed: Record[Peer] = Record()
        self.events: Record[ConnectionEvent] = Record()
        self.context: ZMQContext = new_context()
        self.clock = ManualClock()
        self.inflow = Inflow.of_frames(65_536, is_secured=False)
        self.loop = PollLoop(name="port")
        self.loop.at_end(self.context.term)
        self.authenticator = Authenticator(self.context, None)
        self.loop.at_end(self.authenticator.close)
        try:
            self.port = Port(
                self.context,
                endpoint,
                SocketLimits(),
                None,
                authenticator=self.authenticator,
                loop=self.loop,
                clock=self.clock,
                component="port",
                frame_count_max=2,
                on_message=lambda peer, frames: self.came.add((peer, frames[1].bytes)),
                on_closed=self._closed,
                inflow=self.inflow,
                **{"on_events": self._happened, "connections_max": 10, **settings},
            )
        except BaseException:
            self.loop.stop()
            raise
        self.loop.at_end(self.port.close)
        self.loop.start()

    def _closed(self, peers: Sequence[Peer]) -> None:
        for peer in peers:
            self.closed.add(peer)

    def _happened(self, events: Sequence[ConnectionEvent]) -> None:
        for event in events:
            self.events.add(event)

    def call(self, action: Callable[[], Any]) -> Any:
        """Return what *action* returns in the loop's thread."""
        return self.loop.call(action, target="port", timeout_seconds=WAIT_SECONDS)

    def is_too_much(self, peer: Peer, size_bytes: int) -> bool:
        """Return whether the connection of *peer* must end if so much waits of it."""
        progress = TCPProgress(
            written_bytes=0, received_bytes=size_bytes, read_bytes=size_bytes
        )
        return bool(
            self.inflow.excess(
                {peer.connection: progress},
                self.inflow.before(),
                now_ns=self.clock.now_ns(),
            )
        )

    def figure(self, name: str) -> int:
        """Return one of its figures."""
        return int(self.call(lambda: self.port.figures().get(name, 0)))

    def close(self) -> None:
        """End."""
        self.loop.stop()
        self.loop.join()


@pytest.fixture
def server() -> Iterator[Server]:
    """A port for ten."""
    server = Server()
    yield server
    server.close()


@contextmanager
def connected(server: Server) -> Iterator[zmq.Socket[bytes]]:
    """Yield a socket that connects to *server*, in a context of its own."""
    context: ZMQContext = new_context()
    socket = open_socket(context, zmq.DEALER, SocketLimits(linger_ms=10_000))
    try:
        connect_socket(socket, server.port.endpoint)
        yield socket
    finally:
        socket.close()
        context.term()


class TestPeers:
    def test_who_spoke_is_answered(self, server: Server) -> None:
        """Each message comes with its peer, and only that peer hears the answer."""
        with connected(server) as first, connected(server) as second:
            first.send(b"first")
            server.came.wait_for_count(1)
            second.send(b"second")
            (one, _), (two, _) = server.came.wait_for_count(2)
            assert one is not two
            sent = server.call(lambda: server.port.send(two.routing_id, b"to", b"two"))
            assert sent is SendOutcome.SENT
            assert second.poll(int(WAIT_SECONDS * 1_000))
            # Of messages without the names of their peers.
            assert server.figure("received_bytes_total") == len(b"firstsecond")
            assert server.figure("sent_bytes_total") == len(b"totwo")
            assert second.recv_multipart() == [b"to", b"two"]
            first.send(b"again")
            assert server.came.wait_for_count(3)[2] == (one, b"again")
            assert server.call(lambda: server.port.peers.get(one.number)) is one

    def test_the_end_of_a_peer_is_told_once_and_last(self, server: Server) -> None:
        """E5: what it said before its end is heard before its end."""
        for index in range(20):
            with connected(server) as socket:
                for word in (b"a", b"b", b"c"):
                    socket.send(word)
            gone = server.closed.wait_for_count(index + 1)[index]
            said = [word for peer, word in server.came.items if peer is gone]
            assert said == [b"a", b"b", b"c"]
        assert len(set(server.closed.items)) == 20
        assert server.call(lambda: len(server.port.peers)) == 0
        assert server.figure("connections") == 0

    def test_what_it_said_may_be_read_long_after_its_end(self, server: Server) -> None:
        """E5: it is over behind the last word, too, and others are not."""
        busy, is_read = threading.Event(), threading.Event()

        def be_busy() -> None:
            busy.set()
            is_read.wait(WAIT_SECONDS)

        with connected(server) as other:
            other.send(b"other")
            ((stays, _),) = server.came.wait_for_count(1)
            with connected(server) as socket:
                socket.send(b"x")
                server.came.wait_for_count(2)
                server.loop.call_soon_threadsafe(be_busy)
                assert busy.wait(WAIT_SECONDS)
                for _ in range(MANY_COUNT - 1):
                    socket.send(b"x")
            is_read.set()
            server.came.wait_for_count(1 + MANY_COUNT)
            wait_until(lambda: server.call(lambda: len(server.port.peers)) == 1)
            others = {peer for peer, word in server.came.items if word == b"x"}
            assert set(server.closed.items) == others
            assert server.call(lambda: server.port.peers.get(stays.number)) is stays

    def test_a_number_that_is_given_again_is_not_over(self, server: Server) -> None:
        """E5: who comes at once, under the number of one that has gone, stays."""
        for index in range(50):
            with connected(server) as gone:
                for _ in range(200):
                    gone.send(b"gone")
            with connected(server) as socket:
                socket.send(b"here")
                server.came.wait_for_count(201 * (index + 1))
                wait_until(lambda: server.call(lambda: len(server.port.peers)) == 1)
                ((here, _),) = [
                    come for come in server.came.items if come[1] == b"here"
                ][index:]
                assert here not in server.closed.items

    def test_who_is_gone_is_not_found_any_more(self, server: Server) -> None:
        """An answer to it is no error of ours, and goes nowhere else."""
        with connected(server) as socket:
            socket.send(b"x")
            ((peer, _),) = server.came.wait_for_count(1)
        server.closed.wait_for_count(1)
        assert server.call(lambda: server.port.peers.get(peer.number)) is None

    @pytest.mark.proves("N3")
    def test_more_may_wait_of_who_is_admitted(self, server: Server) -> None:
        """N3: until it is dismissed, and not of who has its number afterwards."""
        size_bytes = 100 << 20
        with connected(server) as socket:
            socket.send(b"x")
            ((peer, _),) = server.came.wait_for_count(1)
            assert server.is_too_much(peer, size_bytes)
            server.call(lambda: server.port.admit(peer, 1 << 30))
            assert not server.is_too_much(peer, size_bytes)
            server.call(lambda: server.port.dismiss(peer))
            assert server.is_too_much(peer, size_bytes)
        server.closed.wait_for_count(1)
        server.inflow.opened(peer.connection, now_ns=0)
        server.call(lambda: server.port.admit(peer, 1 << 30))
        assert server.is_too_much(peer, size_bytes)

    def test_each_event_is_told_once(self, server: Server) -> None:
        """A count of a connection's bytes would begin anew with a second one."""
        for index in range(10):
            with connected(server) as socket, connected(server) as other:
                socket.send(b"x")
                other.send(b"y")
                server.came.wait_for_count(2 * index + 2)
        server.closed.wait_for_count(20)
        kinds = [type(event) for event in server.events.items]
        assert kinds.count(ConnectionAccepted) == kinds.count(ConnectionClosed) == 20

    @pytest.mark.proves("N3")
    def test_what_fails_on_events_costs_no_peer(self) -> None:
        """N3: that its connection was accepted is known all the same."""
        failing = [RuntimeError("once")]

        def fail(_: Sequence[ConnectionEvent]) -> None:
            if failing:
                raise failing.pop()

        server = Server(on_events=fail)
        try:
            with connected(server) as socket:
                wait_until(lambda: server.loop.failure_count == 1)
                for _ in range(10):
                    socket.send(b"x")
                server.came.wait_for_count(10)
                assert len({peer for peer, _ in server.came.items}) == 1
            server.closed.wait_for_count(1)
        finally:
            server.close()


class TestLimits:
    @pytest.mark.proves("N3")
    def test_there_are_so_many_connections_at_most(self) -> None:
        """N3: those who are connected are not disturbed by those who come."""
        server = Server(connections_max=1)
        try:
            with connected(server) as first:
                first.send(b"x")
                server.came.wait_for_count(1)
                with connected(server):
                    wait_until(lambda: server.figure("connections_refused_total") > 0)
                first.send(b"y")
                server.came.wait_for_count(2)
                assert server.figure("connections") == 1
        finally:
            server.close()

    @pytest.mark.proves("N3")
    def test_what_is_no_message_fills_no_disk(self, server: Server) -> None:
        """N3: each is counted; of the log each interval has ten lines."""
        error = RemoteProtocolError("no-such-thing", "x" * 1_000)
        with capture_logs() as logs:
            for _ in range(100):
                server.call(lambda: server.port.drop(error))
            server.clock.advance(10 * NS_PER_SECOND)
            server.call(lambda: server.port.drop(error))
        assert server.figure("frames_no_such_thing_total") == 101
        dropped, left_out = (
            [line for line in logs if line["event"] == event]
            for event in ("frame.dropped", "lines.left_out")
        )
        assert len(dropped) == 11
        assert {len(line["detail"]) for line in dropped} == {200}
        assert [line["count"] for line in left_out] == [90]

    def test_a_port_that_is_taken_leaves_nothing_open(self, server: Server) -> None:
        """The second one says so; its context ends, so no socket is left."""
        with pytest.raises(ConfigurationError, match="in use"):
            Server(server.port.endpoint)

    @pytest.mark.proves("N3")
    def test_each_connection_is_told_of(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N3: also those that a look at the monitor, elsewhere than its own, leaves."""
        receive = ConnectionMonitor.receive
        monkeypatch.setattr(ConnectionMonitor, "receive", lambda self: receive(self, 1))
        endpoint = server.port.endpoint
        with ExitStack() as opened:

            def connect_and_watch() -> None:
                for _ in range(9):
                    client = opened.enter_context(
                        socket.create_connection((endpoint.host, endpoint.port))
                    )
                    client.recv(1)  # it is accepted
                server.port.watch()

            server.call(connect_and_watch)
            server.events.wait_for_count(9)
            assert server.figure("connections") == 9

    def test_other_keys_end_every_peer(self) -> None:
        """N4: whose connection is ended by that is told like any other end."""
        server = Server()
        try:
            with connected(server) as socket:
                socket.send(b"x")
                ((peer, _),) = server.came.wait_for_count(1)
                server.port.listener.prepare()
                keys = CurveKeyPair.generate()
                server.call(
                    lambda: server.port.watch(server.port.listener.replace_keys(keys))
                )
                assert server.closed.wait_for_count(1) == (peer,)
        finally:
            server.close()
