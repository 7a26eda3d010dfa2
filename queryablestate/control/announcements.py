"""
What nodes are told when an assignment, an address or a run has changed; pure.

What changes one of these returns these effects with it, in this order: the log is
told of a new assignment first, then each node, and a node that begins to have a part
gets what it lacks right behind that (`queryablestate.control.chains`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.control.assignment_notes import note_of
from queryablestate.control.chains import catch_up
from queryablestate.control.effects import SendToNode
from queryablestate.control.node_parts import job_assignment, joiner_ids
from queryablestate.wire.node_messages import AssignJob, FenceWriters


if TYPE_CHECKING:
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.job_assignment import WriterFence
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["tell_address", "tell_assignment", "tell_fence"]


def tell_assignment(
    control: ControlState, job: Job, former: AssignmentRecord | None, *, now_ns: int
) -> list[ControlEffect]:
    """
    Tell the present nodes of a job what they answer for, and where it begins.

    Those of *former* too, which may have no part any more.  Who has had a part, and has
    it from the same entry on, has been sent everything that it lacks.  Until they know,
    clients may ask them by *former* (rule D5).
    """
    job_id = job.record.job_id
    control.touch(job_id)
    if former is not None:
        control.direct.reassigned(job_id, former, now_ns=now_ns)
    begun = {} if former is None else _beginnings(former)
    begins = {} if job.assignment is None else _beginnings(job.assignment)
    effects: list[ControlEffect] = []
    if job.assignment is not None and job.assignment != former:
        effects.append(note_of(job_id, former, job.assignment))
    for node in control.nodes:
        if node.node_id not in begun and node.node_id not in begins:
            continue
        effects.append(_assign(control, job, node))
        if node.node_id not in begins:
            continue
        if begins[node.node_id] != begun.get(node.node_id):
            effects += catch_up(control, job, node)
    return effects


def tell_address(
    control: ControlState, job: Job, source: PresentNode
) -> list[ControlEffect]:
    """Tell those who can copy from a node that is back where it is now."""
    assert job.assignment is not None
    joining = joiner_ids(job.assignment, source.node_id)
    return [
        _assign(control, job, node) for node in control.nodes if node.node_id in joining
    ]


def tell_fence(
    control: ControlState, job: Job, fence: WriterFence
) -> list[ControlEffect]:
    """Tell the present nodes of a job that older runs of a query are over."""
    message = FenceWriters(leader_epoch=control.leader_epoch, fences=(fence,))
    return [
        SendToNode(link=node.link, message=message) for node in control.present_of(job)
    ]


def _assign(control: ControlState, job: Job, node: PresentNode) -> ControlEffect:
    message = AssignJob(
        leader_epoch=control.leader_epoch,
        job=job_assignment(job, node.node_id, control.nodes),
    )
    return SendToNode(link=node.link, message=message)


def _beginnings(assignment: AssignmentRecord) -> dict[str, int]:
    """Return for each node the entry after which it joined."""
    return dict(zip(assignment.node_ids, assignment.since_sequences, strict=True))
