"""E8: an ensemble that was set up anew refuses in silence all who knew the old one."""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import ZooKeeperServer
from haservices.zookeeper import session as zookeeper_session
from haservices.zookeeper.probe import ZooKeeperProbe
from nameservice import ConfigurationError, RemoteProtocolError, SystemClock
from tests.exhausted_threads import no_more_threads
from tests.lodestar.running import WAIT_SECONDS, Running
from tests.recording import ConfirmingContender, RecordingListener


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nameservice import Clock


pytestmark = pytest.mark.shells

JOB = "flights"
TIMEOUTS: dict[str, Any] = {
    "session_timeout_seconds": 2.0,
    "connect_timeout_seconds": 5.0,
}


def begin_anew(server: ZooKeeperServer) -> None:
    """Kill *server*, and start it without what it had stored."""
    server.kill()
    for data in server.directory.rglob("version-2"):
        shutil.rmtree(data)
    server.start()


@pytest.mark.proves("E8")
class TestLostData:
    def test_everybody_is_told(self, tmp_path: Path) -> None:
        """E8, L4: contenders, listeners and callers; new services find the new one."""
        with contextlib.ExitStack() as resources:
            server = resources.enter_context(ZooKeeperServer(tmp_path))
            config = HAConfig(url=server.url, **TIMEOUTS)
            ha: HAServices = resources.enter_context(open_ha_services(config))
            election = ha.get_leader_election(JOB)
            contender = ConfirmingContender(election, "a:1")
            election.start(contender)
            session = contender.wait_for_confirm()
            listener = RecordingListener()
            ha.get_leader_retriever(JOB).start(listener)
            listener.wait_for_leader(lambda leader: leader is not None)

            begin_anew(server)
            error = contender.wait_for_error()
            assert isinstance(error, RemoteProtocolError)
            assert error.reason == "data-lost"
            assert not election.has_leadership(session.leader_session_id)
            assert contender.revoked_count == 1
            listener.record.wait_until(lambda _: bool(listener.errors))
            assert listener.leaders[-1] is None
            with pytest.raises(RemoteProtocolError, match="lost its data"):
                ha.get_leader_store(JOB).get("a")
            later = ha.get_leader_election(JOB)
            late = ConfirmingContender(later, "b:1")
            later.start(late)
            assert isinstance(late.wait_for_error(), RemoteProtocolError)
            for job in (JOB, "another that nobody has asked for"):
                late_listener = RecordingListener()
                ha.get_leader_retriever(job).start(late_listener)
                late_listener.record.wait_for_count(1)
                assert isinstance(late_listener.errors[0], RemoteProtocolError)

            fresh = resources.enter_context(open_ha_services(config))
            again = fresh.get_leader_election(JOB)
            successor = ConfirmingContender(again, "c:1")
            again.start(successor)
            successor.wait_for_confirm()

    @pytest.mark.nightly
    def test_it_is_looked_for_again_where_that_failed_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """E8: as while a file of credentials is replaced; silence would be for ever."""
        failed: list[None] = []

        def probe(*arguments: Any, **options: Any) -> ZooKeeperProbe:
            if not failed:
                failed.append(None)
                raise ConfigurationError("cannot read zookeeper_auth_file just now")
            return ZooKeeperProbe(*arguments, **options)

        monkeypatch.setattr(zookeeper_session, "ZooKeeperProbe", probe)
        with ZooKeeperServer(tmp_path) as server:
            config = HAConfig(url=server.url, **TIMEOUTS)
            with open_ha_services(config) as ha:
                election = ha.get_leader_election(JOB)
                contender = ConfirmingContender(election, "a:1")
                election.start(contender)
                contender.wait_for_confirm()
                begin_anew(server)
                error = contender.wait_for_error()
        assert failed
        assert isinstance(error, RemoteProtocolError)
        assert error.reason == "data-lost"

    @pytest.mark.nightly
    def test_a_late_answer_tells_nothing_of_what_came_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        E8: an ensemble that is back, and away again, has lost nothing.

        The answer of who asks for the newest transaction may take seconds to be told:
        it takes its leave of an ensemble that is away again.  We had been back in
        between, and seen later transactions than it names.  So we took the ensemble for
        one without data, and gave up for good.
        """
        asking = threading.Event()
        is_held = threading.Event()
        answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        def probe(
            config: HAConfig, clock: Clock, *, tell: Callable[[int], None]
        ) -> ZooKeeperProbe:
            def hold(zxid: int) -> None:
                answers.put(lambda: tell(zxid))
                is_held.set()

            # The first may give up before the ensemble is back.
            told = tell if is_held.is_set() else hold
            probe = ZooKeeperProbe(config, clock, tell=told)
            asking.set()
            return probe

        monkeypatch.setattr(zookeeper_session, "ZooKeeperProbe", probe)
        with contextlib.ExitStack() as resources:
            server = resources.enter_context(ZooKeeperServer(tmp_path))
            config = HAConfig(url=server.url, on_suspended="clear", **TIMEOUTS)
            ha = resources.enter_context(open_ha_services(config))
            election = ha.get_leader_election(JOB)
            contender = ConfirmingContender(election, "a:1")
            election.start(contender)
            contender.wait_for_confirm()
            server.kill()
            assert asking.wait(WAIT_SECONDS)
            server.start()
            tell = answers.get(timeout=WAIT_SECONDS)
            session = contender.wait_for_confirm(2)
            ha.get_leader_store(JOB).put("later", b"than the answer", session=session)
            server.kill()
            contender.wait_for_revoke(2)
            tell()
            server.start()
            contender.wait_for_confirm(3)
            assert contender.errors == ()

    def test_a_probe_that_cannot_have_all_its_threads_leaves_none(
        self, tmp_path: Path
    ) -> None:
        """E8: each attempt left a thread and a connection until the process ended."""
        with ZooKeeperServer(tmp_path) as server:
            config = HAConfig(url=server.url, **TIMEOUTS)
            before = set(threading.enumerate())
            with (
                no_more_threads("zookeeper-probe-end"),
                pytest.raises(RuntimeError, match="new thread"),
            ):
                ZooKeeperProbe(config, SystemClock(), tell=print)
            assert set(threading.enumerate()) <= before

    def test_elect_ends(self, tmp_path: Path) -> None:
        """E8, N7: so that its supervisor starts it again, among the others."""
        with ZooKeeperServer(tmp_path) as server:
            at = ("--url", server.url, "--session-timeout-seconds", "2")
            with Running(
                *("elect", JOB, "a:1", "--repeat", *at),
                *("--", "sh", "-c", "echo leading; exec sleep 600"),
            ) as elected:
                elected.out.until("leading")
                begin_anew(server)
                result = elected.result()
                assert result.exit_code == 1
                assert "lost its data" in result.err

    def test_a_restart_is_no_loss(self, tmp_path: Path) -> None:
        """E8: away for longer than the session, it is only waited for."""
        with contextlib.ExitStack() as resources:
            server = resources.enter_context(ZooKeeperServer(tmp_path))
            config = HAConfig(url=server.url, **TIMEOUTS)
            ha = resources.enter_context(open_ha_services(config))
            election = ha.get_leader_election(JOB)
            contender = ConfirmingContender(election, "a:1")
            election.start(contender)
            session = contender.wait_for_confirm()
            server.kill()
            contender.wait_for_revoke()
            server.start()
            again = contender.wait_for_confirm(2)
            assert again.epoch >= session.epoch
            assert contender.errors == ()
