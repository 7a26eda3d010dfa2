"""
`ReadFloors`: the newest batch that a client has seen of each node; pure.

One client never goes back in time within a key group (rule Q1).  What an answer was
read as of is ordered by (generation, batch id), and each node applies batches in that
order, so it is enough to remember the newest of each node.  It stands for those, too,
that answer in its place with another copy, and may be a batch behind (rule D4).  Two
things could go wrong behind that: an answer that was under way for long, and a key
group that moves to a node which has not yet applied what its former node had.  Hence
what a group brings along when it moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, final

from queryablestate.client.routes import Route
from queryablestate.wire.questions import Reading


__all__ = [
    "PRESENT",
    "Floor",
    "ReadFloors",
    "floor_of_reading",
    "later_of",
    "split_floor",
]

Floor: TypeAlias = tuple[int, int]
"""Generation and batch id; -1 stands for a generation without a batch."""

PRESENT: Final = -1
"""Stands for the present generation, in what is asked: the proxy knows which it is."""

_NOTHING: Final[Floor] = (-1, -1)


def floor_of_reading(reading: Reading) -> Floor:
    """Return *reading* as it is ordered."""
    batch_id = reading.batch_id
    return (reading.generation, -1 if batch_id is None else batch_id)


def split_floor(floor: Floor | None) -> tuple[int | None, int | None]:
    """Return generation and batch id of *floor* as an `Ask` has them."""
    if floor is None:
        return None, None
    generation, batch_id = floor
    return None if generation == PRESENT else generation, batch_id


def later_of(wanted: Floor | None, seen: Floor | None) -> Floor | None:
    """Return which batch an answer must have: the one wanted, or a later one seen."""
    if wanted is None or seen is None:
        return wanted or seen
    if wanted[0] == PRESENT:
        # So was what has been seen: a node has answered with it.
        return (seen[0], max(seen[1], wanted[1]))
    return max(wanted, seen)


@final
class ReadFloors:
    """What one client has seen of one state, by node and by key group that moved."""

    def __init__(self) -> None:
        self._by_node: dict[str, Floor] = {}
        self._by_group: dict[int, Floor] = {}

    def check(
        self, node_id: str, key_groups: Iterable[int], seen: Floor
    ) -> Floor | None:
        """
        Take note of an answer that is new enough, or return how new it should be.

        Args:
            node_id: Who answered.
            key_groups: For which key groups.
            seen: As of what.
        """
        floor = self._by_node.get(node_id, _NOTHING)
        if self._by_group:
            for group in key_groups:
                moved = self._by_group.get(group)
                if moved is not None and moved > floor:
                    floor = moved
        if seen < floor:
            return floor
        self._by_node[node_id] = max(seen, self._by_node.get(node_id, _NOTHING))
        return None

    def check_late(
        self, node_id: str, key_groups: Iterable[int], seen: Floor, present: Route
    ) -> Floor | None:
        """
        Do what `check` does, of an answer that came by a route that was replaced.

        Meanwhile the key groups may have other nodes, which have answered.

        Args:
            node_id: Who answered.
            key_groups: For which key groups.
            seen: As of what.
            present: The present route.
        """
        owners = {
            group: present.node_ids[present.owners[group]] for group in key_groups
        }
        floors = [self._by_node.get(node_id, _NOTHING)]
        for group, owner in owners.items():
            floors.append(self._by_node.get(owner, _NOTHING))
            floors.append(self._by_group.get(group, _NOTHING))
        if seen < max(floors):
            return max(floors)
        self._by_node[node_id] = seen
        for group, owner in owners.items():
            if owner != node_id and seen > self._by_node.get(owner, _NOTHING):
                self._by_group[group] = seen
        return None

    def move(self, before: Route, after: Route) -> None:
        """Take note of a new route to the same state."""
        for group, (old, new) in enumerate(
            zip(before.owners, after.owners, strict=True)
        ):
            old_id = before.node_ids[old]
            if old_id != after.node_ids[new]:
                floor = max(
                    self._by_node.get(old_id, _NOTHING),
                    self._by_group.get(group, _NOTHING),
                )
                if floor != _NOTHING:
                    self._by_group[group] = floor
        for group in [
            group
            for group, floor in self._by_group.items()
            if self._by_node.get(after.node_ids[after.owners[group]], _NOTHING) >= floor
        ]:
            del self._by_group[group]

    def clear(self) -> None:
        """Forget everything: it is another state of the same name."""
        self._by_node.clear()
        self._by_group.clear()
