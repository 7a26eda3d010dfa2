"""A state node that is registered now, and what the proxy leader knows of it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from attrs import define, field, frozen


if TYPE_CHECKING:
    from queryablestate.control.events import LinkId


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
        versions: By which assignment of a job it kept its rows last, when it came.
        probes: Entries of which it was asked whether it lacks rows: job and sequence,
            by the number of the question.
        failing: Jobs that it cannot go on with.
        lost_jobs: Jobs whose rows it has lost since it was assigned: its copies count
            for nothing where there are others.
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
    versions: dict[str, int] = field(factory=dict)
    probes: dict[int, tuple[str, int]] = field(factory=dict)
    failing: dict[str, JobFailure] = field(factory=dict)
    lost_jobs: set[str] = field(factory=set)
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
        if job_id in earlier.lost_jobs:
            self.lost_jobs.add(job_id)
        if is_told and job_id in earlier.failing:
            self.failing[job_id] = earlier.failing[job_id]
        missed = earlier.missed.get(job_id, -1)
        if self.sequences.get(job_id, -1) < missed:
            self.missed[job_id] = missed

    def forget_job(self, job_id: str) -> None:
        """Know nothing any more of what it says of a job."""
        every = (self.sequences, self.lost, self.failing, self.copies, self.missed)
        for known in every:
            known.pop(job_id, None)
        self.looked_at(job_id)

    def looked_at(self, job_id: str) -> None:
        """Forget that a job was lost or begun anew: the assignment heeds it by now."""
        self.lost_jobs.discard(job_id)
        self.begun_jobs.discard(job_id)
