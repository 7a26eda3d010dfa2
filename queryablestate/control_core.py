"""
`ControlCore`: the control plane of queryable state without I/O.

Theory of operation.  The proxy leader drives one core: events and time in, effects out.
What must survive is in the leader store; the core is what the store holds, plus who is
there now.  A new leader makes a new core from the store.

**One write at a time.**  What changes the store waits in a queue.  The first of it is
checked against what is true then, written (`WriteStore`), and takes effect when the
store has it (`StoreWritten`), before the next is looked at.  If the store cannot say
whether it has a write, nobody here can: `StartOver`.

**A commit** (rule W3) goes through three phases::

    VERIFYING   the nodes are asked whether they hold every chunk of the winning stages;
                nodes that are away are asked when they are back
    DECIDING    the decision waits to be written, or is being written
    APPLYING    it is in the chain; the owners are told, and tell when they have it

Up to DECIDING nothing has happened, and the writer may run the batch again.  From
APPLYING on the batch is committed whatever happens to the writer, and asking again only
waits.  Verification costs a round trip, and buys that a decision never names rows that
nobody has.

**Nodes** register over a connection of their own, say how far they are with each job,
and are sent what they miss.  A node without any position starts where its assignment
says that it joined; if its data directory is not the one that was assigned, its rows
are lost, and it starts at the head with every state marked so (rule W7).
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from attrs import Factory, define, frozen
from msgspec.structs import replace

from election import Put
from nameservice import (
    CommitTimeoutError,
    DidNotHappenError,
    LocalProtocolError,
    NameServiceError,
    StagedDataMissingError,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.assignment import first_assignment, key_groups_of, primary_indexes
from queryablestate.control_effects import (
    AnswerWriter,
    ControlEffect,
    ForgetNode,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control_events import (
    ControlEvent,
    Link,
    LinkClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.decisions import ENTRY_KEPT_COUNT, Job, JobChange, Repeated
from queryablestate.location import KvStateLocation
from queryablestate.messages import (
    BatchCommitted,
    BindRun,
    BoundState,
    CommitBatch,
    DrawTicket,
    DropState,
    NodeAddress,
    NodeSummary,
    RunBound,
    StateDescription,
    StateDropDone,
    TicketDrawn,
)
from queryablestate.node_messages import (
    ApplyEntries,
    AssignJob,
    EntriesApplied,
    FenceWriters,
    HeartbeatAcknowledged,
    JobAssignment,
    NodeHeartbeat,
    NodeRefused,
    NodeRegistered,
    RegisterNode,
    ResetJob,
    StagesVerified,
    VerifyStages,
    WriterFence,
)
from queryablestate.node_table import NodeTable
from queryablestate.paths import COUNTERS, encode_record, node_path
from queryablestate.records import CountersRecord, JobRecord, NodeRecord


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from election import StoreOperation
    from queryablestate.node_table import PresentNode
    from queryablestate.records import AssignmentRecord


__all__ = ["ControlCore"]

_TICKET_BLOCK: Final = 1_000
_PRUNED_COUNT_MAX: Final = 50
_ENTRIES_PER_MESSAGE_MAX: Final = 100
_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000


class _Phase(Enum):
    """How far a commit is; see the module docstring."""

    VERIFYING = "verifying"
    DECIDING = "deciding"
    APPLYING = "applying"


@frozen(kw_only=True)
class _Waiter:
    """A writer that waits for a commit."""

    link: Link
    request_id: int
    asked_at_ns: int
    deadline_ns: int


_Prepare: TypeAlias = "Callable[[int], _Write | list[ControlEffect]]"
_CommitKey: TypeAlias = "tuple[str, str, int, int | None]"


@final
@define(kw_only=True)
class _Commit:
    """A batch on its way."""

    request: CommitBatch
    phase: _Phase
    waiters: list[_Waiter] = Factory(list)
    verify_id: int = 0
    unverified: set[str] = Factory(set)
    batch_id: int = 0
    sequence: int = 0
    is_repeated: bool = False


@frozen(kw_only=True)
class _Write:
    """Operations for the store, and what is true once it has them."""

    operations: Sequence[StoreOperation]
    adopt: Callable[[int], list[ControlEffect]]


@frozen(kw_only=True)
class _Queued:
    """
    A change that waits for its turn.

    Attributes:
        prepare: Checks it against what is true by then, and says what to write.
        asked_by: Whom to refuse if that fails: connection and request.
        commit_key: The commit that fails with it.
    """

    prepare: _Prepare
    asked_by: tuple[Link, int] | None = None
    commit_key: _CommitKey | None = None


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
    ) -> None:
        self._counters = counters
        self._jobs = {job.record.job_id: job for job in jobs}
        self._nodes = NodeTable(nodes)
        self._leader_epoch = leader_epoch
        self._session_timeout_ns = session_timeout_ns
        self._now_ns = now_ns
        self._settled_at_ns = now_ns + session_timeout_ns
        self._ticket_next = counters.ticket_limit
        self._queue: deque[_Queued] = deque()
        self._writing: tuple[_Queued, _Write] | None = None
        self._commits: dict[_CommitKey, _Commit] = {}
        self._verify_id = 0
        self._locations: dict[int, KvStateLocation] = {}
        self._key_groups: dict[tuple[str, int], tuple[tuple[int, ...], ...]] = {}
        for job_id in self._jobs:
            self._locate(job_id)

    # -- questions -----------------------------------------------------------------

    @property
    def locations(self) -> Mapping[int, KvStateLocation]:
        """Return the route table: each state by its number."""
        return self._locations

    def is_settled(self, *, now_ns: int) -> bool:
        """
        Return whether a node that is not here will not come by itself (rule S2).

        Until all known nodes have registered with this leader, or one session timeout
        has passed, an absent node is only late.
        """
        return now_ns >= self._settled_at_ns or all(
            self._nodes.present(node_id) is not None
            for node_id in self._nodes.known_ids
        )

    def job_ids(self) -> Sequence[str]:
        """Return the jobs that have a state, sorted."""
        return sorted(job_id for job_id, job in self._jobs.items() if job.states)

    def state_names(self, job_id: str) -> Sequence[str]:
        """Return the states of a job, sorted; none for a job that is not known."""
        job = self._jobs.get(job_id)
        states = () if job is None else job.states.values()
        return sorted(state.state_name for state in states)

    def describe(
        self, job_id: str, state_name: str, *, wall_clock_us: int
    ) -> StateDescription | None:
        """Return all that is known of a state, or None if there is no such state."""
        job = self._jobs.get(job_id)
        state = None if job is None else job.state_named(state_name)
        if job is None or state is None or job.assignment is None:
            return None
        progress = job.progress_of(state.state_number)
        assert progress is not None
        age_ms = None
        if progress.batch_id is not None:
            age_ms = max(0, wall_clock_us - progress.decided_at_us) // 1_000
        return StateDescription(
            job_id=job_id,
            state_name=state_name,
            state_number=state.state_number,
            schema=state.schema,
            max_parallelism=job.record.max_parallelism,
            generation=progress.generation,
            batch_id=progress.batch_id,
            query_id=progress.query_id,
            age_ms=age_ms,
            assignment_version=job.assignment.version,
            node_ids=job.assignment.node_ids,
            owners=primary_indexes(job.assignment),
        )

    def node_summaries(self, *, now_ns: int) -> Sequence[NodeSummary]:
        """Return every known node, sorted by name."""
        return [self._summary(node_id, now_ns) for node_id in self._nodes.known_ids]

    def node_at(self, link: Link) -> str | None:
        """Return which node is registered over *link*, or None."""
        node = self._nodes.at(link)
        return None if node is None else node.node_id

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        times = [
            waiter.deadline_ns
            for commit in self._commits.values()
            for waiter in commit.waiters
        ]
        heard_at_ns = self._nodes.oldest_heard_at_ns()
        if heard_at_ns is not None:
            times.append(heard_at_ns + self._session_timeout_ns)
        return min(times, default=None)

    # -- the machine ---------------------------------------------------------------

    def step(self, event: ControlEvent, *, now_ns: int) -> tuple[ControlEffect, ...]:
        """Let *event* happen, and return what is to be done, in that order."""
        assert now_ns >= self._now_ns
        self._now_ns = now_ns
        effects = self._handle(event, now_ns)
        effects += self._expire(now_ns)
        effects += self._pump(now_ns)
        return tuple(effects)

    def _handle(self, event: ControlEvent, now_ns: int) -> list[ControlEffect]:
        match event:
            case WriterAsked():
                return self._writer_asked(event, now_ns)
            case NodeSpoke():
                return self._node_spoke(event, now_ns)
            case LinkClosed(link=link):
                return self._link_closed(link)
            case StoreWritten():
                assert self._writing is not None
                _, write = self._writing
                self._writing = None
                return write.adopt(now_ns)
            case StoreFailed(error=error, is_certain=is_certain):
                return self._store_failed(error, is_certain=is_certain)
            case TimePassed():
                return []
            case _:
                assert_never(event)

    # -- one write at a time -------------------------------------------------------

    def _pump(self, now_ns: int) -> list[ControlEffect]:
        """Begin the next write, and do all that needs none before it."""
        effects: list[ControlEffect] = []
        while self._writing is None and self._queue:
            queued = self._queue.popleft()
            try:
                planned = queued.prepare(now_ns)
            except NameServiceError as error:
                effects += self._refusals(queued, error)
                continue
            if isinstance(planned, list):
                effects += planned
            elif planned.operations:
                self._writing = (queued, planned)
                effects.append(WriteStore(operations=tuple(planned.operations)))
            else:
                effects += planned.adopt(now_ns)
        return effects

    def _store_failed(
        self, error: NameServiceError, *, is_certain: bool
    ) -> list[ControlEffect]:
        assert self._writing is not None
        queued, _ = self._writing
        self._writing = None
        if not is_certain:
            return [StartOver(reason=error)]
        refusal = DidNotHappenError(f"the leader store took no write: {error}")
        return self._refusals(queued, refusal)

    def _refusals(
        self, queued: _Queued, error: NameServiceError
    ) -> list[ControlEffect]:
        """Tell those who wait for a change that it failed."""
        if queued.commit_key is not None:
            return self._fail_commit(queued.commit_key, error)
        if queued.asked_by is None:
            return []  # a node: it registers again by itself
        link, request_id = queued.asked_by
        return [_refuse(link, request_id, error)]

    # -- writers -------------------------------------------------------------------

    def _writer_asked(self, event: WriterAsked, now_ns: int) -> list[ControlEffect]:
        link, request = event.link, event.request
        prepare: _Prepare
        match request:
            case DrawTicket():
                prepare = partial(self._draw, link, request)
            case BindRun():
                prepare = partial(self._bind, link, request)
            case DropState():
                prepare = partial(self._drop, link, request)
            case CommitBatch():
                try:
                    return self._commit(link, request, event.wall_clock_us, now_ns)
                except NameServiceError as error:
                    return [_refuse(link, request.request_id, error)]
            case _:
                assert_never(request)
        asked_by = (link, request.request_id)
        self._queue.append(_Queued(prepare=prepare, asked_by=asked_by))
        return []

    def _draw(
        self, link: Link, request: DrawTicket, now_ns: int
    ) -> _Write | list[ControlEffect]:
        """Give out a ticket; make the job, or its first assignment, if need be."""
        job = self._jobs.get(request.job_id)
        if job is not None:
            job.check_declarations(request.states, request.max_parallelism)
        operations: list[StoreOperation] = []
        counters = self._counters
        if self._ticket_next >= counters.ticket_limit:
            limit = self._ticket_next + _TICKET_BLOCK
            counters = replace(counters, ticket_limit=limit)
        change = None
        if job is None or not job.states:
            self._check_may_assign(request.job_id, now_ns)
            if job is None:
                counters = replace(counters, job_number=counters.job_number + 1)
                job = _empty_job(request, counters.job_number)
            change = self._first_change(job, request.max_parallelism)
        if change is not None:
            operations += change.operations()
        if counters != self._counters:
            operations.append(Put(COUNTERS, encode_record(counters)))
        adopt = partial(self._drawn, link, request, job=job, counters=counters)
        return _Write(operations=operations, adopt=partial(adopt, change=change))

    def _first_change(self, job: Job, max_parallelism: int) -> JobChange | None:
        """Return what assigns a job without state anew, or None if that stands."""
        stores = {node.node_id: node.store_id for node in self._nodes}
        present = job.assignment
        assignment = first_assignment(
            stores,
            max_parallelism=max_parallelism,
            version=1 if present is None else present.version + 1,
            sequence=job.record.sequence,
        )
        if (
            present is not None
            and present.node_ids == assignment.node_ids
            and present.store_ids == assignment.store_ids
            and present.owners == assignment.owners
        ):
            return None
        return job.assign(assignment, max_parallelism)

    def _drawn(
        self,
        link: Link,
        request: DrawTicket,
        now_ns: int,
        *,
        job: Job,
        counters: CountersRecord,
        change: JobChange | None,
    ) -> list[ControlEffect]:
        del now_ns
        self._counters = counters
        ticket = self._ticket_next
        self._ticket_next += 1
        effects: list[ControlEffect] = []
        if change is not None:
            self._jobs[request.job_id] = job
            job.adopt(change)
            self._locate(request.job_id)
            effects += self._tell_assignment(job)
        assignment = job.assignment
        assert assignment is not None
        nodes = tuple(
            NodeAddress(node_id=node_id, address=self._address_of(node_id))
            for node_id in assignment.node_ids
        )
        drawn = TicketDrawn(
            request_id=request.request_id,
            ticket=ticket,
            assignment_version=assignment.version,
            nodes=nodes,
            owners=assignment.owners,
        )
        effects.append(AnswerWriter(link=link, message=drawn))
        return effects

    def _check_may_assign(self, job_id: str, now_ns: int) -> None:
        """Return if nodes may be chosen for a job now (rule S2)."""
        retry_after_seconds = self._session_timeout_ns / _NS_PER_SECOND / 5
        if not self.is_settled(now_ns=now_ns):
            detail = "this proxy leads since a moment ago, and nodes are still coming"
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)
        if next(iter(self._nodes), None) is None:
            detail = "no state node is registered: start one with 'lodestar node'"
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)

    def _bind(self, link: Link, request: BindRun, now_ns: int) -> _Write:
        """Make a run the newest of its query."""
        del now_ns
        job = self._job(request.job_id)
        if request.ticket >= self._ticket_next:
            raise LocalProtocolError(f"ticket {request.ticket} was never given out")
        number = self._counters.state_number
        change = job.bind(request, state_number_next=number + 1)
        added = [state for state in change.states if state.state_number > number]
        counters = replace(self._counters, state_number=number + len(added))
        operations: list[StoreOperation] = []
        if change.record != job.record or change.states:
            operations += change.operations()
        if counters != self._counters:
            operations.append(Put(COUNTERS, encode_record(counters)))
        adopt = partial(self._bound, link, request, change, counters)
        return _Write(operations=operations, adopt=adopt)

    def _bound(
        self,
        link: Link,
        request: BindRun,
        change: JobChange,
        counters: CountersRecord,
        now_ns: int,
    ) -> list[ControlEffect]:
        del now_ns
        job = self._job(request.job_id)
        earlier = job.run_of(request.query_id)
        self._counters = counters
        job.adopt(change)
        self._locate(request.job_id)
        run = job.run_of(request.query_id)
        assert run is not None
        effects: list[ControlEffect] = []
        if earlier is None or earlier.writer_epoch != run.writer_epoch:
            fence = WriterFence(
                query_id=request.query_id, writer_epoch=run.writer_epoch
            )
            message = FenceWriters(leader_epoch=self._leader_epoch, fences=(fence,))
            effects += [
                SendToNode(link=node.link, message=message)
                for node in self._present_of(job)
            ]
        states = []
        for declaration in request.states:
            state = job.state_named(declaration.state_name)
            assert state is not None
            states.append(
                BoundState(state_name=state.state_name, state_number=state.state_number)
            )
        bound = RunBound(
            request_id=request.request_id,
            writer_epoch=run.writer_epoch,
            states=tuple(states),
            batch_id=run.batch_id,
        )
        effects.append(AnswerWriter(link=link, message=bound))
        return effects

    def _drop(self, link: Link, request: DropState, now_ns: int) -> _Write:
        """Forget a state."""
        del now_ns
        job = self._job(request.job_id)
        change = job.drop(request.state_name)
        adopt = partial(self._dropped, link, request, change)
        return _Write(operations=change.operations(), adopt=adopt)

    def _dropped(
        self, link: Link, request: DropState, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        effects = self._extend(request.job_id, change)
        done = StateDropDone(request_id=request.request_id)
        effects.append(AnswerWriter(link=link, message=done))
        return effects

    # -- commits -------------------------------------------------------------------

    def _commit(
        self, link: Link, request: CommitBatch, wall_clock_us: int, now_ns: int
    ) -> list[ControlEffect]:
        """Begin a commit, or join one that is on its way."""
        job = self._job(request.job_id)
        waiter = _Waiter(
            link=link,
            request_id=request.request_id,
            asked_at_ns=now_ns,
            deadline_ns=now_ns + request.timeout_ms * _NS_PER_MS,
        )
        key = _key_of(request)
        commit = self._commits.get(key)
        if commit is not None and (
            commit.phase is not _Phase.VERIFYING
            or commit.request.stages == request.stages
        ):
            commit.waiters.append(waiter)
            return []
        decided = self._check_decidable(job, request)
        if commit is None:
            commit = _Commit(request=request, phase=_Phase.VERIFYING)
            self._commits[key] = commit
        commit.waiters.append(waiter)
        if isinstance(decided, Repeated):
            return self._await_applied(key, commit, decided, is_repeated=True)
        effects = self._verify(commit, request, job)
        if not commit.unverified:
            self._decide(key, commit, wall_clock_us)
        return effects

    def _check_decidable(self, job: Job, request: CommitBatch) -> JobChange | Repeated:
        """Return what deciding *request* would change, were it done now."""
        assert job.assignment is not None
        decided = job.decide(request, decided_at_us=0, pruned=())
        if isinstance(decided, Repeated):
            return decided
        if request.assignment_version != job.assignment.version:
            raise DidNotHappenError(
                f"the rows of this batch were sent by assignment "
                f"{request.assignment_version}, it is {job.assignment.version} now: "
                "run the batch again"
            )
        for stage in request.stages:
            strangers = sorted(set(stage.chunk_counts) - set(job.assignment.node_ids))
            if strangers:
                raise LocalProtocolError(
                    f"nodes {', '.join(strangers)} hold no state of {request.job_id!r}"
                )
        return decided

    def _verify(
        self, commit: _Commit, request: CommitBatch, job: Job
    ) -> list[ControlEffect]:
        """Ask the nodes for the chunks of *request*."""
        self._verify_id += 1
        commit.request = request
        commit.verify_id = self._verify_id
        commit.unverified = {
            node_id
            for stage in request.stages
            for node_id, count in stage.chunk_counts.items()
            if count
        }
        return [
            self._verification(commit, node)
            for node in self._present_of(job)
            if node.node_id in commit.unverified
        ]

    def _verification(self, commit: _Commit, node: PresentNode) -> SendToNode:
        request = commit.request
        stages = tuple(
            stage for stage in request.stages if stage.chunk_counts.get(node.node_id)
        )
        message = VerifyStages(
            leader_epoch=self._leader_epoch,
            verify_id=commit.verify_id,
            job_id=request.job_id,
            writer_epoch=request.writer_epoch,
            batch_id=_staged_batch_id(request),
            stages=stages,
        )
        return SendToNode(link=node.link, message=message)

    def _decide(self, key: _CommitKey, commit: _Commit, wall_clock_us: int) -> None:
        """Let the decision wait for its turn to be written."""
        commit.phase = _Phase.DECIDING
        prepare = partial(self._decision, key, commit, wall_clock_us)
        self._queue.append(_Queued(prepare=prepare, commit_key=key))

    def _decision(
        self, key: _CommitKey, commit: _Commit, wall_clock_us: int, now_ns: int
    ) -> _Write | list[ControlEffect]:
        """Check once more, now that nothing can come between, and write."""
        del now_ns
        request = commit.request
        job = self._job(request.job_id)
        self._check_decidable(job, request)
        pruned = self._prunable(job)
        decided = job.decide(request, decided_at_us=wall_clock_us, pruned=pruned)
        if isinstance(decided, Repeated):
            return self._await_applied(key, commit, decided, is_repeated=True)
        adopt = partial(self._decided, key, commit, decided)
        return _Write(operations=decided.operations(), adopt=adopt)

    def _decided(
        self, key: _CommitKey, commit: _Commit, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        request = commit.request
        effects = self._extend(request.job_id, change)
        run = self._job(request.job_id).run_of(request.query_id)
        assert run is not None
        assert run.batch_id is not None
        decided = Repeated(batch_id=run.batch_id, sequence=run.sequence)
        effects += self._await_applied(key, commit, decided, is_repeated=False)
        return effects

    def _await_applied(
        self, key: _CommitKey, commit: _Commit, decided: Repeated, *, is_repeated: bool
    ) -> list[ControlEffect]:
        commit.phase = _Phase.APPLYING
        commit.batch_id = decided.batch_id
        commit.sequence = decided.sequence
        commit.is_repeated = is_repeated
        return self._finish_if_applied(key, commit)

    def _finish_if_applied(
        self, key: _CommitKey, commit: _Commit
    ) -> list[ControlEffect]:
        """Answer the writers if every owner is as far as this commit."""
        if self._lagging(self._job(commit.request.job_id), commit.sequence):
            return []
        self._commits.pop(key, None)
        return [
            AnswerWriter(
                link=waiter.link,
                message=BatchCommitted(
                    request_id=waiter.request_id,
                    batch_id=commit.batch_id,
                    is_repeated=commit.is_repeated,
                ),
            )
            for waiter in commit.waiters
        ]

    def _fail_commit(
        self, key: _CommitKey, error: NameServiceError
    ) -> list[ControlEffect]:
        commit = self._commits.pop(key)
        return [
            _refuse(waiter.link, waiter.request_id, error) for waiter in commit.waiters
        ]

    def _extend(self, job_id: str, change: JobChange) -> list[ControlEffect]:
        """Adopt a change with a new entry, and send that to the nodes."""
        job = self._job(job_id)
        assert change.entry is not None
        job.adopt(change)
        self._locate(job_id)
        message = ApplyEntries(
            leader_epoch=self._leader_epoch, job_id=job_id, entries=(change.entry,)
        )
        return [
            SendToNode(link=node.link, message=message)
            for node in self._present_of(job)
        ]

    def _lagging(self, job: Job, sequence: int) -> Sequence[str]:
        """Return the owners that have not applied that entry, as far as is known."""
        assert job.assignment is not None
        lagging = []
        for node_id in job.assignment.node_ids:
            node = self._nodes.present(node_id)
            applied = -1 if node is None else node.sequences.get(job.record.job_id, -1)
            if applied < sequence:
                lagging.append(node_id)
        return lagging

    def _prunable(self, job: Job) -> Sequence[int]:
        """Return the oldest entries that are not kept any longer (rule W3)."""
        assert job.assignment is not None
        record = job.record
        applied = []
        for node_id in job.assignment.node_ids:
            node = self._nodes.present(node_id)
            if node is None:
                return ()
            applied.append(node.sequences.get(record.job_id, 0))
        last = min(*applied, record.sequence + 1 - ENTRY_KEPT_COUNT)
        end = min(last + 1, record.sequence_first + _PRUNED_COUNT_MAX)
        return range(record.sequence_first, end)

    # -- nodes ---------------------------------------------------------------------

    def _node_spoke(self, event: NodeSpoke, now_ns: int) -> list[ControlEffect]:
        link, message = event.link, event.message
        if isinstance(message, RegisterNode):
            self._queue.append(_Queued(prepare=partial(self._register, link, message)))
            return []
        node = self._nodes.at(link)
        if node is None or node.registration_id != message.registration_id:
            refused = NodeRefused(reason="unknown", detail="register first")
            return [SendToNode(link=link, message=refused)]
        node.heard_at_ns = now_ns
        match message:
            case NodeHeartbeat(number=number):
                acknowledged = HeartbeatAcknowledged(
                    leader_epoch=self._leader_epoch, number=number
                )
                return [SendToNode(link=link, message=acknowledged)]
            case StagesVerified():
                return self._verified(node, message, event.wall_clock_us)
            case EntriesApplied():
                return self._applied(node, message)
            case _:
                assert_never(message)

    def _register(
        self, link: Link, message: RegisterNode, now_ns: int
    ) -> _Write | list[ControlEffect]:
        """Take a node in; write down its name if that is new, or its disk is."""
        earlier = self._nodes.present(message.node_id)
        if earlier is not None and earlier.store_id != message.store_id:
            # The same data directory could not be open twice; another one can.
            refused = NodeRefused(
                reason="name-taken",
                detail=f"another node is called {message.node_id!r}: "
                "give this one another name",
            )
            return [SendToNode(link=link, message=refused)]
        record = NodeRecord(node_id=message.node_id, store_id=message.store_id)
        operations = []
        if self._nodes.store_id_of(message.node_id) != message.store_id:
            operations.append(Put(node_path(record.node_id), encode_record(record)))
        del now_ns
        adopt = partial(self._registered, link, message, record)
        return _Write(operations=operations, adopt=adopt)

    def _registered(
        self, link: Link, message: RegisterNode, record: NodeRecord, now_ns: int
    ) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        for earlier in (self._nodes.present(message.node_id), self._nodes.at(link)):
            if earlier is not None and self._nodes.present(earlier.node_id) is earlier:
                effects += self._forget(earlier)
        self._nodes.record(record)
        node = self._nodes.register(message, link=link, now_ns=now_ns)
        jobs = [job for job in self._jobs.values() if _has_node(job, node.node_id)]
        jobs.sort(key=lambda job: job.record.job_number)
        registered = NodeRegistered(
            leader_epoch=self._leader_epoch,
            control_id=self._counters.control_id,
            session_timeout_ms=self._session_timeout_ns // _NS_PER_MS,
            jobs=tuple(_job_assignment(job, node.node_id) for job in jobs),
        )
        effects.append(SendToNode(link=link, message=registered))
        for job in jobs:
            effects += self._catch_up(job, node)
            self._locate(job.record.job_id)
        for key, commit in list(self._commits.items()):
            if commit.phase is _Phase.APPLYING:
                effects += self._finish_if_applied(key, commit)
            elif commit.phase is _Phase.VERIFYING and (
                node.node_id in commit.unverified
            ):
                effects.append(self._verification(commit, node))
        return effects

    def _catch_up(self, job: Job, node: PresentNode) -> list[ControlEffect]:
        """Send a node what it has missed of a job."""
        assignment, record = job.assignment, job.record
        assert assignment is not None
        index = assignment.node_ids.index(node.node_id)
        position = node.sequences.get(record.job_id)
        lost: tuple[int, ...]
        if position is None and assignment.store_ids[index] == node.store_id:
            start, lost = assignment.since_sequences[index], ()
            is_reset = start > 0
        elif position is None or position > record.sequence:
            start, lost = record.sequence, job.state_numbers_with_rows()
            is_reset = True
        else:
            start, lost = position, ()
            is_reset = False
        entries = job.entries_after(start)
        if entries is None:
            start, lost = record.sequence, job.state_numbers_with_rows()
            is_reset, entries = True, ()
        effects: list[ControlEffect] = []
        if is_reset:
            reset = ResetJob(
                leader_epoch=self._leader_epoch,
                job_id=record.job_id,
                sequence=start,
                state_numbers=lost,
            )
            effects.append(SendToNode(link=node.link, message=reset))
        else:
            node.sequences[record.job_id] = start
        for first in range(0, len(entries), _ENTRIES_PER_MESSAGE_MAX):
            part = tuple(entries[first : first + _ENTRIES_PER_MESSAGE_MAX])
            message = ApplyEntries(
                leader_epoch=self._leader_epoch, job_id=record.job_id, entries=part
            )
            effects.append(SendToNode(link=node.link, message=message))
        return effects

    def _verified(
        self, node: PresentNode, message: StagesVerified, wall_clock_us: int
    ) -> list[ControlEffect]:
        for key, commit in self._commits.items():  # noqa: B007 (used after it)
            if commit.phase is _Phase.VERIFYING and (
                commit.verify_id == message.verify_id
            ):
                break
        else:
            return []
        if message.missing:
            error = StagedDataMissingError(
                _staged_batch_id(commit.request), [node.node_id]
            )
            return self._fail_commit(key, error)
        commit.unverified.discard(node.node_id)
        if not commit.unverified:
            self._decide(key, commit, wall_clock_us)
        return []

    def _applied(
        self, node: PresentNode, message: EntriesApplied
    ) -> list[ControlEffect]:
        node.sequences[message.job_id] = message.sequence
        if message.failure is None:
            node.failures.pop(message.job_id, None)
        else:
            node.failures[message.job_id] = message.failure
        effects: list[ControlEffect] = []
        for key, commit in list(self._commits.items()):
            if commit.phase is _Phase.APPLYING and (
                commit.request.job_id == message.job_id
            ):
                effects += self._finish_if_applied(key, commit)
        return effects

    def _link_closed(self, link: Link) -> list[ControlEffect]:
        for key, commit in list(self._commits.items()):
            commit.waiters = [
                waiter for waiter in commit.waiters if waiter.link != link
            ]
            if not commit.waiters and commit.phase is not _Phase.DECIDING:
                del self._commits[key]  # the writer asks again, or nobody does
        node = self._nodes.at(link)
        return [] if node is None else self._forget(node)

    def _forget(self, node: PresentNode) -> list[ControlEffect]:
        """Take a node for away."""
        self._nodes.remove(node)
        for job_id, job in self._jobs.items():
            if _has_node(job, node.node_id):
                self._locate(job_id)
        return [ForgetNode(link=node.link, node_id=node.node_id)]

    def _tell_assignment(self, job: Job) -> list[ControlEffect]:
        """Tell the present nodes of a job what they answer for, and where it begins."""
        effects: list[ControlEffect] = []
        for node in self._present_of(job):
            message = AssignJob(
                leader_epoch=self._leader_epoch,
                job=_job_assignment(job, node.node_id),
            )
            effects.append(SendToNode(link=node.link, message=message))
            effects += self._catch_up(job, node)
        return effects

    def _present_of(self, job: Job) -> Sequence[PresentNode]:
        """Return the nodes of a job that are present, by name."""
        return [node for node in self._nodes if _has_node(job, node.node_id)]

    # -- time ----------------------------------------------------------------------

    def _expire(self, now_ns: int) -> list[ControlEffect]:
        """End what has waited for too long."""
        effects: list[ControlEffect] = []
        for node in self._nodes.silent_since(now_ns - self._session_timeout_ns):
            effects += self._forget(node)
        for key, commit in list(self._commits.items()):
            late = [waiter for waiter in commit.waiters if waiter.deadline_ns <= now_ns]
            if not late:
                continue
            commit.waiters = [
                waiter for waiter in commit.waiters if waiter.deadline_ns > now_ns
            ]
            effects += [self._timeout(commit, waiter, now_ns) for waiter in late]
            if not commit.waiters and commit.phase is not _Phase.DECIDING:
                del self._commits[key]
        return effects

    def _timeout(self, commit: _Commit, waiter: _Waiter, now_ns: int) -> RefuseWriter:
        is_decided = commit.phase is _Phase.APPLYING
        if is_decided:
            job = self._job(commit.request.job_id)
            node_ids = self._lagging(job, commit.sequence)
        else:
            node_ids = sorted(commit.unverified)
        error = CommitTimeoutError(
            _staged_batch_id(commit.request),
            (now_ns - waiter.asked_at_ns) / _NS_PER_SECOND,
            node_ids,
            is_decided=is_decided,
        )
        return _refuse(waiter.link, waiter.request_id, error)

    # -- parts ---------------------------------------------------------------------

    def _job(self, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise UnknownJobError(job_id)
        return job

    def _address_of(self, node_id: str) -> str | None:
        node = self._nodes.present(node_id)
        return None if node is None else node.address

    def _locate(self, job_id: str) -> None:
        """Make the routes of a job anew."""
        job = self._jobs[job_id]
        assignment = job.assignment
        for number, location in list(self._locations.items()):
            if location.job_id == job_id:
                del self._locations[number]
        if assignment is None:
            return
        links = tuple(self._link_of(node_id) for node_id in assignment.node_ids)
        key_groups = self._key_groups_of(job_id, assignment)
        for number, state in job.states.items():
            progress = job.progress_of(number)
            assert progress is not None
            self._locations[number] = KvStateLocation(
                job_id=job_id,
                state_name=state.state_name,
                state_number=number,
                generation=progress.generation,
                batch_id=progress.batch_id,
                assignment_version=assignment.version,
                node_ids=assignment.node_ids,
                links=links,
                key_groups=key_groups,
            )

    def _key_groups_of(
        self, job_id: str, assignment: AssignmentRecord
    ) -> tuple[tuple[int, ...], ...]:
        key = (job_id, assignment.version)
        found = self._key_groups.get(key)
        if found is None:
            found = tuple(
                tuple(key_groups_of(assignment, node_id))
                for node_id in assignment.node_ids
            )
            self._key_groups[key] = found
            self._key_groups.pop((job_id, assignment.version - 1), None)
        return found

    def _link_of(self, node_id: str) -> Link | None:
        node = self._nodes.present(node_id)
        return None if node is None else node.link

    def _summary(self, node_id: str, now_ns: int) -> NodeSummary:
        node = self._nodes.present(node_id)
        counts, behind = {}, {}
        for job_id, job in sorted(self._jobs.items()):
            if job.assignment is None or not _has_node(job, node_id):
                continue
            counts[job_id] = len(key_groups_of(job.assignment, node_id))
            applied = 0 if node is None else node.sequences.get(job_id, 0)
            behind[job_id] = job.record.sequence - applied
        return NodeSummary(
            node_id=node_id,
            address=None if node is None else node.address,
            last_heard_ms=(
                None if node is None else (now_ns - node.heard_at_ns) // _NS_PER_MS
            ),
            key_group_counts=counts,
            behind_counts=behind,
        )


def _key_of(request: CommitBatch) -> _CommitKey:
    return (
        request.job_id,
        request.query_id,
        request.writer_epoch,
        request.batch_id,
    )


def _staged_batch_id(request: CommitBatch) -> int:
    """Return the batch id that rows were staged under; 0 for a batch job."""
    return 0 if request.batch_id is None else request.batch_id


def _refuse(link: Link, request_id: int, error: NameServiceError) -> RefuseWriter:
    return RefuseWriter(link=link, request_id=request_id, error=error)


def _has_node(job: Job, node_id: str) -> bool:
    return job.assignment is not None and node_id in job.assignment.node_ids


def _empty_job(request: DrawTicket, job_number: int) -> Job:
    record = JobRecord(
        job_id=request.job_id,
        job_number=job_number,
        max_parallelism=request.max_parallelism,
        sequence=0,
        sequence_first=1,
        runs=(),
        progress=(),
    )
    return Job(record=record)


def _job_assignment(job: Job, node_id: str) -> JobAssignment:
    assert job.assignment is not None
    return JobAssignment(
        job_id=job.record.job_id,
        assignment_version=job.assignment.version,
        max_parallelism=job.record.max_parallelism,
        key_groups=tuple(key_groups_of(job.assignment, node_id)),
        fences=tuple(
            WriterFence(query_id=run.query_id, writer_epoch=run.writer_epoch)
            for run in job.record.runs
        ),
    )
