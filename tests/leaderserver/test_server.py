"""A LeaderServer over real sockets, spoken to frame by frame."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from election.events import ContenderPreferred
from leaderserver import LeaderServer, ServerConfig, codec
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    CommitRequest,
    DoneReply,
    FailedReply,
    GetRequest,
    HeartbeatRequest,
    Published,
    PutRecord,
    RefusedHello,
    RegisteredReply,
    Revoked,
    SessionUnknown,
    StatusRequest,
    SubscribeRequest,
    ValueReply,
    Welcome,
)
from nameservice import ConfigurationError, LocalProtocolError, SystemClock
from tests.forking import run_in_child
from tests.leaderserver.scripted_client import (
    TIMEOUT_SECONDS,
    ScriptedClient,
    ScriptedSubscriber,
)
from tests.leaks import assert_closed, process_figures, settled
from transport import (
    AllowList,
    ConnectionClosed,
    ConnectionMonitor,
    CurveKeyPair,
    HandshakeFailed,
    HandshakeFailure,
    framing,
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeaderServer]:
    """Yield a server that decides quickly: it is durable, its leases are short."""
    config = ServerConfig(
        bind=ANY_PORT, data_dir=tmp_path / "data", lease_seconds_max=0.2
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
        config = ServerConfig(bind="tcp://*:0", insecure=True)
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
            running.loop.call_soon_threadsafe(running._router.close)
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
            assert figures["subscribers"] == 0
            assert figures["topics"] == 0
            assert figures["frames_hello_total"] == 1
            assert figures["frames_heartbeat_total"] == 1
            assert figures["frames_malformed_total"] == 1
            assert figures["failures_total"] == 0
            assert set(figures) <= set(server.status())

    def test_another_version_is_answered(self, server: LeaderServer) -> None:
        """A user of another version learns what is wrong (N1, N3)."""
        with ScriptedClient(server) as client:
            client.send(b"LDS\x07", b"whatever", b"that", b"is")
            refused = client.receive()
            assert isinstance(refused, RefusedHello)
            assert refused.reason == "wrong-version"
            assert "version 7" in refused.detail
            assert isinstance(client.hello(), Welcome)

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

    def test_who_does_not_read_waits_for_nobody(self, tmp_path: Path) -> None:
        """Its answers are dropped and counted; others are served meanwhile (N3)."""
        config = ServerConfig(
            bind=ANY_PORT,
            data_dir=tmp_path,
            lease_seconds_max=0.2,
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
        """One message per change, and no topic is the beginning of another (N1)."""
        with (
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, b"c/job\0") as heard,
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
            topic, *rest = frames
            assert topic == b"c/job\0"
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
        with ScriptedSubscriber(server, b"a", b"b") as first:
            eventually(lambda: figure(server, "topics") == 2)
            first.socket.send(b"\x00a")
            eventually(lambda: figure(server, "topics") == 1)
            with ScriptedSubscriber(server, b"b", b"c"):
                eventually(lambda: figure(server, "topics") == 2)
                assert figure(server, "subscribers") == 2
            eventually(lambda: figure(server, "topics") == 1)
        eventually(lambda: figure(server, "subscribers") == 0)
        assert figure(server, "topics") == 0

    def test_other_messages_are_dropped_and_counted(self, server: LeaderServer) -> None:
        """A subscriber has nothing to say but what it subscribes to (N3)."""
        with ScriptedSubscriber(server, b"a") as subscriber:
            subscriber.socket.send(b"hello")
            subscriber.socket.send_multipart([b"\x01x", b"more"])
            eventually(lambda: figure(server, "frames_not_a_subscription_total") >= 1)
            eventually(lambda: figure(server, "topics") == 2)

    def test_a_flood_of_subscriptions_drives_out_itself(self) -> None:
        """Its connection is ended; who was there goes on hearing (N3)."""
        config = ServerConfig(
            bind=ANY_PORT, lease_seconds_max=0.2, subscriptions_per_session_max=10
        )
        with (
            LeaderServer(config) as server,
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, b"c/job\0") as good,
        ):
            client.hello()
            client.ask(
                SubscribeRequest(component_id=JOB, epoch_seen=0, is_ended_seen=False)
            )
            eventually(lambda: figure(server, "topics") == 1)
            with ScriptedSubscriber(server) as flood:
                for index in range(1_000):
                    flood.socket.send(b"\x01topic %d" % index)
                eventually(lambda: figure(server, "subscribers_ended_total") >= 1)
            eventually(lambda: figure(server, "topics") == 1)
            client.lead(JOB, "x")
            frames = good.receive()
            assert frames is not None
            assert frames[0] == b"c/job\0"

    def test_clients_are_told_another_address(self) -> None:
        """Behind a proxy, changes are heard elsewhere than on our port (N1)."""
        config = ServerConfig(bind=ANY_PORT, publish_address="tcp://proxy:5171")
        with LeaderServer(config) as server, ScriptedClient(server) as client:
            welcome = client.hello()
            assert isinstance(welcome, Welcome)
            assert welcome.publish_port == server.publish_port
            assert welcome.publish_address == "tcp://proxy:5171"


class TestLimits:
    def test_connections_are_bounded(self) -> None:
        """One too many is turned away, and let in when there is room (N3)."""
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


class TestTime:
    def test_a_pause_of_the_server_costs_nobody_anything(
        self, server: LeaderServer
    ) -> None:
        """Paused for twice the session timeout, it affirms the same as before (E9)."""
        with ScriptedClient(server) as leader, ScriptedClient(server) as standby:
            leader.hello(session_timeout_seconds=0.5, lease_seconds=0.2)
            standby.hello(session_timeout_seconds=0.5, lease_seconds=0.2)
            granted = leader.lead(JOB, "leader")
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
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
            allow_list_file=allow_list,
        )

    def of(self, pair: CurveKeyPair) -> tuple[CurveKeyPair, str]:
        """Return what a client needs."""
        return pair, self.server.public_key


@pytest.fixture
def keys(tmp_path: Path) -> _Keys:
    """Return keys for a server and its clients."""
    return _Keys(tmp_path)


class TestCurve:
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

    def test_nobody_is_served_without_curve(self, keys: _Keys) -> None:
        """Neither at the request port nor at the publishing port (N4)."""
        with (
            LeaderServer(keys.config) as server,
            ScriptedClient(server) as client,
            ScriptedSubscriber(server, b"c/job\0"),
        ):
            client.say(StatusRequest())
            eventually(lambda: figure(server, "connections_unauthorized_total") >= 0)
            assert client.receive(timeout_seconds=0.5) is None
            assert figure(server, "topics") == 0
            assert figure(server, "requests_total") == 0

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
