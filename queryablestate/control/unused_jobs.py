"""
Jobs that have no state: they go by themselves; pure (rule B4).

Theory of operation.  A ticket makes a job, and the caller that drew it may never come
back; a job whose last state was dropped is no use to anybody either.  Such a job goes
after an hour without a ticket of it; and at once where there is no room for another
job, tickets or not: then the one who has most of them loses the oldest.

It is one write.  What nodes have of it goes, too: those that are present are told to
begin it at 0, with nothing, and that they have no part in it; with all that may have
applied something of it there is a note, as for a job that was forgotten
(`queryablestate.control.forgetting`).  Runs of it that were superseded stay over
(`queryablestate.control.job.forgotten_runs`).

**What is kept however old it is**: a job that nodes keep rows of, of another history of
this control plane, or of another one.  It could not be told from one that has lost its
store (rule W7).  And the notes: the number of a job does not tell whether it was
forgotten, or is of a history that a restored backup has lost, for numbers are given out
again after that.  Of a node that stays away the newest thousand are kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from election import Put
from nameservice import ConfigurationError
from nameservice.clock import NS_PER_SECOND
from queryablestate.control.adoption import deleted_job
from queryablestate.control.changes import Change, JobRemoved, Write
from queryablestate.control.effects import SendToNode
from queryablestate.control.forgetting import noted
from queryablestate.control.job.forgotten_runs import with_fence_of
from queryablestate.control.job.leader_paths import COUNTERS, encode_record, node_path
from queryablestate.wire.job_assignment import JobAssignment
from queryablestate.wire.node_messages import AssignJob, ResetJob


if TYPE_CHECKING:
    from collections.abc import Sequence

    from election import StoreOperation
    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.state import ControlState
    from queryablestate.wire.records import CountersRecord, NodeRecord


__all__ = [
    "Removal",
    "UnusedJobs",
    "check_room_for_job",
    "removal",
    "removed",
    "room_for_job",
    "unused_job",
]

UNUSED_NS: Final = 3_600 * NS_PER_SECOND
_AT_ONCE_MAX: Final = 10
_PAUSE_NS: Final = NS_PER_SECOND
"""A thousand jobs may be due at once, and other changes wait meanwhile."""


@final
@frozen(kw_only=True)
class Removal:
    """
    What the removal of a job is.

    Attributes:
        job: The job.
        operations: What is to be written, the counters apart.
        counters: As they are from then on.
        nodes: The nodes with a note, likewise.
    """

    job: Job
    operations: Sequence[StoreOperation]
    counters: CountersRecord
    nodes: Sequence[NodeRecord]


@final
class UnusedJobs:
    """
    Removes jobs that have not been used for long.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._since_ns: dict[str, int] = {}
        self._queued: set[str] = set()
        self._not_before_ns = 0

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        times = [
            since_ns + UNUSED_NS
            for job_id, since_ns in self._since_ns.items()
            if job_id not in self._queued
        ]
        return max(min(times), self._not_before_ns) if times else None

    def look(self, *, now_ns: int) -> None:
        """Take note of which jobs have no state."""
        self._since_ns = {
            job_id: self._since_ns.get(job_id, now_ns)
            for job_id, job in self._control.jobs.items()
            if not job.states
        }

    def expire(self, *, now_ns: int) -> list[Outcome]:
        """Remove jobs whose time is up, some at a time."""
        if now_ns < self._not_before_ns:
            return []
        due = [
            job_id
            for job_id, since_ns in self._since_ns.items()
            if since_ns + UNUSED_NS <= now_ns and job_id not in self._queued
        ]
        changes: list[Outcome] = []
        for job_id in due[:_AT_ONCE_MAX]:
            self._queued.add(job_id)
            prepare = partial(self._removal, job_id)
            changes.append(Change(prepare=prepare, refuse=partial(self._stays, job_id)))
        if changes:
            self._not_before_ns = now_ns + _PAUSE_NS
        return changes

    def _removal(self, job_id: str, now_ns: int) -> Write | Sequence[ControlEffect]:
        """Remove a job unless it is in use, now that nothing can come between."""
        control = self._control
        self._queued.discard(job_id)
        job = control.jobs.get(job_id)
        if job is None or not _may_go(control, job) or _has_ticket(control, job):
            if job_id in self._since_ns:
                self._since_ns[job_id] = now_ns
            return []
        gone = removal(control, job, control.counters)
        operations = [*gone.operations]
        if gone.counters != control.counters:
            operations.append(Put(COUNTERS, encode_record(gone.counters)))
        return Write(operations=operations, adopt=partial(self._removed, gone))

    def _removed(self, gone: Removal, now_ns: int) -> list[Outcome]:
        del now_ns
        self._control.counters = gone.counters
        return removed(self._control, gone)

    def _stays(self, job_id: str, error: NameServiceError) -> list[ControlEffect]:
        """Try again in a moment."""
        del error
        self._queued.discard(job_id)
        return []


def unused_job(control: ControlState) -> Job | None:
    """
    Return the job that is to make room for another one, or None.

    One without tickets; or the oldest of the caller that has most tickets of jobs
    without state, so that no caller loses one by what another one draws.
    """
    jobs = [job for job in control.jobs.values() if _may_go(control, job)]
    idle = [job for job in jobs if not _has_ticket(control, job)]
    if not idle and jobs:
        links = control.open_batches.links()
        by_link: dict[int, list[Job]] = {}
        for job in jobs:
            by_link.setdefault(links[job.record.job_id], []).append(job)
        idle = max(by_link.values(), key=len)
    return min(idle, key=lambda job: job.record.job_number, default=None)


def check_room_for_job(control: ControlState, job_id: str) -> None:
    """Return if there is room for a job, or can be made; `ConfigurationError`."""
    count, count_max = len(control.jobs), control.limits.job_count_max
    is_known = job_id in control.jobs or count < count_max
    if not is_known and unused_job(control) is None:
        raise ConfigurationError(
            f"this proxy knows {count:,} jobs that have state, and takes "
            f"{count_max:,}: raise its job_count_max, call what belongs together by "
            "one job_id, or forget jobs with 'lodestar forget-job'"
        )


def room_for_job(control: ControlState, job_id: str) -> Removal | None:
    """
    Return what makes room for a job; None if there is room.

    Raises:
        ConfigurationError: If nothing does.
    """
    check_room_for_job(control, job_id)
    if job_id in control.jobs or len(control.jobs) < control.limits.job_count_max:
        return None
    unused = unused_job(control)
    assert unused is not None
    return removal(control, unused, control.counters)


def removal(control: ControlState, job: Job, counters: CountersRecord) -> Removal:
    """Return what removes a job that has no state."""
    nodes = []
    if job.record.sequence:  # else no node has applied anything of it
        for node_id in control.nodes.known_ids:
            record = noted(control, node_id, job.record.job_id, job)
            if record is not None:
                nodes.append(record)
    operations: list[StoreOperation] = [*deleted_job(job)]
    operations += [Put(node_path(one.node_id), encode_record(one)) for one in nodes]
    return Removal(
        job=job,
        operations=operations,
        counters=with_fence_of(counters, job.record),
        nodes=nodes,
    )


def removed(control: ControlState, gone: Removal) -> list[Outcome]:
    """Know the job no more, and tell the nodes that are present."""
    job = gone.job
    job_id = job.record.job_id
    del control.jobs[job_id]
    control.touched.discard(job_id)
    control.open_batches.forget(job_id)
    for record in gone.nodes:
        control.nodes.record(record)
    nothing = JobAssignment(
        job_id=job_id,
        assignment_version=0 if job.assignment is None else job.assignment.version,
        max_parallelism=job.record.max_parallelism,
        key_groups=(),
        fences=(),
    )
    effects: list[Outcome] = [JobRemoved(job_id=job_id)]
    for node in control.nodes:
        had_part = any(
            node.node_id in assignment.node_ids
            for assignment in job.assignments.values()
        )
        if not had_part and job_id not in node.sequences:
            continue
        node.forget_job(job_id)
        if job.record.sequence:
            reset = ResetJob(
                leader_epoch=control.leader_epoch,
                job_id=job_id,
                sequence=0,
                state_numbers=(),
            )
            effects.append(SendToNode(link=node.link, message=reset))
        leave = AssignJob(leader_epoch=control.leader_epoch, job=nothing)
        effects.append(SendToNode(link=node.link, message=leave))
    return effects


def _may_go(control: ControlState, job: Job) -> bool:
    """Return whether nothing but a ticket needs a job."""
    return not job.states and not control.nodes.kept.of_job(job.record.job_id)


def _has_ticket(control: ControlState, job: Job) -> bool:
    return bool(control.open_batches.versions_of(job.record.job_id))
