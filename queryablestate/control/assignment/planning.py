"""
Which nodes are to have which key groups, also while some are away; pure (S1, O6).

Theory of operation.  A plan deals all copies evenly to the nodes that are chosen for
the job (`queryablestate.control.assignment.placement`).  One that is away is dealt what
it has, and may be dealt more: a moment later it may be back.

**No draining node waits for one that is away.**  If a plan would give a copy to a node
that is not here, or cannot go on, it is made *around* such nodes: each keeps what only
it has, and gets no more; those that are here share all else evenly.  It is made for all
when they are back.

Both kinds of plans count as good, so that none is made anew without need.  The one for
all stays good when a node goes away, unless a draining node would have to wait: other
moves do, and go on when it is back.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from attrs import define, field

from queryablestate.control.assignment.placement import place


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from queryablestate.control.assignment.node_standing import NodeStanding
    from queryablestate.wire.records import JoiningCopy


__all__ = ["Planner"]


@final
@define(kw_only=True)
class Planner:
    """
    Says where the copies of one job are to be; nodes are indexes.

    Attributes:
        owners: The in-sync copies of each key group, the primary first.
        joining: The copies that are being made of each.
        standings: What there is to know of each node.
        expected: The nodes that may be back in a moment with what they have.
        chosen: The nodes that are to have the job, sorted; at least one.
        replica_count: How many copies of each; with fewer nodes one on each.
    """

    owners: Sequence[tuple[int, ...]]
    joining: Sequence[tuple[JoiningCopy, ...]]
    standings: Sequence[NodeStanding]
    expected: Collection[int]
    chosen: Sequence[int]
    replica_count: int
    _degree: int = field(init=False)
    _away: frozenset[int] = field(init=False)
    _able: Sequence[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._degree = min(self.replica_count, len(self.chosen))
        away = frozenset(filter(self._is_away, self.chosen))
        # Without any other node there is none to plan for instead.
        self._away = away if len(away) < len(self.chosen) else frozenset()
        self._able = [index for index in self.chosen if index not in self._away]

    def is_good(self, wanted: Sequence[tuple[int, ...]]) -> bool:
        """Return whether *wanted* is as good as what `plan` would make."""
        return (
            {index for nodes in wanted for index in nodes} == set(self.chosen)
            and all(len(nodes) == self._degree for nodes in wanted)
            and _are_even(wanted, self.chosen)
            and not self._is_drain_held_up(wanted)
        ) or self._is_around(wanted)

    def plan(self) -> list[tuple[int, ...]]:
        """Return the nodes that are to have each key group, the primary first."""
        wanted = self._placed(range(len(self.owners)), self.chosen)
        if self._is_drain_held_up(wanted) or any(
            set(nodes) & self._away - set(owners)
            for owners, nodes in zip(self.owners, wanted, strict=True)
        ):
            self._plan_around(wanted)
        return wanted

    # -- parts ---------------------------------------------------------------------

    def _is_away(self, index: int) -> bool:
        """Return whether that node is not here, or here and cannot go on."""
        standing = self.standings[index]
        return index not in self.expected and (
            not standing.is_present or standing.is_failing
        )

    def _placed(
        self, key_groups: Sequence[int], indexes: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return where the copies of *key_groups* are to be, evenly on *indexes*."""
        places = {index: place_ for place_, index in enumerate(indexes)}
        wanted = place(
            [
                tuple(places[index] for index in self.owners[one] if index in places)
                for one in key_groups
            ],
            joining=[
                tuple(
                    places[copy.node_index]
                    for copy in self.joining[one]
                    if copy.node_index in places
                )
                for one in key_groups
            ],
            node_count=len(indexes),
            replica_count=min(self.replica_count, len(indexes)),
        )
        return [tuple(indexes[number] for number in nodes) for nodes in wanted]

    # -- parts: around nodes that are away -----------------------------------------

    def _is_drain_held_up(self, wanted: Sequence[tuple[int, ...]]) -> bool:
        """
        Return whether a draining node would have to wait for one that is away.

        Other moves wait: what they are about is at a node that keeps it, and planning
        anew would move it twice if the one that is away is back soon.  A copy that only
        nodes that are away are to have is not given up before they are back, either.
        """
        if not self._away:
            return False
        draining = {i for i, one in enumerate(self.standings) if one.is_draining}
        present = {i for i in draining if self.standings[i].is_present}
        return any(
            (
                not draining.isdisjoint(owners)
                and any(index in self._away and index not in owners for index in nodes)
            )
            or (not present.isdisjoint(owners) and self._away.issuperset(nodes))
            for owners, nodes in zip(self.owners, wanted, strict=True)
        )

    def _kept(self) -> dict[int, tuple[int, ...]]:
        """Return the key groups that only nodes that are away have, with those."""
        away = self._away
        present = {i for i, one in enumerate(self.standings) if one.is_present}
        return {
            key_group: tuple(index for index in owners if index in away)[: self._degree]
            for key_group, owners in enumerate(self.owners)
            if any(index in away for index in owners)
            and not any(
                index not in away and (index in present or index in self.expected)
                for index in owners
            )
        }

    def _is_around(self, wanted: Sequence[tuple[int, ...]]) -> bool:
        """Return whether *wanted* is one that `_plan_around` could have made."""
        if not self._away:
            return False
        able = self._able
        kept = self._kept()
        others = [nodes for one, nodes in enumerate(wanted) if one not in kept]
        able_degree = min(self._degree, len(able))
        return (
            all(
                wanted[one][: len(nodes)] == nodes
                and len(wanted[one]) == min(self._degree, len(nodes) + len(able))
                and set(wanted[one][len(nodes) :]) <= set(able)
                for one, nodes in kept.items()
            )
            and all(
                len(nodes) == able_degree and set(nodes) <= set(able)
                for nodes in others
            )
            and _are_even(others, able)
        )

    def _plan_around(self, wanted: list[tuple[int, ...]]) -> None:
        """Have those that are away keep what only they have, and others share."""
        able = self._able
        kept = self._kept()
        others = [one for one in range(len(self.owners)) if one not in kept]
        for one, nodes in zip(others, self._placed(others, able), strict=True):
            wanted[one] = nodes
        for one, nodes in kept.items():
            # There is nowhere to copy it from now, but it is missing, and counts.
            more_count = min(self._degree - len(nodes), len(able))
            more = (able[(one + n) % len(able)] for n in range(more_count))
            wanted[one] = (*nodes, *more)


def _are_even(wanted: Sequence[tuple[int, ...]], indexes: Sequence[int]) -> bool:
    """
    Return whether none of *indexes* is to have more than another.

    It may be that one has: a plan is forgotten when no node is there any more.
    """
    copies = Counter(index for nodes in wanted for index in nodes)
    primaries = Counter(nodes[0] for nodes in wanted)
    return all(
        max(counts[index] for index in indexes)
        - min(counts[index] for index in indexes)
        <= 1
        for counts in (copies, primaries)
    )
