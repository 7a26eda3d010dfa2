"""
Who gets which key groups of a job next, and when that is written; pure (S1, S2, S4).

Theory of operation.  The assignment of a job is all there is of a move: what comes next
follows from it and from who is there
(`queryablestate.control.assignment.reassignment`).  So this machine has no phases of
its own.  It looks again at every job for which something has happened that may matter:
it was `touch`-ed.  Then a change waits for its turn, is worked out when the turn has
come, written, and told to the nodes, which may touch the job again.

Nothing happens before the leader is settled (rule S2): a node that is not here then may
only be late.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from nameservice import ConfigurationError
from nameservice.clock import NS_PER_SECOND, earliest
from queryablestate.control.announcements import tell_assignment
from queryablestate.control.assignment.node_standing import NodeStanding
from queryablestate.control.assignment.placement import node_count_max
from queryablestate.control.assignment.reassignment import next_assignment
from queryablestate.control.changes import AssignmentChanged, Change, Write
from queryablestate.control.effects import AnswerWriter
from queryablestate.control.rescaling_progress import MoveBegun, job_rescaling
from queryablestate.control.state import has_node
from queryablestate.errors import StateUnavailableError, UnknownJobError
from queryablestate.wire.operation_messages import RescaleStarted, RescalingsListed


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import NameServiceError
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.state import ControlState
    from queryablestate.wire.operation_messages import (
        JobRescaling,
        ListRescalings,
        RescaleJob,
    )
    from queryablestate.wire.records import AssignmentRecord


__all__ = ["Moves"]

_PAUSE_NS: Final = 500_000_000
"""How long to wait after a write that the store has not taken."""


@final
class Moves:
    """
    Changes assignments.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._queued: set[str] = set()
        self._refused: set[str] = set()
        self._retry_at_ns: int | None = None
        self._begun: dict[str, MoveBegun] = {}
        self._now_ns = 0
        self._is_settled = not control.nodes.is_anybody_awaited

    def next_deadline_ns(self) -> int | None:
        """Return when `wake` is to be called, though nothing happens, or None."""
        times = [self._retry_at_ns, self._recovers_at_ns()]
        if not self._is_settled:
            times.append(self._control.settled_at_ns)
        return earliest(times)

    def wake(self, *, now_ns: int) -> None:
        """Touch the jobs that are to be looked at again since time has passed."""
        control = self._control
        self._now_ns = now_ns
        self._forget_failures(now_ns)
        if self._refused and self._retry_at_ns is None:
            self._retry_at_ns = now_ns + _PAUSE_NS
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            control.touch(*self._refused)
            self._refused.clear()
            self._retry_at_ns = None
        if not self._is_settled and control.is_settled(now_ns=now_ns):
            self._is_settled = True
            # An earlier leader may have been asked to give copies up, and who is to
            # stay may have been cut off since it registered (rule S4).
            control.nodes.doubt()
            control.touch()

    def look(self) -> list[Change]:
        """Return what is to be done for the jobs that were touched."""
        control = self._control
        job_ids = sorted(control.touched - self._queued - self._refused)
        control.touched.clear()
        self._queued.update(job_ids)
        return [
            Change(
                prepare=partial(self._next, job_id),
                refuse=partial(self._not_written, job_id),
            )
            for job_id in job_ids
        ]

    # -- what operators ask ----------------------------------------------------------

    def rescale(self, link: LinkId, request: RescaleJob, now_ns: int) -> Write:
        """
        Give a job another number of nodes, or of copies.

        Raises:
            UnknownJobError: If there is no state of such a job.
            StateUnavailableError: If nodes may still be coming.
            ConfigurationError: If there are fewer nodes.
        """
        self._now_ns = now_ns
        job = self._job_with_state(request.job_id)
        self._check_settled(request.job_id, now_ns)
        self._check_counts(job, request)
        # One that is to keep its copies may have been cut off a moment ago (rule S4).
        self._control.nodes.doubt()
        assignment = self._next_assignment(
            job, node_count=request.node_count, replica_count=request.replica_count
        )
        if assignment is None:
            adopt = partial(self._rescaled, link, request)
            return Write(operations=[], adopt=adopt)
        adopted = partial(self._rescaled, link, request)
        return self._write(job, assignment, then=adopted)

    def rescalings(self, request: ListRescalings, *, now_ns: int) -> RescalingsListed:
        """
        Return how far the jobs are.

        Raises:
            UnknownJobError: If there is no state of such a job.
            StateUnavailableError: If nodes are ahead with it, or with any: nothing
                moves until that is mended.
        """
        control = self._control
        if request.job_id is not None:
            job_ids: Sequence[str] = [request.job_id]
        else:
            job_ids = control.nodes.kept.job_ids
        for job_id in job_ids:
            problem = control.nodes.kept.rolled_back(job_id)
            if problem is not None:
                raise problem
        if request.job_id is not None:
            jobs = [self._job_with_state(request.job_id)]
        else:
            jobs = [job for _, job in sorted(control.jobs.items()) if job.states]
        return RescalingsListed(
            request_id=request.request_id,
            rescalings=tuple(self._rescaling(job, now_ns) for job in jobs),
            is_settled=control.is_settled(now_ns=now_ns),
        )

    def _job_with_state(self, job_id: str) -> Job:
        """Return a job, unless all of its states were dropped: it is not missed."""
        job = self._control.job(job_id)
        if not job.states:
            raise UnknownJobError(job_id)
        return job

    def _rescaling(self, job: Job, now_ns: int) -> JobRescaling:
        begun = self._begun.get(job.record.job_id)
        assert job.assignment is not None
        started_ms = None
        if begun is not None:
            started_ms = begun.elapsed_ms(job.assignment, now_ns=now_ns)
        return job_rescaling(job, self._control.nodes, started_ms=started_ms)

    def _check_settled(self, job_id: str, now_ns: int) -> None:
        """Return if assignments may be changed now (rule S2)."""
        if not self._control.is_settled(now_ns=now_ns):
            retry_seconds = self._control.session_timeout_ns / NS_PER_SECOND / 5
            detail = "this proxy leads since a moment ago, and nodes are still coming"
            raise StateUnavailableError(job_id, None, (), retry_seconds, detail)

    def _check_counts(self, job: Job, request: RescaleJob) -> None:
        """Return if there are nodes for what is asked."""
        nodes, assignment = self._control.nodes, job.assignment
        assert assignment is not None
        ready_count = sum(not nodes.is_draining(node.node_id) for node in nodes)
        node_count = request.node_count or assignment.node_count
        replica_count = request.replica_count or assignment.replica_count
        if request.node_count is not None:
            if node_count > ready_count:
                raise ConfigurationError(
                    f"{request.job_id} cannot have {node_count:,} nodes: "
                    f"registered and not being drained: {ready_count:,}; start more "
                    "with 'lodestar node', or ask for fewer"
                )
            max_parallelism = job.record.max_parallelism
            if node_count > node_count_max(
                max_parallelism, replica_count=replica_count
            ):
                raise ConfigurationError(
                    f"{request.job_id} has {max_parallelism:,} key groups: ask for at "
                    "most as many nodes"
                )
        is_asked = request.node_count is not None or request.replica_count is not None
        if is_asked and replica_count > node_count:
            raise ConfigurationError(
                f"{request.job_id} cannot have {replica_count:,} copies of each key "
                f"group on {node_count:,} nodes: ask for at most {node_count:,} "
                "copies, or for more nodes"
            )

    def _rescaled(
        self, link: LinkId, request: RescaleJob, now_ns: int
    ) -> list[Outcome]:
        job = self._control.job(request.job_id)
        started = RescaleStarted(
            request_id=request.request_id, rescaling=self._rescaling(job, now_ns)
        )
        return [AnswerWriter(link=link, message=started)]

    # -- the next assignment ---------------------------------------------------------

    def _next(self, job_id: str, now_ns: int) -> Write | Sequence[Outcome]:
        """Work out what is next, now that nothing can come between."""
        self._now_ns = now_ns
        job = self._control.jobs.get(job_id)
        self._queued.discard(job_id)
        if job is None:
            self._begun.pop(job_id, None)
            return []  # it was removed
        if self._control.problem_of(job_id) is not None:
            return []  # until somebody has decided what its rows are
        assignment = self._next_assignment(job)
        if assignment is not None:
            self._queued.add(job_id)
            return self._write(job, assignment)
        for node in self._control.nodes:
            if node.unheeded(job_id) is not None:
                # No other node has what it had, and it may be given more.
                node.looked_at(job_id)
                self._control.routes.locate(job)
                self._control.touch(job_id)
        nodes = self._control.nodes
        nodes.looked_at_gone(nodes.gone_losers(job_id), job_id)
        self._take_time(job, is_new=False)
        return []

    def _next_assignment(
        self,
        job: Job,
        *,
        node_count: int | None = None,
        replica_count: int | None = None,
    ) -> AssignmentRecord | None:
        assert job.assignment is not None
        limits = self._control.limits
        return next_assignment(
            job.assignment,
            self._standings(job),
            sequence=job.record.sequence,
            joining_count_max=limits.joining_count_max(job.record.max_parallelism),
            node_count=node_count,
            replica_count=replica_count,
        )

    def _standings(self, job: Job) -> dict[str, NodeStanding]:
        """Return what there is to know of each known node for the assignment."""
        job_id, nodes = job.record.job_id, self._control.nodes
        assert job.assignment is not None
        standings = {}
        gone = nodes.gone_losers(job_id)
        for node_id in nodes.known_ids:
            node = nodes.present(node_id)
            is_draining = nodes.is_draining(node_id)
            if node is None:
                standings[node_id] = NodeStanding(
                    store_id=nodes.store_id_of(node_id) or "",
                    is_present=False,
                    is_expected=nodes.expected.have(node_id, job_id),
                    is_silent=True,
                    is_draining=is_draining,
                    is_lost=node_id in gone and gone[node_id] is None,
                    lost=gone.get(node_id) or frozenset(),
                )
                continue
            report = node.copies.get(job_id)
            is_present_report = (
                report is not None
                and report.assignment_version == job.assignment.version
            )
            standings[node_id] = NodeStanding(
                store_id=node.store_id,
                is_silent=self._now_ns - node.heard_at_ns > self._control.silence_ns,
                is_doubted=node.is_doubted,
                is_draining=is_draining,
                is_failing=job_id in node.failing,
                is_lost=node.has_lost_all(job_id),
                lost=node.lost_groups.get(job_id, frozenset()),
                is_anew=job_id in node.begun_jobs,
                is_behind=job_id in node.missed,
                has_begun=job_id in node.sequences,
                copied=report.key_groups
                if report is not None and is_present_report
                else frozenset(),
            )
        return standings

    def _write(
        self,
        job: Job,
        assignment: AssignmentRecord,
        *,
        then: Callable[[int], Sequence[Outcome]] | None = None,
    ) -> Write:
        """Return what writes *assignment*; *then* says what follows that."""
        job_id = job.record.job_id
        needed = self._control.open_batches.versions_of(job_id)
        change = job.assign(assignment, job.record.max_parallelism, needed=needed)
        nodes = self._control.nodes
        seen = [
            (node, unheeded)
            for node in nodes
            if (unheeded := node.unheeded(job_id)) is not None
        ]
        gone = nodes.gone_losers(job_id)

        def heeded() -> None:
            for node, unheeded in seen:
                # What was heard while it was written is for the next one.
                if node.unheeded(job_id) == unheeded:
                    node.looked_at(job_id)
            nodes.looked_at_gone(gone, job_id)

        adopt = partial(self._adopt, job, change, heeded, then)
        return Write(operations=job.operations(change), adopt=adopt)

    def _adopt(
        self,
        job: Job,
        change: JobChange,
        heeded: Callable[[], None],
        then: Callable[[int], Sequence[Outcome]] | None,
        now_ns: int,
    ) -> list[Outcome]:
        control, job_id = self._control, job.record.job_id
        former = job.assignment
        assert former is not None
        job.adopt(change)
        self._queued.discard(job_id)
        heeded()
        control.routes.locate(job)
        self._now_ns = now_ns
        assert job.assignment is not None
        self._take_time(job, is_new=_plan(former) != _plan(job.assignment))
        outcomes: list[Outcome] = [
            *tell_assignment(control, job, former, now_ns=now_ns),
            AssignmentChanged(job=job),
        ]
        return outcomes if then is None else [*outcomes, *then(now_ns)]

    def _take_time(self, job: Job, *, is_new: bool) -> None:
        """Take note of when the plan of a job was begun with."""
        job_id = job.record.job_id
        if job.assignment is None or not job.assignment.wanted:
            self._begun.pop(job_id, None)
        elif is_new or job_id not in self._begun:
            self._begun[job_id] = MoveBegun.of(job.assignment, now_ns=self._now_ns)

    def _not_written(
        self, job_id: str, error: NameServiceError
    ) -> Sequence[ControlEffect]:
        """Try again in a moment."""
        del error
        self._queued.discard(job_id)
        self._refused.add(job_id)
        self._control.nodes.doubt()  # who was here may not be by then (rule S4)
        return []

    # -- failures --------------------------------------------------------------------

    def _recovers_at_ns(self) -> int | None:
        return min((at_ns for _, _, at_ns in self._strangers()), default=None)

    def _forget_failures(self, now_ns: int) -> None:
        """Try nodes again that were taken out since they could not go on."""
        for node, job_id, at_ns in self._strangers():
            if now_ns >= at_ns:
                del node.failing[job_id]
                self._control.touch(job_id)

    def _strangers(self) -> list[tuple[PresentNode, str, int]]:
        """Return who failed with a job that it has no part in now, and till when."""
        control = self._control
        return [
            (node, job_id, failure.told_at_ns + control.session_timeout_ns)
            for node in control.nodes.failing()
            for job_id, failure in node.failing.items()
            if not has_node(control.jobs[job_id], node.node_id)
        ]


def _plan(assignment: AssignmentRecord) -> dict[str, object]:
    """Return what changes when a plan is made anew."""
    return {
        "nodes": assignment.node_count,
        "replicas": assignment.replica_count,
        "planned": assignment.planned_count,
        "is_planned": bool(assignment.wanted),
    }
