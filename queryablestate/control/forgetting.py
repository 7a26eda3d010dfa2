"""
Forgetting what is gone for good: a job, or the name of a node; pure (rule B4).

Theory of operation.  *A job*: one write removes all its records, and notes with each
node that may have rows of it that these are to go (`NodeRecord.forgotten`).  Then the
control plane starts over: whatever was under way for the job ends.  A node that
registers, now or in a month, and says that it has the job, is told to forget it before
anything else; once it does not say so any more, the note goes, too.  It is told that
the job is forgotten when no node may tell clients of it without the proxy (rule D5).

The same job may be begun anew at once: it has another number, and a node that still has
the former one begins with nothing.

*A node* stays known when it is away, so that a new leader waits for it.  Its record is
removed if nothing can be missing then: it is away, has no part in a job, and keeps no
rows.  If it comes all the same, it is a new node.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from election import Delete, Put
from nameservice import ConfigurationError, DidNotHappenError
from queryablestate.control.adoption import deleted_job
from queryablestate.control.changes import Write
from queryablestate.control.effects import AnswerWriter, StartOver
from queryablestate.control.job.forgotten_runs import with_fence_of
from queryablestate.control.job.leader_paths import COUNTERS, encode_record, node_path
from queryablestate.errors import UnknownJobError
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.operation_messages import AwayNodeForgotten, JobForgotten
from queryablestate.wire.records import ForgottenJob


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from election import StoreOperation
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.state import ControlState
    from queryablestate.wire.node_messages import JobPosition, RegisterNode
    from queryablestate.wire.operation_messages import ForgetAwayNode, ForgetJob
    from queryablestate.wire.records import NodeRecord


__all__ = ["Forgetting", "noted", "still_there", "without"]

_NOTED_COUNT_MAX: Final = 1_000
"""Jobs that are noted with one node; a node that stays away for years has no more."""

_JOBS_NAMED_MAX: Final = 3


@final
class Forgetting:
    """
    Forgets jobs and nodes.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control

    def forget(self, link: LinkId, request: ForgetJob, now_ns: int) -> Write:
        """
        Forget a job, and have its nodes forget it.

        Raises:
            UnknownJobError: If no node knows of such a job.
        """
        del now_ns
        control, job_id = self._control, request.job_id
        job = control.jobs.get(job_id)
        if job is None and not control.nodes.kept.of_job(job_id):
            raise UnknownJobError(job_id)
        operations: list[StoreOperation] = []
        if job is not None:
            operations += deleted_job(job)
            counters = with_fence_of(control.counters, job.record)
            if counters != control.counters:
                operations.append(Put(COUNTERS, encode_record(counters)))
        node_ids = []
        for node_id in control.nodes.known_ids:
            record = noted(control, node_id, job_id, job)
            if record is not None:
                operations.append(Put(node_path(node_id), encode_record(record)))
                node_ids.append(node_id)
        done = JobForgotten(request_id=request.request_id, node_ids=tuple(node_ids))
        adopt = partial(self._forgotten, link, done, job_id)
        return Write(operations=operations, adopt=adopt)

    def _forgotten(
        self, link: LinkId, done: JobForgotten, job_id: str, now_ns: int
    ) -> list[ControlEffect]:
        # Until then a node that has not heard of it may tell clients of the job.
        told_ns = self._control.direct.told_ns(job_id, now_ns=now_ns)
        answer = AnswerWriter(link=link, message=done, not_before_ns=told_ns)
        return [answer, StartOver(reason=DidNotHappenError("a job was forgotten"))]

    def forget_node(self, link: LinkId, request: ForgetAwayNode, now_ns: int) -> Write:
        """
        Forget the name of a node that is away for good.

        Raises:
            ConfigurationError: If there is no such node, it is there, or something
                depends on it; says what to do first.
            DidNotHappenError: If it may still come, or may have rows of a batch that
                is under way: the caller tries again.
        """
        node_id = request.node_id
        self._control.nodes.known_record_of(node_id)
        reason = self._why_needed(node_id)
        if reason is not None and node_id in self._control.nodes.expected:
            # What others have may be theirs in a moment.
            raise DidNotHappenError(
                f"the connection of {node_id!r} has just closed, and it may be back"
            )
        if reason is not None:
            raise ConfigurationError(reason)
        if not self._control.is_settled(now_ns=now_ns):
            raise DidNotHappenError(
                f"this proxy leads since a moment ago, and {node_id!r} may still be "
                "coming"
            )
        if self._control.is_needed(node_id):
            raise DidNotHappenError(
                f"{node_id!r} may have rows of a batch that was begun before; ask "
                "again in a minute"
            )
        done = AwayNodeForgotten(request_id=request.request_id, node_id=node_id)
        return Write(
            operations=[Delete(node_path(node_id))],
            adopt=partial(self._node_forgotten, link, done),
        )

    def _why_needed(self, node_id: str) -> str | None:
        """Return why a node cannot be forgotten, and what to do; None if it can."""
        control = self._control
        if control.nodes.present(node_id) is not None:
            return (
                f"{node_id!r} is registered: only a node that is away can be "
                "forgotten. SIGTERM has it hand its key groups over, and ends it"
            )
        jobs = [job.record.job_id for job in control.jobs_of(node_id)]
        if jobs:
            return (
                f"{node_id!r} has key groups of {_named(jobs)}. If other nodes have "
                f"copies of them, 'lodestar drain {node_id}' gives its part to others. "
                "If not, start it on its data directory, or an empty node of the same "
                "name; or give the rows up with 'lodestar drop-state' or 'lodestar "
                "forget-job'"
            )
        kept = {
            job.job_id
            for rows in control.nodes.kept.of_node(node_id)
            for job in rows.jobs
        }
        if kept:
            return (
                f"{node_id!r} keeps rows of {_named(sorted(kept))} aside. "
                "'lodestar adopt' takes them over, 'lodestar forget-job' gives them up"
            )
        return None

    def _node_forgotten(
        self, link: LinkId, done: AwayNodeForgotten, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        self._control.nodes.forget(done.node_id)
        self._control.touch()
        return [AnswerWriter(link=link, message=done)]


def noted(
    control: ControlState, node_id: str, job_id: str, job: Job | None
) -> NodeRecord | None:
    """Return a node with the note that it forgets the job; None if it has nothing."""
    nodes = control.nodes
    record, node = nodes.record_of(node_id), nodes.present(node_id)
    keeps = any(one.node_id == node_id for one in nodes.kept.of_job(job_id))
    has_part = job is not None and any(
        node_id in assignment.node_ids for assignment in job.assignments.values()
    )
    says_so = node is not None and job_id in node.sequences
    if record is None or not (keeps or has_part or says_so):
        return None
    number = 0 if job is None else job.record.job_number
    note = ForgottenJob(job_id=job_id, job_number=number)
    kept = tuple(
        replace(rows, jobs=tuple(one for one in rows.jobs if one.job_id != job_id))
        for rows in record.kept
    )
    others = [one for one in record.forgotten if one != note]
    return replace(
        record,
        kept=tuple(rows for rows in kept if rows.jobs),
        forgotten=(*others, note)[-_NOTED_COUNT_MAX:],
    )


def _named(job_ids: Sequence[str]) -> str:
    """Return the names of jobs, or of the first of them."""
    named = ", ".join(job_ids[:_JOBS_NAMED_MAX])
    more = len(job_ids) - _JOBS_NAMED_MAX
    return named if more <= 0 else f"{named} and {more} more"


def still_there(
    message: RegisterNode,
    forgotten: Collection[ForgottenJob],
    jobs: Mapping[str, Job],
) -> tuple[ForgottenJob, ...]:
    """
    Return which of the forgotten jobs a node that registers still has.

    Args:
        message: What it says.
        forgotten: What it was to forget.
        jobs: Those that there are, be they called the same.
    """
    positions = {one.job_id: one for one in message.positions}
    kept = {job.job_id for rows in message.kept for job in rows.jobs}
    there = []
    for note in forgotten:
        position = positions.get(note.job_id)
        job = jobs.get(note.job_id)
        # Of a job that is begun anew it may have rows already.
        is_new = job is not None and position is not None and _is_of(position, job)
        if note.job_id in kept or (position is not None and not is_new):
            there.append(note)
    return tuple(there)


def _is_of(position: JobPosition, job: Job) -> bool:
    """
    Return whether a node has rows of *job*, not of a former one of that name.

    It may have ended between an entry and the plan that tells the number of the job:
    a job that is restored begins with an entry.
    """
    entry = job.entries.get(position.sequence)
    return position.origin.job_number == job.record.job_number or (
        entry is not None and position.origin.entry_digest == entry_digest(entry)
    )


def without(message: RegisterNode, forgotten: Collection[ForgottenJob]) -> RegisterNode:
    """Return what a node says, but for what it is to forget."""
    job_ids = {note.job_id for note in forgotten}
    if not job_ids:
        return message
    kept = tuple(
        replace(rows, jobs=tuple(one for one in rows.jobs if one.job_id not in job_ids))
        for rows in message.kept
    )
    return replace(
        message,
        positions=tuple(p for p in message.positions if p.job_id not in job_ids),
        kept=tuple(rows for rows in kept if rows.jobs),
        holdings=tuple(h for h in message.holdings if h.job_id not in job_ids),
    )
