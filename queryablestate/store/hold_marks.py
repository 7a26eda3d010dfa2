"""
What the mark of a job's key groups says: what is held, what is being copied; pure.

See `queryablestate.store.holdings` and `queryablestate.store.copies`, which change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from queryablestate.store.groups import (
    ALL_GROUPS,
    intersection,
    is_in,
    runs_from,
    union,
)
from queryablestate.store.layout import CopyMark, HoldMark
from queryablestate.wire.job_plan import JobHolding


if TYPE_CHECKING:
    from collections.abc import Iterable

    from queryablestate.store.layout import Runs, StateMark
    from queryablestate.wire.job_assignment import JoiningGroup


__all__ = [
    "admitted",
    "copies_under_way",
    "holding_of",
    "is_older_than",
    "next_mark",
    "sequence_needed",
]


def admitted(mark: HoldMark | None) -> Runs:
    """Return the key groups that entries apply to."""
    if mark is None:
        return ALL_GROUPS
    complete = runs_from(one.key_group for one in mark.copies if one.is_complete)
    return union(mark.held, complete)


def copies_under_way(mark: HoldMark | None) -> tuple[CopyMark, ...]:
    """Return the copies that are not complete."""
    return (
        () if mark is None else tuple(one for one in mark.copies if not one.is_complete)
    )


def sequence_needed(mark: HoldMark | None) -> int | None:
    """Return the entry after which all are to be kept for copies, None if none is."""
    return min((one.sequence_min for one in copies_under_way(mark)), default=None)


def holding_of(mark: HoldMark, states: Iterable[StateMark]) -> JobHolding:
    """Return what a proxy is told of *mark*, and of the states of the job."""
    lost: Runs = ()
    for state in states:
        lost = union(lost, intersection(state.lost, admitted(mark)))
    return JobHolding(
        job_id=mark.job_id,
        version=mark.version,
        unfinished=tuple(one.key_group for one in copies_under_way(mark)),
        lost=lost,
    )


def is_older_than(mark: HoldMark | None, held: Runs, copied_version: int) -> bool:
    """
    Return whether a store is older than the copies that it is to hold in sync.

    Args:
        mark: Until now.
        held: What it is to hold.
        copied_version: The newest version that began a copy of that; 0 for none.
    """
    if not copied_version:
        return False
    return (0 if mark is None else mark.version) < copied_version or any(
        is_in(held, one.key_group) for one in copies_under_way(mark)
    )


def next_mark(
    old: HoldMark | None,
    job_id: str,
    held: Runs,
    joining: Iterable[JoiningGroup],
    *,
    sequence: int,
    version: int,
) -> HoldMark:
    """
    Return the mark of a job from when an assignment is followed.

    Args:
        old: What was held and copied until now; None for nothing.
        job_id: The job.
        held: In-sync copies.
        joining: Copies that are to be made; one of the same name goes on.
        sequence: The last entry that was applied.
        version: Of the assignment.
    """
    known = {} if old is None else {one.key_group: one for one in old.copies}
    copies: list[CopyMark] = []
    for one in sorted(joining, key=lambda group: group.key_group):
        if is_in(held, one.key_group):
            continue
        copy = known.get(one.key_group)
        if copy is None or (copy.since, copy.version) != (one.since, one.version):
            copy = CopyMark(
                key_group=one.key_group,
                since=one.since,
                began=sequence,
                version=one.version,
            )
        copies.append(copy)
    mark = HoldMark(job_id=job_id, held=held, copies=tuple(copies), version=version)
    if old is not None and copies_under_way(mark):
        mark = replace(mark, dropped=old.dropped, awaited=old.awaited)
    return mark
