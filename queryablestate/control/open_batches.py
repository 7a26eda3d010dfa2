"""
Batches that were begun and may not be over; pure (rule S2).

Theory of operation.  A batch is pinned to the assignment of its ticket: rows of it may
be on nodes that hold nothing any more when it is committed, and are fetched from there
then.  Such a node must not end before the batch has.  So this proxy leader remembers
which tickets it has given out.  A ticket is closed when a batch of its query is
decided, when the query shows a later ticket, and when the same writer draws another one
for the same states; and after a while in any case, sooner if its driver is gone, since
no message tells that a batch was given up.

A new leader has given out nothing, and knows nothing of what is under way.  It waits
for longer than batches usually take before it says of any node that none needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from attrs import define

from nameservice.clock import NS_PER_SECOND
from queryablestate.control.assignment.assignment import destinations


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job


__all__ = ["OpenBatches"]

_OPEN_NS: Final = 600 * NS_PER_SECOND
"""As long as a writer may wait for a commit."""
_DRIVER_GONE_NS: Final = 60 * NS_PER_SECOND
_OPEN_COUNT_MAX: Final = 10_000
"""Tickets that are remembered; one that is forgotten is as one of another leader."""
_UNINFORMED_NS: Final = 10 * NS_PER_SECOND
"""Batches that this leader knows nothing of are over by then, unless they are slow."""


@final
@define(kw_only=True)
class _Ticket:
    """A ticket of a batch that may not be over."""

    job_id: str
    version: int
    state_names: frozenset[str]
    link: LinkId
    closes_at_ns: int
    query_id: str | None = None


@final
class OpenBatches:
    """
    The tickets that are open.

    Args:
        job_ids: The jobs that there were when the leadership began: batches of them
            may be under way.
        now_ns: When that was.
    """

    def __init__(self, job_ids: Iterable[str], *, now_ns: int) -> None:
        self._informed_at_ns = now_ns + _UNINFORMED_NS
        self._unknown_ids = frozenset(job_ids)
        self._has_changed = False
        self._tickets: dict[int, _Ticket] = {}

    def next_deadline_ns(self) -> int | None:
        """Return when `expire` is to be called, or None."""
        times = [ticket.closes_at_ns for ticket in self._tickets.values()]
        if self._unknown_ids:
            times.append(self._informed_at_ns)
        return min(times, default=None)

    def may_need(self, node_id: str, jobs: Mapping[str, Job]) -> bool:
        """Return whether a batch may have rows on a node that is in no assignment."""
        return self.count_at(node_id, jobs) > 0 or any(
            _is_destination(jobs[job_id], version, node_id)
            for job_id in sorted(self._unknown_ids & jobs.keys())
            for version in jobs[job_id].assignments
        )

    def count_at(self, node_id: str, jobs: Mapping[str, Job]) -> int:
        """Return how many batches are known that may have rows on a node."""
        return sum(
            _is_destination(jobs[ticket.job_id], ticket.version, node_id)
            for ticket in self._tickets.values()
            if ticket.job_id in jobs
        )

    def versions_of(self, job_id: str) -> AbstractSet[int]:
        """Return the assignments by which the rows of open batches of a job go."""
        tickets = self._tickets.values()
        return {ticket.version for ticket in tickets if ticket.job_id == job_id}

    def links(self) -> dict[str, LinkId]:
        """Return who drew the newest open ticket of each job."""
        return {ticket.job_id: ticket.link for ticket in self._tickets.values()}

    def drawn(
        self,
        ticket: int,
        *,
        job_id: str,
        version: int,
        state_names: frozenset[str],
        link: LinkId,
        now_ns: int,
    ) -> None:
        """Take note that a batch is planned."""
        self._close(
            lambda one: (
                (one.link, one.job_id, one.state_names) == (link, job_id, state_names)
            )
        )
        self._tickets[ticket] = _Ticket(
            job_id=job_id,
            version=version,
            state_names=state_names,
            link=link,
            closes_at_ns=now_ns + _OPEN_NS,
        )
        if len(self._tickets) > _OPEN_COUNT_MAX:
            self._remove([next(iter(self._tickets))])

    def forget(self, job_id: str) -> None:
        """Take note that there is no such job any more."""
        self._close(lambda one: one.job_id == job_id)

    def bound(self, ticket: int, *, job_id: str, query_id: str, now_ns: int) -> None:
        """
        Take note that a run shows a ticket: what its query showed before is over.

        A run may show a ticket several times, once in each of its tasks; one of these
        may come when the run has shown a later ticket already, and ends nothing.
        """
        earlier = [
            number
            for number, one in self._tickets.items()
            if number < ticket and (one.job_id, one.query_id) == (job_id, query_id)
        ]
        self._remove(earlier)
        shown = self._tickets.get(ticket)
        if shown is not None:
            shown.query_id = query_id
            # As long as tasks begin, the batch is not over.
            shown.closes_at_ns = max(shown.closes_at_ns, now_ns + _OPEN_NS)

    def decided(self, *, job_id: str, query_id: str) -> None:
        """Take note that the batch of a query is committed."""
        self._close(lambda one: (one.job_id, one.query_id) == (job_id, query_id))

    def links_closed(self, links: Collection[LinkId], *, now_ns: int) -> None:
        """Record that these drivers are gone; some come back in a moment."""
        for ticket in self._tickets.values():
            if ticket.link in links:
                ticket.closes_at_ns = min(ticket.closes_at_ns, now_ns + _DRIVER_GONE_NS)

    def expire(self, *, now_ns: int) -> bool:
        """
        Close what was open for long.

        Returns:
            Whether fewer are open than when this was called last.
        """
        self._close(lambda one: one.closes_at_ns <= now_ns)
        if self._unknown_ids and now_ns >= self._informed_at_ns:
            self._unknown_ids = frozenset()
            self._has_changed = True
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def _close(self, is_over: Callable[[_Ticket], bool]) -> None:
        self._remove([number for number, one in self._tickets.items() if is_over(one)])

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._tickets[number]
        self._has_changed = self._has_changed or bool(numbers)


def _is_destination(job: Job, version: int, node_id: str) -> bool:
    assignment = job.assignments.get(version)
    if assignment is None or node_id not in assignment.node_ids:
        return False
    index = assignment.node_ids.index(node_id)
    return any(index in nodes for nodes in destinations(assignment))
