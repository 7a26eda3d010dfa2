"""
Sets of key groups, as the runs that they are stored as; and their rows, found in lists.

There are as many key groups as two bytes can say, and a node holds all of a job, or
some runs of them: so a set is a tuple of first and last ones, sorted, none touching.
Rows are sorted by keys that begin with the key group, so that the rows of a run lie
side by side: they are found by bisection, and no key is looked at for itself.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, TypeAlias

from queryablestate.schema.key_groups import group_start
from queryablestate.store.layout import Runs
from queryablestate.store.rows import group_end
from queryablestate.wire.staging_messages import StagedRows


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = [
    "ALL_GROUPS",
    "RowRanges",
    "difference",
    "groups_in",
    "intersection",
    "is_in",
    "row_ranges",
    "runs_from",
    "selected_rows",
    "spans",
    "union",
]

_GROUP_COUNT: Final = 1 << 16

ALL_GROUPS: Final[Runs] = ((0, _GROUP_COUNT - 1),)
"""What a store holds of a job that it was told nothing of."""

RowRanges: TypeAlias = "Sequence[tuple[bytes, bytes | None]]"
"""First row key included, last excluded (None for no end); sorted, none touch."""


def runs_from(key_groups: Iterable[int]) -> Runs:
    """Return *key_groups*, in any order, as runs."""
    runs: list[tuple[int, int]] = []
    for key_group in sorted(key_groups):
        if runs and key_group <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], key_group)
        else:
            runs.append((key_group, key_group))
    return tuple(runs)


def is_in(runs: Runs, key_group: int) -> bool:
    """Return whether *key_group* is one of them."""
    return any(first <= key_group <= last for first, last in runs)


def groups_in(runs: Runs, key_groups: Iterable[int]) -> tuple[int, ...]:
    """Return which of *key_groups* are in *runs*, in their order."""
    return tuple(one for one in key_groups if is_in(runs, one))


def union(some: Runs, others: Runs) -> Runs:
    """Return the key groups that are in either."""
    runs: list[tuple[int, int]] = []
    for first, last in sorted((*some, *others)):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(runs[-1][1], last))
        else:
            runs.append((first, last))
    return tuple(runs)


def intersection(some: Runs, others: Runs) -> Runs:
    """Return the key groups that are in both."""
    return tuple(
        (max(first, other_first), min(last, other_last))
        for first, last in some
        for other_first, other_last in others
        if max(first, other_first) <= min(last, other_last)
    )


def difference(some: Runs, others: Runs) -> Runs:
    """Return the key groups of *some* that are not in *others*."""
    gaps: list[tuple[int, int]] = []
    begin = 0
    for first, last in others:
        if begin < first:
            gaps.append((begin, first - 1))
        begin = last + 1
    if begin < _GROUP_COUNT:
        gaps.append((begin, _GROUP_COUNT - 1))
    return intersection(some, tuple(gaps))


def row_ranges(runs: Runs) -> RowRanges:
    """Return the ranges of row keys that these key groups take up."""
    return [(group_start(first), group_end(last)) for first, last in runs]


def spans(keys: Sequence[bytes], ranges: RowRanges) -> list[tuple[int, int]]:
    """Return where in *keys*, which are sorted, those in *ranges* are, as ``[i:j]``."""
    found: list[tuple[int, int]] = []
    begin = 0
    for first, last in ranges:
        begin = bisect_left(keys, first, begin)
        if begin == len(keys):
            break
        end = len(keys) if last is None else bisect_left(keys, last, begin)
        if end > begin:
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
            begin = end
    return found


def selected_rows(rows: StagedRows, ranges: RowRanges) -> StagedRows | None:
    """Return the rows of a chunk whose keys are in *ranges*, None if there are none."""
    keys = rows.keys
    if not keys:
        return None
    found = spans(keys, ranges)
    if found == [(0, len(keys))]:
        return rows  # as a rule: who writes brings a node what it holds
    if not found:
        return None
    values, orders = rows.values, rows.orders
    return StagedRows(
        state_number=rows.state_number,
        keys=[key for i, j in found for key in keys[i:j]],
        values=[value for i, j in found for value in values[i:j]],
        orders=None
        if orders is None
        else [order for i, j in found for order in orders[i:j]],
    )
