"""R1 to R6: what is found, and in which order it is told."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from nameservice import LocalProtocolError, NoLeaderError
from tests.conformance.candidates import JOB, Candidate, wait_for_queue
from tests.conformance.harness import SUSPENDING
from tests.recording import (
    WAIT_SECONDS,
    Notified,
    RecordingContender,
    RecordingListener,
    wait_until,
)


if TYPE_CHECKING:
    from haservices import HAServices
    from retrieval import LeaderInformation, LeaderRetriever
    from tests.conformance.harness import Harness


def listening(ha: HAServices) -> tuple[LeaderRetriever, RecordingListener]:
    """Return a new retriever, started, and its listener."""
    listener = RecordingListener()
    retriever = ha.get_leader_retriever(JOB)
    retriever.start(listener)
    return retriever, listener


def assert_never_back(listener: RecordingListener) -> None:
    """R3: no epoch that it was told of is below an earlier one."""
    epochs = [leader.epoch for leader in listener.leaders if leader is not None]
    assert epochs == sorted(epochs)


@pytest.mark.proves("R1")
class TestR1First:
    def test_late_retriever_is_told_at_once(self, harness: Harness) -> None:
        """R1: there is a confirmed leader, so it is the first thing it hears."""
        leader = Candidate(harness.open(), "a:1")
        session = leader.wait_for_confirm()
        for ha in (leader.ha, harness.open()):
            _, listener = listening(ha)
            found = listener.wait_for_leader(lambda _: True)
            assert found is not None
            assert found.address == "a:1"
            assert found.leader_session_id == session.leader_session_id
            assert found.epoch == session.epoch

    def test_second_retriever_of_the_same_service_is_told_too(
        self, harness: Harness
    ) -> None:
        """R1: what the service knows already, a new retriever hears just the same."""
        ha = harness.open()
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        _, first = listening(ha)
        first.wait_for_leader(leader.is_leader)
        _, second = listening(ha)
        second.wait_for_leader(leader.is_leader)
        assert first.leaders == second.leaders

    def test_nothing_is_told_while_there_is_no_leader(self, harness: Harness) -> None:
        """R1: not told of any leader yet, it is not told that there is none."""
        before = Candidate(harness.open(), "before:1")
        before.wait_for_confirm()
        before.election.close()
        _, listener = listening(harness.open())
        Candidate(harness.open(), "-", make_contender=lambda _: RecordingContender())
        idle = Candidate(harness.open(), "idle:1")
        harness.operator.operations.revoke(JOB)
        idle.wait_for_confirm()
        found = listener.wait_for_leader(lambda _: True)
        assert idle.is_leader(found)
        assert listener.calls == (Notified(found),)

    def test_asking_takes_no_listener(self, harness: Harness) -> None:
        """R1: the property, the wait, the iterator and asyncio say the same."""
        leader = Candidate(harness.open(), "a:1")
        session = leader.wait_for_confirm()
        with harness.open().get_leader_retriever(JOB) as retriever:
            found = retriever.wait_for_leader(WAIT_SECONDS)
            assert found.epoch == session.epoch
            assert retriever.leader == found
            assert next(retriever.changes()) == found
            assert asyncio.run(retriever.wait_for_leader_async(WAIT_SECONDS)) == found


@pytest.mark.proves("R2")
class TestR2Changes:
    def test_none_is_told_between_leaders(self, harness: Harness) -> None:
        """R2: leader, none, leader: `notify_leader(None)` while there is none."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        _, listener = listening(harness.open())
        first = listener.wait_for_leader(leader.is_leader)
        leader.election.close()
        listener.wait_for_latest(lambda found: found is None)
        successor = Candidate(harness.open(), "b:1")
        successor.wait_for_confirm()
        second = listener.wait_for_leader(successor.is_leader)
        assert listener.calls == (Notified(first), Notified(None), Notified(second))

    def test_end_of_the_only_leaders_session_is_told(self, harness: Harness) -> None:
        """R2: kill the only leader, and every retriever is told None."""
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        listeners = [listening(harness.open())[1] for _ in range(3)]
        for listener in listeners:
            listener.wait_for_leader(leader.is_leader)
        leader.ha.close()
        for listener in listeners:
            listener.wait_for_latest(lambda found: found is None)

    def test_only_what_differs_is_told(self, harness: Harness) -> None:
        """R2: confirmed again under the same address, there is nothing to tell."""
        leader = Candidate(harness.open(), "a:1")
        session = leader.wait_for_confirm()
        _, listener = listening(harness.open())
        listener.wait_for_leader(leader.is_leader)
        leader.election.confirm_leadership(session.leader_session_id, "a:1")
        leader.election.confirm_leadership(session.leader_session_id, "b:1")
        listener.wait_for_latest(
            lambda found: found is not None and found.address == "b:1"
        )
        assert [found and found.address for found in listener.leaders] == ["a:1", "b:1"]

    def test_slow_listener_gets_the_latest_and_delays_nobody(
        self, harness: Harness
    ) -> None:
        """R2: in between values may be dropped, the latest always arrives."""
        is_held, let_go = threading.Event(), threading.Event()

        class Slow(RecordingListener):
            def notify_leader(self, leader: LeaderInformation | None) -> None:
                super().notify_leader(leader)
                if not is_held.is_set():
                    is_held.set()
                    assert let_go.wait(WAIT_SECONDS)

        ha = harness.open()
        leader = Candidate(harness.open(), "a1:1")
        session = leader.wait_for_confirm()
        slow = Slow()
        ha.get_leader_retriever(JOB).start(slow)
        _, quick = listening(ha)
        assert is_held.wait(WAIT_SECONDS)
        quick.wait_for_leader(leader.is_leader)
        for n in range(2, 12):
            address = f"a{n}:1"
            leader.election.confirm_leadership(session.leader_session_id, address)
            quick.wait_for_latest(
                lambda found, address=address: (  # type: ignore[misc]
                    found is not None and found.address == address
                )
            )
        assert len(slow.calls) == 1
        let_go.set()
        slow.wait_for_latest(
            lambda found: found is not None and found.address == "a11:1"
        )
        assert len(slow.calls) == 2
        assert len(quick.leaders) == 11


@pytest.mark.proves("R3")
class TestR3Order:
    def test_nobody_goes_back_under_churn(self, harness: Harness) -> None:
        """R3: a listener never sees an older epoch after a newer one."""
        listeners = [listening(harness.open())[1] for _ in range(3)]
        candidates = [Candidate(harness.open(), f"c{n}:1") for n in range(3)]
        last = None
        for count in range(15):
            turn, index = divmod(count, 3)
            last = candidates[index].wait_for_confirm(turn + 1)
            if count < 14:
                wait_for_queue(*candidates)
                harness.operator.operations.revoke(JOB)
        assert last is not None
        for listener in listeners:
            listener.wait_for_latest(
                lambda found: found is not None and found.epoch == last.epoch
            )
            assert_never_back(listener)

    def test_nobody_goes_back_over_a_reconnection(self, harness: Harness) -> None:
        """R3: what a retriever missed while cut off does not come back as news."""
        ha = harness.open(cuttable=True, **SUSPENDING)
        _, listener = listening(ha)
        first = Candidate(harness.open(), "a:1")
        first.wait_for_confirm()
        listener.wait_for_leader(first.is_leader)
        harness.cut(ha)
        second = Candidate(harness.open(), "b:1")
        first.election.close()
        second.wait_for_confirm()
        third = Candidate(harness.open(), "c:1")
        second.election.close()
        third.wait_for_confirm()
        harness.heal(ha)
        listener.wait_for_latest(third.is_leader)
        assert_never_back(listener)

    def test_all_agree_in_the_end(self, harness: Harness) -> None:
        """R3: retrievers that began at different times hold the same leader."""
        retrievers = []
        session = None
        for n in range(4):
            retrievers.append(listening(harness.open())[0])
            candidate = Candidate(harness.open(), f"c{n}:1")
            session = candidate.wait_for_confirm()
            if n < 3:
                candidate.election.close()
        assert session is not None
        for retriever in retrievers:
            wait_until(
                lambda retriever=retriever: (  # type: ignore[misc]
                    retriever.leader is not None
                    and retriever.leader.epoch == session.epoch
                )
            )


@pytest.mark.proves("R5")
class TestR5Close:
    def test_nothing_is_delivered_after_close(self, harness: Harness) -> None:
        """R5: closed, it hears no more; others of its service go on."""
        ha = harness.open()
        leader = Candidate(harness.open(), "a:1")
        leader.wait_for_confirm()
        retriever, closed = listening(ha)
        _, other = listening(ha)
        closed.wait_for_leader(leader.is_leader)
        other.wait_for_leader(leader.is_leader)
        retriever.close()
        retriever.close()
        leader.election.close()
        other.wait_for_latest(lambda found: found is None)
        assert len(closed.calls) == 1
        with pytest.raises(LocalProtocolError):
            retriever.start()

    def test_closing_the_services_closes_their_retrievers(
        self, harness: Harness
    ) -> None:
        """R5: one that waits on it is told."""
        ha = harness.open()
        retriever, _ = listening(ha)
        ha.close()
        with pytest.raises(LocalProtocolError):
            retriever.wait_for_leader(0)

    def test_unknown_component_is_no_error(self, harness: Harness) -> None:
        """R5: there never was a contender: there is no leader, and nothing is told."""
        listener = RecordingListener()
        with harness.open().get_leader_retriever("never-heard-of") as retriever:
            assert retriever.leader is None
            with pytest.raises(NoLeaderError):
                retriever.wait_for_leader(0.05)
        other = harness.open().get_leader_retriever("never-heard-of")
        other.start(listener)
        other.close()
        assert listener.calls == ()


class TestR6Harmless:
    @pytest.mark.proves("R6")
    def test_retriever_creates_no_contender(self, harness: Harness) -> None:
        """R6: however many look for a leader, none contends and nothing is listed."""
        ha = harness.open()
        for _ in range(3):
            listening(ha)
        with ha.get_leader_retriever(JOB) as retriever:
            with pytest.raises(NoLeaderError):
                retriever.wait_for_leader(0.05)
            assert list(ha.get_leader_election(JOB).contenders()) == []
            assert list(harness.operator.operations.leaders()) == []
