"""
What nodes are told to keep of their jobs; pure.  See `queryablestate.wire.job_plan`.

A node is told the plan of a job when it has registered, and whenever anything of it
changes that does not follow from entries: states and their columns, runs, the
assignment.  Nothing waits for it.  It goes over the same connection as entries do, so
that what a node keeps is as of an entry that it was sent before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

from queryablestate.control.effects import SendToNode
from queryablestate.wire.job_plan import JobPlan, PlannedState
from queryablestate.wire.node_messages import KeepPlan


if TYPE_CHECKING:
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.records import AssignmentRecord, JobRecord


__all__ = ["JobPlans", "job_plan"]

_Seen: TypeAlias = "tuple[JobRecord, AssignmentRecord | None]"
_Content: TypeAlias = "tuple[object, ...]"


@final
class JobPlans:
    """
    Tells nodes what to keep.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._seen: dict[str, _Seen] = {}
        self._contents: dict[str, _Content] = {}
        self._told: dict[LinkId, tuple[PresentNode, dict[str, _Content]]] = {}

    def look(self) -> list[ControlEffect]:
        """Tell every node what it has not been told of its jobs."""
        control = self._control
        changed = [job for job in control.jobs.values() if self._has_changed(job)]
        for job_id in self._contents.keys() - control.jobs.keys():
            del self._contents[job_id], self._seen[job_id]
        present = {node.link: node for node in control.nodes}
        for link in self._told.keys() - present.keys():
            del self._told[link]
        effects: list[ControlEffect] = []
        for link, node in present.items():
            registered, told = self._told.get(link, (None, {}))
            if registered is not node:  # it has registered since: it knows nothing
                told = {}
                self._told[link] = (node, told)
                jobs = control.jobs_of(node.node_id)
            else:
                jobs = [job for job in changed if _has_part(job, node.node_id)]
            for job in jobs:
                job_id = job.record.job_id
                if job_id in control.nodes.kept.ahead_of(node.node_id):
                    continue  # what it keeps is worth more
                if told.get(job_id) != self._contents[job_id]:
                    told[job_id] = self._contents[job_id]
                    effects.append(self._tell(job, link))
        return effects

    def _has_changed(self, job: Job) -> bool:
        """Return whether something of a job has changed that nodes are told."""
        job_id, seen = job.record.job_id, (job.record, job.assignment)
        known = self._seen.get(job_id)
        if known is not None and known[0] is seen[0] and known[1] is seen[1]:
            return False
        self._seen[job_id] = seen
        content = (
            job.record.job_number,
            None if job.assignment is None else job.assignment.version,
            tuple(job.states.values()),
            # Which of them was active last changes with every batch.
            tuple(sorted((run.query_id, run.writer_epoch) for run in job.record.runs)),
            job.record.fence,
        )
        if self._contents.get(job_id) == content:
            return False
        self._contents[job_id] = content
        return True

    def _tell(self, job: Job, link: LinkId) -> ControlEffect:
        plan = job_plan(job, ticket_limit=self._control.counters.ticket_limit)
        message = KeepPlan(leader_epoch=self._control.leader_epoch, plan=plan)
        return SendToNode(link=link, message=message)


def job_plan(job: Job, *, ticket_limit: int) -> JobPlan:
    """Return what the leader store holds of a job that has an assignment."""
    assert job.assignment is not None
    record = job.record
    return JobPlan(
        job_id=record.job_id,
        job_number=record.job_number,
        max_parallelism=record.max_parallelism,
        sequence=record.sequence,
        ticket_limit=ticket_limit,
        runs=record.runs,
        fence=record.fence,
        assignment=job.assignment,
        states=tuple(
            PlannedState(
                state=job.states[progress.state_number],
                progress=progress,
            )
            for progress in record.progress
        ),
    )


def _has_part(job: Job, node_id: str) -> bool:
    return job.assignment is not None and node_id in job.assignment.node_ids
