"""One job of a node, as `queryablestate.node.core.jobs` keeps it; pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias, assert_never, final

from attrs import define, evolve, field, frozen

from queryablestate.node.core.effects import ResetJobRows
from queryablestate.schema.key_groups import group_start
from queryablestate.wire.job_plan import JobOrigin
from queryablestate.wire.node_messages import ResetJob
from queryablestate.wire.records import (
    BatchDecided,
    Entry,
    SnapshotMarked,
    SnapshotRestored,
    StateDropped,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from queryablestate.wire.job_assignment import JobAssignment
    from queryablestate.wire.job_plan import JobHolding


__all__ = [
    "NodeJob",
    "ServedJob",
    "found_by",
    "has_part",
    "served_job",
    "served_part",
]

_Task: TypeAlias = Entry | ResetJob


@final
@frozen(kw_only=True)
class ServedJob:
    """
    What a node answers for.

    Attributes:
        job_id: The job.
        assignment_version: The assignment that says so.
        key_groups: Those of which the node is the primary, sorted: what it is asked
            for, unless a question says which copies it is about.
        prefixes: The same as storage keys begin with them.
        in_sync: All of which it has an in-sync copy, these included.
    """

    job_id: str
    assignment_version: int
    key_groups: tuple[int, ...]
    prefixes: frozenset[bytes]
    in_sync: frozenset[int]

    def copies(self, runs: Sequence[tuple[int, int]]) -> ServedJob | None:
        """
        Return the same for the in-sync copies of some key groups (rule D4).

        Args:
            runs: The first and the last one of each run, both included, sorted.

        Returns:
            None if the node has not an in-sync copy of each of them.
        """
        # Counted first: what a peer says may be a great many.
        if sum(last - first + 1 for first, last in runs) > len(self.in_sync):
            return None
        key_groups = tuple(
            group for first, last in runs for group in range(first, last + 1)
        )
        if not key_groups or not self.in_sync.issuperset(key_groups):
            return None
        return evolve(self, key_groups=key_groups, prefixes=_prefixes(key_groups))


def served_job(job: JobAssignment) -> ServedJob:
    """Return what a node answers for that is assigned *job*."""
    return ServedJob(
        job_id=job.job_id,
        assignment_version=job.assignment_version,
        key_groups=job.key_groups,
        prefixes=_prefixes(job.key_groups),
        in_sync=frozenset(job.in_sync),
    )


def served_part(
    job_id: str, assignment_version: int, key_groups: tuple[int, ...]
) -> ServedJob:
    """Return what is answered for by who is asked as the primary alone."""
    return ServedJob(
        job_id=job_id,
        assignment_version=assignment_version,
        key_groups=key_groups,
        prefixes=_prefixes(key_groups),
        in_sync=frozenset(key_groups),
    )


def _prefixes(key_groups: Iterable[int]) -> frozenset[bytes]:
    return frozenset(group_start(group) for group in key_groups)


def found_by(entry: Entry) -> frozenset[int]:
    """Return the states of which nothing is lost any more after *entry*."""
    match entry:
        case BatchDecided(states=states):
            return frozenset(s.state_number for s in states if s.is_replaced)
        case StateDropped(state_number=state_number):
            return frozenset({state_number})
        case SnapshotRestored(state_numbers=state_numbers):
            return frozenset(state_numbers)
        case SnapshotMarked():
            return frozenset()
        case _:
            assert_never(entry)


def has_part(job: JobAssignment) -> bool:
    """Return whether a node that is assigned *job* holds anything of it."""
    return bool(job.key_groups or job.copies or job.joining)


@final
@define(kw_only=True)
class NodeJob:
    """
    One job of a node: what has arrived, what is applied, what it answers for.

    Attributes:
        job_id: Its name.
        position: The last entry that the store has; None for a job it knows nothing of.
        lost: The states whose rows are lost (rule W7).
        origin: What tells the job from others of its name, as of *position*.
        holding: Which copies the store can have; None before it is told to hold any.
        received: The last entry that has arrived.
        assignment: What the node is to hold, as told last; None if nothing.
        assigned: The entry after which the assignment was made.
        promised: The entry from which on the node answers.
        has_part: Whether the node has a part in it, as far as is known.
        is_missed_coming: Whether that may still rise.
        served: What it answers for, or None.
        tasks: What has arrived and not gone to the store; a reset only as the first.
        current: What has gone to the store.
        is_void: Whether what the store has is to be reset, and counts for nothing.
        is_unbegun: Whether a reset has failed, and was given up without a part.
        is_incomplete: Whether something between what has arrived is missing.
        failure: Why it cannot go on, or None.
        reason: That in a word.
        retry_at_ns: When to ask for the rest again, or None.
    """

    job_id: str
    position: int | None = None
    lost: frozenset[int] = frozenset()
    origin: JobOrigin = field(factory=JobOrigin)
    holding: JobHolding | None = None
    received: int = 0
    assignment: JobAssignment | None = None
    assigned: int = 0
    promised: int = 0
    has_part: bool = True
    is_missed_coming: bool = False
    served: ServedJob | None = None
    tasks: deque[_Task] = field(factory=deque)
    current: Entry | ResetJobRows | None = None
    is_void: bool = False
    is_unbegun: bool = False
    is_incomplete: bool = False
    failure: str | None = None
    reason: str = ""
    retry_at_ns: int | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether the store is at something of this job."""
        return self.current is not None

    @property
    def is_reset_waiting(self) -> bool:
        """Return whether the job is to begin anew next."""
        return bool(self.tasks) and isinstance(self.tasks[0], ResetJob)

    @property
    def is_unsettled(self) -> bool:
        """Return whether *position* is about to be another altogether."""
        if self.position is None:
            return self.is_busy
        return self.is_reset_waiting or isinstance(self.current, ResetJobRows)

    @property
    def is_caught_up(self) -> bool:
        """Return whether the store has what was missed."""
        return (
            not self.is_missed_coming
            and not self.is_void
            and (self.position or 0) >= self.promised
        )

    @property
    def is_left(self) -> bool:
        """Return whether the node has no part in it, and nothing is to be done."""
        return not (self.has_part or self.is_busy or self.tasks)

    @property
    def has_applied_all(self) -> bool:
        """Return whether nothing is decided that is not applied, if it matters."""
        return not self.has_part or (
            self.is_caught_up
            and not self.is_busy
            and not self.is_incomplete
            and self.failure is None
        )

    def give_up_reset(self) -> None:
        """Have what is there count, if it was to be reset and was not."""
        self.is_unbegun = self.is_unbegun or self.is_void
        self.is_void = False

    def leave(self) -> None:
        """Have no part in it any more: what has not come is not waited for."""
        self.has_part = False
        if not self.is_unsettled:
            self.give_up_reset()
        self.assignment = None
        self.assigned = 0
        self.promised = 0
        self.is_missed_coming = False
        self.is_incomplete = False
        self.failure = None
        self.retry_at_ns = None
