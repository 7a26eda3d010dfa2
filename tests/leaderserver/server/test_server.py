"""A LeaderServer over real sockets, spoken to frame by frame."""

from __future__ import annotations

import contextlib
import socket as stdlib_socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import zmq
from structlog.testing import capture_logs

from election.events import ContenderPreferred
from leaderserver import LeaderServer, ServerConfig, codec
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    DoneReply,
    FailedReply,
    HeartbeatRequest,
    Published,
    RefusedHello,
    RegisteredReply,
    Reply,
    Revoked,
    SessionEnded,
    SessionUnknown,
    SnapshotReply,
    SubscribeRequest,
    Welcome,
)
from leaderserver.operator_messages import (
    ComponentsReply,
    ContendersRequest,
    LeadersRequest,
    SessionsReply,
    SessionsRequest,
    StatusRequest,
)
from leaderserver.store_messages import (
    CommitRequest,
    GetRequest,
    ListRequest,
    PutRecord,
    ValueReply,
)
from nameservice import ConfigurationError, LocalProtocolError, SystemClock
from nameservice.version import package_version
from tests.exhausted_threads import no_more_threads
from tests.forking import run_in_child
from tests.leaderserver.scripted_client import (
    TIMEOUT_SECONDS,
    ScriptedClient,
    ScriptedSubscriber,
)
from tests.leaks import assert_closed, process_figures, settled
from zmqtransport import (
    AllowList,
    ConnectionClosed,
    ConnectionMonitor,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeFailure,
    HandshakeSucceeded,
    ZMQContext,
    ZMQSocket,
    framing,
    secure_client,
    write_key_pair,
)


pytestmark = pytest.mark.shells

JOB = "c/job"
ANY_PORT = "tcp://127.0.0.1:0"


def eventually(holds: Callable[[], bool]) -> None:
    """Return once *holds*, which each call of it brings nearer; fail in the end."""
    waited = threading.Event()
    for _ in range(3_000):
        if holds():
            return
        waited.wait(0.01)  # what is waited for happens in another thread, unannounced
    raise AssertionError("it never came to hold")


def figure(server: LeaderServer, name: str) -> float:
    """Return one figure of the server; what was never counted is 0."""
    value = server.status().get(name, 0)
    assert not isinstance(value, str)
    return value


def topic(name: str) -> bytes:
    """Return a topic of the right size."""
    return codec.publication_topic(name)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeaderServer]:
    """Yield a server that decides quickly: it is durable, its leases are short."""
    config = ServerConfig(
        bind=ANY_PORT,
        data_dir=tmp_path / "data",
        lease_seconds_max=0.2,
        lease_seconds_unrecorded_max=0.2,
    )
    with LeaderServer(config) as running:
        yield running


class TestLife:
    def test_it_says_where_it_is(self) -> None:
        """Free ports are real ones afterwards, and the URL is a client's (N2)."""
        with LeaderServer(ServerConfig(bind=ANY_PORT)) as server:
            port = int(server.endpoint.rpartition(":")[2])
            assert port
            assert server.publish_port not in (0, port)
            assert server.url == f"leaderserver://127.0.0.1:{port}"
            assert not server.join(0)
        assert server.join(TIMEOUT_SECONDS)
        assert server.failure is None
        assert server.url == f"leaderserver://127.0.0.1:{port}"

    def test_a_wildcard_is_reached_over_loopback(self) -> None:
        """A URL names a host; every interface is none."""
        config = ServerConfig(bind="tcp://*:0", is_insecure_allowed=True)
        with (
            LeaderServer(config) as server,
            ScriptedClient(server.url.replace("leaderserver", "tcp")) as client,
        ):
            assert server.url.startswith("leaderserver://127.0.0.1:")
            assert isinstance(client.hello(), Welcome)

    def test_it_starts_once(self) -> None:
        """A second start, or one after close, is the caller's mistake."""
        server = LeaderServer(ServerConfig(bind=ANY_PORT))
        assert server.failure is None
        with pytest.raises(LocalProtocolError, match="not started"):
            _ = server.url
        with pytest.raises(LocalProtocolError, match="not started"):
            server.status()
        server.start()
        with pytest.raises(LocalProtocolError, match="started once"):
            server.start()
        server.close()
        server.close()
        with pytest.raises(LocalProtocolError, match="started once"):
            server.start()
        with pytest.raises(LocalProtocolError, match="has ended"):
            server.status()
        never = LeaderServer(ServerConfig(bind=ANY_PORT))
        never.close()
        with pytest.raises(LocalProtocolError, match="started once"):
            never.start()

    @pytest.mark.parametrize("name", ["bind", "publish_bind"])
    def test_a_port_in_use_is_told(
        self, server: LeaderServer, tmp_path: Path, name: str
    ) -> None:
        """And nothing stays open: neither the directory nor the other port."""
        used = server.endpoint
        other = tmp_path / "other"
        settings = {"bind": ANY_PORT, name: used}
        unlucky = LeaderServer(ServerConfig(data_dir=other, **settings))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="choose another port"):
            unlucky.start()
        unlucky.close()
        with LeaderServer(ServerConfig(bind=ANY_PORT, data_dir=other)):
            pass

    def test_a_directory_in_use_is_told(
        self, server: LeaderServer, tmp_path: Path
    ) -> None:
        """Two servers on one directory would grant the same epochs (E2)."""
        second = LeaderServer(ServerConfig(bind=ANY_PORT, data_dir=tmp_path / "data"))
        with pytest.raises(ConfigurationError, match="in use by another LeaderServer"):
            second.start()

    def test_missing_keys_are_told(self, tmp_path: Path) -> None:
        """The error names the file that cannot be read."""
        config = ServerConfig(
            bind=ANY_PORT,
            curve_public_key_file=tmp_path / "no.key",
            curve_secret_key_file=tmp_path / "no.key_secret",
            allow_list_file=tmp_path / "no.toml",
        )
        with pytest.raises(ConfigurationError, match=r"no\.key_secret cannot be read"):
            LeaderServer(config).start()

    def test_nothing_is_left_behind(self, tmp_path: Path) -> None:
        """A hundred servers leave no thread and no file descriptor."""
        config = ServerConfig(bind=ANY_PORT, data_dir=tmp_path)
        with LeaderServer(config):
            pass
        before = settled(process_figures)
        for _ in range(100):
            with LeaderServer(config):
                pass
        assert_closed(before)

    @pytest.mark.parametrize(
        "name",
        [
            "leaderserver",
            "leaderserver-publisher",
            "leaderserver-reads",
            "leaderserver-writes",
            "leaderserver-inflow",
        ],
    )
    def test_a_server_that_has_got_no_thread_says_so(
        self, name: str, tmp_path: Path
    ) -> None:
        """N3: a container may have no more of them; nothing of the server is left."""
        config = ServerConfig(bind=ANY_PORT, data_dir=tmp_path)
        with LeaderServer(config):
            pass
        before = settled(process_figures)
        with no_more_threads(name):
            server = LeaderServer(config)
            with pytest.raises(RuntimeError, match="new thread"):
                server.start()
            server.close()
        assert_closed(before)

    def test_a_child_has_no_server(self, server: LeaderServer) -> None:
        """Its use of the parent's raises, its close is silent (E10)."""
        assert run_in_child(lambda: server.url) == "ForkedClientError"
        assert run_in_child(server.status) == "ForkedClientError"
        assert run_in_child(server.start) == "ForkedClientError"
        assert run_in_child(server.pause) == "ForkedClientError"
        assert run_in_child(server.close) == "None"
        with ScriptedClient(server) as client:
            assert isinstance(client.hello(), Welcome)

    def test_a_failure_shows(self, server: LeaderServer) -> None:
        """A loop that cannot go on ends, says so in the log, and tells why."""
        running = server._running
        assert running is not None
        with capture_logs() as logs:
            running.loop.call_soon_threadsafe(running._port.socket.close)
            assert server.join(TIMEOUT_SECONDS)
        assert "loop.failed" in [line["event"] for line in logs]
        assert isinstance(server.failure, LocalProtocolError)
        with pytest.raises(LocalProtocolError):
            server.status()
        server.close()

    def test_a_mistake_of_ours_is_counted(self) -> None:
        """One message that breaks us costs that message, and shows in the figures."""

        class _StumblingClock:
            """A clock that can go back, which no clock of ours does."""

            back_ns = 0

            def now_ns(self) -> int:
                return SystemClock().now_ns() - self.back_ns

        clock = _StumblingClock()
        with (
            LeaderServer(ServerConfig(bind=ANY_PORT), clock) as server,
            ScriptedClient(server) as client,
        ):
            client.hello()
            clock.back_ns = 3_600_000_000_000
            client.say(HeartbeatRequest(acknowledged=0))
            eventually(lambda: figure(server, "failures_total") >= 1)
            clock.back_ns = 0
            assert isinstance(client.heartbeat(), AcknowledgedHeartbeat)
            assert server.failure is None


class TestRequests:
    def test_figures_are_complete(self, server: LeaderServer) -> None:
        """What a client is told is what the server knows, its shell included (N6)."""
        with ScriptedClient(server) as client:
            client.hello()
            client.send(b"LDS\x01", b"rubbish")
            client.heartbeat()
            figures = client.figures()
            assert figures["connections"] == 1
            assert figures["sessions"] == 1
            assert figures["version"] == package_version()
            assert figures["subscribers"] == 0
            assert figures["topics"] == 0
            assert figures["frames_hello_total"] == 1
            assert figures["frames_heartbeat_total"] == 1
            assert figures["frames_malformed_total"] == 1
            assert figures["failures_total"] == 0
            assert set(figures) <= set(server.status())

    @pytest.mark.proves("N3")
    def test_another_version_is_answered(self, server: LeaderServer) -> None:
        """A user of another version learns what is wrong (N1, N3)."""
        with ScriptedClient(server) as client:
            client.send(b"LDS\x07", b"whatever", b"that", b"is")
            refused = client.receive()
            assert isinstance(refused, RefusedHello)
            assert refused.reason == "wrong-version"
            assert "version 7" in refused.detail
            assert isinstance(client.hello(), Welcome)

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        ("frames", "kind"),
        [
            ([b""], "truncated"),
            ([b"LDS"], "truncated"),
            ([b"LDS\x01"], "truncated"),
            ([b"HTTP/1.1", b"GET"], "wrong_magic"),
            ([b"LDS\x01\x01", b""], "malformed"),
            ([b"LDS\x01", b"", b""], "malformed"),
            ([b"LDS\x01", *[b""] * 10_000], "malformed"),
            ([b"LDS\x01", b"\xc1"], "malformed"),
            ([b"LDS\x01", bytes(2_100_001)], "oversized"),
        ],
    )
    def test_bad_frames_are_dropped_and_counted(
        self, server: LeaderServer, frames: list[bytes], kind: str
    ) -> None:
        """The peer is served as before, and the log says what happened (N3)."""
        with ScriptedClient(server) as client, capture_logs() as logs:
            client.hello()
            client.send(*frames)
            client.heartbeat()
            assert client.figures()[f"frames_{kind}_total"] == 1
        (line,) = (line for line in logs if line["event"] == "frame.dropped")
        assert line["log_level"] == "warning"
        assert line["reason"] == kind.replace("_", "-")

    @pytest.mark.proves("N3")
    def test_a_frame_beyond_all_bounds_ends_the_connection(
        self, server: LeaderServer
    ) -> None:
        """ZeroMQ does not even read it; everybody else is served on (N3)."""
        with ScriptedClient(server) as other, ScriptedClient(server) as client:
            other.hello()
            client.hello(nonce=b"m" * 16)
            monitor = ConnectionMonitor(client.socket)
            client.send(b"LDS\x01", bytes(5_000_000))
            eventually(
                lambda: any(isinstance(e, ConnectionClosed) for e in monitor.receive())
            )
            monitor.close()
            assert isinstance(other.heartbeat(), AcknowledgedHeartbeat)

    @pytest.mark.proves("N3")
    def test_a_flood_of_rubbish_does_not_flood_the_log(
        self, server: LeaderServer
    ) -> None:
        """A few lines say enough; the figures have the rest (N3)."""
        with ScriptedClient(server) as client, capture_logs() as logs:
            client.hello()
            for _ in range(2_000):
                client.send(b"LDS\x01", b"\xc1")
            client.heartbeat()
            assert client.figures()["frames_malformed_total"] == 2_000
        dropped = [line for line in logs if line["event"].startswith("frame")]
        assert 1 <= len(dropped) <= 20

    def test_a_vanished_client_is_over_within_a_lease(
        self, server: LeaderServer
    ) -> None:
        """The connection's end is seen at once; the next leads soon after (E5)."""
        with ScriptedClient(server) as standby:
            standby.hello()
            leader = ScriptedClient(server)
            leader.hello()
            leader.lead(JOB, "leader")
            standby.register(JOB, "standby")
            leader.close()
            granted = standby.wait_for_grant("standby")
            assert granted.affirmation.component_id == JOB
            figures = standby.figures()
            assert figures["sessions"] == 1
            assert figures["connections"] == 1
            # Whom the end of the session was told to was gone already.
            assert figures["replies_unroutable_total"] == 1

    def test_who_comes_over_a_number_that_is_free_again_is_not_dead(
        self, server: LeaderServer
    ) -> None:
        """A closed connection's number goes to the next: its end is not theirs (E5)."""
        for index in range(50):
            client = ScriptedClient(server)
            client.hello()
            client.close()
            with ScriptedClient(server) as next_client:
                next_client.hello(nonce=index.to_bytes(16, "big"))
                # Nothing is heard of it for two leases; only evidence could end it.
                if index % 10 == 0:
                    assert next_client.receive(timeout_seconds=0.5) is None
                assert isinstance(next_client.heartbeat(), AcknowledgedHeartbeat)

    @pytest.mark.proves("N3")
    def test_who_does_not_read_waits_for_nobody(self, tmp_path: Path) -> None:
        """Its answers are dropped and counted; others are served meanwhile (N3)."""
        config = ServerConfig(
            bind=ANY_PORT,
            data_dir=tmp_path,
            lease_seconds_max=0.2,
            lease_seconds_unrecorded_max=0.2,
            queued_replies_per_peer_max=2,
        )
        with (
            LeaderServer(config) as server,
            ScriptedClient(server) as client,
            ScriptedClient(server) as other,
        ):
            client.socket.setsockopt(zmq.RCVHWM, 1)
            client.hello()
            affirmation = client.lead(JOB, "x").affirmation
            written = client.ask(
                CommitRequest(
                    component_id=JOB,
                    leader_session_id=affirmation.leader_session_id,
                    epoch=affirmation.epoch,
                    operations=[
                        PutRecord(path="a", value=bytes(1_000_000), version=None)
                    ],
                )
            )
            assert written == DoneReply()
            get = GetRequest(component_id=JOB, path="a")
            assert client.ask(get) == ValueReply(value=bytes(1_000_000), version=1)
            for _ in range(200):
                client.say(get)
            other.hello()
            eventually(lambda: other.figures().get("replies_full_total", 0) != 0)

    @pytest.mark.proves("N3")
    def test_unread_values_are_refused_by_their_bytes(
        self, server: LeaderServer
    ) -> None:
        """
        What one client has not read is bounded in bytes; it is told so (N3).

        Its acknowledgements do not wait behind the values.
        """
        with ScriptedClient(server) as client, ScriptedClient(server) as other:
            client.socket.setsockopt(zmq.RCVHWM, 1)
            other.hello()
            affirmation = other.lead(JOB, "x").affirmation
            commit = CommitRequest(
                component_id=JOB,
                leader_session_id=affirmation.leader_session_id,
                epoch=affirmation.epoch,
                operations=[PutRecord(path="a", value=bytes(1_000_000), version=None)],
            )
            assert other.ask(commit) == DoneReply()
            client.hello()
            numbers = [
                client.say(GetRequest(component_id=JOB, path="a")) for _ in range(200)
            ]
            eventually(lambda: other.figures().get("frames_get_total") == 200)
            eventually(lambda: other.figures()["storage_waiting"] == 0)
            # ZeroMQ and the kernel have some; all the rest is less than a share.
            assert figure(server, "replies_queued_bytes") < 8_000_000
            bodies: dict[int, object] = {}
            while len(bodies) < len(numbers):
                message = client.receive()
                assert isinstance(message, Reply)
                bodies[message.number] = message.body
            refused = [b for b in bodies.values() if isinstance(b, FailedReply)]
            assert {body.reason for body in refused} == {"limit-reached"}
            assert len(refused) < 200
            assert sum(isinstance(b, ValueReply) for b in bodies.values()) + len(
                refused
            ) == len(numbers)
            eventually(lambda: figure(server, "replies_waiting_peers") == 0)

    def test_an_injected_event_happens(self, server: LeaderServer) -> None:
        """Leadership control goes the way of everything."""
        with ScriptedClient(server) as first, ScriptedClient(server) as second:
            first.hello()
            first.lead(JOB, "first")
            second.hello()
            second.register(JOB, "second")
            server.inject(ContenderPreferred(component_id=JOB, contender_id="second"))
            revoked = first.receive()
            assert isinstance(revoked, Revoked)
            assert second.wait_for_grant("second").affirmation.epoch > (
                revoked.affirmation.epoch
            )


class TestPublishing:
    def test_changes_come_under_their_topic(self, server: LeaderServer) -> None:
        """One message per change, and all topics have one size (N1)."""
        with (
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, codec.publication_topic(JOB)) as heard,
        ):
            client.hello()
            for component_id in ("c/job2", JOB):
                client.ask(
                    SubscribeRequest(
                        component_id=component_id, epoch_seen=0, is_ended_seen=False
                    )
                )
            eventually(lambda: figure(server, "topics") == 1)
            client.lead("c/job2", "x")
            granted = client.lead(JOB, "y")
            frames = heard.receive()
            assert frames is not None
            heard_topic, *rest = frames
            assert heard_topic == codec.publication_topic(JOB)
            published = codec.decode_to_client(
                framing.decode(rest, size_bytes_max=10_000)
            )
            assert isinstance(published, Published)
            assert published.component_id == JOB
            assert published.revision == 1
            assert published.publication.address == "h:1"
            assert published.publication.epoch == granted.affirmation.epoch
            assert figure(server, "broadcasts_total") == 2

    def test_subscribers_come_and_go(self, server: LeaderServer) -> None:
        """What they subscribed to is forgotten with them."""
        with ScriptedSubscriber(server, topic("a"), topic("b")) as first:
            eventually(lambda: figure(server, "topics") == 2)
            first.socket.send(b"\x00" + topic("a"))
            eventually(lambda: figure(server, "topics") == 1)
            with ScriptedSubscriber(server, topic("b"), topic("c")):
                eventually(lambda: figure(server, "topics") == 2)
                assert figure(server, "subscribers") == 2
            eventually(lambda: figure(server, "topics") == 1)
        eventually(lambda: figure(server, "subscribers") == 0)
        assert figure(server, "topics") == 0

    @pytest.mark.proves("N3")
    def test_other_messages_are_dropped_and_counted(self, server: LeaderServer) -> None:
        """A subscriber has nothing to say but what it subscribes to (N3)."""
        with ScriptedSubscriber(server, topic("a")) as subscriber:
            subscriber.socket.send(b"hello")
            subscriber.socket.send_multipart([b"\x01" + topic("x"), b"more"])
            eventually(lambda: figure(server, "frames_not_a_subscription_total") >= 1)
            eventually(lambda: figure(server, "topics") == 2)

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize("size_bytes", [0, 15, 17, 200])
    def test_a_topic_of_another_size_ends_its_connection(
        self, server: LeaderServer, size_bytes: int
    ) -> None:
        """It would cost 32 bytes of memory for each of its own (N3)."""
        with ScriptedSubscriber(server, topic("a"), b"x" * size_bytes):
            eventually(lambda: figure(server, "subscribers_ended_total") >= 1)
            assert figure(server, "topics") == 0

    @pytest.mark.proves("N3")
    def test_a_flood_of_subscriptions_drives_out_itself(self) -> None:
        """Its connection is ended; who was there goes on hearing (N3)."""
        config = ServerConfig(
            bind=ANY_PORT,
            lease_seconds_max=0.2,
            lease_seconds_unrecorded_max=0.2,
            subscriptions_per_session_max=10,
        )
        with (
            LeaderServer(config) as server,
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, codec.publication_topic(JOB)) as good,
        ):
            client.hello()
            client.ask(
                SubscribeRequest(component_id=JOB, epoch_seen=0, is_ended_seen=False)
            )
            eventually(lambda: figure(server, "topics") == 1)
            with ScriptedSubscriber(server) as flood:
                for index in range(1_000):
                    flood.socket.send(b"\x01" + topic(str(index)))
                eventually(lambda: figure(server, "subscribers_ended_total") >= 1)
            eventually(lambda: figure(server, "topics") == 1)
            client.lead(JOB, "x")
            frames = good.receive()
            assert frames is not None
            assert frames[0] == codec.publication_topic(JOB)

    def test_clients_are_told_another_address(self) -> None:
        """Behind a proxy, changes are heard elsewhere than on our port (N1)."""
        config = ServerConfig(bind=ANY_PORT, publish_address="tcp://proxy:5171")
        with LeaderServer(config) as server, ScriptedClient(server) as client:
            welcome = client.hello()
            assert isinstance(welcome, Welcome)
            assert welcome.publish_port == server.publish_port
            assert welcome.publish_address == "tcp://proxy:5171"


class TestLimits:
    @pytest.mark.proves("N3")
    def test_connections_are_bounded(self) -> None:
        """One too many is turned away, and admitted when there is room (N3)."""
        config = ServerConfig(bind=ANY_PORT, connections_max=1)
        with LeaderServer(config) as server:
            first = ScriptedClient(server)
            first.hello()
            with ScriptedClient(server) as second:
                eventually(lambda: figure(server, "connections_refused_total") >= 1)
                assert isinstance(first.heartbeat(), AcknowledgedHeartbeat)
                assert figure(server, "connections") == 1
                first.close()
                assert isinstance(second.hello(), Welcome)

    @pytest.mark.proves("N3")
    def test_sessions_are_bounded(self) -> None:
        """One too many is told why (N3)."""
        config = ServerConfig(bind=ANY_PORT, sessions_max=1)
        with (
            LeaderServer(config) as server,
            ScriptedClient(server) as first,
            ScriptedClient(server) as second,
        ):
            assert isinstance(first.hello(), Welcome)
            refused = second.hello()
            assert isinstance(refused, RefusedHello)
            assert refused.reason == "limit-reached"
            assert isinstance(first.heartbeat(), AcknowledgedHeartbeat)

    @pytest.mark.proves("N3")
    def test_sessions_and_subscriptions_are_bounded_together(self) -> None:
        """Within every limit of its own, all that clients have us keep is not (N3)."""
        config = ServerConfig(
            bind=ANY_PORT, memory_limit_bytes=96 * 1024 * 1024, sessions_max=100_000
        )
        with LeaderServer(config) as server, ScriptedClient(server) as client:
            client.hello()
            reply: object = None
            for number in range(20_000):
                reply = client.ask(
                    SubscribeRequest(
                        component_id=f"c/{number:05}{'x' * 200}",
                        epoch_seen=0,
                        is_ended_seen=False,
                    )
                )
                if isinstance(reply, FailedReply):
                    break
            # One session may have 10,000; with names like these that is too much.
            assert isinstance(reply, FailedReply)
            assert reply.reason == "limit-reached"
            assert "memory" in reply.detail
            with ScriptedClient(server) as other:
                refused = other.hello()
                assert isinstance(refused, RefusedHello)
                assert refused.reason == "limit-reached"
            assert isinstance(client.heartbeat(), AcknowledgedHeartbeat)

    def test_the_largest_commit_is_taken(self, server: LeaderServer) -> None:
        """1,000 paths of four-byte characters and 1,000,000 bytes of values (L3)."""
        with ScriptedClient(server) as client:
            client.hello()
            affirmation = client.lead(JOB, "x").affirmation
            operations = [
                PutRecord(
                    path=f"{index:04}".ljust(255, "𝄞"), value=bytes(1_000), version=0
                )
                for index in range(1_000)
            ]
            reply = client.ask(
                CommitRequest(
                    component_id=JOB,
                    leader_session_id=affirmation.leader_session_id,
                    epoch=affirmation.epoch,
                    operations=list(operations),
                )
            )
            assert reply == DoneReply()


class TestDeath:
    @pytest.mark.proves("E5")
    def test_what_was_said_before_it_is_no_sign_of_life(
        self, server: LeaderServer
    ) -> None:
        """E5: a server reads the words of a dead client long after it has died."""
        client = ScriptedClient(server)
        client.hello(session_timeout_seconds=60)
        client.heartbeat()
        server.pause()
        # More than a loop reads before it looks elsewhere, less than libzmq keeps.
        for _ in range(150):
            client.say(HeartbeatRequest(acknowledged=client.acknowledged))
        client.socket.setsockopt(zmq.LINGER, 10_000)
        client.close()
        server.resume()
        eventually(lambda: figure(server, "sessions") == 0)
        assert figure(server, "frames_heartbeat_total") == 151


class TestTime:
    def test_a_pause_of_the_server_costs_nobody_anything(
        self, server: LeaderServer
    ) -> None:
        """Paused for twice the session timeout, it affirms the same as before (E9)."""
        with ScriptedClient(server) as leader, ScriptedClient(server) as standby:
            leader.hello(session_timeout_seconds=0.5, lease_seconds=0.2)
            granted = leader.lead(JOB, "leader")
            standby.hello(session_timeout_seconds=0.5, lease_seconds=0.2)
            standby.register(JOB, "standby")
            server.pause()
            server.pause()
            threading.Event().wait(1.0)  # the pause itself is what is tested
            server.resume()
            server.resume()
            for _ in range(5):
                assert leader.heartbeat().affirmations == [granted.affirmation]
                assert standby.heartbeat().affirmations == []
            assert figure(server, "stalls_total") >= 1
            assert figure(server, "grants_total") == 1

    def test_a_paused_server_can_be_closed(self) -> None:
        """Close wakes it."""
        server = LeaderServer(ServerConfig(bind=ANY_PORT))
        server.start()
        server.pause()
        server.close()
        assert server.join(TIMEOUT_SECONDS)
        with pytest.raises(LocalProtocolError):
            server.pause()

    @pytest.mark.parametrize("is_durable", [True, False])
    def test_epochs_rise_over_restarts(self, tmp_path: Path, is_durable: bool) -> None:
        """Five starts, with the data directory and without: always higher (E2)."""
        config = ServerConfig(
            bind=ANY_PORT,
            data_dir=tmp_path if is_durable else None,
            lease_seconds_max=0.2,
            lease_seconds_unrecorded_max=0.2,
        )
        epochs = []
        for _ in range(5):
            with LeaderServer(config) as server, ScriptedClient(server) as client:
                welcome = client.hello()
                assert isinstance(welcome, Welcome)
                assert welcome.is_durable is is_durable
                epochs.append(client.lead(JOB, "x").affirmation.epoch)
                with ScriptedClient(server) as stranger:
                    # A session of another start is none of this one's.
                    stranger.say(HeartbeatRequest(acknowledged=0))
                    assert isinstance(stranger.receive(), SessionUnknown)
        assert epochs == sorted(set(epochs))


class _Keys:
    """Key pairs on disk: a server's, and those of clients with roles."""

    def __init__(self, directory: Path) -> None:
        self.server = CurveKeyPair.generate()
        self.observer = CurveKeyPair.generate()
        self.contender = CurveKeyPair.generate()
        self.stranger = CurveKeyPair.generate()
        files = write_key_pair(self.server, directory / "server")
        allow_list = directory / "clients.toml"
        allow_list.write_text(
            f"""
            [clients.olga]
            public_key = "{self.observer.public_key}"
            roles = ["observe"]
            [clients.carl]
            public_key = "{self.contender.public_key}"
            roles = ["contend:job"]
            """
        )
        self.config = ServerConfig(
            bind=ANY_PORT,
            data_dir=directory / "data",
            lease_seconds_max=0.2,
            lease_seconds_unrecorded_max=0.2,
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
            allow_list_file=allow_list,
        )

    def list_clients(self, **clients: tuple[CurveKeyPair, list[str]]) -> None:
        """Write another allow-list."""
        assert self.config.allow_list_file is not None
        tables = (
            f'[clients.{name}]\npublic_key = "{pair.public_key}"\nroles = {roles}\n'
            for name, (pair, roles) in clients.items()
        )
        Path(self.config.allow_list_file).write_text("".join(tables))

    def of(self, pair: CurveKeyPair) -> tuple[CurveKeyPair, str]:
        """Return what a client needs."""
        return pair, self.server.public_key


@pytest.fixture
def keys(tmp_path: Path) -> _Keys:
    """Return keys for a server and its clients."""
    return _Keys(tmp_path)


class TestCurve:
    @pytest.mark.proves("N4")
    def test_roles_decide(self, keys: _Keys) -> None:
        """Who may contend contends, who may observe observes (N4)."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
            ScriptedClient(server, keys=keys.of(keys.observer)) as olga,
        ):
            carl.hello()
            granted = carl.lead(JOB, "x")
            olga.hello()
            refused = olga.register(JOB, "y")
            assert isinstance(refused, FailedReply)
            assert refused.reason == "not-allowed"
            assert "olga" in refused.detail
            refused = carl.register("c/other", "z")
            assert isinstance(refused, FailedReply)
            # A stolen secret is no session under another key (N1).
            stolen = carl.request(HeartbeatRequest(acknowledged=0), number=1_000)
            olga.send(*framing.encode(stolen))
            assert isinstance(olga.receive(), SessionUnknown)
            assert carl.heartbeat().affirmations == [granted.affirmation]
            assert server.status()["requests_foreign_key_total"] == 1

    @pytest.mark.proves("N4")
    def test_strangers_are_turned_away(self, keys: _Keys) -> None:
        """A key that is not listed is refused in the handshake, for good (N4)."""
        with LeaderServer(keys.config) as server:
            with ScriptedClient(server, keys=keys.of(keys.stranger)) as stranger:
                monitor = ConnectionMonitor(stranger.socket)
                failures: list[HandshakeFailure] = []

                def is_refused() -> bool:
                    failures.extend(
                        event.failure
                        for event in monitor.receive()
                        if isinstance(event, HandshakeFailed)
                    )
                    return bool(failures)

                eventually(is_refused)
                monitor.close()
            assert failures[0] is HandshakeFailure.REFUSED
            assert figure(server, "connections_unauthorized_total") >= 1

    @pytest.mark.proves("N4")
    def test_nobody_is_served_without_curve(self, keys: _Keys) -> None:
        """Neither at the request port nor at the publishing port (N4)."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, codec.publication_topic(JOB)),
        ):
            # Once libzmq has given up on the server, nothing can be sent any more.
            client.socket.setsockopt(zmq.SNDTIMEO, 500)
            with contextlib.suppress(zmq.Again):
                client.say(StatusRequest())
            assert client.receive(timeout_seconds=0.5) is None
            assert figure(server, "topics") == 0
            assert figure(server, "requests_total") == 0

    @pytest.mark.proves("N3", "N4")
    def test_a_flood_without_keys_keeps_nobody_out(
        self, keys: _Keys, tmp_path: Path
    ) -> None:
        """N3, N4: connections that never finish a handshake hold no place for good."""
        config = attrs.evolve(keys.config, connections_max=20)
        has_ended = threading.Event()
        with (
            LeaderServer(config) as server,
            contextlib.ExitStack() as strangers,
        ):
            host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")

            def flood() -> None:
                held: deque[stdlib_socket.socket] = deque()
                while not has_ended.wait(0.002):
                    with contextlib.suppress(OSError):
                        held.append(stdlib_socket.create_connection((host, int(port))))
                    if len(held) > 100:
                        held.popleft().close()
                for connection in held:
                    connection.close()

            thread = threading.Thread(target=flood)
            thread.start()
            strangers.callback(thread.join)
            strangers.callback(has_ended.set)
            eventually(lambda: figure(server, "connections_refused_total") > 50)
            with ScriptedClient(server, keys=keys.of(keys.contender)) as carl:
                assert isinstance(carl.hello(), Welcome)
                granted = carl.lead(JOB, "x")
                before = figure(server, "connections_refused_total")
                eventually(
                    lambda: figure(server, "connections_refused_total") > before + 50
                )
                assert carl.heartbeat().affirmations == [granted.affirmation]

    @pytest.mark.proves("N4")
    def test_who_may_observe_some_is_told_of_nothing_else(self, keys: _Keys) -> None:
        """N4: ``observe:GLOB`` holds for every message that tells of a component."""
        watcher = CurveKeyPair.generate()
        keys.list_clients(
            carl=(keys.contender, ["contend:*"]),
            wanda=(watcher, ["observe:c/job"]),
        )
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
            ScriptedClient(server, keys=keys.of(watcher)) as wanda,
        ):
            carl.hello()
            wanda.hello()
            carl.lead("c/secret", "s")
            for component_id in ("c/secret", "c/no-such"):
                bodies = (
                    SubscribeRequest(
                        component_id=component_id, epoch_seen=0, is_ended_seen=False
                    ),
                    ContendersRequest(component_id=component_id),
                    GetRequest(component_id=component_id, path="a"),
                    ListRequest(component_id=component_id, prefix="", after=""),
                )
                for body in bodies:
                    refused = wanda.ask(body)
                    assert isinstance(refused, FailedReply)
                    assert refused.reason == "not-allowed"
                    assert refused.detail == f"wanda may not observe {component_id}"
            assert wanda.ask(LeadersRequest(prefix="", after="")) == ComponentsReply(
                components=[], is_complete=True
            )
            assert wanda.ask(SessionsRequest(after="")) == SessionsReply(
                sessions=[], is_complete=True
            )
            subscribe = SubscribeRequest(
                component_id=JOB, epoch_seen=0, is_ended_seen=False
            )
            assert isinstance(wanda.ask(subscribe), SnapshotReply)
            carl.lead(JOB, "x")
            # Changes come over the request port: the other is not for it alone.
            message = wanda.receive()
            assert isinstance(message, Published)
            assert message.component_id == JOB
            leaders = wanda.ask(LeadersRequest(prefix="", after=""))
            assert isinstance(leaders, ComponentsReply)
            assert [c.component_id for c in leaders.components] == [JOB]
            sessions = wanda.ask(SessionsRequest(after=""))
            assert isinstance(sessions, SessionsReply)
            assert [s.component_ids for s in sessions.sessions] == [[JOB]]
            assert [s.leads_component_ids for s in sessions.sessions] == [[JOB]]

    @pytest.mark.proves("N4")
    def test_the_publishing_port_is_for_those_who_may_observe_all(
        self, keys: _Keys
    ) -> None:
        """N4: libzmq does not ask who may subscribe to what, so others stay out."""
        watcher = CurveKeyPair.generate()
        keys.list_clients(
            olga=(keys.observer, ["observe"]), wanda=(watcher, ["observe:c/job"])
        )
        with LeaderServer(keys.config) as server:
            address = f"tcp://127.0.0.1:{server.publish_port}"
            outcomes = {}
            for name, pair in (("olga", keys.observer), ("wanda", watcher)):
                context: ZMQContext = zmq.Context()
                socket: ZMQSocket = context.socket(zmq.SUB)
                secure_client(socket, pair, server_public_key=keys.server.public_key)
                monitor = ConnectionMonitor(socket)
                socket.connect(address)
                seen: list[object] = []

                def is_decided(
                    seen: list[object] = seen, monitor: ConnectionMonitor = monitor
                ) -> bool:
                    seen += monitor.receive()
                    return any(
                        isinstance(e, HandshakeFailed | HandshakeSucceeded)
                        for e in seen
                    )

                eventually(is_decided)
                outcomes[name] = [
                    e.failure for e in seen if isinstance(e, HandshakeFailed)
                ]
                monitor.close()
                socket.close(linger=0)
                context.term()
            assert outcomes == {"olga": [], "wanda": [HandshakeFailure.REFUSED]}

    @pytest.mark.proves("N4")
    def test_rights_are_read_again(self, keys: _Keys) -> None:
        """N4: who may less loses it at once; who may as much goes on undisturbed."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
            ScriptedClient(server, keys=keys.of(keys.observer)) as olga,
        ):
            carl.hello()
            olga.hello()
            granted = carl.lead(JOB, "x")
            keys.list_clients(
                carla=(keys.contender, ["contend:job", "contend:other"]),
                olga=(keys.observer, ["observe"]),
            )
            assert server.reload()
            assert carl.heartbeat().affirmations == [granted.affirmation]
            assert isinstance(carl.register("c/other", "y"), RegisteredReply)
            keys.list_clients(
                carla=(keys.contender, ["observe"]),
                olga=(keys.observer, ["observe", "contend:job"]),
            )
            assert server.reload()
            while not isinstance(message := carl.receive(), SessionEnded):
                assert message is not None
            assert isinstance(olga.heartbeat(), AcknowledgedHeartbeat)
            olga.lead(JOB, "z")
            assert figure(server, "sessions_ended_by_rights_total") == 1

    @pytest.mark.proves("N4")
    def test_who_is_listed_no_more_is_turned_away(self, keys: _Keys) -> None:
        """N4: a key that was taken off is told so when its client comes again."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
        ):
            carl.hello()
            carl.lead(JOB, "x")
            keys.list_clients(olga=(keys.observer, ["observe"]))
            monitor = ConnectionMonitor(carl.socket)
            assert server.reload()
            failures: list[HandshakeFailure] = []

            def is_turned_away() -> bool:
                if not failures:
                    with contextlib.suppress(zmq.Again):
                        carl.socket.send_multipart([b"LDS", b"x"], zmq.NOBLOCK)
                failures.extend(
                    e.failure
                    for e in monitor.receive()
                    if isinstance(e, HandshakeFailed)
                )
                return HandshakeFailure.REFUSED in failures

            eventually(is_turned_away)
            monitor.close()
            assert figure(server, "leaders") == 0

    @pytest.mark.proves("N4")
    def test_a_broken_file_changes_nothing(self, keys: _Keys, tmp_path: Path) -> None:
        """N4: what cannot be read is told, and the earlier list goes on to hold."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
        ):
            carl.hello()
            granted = carl.lead(JOB, "x")
            allow_list = tmp_path / "clients.toml"
            before = allow_list.read_text()
            allow_list.write_text(before + "\n[clients.x]\nroles = []\n")
            with pytest.raises(ConfigurationError, match="needs public_key"):
                server.reload()
            allow_list.write_text(before)
            other = write_key_pair(CurveKeyPair.generate(), tmp_path / "other")
            other.public_file.replace(tmp_path / "server.key")
            with pytest.raises(ConfigurationError, match="do not belong together"):
                server.reload()
            assert carl.heartbeat().affirmations == [granted.affirmation]

    def test_without_curve_there_is_nothing_to_read(self, server: LeaderServer) -> None:
        """A server that asks for no keys has no list of them."""
        assert not server.reload()

    @pytest.mark.proves("N4")
    def test_whoever_is_taken_off_the_list_is_served_no_more(self, keys: _Keys) -> None:
        """Also over a connection that is open already (N4)."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server, keys=keys.of(keys.contender)) as carl,
        ):
            carl.hello()
            assert isinstance(carl.register(JOB, "x"), RegisteredReply)
            running = server._running
            assert running is not None

            def take_off() -> None:
                allow_list = running._authenticator.allow_list
                assert allow_list is not None
                running._authenticator.allow_list = AllowList(
                    tuple(p for p in allow_list.principals if p.name == "olga")
                )

            running.loop.call_soon_threadsafe(take_off)
            eventually(
                lambda: (
                    carl.say(HeartbeatRequest(acknowledged=0)) > 0
                    and figure(server, "frames_unauthorized_total") >= 1
                )
            )
