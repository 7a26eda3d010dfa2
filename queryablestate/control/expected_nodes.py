"""
The state nodes that may be back in a moment, as the proxy leader knows them; pure.

The connection of a node has closed: perhaps it has ended, perhaps only the connection
has.  What it had counts for a moment longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import evolve, frozen


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from queryablestate.control.present_node import PresentNode


__all__ = ["ExpectedNodes"]


@final
@frozen
class _Expected:
    """
    A node that may be back in a moment.

    Attributes:
        node: As it was when its connection closed.
        until_ns: How long it is expected.
    """

    node: PresentNode
    until_ns: int


@final
class ExpectedNodes:
    """Which nodes are expected, as they were, and how long."""

    def __init__(self) -> None:
        self._expected: dict[str, _Expected] = {}

    def __contains__(self, node_id: str) -> bool:
        """Return whether a node is away, and may be back in a moment."""
        return node_id in self._expected

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of those that are expected, sorted."""
        return iter(sorted(self._expected))

    def node(self, node_id: str) -> PresentNode | None:
        """Return a node as it was when its connection closed, if it is expected."""
        expected = self._expected.get(node_id)
        return None if expected is None else expected.node

    def have(self, node_id: str, job_id: str) -> bool:
        """
        Return whether a node is expected with what it had of a job.

        One that could not go on with the job, or had lost all its rows, had nothing.
        """
        node = self.node(node_id)
        return (
            node is not None
            and job_id not in node.failing
            and not node.has_lost_all(job_id)
        )

    def add(
        self, node: PresentNode, *, now_ns: int, grace_ns: int, until_ns_max: int
    ) -> None:
        """
        Expect *node*, which has gone, to be back.

        One that was away before is expected no longer than it was then, unless it has
        caught up and has been here for long since: it may come and go, and commits wait
        for it.

        Args:
            node: Which.
            now_ns: The time.
            grace_ns: How long it is expected, and how long it must have been here.
            until_ns_max: Until when at the most.
        """
        until_ns = min(now_ns + grace_ns, until_ns_max)
        is_back = not node.missed and now_ns - node.registered_at_ns >= grace_ns
        if node.expected_until_ns is not None and not is_back:
            until_ns = min(until_ns, node.expected_until_ns)
        self._expected[node.node_id] = _Expected(node, until_ns)

    def welcome(self, node: PresentNode) -> None:
        """Expect *node* no more, which is here; note in it how long it was expected."""
        expected = self._expected.pop(node.node_id, None)
        if expected is not None and expected.node.store_id == node.store_id:
            node.expected_until_ns = expected.until_ns

    def until_ns(self, coming: Collection[str]) -> int | None:
        """
        Return when the first of those that are expected is not any more, or None.

        Args:
            coming: Nodes that are about to be taken in: they are in time.
        """
        expected = self._expected.items()
        times = [one.until_ns for node_id, one in expected if node_id not in coming]
        return min(times, default=None)

    def give_up_late(self, coming: Collection[str], *, now_ns: int) -> bool:
        """Expect no more who should be back by now; return whether there is one."""
        late = [
            node_id
            for node_id, one in self._expected.items()
            if one.until_ns <= now_ns and node_id not in coming
        ]
        for node_id in late:
            del self._expected[node_id]
        return bool(late)

    def forgive(self, late_ns: int, *, until_ns_max: int) -> None:
        """Expect nodes for that much longer, but not for longer than until then."""
        for node_id, one in self._expected.items():
            until_ns = max(one.until_ns, min(one.until_ns + late_ns, until_ns_max))
            self._expected[node_id] = evolve(one, until_ns=until_ns)

    def give_up(self, node_id: str) -> None:
        """Do not expect that node any more."""
        self._expected.pop(node_id, None)
