"""
Who would answer for a key group, at any one time (rule S3).

`MoveChecker` looks at each answer that is given, by the assignment that its question
names.  Here all nodes are looked at together, whether anybody asks them or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final


if TYPE_CHECKING:
    from collections.abc import Iterable

    from queryablestate.control.routes import KvStateLocation
    from tests.state_simulation.checkers import Checker
    from tests.state_simulation.node import Node


__all__ = ["AnswerChecker"]


_Ways: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""By which assignments of each job nodes may be asked."""

_Groups: TypeAlias = frozenset[tuple[str, int, int]]
"""Job, assignment, key group."""


@final
class AnswerChecker:
    """
    Looks at all nodes.

    Nodes that answer for more than before are looked at with all others.  One that
    does not, while all are asked in the same way, adds nothing to what was looked at.

    Args:
        checker: Counts what is checked, and has the assignments.
    """

    def __init__(self, checker: Checker) -> None:
        self._require = checker.require
        self._moves = checker.moves
        self._asked: tuple[int, _Ways] = (0, ())
        self._answering: dict[Node, _Groups] = {}

    def look(
        self,
        nodes: Iterable[Node],
        leader_epoch: int,
        locations: Iterable[KvStateLocation],
        stepped: Node | None,
    ) -> None:
        """
        See to it that one node at most would answer now for each key group.

        Args:
            nodes: All that run.
            leader_epoch: Of the present leader: what others ask, they tell none.
            locations: The routes by which that leader asks now: it may not know yet
                that the store has taken another assignment.
            stepped: The only node to which something has happened, or None.
        """
        asked_by = {one.job_id: one.assignment_version for one in locations}
        ways = tuple(
            (
                job_id,
                tuple(sorted({record.version, asked_by.get(job_id, record.version)})),
            )
            for job_id, record in self._moves.present.items()
        )
        if (leader_epoch, ways) == self._asked:
            if stepped is None:
                return
            groups = _answered_by(stepped, leader_epoch, ways)
            if groups <= self._answering.get(stepped, frozenset()):
                return
        self._asked = leader_epoch, ways
        self._answering = {
            node: _answered_by(node, leader_epoch, ways) for node in nodes
        }
        answering: dict[tuple[str, int], str] = {}
        for node, groups in self._answering.items():
            for job_id, _, group in sorted(groups):
                other = answering.setdefault((job_id, group), node.node_id)
                self._require(
                    "S3 one node at most answers for a key group at any one time",
                    other == node.node_id,
                    job_id,
                    group,
                    "is answered for by",
                    other,
                    "and",
                    node.node_id,
                    self._moves.present[job_id],
                )


def _answered_by(node: Node, leader_epoch: int, ways: _Ways) -> _Groups:
    """Return what *node* would answer for now."""
    return frozenset(
        (job_id, version, group)
        for job_id, versions in ways
        for version in versions
        for group in node.answers_for(job_id, leader_epoch, version)
    )
