"""
How operator state moves when the number of subtasks changes (FLIP-8; rules O1, O2).

A *snapshot* is what one subtask left: by name, the mode of the state and its items.
`redistribute` turns the snapshots of the old subtasks into those of the new ones.  It
only moves items; what they are does not matter here.

Beyond Flink: items may be assigned by what they mean, and names are gone through in
sorted order, so that the same snapshots are always dealt alike.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from nameservice.errors import ConfigurationError


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


__all__ = [
    "Assign",
    "RedistributionMode",
    "Snapshot",
    "carry_over",
    "modes_of",
    "redistribute",
]


class RedistributionMode(Enum):
    """How the items of one state are shared among new subtasks."""

    SPLIT_DISTRIBUTE = "split-distribute"
    """Every item goes to one subtask."""

    UNION = "union"
    """Every item goes to every subtask."""

    BROADCAST = "broadcast"
    """All subtasks hold the same; each new one takes it over from an old one."""


Snapshot: TypeAlias = "Mapping[str, tuple[RedistributionMode, Sequence[Any]]]"
Assign: TypeAlias = "Callable[[Any, int], int]"


def redistribute(
    snapshots: Sequence[Snapshot],
    new_parallelism: int,
    *,
    assign: Mapping[str, Assign] | None = None,
) -> list[dict[str, tuple[RedistributionMode, list[Any]]]]:
    """
    Return what each new subtask starts with.

    A split state is dealt in contiguous runs of its items, in the order of (old
    subtask, index); the runs differ in length by one at the most.  The longer ones go
    on, cyclically, from one name to the next, so that the totals differ by one at the
    most, too.  At unchanged parallelism items stay where they are.

    Args:
        snapshots: What the old subtasks left, by their index.
        new_parallelism: How many new subtasks there are; at least 1.
        assign: For some names of split state, a function of (item, new parallelism)
            that returns the subtask where the item belongs; used at unchanged
            parallelism, too.

    Returns:
        A snapshot for each new subtask, by its index.  Every name is in all of them,
        perhaps without items.

    Raises:
        ConfigurationError: If *new_parallelism* is below 1, a name has two modes,
            *assign* names a state that is not split, or sends an item to a subtask
            that there is not.

    Source: Flink, ``RoundRobinOperatorStateRepartitioner``.
    """
    if new_parallelism < 1:
        message = f"new_parallelism must be at least 1, not {new_parallelism}"
        raise ConfigurationError(message)
    modes = modes_of(snapshots)
    assign = {} if assign is None else assign
    _check_assign(assign, modes)
    result: list[dict[str, tuple[RedistributionMode, list[Any]]]] = [
        {} for _ in range(new_parallelism)
    ]
    longer_runs_start = 0
    for name in sorted(modes):
        mode = modes[name]
        lists = [list(snapshot[name][1]) for snapshot in snapshots if name in snapshot]
        match mode:
            case RedistributionMode.UNION:
                shares = _unite(lists, new_parallelism)
            case RedistributionMode.BROADCAST:
                shares = [list(lists[i % len(lists)]) for i in range(new_parallelism)]
            case RedistributionMode.SPLIT_DISTRIBUTE:
                if name in assign:
                    shares = _assign(name, assign[name], lists, new_parallelism)
                elif len(snapshots) == new_parallelism:
                    shares = [list(s[name][1]) if name in s else [] for s in snapshots]
                else:
                    items = [item for part in lists for item in part]
                    shares = _deal(items, new_parallelism, longer_runs_start)
                    longer_runs_start += len(items) % new_parallelism
            case _:
                assert_never(mode)
        for subtask, share in zip(result, shares, strict=True):
            subtask[name] = (mode, share)
    return result


def carry_over(
    snapshots: Sequence[Snapshot],
    parallelism: int,
    *,
    assign: Mapping[str, Assign] | None = None,
) -> list[dict[str, tuple[RedistributionMode, list[Any]]]]:
    """
    Return what each subtask of the next batch starts with.

    As long as their number is the same, subtasks go on with what they left themselves,
    union state too: whether a driver was restarted in between is not to be seen.  Only
    items that are assigned go where they belong.  Otherwise this is `redistribute`.

    Args:
        snapshots: What the subtasks of the last batch left, by their index.
        parallelism: How many there are in the next one; at least 1.
        assign: As in `redistribute`.

    Returns:
        A snapshot for each subtask, by its index.

    Raises:
        ConfigurationError: As `redistribute`.
    """
    if parallelism != len(snapshots):
        return redistribute(snapshots, parallelism, assign=assign)
    _check_assign({} if assign is None else assign, modes_of(snapshots))
    result = [
        {name: (mode, list(items)) for name, (mode, items) in one.items()}
        for one in snapshots
    ]
    if assign:
        assigned = [{n: s[n] for n in s if n in assign} for s in snapshots]
        moved = redistribute(assigned, parallelism, assign=assign)
        for subtask, share in zip(result, moved, strict=True):
            subtask.update(share)
    return result


def modes_of(
    snapshots: Sequence[Mapping[str, tuple[RedistributionMode, Any]]],
) -> dict[str, RedistributionMode]:
    """
    Return the mode of every state.

    Args:
        snapshots: Of all subtasks; their items may be in bytes, for they are not read.

    Raises:
        ConfigurationError: If a name has two modes.
    """
    modes: dict[str, RedistributionMode] = {}
    for snapshot in snapshots:
        for name, (mode, _) in snapshot.items():
            if modes.setdefault(name, mode) is not mode:
                message = (
                    f"the state {name!r} is {modes[name].value} in one snapshot and "
                    f"{mode.value} in another: give them different names"
                )
                raise ConfigurationError(message)
    return modes


def _check_assign(
    assign: Mapping[str, Assign], modes: Mapping[str, RedistributionMode]
) -> None:
    for name in sorted(assign):
        mode = modes.get(name, RedistributionMode.SPLIT_DISTRIBUTE)
        if mode is not RedistributionMode.SPLIT_DISTRIBUTE:
            message = (
                f"the state {name!r} is {mode.value}: only split-distribute state "
                "can be assigned"
            )
            raise ConfigurationError(message)


def _unite(lists: Sequence[Sequence[Any]], parallelism: int) -> list[list[Any]]:
    return [[item for part in lists for item in part] for _ in range(parallelism)]


def _deal(items: Sequence[Any], parallelism: int, start: int) -> list[list[Any]]:
    """Deal *items* in runs, the longer ones from subtask *start* on, cyclically."""
    shares: list[list[Any]] = [[] for _ in range(parallelism)]
    length, longer_count = divmod(len(items), parallelism)
    begin = 0
    for offset in range(parallelism):
        end = begin + length + (offset < longer_count)
        shares[(start + offset) % parallelism] = list(items[begin:end])
        begin = end
    return shares


def _assign(
    name: str, assign: Assign, lists: Sequence[Sequence[Any]], parallelism: int
) -> list[list[Any]]:
    shares: list[list[Any]] = [[] for _ in range(parallelism)]
    for part in lists:
        for item in part:
            index: object = assign(item, parallelism)  # a user's function
            if (
                not isinstance(index, int)
                or isinstance(index, bool)
                or not 0 <= index < parallelism
            ):
                message = (
                    f"assign for the state {name!r} returned {index!r} for {item!r}: "
                    f"it must be a subtask, 0 to {parallelism - 1}"
                )
                raise ConfigurationError(message)
            shares[index].append(item)
    return shares
