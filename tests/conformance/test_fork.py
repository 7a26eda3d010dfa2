"""E10: services do not survive fork(), and the parent's are not disturbed by it."""

from __future__ import annotations

import multiprocessing
import warnings
from typing import TYPE_CHECKING

import pytest

from haservices import Guarantee
from nameservice import ForkedClientError
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT
from tests.forking import CHILD_TIMEOUT_SECONDS, run_in_child
from tests.recording import Granted, RecordingContender, RecordingListener


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.harness import Harness


@pytest.mark.proves("E10")
class TestE10Fork:
    def test_child_is_told_that_it_may_not_use_them(self, harness: Harness) -> None:
        """E10: every use of inherited services raises; none hangs."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        session = leader.wait_for_confirm()
        ha, election, identity = leader.ha, leader.election, session.leader_session_id
        retriever = ha.get_leader_retriever(JOB)
        listener = RecordingListener()
        retriever.start(listener)
        listener.wait_for_leader(leader.is_leader)
        store = leader.store
        uses: dict[str, Callable[[], object]] = {
            "get_leader_retriever": lambda: ha.get_leader_retriever(JOB),
            "get_leader_election": lambda: ha.get_leader_election(JOB),
            "get_leader_store": lambda: ha.get_leader_store(JOB),
            "cleanup": lambda: ha.cleanup(JOB),
            "leaders": ha.operations.leaders,
            "sessions": ha.operations.sessions,
            "status": ha.operations.status,
            "start": lambda: election.start(RecordingContender()),
            "confirm": lambda: election.confirm_leadership(identity, "b:1"),
            "has_leadership": lambda: election.has_leadership(identity),
            "run_if_leader": lambda: election.run_if_leader(identity, lambda: 7),
            "contenders": election.contenders,
            "leader": lambda: retriever.leader,
            "wait_for_leader": retriever.wait_for_leader,
            "changes": retriever.changes,
            "get": lambda: store.get("a"),
            "list": store.list,
            "put": lambda: store.put("a", b"", session=session),
        }
        outcomes = {name: run_in_child(use) for name, use in uses.items()}
        assert outcomes == dict.fromkeys(uses, ForkedClientError.__name__)
        leader.wait_for_belief(session)
        store.put("a", b"1", session=session)
        assert leader.contender.calls == (Granted(session),)

    def test_close_in_the_child_is_silent(self, harness: Harness) -> None:
        """E10: a child that cleans up takes nothing from its parent."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        session = leader.wait_for_confirm()
        ha = harness.open(**PATIENT)
        retriever = ha.get_leader_retriever(JOB)
        retriever.start()
        retriever.wait_for_leader(30.0)

        def close_everything() -> str:
            leader.election.close()
            leader.ha.close()
            retriever.close()
            ha.close()
            return "closed"

        assert run_in_child(close_everything) == "'closed'"
        leader.wait_for_belief(session)
        leader.election.confirm_leadership(session.leader_session_id, "b:1")
        assert [item.address for item in leader.election.contenders()] == ["b:1"]
        assert leader.contender.calls == (Granted(session),)

    def test_child_that_ends_properly_disturbs_nobody(self, harness: Harness) -> None:
        """E10: its exit handlers and destructors neither hang nor send anything."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        session = leader.wait_for_confirm()
        context = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            # Since 3.12 Python warns of forking with threads: that is the point.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = context.Process(target=int)
            child.start()
        child.join(CHILD_TIMEOUT_SECONDS)
        assert child.exitcode == 0
        child.close()
        leader.wait_for_belief(session)
        leader.election.confirm_leadership(session.leader_session_id, "b:1")
        assert leader.contender.calls == (Granted(session),)

    def test_child_may_open_its_own(self, harness: Harness) -> None:
        """E10: what a child opens itself works there."""
        leader = Candidate(harness.open(**PATIENT), "a:1")
        session = leader.wait_for_confirm()
        config = harness.config()
        is_embedded = Guarantee.ACROSS_PROCESSES not in harness.guarantees
        timeout_seconds = 0.1 if is_embedded else 20.0

        def open_services() -> str:
            from haservices import open_ha_services  # noqa: PLC0415

            with (
                open_ha_services(config) as ha,
                ha.get_leader_retriever(JOB) as retriever,
            ):
                return retriever.wait_for_leader(timeout_seconds).address

        outcome = run_in_child(open_services)
        # An embedded name service is the child's own: it has no leader.
        assert outcome == ("NoLeaderError" if is_embedded else "'a:1'")
        leader.wait_for_belief(session)
