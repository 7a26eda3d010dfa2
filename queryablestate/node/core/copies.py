"""
The copies that a node has of the key groups of one job, and is to make; pure.

Theory of operation.  What a node is assigned it *holds*: the store is told which key
groups to keep, and drops the others.  A key group that is to be copied goes through
this, and is not asked all the while (rule S1)::

    joining ──held──► missing ──fetched──► behind ──finished──► copied ──► in sync
                       ▲  │                   │                           (assigned)
                       └──┴──── failed ◄──────┘

The store knows what it has: each answer to `HoldKeyGroups` says anew which of the
joining key groups are copied, and which are missing.  What is missing is fetched from
one source at a time.  A source that fails is left alone for a while, and the next one
has its turn.  Rows that were fetched are as they were after some entry; when the job is
there too, the store applies to them what it has kept since, and then they are complete.

**What the store is told, and when.**  It is told to hold something else only when it
has answered to the last time, and when it finishes no copy: so whatever it says is
about what it was told last.  Unless key groups are in sync here that were not to be
copied before: a job without rows is assigned like that, and the first entry after that
must find them held, or their rows are passed over.  From when a job is told to begin
anew until it has, the store is told nothing, and then everything again.

**What the proxy is told** makes it put copies into use.  So nothing is called copied
that may be about to be thrown away: not before all has come that the proxy sent along
with the assignment (a `ResetJob` may be in it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

from attrs import define, evolve

from queryablestate.node.core.effects import (
    CancelFetch,
    FetchKeyGroups,
    FinishCopy,
    HoldKeyGroups,
    NodeEffect,
    SendToProxy,
)
from queryablestate.wire.job_assignment import (
    CopySource,
    JobAssignment,
    JoiningGroup,
)
from queryablestate.wire.node_messages import KeyGroupsCopied


if TYPE_CHECKING:
    from collections.abc import Iterator

    from queryablestate.node.core.events import (
        CopyAdvanced,
        CopyFinished,
        KeyGroupsFetched,
        KeyGroupsHeld,
    )
    from queryablestate.node.core.limits import NodeLimits
    from queryablestate.node.core.registration import NodeIdentity


__all__ = ["JobCopies"]

_Place: TypeAlias = tuple[str, str | None]
"""A node, and where it listens: who comes back elsewhere is asked at once."""


@final
@define(kw_only=True)
class _Pause:
    """Until when something that has failed is left alone, and for how long."""

    until_ns: int = 0
    pause_ns: int = 0


@final
@define(kw_only=True)
class _Fetch:
    """
    What is being fetched, or has been, and is not complete yet.

    Attributes:
        fetch_id: Names it.
        place: Where from.
        copies: Which copies these are, by key group.
        sequence_min: The entry that the source must have applied.
        sequence: All rows are here, as they were after this entry; None before.
    """

    fetch_id: int
    place: _Place
    copies: dict[int, JoiningGroup]
    sequence_min: int
    sequence: int | None = None


@final
class JobCopies:
    """
    What the node holds of one job.

    Args:
        assignment: What it is to hold, and where to copy from.
        identity: This node.
        limits: How long it waits.
        fetch_ids: Yields what names fetches; rises.

    Attributes:
        assignment: See above; the newest.
        row_count: Rows that were fetched since the node started.
        size_bytes: Their size.
        deadline_ns: When `advance` must be called, or None; as it was after that.
    """

    def __init__(
        self,
        assignment: JobAssignment,
        identity: NodeIdentity,
        limits: NodeLimits,
        fetch_ids: Iterator[int],
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._fetch_ids = fetch_ids
        self.assignment = assignment
        self.row_count = 0
        self.size_bytes = 0
        self.deadline_ns: int | None = None
        self._is_missed_coming = True
        # What the store holds: `_told` it was told and has not answered.
        self._is_hold_wanted = True
        self._hold_pause = _Pause()
        self._told: JobAssignment | None = None
        self._held: JobAssignment | None = None
        self._missing: frozenset[int] = frozenset()
        self._copied: frozenset[int] = frozenset()
        self._sequence_min = 0
        # What is copied: `_finishing_id` is the fetch that the store is completing,
        # also when it is not wanted any more.
        self._fetch: _Fetch | None = None
        self._finishing_id: int | None = None
        self._pauses: dict[_Place, _Pause] = {}
        # What the proxy is told: at once, or in its time.
        self._failure: str | None = None
        self._is_report_due = False
        self._is_advanced = False
        self._reported_at_ns = 0

    # -- questions -----------------------------------------------------------------

    @property
    def held_count(self) -> int:
        """Return how many in-sync copies the store was last known to hold."""
        held = self._held
        return 0 if held is None else len(held.key_groups) + len(held.copies)

    @property
    def missing_count(self) -> int:
        """Return how many key groups are to be copied."""
        return len(self._missing)

    @property
    def is_idle(self) -> bool:
        """Return whether `advance` has nothing to do before something happens."""
        return not (
            self._is_hold_wanted
            or self._told is not None
            or self._missing
            or self._fetch is not None
            or self._finishing_id is not None
            or self._is_report_due
            or self._is_advanced
        )

    @property
    def _is_settled(self) -> bool:
        """Return whether the store holds what is assigned."""
        return not self._is_hold_wanted and self._told is None

    # -- what is assigned ----------------------------------------------------------

    def assign(self, job: JobAssignment) -> list[NodeEffect]:
        """Hold what *job* says; go on fetching what is still to be had there."""
        effects = self._keep_fetch(job)
        places = {_place(source) for source in job.sources}
        self._pauses = {p: pause for p, pause in self._pauses.items() if p in places}
        self.assignment = job
        self._is_missed_coming = True
        self._is_hold_wanted = True
        self._hold_pause.until_ns = 0
        return effects

    def missed_came(self) -> None:
        """Take note that nothing more comes that belongs to the assignment."""
        self._is_missed_coming = False

    def reset(self) -> list[NodeEffect]:
        """Know nothing of what is held, for all rows are thrown away, until told."""
        effects = self._give_up()
        self._is_hold_wanted = True
        self._held = None
        self._missing = self._copied = frozenset()
        return effects

    # -- what the store and the sources say ----------------------------------------

    def held(self, event: KeyGroupsHeld, *, now_ns: int) -> None:
        """Take note of how a `HoldKeyGroups` ended."""
        told = self._told
        if told is None or told.assignment_version != event.assignment_version:
            return
        self._told = None
        if self._is_hold_wanted:
            return  # it is to hold something else already
        if event.failure is not None:
            self._is_hold_wanted = True
            self._failed(self._hold_pause, event.failure, now_ns)
            return
        if self._hold_pause.pause_ns or not event.missing:
            self._failure = None
        self._hold_pause = _Pause()
        self._held = told
        joining = frozenset(group.key_group for group in told.joining)
        self._copied = joining.intersection(event.copied)
        self._missing = joining.intersection(event.missing)
        self._sequence_min = event.sequence_min
        self._is_report_due = True

    def advanced(self, event: CopyAdvanced) -> None:
        """Take note that rows have come."""
        self.row_count = event.row_count
        self.size_bytes = event.size_bytes
        self._is_advanced = True

    def fetched(self, event: KeyGroupsFetched, *, now_ns: int) -> None:
        """Take note of how a `FetchKeyGroups` ended."""
        fetch = self._fetch
        if fetch is None or fetch.fetch_id != event.fetch_id:
            return  # it was cancelled, and had ended before it heard that
        if event.failure is not None:
            self._fetch_failed(fetch, event.failure, now_ns)
        elif event.sequence < fetch.sequence_min:
            failure = (
                f"{fetch.place[0]} sent rows as they were after entry "
                f"{event.sequence}, and was asked for {fetch.sequence_min}"
            )
            self._fetch_failed(fetch, failure, now_ns)
        else:
            fetch.sequence = event.sequence

    def finished(self, event: CopyFinished, *, now_ns: int) -> int:
        """Record how a `FinishCopy` ended; return how many are complete now."""
        if self._finishing_id != event.fetch_id:
            return 0
        self._finishing_id = None
        fetch = self._fetch
        if fetch is None or fetch.fetch_id != event.fetch_id:
            return 0  # what it was for is not wanted any more
        complete = frozenset(fetch.copies).intersection(event.key_groups)
        completed_count = len(complete - self._copied)
        self._copied |= complete
        self._missing -= complete
        self._is_report_due = True
        if event.failure is not None:
            self._fetch_failed(fetch, event.failure, now_ns)
        elif len(complete) < len(fetch.copies):
            failure = "not all that was fetched could be completed"
            self._fetch_failed(fetch, failure, now_ns)
        else:
            self._fetch = None
            self._failure = None
            self._pauses.pop(fetch.place, None)
        return completed_count

    # -- what is due ---------------------------------------------------------------

    def advance(
        self, position: int | None, *, is_heard: bool, now_ns: int
    ) -> list[NodeEffect]:
        """
        Do what is due.

        Args:
            position: The last entry of the job that the store has, or None while what
                it has counts for nothing.
            is_heard: Whether the proxy leader hears what the node says.
            now_ns: The time.
        """
        self.deadline_ns = None
        if position is None:
            return []
        effects = self._hold(now_ns)
        effects += self._finish(position)
        effects += self._fetch_next(position, now_ns)
        if is_heard and not self._is_missed_coming:
            effects += self._report(now_ns)
        return effects

    def _hold(self, now_ns: int) -> list[NodeEffect]:
        if not self._is_hold_wanted:
            return []
        is_busy = self._told is not None or self._finishing_id is not None
        if is_busy and not self._is_hold_urgent():
            return []
        if self._hold_pause.until_ns > now_ns:
            self._wake(self._hold_pause.until_ns)
            return []
        job = self.assignment
        self._is_hold_wanted = False
        self._told = job
        return [
            HoldKeyGroups(
                job_id=job.job_id,
                assignment_version=job.assignment_version,
                key_groups=job.in_sync,
                joining=job.joining,
                copied_version=job.copied_version,
            )
        ]

    def _is_hold_urgent(self) -> bool:
        """Return whether key groups are in sync that the store knows nothing of."""
        last = self._told or self._held
        # Of what is being copied it only knows what is complete: of a job without
        # states the rest is in sync, too, and the next batch must find it held.
        known = set(self._copied)
        if last is not None:
            known.update(last.key_groups, last.copies)
        return not known.issuperset(self.assignment.in_sync)

    def _finish(self, position: int) -> list[NodeEffect]:
        fetch = self._fetch
        if fetch is None or fetch.sequence is None or self._finishing_id is not None:
            return []
        if position < fetch.sequence:
            return []
        self._finishing_id = fetch.fetch_id
        return [
            FinishCopy(
                job_id=self.assignment.job_id,
                fetch_id=fetch.fetch_id,
                key_groups=tuple(sorted(fetch.copies)),
                sequence=fetch.sequence,
            )
        ]

    def _fetch_next(self, position: int, now_ns: int) -> list[NodeEffect]:
        """Fetch from the first source that has something and is not left alone."""
        if self._fetch is not None or self._finishing_id is not None:
            return []
        if not self._is_settled or self._is_missed_coming:
            return []
        for source in self.assignment.sources:
            key_groups = tuple(g for g in source.key_groups if g in self._missing)
            if not key_groups or source.address is None:
                continue
            pause = self._pauses.get(_place(source))
            if pause is None or pause.until_ns <= now_ns:
                return [self._begin_fetch(source, key_groups, position)]
            self._wake(pause.until_ns)
        return []

    def _begin_fetch(
        self, source: CopySource, key_groups: tuple[int, ...], position: int
    ) -> NodeEffect:
        self.deadline_ns = None  # the others have their turn after this
        # An earlier attempt may have got as far as the job itself, and failed then:
        # rows that are older than that would undo what they have been through.
        joining = {group.key_group: group for group in self.assignment.joining}
        self._fetch = fetch = _Fetch(
            fetch_id=next(self._fetch_ids),
            place=_place(source),
            copies={key_group: joining[key_group] for key_group in key_groups},
            sequence_min=max(self._sequence_min, position),
        )
        return FetchKeyGroups(
            job_id=self.assignment.job_id,
            fetch_id=fetch.fetch_id,
            source=CopySource(
                node_id=source.node_id, address=source.address, key_groups=key_groups
            ),
            sequence_min=fetch.sequence_min,
        )

    def _report(self, now_ns: int) -> list[NodeEffect]:
        job = self.assignment
        if not job.joining:
            self._is_report_due = self._is_advanced = False
            return []
        has_failed = self._is_hold_wanted and self._hold_pause.until_ns > now_ns
        if not self._is_settled and not has_failed:
            return []  # what is copied of what is joining now is not known
        if not self._is_report_due:
            if not self._is_advanced:
                return []
            due_ns = self._reported_at_ns + self._limits.copy_report_ns
            if due_ns > now_ns:
                self._wake(due_ns)
                return []
        self._is_report_due = self._is_advanced = False
        self._reported_at_ns = now_ns
        message = KeyGroupsCopied(
            registration_id=self._identity.registration_id,
            job_id=job.job_id,
            assignment_version=job.assignment_version,
            key_groups=() if has_failed else tuple(sorted(self._copied)),
            row_count=self.row_count,
            size_bytes=self.size_bytes,
            failure=self._failure,
        )
        return [SendToProxy(message=message)]

    # -- parts ---------------------------------------------------------------------

    def _wake(self, at_ns: int) -> None:
        known_ns = self.deadline_ns
        self.deadline_ns = at_ns if known_ns is None else min(known_ns, at_ns)

    def _failed(self, pause: _Pause, failure: str, now_ns: int) -> None:
        limits = self._limits
        pause_ns = 2 * pause.pause_ns or limits.copy_retry_ns
        pause.pause_ns = min(pause_ns, limits.copy_retry_ns_max)
        pause.until_ns = now_ns + pause.pause_ns
        self._failure = failure
        self._is_report_due = True

    def _fetch_failed(self, fetch: _Fetch, failure: str, now_ns: int) -> None:
        self._fetch = None
        self._failed(self._pauses.setdefault(fetch.place, _Pause()), failure, now_ns)

    def _give_up(self) -> list[NodeEffect]:
        """Have nothing to do with what is fetched any more."""
        fetch, self._fetch = self._fetch, None
        if fetch is None or fetch.sequence is not None:
            return []  # what is being finished ends by itself, and is waited for
        return [CancelFetch(job_id=self.assignment.job_id)]

    def _keep_fetch(self, job: JobAssignment) -> list[NodeEffect]:
        """Keep of what is fetched what *job* wants still, or have it cancelled."""
        fetch = self._fetch
        if fetch is None:
            return []
        kept = {
            group.key_group: group
            for group in job.joining
            if fetch.copies.get(group.key_group) == group
        }
        if fetch.sequence is not None:  # it is here: from where, does not matter
            self._fetch = evolve(fetch, copies=kept) if kept else None
            return []
        offered = {
            key_group
            for source in job.sources
            if _place(source) == fetch.place
            for key_group in source.key_groups
        }
        if kept == fetch.copies and offered.issuperset(kept):
            return []
        return self._give_up()


def _place(source: CopySource) -> _Place:
    return source.node_id, source.address
