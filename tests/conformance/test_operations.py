"""N6: what operators see and do, on every backend."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from haservices import Guarantee
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    NoLeaderError,
    UnknownContenderError,
    UnknownSessionError,
)
from tests.conformance.candidates import (
    JOB,
    Candidate,
    sessions_in_order,
    wait_for_queue,
)
from tests.conformance.harness import PATIENT
from tests.conformance.selection import requires
from tests.recording import (
    ConfirmingContender,
    Record,
    RecordingContender,
    wait_until,
)


if TYPE_CHECKING:
    from election import LeaderSession
    from tests.conformance.harness import Harness


class TestN6Operations:
    @pytest.mark.proves("N6")
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

    @pytest.mark.proves("E1", "N6")
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

    @pytest.mark.proves("N6")
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

    @pytest.mark.proves("N6")
    def test_status_has_figures(self, harness: Harness) -> None:
        """N6: what the name service counts, by name."""
        Candidate(harness.open(), "a:1").wait_for_confirm()
        figures = harness.operator.operations.status()
        assert figures
        assert all(isinstance(name, str) for name in figures)
        assert all(isinstance(value, str | int | float) for value in figures.values())

    @pytest.mark.proves("N6")
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

    @pytest.mark.proves("N6")
    def test_expiring_a_session_that_is_not_there_is_an_error(
        self, harness: Harness
    ) -> None:
        """N6, L4: an operator who mistypes is told."""
        candidate = Candidate(harness.open(), "a:1")
        candidate.ha.close()
        for session_id in (candidate.session_id, "no-such-session"):
            with pytest.raises(UnknownSessionError):
                harness.operator.operations.expire(session_id)

    @pytest.mark.proves("E1", "E2", "N6")
    def test_leadership_is_handed_to_the_contender_that_is_named(
        self, harness: Harness
    ) -> None:
        """N6, E1, E2: it leads next, whatever waits before it; none is lost."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(4)]
        first = candidates[0].wait_for_confirm()
        ended = harness.operator.operations.transfer(JOB, candidates[2].contender_id)
        assert ended == first
        second = candidates[2].wait_for_confirm()
        assert second.epoch > first.epoch
        candidates[0].contender.wait_for_revoke()
        wait_for_queue(*candidates)
        assert sessions_in_order(candidates[2].election)[0] == candidates[2].session_id
        for other in (candidates[1], candidates[3]):
            assert other.contender.calls == ()
        # Each of the others comes to lead, in the order in which they queue now.
        epoch = second.epoch
        leader = candidates[2]
        for _ in range(3):
            _, next_session_id, *_ = sessions_in_order(leader.election)
            leader.election.close()
            (leader,) = (c for c in candidates if c.session_id == next_session_id)
            confirm_count = leader.contender.revoked_count + 1
            session = leader.wait_for_confirm(confirm_count)
            assert session.epoch > epoch
            epoch = session.epoch

    @pytest.mark.proves("E4", "E7")
    def test_the_holder_stops_before_leadership_is_handed_over(
        self, harness: Harness
    ) -> None:
        """E4, E7: the revoke callback returns first; it can still write meanwhile."""
        order: Record[str] = Record()

        class Stopping(ConfirmingContender):
            def revoke_leadership(self) -> None:
                order.add("stops")
                for _ in range(3):  # time enough for a grant that does not wait
                    harness.operator.operations.contenders(JOB)
                order.add("stopped")
                super().revoke_leadership()

        class Following(ConfirmingContender):
            def grant_leadership(self, session: LeaderSession) -> None:
                order.add("granted")
                super().grant_leadership(session)

        holder = Candidate(
            harness.open(**PATIENT),
            "a:1",
            make_contender=lambda election: Stopping(election, "a:1"),
        )
        session = holder.wait_for_confirm()
        waiting = Candidate(
            harness.open(**PATIENT),
            "b:1",
            make_contender=lambda election: Following(election, "b:1"),
        )
        harness.operator.operations.transfer(JOB, waiting.contender_id)
        assert waiting.wait_for_confirm().epoch > session.epoch
        assert order.items == ("stops", "stopped", "granted")

    @pytest.mark.proves("N6")
    def test_leadership_is_handed_to_nobody_else(self, harness: Harness) -> None:
        """N6, L4: an operator who mistypes is told, and nothing has changed."""
        holder = Candidate(harness.open(), "a:1")
        session = holder.wait_for_confirm()
        other = Candidate(harness.open(), "b:1", job_id="other")
        gone = Candidate(harness.open(), "b:1")
        gone.election.close()
        transfer = harness.operator.operations.transfer
        for job_id, contender_id in (
            (JOB, other.contender_id),
            (JOB, gone.contender_id),
            (JOB, ""),
            (JOB, "x" * 65),
            (JOB, "a/\n"),
            ("nothing", holder.contender_id),
        ):
            with pytest.raises(UnknownContenderError):
                transfer(job_id, contender_id)
        with pytest.raises(ConfigurationError):
            transfer(JOB, None)  # type: ignore[arg-type]
        assert transfer(JOB, holder.contender_id) is None
        holder.wait_for_belief(session)
        assert holder.contender.revoked_count == 0

    @pytest.mark.proves("E1", "E4", "E8")
    def test_transfers_and_revocations_at_once_leave_one_leader(
        self, harness: Harness
    ) -> None:
        """E1, E4, E8: whatever order operators come in; none waits for ever."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(4)]
        candidates[0].wait_for_confirm()
        operations = harness.operator.operations

        def disturb(number: int) -> None:
            for step in range(5):
                listed = operations.contenders(JOB)
                with contextlib.suppress(DidNotHappenError, NoLeaderError):
                    if number == 0:
                        operations.revoke(JOB)
                    elif len(listed) > number:
                        operations.transfer(
                            JOB, listed[(number + step) % len(listed)].contender_id
                        )

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(disturb, range(3)))
        wait_for_queue(*candidates)
        wait_until(
            lambda: (
                sum(
                    any(
                        candidate.believes(session)
                        for session in candidate.contender.granted
                    )
                    for candidate in candidates
                )
                == 1
            )
        )
        every = sorted(
            session.epoch
            for candidate in candidates
            for session in candidate.contender.granted
        )
        assert len(every) == len(set(every))

    @pytest.mark.proves("N6")
    def test_what_operators_do_is_in_the_log(self, harness: Harness) -> None:
        """N6: each operation is a line, with what it was done to and which epoch."""
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(2)]
        session = candidates[0].wait_for_confirm()
        operations = harness.operator.operations
        with capture_logs() as logs:
            operations.transfer(JOB, candidates[1].contender_id)
            second = candidates[1].wait_for_confirm()
            wait_for_queue(*candidates)
            operations.revoke(JOB)
            third = candidates[0].wait_for_confirm(2)
            operations.expire(candidates[0].session_id)
            harness.operator.cleanup(JOB)
        lines = [line for line in logs if line["event"] == "operation.performed"]
        assert [line["operation"] for line in lines] == [
            "transfer",
            "revoke",
            "expire",
            "cleanup",
        ]
        transfer, revoke, expire, cleanup = lines
        assert transfer["contender_id"] == candidates[1].contender_id
        assert transfer["epoch"] == session.epoch
        assert revoke["epoch"] == second.epoch
        assert expire["expired_session_id"] == candidates[0].session_id
        assert list(expire["epochs"].values()) == [third.epoch]
        for line in lines:
            assert line["client"]
            assert line["log_level"] == "info"
        for line in (transfer, revoke, cleanup):
            assert line["component_id"].endswith(JOB)

    def test_component_ids_are_checked(self, harness: Harness) -> None:
        """N6, L4: operators' component ids obey the same rule as everybody's."""
        for ask in (
            harness.operator.operations.contenders,
            harness.operator.operations.revoke,
            lambda component_id: harness.operator.operations.transfer(
                component_id, "c-1"
            ),
        ):
            with pytest.raises(ConfigurationError):
                ask("a/b")

    @pytest.mark.proves("R6", "N6")
    def test_asking_creates_no_contender(self, harness: Harness) -> None:
        """N6, R6: one that only asks does not contend."""
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
