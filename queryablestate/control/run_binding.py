"""
What comes of a ticket that a run shows: it is the newest of its query; pure (rule W1).

A run shows its ticket with a request of its own, or with the one that draws it; either
way this is what is written, what nodes are told, and what the run is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import frozen
from msgspec.structs import replace

from queryablestate.control.announcements import tell_fence
from queryablestate.control.room import check_room_for_states
from queryablestate.wire.clients import BindRun, BoundRun, BoundState
from queryablestate.wire.job_assignment import WriterFence
from queryablestate.wire.staging_grant import staging_grant


if TYPE_CHECKING:
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.state import ControlState
    from queryablestate.wire.records import CountersRecord


__all__ = ["RunBinding", "bind_run", "granted_run", "run_shown"]


@final
@frozen(kw_only=True)
class RunBinding:
    """
    What comes of a ticket that a run shows.

    Attributes:
        request: The run and its ticket.
        change: What is to be written.
        writer_epoch: Under which the run stages.
        former_epoch: That of the query's newest run before, or None.
    """

    request: BindRun
    change: JobChange
    writer_epoch: int
    former_epoch: int | None


def bind_run(
    control: ControlState,
    job: Job,
    request: BindRun,
    writable: frozenset[str] | None,
    counters: CountersRecord,
) -> tuple[RunBinding, CountersRecord]:
    """
    Return what comes of a ticket that is shown, and the counters after it.

    Raises:
        AccessDeniedError: If the query writes what the caller may not (rule C1).
        ConfigurationError: If there are too many states.
        QueryableStateError: See `Job.bind`.
    """
    job.check_may_write(request.query_id, writable)
    number = counters.state_number
    earlier, run = job.run_of(request.query_id), job.run_to_bind(request)
    change = job.bind(request, state_number_next=number + 1)
    added = [state for state in change.states if state.state_number > number]
    check_room_for_states(control, job, change, added_count=len(added))
    binding = RunBinding(
        request=request,
        change=change,
        writer_epoch=run.writer_epoch,
        former_epoch=None if earlier is None else earlier.writer_epoch,
    )
    return binding, replace(counters, state_number=number + len(added))


def run_shown(
    control: ControlState, job: Job, binding: RunBinding, *, now_ns: int
) -> list[ControlEffect]:
    """Note that a run has shown a ticket; tell nodes of the run if it is new."""
    request = binding.request
    control.open_batches.bound(
        request.ticket,
        job_id=request.job_id,
        query_id=request.query_id,
        now_ns=now_ns,
    )
    run = job.run_of(request.query_id)
    if run is None or run.writer_epoch == binding.former_epoch:
        return []
    fence = WriterFence(
        job_id=request.job_id,
        query_id=request.query_id,
        writer_epoch=run.writer_epoch,
    )
    return tell_fence(control, job, fence)


def granted_run(control: ControlState, job: Job, binding: RunBinding) -> BoundRun:
    """Return what a run is told that has shown a ticket."""
    request, writer_epoch = binding.request, binding.writer_epoch
    states = []
    for declaration in request.states:
        state = job.state_named(declaration.state_name)
        assert state is not None
        states.append(
            BoundState(state_name=state.state_name, state_number=state.state_number)
        )
    numbers = [state.state_number for state in states]
    secret, job_id = control.copy_secret, request.job_id
    return BoundRun(
        writer_epoch=writer_epoch,
        states=tuple(states),
        batch_id=job.batch_id_of(request.query_id, numbers),
        grant=staging_grant(secret, job_id, request.query_id, writer_epoch),
    )
