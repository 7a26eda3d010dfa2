"""A thousand contenders and retrievers in one process, as an application may have."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import pytest

from haservices import Guarantee
from tests.conformance.harness import PATIENT
from tests.conformance.selection import requires
from tests.recording import WAIT_SECONDS


if TYPE_CHECKING:
    from election import LeaderElection, LeaderSession
    from retrieval import LeaderInformation
    from tests.conformance.harness import Harness


MANY: Final = 1_000


class Crowd:
    """What a thousand contenders and listeners have heard; each is told by its job."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.leading: set[str] = set()
        self.known: set[str] = set()
        self.errors: list[Exception] = []

    def confirmed(self, job: str) -> None:
        """Take down that *job* has a leader, who has confirmed."""
        with self._changed:
            self.leading.add(job)
            self._changed.notify_all()

    def told(self, job: str, leader: LeaderInformation | None) -> None:
        """Take down who was told to lead *job*."""
        with self._changed:
            if leader is not None and leader.address == f"{job}:1":
                self.known.add(job)
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        """Take down what went wrong."""
        with self._changed:
            self.errors.append(error)

    def wait(self) -> bool:
        """Wait until all lead and all know; return whether they do."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self.leading) == MANY == len(self.known), WAIT_SECONDS
            )


class Member:
    """One contender, and one listener, of one job."""

    def __init__(self, crowd: Crowd, job: str, election: LeaderElection) -> None:
        self._crowd = crowd
        self._job = job
        self._election = election

    def grant_leadership(self, session: LeaderSession) -> None:
        """Confirm at once."""
        self._election.confirm_leadership(session.leader_session_id, f"{self._job}:1")
        self._crowd.confirmed(self._job)

    def revoke_leadership(self) -> None:
        """Do nothing: another grant follows."""

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Write it down."""
        self._crowd.told(self._job, leader)

    def handle_error(self, error: Exception) -> None:
        """Write it down."""
        self._crowd.failed(error)


# A ZooKeeper is asked for each contender in several requests, one after the other.
@requires(Guarantee.PASSES_OVER_SILENT)
@pytest.mark.timeout(180)
class TestMany:
    @pytest.mark.proves("E4", "N3")
    def test_a_thousand_in_one_process_all_know(self, harness: Harness) -> None:
        """
        N3, E4: all lead and all know, with one session and few threads.

        They all knew never, and lost their leaderships again and again, while each
        registration was a message of its own and heartbeats waited behind them.
        """
        crowd = Crowd()
        threads_before = threading.active_count()
        services = harness.open(**PATIENT, lease_seconds=1.0)
        for index in range(MANY):
            job = f"job-{index}"
            election = services.get_leader_election(job)
            member = Member(crowd, job, election)
            services.get_leader_retriever(job).start(member)
            election.start(member)
        assert crowd.wait(), (len(crowd.leading), len(crowd.known), crowd.errors[:3])
        assert threading.active_count() - threads_before < MANY // 2
        services.close()
