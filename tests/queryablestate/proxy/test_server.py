"""A proxy as programs use it: its life, its questions, its end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, final

import pytest
from attrs import evolve
from structlog.testing import capture_logs

from election import LeaderStore
from haservices import HAConfig, HAServices, open_ha_services
from nameservice import (
    QUERY_PROXY,
    ConfigurationError,
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NoLeaderError,
)
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.server import QueryStateProxyServer
from queryablestate.wire.clients import JobsListed, ListJobs
from queryablestate.writer.connections import close_writer_connections
from tests.exhausted_threads import no_more_threads
from tests.forking import run_in_child
from tests.leaks import Figures, assert_closed, process_figures, settled
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.queryablestate.proxy_stage import JOB, STATE, ProxyStage
from tests.queryablestate.stored_control import FakeStore, leader_session
from tests.recording import WAIT_SECONDS, wait_until


if TYPE_CHECKING:
    from uuid import UUID

    from election import LeaderContender, LeaderSession


pytestmark = pytest.mark.shells

QUICK: Final = HAConfig(
    url="embedded:", confirm_timeout_seconds=0.3, session_timeout_seconds=2.0
)
_numbers = itertools.count(1)


@pytest.fixture
def ha() -> Iterator[HAServices]:
    """A name service of the test's own."""
    with open_ha_services(f"embedded:proxy-server-{next(_numbers)}") as ha:
        yield ha


class TestLife:
    def test_it_leads_answers_and_ends(self, ha: HAServices) -> None:
        """Within a block; afterwards it is not found, and is not there."""
        retriever = ha.get_leader_retriever(QUERY_PROXY)
        with retriever:
            with QueryStateProxyServer(ha) as proxy:
                proxy.wait_until_leader(WAIT_SECONDS)
                assert proxy.is_leader
                leader = retriever.wait_for_leader(WAIT_SECONDS)
                assert leader.address == proxy.address
                with ScriptedPeer(proxy.address) as peer:
                    assert peer.hello().leader_epoch == leader.epoch
                    assert isinstance(peer.ask(ListJobs), JobsListed)
            assert not proxy.is_leader
            wait_until(lambda: retriever.leader is None)
        assert proxy.failure is None
        assert proxy.join(0.0)

    def test_it_is_started_once(self, ha: HAServices) -> None:
        """Neither twice, nor after it was closed."""
        proxy = QueryStateProxyServer(ha)
        proxy.start()
        with pytest.raises(LocalProtocolError):
            proxy.start()
        assert not proxy.join(0.01)
        for _ in range(3):
            proxy.close()
        with pytest.raises(LocalProtocolError):
            proxy.start()
        never = QueryStateProxyServer(ha)
        never.close()
        with pytest.raises(LocalProtocolError):
            never.start()

    def test_what_is_not_started_says_so(self, ha: HAServices) -> None:
        """Whatever it is asked."""
        proxy = QueryStateProxyServer(ha)
        asked: list[Callable[[], object]] = [
            lambda: proxy.address,
            proxy.status,
            proxy.wait_until_leader,
            proxy.join,
            lambda: proxy.reconfigure(ProxyConfig()),
        ]
        for ask in asked:
            with pytest.raises(LocalProtocolError):
                ask()
        assert not proxy.is_leader
        assert proxy.failure is None
        assert proxy.config == ProxyConfig()

    def test_one_that_has_got_no_thread_leaves_nothing(self, ha: HAServices) -> None:
        """A process may have no more threads; another one may lead."""
        with QueryStateProxyServer(ha):
            pass
        before = settled(process_figures)
        with no_more_threads("query-proxy"):
            proxy = QueryStateProxyServer(ha)
            with pytest.raises(RuntimeError, match="new thread"):
                proxy.start()
            proxy.close()
        assert_closed(before)

    def test_one_that_cannot_listen_leaves_nothing(self, ha: HAServices) -> None:
        """Neither threads nor a contender that cannot be reached."""
        with QueryStateProxyServer(ha) as proxy:
            proxy.wait_until_leader(WAIT_SECONDS)
            before = set(threading.enumerate())
            for _ in range(3):
                other = QueryStateProxyServer(ha, ProxyConfig(bind=proxy.address))
                with pytest.raises(ConfigurationError, match="in use"):
                    other.start()
                other.close()
            assert set(threading.enumerate()) <= before
            contenders = ha.operations.contenders(QUERY_PROXY)
            assert [contender.is_leader for contender in contenders] == [True]

    def test_a_standby_waits(self, ha: HAServices) -> None:
        """It is there, and does not lead as long as another does."""
        with QueryStateProxyServer(ha) as first, QueryStateProxyServer(ha) as standby:
            first.wait_until_leader(WAIT_SECONDS)
            with pytest.raises(NoLeaderError):
                standby.wait_until_leader(0.05)
            assert standby.status()["leads"] == 0
            first.close()
            standby.wait_until_leader(WAIT_SECONDS)
            assert standby.status()["leads"] == 1

    def test_who_waits_for_one_that_is_closed_is_told(self, ha: HAServices) -> None:
        """
        A standby is closed while a thread waits until it leads.

        That thread waited for ever.
        """
        told: list[Exception] = []
        with QueryStateProxyServer(ha) as first, QueryStateProxyServer(ha) as standby:
            first.wait_until_leader(WAIT_SECONDS)

            def wait() -> None:
                try:
                    standby.wait_until_leader()
                except LocalProtocolError as error:
                    told.append(error)

            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            standby.close()
            thread.join(WAIT_SECONDS)
            assert len(told) == 1
            assert not standby.is_leader

    def test_a_child_process_has_none(self, ha: HAServices) -> None:
        """E10: it is the parent's, whom it does not disturb."""
        with QueryStateProxyServer(ha) as proxy:
            proxy.wait_until_leader(WAIT_SECONDS)
            assert run_in_child(proxy.status) == "ForkedClientError"
            assert run_in_child(lambda: proxy.address) == "ForkedClientError"
            assert run_in_child(proxy.close) == "None"
            assert run_in_child(QueryStateProxyServer(ha).start) == "ForkedClientError"
            assert proxy.status()["leads"] == 1
            with ScriptedPeer(proxy.address) as peer:
                peer.hello()


class TestQuestions:
    def test_figures(self, tmp_path: Path) -> None:
        """What is there, what waits, what came to nothing."""
        with ProxyStage(tmp_path, node_count=2) as stage:
            stage.publisher().write({STATE: [("a", 1)]})
            with ScriptedPeer(stage.proxy.address) as peer:
                peer.hello()
                peer.send_frames(b"rubbish")
                peer.receive_frames()
                figures = stage.proxy.status()
            assert figures["leads"] == 1
            assert (figures["nodes"], figures["nodes_present"]) == (2, 2)
            assert (figures["jobs"], figures["states"]) == (1, 1)
            assert int(figures["sessions"]) >= 2
            assert int(figures["connections"]) >= 3
            assert figures["frames_wrong_magic_total"] == 1
            assert figures["questions_pending"] == figures["changes_waiting"] == 0
            assert figures["failures_total"] == 0

    def test_a_running_proxy_takes_another_configuration(self, ha: HAServices) -> None:
        """C4: and says what only a restart can change; then nothing has changed."""
        with QueryStateProxyServer(ha) as proxy:
            proxy.reconfigure(ProxyConfig(keys_per_request_max=3))
            proxy.wait_until_leader(WAIT_SECONDS)
            with ScriptedPeer(proxy.address) as peer:
                assert peer.hello().keys_per_request_max == 3
                with pytest.raises(ConfigurationError, match="frame_size_bytes_max"):
                    proxy.reconfigure(
                        ProxyConfig(
                            keys_per_request_max=4, frame_size_bytes_max=100_000
                        )
                    )
                assert peer.hello().keys_per_request_max == 3
            assert proxy.config == ProxyConfig(keys_per_request_max=3)


class TestFailure:
    def test_a_proxy_whose_thread_is_over_lets_another_lead(
        self, ha: HAServices
    ) -> None:
        """Q4: one that cannot answer must not be the one that is found."""
        with (
            QueryStateProxyServer(ha) as proxy,
            QueryStateProxyServer(ha) as standby,
            capture_logs() as logs,
        ):
            proxy.wait_until_leader(WAIT_SECONDS)
            running = proxy._running
            assert running is not None
            # A socket that is closed under the loop is more than a loop can bear.
            running.loop.call_soon_threadsafe(running.port._port.socket.close)
            standby.wait_until_leader(WAIT_SECONDS)
            assert proxy.join(WAIT_SECONDS)
            assert isinstance(proxy.failure, LocalProtocolError)
            wait_until(lambda: not proxy.is_leader)
            with pytest.raises(LocalProtocolError):
                proxy.status()
        assert "proxy.failed" in [line["event"] for line in logs]


@final
class ScriptedElection:
    """
    An election whose name service answers as the test says.

    Args:
        outcomes: What comes of each attempt to confirm; then it succeeds.
    """

    def __init__(self, *outcomes: Exception) -> None:
        self.outcomes = list(outcomes)
        self.confirmed: list[str] = []
        self.contender: LeaderContender | None = None
        self.is_closed = False

    def start(self, contender: LeaderContender) -> None:
        """Take note of the contender."""
        self.contender = contender

    def confirm_leadership(self, leader_session_id: UUID, address: str) -> None:
        """Have the next outcome happen."""
        if self.outcomes:
            raise self.outcomes.pop(0)
        self.confirmed.append(address)

    def has_leadership(self, leader_session_id: UUID) -> bool:
        """Believe."""
        return True

    def close(self) -> None:
        """Revoke, as an election does."""
        if not self.is_closed and self.contender is not None:
            self.contender.revoke_leadership()
        self.is_closed = True


@final
class ScriptedServices:
    """A name service with one election and one store."""

    def __init__(
        self, ha: HAServices, election: ScriptedElection, store: FakeStore
    ) -> None:
        self.config = ha.config
        self.guarantees = ha.guarantees
        self._election = election
        self._store = store

    def get_leader_election(self, job_id: str) -> ScriptedElection:
        """Return the election."""
        return self._election

    def get_leader_store(self, job_id: str) -> LeaderStore:
        """Return the store."""
        return self._store.store


def granted(
    ha: HAServices,
    election: ScriptedElection,
    store: FakeStore | None = None,
    session: LeaderSession | None = None,
) -> QueryStateProxyServer:
    """Return a proxy that was granted a leadership, whatever it made of it."""
    services = ScriptedServices(ha, election, store or FakeStore())
    proxy = QueryStateProxyServer(cast("HAServices", services))
    proxy.start()
    assert election.contender is not None
    election.contender.grant_leadership(session or leader_session())
    return proxy


class TestConfirming:
    @pytest.mark.parametrize(
        "errors",
        [
            (),
            (MayHaveHappenedError("no answer"),),
            (DidNotHappenError("undecided"), MayHaveHappenedError("no answer")),
        ],
    )
    def test_what_was_not_answered_is_asked_again(
        self, ha: HAServices, errors: tuple[Exception, ...]
    ) -> None:
        """E3: confirming is safe to repeat, and no other will."""
        election = ScriptedElection(*errors)
        proxy = granted(ha, election)
        assert election.confirmed == [proxy.address]
        assert proxy.is_leader
        proxy.close()
        assert not proxy.is_leader

    def test_a_leadership_that_is_lost_is_not_confirmed(self, ha: HAServices) -> None:
        """It leads no more than before."""
        election = ScriptedElection(LeadershipLostError(QUERY_PROXY, 1))
        proxy = granted(ha, election)
        assert not proxy.is_leader
        assert election.confirmed == []
        proxy.close()

    def test_a_store_that_is_slow_costs_no_leadership(self, ha: HAServices) -> None:
        """E3: it confirms in time, and answers ``not-leader`` until it has read."""
        may_read = threading.Event()

        def wait(path: str) -> None:
            assert may_read.wait(WAIT_SECONDS)

        store = FakeStore()
        store.before_get = wait
        election = ScriptedElection()
        with open_ha_services(QUICK) as quick:
            proxy = granted(quick, election, store)
            assert proxy.is_leader
            assert proxy.status()["leads"] == 0
            may_read.set()
            wait_until(lambda: proxy.status()["leads"] == 1)
            proxy.close()

    def test_a_store_that_cannot_be_read_costs_it(self, ha: HAServices) -> None:
        """E3: unconfirmed, it is passed over; another may be able to."""
        store = FakeStore({"counters": b"rubbish"})
        election = ScriptedElection()
        # A third of it is how long the first try may take before it confirms meanwhile.
        config = evolve(QUICK, confirm_timeout_seconds=3.0)
        with open_ha_services(config) as patient, capture_logs() as logs:
            proxy = granted(patient, election, store)
            assert not proxy.is_leader
            assert election.confirmed == []
            proxy.close()
        assert "leadership.declined" in [line["event"] for line in logs]


class TestLeaks:
    def test_many_that_come_and_go_leave_nothing(self, tmp_path: Path) -> None:
        """Neither threads nor descriptors, whatever they were doing."""
        counts: list[Figures] = []
        for number in range(4):
            with ProxyStage(tmp_path / str(number)) as stage:
                stage.publisher().write({STATE: [("a", 1)]})
                with ScriptedPeer(stage.proxy.address) as peer:
                    peer.hello()
                    peer.get(peer.describe(JOB, STATE))
            close_writer_connections()  # they are kept for the next batch
            closed_count = threading.active_count()  # at once: closing waits
            counts.append({"at once": closed_count, **settled(process_figures)})
        assert counts[1:] == counts[:1] * 3
