"""
How the chain of a job comes to its nodes, and how far they are with it; pure.

Theory of operation.  An entry goes to the nodes that are present as soon as the leader
store has it.  A node that was away says how far it is when it registers, and is sent
the rest at once, before anything else that the proxy has to say to it.

A node can be behind in three ways.  It *missed* entries: it is sent them.  It has *no
part* in what came before it joined: it begins there.  Or its rows are *lost* (another
data directory, an older state of the one that it had, or entries that it needs are not
kept any more): it begins at the head, and answers for no state that has rows until a
batch replaces them (rule W7).

**What tells an older state** of a data directory, where all entries since are there.  A
copy that is in sync was made of what another node had, and of what was decided before
it was, that one alone was brought the rows.  So a directory that was not told yet to
make that copy (`AssignmentRecord.copied_versions`), or has not completed it, is older:
where nothing has gone back, both are on disk before a copy is in sync.  Its store keeps
it older until it has begun anew: to hold what is assigned makes it no newer.

A node that has no in-sync copy of any key group (rule S1) has nothing to lose: it
begins wherever it can, and makes its copies anew from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queryablestate.control.assignment.assignment import copied_version, held_by
from queryablestate.control.effects import SendToNode
from queryablestate.control.job.job import ENTRY_KEPT_COUNT
from queryablestate.control.job.leader_paths import encode_record
from queryablestate.wire.node_messages import ApplyEntries, ResetJob
from queryablestate.wire.records import SnapshotRestored


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.job_plan import JobHolding
    from queryablestate.wire.records import Entry


__all__ = [
    "catch_up",
    "declare_lost",
    "extend_chain",
    "lagging_nodes",
    "lost_groups",
    "prunable_entries",
]

_PRUNED_COUNT_MAX: Final = 50
_ENTRIES_PER_MESSAGE_MAX: Final = 100
_MESSAGE_SIZE_BYTES_MAX: Final = 1_000_000


def extend_chain(
    control: ControlState, job: Job, change: JobChange
) -> list[ControlEffect]:
    """Adopt a change that has a new entry, and send that to the nodes."""
    assert change.entry is not None
    job.adopt(change)
    control.routes.locate(job)
    message = ApplyEntries(
        leader_epoch=control.leader_epoch,
        job_id=job.record.job_id,
        entries=(change.entry,),
    )
    return [
        SendToNode(link=node.link, message=message) for node in control.present_of(job)
    ]


def catch_up(control: ControlState, job: Job, node: PresentNode) -> list[ControlEffect]:
    """Send a node, which has key groups of a job, what it has missed of it."""
    assignment, record = job.assignment, job.record
    assert assignment is not None
    index = assignment.node_ids.index(node.node_id)
    joined = assignment.since_sequences[index]
    is_as_assigned = assignment.store_ids[index] == node.store_id
    position = node.sequences.get(record.job_id)
    if position is not None and position > record.sequence:
        return []  # it is ahead, and keeps what it has: see `kept_jobs`
    if position is None and joined == 0 and is_as_assigned:
        position = 0  # an empty directory is all there ever was
    if position is None or position < joined:
        entries = job.entries_after(joined)
        if not is_as_assigned or entries is None or _is_older(job, node, None):
            return declare_lost(control, job, node)
        effects = [_reset(control, job, node, sequence=joined, lost=())]
    else:
        entries = job.entries_after(position)
        holding = node.holdings.get(record.job_id)
        if entries is None or _is_older(job, node, holding):
            return declare_lost(control, job, node)
        node.sequences[record.job_id] = position
        effects = []
    for part in _parts(entries):
        message = ApplyEntries(
            leader_epoch=control.leader_epoch, job_id=record.job_id, entries=part
        )
        effects.append(SendToNode(link=node.link, message=message))
    return effects


def declare_lost(
    control: ControlState, job: Job, node: PresentNode
) -> list[ControlEffect]:
    """
    Have a node begin at the head, with every state that has rows lost (rule W7).

    Unless others have all in-sync copies: then nothing is lost.
    """
    is_holder = node.node_id in job.holder_ids()
    lost = job.state_numbers_with_rows() if is_holder else ()
    node.lost_jobs.add(job.record.job_id)
    node.lost_groups.pop(job.record.job_id, None)
    return [_reset(control, job, node, sequence=job.record.sequence, lost=lost)]


def lost_groups(job: Job, node: PresentNode) -> Sequence[int]:
    """Return the key groups of which a node that comes says that rows are lost."""
    job_id, count = job.record.job_id, job.record.max_parallelism
    holding = node.holdings.get(job_id)
    if holding is not None:
        runs = holding.lost
    elif node.lost.get(job_id):
        runs = ((0, count - 1),)
    else:
        return []
    return [
        key_group
        for first, last in runs
        for key_group in range(first, min(last + 1, count))
    ]


def lagging_nodes(control: ControlState, job: Job, sequence: int) -> Sequence[str]:
    """
    Return who has an in-sync copy, and has not applied that entry, as far as is known.

    Copies that are being made are not waited for: they are not asked.
    """
    job_id, nodes = job.record.job_id, control.nodes
    return [
        node_id
        for node_id in job.holder_ids()
        if nodes.applied(node_id, job_id) < sequence
    ]


def prunable_entries(control: ControlState, job: Job) -> Sequence[int]:
    """Return the oldest entries, if one is added, that are not kept longer (W3)."""
    assert job.assignment is not None
    record = job.record
    applied = []
    for node_id in job.assignment.node_ids:
        node = control.nodes.present(node_id)
        if node is None:
            return ()
        applied.append(node.sequences.get(record.job_id, 0))
    last = min(*applied, record.sequence + 1 - ENTRY_KEPT_COUNT)
    end = min(last + 1, record.sequence_first + _PRUNED_COUNT_MAX)
    return range(record.sequence_first, end)


def _is_older(job: Job, node: PresentNode, holding: JobHolding | None) -> bool:
    """Return whether a node has in-sync copies that were made since *holding*."""
    assignment = job.assignment
    assert assignment is not None
    version = copied_version(assignment, node.node_id)
    if not version:
        return False  # nothing was copied: there were no rows when it was assigned
    if holding is None or version > holding.version:
        return True
    held = held_by(assignment, node.node_id)
    return not set(held).isdisjoint(holding.unfinished)


def _reset(
    control: ControlState,
    job: Job,
    node: PresentNode,
    *,
    sequence: int,
    lost: tuple[int, ...],
) -> ControlEffect:
    # Until the node says how far it is, it is nowhere.
    node.sequences.pop(job.record.job_id, None)
    node.copies.pop(job.record.job_id, None)
    node.resets[job.record.job_id] = sequence
    message = ResetJob(
        leader_epoch=control.leader_epoch,
        job_id=job.record.job_id,
        sequence=sequence,
        state_numbers=lost,
        restore_id=_restore_id(job, sequence),
    )
    return SendToNode(link=node.link, message=message)


def _restore_id(job: Job, sequence: int) -> str | None:
    """Return what a node that begins there keeps of what it has loaded."""
    if not job.states:
        return None  # it may be about to be restored
    following = job.entries.get(sequence + 1)
    return following.restore_id if isinstance(following, SnapshotRestored) else ""


def _parts(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    """Divide entries into messages of a bounded size; one entry is always sent."""
    part: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        entry_size_bytes = len(encode_record(entry))
        is_full = len(part) >= _ENTRIES_PER_MESSAGE_MAX or (
            size_bytes + entry_size_bytes > _MESSAGE_SIZE_BYTES_MAX
        )
        if part and is_full:
            yield tuple(part)
            part, size_bytes = [], 0
        part.append(entry)
        size_bytes += entry_size_bytes
    if part:
        yield tuple(part)
