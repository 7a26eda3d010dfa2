"""
Who would answer for a key group, at any one time (rule S3).

`MoveChecker` looks at each answer that is given, by the assignment that its question
names.  Here all nodes are looked at together, whether anybody asks them or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Iterable

    from queryablestate.control.routes import KvStateLocation
    from tests.state_simulation.checkers import Checker
    from tests.state_simulation.node import Node


__all__ = ["AnswerChecker"]


@final
class AnswerChecker:
    """
    Looks at all nodes.

    Args:
        checker: Counts what is checked, and has the assignments.
    """

    def __init__(self, checker: Checker) -> None:
        self._require = checker.require
        self._moves = checker.moves

    def look(
        self,
        nodes: Iterable[Node],
        leader_epoch: int,
        locations: Iterable[KvStateLocation],
    ) -> None:
        """
        See to it that one node at most would answer now for each key group.

        Args:
            nodes: All that run.
            leader_epoch: Of the present leader: what others ask, they tell none.
            locations: The routes by which that leader asks now: it may not know yet
                that the store has taken another assignment.
        """
        there = tuple(nodes)
        asked_by = {one.job_id: one.assignment_version for one in locations}
        for job_id, record in self._moves.present.items():
            versions = {record.version, asked_by.get(job_id, record.version)}
            answering: dict[int, str] = {}
            for node in there:
                for version in sorted(versions):
                    for group in node.answers_for(job_id, leader_epoch, version):
                        other = answering.setdefault(group, node.node_id)
                        self._require(
                            "S3 one node at most answers for a key group at any one "
                            "time",
                            other == node.node_id,
                            job_id,
                            group,
                            "is answered for by",
                            other,
                            "and",
                            node.node_id,
                            record,
                        )
