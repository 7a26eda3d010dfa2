"""E2, E9, L3: what a restart or a pause of the name service costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from election import VersionedValue
from haservices import Guarantee
from nameservice import DidNotHappenError
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT, QUICK
from tests.conformance.selection import requires
from tests.recording import Granted, RecordingListener, wait_until


if TYPE_CHECKING:
    from election import LeaderSession
    from tests.conformance.harness import Harness


@requires(Guarantee.SURVIVES_SERVER_RESTART)
class TestRestart:
    @pytest.mark.proves("E2")
    def test_epochs_rise_across_a_restart(self, harness: Harness) -> None:
        """E2: what is granted after a restart is above all that was before."""
        before = []
        for n in range(3):
            candidate = Candidate(harness.open(), f"c{n}:1")
            before.append(candidate.wait_for_confirm().epoch)
            candidate.ha.close()
        harness.backend.restart()
        after = Candidate(harness.open(), "after:1").wait_for_confirm()
        assert after.epoch > max(before)

    @pytest.mark.proves("L3")
    def test_what_is_stored_survives(self, harness: Harness) -> None:
        """L3: the leader store is there again, with its versions."""
        candidate = Candidate(harness.open(), "a:1")
        session = candidate.wait_for_confirm()
        candidate.store.put("a", b"1", session=session)
        candidate.store.put("a", b"2", session=session)
        candidate.ha.close()
        harness.backend.restart()
        store = harness.open().get_leader_store(JOB)
        assert store.list() == ["a"]
        assert store.get("a") == VersionedValue(value=b"2", version=2)

    @pytest.mark.proves("E9")
    def test_incumbent_keeps_its_leadership(self, harness: Harness) -> None:
        """E9: the holder's claim is reinstated: same id, same epoch, none is told."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        session = leader.wait_for_confirm()
        first = Candidate(harness.open(**PATIENT), "b:1")
        second = Candidate(harness.open(**PATIENT), "c:1")
        listener = RecordingListener()
        watching = harness.open(**PATIENT).get_leader_retriever(JOB)
        watching.start(listener)
        found = listener.wait_for_leader(leader.is_leader)
        harness.backend.restart()
        wait_until(lambda: len(harness.operator.operations.contenders(JOB)) == 3)
        wait_until(lambda: has_written(leader, session))
        leader.wait_for_belief(session)
        with harness.open().get_leader_retriever(JOB) as late:
            assert late.wait_for_leader(30.0) == found
        assert leader.contender.calls == (Granted(session),)
        assert listener.leaders == (found,)
        leader.election.close()
        third = first.wait_for_confirm()
        assert third.epoch > session.epoch
        listener.wait_for_latest(first.is_leader)
        assert second.contender.calls == ()
        first.election.close()
        second.wait_for_confirm()

    @pytest.mark.proves("R3")
    def test_nobody_goes_back_across_a_restart(self, harness: Harness) -> None:
        """R3: a retriever that was there before is told only of newer leaders."""
        listener = RecordingListener()
        watching = harness.open(**PATIENT).get_leader_retriever(JOB)
        watching.start(listener)
        for n in range(3):
            candidate = Candidate(harness.open(**PATIENT), f"c{n}:1")
            candidate.wait_for_confirm()
            listener.wait_for_latest(candidate.is_leader)
            candidate.election.close()
            harness.backend.restart()
        last = Candidate(harness.open(**PATIENT), "last:1")
        last.wait_for_confirm()
        listener.wait_for_latest(last.is_leader)
        epochs = [leader.epoch for leader in listener.leaders if leader is not None]
        assert epochs == sorted(epochs)


def has_written(leader: Candidate, session: LeaderSession) -> bool:
    """Write; return whether it was taken, which it is once it is decided who leads."""
    try:
        leader.store.put("a", b"", session=session)
    except DidNotHappenError:  # L2, E9: undecided; retrying is safe
        return False
    return True


@requires(Guarantee.SURVIVES_SERVER_PAUSE, Guarantee.ACROSS_PROCESSES)
class TestPause:
    @pytest.mark.proves("E9")
    def test_pause_of_the_name_service_costs_nobody_a_leadership(
        self, harness: Harness
    ) -> None:
        """E9: however long it stands still, every incumbent leads as before."""
        leaders = [
            Candidate(harness.open(**QUICK), f"l{n}:1", job_id=f"job-{n}")
            for n in range(3)
        ]
        sessions = [leader.wait_for_confirm() for leader in leaders]
        followers = [
            Candidate(harness.open(**QUICK), f"f{n}:1", job_id=f"job-{n}")
            for n in range(3)
        ]
        harness.backend.pause()
        time.sleep(2.0)  # noqa: TID251 (two session timeouts in fact: what is tested)
        harness.backend.resume()
        for leader, session in zip(leaders, sessions, strict=True):
            wait_until(
                lambda leader=leader: len(leader.election.contenders()) == 2  # type: ignore[misc]
            )
            leader.wait_for_belief(session)
            granted = set(leader.contender.granted)
            assert granted == {session}
        for follower in followers:
            assert follower.contender.calls == ()
