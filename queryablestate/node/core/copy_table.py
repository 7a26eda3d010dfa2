"""What a node holds of all its jobs: one `JobCopies` for each; pure."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, final

from nameservice.clock import earliest
from queryablestate.node.core.copies import JobCopies
from queryablestate.wire.job_assignment import JobAssignment


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from queryablestate.node.core.effects import NodeEffect
    from queryablestate.node.core.events import (
        CopyAdvanced,
        CopyFinished,
        KeyGroupsFetched,
        KeyGroupsHeld,
    )
    from queryablestate.node.core.limits import NodeLimits
    from queryablestate.node.core.registration import NodeIdentity


__all__ = ["CopyTable"]


@final
class CopyTable:
    """
    What the node holds of every job.

    Args:
        identity: This node.
        limits: How long it waits.
    """

    def __init__(self, identity: NodeIdentity, limits: NodeLimits) -> None:
        self._identity = identity
        self._limits = limits
        self._fetch_ids = count(1)  # of all jobs, and of every store
        self._copied_count = 0
        self._jobs: dict[str, JobCopies] = {}
        # Those with something to do: most steps are about batches, and there may be a
        # thousand jobs.
        self._busy: dict[str, JobCopies] = {}

    # -- questions -----------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """Return when `advance` must be called, as far as that call could tell."""
        if not self._busy:
            return None
        moments = (copies.deadline_ns for copies in self._busy.values())
        return earliest(moments)

    def figures(self) -> Mapping[str, int]:
        """Return how much is held, and being copied, in all."""
        jobs = self._jobs.values()
        return {
            "key_groups_held": sum(copies.held_count for copies in jobs),
            "key_groups_copying": sum(copies.missing_count for copies in jobs),
            "key_groups_copied_total": self._copied_count,
            "rows_copied_total": sum(copies.row_count for copies in jobs),
            "rows_copied_bytes_total": sum(copies.size_bytes for copies in jobs),
        }

    # -- what is assigned ----------------------------------------------------------

    def assign_all(
        self,
        jobs: Iterable[JobAssignment],
        job_ids: Iterable[str],
        untouched: Collection[str] = (),
    ) -> list[NodeEffect]:
        """
        Hold these, and nothing of other jobs.

        Args:
            jobs: Of which what is to be held.
            job_ids: Those in the store.
            untouched: What is held of these stays as it is (rule W7).
        """
        named = {job.job_id: job for job in jobs}
        effects: list[NodeEffect] = []
        for job_id in sorted(untouched):
            effects += self.forget_job(job_id)
        for job_id in sorted({*named, *job_ids, *self._jobs}.difference(untouched)):
            job = named.get(job_id)
            effects += self.assign(self._nothing(job_id) if job is None else job)
        return effects

    def assign(self, job: JobAssignment) -> list[NodeEffect]:
        """Hold what *job* says; go on fetching what is still to be had there."""
        copies = self._wake(job.job_id)
        if copies is not None:
            return copies.assign(job)
        self._jobs[job.job_id] = self._busy[job.job_id] = JobCopies(
            job, self._identity, self._limits, self._fetch_ids
        )
        return []

    def missed_came(self) -> None:
        """Take note that nothing more comes that belongs to the assignments."""
        for copies in self._jobs.values():
            copies.missed_came()

    def reset(self, job_id: str) -> list[NodeEffect]:
        """Take note that the rows of a job are thrown away, all of them."""
        copies = self._wake(job_id)
        return [] if copies is None else copies.reset()

    def forget_job(self, job_id: str) -> list[NodeEffect]:
        """Know nothing any more of one job."""
        copies = self._jobs.pop(job_id, None)
        self._busy.pop(job_id, None)
        return [] if copies is None else copies.reset()

    def forget(self) -> list[NodeEffect]:
        """Know nothing any more: another store takes the place of this one."""
        effects: list[NodeEffect] = []
        for copies in self._jobs.values():
            effects += copies.reset()
        self._jobs.clear()
        self._busy.clear()
        return effects

    # -- what happens --------------------------------------------------------------

    def held(self, event: KeyGroupsHeld, *, now_ns: int) -> None:
        """Take note of how a `HoldKeyGroups` ended."""
        copies = self._wake(event.job_id)
        if copies is not None:
            copies.held(event, now_ns=now_ns)

    def advanced(self, event: CopyAdvanced) -> None:
        """Take note that rows have come."""
        copies = self._wake(event.job_id)
        if copies is not None:
            copies.advanced(event)

    def fetched(self, event: KeyGroupsFetched, *, now_ns: int) -> None:
        """Take note of how a `FetchKeyGroups` ended."""
        copies = self._wake(event.job_id)
        if copies is not None:
            copies.fetched(event, now_ns=now_ns)

    def finished(self, event: CopyFinished, *, now_ns: int) -> None:
        """Take note of how a `FinishCopy` ended."""
        copies = self._wake(event.job_id)
        if copies is not None:
            self._copied_count += copies.finished(event, now_ns=now_ns)

    def advance(
        self,
        applied: Callable[[str], int | None],
        *,
        is_heard: bool,
        now_ns: int,
    ) -> list[NodeEffect]:
        """
        Do what is due.

        Args:
            applied: Tells the last entry of a job that the store has, or None while
                what it has counts for nothing.
            is_heard: Whether the proxy leader hears what the node says.
            now_ns: The time.
        """
        effects: list[NodeEffect] = []
        for job_id, copies in tuple(self._busy.items()):
            effects += copies.advance(applied(job_id), is_heard=is_heard, now_ns=now_ns)
            if copies.is_idle:
                del self._busy[job_id]
        return effects

    # -- parts ---------------------------------------------------------------------

    def _wake(self, job_id: str) -> JobCopies | None:
        """Return what the node holds of a job, which is about to have work to do."""
        copies = self._jobs.get(job_id)
        if copies is not None:
            self._busy[job_id] = copies
        return copies

    def _nothing(self, job_id: str) -> JobAssignment:
        """Return an assignment by which the node has no part in a job any more."""
        copies = self._jobs.get(job_id)
        version = 0 if copies is None else copies.assignment.assignment_version
        return JobAssignment(
            job_id=job_id,
            assignment_version=version,
            max_parallelism=1,
            key_groups=(),
            fences=(),
        )
