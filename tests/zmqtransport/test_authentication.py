from __future__ import annotations

import contextlib
import socket as stdlib_socket
import threading
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nameservice import ConfigurationError
from zmqtransport.access import ANONYMOUS, AllowList, Principal
from zmqtransport.authentication import Authenticator
from zmqtransport.connections import (
    ConnectFailed,
    ConnectionEvent,
    ConnectionMonitor,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    connection_of,
)
from zmqtransport.curve import CurveKeyPair
from zmqtransport.endpoints import Endpoint, parse_endpoint
from zmqtransport.loop import PollLoop
from zmqtransport.sockets import (
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    bind_socket,
    connect_socket,
    open_socket,
    receive_now,
    secure_client,
    secure_server,
)


pytestmark = pytest.mark.shells

WAIT_MS = 20_000
SERVER = CurveKeyPair.generate()
ALICE = CurveKeyPair.generate()
MALLORY = CurveKeyPair.generate()
ALICE_PRINCIPAL = Principal(
    name="alice", roles=frozenset({"contend:flights"}), public_key=ALICE.public_key
)


class Server:
    """A ROUTER with CURVE, whose authenticator runs in a loop of its own."""

    def __init__(
        self,
        context: ZMQContext,
        allow_list: AllowList | None,
        *,
        admits_unlisted: bool = False,
    ) -> None:
        self.authenticator = Authenticator(
            context, allow_list, admits_unlisted=admits_unlisted
        )
        self.router = open_socket(context, zmq.ROUTER, SocketLimits())
        has_keys = allow_list is not None or admits_unlisted
        secure_server(self.router, SERVER if has_keys else None)
        self.endpoint = bind_socket(self.router, parse_endpoint("tcp://127.0.0.1:0"))
        self.loop = PollLoop(name="authenticator")
        self.loop.add_readable(self.authenticator.socket, self.authenticator.handle)
        self.loop.at_end(self.authenticator.close)
        self.loop.start()

    def receive(self) -> list[zmq.Frame]:
        """Wait for a message."""
        assert self.router.poll(WAIT_MS)
        return receive_now(self.router, frame_count_max=8)

    def close(self) -> None:
        """Close the socket, then what admits to it."""
        self.router.close()
        self.loop.stop()
        self.loop.join()


@pytest.fixture
def server(context: ZMQContext) -> Iterator[Server]:
    """Yield a server that admits Alice."""
    server = Server(context, AllowList((ALICE_PRINCIPAL,)))
    yield server
    server.close()


class Client:
    """A DEALER that connects, and what its monitor tells."""

    def __init__(self, context: ZMQContext) -> None:
        self.dealer = open_socket(context, zmq.DEALER, SocketLimits())
        self.monitor = ConnectionMonitor(self.dealer)

    def connect(
        self,
        endpoint: Endpoint,
        keys: CurveKeyPair | None,
        server_public_key: str = SERVER.public_key,
    ) -> None:
        """Connect, with *keys* if there are any."""
        if keys is not None:
            secure_client(self.dealer, keys, server_public_key=server_public_key)
        connect_socket(self.dealer, endpoint)

    def events_until(
        self, *kinds: type[ConnectionEvent], count: int = 1
    ) -> list[ConnectionEvent]:
        """Return all events up to the *count*-th of *kinds*."""
        events: list[ConnectionEvent] = []
        while sum(isinstance(event, kinds) for event in events) < count:
            assert self.monitor.socket.poll(WAIT_MS)
            events += self.monitor.receive(1)
        return events

    def close(self) -> None:
        """Close the monitor, then the socket."""
        self.monitor.close()
        self.dealer.close()


@pytest.fixture
def client(client_context: ZMQContext) -> Iterator[Client]:
    """Yield a client that is not connected yet."""
    client = Client(client_context)
    yield client
    client.close()


@pytest.mark.proves("N4")
class TestCurve:
    def test_a_listed_key_is_admitted_and_known(
        self, server: Server, client: Client
    ) -> None:
        """Rule N4: every frame tells the server who sent it."""
        client.connect(server.endpoint, ALICE)
        client.events_until(HandshakeSucceeded)
        client.dealer.send_multipart([b"a", b"b"])
        for frame in server.receive():
            assert server.authenticator.principal_of(frame) == ALICE_PRINCIPAL
        assert server.authenticator.admitted_count == 1
        assert server.authenticator.refused_count == 0

    def test_an_unlisted_key_is_refused_for_good(
        self, server: Server, client: Client
    ) -> None:
        """Rule N4: the client is told, and stops trying."""
        client.connect(server.endpoint, MALLORY)
        *_, event = client.events_until(HandshakeFailed)
        assert event == HandshakeFailed(failure=HandshakeFailure.REFUSED, code=400)
        assert server.authenticator.refused_count == 1

    def test_a_client_that_takes_another_for_the_server_gets_nowhere(
        self, server: Server, client: Client
    ) -> None:
        """Rule N4: with the wrong server key the connection closes, each time."""
        client.connect(server.endpoint, ALICE, server_public_key=MALLORY.public_key)
        events = client.events_until(ConnectFailed, count=3)
        failures = [event for event in events if isinstance(event, HandshakeFailed)]
        assert {event.failure for event in failures} == {HandshakeFailure.CLOSED}
        assert not failures[0].is_final
        assert server.authenticator.admitted_count == 0

    def test_a_client_without_curve_gets_nowhere(
        self, server: Server, client: Client
    ) -> None:
        """
        Rule N4: NULL is not admitted, and the client learns why.

        Which of the two sides notices the mismatch first is a race, so it may take
        several attempts until it is the client.
        """
        client.connect(server.endpoint, None)
        while True:
            *_, event = client.events_until(HandshakeFailed)
            assert isinstance(event, HandshakeFailed)
            if event.is_final:
                break
        assert event.failure is HandshakeFailure.SECURITY_MISMATCH
        assert server.authenticator.admitted_count == 0

    def test_a_client_with_plain_gets_nowhere(
        self, server: Server, client: Client
    ) -> None:
        """Rule N4: a user name and a password are no key."""
        client.dealer.setsockopt(zmq.PLAIN_USERNAME, b"admin")
        client.dealer.setsockopt(zmq.PLAIN_PASSWORD, b"admin")
        client.connect(server.endpoint, None)
        client.events_until(HandshakeFailed)
        assert server.authenticator.admitted_count == 0


class TestWithoutCurve:
    @pytest.fixture
    def open_server(self, context: ZMQContext) -> Iterator[Server]:
        """Yield a server without keys."""
        server = Server(context, None)
        yield server
        server.close()

    @pytest.mark.proves("N4")
    def test_everybody_is_admitted_as_anonymous(
        self, open_server: Server, client: Client
    ) -> None:
        """Rule N4: without CURVE a client that reaches the server may do everything."""
        client.connect(open_server.endpoint, None)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"x")
        frame = open_server.receive()[-1]
        assert open_server.authenticator.principal_of(frame) is ANONYMOUS
        assert open_server.authenticator.public_key_of(frame) is None
        assert connection_of(frame) > 0
        assert open_server.authenticator.admitted_count == 1

    @pytest.mark.proves("N4")
    def test_a_client_with_keys_gets_nowhere(
        self, open_server: Server, client: Client
    ) -> None:
        """Rule N4: a client that wants encryption does not go on without."""
        client.connect(open_server.endpoint, ALICE)
        events = client.events_until(HandshakeFailed)
        assert not any(isinstance(event, HandshakeSucceeded) for event in events)
        assert open_server.authenticator.admitted_count == 0

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "rubbish",
        [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10,
            b"\x02\x00x" * 100,
            b"\x00" * 1_000,
            b"\xff" * 1_000,
            b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05" + b"\x00" * 100,
        ],
    )
    def test_strangers_are_turned_away(
        self, open_server: Server, client: Client, rubbish: bytes
    ) -> None:
        """Rule N3: what does not shake hands is disconnected, and brings no message."""
        address = (open_server.endpoint.host, open_server.endpoint.port)
        with stdlib_socket.create_connection(address) as stranger:
            stranger.settimeout(WAIT_MS / 1_000)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(rubbish)
                while stranger.recv(1_000):
                    pass
        client.connect(open_server.endpoint, None)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"good")
        assert open_server.receive()[-1].bytes == b"good"
        assert open_server.authenticator.admitted_count == 1

    def test_only_null_in_the_open_domain_is_admitted(
        self, context: ZMQContext
    ) -> None:
        """A socket with keys must not be opened by an authenticator without a list."""
        authenticator = Authenticator(context, None)
        for fields, status in (
            ([b"lodestar-open", b"127.0.0.1", b"", b"NULL"], b"200"),
            ([b"lodestar", b"127.0.0.1", b"", b"NULL"], b"400"),
            ([b"lodestar-open", b"127.0.0.1", b"", b"NULL", b"x"], b"400"),
            ([b"lodestar-open", b"127.0.0.1", b"", b"PLAIN", b"x", b"y"], b"400"),
            ([b"lodestar", b"127.0.0.1", b"", b"CURVE", b"x" * 32], b"400"),
        ):
            asker: ZMQSocket = context.socket(zmq.DEALER)
            asker.connect("inproc://zeromq.zap.01")
            asker.send_multipart([b"", b"1.0", b"1", *fields])
            assert authenticator.socket.poll(WAIT_MS)
            authenticator.handle()
            assert asker.recv_multipart()[3] == status
        authenticator.close()


class TestAdmitsUnlisted:
    @pytest.fixture
    def lenient_server(self, context: ZMQContext) -> Iterator[Server]:
        """Yield a server that lists Alice, and admits every key."""
        server = Server(context, AllowList((ALICE_PRINCIPAL,)), admits_unlisted=True)
        yield server
        server.close()

    @pytest.mark.proves("N4")
    def test_an_unlisted_key_is_admitted_and_is_nobody(
        self, lenient_server: Server, client: Client
    ) -> None:
        """Rule N4: what is encrypted is not thereby known: the key has no principal."""
        client.connect(lenient_server.endpoint, MALLORY)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"x")
        frame = lenient_server.receive()[-1]
        authenticator = lenient_server.authenticator
        assert authenticator.principal_of(frame) is None
        assert authenticator.public_key_of(frame) == MALLORY.public_key
        assert authenticator.admitted_count == 1

    @pytest.mark.proves("N4")
    def test_a_listed_key_is_known_as_before(
        self, lenient_server: Server, client: Client
    ) -> None:
        """Rule N4: who is on the list is told from who is not."""
        client.connect(lenient_server.endpoint, ALICE)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"x")
        frame = lenient_server.receive()[-1]
        authenticator = lenient_server.authenticator
        assert authenticator.principal_of(frame) == ALICE_PRINCIPAL
        assert authenticator.public_key_of(frame) == ALICE.public_key

    def test_nobody_need_be_listed(self, context: ZMQContext, client: Client) -> None:
        """Without a list every key is admitted, and none is taken for an admin."""
        server = Server(context, None, admits_unlisted=True)
        try:
            client.connect(server.endpoint, ALICE)
            client.events_until(HandshakeSucceeded)
            client.dealer.send(b"x")
            frame = server.receive()[-1]
            assert server.authenticator.principal_of(frame) is None
            assert server.authenticator.public_key_of(frame) == ALICE.public_key
        finally:
            server.close()

    @pytest.mark.proves("N4")
    def test_no_key_is_still_no_key(
        self, lenient_server: Server, client: Client
    ) -> None:
        """Rule N4: a client that does not encrypt stays outside."""
        client.connect(lenient_server.endpoint, None)
        client.events_until(HandshakeFailed)
        assert lenient_server.authenticator.admitted_count == 0

    def test_keys_count_again_once_it_is_switched_off(
        self, lenient_server: Server, client: Client
    ) -> None:
        """The flag may be replaced at any time, for connections to come."""
        done = threading.Event()

        def switch_off() -> None:
            lenient_server.authenticator.admits_unlisted = False
            done.set()

        lenient_server.loop.call_soon_threadsafe(switch_off)
        assert done.wait(WAIT_MS / 1_000)
        client.connect(lenient_server.endpoint, MALLORY)
        *_, event = client.events_until(HandshakeFailed)
        assert event == HandshakeFailed(failure=HandshakeFailure.REFUSED, code=400)


class TestAllowListReplaced:
    def test_a_key_that_was_added_is_admitted(
        self, server: Server, client: Client, client_context: ZMQContext
    ) -> None:
        """The list can be replaced while the server runs; a new socket tries again."""
        client.connect(server.endpoint, MALLORY)
        client.events_until(HandshakeFailed)
        reformed = Principal(
            name="mallory",
            roles=frozenset({"observe"}),
            public_key=MALLORY.public_key,
        )

        is_replaced = threading.Event()

        def replace() -> None:
            server.authenticator.allow_list = AllowList((reformed,))
            is_replaced.set()

        server.loop.call_soon_threadsafe(replace)
        assert is_replaced.wait(WAIT_MS / 1_000)
        second = Client(client_context)
        second.connect(server.endpoint, MALLORY)
        second.events_until(HandshakeSucceeded)
        second.dealer.send(b"x")
        assert server.authenticator.principal_of(server.receive()[-1]) == reformed
        second.close()

    def test_a_key_that_was_removed_means_nobody_on_open_connections(
        self, server: Server, client: Client
    ) -> None:
        """A client that is taken off the list loses the connection's rights at once."""
        client.connect(server.endpoint, ALICE)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"x")
        frame = server.receive()[-1]
        server.authenticator.allow_list = AllowList(())
        assert server.authenticator.principal_of(frame) is None


class TestWithoutAuthenticator:
    @pytest.mark.proves("N4")
    def test_nobody_is_admitted(self, context: ZMQContext, client: Client) -> None:
        """Rule N4: a server that lost its handler admits none, rather than all."""
        router = open_socket(context, zmq.ROUTER, SocketLimits(handshake_timeout_ms=50))
        secure_server(router, SERVER)
        client.connect(bind_socket(router, parse_endpoint("tcp://127.0.0.1:0")), ALICE)
        events = client.events_until(ConnectFailed, count=2)
        assert not any(isinstance(event, HandshakeSucceeded) for event in events)

    def test_a_frame_of_an_open_server_has_no_principal(
        self, context: ZMQContext, client: Client, server: Server
    ) -> None:
        """Without CURVE no client has proved who sent a frame."""
        router = open_socket(context, zmq.ROUTER, SocketLimits())
        client.connect(bind_socket(router, parse_endpoint("tcp://127.0.0.1:0")), None)
        client.events_until(HandshakeSucceeded)
        client.dealer.send(b"x")
        assert router.poll(WAIT_MS)
        frame = receive_now(router, frame_count_max=2)[-1]
        assert server.authenticator.principal_of(frame) is None


def test_there_is_one_authenticator_per_context(
    context: ZMQContext, server: Server
) -> None:
    """A second server in the same context is told to use its own."""
    with pytest.raises(ConfigurationError, match="context of its own"):
        Authenticator(context, AllowList(()))


class TestRequests:
    """The ZAP protocol itself, spoken by a DEALER as libzmq speaks it."""

    @pytest.fixture
    def authenticator(self, context: ZMQContext) -> Iterator[Authenticator]:
        """Yield an authenticator that the test drives itself."""
        authenticator = Authenticator(context, AllowList((ALICE_PRINCIPAL,)))
        yield authenticator
        authenticator.close()

    @pytest.fixture
    def asker(self, context: ZMQContext, authenticator: Authenticator) -> ZMQSocket:
        """Return a socket that is connected to the handler."""
        asker: ZMQSocket = context.socket(zmq.DEALER)
        asker.connect("inproc://zeromq.zap.01")
        return asker

    @staticmethod
    def ask(
        authenticator: Authenticator, asker: ZMQSocket, frames: list[bytes]
    ) -> list[bytes] | None:
        """Return the answer to *frames*, None if there is none."""
        asker.send_multipart(frames)
        authenticator.handle()
        return asker.recv_multipart() if asker.poll(0) else None

    GOOD = (
        b"",
        b"1.0",
        b"7",
        b"lodestar",
        b"127.0.0.1",
        b"",
        b"CURVE",
        zmq.utils.z85.decode(ALICE.public_key.encode()),
    )

    def test_admits(self, authenticator: Authenticator, asker: ZMQSocket) -> None:
        """RFC 27: version, request id, status, text, user id, metadata."""
        assert self.ask(authenticator, asker, list(self.GOOD)) == [
            b"",
            b"1.0",
            b"7",
            b"200",
            b"OK",
            ALICE.public_key.encode(),
            b"",
        ]

    @pytest.mark.proves("N4")
    @pytest.mark.parametrize(
        ("index", "frame", "text"),
        [
            (3, b"", b"unknown domain"),
            (3, b"other", b"unknown domain"),
            (6, b"NULL", b"CURVE is required"),
            (6, b"PLAIN", b"CURVE is required"),
            (6, b"GSSAPI", b"CURVE is required"),
            (6, b"", b"CURVE is required"),
            (7, b"", b"malformed key"),
            (7, b"x" * 31, b"malformed key"),
            (7, b"x" * 33, b"malformed key"),
            (7, b"x" * 32, b"unknown key"),
            # Its name is the same in every process: the key is drawn in each.
            pytest.param(
                7, ALICE.public_key.encode(), b"malformed key", id="7-z85-malformed key"
            ),
        ],
    )
    def test_refuses(
        self,
        authenticator: Authenticator,
        asker: ZMQSocket,
        index: int,
        frame: bytes,
        text: bytes,
    ) -> None:
        """Rule N4: whatever is not a listed key in our domain is refused, with 400."""
        frames = list(self.GOOD)
        frames[index] = frame
        assert self.ask(authenticator, asker, frames) == [
            b"",
            b"1.0",
            b"7",
            b"400",
            text,
            b"",
            b"",
        ]

    @pytest.mark.proves("N4")
    @pytest.mark.parametrize("credentials", [[], [b"x" * 32, b"y" * 32]])
    def test_refuses_any_number_of_credentials_but_one(
        self, authenticator: Authenticator, asker: ZMQSocket, credentials: list[bytes]
    ) -> None:
        """Rule N4: NULL has none, PLAIN has two, CURVE has one key."""
        answer = self.ask(authenticator, asker, [*self.GOOD[:7], *credentials])
        assert answer is not None
        assert answer[3] == b"400"

    @pytest.mark.proves("N3")
    def test_a_request_that_ends_early_is_refused(
        self, authenticator: Authenticator, asker: ZMQSocket
    ) -> None:
        """Rule N3: what has a request id is answered, however short it is."""
        for count in range(3, 7):
            answer = self.ask(authenticator, asker, list(self.GOOD[:count]))
            assert answer is not None
            assert answer[3] == b"400"

    @pytest.mark.proves("N3")
    def test_who_is_gone_is_not_answered(
        self, context: ZMQContext, authenticator: Authenticator, asker: ZMQSocket
    ) -> None:
        """Rule N3: an answer that is not waited for is dropped; the next is given."""
        leaver: ZMQSocket = context.socket(zmq.DEALER)
        leaver.connect("inproc://zeromq.zap.01")
        leaver.send_multipart(self.GOOD)
        leaver.close(linger=WAIT_MS)
        answer = self.ask(authenticator, asker, list(self.GOOD))
        assert answer is not None
        assert answer[3] == b"200"
        assert authenticator.admitted_count == 2

    @pytest.mark.proves("N3")
    @given(frames=st.lists(st.binary(max_size=40), min_size=1, max_size=20))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_survives_rubbish(
        self, authenticator: Authenticator, asker: ZMQSocket, frames: list[bytes]
    ) -> None:
        """Rule N3: no request ends the handler, and none but a good one is admitted."""
        answer = self.ask(authenticator, asker, frames)
        assert answer is None or answer[3] == b"400"
        answer = self.ask(authenticator, asker, list(self.GOOD))
        assert answer is not None
        assert answer[3] == b"200"

    @pytest.mark.proves("N3")
    def test_the_log_of_refusals_can_be_bounded(
        self, client_context: ZMQContext
    ) -> None:
        """Rule N3: one that is refused again and again does not fill the disk."""
        budget = iter([True, False, True])
        bounded = Authenticator(
            client_context, AllowList(()), may_log=lambda: next(budget, False)
        )
        asker: ZMQSocket = client_context.socket(zmq.DEALER)
        asker.connect("inproc://zeromq.zap.01")
        with capture_logs() as logs:
            for _ in range(5):
                answer = self.ask(bounded, asker, list(self.GOOD))
                assert answer is not None
                assert answer[3] == b"400"
        bounded.close()
        assert [entry["event"] for entry in logs] == ["connection.refused"] * 2
        assert bounded.refused_count == 5

    def test_logs_who_was_refused(
        self, authenticator: Authenticator, asker: ZMQSocket
    ) -> None:
        """An operator finds in the log the public key that is to be added, and why."""
        frames = list(self.GOOD)
        frames[7] = zmq.utils.z85.decode(MALLORY.public_key.encode())
        with capture_logs() as logs:
            self.ask(authenticator, asker, frames)
        assert [
            (entry["event"], entry["reason"], entry["public_key"]) for entry in logs
        ] == [("connection.refused", "unknown key", MALLORY.public_key)]
