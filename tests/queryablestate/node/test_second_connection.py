"""Large answers have a connection of their own, which small ones do not wait for."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self, final

import pytest
import zmq

from haservices import HAServices, open_ha_services
from nameservice import SystemClock
from queryablestate import (
    NodeConfig,
    QueryableStateClient,
    QueryStateProxyServer,
    StateNode,
)
from queryablestate.connect.credentials import as_credentials
from queryablestate.node.core.events import NodeEvent, ProxyConnected, ProxyDisconnected
from queryablestate.node.proxy_client import QueryStateProxyClient
from queryablestate.wire.address import StateAddress
from queryablestate.wire.codec import decode_to_proxy, encode
from queryablestate.wire.node_messages import ConnectionJoined, JoinConnection
from queryablestate.wire.questions import Refusal
from tests.lodestar.publishing import Publisher
from tests.queryablestate.schemas import TEXTS
from zmqtransport import PollLoop, new_context, parse_endpoint


pytestmark = [pytest.mark.shells, pytest.mark.proves("B2")]

WAIT_SECONDS: Final = 30.0
LARGE: Final = bytes(15 << 20)
SMALL: Final = b"small"
JOIN: Final = JoinConnection(node_id="n", registration_id="r", copy_secret=b"secret")


@final
class Narrow:
    """
    Forwards a port to *target*, and stops what the second connection sends on demand.

    Whatever else goes through is passed on at once.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._is_open = threading.Event()
        self._is_open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open.set()
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        for one in self._sockets:
            one.close()

    def stop(self) -> None:
        """Pass on nothing more of what the second connection sends, but for a block."""
        self._is_open.clear()

    def go_on(self) -> None:
        """Pass it on again."""
        self._is_open.set()

    def end_first(self) -> None:
        """Close the first connection."""
        _shut(self._sockets[1])

    def end_second(self) -> None:
        """Close the second connection."""
        _shut(self._sockets[3])

    def _start(self, *target: object) -> None:
        work, *arguments = target
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        for is_second in itertools.chain((False, True), itertools.repeat(False)):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            target = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, target]
            self._start(self._pass_on, client, target, is_second)
            self._start(self._pass_on, target, client, False)

    def _pass_on(
        self,
        source: socket.socket,
        sink: socket.socket,
        is_second: bool,
    ) -> None:
        try:
            while block := source.recv(1 << 16):
                if is_second:
                    self._is_open.wait(WAIT_SECONDS)
                sink.sendall(block)
        except OSError:
            pass
        _shut(sink)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is over, or it listens


@final
class Stage:
    """A node's client, and a proxy at the other end of a narrow link."""

    def __init__(self, ha: HAServices, resources: ExitStack) -> None:
        self._clock = SystemClock()
        self._loop = PollLoop(name="test-second", clock=self._clock)
        context, peer_context = new_context(), zmq.Context()
        resources.callback(peer_context.destroy, linger=0)
        self.router = peer_context.socket(zmq.ROUTER)
        self.router.rcvtimeo = round(WAIT_SECONDS * 1_000)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.link = resources.enter_context(Narrow(port))
        self.connected = threading.Event()
        self.disconnected = threading.Event()
        self.gone: list[int] = []
        self._awaited_count = 0
        self.client = QueryStateProxyClient(
            ha,
            as_credentials(None),
            loop=self._loop,
            context=context,
            clock=self._clock,
            on_event=self._told,
            on_question=lambda _question, _keys: None,
            join=lambda: JOIN,
        )
        resources.callback(self.client.stop_finding)
        resources.callback(context.destroy, linger=0)
        resources.callback(self._loop.join)
        resources.callback(self._loop.stop)
        self._loop.at_end(self.client.disconnect)
        self._loop.start()
        endpoint = parse_endpoint(f"tcp://127.0.0.1:{self.link.port}")
        address = str(StateAddress(endpoint=endpoint))
        self._loop.call(lambda: self.client.connect(address), target="the loop")
        assert self.connected.wait(WAIT_SECONDS)

    def send(self, payload: bytes, number: int = 0, *, link: int = 0) -> None:
        """Have the node answer, what was asked over *link* if that is there still."""
        self._awaited_count += 1

        def send() -> None:
            message = Refusal(request_id=number, code="illegal")
            assert self.client.send(
                message, payload, link=link, on_gone=lambda: self.gone.append(number)
            )

        self._loop.call(send, target="the loop")

    def receive(self) -> tuple[bytes, list[bytes]]:
        """Return which answer comes next: from whom, and what."""
        while True:
            sender, *frames = self.router.recv_multipart()
            if not isinstance(decode_to_proxy(frames[0]), JoinConnection):
                self._awaited_count -= 1
                return sender, frames

    def receive_join(self) -> bytes:
        """Receive until one asks to be joined, and return it; answers are dropped."""
        while True:
            sender, *frames = self.router.recv_multipart()
            message = decode_to_proxy(frames[0])
            if isinstance(message, JoinConnection):
                assert message == JOIN
                return sender
            self._awaited_count -= 1

    def join(self) -> tuple[bytes, bytes]:
        """Have large answers go over the second connection; return both senders."""
        self._take_in()
        self.send(SMALL)
        first, _ = self.receive()
        self.send(LARGE)
        second = self.receive_join()
        self.router.send_multipart([second, encode(ConnectionJoined())])
        for _ in range(1_000):
            self.send(LARGE)
            if second in self._take_in():
                return first, second
        raise AssertionError("the node has not heard of it")

    def _take_in(self) -> set[bytes]:
        """Receive the large answers that are awaited; return who sent them."""
        senders = set()
        while self._awaited_count:
            sender, frames = self.receive()
            assert frames[1] == LARGE
            senders.add(sender)
        return senders

    def _told(self, event: NodeEvent) -> None:
        if isinstance(event, ProxyConnected):
            self.connected.set()
        elif isinstance(event, ProxyDisconnected):
            self.disconnected.set()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return a client that is connected."""
    with open_ha_services("embedded:") as ha, ExitStack() as resources:
        yield Stage(ha, resources)


class TestSecondConnection:
    def test_a_small_answer_overtakes_a_large_one(self, stage: Stage) -> None:
        """B2: it waited until all of that had been sent."""
        first, second = stage.join()
        stage.link.stop()
        stage.send(LARGE, 1)
        stage.send(SMALL, 2)
        assert stage.receive()[0] == first
        stage.send(SMALL, 3)
        assert stage.receive()[0] == first
        stage.link.go_on()
        sender, frames = stage.receive()
        assert (sender, frames[1]) == (second, LARGE)

    def test_small_answers_keep_their_order(self, stage: Stage) -> None:
        """B2: they go over the first connection, all of them."""
        first, _ = stage.join()
        for number in range(1, 100):
            stage.send(SMALL, number)
        for number in range(1, 100):
            sender, frames = stage.receive()
            message = decode_to_proxy(frames[0])
            assert isinstance(message, Refusal)
            assert (sender, message.request_id) == (first, number)

    def test_what_was_lost_with_it_is_not_waited_for(self, stage: Stage) -> None:
        """B2, B1: the proxy is left, so that it asks others, and memory is free."""
        stage.join()
        stage.link.stop()
        stage.send(LARGE, 7)
        stage.link.end_second()
        assert stage.disconnected.wait(WAIT_SECONDS)
        assert 7 in stage.gone

    @pytest.mark.proves("Q4")
    def test_it_ends_with_the_first(self, stage: Stage) -> None:
        """
        B2, Q4: it is one of a registration, which is over with the first connection.

        The first one broke alone, and ZeroMQ made another, over which the node
        registered.  Large answers went on over the second one.  The proxy took them for
        those of the former registration, which it knew nothing of any more: each was
        lost, and clients got no answer until the deadline, again and again.
        """
        _, second = stage.join()
        stage.connected.clear()
        stage.link.end_first()
        assert stage.connected.wait(WAIT_SECONDS)
        stage.send(LARGE, 8)
        sender, _ = stage.receive()
        assert sender != second
        assert second not in stage.join()

    def test_without_the_consent_of_the_proxy_there_is_one(self, stage: Stage) -> None:
        """B2: a proxy of before answers nothing of use; nothing is lost by that."""
        stage.send(LARGE)
        second = stage.receive_join()
        refusal = Refusal(request_id=0, code="malformed", data=("malformed", "what"))
        stage.router.send_multipart([second, encode(refusal)])
        for number in range(1, 5):
            stage.send(LARGE, number)
            sender, frames = stage.receive()
            assert (sender != second, frames[1]) == (True, LARGE)

    def test_a_proxy_that_passed_it_over_is_asked_again(self, stage: Stage) -> None:
        """B2: one that has just begun to lead; the connection may last for months."""
        stage.send(LARGE)
        passed_over = stage.receive_join()
        stage.send(LARGE)
        assert stage.receive_join() == passed_over
        stage.join()


@pytest.mark.proves("Q1")
def test_what_was_asked_over_a_former_connection_is_not_answered(stage: Stage) -> None:
    """
    Q1: ZeroMQ makes another connection by itself, maybe to another proxy.

    One that is started again at the same address numbers its questions from 1, as the
    former one did.  What the node had to say to a question of that was sent to this
    one, which took it for the end of its own question of that number.
    """
    former = stage.client.link
    stage.connected.clear()
    stage.link.end_first()
    assert stage.connected.wait(WAIT_SECONDS)
    stage.send(SMALL, 7, link=former)
    stage.send(SMALL, 8, link=stage.client.link)
    _, frames = stage.receive()
    message = decode_to_proxy(frames[0])
    assert isinstance(message, Refusal)
    assert message.request_id == 8
    assert 7 in stage.gone


def test_a_node_and_a_proxy_agree(tmp_path: Path) -> None:
    """B2: the first large answer opens one, which the proxy accepts."""
    with (
        open_ha_services(f"embedded:{tmp_path.name}") as ha,
        QueryStateProxyServer(ha) as proxy,
        StateNode(ha, NodeConfig(data_dir=tmp_path, is_durable=False)),
        QueryableStateClient(ha, deadline_seconds=WAIT_SECONDS) as client,
    ):
        rows = [(1, "x" * (8 << 20)), (2, "x")]
        Publisher(ha, "job", {"s": TEXTS}).write({"s": rows})
        assert client.get("job", "s", 2) == {"v": "x"}
        before = proxy.status()
        for _ in range(3):
            assert client.get("job", "s", 1) == {"v": rows[0][1]}
            assert client.get("job", "s", 2) == {"v": "x"}
        after = proxy.status()
    assert after["links"] == int(before["links"]) + 1
    assert "connections_not_joined_total" not in after
