"""
What the mark of a job's key groups says: what is held, what is being copied; pure.

See `queryablestate.store.holdings` and `queryablestate.store.copies`, which change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queryablestate.store.groups import ALL_GROUPS, runs_from, union
from queryablestate.store.layout import CopyMark, HoldMark


if TYPE_CHECKING:
    from queryablestate.store.layout import Runs


__all__ = ["admitted", "copies_under_way", "restart_copies", "sequence_needed"]


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


def restart_copies(mark: HoldMark, sequence: int) -> HoldMark:
    """Return *mark* with all copies begun anew, after the entry *sequence*."""
    copies = tuple(
        CopyMark(
            key_group=one.key_group,
            since=one.since,
            began=sequence,
            version=one.version,
        )
        for one in mark.copies
    )
    return HoldMark(job_id=mark.job_id, held=mark.held, copies=copies)
