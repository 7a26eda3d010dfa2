"""
Jobs that the node has no part in any more, while the store forgets them; pure (B4).

Until the store has, nothing is followed that is said of them, and the node asks for
nothing: it would say how far it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from queryablestate.node.core.effects import ForgetLeftJobs
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    KeepPlan,
    ResetJob,
)


if TYPE_CHECKING:
    from collections.abc import Iterable

    from queryablestate.node.core.effects import NodeEffect
    from queryablestate.node.core.jobs import JobTable
    from queryablestate.wire.node_messages import ToNode


__all__ = ["LeftJobs"]


@final
class LeftJobs:
    """What the store forgets, and what is passed over of it meanwhile."""

    def __init__(self) -> None:
        # While the store forgets jobs: those that it does not.
        self._kept: frozenset[str] | None = None
        # Jobs of which a command was passed over since: the next answer says it again.
        self._passed_over: set[str] = set()
        self._untouched: frozenset[str] = frozenset()
        self._is_looked_for = False

    @property
    def is_under_way(self) -> bool:
        """Return whether the store is forgetting jobs."""
        return self._kept is not None

    def store_opened(self) -> None:
        """Begin with another store, in which no job is being forgotten."""
        self._kept = None
        self._is_looked_for = False

    def registered(self, untouched: Iterable[str]) -> None:
        """Take note that the proxy has said all of every job, but for *untouched*."""
        self._passed_over.clear()
        self._untouched = frozenset(untouched)

    def forget(self, jobs: JobTable, *, is_asking: bool) -> list[NodeEffect]:
        """
        Have forgotten what is left of jobs that the node has no part in.

        Args:
            jobs: What it answers for.
            is_asking: Whether it asks to be registered.
        """
        is_wanted = jobs.has_left_any or not self._is_looked_for
        if self.is_under_way or is_asking or not is_wanted:
            return []
        self._is_looked_for = True
        self._kept = jobs.not_left() | self._untouched
        return [ForgetLeftJobs(kept=tuple(sorted(self._kept)))]

    def forgotten(self) -> None:
        """Take note that the store has forgotten them."""
        self._kept = None

    def passes_over(self, command: ToNode) -> bool:
        """
        Return whether a command is about a job that the store may be forgetting.

        Nothing that is said of that job is followed from then until the node has
        registered anew, though the store be done before: an entry without the
        assignment before it would be applied to key groups that are not held.
        """
        match command:
            case AssignJob(job=job):
                job_id = job.job_id
            case KeepPlan(plan=plan):
                job_id = plan.job_id
            case ApplyEntries(job_id=job_id) | ResetJob(job_id=job_id):
                pass
            case _:
                return False
        if self._kept is not None and job_id not in self._kept:
            self._passed_over.add(job_id)
        return job_id in self._passed_over
