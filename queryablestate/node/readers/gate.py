"""
`ReaderGate`: what a reader process may answer, by the page of its node; pure (D2, Q4).

It says what `NodeCore.is_current` and `NodeCore.admit` say, and to nothing more.  What
only the node could tell (a state that is not there yet, a job that catches up) is a
reason to ask the proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from queryablestate.node.core.events import Wait
from queryablestate.node.core.job import ServedJob, served_part
from queryablestate.node.core.refusals import stale_route, unavailable
from queryablestate.node.core.registration import clock_max_ms
from queryablestate.node.readers.page import key_groups_in, secret_digest_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.node.core.core import Admission
    from queryablestate.node.readers.page import PageContent, PageJob
    from queryablestate.wire.direct import DirectTicket
    from queryablestate.wire.questions import Question


__all__ = ["ReaderGate"]


@final
class ReaderGate:
    """
    Decides by what the page says when it is asked.

    Args:
        look: Returns that, or None; see `PageReader.look`.
        run: The process of the node: what another one has written binds the readers
            of that one.
        store: The sub-directory whose rows are read here.

    Attributes:
        is_over: Whether the page was found to be about other rows, or of another
            process: this one is of no use any more.
    """

    def __init__(
        self, look: Callable[[], PageContent | None], *, run: str, store: str
    ) -> None:
        self._look = look
        self._run = run
        self._store = store
        self._content: PageContent | None = None
        self._jobs: dict[str, PageJob] = {}
        self._served: dict[str, tuple[int, ServedJob]] = {}
        self._secret_digest = b""
        self.is_over = False

    def keep_secret(self, secret: bytes) -> None:
        """Tell tickets by *secret* from now on."""
        self._secret_digest = secret_digest_of(secret)

    def standing(self, job_id: str) -> tuple[int, int] | None:
        """
        Return what stands for the node's part in a job; None if it has none now.

        If it is the same before rows are read and after, so was that part meanwhile.
        """
        content = self._now()
        if content is None:
            return None
        job = self._jobs.get(job_id)
        return None if job is None else (content.leader_epoch, job.change)

    def is_current(self, ticket: DirectTicket, *, now_ns: int) -> bool | None:
        """Return whether it may be answered under *ticket*; as `NodeCore` does."""
        content = self._now()
        if content is None or not content.leader_epoch:
            return None
        if ticket.leader_epoch != content.leader_epoch:
            return False
        # Tickets that an earlier secret admitted are over as soon as the node says so.
        if content.secret_digest != self._secret_digest:
            return None
        if now_ns >= content.direct_until_ns:
            return None
        leader_ms = clock_max_ms(
            content.leader_ms, since_ns=now_ns - content.leader_ms_at_ns
        )
        return leader_ms < ticket.expires_ms

    def admit(
        self, question: Question, job_id: str | None, *, now_ns: int
    ) -> Admission:
        """Return whether *question* may be answered now; as `NodeCore` does."""
        content = self._now()
        if content is None:
            return Wait.UNKNOWN_STATE  # the node is at it, or another one
        if (
            question.leader_epoch != content.leader_epoch
            or now_ns >= content.lease_until_ns
        ):
            return unavailable(question, job_id, "the node is not confirmed")
        if job_id is None:
            return Wait.UNKNOWN_STATE
        job = self._jobs.get(job_id)
        if job is None:
            return unavailable(question, job_id, "the node does not serve this job")
        if job.assignment_version != question.assignment_version or not job.key_groups:
            return stale_route(question)
        if not job.is_caught_up:
            return Wait.CATCHING_UP
        return self._served_by(job)

    def _now(self) -> PageContent | None:
        """Return what the page says, if that is about the rows that are read here."""
        if self.is_over:
            return None
        content = self._look()
        if content is None or content is self._content:
            return content
        self._content = content
        self._jobs = {job.job_id: job for job in content.jobs}
        self._served = {
            job_id: known
            for job_id, known in self._served.items()
            if job_id in self._jobs
        }
        # Before the node has said anything, it names no store.
        if content.run != self._run or content.store not in {"", self._store}:
            self.is_over = True
            return None
        return content

    def _served_by(self, job: PageJob) -> ServedJob:
        known = self._served.get(job.job_id)
        if known is None or known[0] != job.change:
            served = served_part(
                job.job_id, job.assignment_version, key_groups_in(job.key_groups)
            )
            known = self._served[job.job_id] = (job.change, served)
        return known[1]
