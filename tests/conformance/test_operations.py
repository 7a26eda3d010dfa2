"""N6: what operators see and do, on every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from haservices import Guarantee
from nameservice import ConfigurationError, UnknownSessionError
from tests.conformance.candidates import JOB, Candidate, sessions_in_order
from tests.conformance.selection import requires
from tests.recording import RecordingContender, wait_until


if TYPE_CHECKING:
    from tests.conformance.harness import Harness


class TestN6Operations:
    def test_leaders_lists_every_component(self, harness: Harness) -> None:
        """N6: led or only contended for, sorted; others' clusters are not shown."""
        led = Candidate(harness.open(), "b:1", job_id="b")
        session = led.wait_for_confirm()
        waiting = Candidate(harness.open(), "w:1", job_id="b")
        idle = Candidate(
            harness.open(),
            "-",
            job_id="a",
            make_contender=lambda _: RecordingContender(),
        )
        idle.contender.wait_for_grant()
        elsewhere = harness.open(cluster_id=harness.cluster_id + "-other")
        Candidate(elsewhere, "e:1", job_id="c").wait_for_confirm()
        first, second = harness.operator.operations.leaders()
        assert (first.component_id, first.leader, first.contender_count) == (
            "a",
            None,
            1,
        )
        assert (second.component_id, second.contender_count) == ("b", 2)
        assert second.leader is not None
        assert second.leader.address == "b:1"
        assert second.leader.epoch == session.epoch
        assert second.epoch in (session.epoch, None)
        assert waiting.contender.calls == ()

    def test_contenders_are_listed_in_order(self, harness: Harness) -> None:
        """N6, E1: the leader first, with its address; the rest as they queue."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(3)]
        candidates[0].wait_for_confirm()
        listed = harness.operator.operations.contenders(JOB)
        assert [item.contender_id for item in listed] == [
            candidate.contender_id for candidate in candidates
        ]
        assert [item.session_id for item in listed] == [
            candidate.session_id for candidate in candidates
        ]
        assert [item.is_leader for item in listed] == [True, False, False]
        assert listed[0].address == "c0:1"
        for item in listed:
            assert item.session_age_seconds is None or item.session_age_seconds >= 0
            assert item.last_heard_seconds is None or item.last_heard_seconds >= 0
        assert list(harness.operator.operations.contenders("nobody")) == []

    def test_sessions_tell_what_they_contend_for(self, harness: Harness) -> None:
        """N6: one session, all that it contends for and leads."""
        ha = harness.open(session_timeout_seconds=7.0)
        leader = Candidate(ha, "a:1", job_id="a")
        leader.wait_for_confirm()
        other = Candidate(harness.open(), "b:1", job_id="b")
        other.wait_for_confirm()
        waiting = Candidate(ha, "b:2", job_id="b")
        assert waiting.session_id == leader.session_id
        listed = {
            item.session_id: item
            for item in harness.operator.operations.sessions()
            if item.component_ids
        }
        assert set(listed) == {leader.session_id, other.session_id}
        mine = listed[leader.session_id]
        assert list(mine.component_ids) == ["a", "b"]
        assert list(mine.leads_component_ids) == ["a"]
        assert mine.client
        assert mine.timeout_seconds in (7.0, None)
        assert list(listed[other.session_id].leads_component_ids) == ["b"]

    def test_status_has_figures(self, harness: Harness) -> None:
        """N6: what the name service counts, by name."""
        Candidate(harness.open(), "a:1").wait_for_confirm()
        figures = harness.operator.operations.status()
        assert figures
        assert all(isinstance(name, str) for name in figures)
        assert all(isinstance(value, str | int | float) for value in figures.values())

    def test_revoke_ends_a_leadership_and_its_holder_queues_last(
        self, harness: Harness
    ) -> None:
        """N6: the leadership that was ended is returned; the next is granted."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(3)]
        session = candidates[0].wait_for_confirm()
        assert harness.operator.operations.revoke(JOB) == session
        candidates[1].wait_for_confirm()
        candidates[0].contender.wait_for_revoke()
        wait_until(
            lambda: (
                sessions_in_order(candidates[1].election)
                == [candidates[index].session_id for index in (1, 2, 0)]
            )
        )
        candidates[1].election.close()
        candidates[2].wait_for_confirm()
        candidates[2].election.close()
        candidates[0].wait_for_confirm(2)

    def test_expiring_a_session_that_is_not_there_is_an_error(
        self, harness: Harness
    ) -> None:
        """N6, L4: an operator who mistypes is told."""
        candidate = Candidate(harness.open(), "a:1")
        candidate.ha.close()
        for session_id in (candidate.session_id, "no-such-session"):
            with pytest.raises(UnknownSessionError):
                harness.operator.operations.expire(session_id)

    def test_component_ids_are_checked(self, harness: Harness) -> None:
        """N6, L4: operators' component ids obey the same rule as everybody's."""
        for ask in (
            harness.operator.operations.contenders,
            harness.operator.operations.revoke,
        ):
            with pytest.raises(ConfigurationError):
                ask("a/b")

    def test_asking_creates_no_contender(self, harness: Harness) -> None:
        """N6, R6: whoever only asks does not contend."""
        operations = harness.operator.operations
        operations.contenders(JOB)
        operations.leaders()
        operations.sessions()
        operations.status()
        harness.operator.get_leader_store(JOB).list()
        assert list(operations.leaders()) == []


@requires(Guarantee.ACROSS_PROCESSES)
class TestAcrossProcesses:
    def test_services_find_each_other_without_sharing_anything(
        self, harness: Harness
    ) -> None:
        """ACROSS_PROCESSES: two services share the name service and nothing else."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        with harness.open().get_leader_retriever(JOB) as retriever:
            assert leader.is_leader(retriever.wait_for_leader(30.0))
