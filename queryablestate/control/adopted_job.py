"""
What a job becomes that is taken over from its nodes; pure.

Each node tells what it keeps: the plan of the job as of the last entry that it applied,
and the newest entries.  The job goes on from the node that has applied most; the others
are brought the entries that they lack, as far as one of them has kept these.  Which
node has which key groups is what the newest assignment says that any of them heard of:
one that takes a copy out of the set is told to nodes before they apply what that copy
misses (rule S1).

**Two histories** cannot be made one.  If an entry of one number differs, between nodes
or between them and the leader store, nothing is taken over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import frozen
from msgspec.structs import replace

from nameservice import StorageError
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.records import AssignmentRecord, JobRecord


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from queryablestate.control.job.job import Job
    from queryablestate.wire.job_plan import JobPlan
    from queryablestate.wire.node_messages import PlanTold
    from queryablestate.wire.records import Entry, StateRecord


__all__ = ["AdoptedJob", "adopted_job"]

_VERSIONS_PASSED_OVER: Final = 1_000
"""Versions of the assignment that are known no more may have been given out."""


@final
@frozen(kw_only=True)
class AdoptedJob:
    """
    A job as it is from then on.

    Attributes:
        record: Its record.
        assignment: The one assignment that is kept.
        states: Its states.
        entries: The entries that are kept.
        ticket_limit: No ticket that was given out before is known to be as high.
        lost_ids: Nodes that lack entries that no node has, sorted.
    """

    record: JobRecord
    assignment: AssignmentRecord
    states: tuple[StateRecord, ...]
    entries: tuple[Entry, ...]
    ticket_limit: int
    lost_ids: tuple[str, ...]


def adopted_job(told: Mapping[str, PlanTold], stored: Job | None) -> AdoptedJob:
    """
    Return what a job is made of.

    Args:
        told: What nodes keep of it, by node.
        stored: What the leader store holds of it, or None.

    Raises:
        StorageError: If that cannot be said.
    """
    plans = {node_id: one.plan for node_id, one in told.items() if one.plan is not None}
    if not plans:
        raise StorageError(
            "no node that is here was ever told what its rows are: they were written "
            "by an earlier version; restore a snapshot, or publish the state anew"
        )
    numbers = {plan.job_number for plan in plans.values()}
    if stored is not None:
        numbers.add(stored.record.job_number)
    if len(numbers) > 1:
        raise StorageError("nodes have rows of more than one job of that name")
    entries = _entries(told, stored)
    head = max(sorted(plans), key=lambda node_id: plans[node_id].sequence)
    newest = max(plans.values(), key=lambda plan: (plan.ticket_limit, plan.sequence))
    if stored is not None and stored.record.sequence >= plans[head].sequence:
        # What was decided is known; what is not is how the job was assigned since.
        record = stored.record
        states = tuple(stored.states.values())
    else:
        record = _record(plans[head], newest)
        states = tuple(one.state for one in plans[head].states)
    first = record.sequence + 1
    while first - 1 in entries:
        first -= 1
    if stored is not None and record is stored.record:
        first = max(first, record.sequence_first)
    assignment = _assignment(plans.values(), stored, sequence=record.sequence)
    return AdoptedJob(
        record=replace(record, sequence_first=first),
        assignment=assignment,
        states=states,
        entries=tuple(entries[one] for one in range(first, record.sequence + 1)),
        ticket_limit=newest.ticket_limit,
        lost_ids=_behind(told, first, assignment.node_ids),
    )


def _entries(told: Mapping[str, PlanTold], stored: Job | None) -> dict[int, Entry]:
    """Return every entry that somebody has, by number."""
    entries: dict[int, Entry] = {} if stored is None else dict(stored.entries)
    owners = dict.fromkeys(entries, "the name service")
    for node_id, one in sorted(told.items()):
        for entry in one.entries:
            known = entries.get(entry.sequence)
            if known is not None and entry_digest(known) != entry_digest(entry):
                raise StorageError(
                    f"node {node_id} and {owners[entry.sequence]} have gone different "
                    f"ways since entry {entry.sequence}: only one of them can be right"
                )
            entries[entry.sequence] = entry
            owners.setdefault(entry.sequence, f"node {node_id}")
    return entries


def _record(head: JobPlan, newest: JobPlan) -> JobRecord:
    return JobRecord(
        job_id=head.job_id,
        job_number=head.job_number,
        max_parallelism=head.max_parallelism,
        sequence=head.sequence,
        sequence_first=head.sequence + 1,
        runs=newest.runs,
        progress=tuple(one.progress for one in head.states),
        fence=newest.fence,
    )


def _assignment(
    plans: Iterable[JobPlan], stored: Job | None, *, sequence: int
) -> AssignmentRecord:
    """Return the newest assignment without what was to be copied, as a new one."""
    known = [plan.assignment for plan in plans]
    if stored is not None and stored.assignment is not None:
        known.append(stored.assignment)
    former = max(known, key=lambda assignment: assignment.version)
    used = sorted({index for owners in former.owners for index in owners})
    place = {index: position for position, index in enumerate(used)}
    return replace(
        former,
        version=former.version + _VERSIONS_PASSED_OVER,
        sequence=sequence,
        node_ids=tuple(former.node_ids[index] for index in used),
        store_ids=tuple(former.store_ids[index] for index in used),
        since_sequences=tuple(former.since_sequences[index] for index in used),
        copied_versions=former.copied_versions
        and tuple(former.copied_versions[index] for index in used),
        owners=tuple(
            tuple(place[index] for index in owners) for owners in former.owners
        ),
        joining=(),
        wanted=(),
        planned_count=0,
    )


def _behind(
    told: Mapping[str, PlanTold], first: int, node_ids: Collection[str]
) -> tuple[str, ...]:
    """Return the nodes of the job that lack an entry before *first*."""
    return tuple(
        node_id
        for node_id, one in sorted(told.items())
        if node_id in node_ids and one.sequence + 1 < first
    )
