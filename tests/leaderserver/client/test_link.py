"""`SocketLink` against servers that refuse, vanish, or do not keep to the protocol."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Self

import pytest
import zmq
from structlog.testing import capture_logs

from haservices.testing.reserved_port import ReservedPort
from leaderserver import LeaderServer, ServerConfig, codec
from leaderserver.client.client import LeaderClient
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.link import ClientKeys, SocketLink
from leaderserver.messages import Hello, Welcome
from leaderserver.operator_messages import StatusReply, StatusRequest
from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    SystemClock,
    UnreachableError,
)
from retrieval import RetrieverEvent
from tests.leaks import assert_closed, process_figures, settled
from tests.recording import Record, wait_until
from zmqtransport import (
    CurveKeyPair,
    Endpoint,
    ZMQContext,
    ZMQSocket,
    framing,
    parse_endpoint,
    write_key_pair,
)


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 30.0


class Client:
    """A `LeaderClient` over a `SocketLink`, and what it reports.  A context manager."""

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        keys: ClientKeys | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        clock = SystemClock()
        target = parse_endpoint(str(endpoint))
        links: list[SocketLink] = []

        def make_link(client: LeaderClient) -> SocketLink:
            links.append(
                SocketLink(
                    client,
                    endpoint=target,
                    target="the server",
                    keys=keys,
                    session_timeout_seconds=10,
                    clock=clock,
                )
            )
            return links[0]

        self.client = LeaderClient(
            ClientConfig(
                target="the server",
                client="test",
                session_timeout_ns=10 * NS_PER_SECOND,
                lease_ns=NS_PER_SECOND // 5,
                clears_on_suspended=False,
                seed=secrets.token_bytes(32),
            ),
            clock=clock,
            link_factory=make_link,
            connect_timeout_seconds=timeout_seconds,
        )
        self.link = links[0]
        self.events: Record[RetrieverEvent] = Record()
        self.errors: Record[Exception] = Record()

    def retrieve(self, component_id: str = "c/job") -> int:
        """Enter a retriever, so that something is subscribed to; return its id."""
        retriever_id = self.client.new_retriever_id()
        self.client.add_retriever(
            retriever_id, component_id, deliver=self.events.add, fail=self.errors.add
        )
        return retriever_id

    def contend(self) -> None:
        """Enter a contender, whose errors are reported likewise."""
        self.client.add_contender(
            "a-contender",
            "c/job",
            confirm_timeout_ns=NS_PER_SECOND,
            on_added=lambda *_: None,
            deliver=lambda _: None,
            fail=self.errors.add,
        )

    def is_served(self) -> bool:
        """Return whether the server answers."""
        return isinstance(
            self.client.call(StatusRequest(), is_repeatable=True), StatusReply
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()


class OddServer:
    """
    A ROUTER socket that answers greetings as a test wants.  A context manager.

    Args:
        welcome: Makes the frames of the answers to a greeting.
    """

    def __init__(self, publish_address: str | None, *before: list[bytes]) -> None:
        self._publish_address = publish_address
        self._before = before
        self._context: ZMQContext = zmq.Context()
        self._router: ZMQSocket = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self.endpoint = (
            f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="odd server")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join(TIMEOUT_SECONDS)
        self._router.close()
        self._context.term()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if not self._router.poll(20):
                continue
            peer, _, payload = self._router.recv_multipart()
            message = codec.decode_to_server(payload)
            if not isinstance(message, Hello):
                continue
            for frames in self._before:
                self._router.send_multipart([peer, *frames])
            welcome = Welcome(
                nonce=message.nonce,
                secret=bytes(32),
                session_id="odd",
                session_timeout_ns=10 * NS_PER_SECOND,
                lease_ns=NS_PER_SECOND // 5,
                incarnation=1,
                publish_port=1,
                publish_address=self._publish_address,
                is_durable=False,
            )
            self._router.send_multipart([peer, *framing.encode(codec.encode(welcome))])


@pytest.fixture
def listener(reserved: ReservedPort) -> Iterator[socket.socket]:
    """Yield a listening TCP socket that no ZeroMQ is behind, on the reserved port."""
    with reserved.listen() as listening:
        listening.settimeout(TIMEOUT_SECONDS)
        yield listening


def endpoint_of(listener: socket.socket) -> Endpoint:
    """Return where *listener* listens."""
    return Endpoint(host="127.0.0.1", port=listener.getsockname()[1])


def talk_nonsense(listener: socket.socket) -> None:
    """Accept one connection, break the protocol, and listen no more."""
    connection, _ = listener.accept()
    with connection:
        # A greeting of ZMTP 3.0 with a mechanism that there is not.
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NONSENSE".ljust(20, b"\0")
        connection.sendall(greeting + bytes(32))
        listener.close()
        while connection.recv(1_000):
            pass  # until the other side has understood


def server_at(port: int, **settings: object) -> LeaderServer:
    """Return a server on a port that is reserved; it has no publishing port yet."""
    server = LeaderServer(
        ServerConfig(
            bind=f"tcp://127.0.0.1:{port}",
            lease_seconds_max=0.2,
            lease_seconds_unrecorded_max=0.2,
            **settings,  # type: ignore[arg-type]
        )
    )
    server.start()
    return server


def has_event(logs: Sequence[MutableMapping[str, object]], event: str) -> bool:
    """Return whether *event* was logged."""
    return any(line["event"] == event for line in list(logs))


def is_served_again(client: Client) -> bool:
    """Return whether the server answers, maybe after an outage."""
    try:
        return client.is_served()
    except UnreachableError:
        return False


class TestOpening:
    def test_a_session_is_opened(self) -> None:
        """What was posted before the connection stood is done when it does."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            Client(server.endpoint) as client,
        ):
            welcome = client.client.open()
            assert welcome.publish_port == server.publish_port
            assert client.is_served()

    def test_nobody_there(self, listener: socket.socket) -> None:
        """Without an answer there is an error at the end of the connect timeout."""
        endpoint = endpoint_of(listener)
        listener.close()
        with (
            Client(endpoint, timeout_seconds=0.3) as client,
            pytest.raises(UnreachableError, match="did not answer within"),
        ):
            client.client.open()

    def test_a_late_server_is_found(self, listener: socket.socket) -> None:
        """A server that starts after its client is connected to."""
        port = endpoint_of(listener).port
        listener.close()
        opened: list[Welcome] = []
        with Client(f"tcp://127.0.0.1:{port}") as client:
            thread = threading.Thread(
                target=lambda: opened.append(client.client.open())
            )
            thread.start()
            server = server_at(port)
            thread.join(TIMEOUT_SECONDS)
            assert opened
            client.client.close()
            server.close()

    def test_nonsense_is_left_behind(self, listener: socket.socket) -> None:
        """After a protocol error libzmq gives up; a new socket finds the server."""
        endpoint = endpoint_of(listener)
        with Client(endpoint) as client:
            thread = threading.Thread(target=talk_nonsense, args=[listener])
            thread.start()
            with pytest.raises(AuthenticationError):
                client.client.open()
            thread.join(TIMEOUT_SECONDS)
            server = server_at(endpoint.port)
            wait_until(lambda: client.client.session_id is not None)
            assert client.is_served()
            client.client.close()
            server.close()

    def test_a_server_of_another_version_is_told_apart(self) -> None:
        """The error says who speaks which version (N1)."""
        with (
            OddServer(None, [b"LDS\x07", b"who knows"]) as server,
            Client(server.endpoint) as client,
            pytest.raises(RemoteProtocolError, match="version 7"),
        ):
            client.client.open()

    def test_malformed_answers_are_dropped(self) -> None:
        """And logged; the right one that follows is taken."""
        with (
            OddServer(
                None, [b"LDS\x01", b"\xc1"], [b"LDS\x01"], [b"LDS\x01", b"", b"", b""]
            ) as server,
            Client(server.endpoint) as client,
            capture_logs() as logs,
        ):
            assert client.client.open().session_id == "odd"
            dropped = [line for line in logs if line["event"] == "frame.dropped"]
            assert [line["reason"] for line in dropped] == [
                "malformed",
                "truncated",
                "malformed",
            ]

    def test_a_server_that_closes_each_connection_is_asked_less_often(
        self, listener: socket.socket
    ) -> None:
        """N3: many that are turned away do not keep a server from the others."""
        accepted_count = 0

        def turn_away() -> None:
            nonlocal accepted_count
            with contextlib.suppress(OSError):  # closed at the end
                while True:
                    connection, _ = listener.accept()
                    connection.close()
                    accepted_count += 1

        thread = threading.Thread(target=turn_away)
        thread.start()
        with (
            Client(endpoint_of(listener), timeout_seconds=4.0) as client,
            pytest.raises(UnreachableError, match="too many connections"),
        ):
            client.client.open()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT_SECONDS)
        # With the shortest pauses of all: 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1 s.
        assert 1 < accepted_count <= 8

    def test_a_process_without_free_descriptors_connects_once_it_has_some(
        self, reserved: ReservedPort
    ) -> None:
        """A socket that cannot be opened now is opened later."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as resources:
            # Every descriptor below this is taken, and stays so.
            limit = 256
            while (descriptor := os.open(os.devnull, os.O_RDONLY)) < limit:
                resources.callback(os.close, descriptor)
            os.close(descriptor)
            server = server_at(reserved.port)
            client = resources.enter_context(Client(server.endpoint))
            client.client.open()
            logs = resources.enter_context(capture_logs())
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
            try:
                server.close()
                wait_until(lambda: has_event(logs, "socket.unopened"))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            again = server_at(reserved.port)
            resources.callback(again.close)
            wait_until(lambda: is_served_again(client))

    def test_impossible_endpoints_are_errors_at_once(self) -> None:
        """And nothing stays open."""
        with pytest.raises(ConfigurationError):
            Client("tcp://*:5170")
        before = settled(process_figures)
        for _ in range(10):
            with pytest.raises(ConfigurationError, match="cannot connect to"):
                Client("tcp://*:5170")
        assert_closed(before)


class TestBroadcasts:
    def test_they_are_heard_again_after_nonsense(self, listener: socket.socket) -> None:
        """The broadcast socket is opened anew, with its topics (N1)."""
        endpoint = endpoint_of(listener)
        context: ZMQContext = zmq.Context()
        publisher: ZMQSocket = context.socket(zmq.XPUB)
        publisher.linger = 0
        try:
            with OddServer(str(endpoint)) as server, Client(server.endpoint) as client:
                client.retrieve()
                client.retrieve("c/other")
                client.client.open()
                talk_nonsense(listener)
                publisher.bind(str(endpoint))
                heard: set[bytes] = set()
                while len(heard) < 2:
                    assert publisher.poll(round(TIMEOUT_SECONDS * 1_000))
                    heard.add(publisher.recv())
                assert heard == {
                    b"\x01" + codec.publication_topic(component_id)
                    for component_id in ("c/job", "c/other")
                }
        finally:
            publisher.close()
            context.term()

    def test_topics_come_and_go(self) -> None:
        """The last retriever of a component takes its topic with it."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            Client(server.endpoint) as client,
        ):
            client.client.open()
            first, second = client.retrieve(), client.retrieve()
            wait_until(lambda: server.status()["topics"] == 1)
            client.client.remove_retriever(first)
            assert client.is_served()
            assert server.status()["topics"] == 1
            client.client.remove_retriever(second)
            wait_until(lambda: server.status()["topics"] == 0)

    def test_they_follow_a_server_that_moves(self, listener: socket.socket) -> None:
        """A restarted server publishes elsewhere, and its client hears of that."""
        port = endpoint_of(listener).port
        listener.close()
        first = server_at(port)
        with Client(f"tcp://127.0.0.1:{port}") as client:
            client.client.open()
            client.retrieve()
            wait_until(lambda: first.status()["topics"] == 1)
            first.close()
            second = server_at(port)
            assert second.publish_port != first.publish_port
            wait_until(lambda: second.status()["topics"] == 1)
            client.client.close()
            second.close()


class TestRefusal:
    def test_it_is_told_once_and_may_end(
        self, tmp_path: Path, listener: socket.socket
    ) -> None:
        """
        One that is taken off the allow-list hears why, once; and is back when listed.

        So does what is asked for meanwhile: it waits not in silence (E8).  libzmq tries
        no more after a refusal, so the link does (N4).
        """
        port = endpoint_of(listener).port
        listener.close()
        own, other, of_server = (CurveKeyPair.generate() for _ in range(3))
        files = write_key_pair(of_server, tmp_path / "server")
        allow_list = tmp_path / "clients.toml"

        def start(listed: CurveKeyPair) -> LeaderServer:
            allow_list.write_text(
                f'[clients.one]\npublic_key = "{listed.public_key}"\n'
                'roles = ["admin"]\n'
            )
            return server_at(
                port,
                curve_public_key_file=files.public_file,
                curve_secret_key_file=files.secret_file,
                allow_list_file=allow_list,
            )

        keys = ClientKeys(key_pair=own, load_server_keys=lambda: [of_server.public_key])
        assert own.secret_key not in repr(keys)
        server = start(own)
        with Client(f"tcp://127.0.0.1:{port}", keys=keys) as client:
            first = client.client.open().session_id
            client.retrieve()
            wait_until(lambda: server.status()["topics"] == 1)
            server.close()
            server = start(other)
            wait_until(
                lambda: int(server.status()["connections_unauthorized_total"]) >= 4
            )
            assert len(client.errors.items) == 1
            assert isinstance(client.errors.items[0], AuthenticationError)
            client.retrieve()
            client.contend()
            errors = client.errors.wait_for_count(3)
            assert {type(error) for error in errors} == {AuthenticationError}
            server.close()
            server = start(own)
            wait_until(lambda: server.status()["topics"] == 1)
            assert client.is_served()
            assert client.client.session_id != first
            client.client.close()
            server.close()


class TestEnd:
    def test_nothing_is_posted_afterwards(self) -> None:
        """A stopped link says so, and stopping it again is safe."""
        with LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server:
            client = Client(server.endpoint)
            client.client.open()
            client.client.close()
            client.link.stop()
            with pytest.raises(LocalProtocolError):
                client.link.post(lambda: None)

    def test_a_link_that_never_began_leaves_nothing(self) -> None:
        """Neither thread nor file descriptor."""
        Client("tcp://127.0.0.1:1").link.stop()
        before = settled(process_figures)
        for _ in range(20):
            Client("tcp://127.0.0.1:1").link.stop()
        assert_closed(before)
