"""L4, N3: what cannot be sent, or is malformed, fails alone and is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
import zmq

from haservices import HAConfig, open_ha_services
from haservices.client_services import ClientHAServices
from leaderserver import LeaderServer, ServerConfig, codec
from leaderserver.client.client import LeaderClient
from leaderserver.client.core.config import ClientConfig
from leaderserver.client.link import SocketLink
from leaderserver.messages import (
    DoneReply,
    FailedReply,
    Hello,
    RefusedHello,
    Reply,
    Request,
    SessionUnknown,
    UncertainReply,
    Welcome,
)
from leaderserver.operator_messages import (
    ContendersRequest,
    ExpireRequest,
    LeadersRequest,
)
from leaderserver.server.core.reply_queues import QueueLimits
from leaderserver.server.reply_sender import ReplySender
from leaderserver.store_messages import GetRequest, ValueReply
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    SystemClock,
)
from tests.leaderserver.scripted_client import ScriptedClient
from tests.recording import ConfirmingContender, RecordingContender, wait_until
from zmqtransport import framing, new_context, parse_endpoint


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS: Final = 30.0


class Text(str):
    """Text that no encoder takes."""

    __slots__ = ()


class Data(bytes):
    """Bytes that no encoder takes."""


@pytest.fixture
def server() -> Iterator[LeaderServer]:
    """Return a server of the test's own."""
    config = ServerConfig(bind="tcp://127.0.0.1:0", lease_seconds_max=0.5)
    with LeaderServer(config) as opened:
        yield opened


@pytest.fixture
def ha(server: LeaderServer) -> Iterator[ClientHAServices]:
    """Return a client of the server."""
    with open_ha_services(HAConfig(url=server.url)) as opened:
        assert isinstance(opened, ClientHAServices)
        yield opened


def as_map(client: ScriptedClient, number: int) -> dict[str, Any]:
    """Return a good request as a map, to be spoiled."""
    good = Request(
        secret=client.secret, number=number, body=ContendersRequest(component_id="a/b")
    )
    decoded: dict[str, Any] = msgspec.msgpack.decode(codec.encode(good))
    return decoded


class TestServerAnswers:
    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "change",
        [
            {"unknown": 1},
            {"body": {"type": "contenders", "component_id": "x" * 512}},
            {"body": {"type": "contenders", "component_id": ""}},
            {"body": {"type": "get", "component_id": "a/b", "path": "x" * 256}},
            {"body": {"type": "expire", "session_id": ""}},
            {"body": {"type": "no-such-request"}},
            {"body": {"type": "contenders", "component_id": 7}},
            {"body": None},
        ],
    )
    def test_request_that_says_whose_it_is_is_answered(
        self, server: LeaderServer, change: dict[str, Any]
    ) -> None:
        """N3: its secret and number can be read: ``failed``, reason ``invalid``."""
        with ScriptedClient(server) as client:
            client.hello()
            spoiled = as_map(client, 1) | change
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            answer = client.receive()
            assert isinstance(answer, Reply)
            assert answer.number == 1
            assert isinstance(answer.body, FailedReply)
            assert answer.body.reason == "invalid"
            # It counts for nothing: the number may still be used.
            client.heartbeat()
            figures = client.figures()
            assert figures["frames_malformed_total"] == 1
            assert figures["requests_failed_total"] == 1

    @pytest.mark.proves("N3")
    def test_oversized_request_is_answered(self, server: LeaderServer) -> None:
        """N3: what is larger than is taken, and small enough to be read."""
        with ScriptedClient(server) as client:
            client.hello()
            spoiled = as_map(client, 1) | {"body": bytes(2_100_000)}
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            answer = client.receive()
            assert isinstance(answer, Reply)
            assert isinstance(answer.body, FailedReply)
            assert "2,1" in answer.body.detail or "21" in answer.body.detail
            client.heartbeat()

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "change", [{"number": -1}, {"number": 2**63}, {"secret": b"short"}]
    )
    def test_what_does_not_say_whose_it_is_is_dropped(
        self, server: LeaderServer, change: dict[str, Any]
    ) -> None:
        """N3: none can be told; the next request is the next to be answered."""
        with ScriptedClient(server) as client:
            client.hello()
            spoiled = as_map(client, 1) | change
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            client.heartbeat()
            assert client.pushed == []

    def test_stranger_learns_nothing(self, server: LeaderServer) -> None:
        """N1: a malformed request under another secret is of no session."""
        with ScriptedClient(server) as client:
            client.hello()
            spoiled = as_map(client, 1) | {"secret": b"x" * 32, "body": None}
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            assert isinstance(client.receive(), SessionUnknown)

    def test_malformed_request_moves_no_session(self, server: LeaderServer) -> None:
        """N1: a number that was used already is a repetition, malformed or not."""
        with ScriptedClient(server) as client:
            client.hello()
            client.heartbeat()
            spoiled = as_map(client, 1) | {"body": None}
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            client.heartbeat()
            assert client.pushed == []

    @pytest.mark.proves("N3")
    def test_greeting_that_can_be_named_is_refused(self, server: LeaderServer) -> None:
        """N3: a client that cannot be served learns it within a round trip."""
        with ScriptedClient(server) as client:
            hello = Hello(
                nonce=b"n" * 16, session_timeout_ns=10**10, lease_ns=10**9, client="me"
            )
            spoiled = msgspec.msgpack.decode(codec.encode(hello))
            spoiled |= {"client": "x" * 256}
            client.send(*framing.encode(msgspec.msgpack.encode(spoiled)))
            answer = client.receive()
            assert isinstance(answer, RefusedHello)
            assert (answer.nonce, answer.reason) == (b"n" * 16, "invalid")
            assert isinstance(client.hello(nonce=b"m" * 16), Welcome)


class TestClientIsTold:
    def test_what_the_server_finds_malformed_is_told_at_once(
        self, ha: ClientHAServices
    ) -> None:
        """L4: not "may have happened" after a timeout: it did not, and why."""
        client = ha._client
        for body in (
            GetRequest(component_id="a/b", path=""),
            ExpireRequest(session_id="x" * 65),
            ContendersRequest(component_id="x" * 600),
        ):
            with pytest.raises(ConfigurationError, match="malformed"):
                client.call(body, is_repeatable=False)

    def test_what_cannot_be_encoded_fails_alone(self, ha: ClientHAServices) -> None:
        """L4: one call fails; heartbeats, belief and other calls go on."""
        election = ha.get_leader_election("flights")
        contender = ConfirmingContender(election, "a:1")
        election.start(contender)
        session = contender.wait_for_confirm()
        heartbeats = _heartbeat_count(ha)
        client = ha._client
        bad: list[Any] = [
            GetRequest(component_id="default/flights", path=Text("a")),
            GetRequest(component_id="default/flights", path="\ud800"),
            LeadersRequest(prefix="", after=Text("")),
        ]
        for body in bad:
            with pytest.raises(ConfigurationError, match="cannot be encoded"):
                client.call(body, is_repeatable=True)
        (mine,) = ha.operations.contenders("flights")
        with pytest.raises(ConfigurationError, match="cannot be encoded"):
            client.confirm(mine.contender_id, session.leader_session_id, Text("b:1"))
        wait_until(lambda: _heartbeat_count(ha) > heartbeats + 3)
        assert election.has_leadership(session.leader_session_id)
        assert [c.address for c in ha.operations.contenders("flights")] == ["a:1"]

    def test_wish_that_cannot_be_encoded_is_told(self, ha: ClientHAServices) -> None:
        """E8: a contender that can never be registered hears why, and no other."""
        client = ha._client
        contender = RecordingContender()
        errors: list[Exception] = []
        silences: list[Exception] = []
        client.add_contender(
            "a-contender",
            Text("default/other"),
            confirm_timeout_ns=10**9,
            on_added=lambda *_: None,
            deliver=lambda _: None,
            fail=errors.append,
        )
        client.add_retriever(
            client.new_retriever_id(),
            Text("default/another"),
            deliver=lambda _: None,
            fail=silences.append,
        )
        with ha.get_leader_election("flights") as election:
            election.start(contender)
            contender.wait_for_grant()
            wait_until(lambda: bool(errors and silences))
            assert {type(error) for error in errors + silences} == {ConfigurationError}

    def test_greeting_that_cannot_be_sent_is_told(self, server: LeaderServer) -> None:
        """L4: opening fails with the reason, long before the timeout."""
        expected = [(Text("me"), LocalProtocolError), ("x" * 256, RemoteProtocolError)]
        for name, error in expected:
            client = client_called(name, server)
            try:
                with pytest.raises(error):
                    client.open()
            finally:
                client.close()


def client_called(name: str, server: LeaderServer) -> LeaderClient:
    """Return a client that gives itself *name*, whatever that is."""
    clock = SystemClock()
    config = ClientConfig(
        target=server.url,
        client=name,
        session_timeout_ns=10**10,
        lease_ns=5 * 10**8,
        clears_on_suspended=False,
        seed=bytes(32),
    )
    return LeaderClient(
        config,
        clock=clock,
        link_factory=lambda client: SocketLink(
            client,
            endpoint=parse_endpoint(server.endpoint),
            target=server.url,
            keys=None,
            session_timeout_seconds=10.0,
            clock=clock,
        ),
        connect_timeout_seconds=TIMEOUT_SECONDS,
    )


def _heartbeat_count(ha: ClientHAServices) -> int:
    return int(ha.operations.status()["frames_heartbeat_total"])


class TestServersEncoder:
    def test_answer_that_cannot_be_encoded_harms_one_call(self) -> None:
        """L4: its client learns that it cannot be told; the next answer goes out."""
        context = new_context()
        counts: list[str] = []
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        try:
            port = router.bind_to_random_port("tcp://127.0.0.1")
            dealer.connect(f"tcp://127.0.0.1:{port}")
            dealer.send(b"here")
            peer, _ = router.recv_multipart()
            sender = ReplySender(
                router,
                QueueLimits(
                    bytes_per_peer_max=10**6, bytes_max=10**7, count_per_peer_max=100
                ),
                clock=SystemClock(),
                disconnect=lambda _: None,
                count=counts.append,
                may_log=lambda _: True,
            )
            sender.send(
                peer, Reply(number=1, body=ValueReply(value=Data(b"x"), version=1))
            )
            sender.send(peer, SessionUnknown(number=10**30, incarnation=1))
            sender.send(peer, Reply(number=2, body=DoneReply()))
            first, second = (
                codec.decode_to_client(
                    framing.decode(dealer.recv_multipart(), size_bytes_max=10_000)
                )
                for _ in range(2)
            )
        finally:
            router.close(0)
            dealer.close(0)
            context.term()
        assert isinstance(first, Reply)
        assert first.number == 1
        assert isinstance(first.body, UncertainReply)
        assert second == Reply(number=2, body=DoneReply())
        assert counts == ["replies_unencodable"] * 2


class TestCodec:
    @pytest.mark.parametrize(
        "body",
        [
            GetRequest(component_id=Text("a/b"), path="a"),
            GetRequest(component_id="a/b", path="\ud800"),
            GetRequest(component_id="a/b", path=UUID),  # type: ignore[arg-type]
            ExpireRequest(session_id=2**64),  # type: ignore[arg-type]
        ],
    )
    def test_encoders_errors_are_ours(self, body: Any) -> None:
        """L4: msgspec's exceptions never escape."""
        with pytest.raises(LocalProtocolError, match="a Request cannot be encoded"):
            codec.encode(Request(secret=bytes(32), number=1, body=body))
