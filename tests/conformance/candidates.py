"""Contenders with a service of their own, as the conformance suite uses them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, final

from nameservice import UnreachableError
from tests.recording import ConfirmingContender, RecordingContender, wait_until


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import (
        ContenderInformation,
        LeaderElection,
        LeaderSession,
        LeaderStore,
    )
    from haservices import HAServices
    from retrieval import LeaderInformation


JOB = "flights"


@final
class Candidate:
    """
    A contender for one job, registered when the constructor returns.

    Args:
        ha: Its service.
        address: What it confirms.
        job_id: What it contends for.
        make_contender: Makes another contender than one that confirms at once.

    Attributes:
        ha: As given.
        election: Its election, started.
        contender: What is told of it.
        contender_id: Its id.
        session_id: The session that it registered with.
    """

    def __init__(
        self,
        ha: HAServices,
        address: str,
        *,
        job_id: str = JOB,
        make_contender: Callable[[LeaderElection], RecordingContender] | None = None,
    ) -> None:
        self.ha = ha
        self.address = address
        self.job_id = job_id
        self.election = ha.get_leader_election(job_id)
        self.contender: RecordingContender = (
            ConfirmingContender(self.election, address)
            if make_contender is None
            else make_contender(self.election)
        )
        known = {item.contender_id for item in self.election.contenders()}
        self.election.start(self.contender)
        mine: list[ContenderInformation] = []

        def is_registered() -> bool:
            # On a busy machine an answer may take longer than a short timeout.
            with contextlib.suppress(UnreachableError):
                mine[:] = [
                    item
                    for item in self.election.contenders()
                    if item.contender_id not in known
                ]
            return bool(mine)

        wait_until(is_registered)
        assert len(mine) == 1
        self.contender_id = mine[0].contender_id
        self.session_id = mine[0].session_id

    @property
    def store(self) -> LeaderStore:
        """Return the leader store of its job."""
        return self.ha.get_leader_store(self.job_id)

    def wait_for_confirm(self, count: int = 1) -> LeaderSession:
        """Return the *count*-th leadership that it confirmed, waiting for it."""
        assert isinstance(self.contender, ConfirmingContender)
        return self.contender.wait_for_confirm(count)

    @property
    def confirmed_count(self) -> int:
        """Return how many leaderships it has confirmed."""
        assert isinstance(self.contender, ConfirmingContender)
        return len(self.contender.confirmed.items)

    def believes(self, session: LeaderSession) -> bool:
        """Return whether it believes that it leads under *session* now."""
        return self.election.has_leadership(session.leader_session_id)

    def wait_for_belief(self, session: LeaderSession) -> None:
        """
        Return once it believes that it leads under *session*.

        Belief may lapse for a moment wherever a machine is busy: that it comes back is
        what can be asked for.
        """
        wait_until(lambda: self.believes(session))

    def is_leader(self, leader: LeaderInformation | None) -> bool:
        """Return whether *leader* is this one."""
        return leader is not None and leader.address == self.address


def wait_for_queue(*candidates: Candidate) -> None:
    """
    Return once all of *candidates* queue, the leader among them.

    A contender that has been revoked queues again by itself, when it has been told:
    without a wait, one that is revoked after it may be back in the queue before it.
    """
    sessions = {candidate.session_id for candidate in candidates}
    election = candidates[0].election
    wait_until(lambda: sessions <= set(sessions_in_order(election)))


def ids_in_order(election: LeaderElection) -> list[str]:
    """Return the contenders' ids, the leader first."""
    return [item.contender_id for item in election.contenders()]


def sessions_in_order(election: LeaderElection) -> list[str]:
    """
    Return the contenders' sessions, the leader first.

    One that queues last after a leadership may do so under another contender id.
    """
    return [item.session_id for item in election.contenders()]
