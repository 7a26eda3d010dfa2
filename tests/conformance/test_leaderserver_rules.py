"""N1 to N4, and what E2, E5, E8 and E9 say of a LeaderServer alone; over TCP."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from election import LeaderSession
from haservices import Guarantee, HAConfig, HAServices, open_ha_services
from haservices.testing import LeaderServer, ServerConfig, TCPProxy
from haservices.testing.reserved_port import ReservedPort
from leaderserver import codec
from leaderserver.messages import (
    FailedReply,
    Failure,
    HeartbeatRequest,
    Hello,
    RefusedHello,
    RegisterRequest,
    Request,
    SessionUnknown,
    SubscribeRequest,
    WithdrawRequest,
)
from leaderserver.operator_messages import ContendersRequest
from leaderserver.store_messages import GetRequest
from nameservice import (
    NS_PER_SECOND,
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    EpochAheadError,
    NameServiceError,
    SeveralServersError,
    StaleEpochError,
    UnreachableError,
)
from tests.conformance.candidates import JOB, Candidate, ids_in_order
from tests.conformance.wire_peer import WirePeer
from tests.recording import (
    Granted,
    RecordingContender,
    RecordingListener,
    Revoked,
    wait_until,
)
from zmqtransport import CurveKeyPair, framing, load_key_pair, write_key_pair


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


pytestmark = pytest.mark.shells

# As it is on the wire, where a component's id begins with its cluster.
WIRE_JOB = f"default/{JOB}"
PATIENT: dict[str, Any] = {"session_timeout_seconds": 60.0, "lease_seconds": 0.2}


def server_config(**settings: Any) -> ServerConfig:
    """Return a configuration whose server decides quickly after its start."""
    defaults: dict[str, Any] = {
        "bind": "tcp://127.0.0.1:0",
        "lease_seconds_max": 0.2,
        # No server was there before, so there is nothing to wait for.
        "lease_seconds_unrecorded_max": 0.2,
    }
    return ServerConfig(**(defaults | settings))


@pytest.fixture
def resources() -> Iterator[contextlib.ExitStack]:
    """What the test opened; closed in the reverse order."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def server(resources: contextlib.ExitStack, tmp_path: Path) -> LeaderServer:
    """A LeaderServer of the test's own."""
    # Without a data directory it would have to wait for the next second to begin.
    return resources.enter_context(
        LeaderServer(server_config(data_dir=tmp_path / "data"))
    )


@pytest.fixture
def connect(
    server: LeaderServer, resources: contextlib.ExitStack
) -> Callable[..., HAServices]:
    """Opens services of *server*; closed in the end."""

    def open_services(**settings: Any) -> HAServices:
        config = HAConfig(**({"url": server.url} | PATIENT | settings))
        return resources.enter_context(open_ha_services(config))

    return open_services


@pytest.fixture
def raw(server: LeaderServer, resources: contextlib.ExitStack) -> WirePeer:
    """A peer of *server* that speaks by hand."""
    return resources.enter_context(WirePeer(server.endpoint))


def still_serves(leader: Candidate, session: LeaderSession) -> None:
    """Check that *leader* leads as before, and is served."""
    leader.wait_for_belief(session)
    leader.election.confirm_leadership(session.leader_session_id, leader.address)
    assert leader.contender.calls == (Granted(session),)


@pytest.mark.proves("N1")
class TestN1Wire:
    def test_handshake_carries_what_was_agreed(
        self, server: LeaderServer, raw: WirePeer
    ) -> None:
        """N1: secret, agreed timeouts, incarnation and the publishing port."""
        welcome = raw.hello(
            session_timeout_ns=7 * NS_PER_SECOND, lease_ns=5 * NS_PER_SECOND
        )
        assert len(welcome.secret) == 32
        assert welcome.session_timeout_ns == 7 * NS_PER_SECOND
        assert welcome.lease_ns == NS_PER_SECOND // 5  # the server's longest
        assert welcome.incarnation >= 1
        assert welcome.publish_port == server.publish_port
        assert welcome.publish_address is None
        assert welcome.is_durable

    def test_repeated_hello_opens_no_second_session(
        self, server: LeaderServer, raw: WirePeer
    ) -> None:
        """N1: a Hello that is sent again, unchanged, has the same answer."""
        hello = Hello(
            nonce=secrets.token_bytes(16),
            session_timeout_ns=NS_PER_SECOND,
            lease_ns=NS_PER_SECOND // 5,
            client="raw",
        )
        raw.send(hello)
        raw.send(hello)
        assert raw.receive() == raw.receive()
        assert server.status()["sessions"] == 1

    @pytest.mark.proves("N3")
    def test_wrong_version_is_answered(
        self, server: LeaderServer, raw: WirePeer
    ) -> None:
        """N1, N3: a peer of another version is told so, not misread."""
        raw.send_frames(b"LDS\x63", b"whatever comes in version 99")
        refused = raw.receive_a(RefusedHello)
        assert refused.reason == Failure.WRONG_VERSION
        assert "99" in refused.detail
        assert server.status()["frames_wrong_version_total"] == 1

    def test_one_broadcast_per_change(
        self, server: LeaderServer, connect: Callable[..., HAServices]
    ) -> None:
        """N1: however many subscribe, a change is sent once."""
        listeners = [RecordingListener() for _ in range(10)]
        for listener in listeners:
            connect().get_leader_retriever(JOB).start(listener)
        wait_until(lambda: server.status()["subscriptions"] == 10)
        leader = Candidate(connect(), "a:1")
        leader.wait_for_confirm()
        for listener in listeners:
            listener.wait_for_leader(leader.is_leader)
        leader.election.close()
        for listener in listeners:
            listener.wait_for_latest(lambda found: found is None)
        assert server.status()["broadcasts_total"] == 2

    def test_lost_broadcasts_are_noticed(
        self, server: LeaderServer, resources: contextlib.ExitStack
    ) -> None:
        """N1: even the last one: acknowledgements carry the revisions that changed."""
        host = "127.9.9.9"
        proxy = resources.enter_context(
            TCPProxy(int(server.url.rpartition(":")[2]), host=host)
        )
        publications = resources.enter_context(
            TCPProxy(server.publish_port, host=host, port=server.publish_port)
        )
        watching = resources.enter_context(
            open_ha_services(
                HAConfig(
                    url=f"leaderserver://{proxy.address}", session_timeout_seconds=3.0
                )
            )
        )
        listener = RecordingListener()
        watching.get_leader_retriever(JOB).start(listener)
        contending = resources.enter_context(
            open_ha_services(HAConfig(url=server.url, **PATIENT))
        )
        first = Candidate(contending, "a:1")
        session = first.wait_for_confirm()
        listener.wait_for_latest(first.is_leader)
        publications.cut()
        first.election.confirm_leadership(session.leader_session_id, "b:1")
        first.election.confirm_leadership(session.leader_session_id, "c:1")
        listener.wait_for_latest(
            lambda found: found is not None and found.address == "c:1"
        )
        first.election.close()
        listener.wait_for_latest(lambda found: found is None)

    def test_publish_address_is_where_clients_listen(
        self, resources: contextlib.ExitStack, reserved: ReservedPort
    ) -> None:
        """N1: a server behind a proxy says where its publications are found."""
        publish_port = reserved.port
        server = resources.enter_context(
            LeaderServer(
                server_config(
                    publish_bind=f"tcp://127.0.0.1:{publish_port}",
                    publish_address=f"tcp://127.8.8.8:{publish_port}",
                )
            )
        )
        proxy = resources.enter_context(
            TCPProxy(publish_port, host="127.8.8.8", port=publish_port)
        )
        ha = resources.enter_context(open_ha_services(server.url))
        listener = RecordingListener()
        ha.get_leader_retriever(JOB).start(listener)
        wait_until(lambda: proxy.connection_count == 1)
        leader = Candidate(ha, "a:1")
        leader.wait_for_confirm()
        listener.wait_for_leader(leader.is_leader)

    def test_routing_id_is_no_identity(
        self,
        server: LeaderServer,
        connect: Callable[..., HAServices],
        resources: contextlib.ExitStack,
    ) -> None:
        """N1: one that takes another's routing id has none of its rights."""
        leader = Candidate(connect(), "a:1")
        session = leader.wait_for_confirm()
        owner = resources.enter_context(WirePeer(server.endpoint, routing_id=b"owner"))
        owner.hello()
        registration = RegisterRequest(
            component_id=WIRE_JOB,
            contender_id="owners",
            confirm_timeout_ns=NS_PER_SECOND,
            ticket=None,
            epoch_ended=0,
            claim=None,
        )
        owner.ask(registration)
        owner.close()
        thief = resources.enter_context(WirePeer(server.endpoint, routing_id=b"owner"))
        thief.post(WithdrawRequest(component_id=WIRE_JOB, contender_id="owners"))
        thief.receive_a(SessionUnknown)
        thief.hello()
        failed = thief.ask(registration)
        assert isinstance(failed, FailedReply)
        assert failed.reason == Failure.TAKEN
        thief.ask(WithdrawRequest(component_id=WIRE_JOB, contender_id="owners"))
        assert "owners" in ids_in_order(leader.election)
        still_serves(leader, session)

    def test_replayed_requests_have_no_effect(
        self, server: LeaderServer, raw: WirePeer
    ) -> None:
        """N1: a request is taken once: recorded and sent again, it is dropped."""
        raw.hello()
        register = RegisterRequest(
            component_id=WIRE_JOB,
            contender_id="mine",
            confirm_timeout_ns=NS_PER_SECOND,
            ticket=None,
            epoch_ended=0,
            claim=None,
        )
        recorded = Request(secret=raw.secret, number=raw.number + 1, body=register)
        raw.ask(register)
        raw.ask(WithdrawRequest(component_id=WIRE_JOB, contender_id="mine"))
        raw.send(recorded)
        reply = raw.ask(ContendersRequest(component_id=WIRE_JOB))
        assert msgspec.structs.asdict(reply) == {"contenders": []}
        assert server.status()["requests_repeated_total"] == 1

    @pytest.mark.proves("N4")
    def test_stolen_secret_is_worth_nothing_under_another_key(
        self, tmp_path: Path, resources: contextlib.ExitStack
    ) -> None:
        """N1, N4: with CURVE a session belongs to a key as well."""
        keys = Keys(tmp_path)
        server = resources.enter_context(LeaderServer(keys.server_config()))
        server_key = keys.pair("server").public_key
        owner, thief = (
            resources.enter_context(
                WirePeer(
                    server.endpoint, key_pair=keys.pair(name), server_key=server_key
                )
            )
            for name in ("contender", "other")
        )
        owner.hello()
        thief.secret = owner.secret
        thief.number = 1_000
        thief.post(HeartbeatRequest(acknowledged=0))
        thief.receive_a(SessionUnknown)
        assert server.status()["requests_foreign_key_total"] == 1
        owner.ask(ContendersRequest(component_id=WIRE_JOB))


class TestN2Program:
    @pytest.mark.proves("N2")
    def test_runs_inside_a_program(self, reserved: ReservedPort) -> None:
        """N2: port 0 takes a free port, `url` names it; closed, it is gone."""
        for port in (0, reserved.port):
            with LeaderServer(ServerConfig(bind=f"tcp://127.0.0.1:{port}")) as server:
                assert server.url.startswith("leaderserver://127.0.0.1:")
                with open_ha_services(server.url) as ha:
                    assert ha.operations.status()["sessions"] == 1
        url = f"leaderserver://127.0.0.1:{reserved.port}"
        with pytest.raises(UnreachableError):
            open_ha_services(HAConfig(url=url, connect_timeout_seconds=0.3))

    @pytest.mark.proves("E2")
    def test_data_directory_belongs_to_one_server(
        self, tmp_path: Path, resources: contextlib.ExitStack
    ) -> None:
        """E2: two servers on one data directory would give epochs twice."""
        resources.enter_context(LeaderServer(server_config(data_dir=tmp_path)))
        with pytest.raises(ConfigurationError, match="data"):
            LeaderServer(server_config(data_dir=tmp_path)).start()

    @pytest.mark.proves("N2")
    def test_port_that_is_taken_is_an_error(self, server: LeaderServer) -> None:
        """N2: a second server on the same port says which port it is."""
        with pytest.raises(ConfigurationError) as caught:
            LeaderServer(server_config(bind=server.endpoint)).start()
        assert server.endpoint.rpartition(":")[2] in str(caught.value)

    def test_guarantee_of_restart_needs_a_data_directory(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """SURVIVES_SERVER_RESTART is promised where something is kept, only there."""
        assert Guarantee.SURVIVES_SERVER_RESTART in connect().guarantees
        with (
            LeaderServer(server_config()) as forgetful,
            open_ha_services(forgetful.url) as ha,
        ):
            assert Guarantee.SURVIVES_SERVER_RESTART not in ha.guarantees


@pytest.mark.proves("E2")
class TestRestartWithoutData:
    @pytest.mark.proves("E9")
    def test_incumbent_keeps_its_epoch_and_new_ones_are_higher(
        self, resources: contextlib.ExitStack, reserved: ReservedPort
    ) -> None:
        """E9, E2: the clients remember what the server has forgotten."""
        config = server_config(bind=f"tcp://127.0.0.1:{reserved.port}")
        servers = contextlib.ExitStack()
        first_server = servers.enter_context(LeaderServer(config))
        resources.callback(servers.close)  # after the clients have closed
        url = first_server.url

        def connect() -> HAServices:
            return resources.enter_context(
                open_ha_services(HAConfig(url=url, **PATIENT))
            )

        leader = Candidate(connect(), "a:1")
        session = leader.wait_for_confirm()
        waiting = [Candidate(connect(), f"w{n}:1") for n in range(2)]
        leader.store.put("a", b"1", session=session)
        first_server.close()
        servers.enter_context(LeaderServer(config))
        operator = connect()
        wait_until(lambda: len(operator.operations.contenders(JOB)) == 3)
        leader.wait_for_belief(session)
        wait_until(lambda: has_written(leader, session))
        assert leader.contender.calls == (Granted(session),)
        assert leader.store.list() == ["b"]  # what was stored went with the server
        epochs = [session.epoch]
        for following in (leader, waiting[0]):
            following.election.close()
            successor = waiting[len(epochs) - 1]
            epochs.append(successor.wait_for_confirm().epoch)
        assert epochs == sorted(set(epochs))

    def test_three_restarts_in_a_row(self, reserved: ReservedPort) -> None:
        """E2: epochs rise strictly over restarts, though no client remembers."""
        config = server_config(bind=f"tcp://127.0.0.1:{reserved.port}")
        epochs = []
        for _ in range(3):
            with (
                LeaderServer(config) as server,
                open_ha_services(HAConfig(url=server.url, **PATIENT)) as ha,
            ):
                epochs.append(Candidate(ha, "a:1").wait_for_confirm().epoch)
        assert epochs == sorted(set(epochs))


class TestE9Undecided:
    @pytest.mark.proves("E9", "L2")
    def test_nothing_is_granted_or_written_before_it_is_decided(
        self, tmp_path: Path, resources: contextlib.ExitStack, reserved: ReservedPort
    ) -> None:
        """E9, L2: some holder may still believe, so a writer is to retry."""
        bind = f"tcp://127.0.0.1:{reserved.port}"
        servers = contextlib.ExitStack()
        before = servers.enter_context(
            LeaderServer(server_config(bind=bind, data_dir=tmp_path))
        )
        resources.callback(servers.close)  # after the clients have closed
        leader, newcomer = (
            resources.enter_context(
                open_ha_services(HAConfig(url=before.url, session_timeout_seconds=60.0))
            )
            for _ in range(2)
        )
        candidate = Candidate(leader, "a:1")
        session = candidate.wait_for_confirm()
        config = server_config(bind=bind, data_dir=tmp_path, lease_seconds_max=3.0)
        before.close()
        after = servers.enter_context(LeaderServer(config))
        waiting = Candidate(newcomer, "b:1", job_id="another")
        wait_until(lambda: after.status()["contenders"] == 2)
        with pytest.raises(DidNotHappenError):
            candidate.store.put("a", b"", session=session)
        assert waiting.contender.calls == ()
        assert after.status()["is_undecided"] == 1
        assert after.status()["leaders"] == 0
        waiting.wait_for_confirm()
        wait_until(lambda: has_written(candidate, session))
        assert after.status()["is_undecided"] == 0
        assert candidate.contender.calls == (Granted(session),)


class TestN1SeveralServers:
    @pytest.mark.proves("N1")
    @pytest.mark.parametrize("is_overlapping", [True, False])
    def test_two_behind_one_address_are_told(
        self,
        resources: contextlib.ExitStack,
        reserved: ReservedPort,
        is_overlapping: bool,
    ) -> None:
        """N1: two elections at one address; a restart without overlap is none."""
        servers = contextlib.ExitStack()
        resources.callback(servers.close)
        first = servers.enter_context(LeaderServer(server_config()))
        second = LeaderServer(server_config())
        if is_overlapping:
            servers.enter_context(second)
        proxy = resources.enter_context(TCPProxy(port_of(first), port=reserved.port))
        ha = resources.enter_context(
            open_ha_services(HAConfig(url=f"leaderserver://127.0.0.1:{reserved.port}"))
        )
        listener = RecordingListener()
        retriever = ha.get_leader_retriever(JOB)
        resources.callback(retriever.close)
        retriever.start(listener)
        candidate = Candidate(ha, "a:1")
        candidate.wait_for_confirm()
        if not is_overlapping:
            first.close()
            servers.enter_context(second)
        proxy.close()
        resources.enter_context(TCPProxy(port_of(second), port=reserved.port))
        wait_until(lambda: second.status()["leaders"] == 1)
        wait_until(lambda: second.status()["subscriptions"] == 1)
        if is_overlapping:
            wait_until(
                lambda: has_error(candidate.contender.errors, SeveralServersError)
            )
            wait_until(lambda: has_error(listener.errors, SeveralServersError))
        assert has_error(listener.errors, SeveralServersError) == is_overlapping


def port_of(server: LeaderServer) -> int:
    """Return the port of its requests."""
    return int(server.endpoint.rpartition(":")[2])


class TestE2Clock:
    """A LeaderServer without a data directory, whose machine's clock is set."""

    @pytest.fixture
    def clock(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> Callable[[float], None]:
        """Return what sets the wall clock that servers see, by seconds."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        read_ns = time.time_ns

        def set_by(seconds: float) -> None:
            monkeypatch.setattr(
                time, "time_ns", lambda: read_ns() + round(seconds * NS_PER_SECOND)
            )

        return set_by

    @pytest.mark.proves("E2")
    @pytest.mark.parametrize("back_seconds", [3_600.0, 3 * 86_400.0])
    def test_epochs_rise_though_the_clock_is_set_back(
        self,
        clock: Callable[[float], None],
        resources: contextlib.ExitStack,
        back_seconds: float,
    ) -> None:
        """E2: also where no client is left that could report an epoch."""
        epochs = []
        for seconds in (0.0, -back_seconds, -2 * back_seconds):
            clock(seconds)
            with (
                LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
                open_ha_services(HAConfig(url=server.url)) as ha,
            ):
                epochs.append(Candidate(ha, "a:1").wait_for_confirm().epoch)
        assert epochs == sorted(set(epochs))

    @pytest.mark.proves("E2")
    def test_clock_that_was_never_set_is_refused(
        self, clock: Callable[[float], None]
    ) -> None:
        """E2: epochs would begin anew; the reason is told."""
        clock(-50 * 365 * 86_400.0)
        with pytest.raises(ConfigurationError, match="before 2026"):
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")).start()

    @pytest.mark.proves("E8", "R3")
    def test_who_can_never_lead_is_told(
        self,
        clock: Callable[[float], None],
        resources: contextlib.ExitStack,
        reserved: ReservedPort,
    ) -> None:
        """E8, R3: ahead at the first start, then corrected, on another machine."""
        clock(3 * 86_400.0)
        config = ServerConfig(bind=f"tcp://127.0.0.1:{reserved.port}")
        servers = contextlib.ExitStack()
        before = servers.enter_context(LeaderServer(config))
        resources.callback(servers.close)
        old, new = (
            resources.enter_context(open_ha_services(HAConfig(url=before.url)))
            for _ in range(2)
        )
        listener = RecordingListener()
        retriever = new.get_leader_retriever(JOB)
        resources.callback(retriever.close)
        retriever.start(listener)
        first = Candidate(old, "a:1")
        first.wait_for_confirm()
        wait_until(lambda: retriever.leader is not None)
        before.close()
        clock(0.0)
        shutil.rmtree(tempfile.gettempdir())
        Path(tempfile.gettempdir()).mkdir()
        servers.enter_context(LeaderServer(config))
        wait_until(lambda: has_error(first.contender.errors, EpochAheadError))
        second = Candidate(new, "b:1")
        second.wait_for_confirm()  # new, so it has seen nothing
        wait_until(lambda: has_error(listener.errors, EpochAheadError))


def has_error(errors: Sequence[Exception], kind: type[Exception]) -> bool:
    """Return whether an error of *kind* was reported."""
    return any(isinstance(error, kind) for error in errors)


class TestE9Leases:
    @pytest.mark.proves("E4", "E9")
    @pytest.mark.parametrize(
        ("is_removed", "settings"),
        [
            (False, {"lease_seconds_max": 0.2}),
            (False, {}),
            (False, {"lease_seconds_max": 1.7}),
            (True, {"lease_seconds_unrecorded_max": 1.6}),
        ],
        ids=["lowered", "default", "raised", "data directory removed"],
    )
    def test_longest_lease_of_an_earlier_server_is_waited_for(
        self,
        tmp_path: Path,
        resources: contextlib.ExitStack,
        reserved: ReservedPort,
        is_removed: bool,
        settings: dict[str, Any],
    ) -> None:
        """E4, E9: a holder may believe for as long as the earlier server allowed."""
        bind = f"tcp://127.0.0.1:{reserved.port}"
        servers = contextlib.ExitStack()
        before = servers.enter_context(
            LeaderServer(
                server_config(bind=bind, data_dir=tmp_path, lease_seconds_max=1.6)
            )
        )
        resources.callback(servers.close)
        leader, successor = (
            resources.enter_context(
                open_ha_services(
                    HAConfig(
                        url=before.url, lease_seconds=1.6, session_timeout_seconds=60.0
                    )
                )
            )
            for _ in range(2)
        )
        first = Candidate(leader, "a:1")
        session = first.wait_for_confirm()
        waiting = Candidate(successor, "b:1")
        before.close()
        begin_ns = time.monotonic_ns()
        after = servers.enter_context(
            LeaderServer(
                ServerConfig(
                    bind=bind,
                    data_dir=None if is_removed else tmp_path,
                    **settings,
                )
            )
        )
        wait_until(lambda: after.status()["is_undecided"] == 0)
        assert time.monotonic_ns() - begin_ns >= 1.6 * NS_PER_SECOND
        wait_until(lambda: after.status()["leaders"] == 1)
        first.wait_for_belief(session)
        assert waiting.contender.calls == ()


class TestE9Reports:
    @pytest.mark.proves("E9")
    def test_higher_report_revokes_and_grants_afresh(
        self, resources: contextlib.ExitStack
    ) -> None:
        """E9: without a data directory the present one may be stale."""
        server = resources.enter_context(LeaderServer(server_config()))
        ha = resources.enter_context(
            open_ha_services(HAConfig(url=server.url, **PATIENT))
        )
        leader = Candidate(ha, "a:1")
        first = leader.wait_for_confirm()
        raw = resources.enter_context(WirePeer(server.endpoint))
        raw.hello()
        raw.ask(
            SubscribeRequest(
                component_id=WIRE_JOB, epoch_seen=first.epoch + 5, is_ended_seen=False
            )
        )
        second = leader.wait_for_confirm(2)
        assert second.epoch > first.epoch + 5
        assert leader.contender.calls == (Granted(first), Revoked(), Granted(second))

    @pytest.mark.proves("E9", "N4")
    @pytest.mark.parametrize("ahead", [0, 5])
    def test_report_ends_nothing_where_epochs_are_on_record(
        self, connect: Callable[..., HAServices], raw: WirePeer, ahead: int
    ) -> None:
        """E9, N4: it raises the next epoch, and nothing else."""
        leader = Candidate(connect(), "a:1")
        first = leader.wait_for_confirm()
        raw.hello()
        raw.ask(
            SubscribeRequest(
                component_id=WIRE_JOB,
                epoch_seen=first.epoch + ahead,
                is_ended_seen=True,
            )
        )
        still_serves(leader, first)
        leader.election.close()
        second = Candidate(leader.ha, "a:2").wait_for_confirm()
        assert second.epoch > first.epoch + ahead

    @pytest.mark.proves("E2")
    def test_report_from_the_far_future_is_refused(
        self, server: LeaderServer, connect: Callable[..., HAServices], raw: WirePeer
    ) -> None:
        """E2: more than a day ahead: a client that lies ends no leadership."""
        leader = Candidate(connect(), "a:1")
        session = leader.wait_for_confirm()
        raw.hello()
        two_days_ahead = session.epoch + (2 * 86_400 << 32)
        raw.ask(
            SubscribeRequest(
                component_id=WIRE_JOB, epoch_seen=two_days_ahead, is_ended_seen=True
            )
        )
        still_serves(leader, session)


class TestE5Silence:
    @pytest.mark.proves("E5")
    def test_session_that_outlived_its_client_grants_the_same_again(
        self, server: LeaderServer, resources: contextlib.ExitStack
    ) -> None:
        """E5: lost on the client's side alone, the claim is kept and comes back."""
        proxy = resources.enter_context(TCPProxy(int(server.url.rpartition(":")[2])))
        ha = resources.enter_context(
            open_ha_services(
                HAConfig(
                    url=f"leaderserver://{proxy.address}",
                    session_timeout_seconds=2.0,
                    lease_seconds=0.2,
                )
            )
        )
        leader = Candidate(ha, "a:1")
        session = leader.wait_for_confirm()
        # The server goes on hearing heartbeats; its answers do not arrive.
        proxy.cut_replies()
        leader.contender.wait_for_revoke()
        proxy.heal()
        assert leader.wait_for_confirm(2) == session
        assert leader.contender.calls == (
            Granted(session),
            Revoked(),
            Granted(session),
        )


@pytest.mark.proves("N3")
class TestN3Bounds:
    @pytest.mark.parametrize(
        ("frames", "counter"),
        [
            ((b"",), "truncated"),
            ((b"LDS",), "truncated"),
            ((b"LDS\x01",), "truncated"),
            ((b"GET / HTTP/1.1\r\n", b""), "wrong_magic"),
            ((b"LDS\x01", b""), "malformed"),
            ((b"LDS\x01", b"\xc1"), "malformed"),
            ((b"LDS\x01", b"\xff" * 1_000), "malformed"),
            ((b"LDS\x01", b"\x90" * 10_000), "malformed"),
            ((b"LDS\x01", b"a", b"b"), "malformed"),
            ((b"LDS\x01extra", b"a"), "malformed"),
            ((b"LDS\x02", b""), "wrong_version"),
            ((b"LDS\x01", bytes(2_100_001)), "oversized"),
        ],
    )
    def test_bad_frame_is_counted_and_the_server_goes_on(
        self,
        server: LeaderServer,
        connect: Callable[..., HAServices],
        raw: WirePeer,
        frames: tuple[bytes, ...],
        counter: str,
    ) -> None:
        """N3: malformed, oversized, truncated, wrong version: no other notices."""
        leader = Candidate(connect(), "a:1")
        session = leader.wait_for_confirm()
        raw.send_frames(*frames)
        wait_until(lambda: server.status().get(f"frames_{counter}_total") == 1)
        still_serves(leader, session)
        raw.hello()

    def test_message_that_breaks_a_limit_of_its_field_is_malformed(
        self, server: LeaderServer, raw: WirePeer
    ) -> None:
        """N3: numbers below zero, ids too long, unknown fields: not taken at all."""
        raw.hello()
        good = Request(
            secret=raw.secret, number=1, body=ContendersRequest(component_id="a/b")
        )
        as_map = msgspec.msgpack.decode(codec.encode(good))
        for change in (
            {"number": -1},
            {"number": 2**63},
            {"secret": b"short"},
            {"unknown": 1},
            {"body": {"type": "contenders", "component_id": "x" * 512}},
            {"body": {"type": "contenders", "component_id": ""}},
            {"body": {"type": "no-such-request"}},
            {"body": None},
        ):
            payload = msgspec.msgpack.encode(as_map | change)
            raw.send_frames(*framing.encode(payload))
        wait_until(lambda: server.status().get("frames_malformed_total") == 8)
        assert isinstance(
            raw.ask(ContendersRequest(component_id="a/b")), msgspec.Struct
        )

    def test_sessions_are_bounded(self, resources: contextlib.ExitStack) -> None:
        """N3: one session too many is refused, with an error, before the timeout."""
        server = resources.enter_context(LeaderServer(server_config(sessions_max=2)))
        config = HAConfig(url=server.url, connect_timeout_seconds=30.0)
        first = resources.enter_context(open_ha_services(config))
        resources.enter_context(open_ha_services(config))
        with pytest.raises(NameServiceError, match="as many sessions as it may have"):
            open_ha_services(config)
        first.close()
        resources.enter_context(open_ha_services(config))

    @pytest.mark.proves("E8")
    @pytest.mark.parametrize(
        "limit", ["contenders_per_component_max", "contenders_per_session_max"]
    )
    def test_contenders_are_bounded(
        self, resources: contextlib.ExitStack, limit: str
    ) -> None:
        """N3, E8: one contender too many is told why; it does not wait in silence."""
        server = resources.enter_context(LeaderServer(server_config(**{limit: 2})))
        ha = resources.enter_context(open_ha_services(server.url))
        leader = Candidate(ha, "a:1")
        leader.wait_for_confirm()
        second = Candidate(ha, "b:1")
        third = RecordingContender()
        election = ha.get_leader_election(JOB)
        election.start(third)
        assert isinstance(third.wait_for_error(), DidNotHappenError)
        second.election.close()
        election.close()
        leader.election.close()

    def test_subscriptions_are_bounded(self, resources: contextlib.ExitStack) -> None:
        """N3: one subscription too many is told why, and the others are served."""
        server = resources.enter_context(
            LeaderServer(server_config(subscriptions_per_session_max=2))
        )
        ha = resources.enter_context(open_ha_services(server.url))
        listeners = [RecordingListener() for _ in range(3)]
        for number, listener in enumerate(listeners):
            ha.get_leader_retriever(f"job-{number}").start(listener)
        wait_until(lambda: any(listener.errors for listener in listeners))
        assert listeners[0].errors == listeners[1].errors == ()
        other = resources.enter_context(open_ha_services(server.url))
        leader = Candidate(other, "a:1", job_id="job-0")
        leader.wait_for_confirm()
        listeners[0].wait_for_leader(leader.is_leader)

    def test_connections_are_bounded(self, resources: contextlib.ExitStack) -> None:
        """N3: one connection too many is closed; the ones before it are served."""
        server = resources.enter_context(LeaderServer(server_config(connections_max=2)))
        first = resources.enter_context(open_ha_services(server.url))
        second = resources.enter_context(open_ha_services(server.url))
        config = HAConfig(url=server.url, connect_timeout_seconds=1.0)
        with pytest.raises((AuthenticationError, UnreachableError), match="too many"):
            open_ha_services(config)
        # What came over a connection too many may be read before that is closed.
        wait_until(lambda: first.operations.status()["sessions"] == 2)
        assert second.operations.status()["sessions"] == 2

    def test_peer_that_does_not_read_delays_nobody(
        self, resources: contextlib.ExitStack
    ) -> None:
        """N3: replies wait in a bounded queue, and are dropped beyond it."""
        server = resources.enter_context(
            LeaderServer(server_config(queued_replies_per_peer_max=10))
        )
        ha = resources.enter_context(
            open_ha_services(HAConfig(url=server.url, **PATIENT))
        )
        leader = Candidate(ha, "a:1")
        session = leader.wait_for_confirm()
        leader.store.put("large", bytes(900_000), session=session)
        deaf = resources.enter_context(WirePeer(server.endpoint))
        deaf.hello()
        for _ in range(200):
            deaf.post(GetRequest(component_id=WIRE_JOB, path="large"))
        wait_until(lambda: server.status().get("frames_get_total", 0) == 200)
        assert any(
            name.startswith("replies_") and count
            for name, count in server.status().items()
        )
        still_serves(leader, session)


class Keys:
    """CURVE keys of a server and its clients, with an allow-list."""

    ROLES = {  # noqa: RUF012 - read only
        "contender": ["contend:flights*"],
        "other": ["contend:*"],
        "observer": ["observe"],
        "operator": ["admin"],
    }

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        tables = []
        for name in ("server", "stranger", *self.ROLES):
            pair = CurveKeyPair.generate()
            write_key_pair(pair, directory / name)
            if name in self.ROLES:
                roles = ", ".join(f'"{role}"' for role in self.ROLES[name])
                tables.append(
                    f'[clients.{name}]\npublic_key = "{pair.public_key}"\n'
                    f"roles = [{roles}]\n"
                )
        (directory / "allow.toml").write_text("\n".join(tables))

    def pair(self, name: str) -> CurveKeyPair:
        """Return the keys of *name*."""
        return load_key_pair(self.directory / f"{name}.key_secret")

    def server_config(self, **settings: Any) -> ServerConfig:
        """Return the configuration of a server with these keys."""
        return server_config(
            data_dir=self.directory / "data",
            curve_public_key_file=self.directory / "server.key",
            curve_secret_key_file=self.directory / "server.key_secret",
            allow_list_file=self.directory / "allow.toml",
            **settings,
        )

    def client_config(self, url: str, name: str, **settings: Any) -> HAConfig:
        """Return the configuration of the client called *name*."""
        files = {
            "curve_public_key_file": str(self.directory / f"{name}.key"),
            "curve_secret_key_file": str(self.directory / f"{name}.key_secret"),
            "curve_server_key_file": str(self.directory / "server.key"),
        }
        return HAConfig(url=url, **(PATIENT | files | settings))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Keys of a server and its clients."""
    return Keys(tmp_path)


@pytest.fixture
def guarded(keys: Keys, resources: contextlib.ExitStack) -> LeaderServer:
    """A server that admits those whom the allow-list names."""
    return resources.enter_context(LeaderServer(keys.server_config()))


@pytest.mark.proves("N4")
class TestN4Access:
    def refused(self, config: HAConfig) -> AuthenticationError:
        """Return how opening *config* is refused."""
        with pytest.raises(AuthenticationError) as caught:
            open_ha_services(config)
        return caught.value

    def test_stranger_is_refused_in_time(
        self, keys: Keys, guarded: LeaderServer
    ) -> None:
        """N4: a key that is not on the list: AuthenticationError, not a hang."""
        config = keys.client_config(
            guarded.url, "stranger", connect_timeout_seconds=2.0
        )
        assert guarded.url in str(self.refused(config))
        assert guarded.status()["sessions"] == 0

    def test_client_without_keys_is_refused_in_time(
        self, guarded: LeaderServer
    ) -> None:
        """N4: so is one that does not encrypt."""
        self.refused(HAConfig(url=guarded.url, connect_timeout_seconds=2.0))
        assert guarded.status()["sessions"] == 0

    def test_client_with_the_wrong_server_key_is_refused_in_time(
        self, keys: Keys, guarded: LeaderServer
    ) -> None:
        """N4: so is one that was told another server's key."""
        wrong = str(keys.directory / "stranger.key")
        config = keys.client_config(
            guarded.url,
            "contender",
            curve_server_key_file=wrong,
            connect_timeout_seconds=2.0,
        )
        self.refused(config)

    def test_client_with_keys_is_not_served_in_the_clear(
        self, keys: Keys, server: LeaderServer
    ) -> None:
        """N4: a client that asks for encryption takes nothing less."""
        config = keys.client_config(
            server.url, "contender", connect_timeout_seconds=2.0
        )
        with pytest.raises((AuthenticationError, UnreachableError)):
            open_ha_services(config)
        assert server.status()["sessions"] == 0

    @pytest.mark.proves("R6")
    def test_observer_sees_and_may_not_contend(
        self, keys: Keys, guarded: LeaderServer, resources: contextlib.ExitStack
    ) -> None:
        """N4, R6: a retriever needs no right to contend; a contender is told."""
        contending, observing = (
            resources.enter_context(
                open_ha_services(keys.client_config(guarded.url, name))
            )
            for name in ("contender", "observer")
        )
        leader = Candidate(contending, "a:1")
        session = leader.wait_for_confirm()
        leader.store.put("a", b"1", session=session)
        listener = RecordingListener()
        observing.get_leader_retriever(JOB).start(listener)
        listener.wait_for_leader(leader.is_leader)
        assert observing.get_leader_store(JOB).list() == ["a"]
        contender = RecordingContender()
        observing.get_leader_election(JOB).start(contender)
        assert isinstance(contender.wait_for_error(), AuthenticationError)
        with pytest.raises((StaleEpochError, AuthenticationError)):
            observing.get_leader_store(JOB).put("a", b"", session=session)
        with pytest.raises(AuthenticationError):
            observing.cleanup(JOB)
        still_serves(leader, session)
        assert len(leader.election.contenders()) == 1

    def test_contender_may_contend_for_what_its_role_names(
        self, keys: Keys, guarded: LeaderServer, resources: contextlib.ExitStack
    ) -> None:
        """N4: `contend:GLOB` is about components, and the rest is refused."""
        ha = resources.enter_context(
            open_ha_services(keys.client_config(guarded.url, "contender"))
        )
        Candidate(ha, "a:1", job_id="flights-2").wait_for_confirm()
        refused = RecordingContender()
        ha.get_leader_election("trains").start(refused)
        assert isinstance(refused.wait_for_error(), AuthenticationError)
        assert list(ha.operations.contenders("trains")) == []

    @pytest.mark.proves("N6")
    def test_only_an_admin_may_revoke_and_expire(
        self, keys: Keys, guarded: LeaderServer, resources: contextlib.ExitStack
    ) -> None:
        """N4, N6: operators' verbs need the role; asking does not."""
        ha, other, operator = (
            resources.enter_context(
                open_ha_services(keys.client_config(guarded.url, name))
            )
            for name in ("contender", "other", "operator")
        )
        leader = Candidate(ha, "a:1")
        session = leader.wait_for_confirm()
        for operations in (ha.operations, other.operations):
            with pytest.raises(AuthenticationError):
                operations.revoke(JOB)
            with pytest.raises(AuthenticationError):
                operations.expire(leader.session_id)
            assert operations.status()["leaders"] == 1
        still_serves(leader, session)
        assert operator.operations.revoke(JOB) == session
        operator.operations.expire(leader.session_id)

    @pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"])
    def test_beyond_this_machine_needs_curve(self, keys: Keys, bind: str) -> None:
        """N4: refused unless the operator insists."""
        with pytest.raises(ConfigurationError, match="is_insecure_allowed"):
            server_config(bind=bind)
        server_config(bind=bind, is_insecure_allowed=True)
        keys.server_config(bind=bind)

    def test_secrets_do_not_appear(self, keys: Keys) -> None:
        """N4: neither keys nor their files are shown by the configurations."""
        shown = repr(keys.server_config())
        shown += repr(keys.client_config("leaderserver://h:1", "contender"))
        assert keys.pair("contender").secret_key not in shown
        assert "key_secret" not in shown


def has_written(leader: Candidate, session: LeaderSession) -> bool:
    """Write; return whether it was taken, which it is once it is decided who leads."""
    try:
        leader.store.put("b", b"", session=session)
    except DidNotHappenError:
        return False
    return True
