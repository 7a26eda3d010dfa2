from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing import LeaderServer, ServerConfig
from haservices.testing.control import LeadershipControl
from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    UnknownContenderError,
)
from tests.conformance.candidates import JOB, Candidate, ids_in_order
from tests.recording import (
    WAIT_SECONDS,
    Granted,
    RecordingListener,
    Revoked,
    wait_until,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., HAServices]]:
    """Opens services of an embedded name service of the test's own."""
    opened: list[HAServices] = []

    def open_services(**settings: Any) -> HAServices:
        config = HAConfig(url=f"embedded:{request.node.name}"[:200], **settings)
        opened.append(open_ha_services(config))
        return opened[-1]

    yield open_services
    for ha in opened:
        ha.close()


class TestLeadershipControl:
    def test_grant_lets_a_contender_lead_next(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """A test decides who leads: the leader is revoked, the chosen one granted."""
        ha = connect()
        candidates = [Candidate(connect(), f"c{n}:1") for n in range(3)]
        first = candidates[0].wait_for_confirm()
        LeadershipControl(ha).grant(JOB, candidates[2].contender_id)
        second = candidates[2].wait_for_confirm()
        assert second.epoch > first.epoch
        candidates[0].contender.wait_for_revoke()
        assert candidates[1].contender.calls == ()
        assert ids_in_order(candidates[0].election) == [
            candidates[index].contender_id for index in (2, 0, 1)
        ]

    def test_grant_to_the_leader_changes_nothing(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """The present leader goes on under the same epoch."""
        ha = connect()
        leader = Candidate(connect(), "a:1")
        session = leader.wait_for_confirm()
        control = LeadershipControl(ha)
        control.grant(JOB, leader.contender_id)
        leader.wait_for_belief(session)
        assert leader.contender.calls == (Granted(session),)

    def test_revoke_lets_the_leader_queue_last(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """The next one leads."""
        ha = connect()
        control = LeadershipControl(ha)
        leader, follower = (Candidate(connect(), f"c{n}:1") for n in range(2))
        leader.wait_for_confirm()
        wait_until(lambda: len(ha.operations.contenders(JOB)) == 2)
        control.revoke(JOB)
        follower.wait_for_confirm()
        leader.contender.wait_for_revoke()

    def test_what_is_not_there_is_an_error(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """A misspelt id fails the test that uses it, as ``ha.operations`` would."""
        leader = Candidate(connect(), "leader:1")
        session = leader.wait_for_confirm()
        control = LeadershipControl(leader.ha)
        with pytest.raises(NoLeaderError, match=r"'typo' has no leader$"):
            control.revoke("typo")
        with pytest.raises(UnknownContenderError):
            control.grant(JOB, "nobody")
        with pytest.raises(UnknownContenderError):
            control.grant("another-job", leader.contender_id)
        assert leader.believes(session)

    def test_expire_ends_a_session(self, connect: Callable[..., HAServices]) -> None:
        """Its contenders are revoked, and register again by themselves (E8)."""
        leader, follower = (Candidate(connect(), f"c{n}:1") for n in range(2))
        first = leader.wait_for_confirm()
        LeadershipControl(follower.ha).expire(leader.ha)
        follower.wait_for_confirm()
        leader.contender.wait_for_revoke()
        wait_until(lambda: len(follower.election.contenders()) == 2)
        follower.election.close()
        assert leader.wait_for_confirm(2).epoch > first.epoch

    def test_cut_and_heal_are_a_partition(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """Cut off, belief lapses, and the next leads after the timeout."""
        settings = {"session_timeout_seconds": 0.5, "lease_seconds": 0.1}
        leader, follower = (Candidate(connect(**settings), f"c{n}:1") for n in range(2))
        session = leader.wait_for_confirm()
        control = LeadershipControl(leader.ha)
        control.cut(leader.ha)
        follower.wait_for_confirm()
        assert not leader.believes(session)
        control.heal(leader.ha)
        wait_until(lambda: len(follower.election.contenders()) == 2)

    def test_pause_is_a_stopped_process(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """Paused, it notices nothing; belief runs out; resumed, it learns of it all."""
        settings = {"session_timeout_seconds": 0.5, "lease_seconds": 0.1}
        leader, follower = (Candidate(connect(**settings), f"c{n}:1") for n in range(2))
        session = leader.wait_for_confirm()
        listener = RecordingListener()
        leader.ha.get_leader_retriever(JOB).start(listener)
        listener.wait_for_leader(leader.is_leader)
        control = LeadershipControl(follower.ha)
        control.pause(leader.ha)
        follower.wait_for_confirm()
        assert not leader.believes(session)
        assert [type(call) for call in leader.contender.calls] == [Granted]
        control.resume(leader.ha)
        leader.contender.wait_for_revoke()
        assert leader.contender.calls == (Granted(session), Revoked())
        listener.wait_for_latest(follower.is_leader)
        wait_until(lambda: len(follower.election.contenders()) == 2)

    def test_paused_services_close_without_a_wait(
        self, connect: Callable[..., HAServices]
    ) -> None:
        """E7: closing resumes them: nothing waits for an answer that cannot come."""
        leader = Candidate(connect(connect_timeout_seconds=60.0), "leader:1")
        session = leader.wait_for_confirm()
        leader.ha.get_leader_retriever(JOB).start(RecordingListener())
        follower = Candidate(connect(), "follower:1")
        LeadershipControl(follower.ha).pause(leader.ha)
        closer = threading.Thread(target=leader.ha.close)
        closer.start()
        closer.join(WAIT_SECONDS)
        assert not closer.is_alive()
        follower.wait_for_confirm()
        assert leader.contender.calls == (Granted(session), Revoked())
        assert len(follower.election.contenders()) == 1

    def test_needs_an_embedded_name_service(self) -> None:
        """On another backend it says what to use instead."""
        with (
            LeaderServer(ServerConfig(bind="tcp://127.0.0.1:0")) as server,
            open_ha_services(server.url) as ha,
            pytest.raises(ConfigurationError, match=r"ha\.operations"),
        ):
            LeadershipControl(ha)

    def test_closed_services_cannot_be_controlled(self) -> None:
        """One that controls services that are closed is told so, and does not hang."""
        with open_ha_services("embedded:closed") as ha:
            control = LeadershipControl(ha)
        for act in (control.cut, control.heal, control.pause, control.expire):
            with pytest.raises(LocalProtocolError):
                act(ha)
        with pytest.raises(LocalProtocolError):
            control.revoke(JOB)
        with pytest.raises(LocalProtocolError):
            LeadershipControl(ha)
