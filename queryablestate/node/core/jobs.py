"""
The jobs of a node: what it answers for, how far it is, what it has yet to apply; pure.

Theory of operation.  The proxy leader sends entries of a job's chain in order.  They
wait here, and go to the store one at a time: one entry of each job is being applied at
most.  *position* is the last entry that the store has, *received* the last one that has
arrived.  What arrives above *received* + 1 leaves a gap: the node asks to be registered
again, which makes the proxy send what is missing.

An entry that cannot be applied stops its job: what waited behind it is dropped, the
proxy is told why, and the node asks for it again after a while (a disk that was full
may not be any more).  What was applied before is answered for as before.

**Catching up** (rule W3).  What the proxy sends between the registration (or another
assignment) and the next acknowledged heartbeat is what the node had missed.  It answers
for a job only when all of that has come, and is applied.  An assignment also names the
entry after which it was made: the node that answered for a key group before may have
shown that one, and no reader goes back in time (rule S3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice.clock import earliest
from queryablestate.node.core.effects import (
    ApplyEntry,
    NodeEffect,
    ReportBehind,
    ResetJobRows,
    SendToProxy,
)
from queryablestate.node.core.events import ROWS_MISSING
from queryablestate.node.core.job import (
    NodeJob,
    ServedJob,
    found_by,
    has_part,
    served_job,
)
from queryablestate.wire.job_plan import JobOrigin
from queryablestate.wire.node_messages import EntriesApplied, JobPosition, ResetJob


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.node.core.events import EntryFinished, ResetFinished
    from queryablestate.wire.job_assignment import JobAssignment
    from queryablestate.wire.job_plan import JobHolding, JobPlan
    from queryablestate.wire.node_messages import ApplyEntries


__all__ = ["JobTable", "ServedJob"]

_NO_ORIGINS: Final[Mapping[str, JobOrigin]] = MappingProxyType({})


@final
class JobTable:
    """
    Every job that the node knows.

    Args:
        registration_id: For what is reported.
        positions: From the store.
        lost: From the store: states whose rows are lost.
        origins: From the store: what tells jobs from others of their names.
        holdings: From the store: which copies of jobs there can be.
        entries_waiting_max: Entries of one job that may wait.
        retry_ns: How long a job that has failed is left alone.
    """

    def __init__(
        self,
        registration_id: str,
        positions: Mapping[str, int],
        lost: Mapping[str, Iterable[int]],
        *,
        origins: Mapping[str, JobOrigin] = _NO_ORIGINS,
        holdings: Iterable[JobHolding] = (),
        entries_waiting_max: int,
        retry_ns: int,
    ) -> None:
        self._registration_id = registration_id
        self._entries_waiting_max = entries_waiting_max
        self._retry_ns = retry_ns
        self._has_left_since = False
        self._jobs = {
            job_id: NodeJob(
                job_id=job_id,
                position=position,
                lost=frozenset(lost.get(job_id, ())),
                origin=origins.get(job_id, JobOrigin()),
                received=position,
            )
            for job_id, position in positions.items()
        }
        for holding in holdings:
            self._job(holding.job_id).holding = holding

    # -- questions -----------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether anything that has arrived is not applied yet."""
        return any(job.is_busy for job in self._jobs.values())

    @property
    def is_unsettled(self) -> bool:
        """Return whether `positions` would say what is about to change altogether."""
        return any(job.is_unsettled for job in self._jobs.values())

    @property
    def is_draining(self) -> bool:
        """Return whether it is too early to ask for what is missing."""
        return any(job.is_incomplete and job.is_busy for job in self._jobs.values())

    @property
    def has_left_any(self) -> bool:
        """Return whether there is a job that the node has no part in any more."""
        return any(job.is_left for job in self._jobs.values())

    def not_left(self) -> frozenset[str]:
        """Return the jobs that the node has a part in, or is at something of."""
        jobs = self._jobs.items()
        return frozenset(job_id for job_id, job in jobs if not job.is_left)

    def unapplied(self) -> tuple[str, ...]:
        """Return the jobs of which something may be decided and not applied, sorted."""
        return tuple(
            job_id
            for job_id, job in sorted(self._jobs.items())
            if not job.has_applied_all
        )

    def positions(self) -> Sequence[JobPosition]:
        """Return how far the store is with each job it knows, by name."""
        return [
            JobPosition(
                job_id=job_id,
                sequence=job.position,
                lost_state_numbers=tuple(sorted(job.lost)),
                origin=job.origin,
            )
            for job_id, job in sorted(self._jobs.items())
            if job.position is not None
        ]

    def holdings(self) -> Sequence[JobHolding]:
        """Return which copies the store can have, by the name of the job."""
        jobs = (job for _, job in sorted(self._jobs.items()))
        return [job.holding for job in jobs if job.holding is not None]

    def failures(self) -> Mapping[str, str]:
        """Return the jobs that cannot go on, and why."""
        return {
            job_id: job.failure
            for job_id, job in sorted(self._jobs.items())
            if job.failure is not None
        }

    def reasons(self) -> Mapping[str, str]:
        """Return the jobs that cannot go on, and why, in a word."""
        return {job_id: self._jobs[job_id].reason for job_id in self.failures()}

    def served(self, job_id: str) -> ServedJob | None:
        """Return what the node answers for, or None."""
        job = self._jobs.get(job_id)
        return None if job is None else job.served

    def all_served(self) -> Sequence[tuple[ServedJob, bool]]:
        """Return what the node answers for, and whether it has what was missed."""
        return [
            (job.served, job.is_caught_up)
            for job in self._jobs.values()
            if job.served is not None
        ]

    def is_caught_up(self, job_id: str) -> bool:
        """Return whether the store has what was missed of a job."""
        job = self._jobs.get(job_id)
        return job is not None and job.is_caught_up

    def applied(self, job_id: str) -> int | None:
        """Return the last entry that the store has; None if what it has is void."""
        job = self._jobs.get(job_id)
        if job is None:
            return 0
        return None if job.is_void else job.position or 0

    def next_deadline_ns(self) -> int | None:
        """Return when `wants_more` may change by itself, or None."""
        moments = (job.retry_at_ns for job in self._jobs.values())
        return earliest(moments)

    # -- what happens --------------------------------------------------------------

    def assign_all(self, jobs: Iterable[JobAssignment]) -> None:
        """Answer for these jobs, and for no other."""
        named = {job.job_id: job for job in jobs}
        for job in self._jobs.values():
            job.served = None
            job.assigned = 0
            job.promised = 0
            job.is_missed_coming = False
            job.is_incomplete = False
            job.is_void = job.is_unsettled
            job.is_unbegun = False
            if job.failure is None:
                job.retry_at_ns = None
            if job.job_id not in named:
                self._leave(job)
        for assignment in named.values():
            self.assign(assignment)

    def assign(self, assignment: JobAssignment) -> None:
        """Answer for what *assignment* says of one job, when what was missed came."""
        job = self._job(assignment.job_id)
        job.served = served_job(assignment)
        if not has_part(assignment):
            self._leave(job)
            return
        if job.is_unbegun:
            job.retry_at_ns = 0  # to be told again where it begins
        job.assignment = assignment
        job.has_part = True
        job.is_missed_coming = True
        job.assigned = assignment.sequence
        job.promised = max(job.promised, assignment.sequence)

    def planned(self, plan: JobPlan) -> None:
        """Take note of what is kept of a job from now on."""
        job = self._job(plan.job_id)
        job.origin = replace(
            job.origin,
            job_number=plan.job_number,
            assignment_version=plan.assignment.version,
        )

    def missed_came(self) -> bool:
        """
        Note that nothing more was missed.

        Returns:
            Whether that is news: something was awaited until now, or is not any more,
            since the node has left its job.
        """
        coming = [job for job in self._jobs.values() if job.is_missed_coming]
        for job in coming:
            job.is_missed_coming = False
        is_news = self._has_left_since or bool(coming)
        self._has_left_since = False
        return is_news

    def forget(self, job_id: str) -> None:
        """Know nothing any more of a job; what the store is at counts for nothing."""
        self._jobs.pop(job_id, None)

    def dismiss(self) -> None:
        """Answer for nothing."""
        self.assign_all(())

    def receive(self, command: ApplyEntries) -> tuple[list[NodeEffect], bool]:
        """
        Take entries.

        Returns:
            What to do, and whether they are all there: False if some are missing.
        """
        job = self._job(command.job_id)
        if job.is_void and not job.is_unsettled:
            return [], True  # to begin anew has failed: it will ask in its own time
        if job.is_missed_coming and command.entries:
            job.promised = max(job.promised, command.entries[-1].sequence)
        received = job.received
        is_whole = True
        for entry in command.entries:
            if entry.sequence <= job.received:
                continue
            if (
                entry.sequence != job.received + 1
                or len(job.tasks) >= self._entries_waiting_max
            ):
                is_whole = False
                break
            job.tasks.append(entry)
            job.received = entry.sequence
        if job.failure is not None and job.received == received and not job.is_busy:
            return [self._report(job)], True  # it will ask in its own time
        job.is_incomplete = job.is_incomplete or not is_whole
        effects = self._go_on(job)
        if not effects and is_whole and not job.is_busy:
            effects.append(self._report(job))
        return effects, is_whole

    def reset(self, command: ResetJob) -> list[NodeEffect]:
        """Have a job begin anew, whatever it was about to apply."""
        job = self._job(command.job_id)
        job.tasks.clear()
        job.tasks.append(command)
        job.received = command.sequence
        job.promised = max(command.sequence, job.assigned)
        job.is_void = True
        return self._go_on(job)

    def entry_finished(self, event: EntryFinished, *, now_ns: int) -> list[NodeEffect]:
        """Take note of how an `ApplyEntry` ended, and go on."""
        job = self._jobs.get(event.job_id)
        if job is None or job.current != event.entry:
            return []  # of before the store was opened anew: it is applied, or will be
        job.current = None
        if event.failure is None:
            job.lost -= found_by(event.entry)
            job.origin = replace(job.origin, entry_digest=event.digest)
            return self._moved(job, event.entry.sequence)
        if job.is_reset_waiting:
            return self._go_on(job)  # what failed does not matter any more
        return self._failed(job, event.failure, event.reason, now_ns)

    def reset_finished(self, event: ResetFinished, *, now_ns: int) -> list[NodeEffect]:
        """Take note of how a `ResetJobRows` ended, and go on."""
        job = self._jobs.get(event.job_id)
        if job is None or not isinstance(job.current, ResetJobRows):
            return []  # likewise
        reset, job.current = job.current, None
        if job.is_reset_waiting:
            return self._go_on(job)
        if event.failure is not None:
            return self._failed(job, event.failure, event.reason, now_ns)
        job.is_void = job.is_unbegun = False
        job.lost = frozenset(reset.state_numbers)
        job.origin = replace(job.origin, entry_digest=b"")
        return self._moved(job, reset.sequence)

    def holds(self, job_id: str, holding: JobHolding | None) -> None:
        """Note what the store has of a job; None changes nothing."""
        job = self._jobs.get(job_id)
        if job is not None and holding is not None:
            job.holding = holding

    def wants_more(self, *, now_ns: int) -> bool:
        """Return, once for each time, whether a failed job is to be tried again."""
        due = [
            job
            for job in self._jobs.values()
            if job.retry_at_ns is not None and job.retry_at_ns <= now_ns
        ]
        for job in due:
            job.retry_at_ns = now_ns + self._retry_ns
        return bool(due)

    # -- parts ---------------------------------------------------------------------

    def _leave(self, job: NodeJob) -> None:
        """Wait for nothing of a job that the node has no part in any more."""
        self._has_left_since |= job.has_part
        job.leave()

    def _job(self, job_id: str) -> NodeJob:
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = NodeJob(job_id=job_id)
        return job

    def _go_on(self, job: NodeJob) -> list[NodeEffect]:
        """Give the store the next thing to do, if it has nothing of this job."""
        if job.current is not None or not job.tasks:
            return []
        task = job.tasks.popleft()
        if isinstance(task, ResetJob):
            job.current = effect = _reset_rows(task, job.assignment)
            return [effect]
        job.current = task
        return [ApplyEntry(job_id=job.job_id, entry=task)]

    def _moved(self, job: NodeJob, sequence: int) -> list[NodeEffect]:
        job.position = sequence
        job.failure = None
        job.retry_at_ns = None
        return [self._report(job), *self._go_on(job)]

    def _failed(
        self, job: NodeJob, failure: str, reason: str, now_ns: int
    ) -> list[NodeEffect]:
        job.tasks.clear()
        job.received = job.position or 0
        if not job.has_part:
            job.give_up_reset()
            return []
        is_news = failure != job.failure
        job.failure, job.reason = failure, reason
        job.retry_at_ns = now_ns + self._retry_ns
        effects: list[NodeEffect] = [self._report(job)]
        if is_news:
            effects.append(
                ReportBehind(
                    job_id=job.job_id, sequence=job.position or 0, failure=failure
                )
            )
        return effects

    def _report(self, job: NodeJob) -> NodeEffect:
        return SendToProxy(
            message=EntriesApplied(
                registration_id=self._registration_id,
                job_id=job.job_id,
                sequence=job.position or 0,
                failure=job.failure,
                lost_state_numbers=tuple(sorted(job.lost)),
                lacks_rows=job.failure is not None and job.reason == ROWS_MISSING,
            )
        )


def _reset_rows(command: ResetJob, job: JobAssignment | None) -> ResetJobRows:
    """Return what has the store begin anew with what the node is assigned."""
    return ResetJobRows(
        job_id=command.job_id,
        sequence=command.sequence,
        state_numbers=command.state_numbers,
        restore_id=command.restore_id,
        assignment_version=0 if job is None else job.assignment_version,
        key_groups=() if job is None else job.in_sync,
        joining=() if job is None else job.joining,
    )
