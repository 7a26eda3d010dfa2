"""A state node that is registered now, and what the proxy leader knows of it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define, field, frozen


if TYPE_CHECKING:
    from collections.abc import Collection

    from queryablestate.control.events import LinkId
    from queryablestate.wire.job_plan import JobHolding


__all__ = ["CopyReport", "JobFailure", "PresentNode"]


@final
@frozen(kw_only=True)
class CopyReport:
    """
    How far a node is with the key groups that it copies for one job.

    Attributes:
        assignment_version: The assignment that it copies for.
        key_groups: Those that it has complete.
        row_count: Rows that it has fetched since it started.
        size_bytes: Their size.
        failure: Why its last attempt came to nothing, or None.
    """

    assignment_version: int
    key_groups: frozenset[int]
    row_count: int
    size_bytes: int
    failure: str | None


@final
@frozen(kw_only=True)
class JobFailure:
    """
    That a node cannot go on with a job.

    Attributes:
        told_at_ns: When it said so last.
        reason: Why.
    """

    told_at_ns: int
    reason: str


@final
@define(kw_only=True)
class PresentNode:
    """
    A node that is registered now.

    Attributes:
        node_id: Its name.
        store_id: Its data directory.
        registration_id: The process.
        link: Its connection.
        address: Where writers reach it.
        heard_at_ns: When it was last heard from.
        chunk_size_bytes_max: How large a chunk of rows it takes, or None if it has not
            said so.
        reader_addresses: Where clients ask it without the proxy, each at one of these;
            none: at *address*.
        sequences: How far it is, for each job that it has said so of.
        lost: The states whose rows it has lost, likewise.
        holdings: Which copies of a job it can have, as of when it came.
        resets: By job the entry at which it was told to begin anew, as long as it has
            not said that it has: what it says meanwhile is of before.
        failing: Jobs that it cannot go on with.
        lost_jobs: Jobs of which it has lost rows since it was assigned: its copies
            count for nothing where there are others.
        lost_groups: Which key groups it has lost of one of these jobs, if not all.
        begun_jobs: Jobs that it begins anew, with nothing lost, since it was assigned:
            what it says of copies that it makes may be of those from before.
        copies: What it says of its copying, by job.
        emptied_reason: Why it was told last that it may end, or None.
        missed: By job the last entry that it had missed when it was back in time, as
            long as it has not applied that.
        expected_until_ns: How long it was expected then, or None if it was not.
        registered_at_ns: When it was taken in.
        is_doubted: Whether it has said nothing since it was taken in, or copies were to
            be given up last: what it asked then may have waited for long.
    """

    node_id: str
    store_id: str
    registration_id: str
    link: LinkId
    address: str
    heard_at_ns: int
    chunk_size_bytes_max: int | None = None
    reader_addresses: tuple[str, ...] = ()
    sequences: dict[str, int] = field(factory=dict)
    lost: dict[str, tuple[int, ...]] = field(factory=dict)
    holdings: dict[str, JobHolding] = field(factory=dict)
    resets: dict[str, int] = field(factory=dict)
    failing: dict[str, JobFailure] = field(factory=dict)
    lost_jobs: set[str] = field(factory=set)
    lost_groups: dict[str, frozenset[int]] = field(factory=dict)
    begun_jobs: set[str] = field(factory=set)
    copies: dict[str, CopyReport] = field(factory=dict)
    emptied_reason: str | None = None
    missed: dict[str, int] = field(factory=dict)
    expected_until_ns: int | None = None
    registered_at_ns: int = 0
    is_doubted: bool = True

    def recall(self, earlier: PresentNode, job_id: str, *, is_told: bool) -> None:
        """
        Take what was known of a job for true: registering anew mends nothing.

        Args:
            earlier: The same node before, with the same data directory.
            job_id: Which job.
            is_told: Whether it is told something now that it answers, and so says
                whether it can go on.
        """
        if job_id in earlier.lost_groups:
            self.lose(job_id, earlier.lost_groups[job_id])
        elif job_id in earlier.lost_jobs:
            self.lost_jobs.add(job_id)
        if is_told and job_id in earlier.failing:
            self.failing[job_id] = earlier.failing[job_id]
        missed = earlier.missed.get(job_id, -1)
        if self.sequences.get(job_id, -1) < missed:
            self.missed[job_id] = missed

    def lose(self, job_id: str, key_groups: Collection[int]) -> None:
        """Note that it has lost rows of these key groups, if it has not lost all."""
        if key_groups and not self.has_lost_all(job_id):
            self.lost_jobs.add(job_id)
            known = self.lost_groups.get(job_id, frozenset())
            self.lost_groups[job_id] = known.union(key_groups)

    def has_lost_all(self, job_id: str) -> bool:
        """Return whether it has lost all rows of a job since it was assigned."""
        return job_id in self.lost_jobs and job_id not in self.lost_groups

    def losses(self) -> dict[str, frozenset[int] | None]:
        """Return the jobs of which it has lost rows: key groups, or None for all."""
        return {job_id: self.lost_groups.get(job_id) for job_id in self.lost_jobs}

    def forget_job(self, job_id: str) -> None:
        """Know nothing any more of what it says of a job."""
        every = (
            *(self.sequences, self.lost, self.holdings, self.resets),
            *(self.failing, self.copies, self.missed),
        )
        for known in every:
            known.pop(job_id, None)
        self.looked_at(job_id)

    def unheeded(self, job_id: str) -> tuple[object, ...] | None:
        """Return what the assignment of a job has yet to heed, or None."""
        if job_id not in self.lost_jobs and job_id not in self.begun_jobs:
            return None
        is_lost, is_anew = job_id in self.lost_jobs, job_id in self.begun_jobs
        return is_lost, self.lost_groups.get(job_id), is_anew

    def looked_at(self, job_id: str) -> None:
        """Forget that a job was lost or begun anew: the assignment heeds it by now."""
        self.lost_jobs.discard(job_id)
        self.lost_groups.pop(job_id, None)
        self.begun_jobs.discard(job_id)
