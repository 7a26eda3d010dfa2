"""
`ControlCore`: the control plane of queryable state without I/O.

Theory of operation.  The proxy leader drives one core: events and time in, effects out.
What must survive is in the leader store; the core is what the store holds, plus who is
there now.  A new leader makes a new core from the store.

The work is done by machines that return what is to be done.  None of them knows
another one: only this file puts in order what they return, and asks one of them what
follows from what another one has done:

================  ==================================================================
`TicketOffice`    tickets and runs (rules W1, W5)
`StateDrops`      states that are dropped
`Commits`         batches on their way from staged to applied (rules W3, W4)
`Membership`      nodes: who is there, how far they are (rules W7, S2)
`Snapshots`       snapshots that are being taken
`Restores`        jobs that are being restored from one
`Draining`        nodes that are being emptied (rule O6)
`JobPlans`        what nodes keep of their jobs besides rows (rule W7)
`Adoptions`       what is taken over from nodes that have kept it (rule W7)
`Forgetting`      jobs that are wanted no more, nodes that are gone (rule B4)
`UnusedJobs`      jobs without state, which go by themselves (rule B4)
`Moves`           who gets which key groups next (rules S1, S2, S4)
================  ==================================================================

**One write at a time** (`WriteQueue`).  If the store cannot say whether it has a write,
that is not known here: `StartOver`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, assert_never, final

from nameservice import (
    DidNotHappenError,
    NameServiceError,
)
from nameservice.clock import earliest
from queryablestate.control.adoption import Adoptions
from queryablestate.control.assignment.assignment import (
    check_assignment,
)
from queryablestate.control.changes import (
    AssignmentChanged,
    Change,
    JobRemoved,
    NodeCame,
    Turn,
    Write,
)
from queryablestate.control.commits import Commits
from queryablestate.control.draining import Draining
from queryablestate.control.effects import (
    ControlEffect,
    RefuseWriter,
    StartOver,
)
from queryablestate.control.events import (
    ControlEvent,
    LinkId,
    LinksClosed,
    NodeSpoke,
    RightsReplaced,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.forgetting import Forgetting
from queryablestate.control.job_plans import JobPlans
from queryablestate.control.large_writes import (
    COMMIT_LIMITS,
    NOTHING_LEFT,
    CommitLimits,
    DividedWrite,
)
from queryablestate.control.limits import CONTROL_LIMITS, ControlLimits
from queryablestate.control.membership import Membership
from queryablestate.control.moves import Moves
from queryablestate.control.restore_control import Restores
from queryablestate.control.snapshot_control import Snapshots
from queryablestate.control.state import ControlState
from queryablestate.control.state_drops import StateDrops
from queryablestate.control.tickets import TicketOffice
from queryablestate.control.unused_jobs import UnusedJobs
from queryablestate.control.view import ControlView
from queryablestate.control.write_queue import WriteQueue
from queryablestate.wire.adoption_messages import AdoptJob, TakeControl
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DrawTicket,
    DropState,
)
from queryablestate.wire.node_messages import (
    EntriesApplied,
    KeyGroupsCopied,
    LeaveNode,
    NodeHeartbeat,
    PlanTold,
    RegisterNode,
    StagesCollected,
    StagesVerified,
)
from queryablestate.wire.operation_messages import (
    DrainNode,
    ForgetAwayNode,
    ForgetJob,
    RescaleJob,
)
from queryablestate.wire.snapshot_messages import (
    RestoreJob,
    SnapshotLoaded,
    SnapshotWritten,
    TakeSnapshot,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from queryablestate.control.changes import Outcome
    from queryablestate.control.job.job import Job
    from queryablestate.control.present_node import PresentNode
    from queryablestate.control.routes import KvStateLocation
    from queryablestate.control.tally import Tally
    from queryablestate.wire.operation_messages import ListRescalings, RescalingsListed
    from queryablestate.wire.records import AssignmentRecord, CountersRecord, NodeRecord


__all__ = ["ControlCore"]

_QUEUE_COUNT_MAX: Final = 10_000


@final
class ControlCore:
    """
    Jobs, runs, decisions and nodes; see the module docstring.

    Two cores given the same sequence of ``(event, now_ns)`` return the same effects.
    Not thread-safe: one shell drives it.

    Args:
        counters: From the leader store, or a fresh one.
        jobs: From the leader store.
        nodes: From the leader store.
        leader_epoch: The epoch of this leadership.
        session_timeout_ns: Silence after which a node is taken for away.
        now_ns: The time.
        limits: How much it takes on.
        copy_secret: What nodes that are taken in are given, to show each other.
        direct_reads: Whether nodes may answer clients without the proxy (rule D1).
        direct_lease_ns: How long they may after they were heard, also if an earlier
            leader has allowed it.
        unfinished: What is to be written before anything else.
        commit_limits: How much one commit of the leader store takes.
        tally: Is told what was decided.
    """

    def __init__(
        self,
        *,
        counters: CountersRecord,
        jobs: Iterable[Job],
        nodes: Iterable[NodeRecord],
        leader_epoch: int,
        session_timeout_ns: int,
        now_ns: int,
        limits: ControlLimits = CONTROL_LIMITS,
        copy_secret: bytes = b"",
        direct_reads: bool = True,
        direct_lease_ns: int = 0,
        unfinished: DividedWrite = NOTHING_LEFT,
        commit_limits: CommitLimits = COMMIT_LIMITS,
        tally: Tally | None = None,
    ) -> None:
        self._control = ControlState(
            counters=counters,
            jobs=jobs,
            nodes=nodes,
            leader_epoch=leader_epoch,
            session_timeout_ns=session_timeout_ns,
            now_ns=now_ns,
            limits=limits,
            copy_secret=copy_secret,
            direct_reads=direct_reads,
            direct_lease_ns=direct_lease_ns,
            tally=tally,
        )
        self._commits = Commits(self._control)
        self._draining = Draining(self._control)
        self._membership = Membership(self._control)
        self._moves = Moves(self._control)
        self._tickets = TicketOffice(self._control)
        self._drops = StateDrops(self._control)
        self._snapshots = Snapshots(self._control)
        self._restores = Restores(self._control)
        self._plans = JobPlans(self._control)
        self._adoptions = Adoptions(self._control)
        self._forgetting = Forgetting(self._control)
        self._unused = UnusedJobs(self._control)
        self._unused.look(now_ns=now_ns)
        self._now_ns = now_ns
        self._writes = WriteQueue(unfinished, commit_limits)
        self.view: Final = ControlView(self._control)
        self._is_over = False
        # The shell asks for it before every question that it waits for.
        self._deadline_ns: int | None = None
        self._is_deadline_known = False
        self._checked: dict[str, AssignmentRecord] = {}

    def limit(self, limits: ControlLimits) -> None:
        """Take on no more than *limits* from now on; what there is stays."""
        self._control.limits = limits
        self._control.touch()
        self._is_deadline_known = False

    # -- questions -----------------------------------------------------------------

    @property
    def locations(self) -> Mapping[int, KvStateLocation]:
        """Return the route table: each state by its number."""
        return self._control.routes.locations

    def takes_for_away(self, node_id: str, now_ns: int) -> bool:
        """
        Return whether a node that is not here counts as away (rule S2).

        One that has asked to be taken in is coming, though a large write may come
        before it.
        """
        return not self._membership.is_coming(node_id) and self._control.takes_for_away(
            now_ns
        )

    def reach(self, *, now_ns: int) -> tuple[int, int, bool]:
        """
        Return what is equal as long as a question that waits for its node waits on.

        That depends on the routes, on who is about to be taken in, and on whether nodes
        that are not here count as away (`takes_for_away`).
        """
        return (
            self._control.routes.version,
            self._membership.coming_version,
            self._control.takes_for_away(now_ns),
        )

    def rescalings(self, request: ListRescalings, *, now_ns: int) -> RescalingsListed:
        """Return how far jobs are from what is wanted; `UnknownJobError`."""
        return self._moves.rescalings(request, now_ns=now_ns)

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        if not self._is_deadline_known:
            self._deadline_ns = self._earliest_ns()
            self._is_deadline_known = True
        return self._deadline_ns

    def _earliest_ns(self) -> int | None:
        times = (
            self._commits.next_deadline_ns(),
            self._membership.next_deadline_ns(),
            self._snapshots.next_deadline_ns(),
            self._restores.next_deadline_ns(),
            self._adoptions.next_deadline_ns(),
            self._moves.next_deadline_ns(),
            self._control.open_batches.next_deadline_ns(),
            self._unused.next_deadline_ns(),
            self._control.direct.next_deadline_ns(),
        )
        return earliest(times)

    def check_invariants(self) -> None:
        """Check what holds between any two steps."""
        for job in self._control.jobs.values():
            job.check_invariants()
            self._check_assignment(job)
            for number in job.states:
                assert self.locations[number].job_id == job.record.job_id
        assert len(self.locations) == sum(
            len(job.states) for job in self._control.jobs.values()
        )
        counters = self._control.counters
        assert self._control.ticket_next <= counters.ticket_limit
        assert all(
            number <= counters.state_number
            for job in self._control.jobs.values()
            for number in job.states
        )
        assert self._is_over or not self._writes.is_stalled

    def _check_assignment(self, job: Job) -> None:
        """Check an assignment, if it is not the one that was checked last."""
        assignment, job_id = job.assignment, job.record.job_id
        assert assignment is not None
        if assignment is not self._checked.get(job_id):
            assert len(assignment.owners) == job.record.max_parallelism
            assert assignment.sequence <= job.record.sequence
            check_assignment(assignment)
            self._checked[job_id] = assignment

    # -- the machine ---------------------------------------------------------------

    def step(self, event: ControlEvent, *, now_ns: int) -> tuple[ControlEffect, ...]:
        """
        Have *event* happen, and return what is to be done, in that order.

        After a `StartOver`, which is the last effect of its step, nothing follows.
        """
        assert now_ns >= self._now_ns
        assert not self._is_over
        self._now_ns = now_ns
        self._is_deadline_known = False
        effects = self._sequence(self._handle(event, now_ns))
        if self._is_over:
            return tuple(effects)
        effects += self._membership.expire(now_ns=now_ns)
        effects += self._commits.expire(now_ns=now_ns)
        effects += self._expire_direct(now_ns)
        if self._control.open_batches.expire(now_ns=now_ns):
            self._control.is_touched = True  # a node that is empty may end now
        effects += self._sequence(self._unused.expire(now_ns=now_ns))
        effects += self._pump(now_ns)
        while outcomes := self._look(now_ns):
            effects += self._sequence(outcomes)
            effects += self._pump(now_ns)
        # Last: a node that has registered anew has left what it was doing.
        effects += self._snapshots.expire(now_ns=now_ns)
        effects += self._restores.expire(now_ns=now_ns)
        effects += self._adoptions.expire(now_ns=now_ns)
        if isinstance(event, StoreWritten) or _is_registration(event):
            effects += self._plans.look()
        return tuple(effects)

    def _handle(self, event: ControlEvent, now_ns: int) -> Sequence[Outcome]:
        match event:
            case WriterAsked():
                return self._writer_asked(event, now_ns)
            case NodeSpoke():
                return self._node_spoke(event, now_ns)
            case LinksClosed(links=links):
                closed = frozenset(links)
                self._commits.links_closed(closed)
                self._control.open_batches.links_closed(closed, now_ns=now_ns)
                self._snapshots.links_closed(closed, now_ns=now_ns)
                self._restores.links_closed(closed)
                self._adoptions.links_closed(closed)
                return self._membership.links_closed(links, now_ns=now_ns)
            case RightsReplaced():
                return self._commits.rights_replaced()
            case StoreWritten():
                return self._store_written(now_ns)
            case StoreFailed(error=error, is_certain=is_certain):
                return self._store_failed(error, is_certain=is_certain)
            case TimePassed():
                return []
            case _:
                assert_never(event)

    def _writer_asked(self, event: WriterAsked, now_ns: int) -> Sequence[Outcome]:
        link, request = event.link, event.request
        refuse = partial(_refuse_writer, link, request.request_id)
        prepare: Callable[[int], Write | Sequence[Outcome]]
        match request:
            case DrawTicket():
                prepare = partial(self._tickets.draw, link, request, event.writable)
            case BindRun():
                prepare = partial(self._tickets.bind, link, request, event.writable)
            case DropState():
                prepare = partial(self._drops.drop, link, request)
            case RescaleJob():
                prepare = partial(self._moves.rescale, link, request)
            case DrainNode():
                prepare = partial(self._draining.drain, link, request)
            case ForgetJob():
                prepare = partial(self._forgetting.forget, link, request)
            case ForgetAwayNode():
                prepare = partial(self._forgetting.forget_node, link, request)
            case TakeControl():
                prepare = partial(self._adoptions.take_control, link, request)
            case CommitBatch() | TakeSnapshot() | RestoreJob() | AdoptJob():
                try:
                    return self._ask(event, request, now_ns)
                except NameServiceError as error:
                    return refuse(error)
            case _:
                assert_never(request)
        if isinstance(request, DrawTicket | BindRun | DropState | RescaleJob):
            prepare = self._if_known(request, prepare)
        is_writer = isinstance(request, DrawTicket | BindRun)
        turn = Turn.WRITER if is_writer else Turn.OTHER
        return [Change(prepare=prepare, refuse=refuse, turn=turn)]

    def _if_known(
        self,
        request: DrawTicket | BindRun | DropState | RescaleJob,
        prepare: Callable[[int], Write | Sequence[Outcome]],
    ) -> Callable[[int], Write | Sequence[Outcome]]:
        """Return *prepare*, unless what there is of the job is not known by then."""
        if isinstance(request, DrawTicket) and not request.states:
            return prepare  # it names no job

        def check(now_ns: int) -> Write | Sequence[Outcome]:
            problem = self._control.problem_of(request.job_id)
            if problem is not None:
                raise problem
            return prepare(now_ns)

        return check

    def _ask(
        self,
        event: WriterAsked,
        request: CommitBatch | TakeSnapshot | RestoreJob | AdoptJob,
        now_ns: int,
    ) -> Sequence[Outcome]:
        """Begin what takes more than one write, or waits for nodes."""
        link, wall_clock_us = event.link, event.wall_clock_us
        if isinstance(request, AdoptJob):
            return self._adoptions.ask(link, request, now_ns=now_ns)
        problem = self._control.problem_of(request.job_id)
        # A job that is restored from a snapshot needs no rows that nodes keep.
        if problem is not None and not isinstance(request, RestoreJob):
            raise problem
        match request:
            case CommitBatch():
                return self._commits.ask(
                    link,
                    request,
                    wall_clock_us,
                    now_ns=now_ns,
                    writable=event.writable,
                )
            case TakeSnapshot():
                return self._snapshots.ask(link, request, wall_clock_us, now_ns=now_ns)
            case RestoreJob():
                return self._restores.ask(link, request, now_ns=now_ns)
            case _:
                assert_never(request)

    def _node_spoke(self, event: NodeSpoke, now_ns: int) -> Sequence[Outcome]:
        link, message = event.link, event.message
        if isinstance(message, RegisterNode):
            return [self._membership.register(link, message)]
        node = self._membership.hear(link, message.registration_id, now_ns=now_ns)
        if node is None:
            return self._membership.refuse(link)
        match message:
            case NodeHeartbeat():
                return self._heartbeat(node, message, now_ns)
            case StagesVerified():
                return self._commits.verified(node, message)
            case StagesCollected():
                return self._commits.collected(node, message)
            case EntriesApplied():
                effects = self._membership.applied(node, message, now_ns=now_ns)
                moved = self._commits.node_moved(message.job_id, now_ns=now_ns)
                return [*effects, *moved]
            case KeyGroupsCopied():
                self._membership.copied(node, message)
                return []
            case LeaveNode():
                return [self._draining.leave(node)]
            case SnapshotWritten():
                return self._snapshots.written(node, message)
            case SnapshotLoaded():
                return self._restores.loaded(node, message)
            case PlanTold():
                return self._adoptions.told(node, message)
            case _:
                assert_never(message)

    def _heartbeat(
        self, node: PresentNode, message: NodeHeartbeat, now_ns: int
    ) -> Sequence[Outcome]:
        outcomes: list[Outcome] = [
            self._membership.acknowledge(node, message, now_ns=now_ns)
        ]
        fewer = self._control.direct.acknowledged(
            node.node_id, message.number, message.acknowledged
        )
        for job_id in fewer:
            outcomes += self._commits.node_moved(job_id, now_ns=now_ns)
        return outcomes

    def _expire_direct(self, now_ns: int) -> list[ControlEffect]:
        """Answer what waited for nodes that answer clients by what is over."""
        direct = self._control.direct
        effects: list[ControlEffect] = []
        for job_id in direct.expire(now_ns=now_ns):
            effects += self._commits.node_moved(job_id, now_ns=now_ns)
        return [*effects, *direct.release(now_ns=now_ns)]

    def _look(self, now_ns: int) -> Sequence[Outcome]:
        """Look at the assignments of all that was touched, once nodes have come."""
        control = self._control
        self._moves.wake(now_ns=now_ns)
        if not control.is_touched or not control.is_settled(now_ns=now_ns):
            return []
        control.is_touched = False
        return [*self._moves.look(), *self._draining.emptied(now_ns=now_ns)]

    # -- one write at a time -------------------------------------------------------

    def _sequence(self, outcomes: Iterable[Outcome]) -> list[ControlEffect]:
        """Have changes wait for their turn, and return what is to be done now."""
        effects: list[ControlEffect] = []
        for outcome in outcomes:
            match outcome:
                case Change():
                    effects += self._writes.add(outcome)
                case NodeCame():
                    effects += self._commits.node_came()
                case AssignmentChanged(job=job):
                    effects += self._sequence(self._commits.assignment_changed(job))
                case JobRemoved(job_id=job_id):
                    self._checked.pop(job_id, None)
                    effects += self._commits.job_removed(job_id)
                    effects += self._snapshots.job_removed(job_id)
                case _:
                    effects.append(outcome)
        return effects

    def _pump(self, now_ns: int) -> list[ControlEffect]:
        """Begin the next write, and do all that needs none before it."""
        effects: list[ControlEffect] = []
        while (outcomes := self._writes.begin_next(now_ns)) is not None:
            effects += self._sequence(outcomes)
        return effects

    def _store_written(self, now_ns: int) -> Sequence[Outcome]:
        outcomes = self._writes.written(now_ns)
        self._unused.look(now_ns=now_ns)
        if outcomes and isinstance(outcomes[-1], StartOver):
            return self._start_over(outcomes)
        return outcomes

    def _store_failed(
        self, error: NameServiceError, *, is_certain: bool
    ) -> Sequence[Outcome]:
        outcomes, doubt = self._writes.failed(error, is_certain=is_certain)
        return outcomes if doubt is None else self._start_over(outcomes, doubt)

    def _start_over(
        self, outcomes: Sequence[Outcome], error: NameServiceError | None = None
    ) -> Sequence[Outcome]:
        """
        Be over: the last of *outcomes* is a `StartOver`.

        Everybody who waits asks again: the shell that has the new core in hand knows
        nothing of them.
        """
        *effects, start_over = outcomes
        self._is_over = True
        doubt = error or DidNotHappenError("the control plane begins anew")
        effects += self._writes.refuse_all(doubt)
        effects += self._commits.refuse_all(doubt)
        effects += self._snapshots.refuse_all(doubt)
        effects += self._restores.refuse_all(doubt)
        effects += self._adoptions.refuse_all(doubt)
        return [*effects, start_over]


def _is_registration(event: ControlEvent) -> bool:
    return isinstance(event, NodeSpoke) and isinstance(event.message, RegisterNode)


def _refuse_writer(
    link: LinkId, request_id: int, error: NameServiceError
) -> Sequence[ControlEffect]:
    return [RefuseWriter(link=link, request_id=request_id, error=error)]
