"""
Tickets, runs and states: how a writer gets to where it may write; pure (rules W1, W5).

Theory of operation.  A ticket is a number that is given out once.  Numbers are reserved
in the leader store by the block, so that drawing one seldom waits for a write, and the
next leader begins above whatever this one may have given out.

The first ticket for a job also gives the job its nodes: those that are present then.
They are chosen anew as long as the job has no state, for nobody has rows of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from election import Put
from nameservice import ConfigurationError, LocalProtocolError
from nameservice.clock import NS_PER_SECOND
from queryablestate.control.announcements import tell_assignment, tell_fence
from queryablestate.control.assignment.assignment import destinations, first_assignment
from queryablestate.control.chains import extend_chain
from queryablestate.control.changes import Write
from queryablestate.control.effects import AnswerWriter
from queryablestate.control.job.job import Job
from queryablestate.control.job.leader_paths import COUNTERS, encode_record
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.clients import (
    BoundState,
    NodeAddress,
    RunBound,
    StateDropDone,
    TicketDrawn,
)
from queryablestate.wire.node_messages import WriterFence
from queryablestate.wire.records import JobRecord


if TYPE_CHECKING:
    from election import StoreOperation
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import Link
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.state import ControlState
    from queryablestate.wire.clients import BindRun, DrawTicket, DropState
    from queryablestate.wire.records import CountersRecord


__all__ = ["TicketOffice"]

_TICKET_BLOCK: Final = 1_000


@final
class TicketOffice:
    """
    Prepares what writers ask for before they stage, and what operators do to states.

    Each method checks a request against what is true now and returns what to write.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control

    # -- tickets -------------------------------------------------------------------

    def draw(self, link: Link, request: DrawTicket, now_ns: int) -> Write:
        """
        Give out a ticket; make the job, or assign it anew, if need be.

        Raises:
            SchemaMismatchError: If a state is registered otherwise.
            ConfigurationError: If the request is malformed, or there are too many jobs.
            StateUnavailableError: If there is no node to have the job.
        """
        control = self._control
        counters = control.counters
        if control.ticket_next >= counters.ticket_limit:
            limit = control.ticket_next + _TICKET_BLOCK
            counters = replace(counters, ticket_limit=limit)
        if not request.states:
            return self._draw_epoch(link, request, counters)
        job = control.jobs.get(request.job_id)
        if job is None:
            self._check_may_add_job()
            counters = replace(counters, job_number=counters.job_number + 1)
            job = _empty_job(request, counters.job_number)
        job.check_declarations(request.states, request.max_parallelism)
        operations: list[StoreOperation] = []
        change = None
        if not job.states:
            self._check_may_assign(request.job_id, now_ns)
            change = self._assignment(job, request.max_parallelism)
        if change is not None:
            operations += change.operations()
        if counters != control.counters:
            operations.append(Put(COUNTERS, encode_record(counters)))
        adopt = partial(
            self._drawn, link, request, job, counters=counters, change=change
        )
        return Write(operations=operations, adopt=adopt)

    def _draw_epoch(
        self, link: Link, request: DrawTicket, counters: CountersRecord
    ) -> Write:
        """Give out a ticket that belongs to no batch."""
        control = self._control
        operations = []
        if counters != control.counters:
            operations.append(Put(COUNTERS, encode_record(counters)))

        def drawn(now_ns: int) -> list[ControlEffect]:
            del now_ns
            control.counters = counters
            ticket = control.ticket_next
            control.ticket_next += 1
            message = TicketDrawn(
                request_id=request.request_id,
                ticket=ticket,
                assignment_version=0,
                nodes=(),
                owners=(),
            )
            return [AnswerWriter(link=link, message=message)]

        return Write(operations=operations, adopt=drawn)

    def _check_may_add_job(self) -> None:
        """Return if there is room for one more job."""
        count_max = self._control.limits.job_count_max
        if len(self._control.jobs) >= count_max:
            raise ConfigurationError(
                f"this proxy knows {len(self._control.jobs):,} jobs, and takes "
                f"{count_max:,}: raise its job_count_max, or call what belongs "
                "together by one job_id"
            )

    def _check_may_add_states(self, count: int) -> None:
        """Return if there is room for so many more states."""
        control = self._control
        count_max = control.limits.state_count_max
        if count and control.state_count + count > count_max:
            raise ConfigurationError(
                f"this proxy keeps {control.state_count:,} states, and takes "
                f"{count_max:,}: raise its state_count_max, or drop states that nobody "
                "needs with 'lodestar drop-state'"
            )

    def _check_may_assign(self, job_id: str, now_ns: int) -> None:
        """Return if nodes may be chosen for a job now (rule S2)."""
        retry_after_seconds = self._control.session_timeout_ns / NS_PER_SECOND / 5
        if not self._control.is_settled(now_ns=now_ns):
            detail = "this proxy leads since a moment ago, and nodes are still coming"
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)
        if not self._stores():
            detail = "no state node is registered: start one with 'lodestar node'"
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)

    def _assignment(self, job: Job, max_parallelism: int) -> JobChange | None:
        """Return what assigns a job without state anew, or None if that stands."""
        present = job.assignment
        # Copies that an operator has asked for are not taken away with the last state.
        copies = 1 if present is None else present.replica_count
        assignment = first_assignment(
            self._stores(),
            max_parallelism=max_parallelism,
            version=1 if present is None else present.version + 1,
            sequence=job.record.sequence,
            replica_count=max(copies, self._control.limits.replica_count),
        )
        if (
            present is not None
            and present.node_ids == assignment.node_ids
            and present.store_ids == assignment.store_ids
            and present.owners == assignment.owners
            and present.replica_count == assignment.replica_count
            and not present.wanted
        ):
            return None
        return job.assign(assignment, max_parallelism)

    def _stores(self) -> dict[str, str]:
        """Return the data directories of the nodes that may be given key groups."""
        nodes = self._control.nodes
        return {
            node.node_id: node.store_id
            for node in nodes
            if not nodes.is_draining(node.node_id)
        }

    def _drawn(
        self,
        link: Link,
        request: DrawTicket,
        job: Job,
        now_ns: int,
        *,
        counters: CountersRecord,
        change: JobChange | None,
    ) -> list[ControlEffect]:
        control = self._control
        control.counters = counters
        ticket = control.ticket_next
        control.ticket_next += 1
        effects: list[ControlEffect] = []
        if change is not None:
            former = job.assignment
            control.jobs[request.job_id] = job
            job.adopt(change)
            control.routes.locate(job)
            effects += tell_assignment(control, job, former)
        assignment = job.assignment
        assert assignment is not None
        control.open_batches.drawn(
            ticket,
            job_id=request.job_id,
            version=assignment.version,
            state_names=frozenset(state.state_name for state in request.states),
            link=link,
            now_ns=now_ns,
        )
        nodes = []
        for node_id in assignment.node_ids:
            node = control.nodes.present(node_id)
            address = None if node is None else node.address
            nodes.append(NodeAddress(node_id=node_id, address=address))
        drawn = TicketDrawn(
            request_id=request.request_id,
            ticket=ticket,
            assignment_version=assignment.version,
            nodes=tuple(nodes),
            owners=destinations(assignment),
        )
        effects.append(AnswerWriter(link=link, message=drawn))
        return effects

    # -- runs ----------------------------------------------------------------------

    def bind(
        self,
        link: Link,
        request: BindRun,
        writable: frozenset[str] | None,
        now_ns: int,
    ) -> Write:
        """
        Make a run the newest of its query.

        Args:
            link: Who asks.
            request: What for.
            writable: See `WriterAsked`.
            now_ns: The time.

        Raises:
            AccessDeniedError: If the query writes what the caller may not (rule C1).
            UnknownJobError: If no ticket was drawn for the job.
            LocalProtocolError: If nobody has been given that ticket.
            ConfigurationError: If there are too many states.
            QueryableStateError: See `Job.bind`.
        """
        del now_ns
        control = self._control
        job = control.job(request.job_id)
        if not 0 < request.ticket < control.ticket_next:
            raise LocalProtocolError(f"ticket {request.ticket} was never given out")
        born_epoch = request.born_epoch
        if born_epoch is not None and not 0 < born_epoch <= request.ticket:
            raise LocalProtocolError(
                f"a run that shows ticket {request.ticket} was not born at {born_epoch}"
            )
        job.check_may_write(request.query_id, writable)
        number = control.counters.state_number
        run = job.run_to_bind(request)
        change = job.bind(request, state_number_next=number + 1)
        added = [state for state in change.states if state.state_number > number]
        self._check_may_add_states(len(added))
        counters = replace(control.counters, state_number=number + len(added))
        operations: list[StoreOperation] = []
        if change.record != job.record or change.states:
            operations += change.operations()
        if counters != control.counters:
            operations.append(Put(COUNTERS, encode_record(counters)))
        adopt = partial(
            self._bound, link, request, change, counters, epoch=run.writer_epoch
        )
        return Write(operations=operations, adopt=adopt)

    def _bound(
        self,
        link: Link,
        request: BindRun,
        change: JobChange,
        counters: CountersRecord,
        now_ns: int,
        *,
        epoch: int,
    ) -> list[ControlEffect]:
        self._control.open_batches.bound(
            request.ticket,
            job_id=request.job_id,
            query_id=request.query_id,
            now_ns=now_ns,
        )
        job = self._control.job(request.job_id)
        earlier = job.run_of(request.query_id)
        self._control.counters = counters
        job.adopt(change)
        self._control.routes.locate(job)
        run = job.run_of(request.query_id)
        effects: list[ControlEffect] = []
        if run is not None and (
            earlier is None or earlier.writer_epoch != run.writer_epoch
        ):
            fence = WriterFence(
                job_id=request.job_id,
                query_id=request.query_id,
                writer_epoch=run.writer_epoch,
            )
            effects += tell_fence(self._control, job, fence)
        states = []
        for declaration in request.states:
            state = job.state_named(declaration.state_name)
            assert state is not None
            states.append(
                BoundState(state_name=state.state_name, state_number=state.state_number)
            )
        numbers = [state.state_number for state in states]
        bound = RunBound(
            request_id=request.request_id,
            writer_epoch=epoch,
            states=tuple(states),
            batch_id=job.batch_id_of(request.query_id, numbers),
        )
        effects.append(AnswerWriter(link=link, message=bound))
        return effects

    # -- states --------------------------------------------------------------------

    def drop(self, link: Link, request: DropState, now_ns: int) -> Write:
        """
        Forget a state.

        Raises:
            UnknownJobError: If there is no such job.
            UnknownStateError: If the job has no such state.
        """
        del now_ns
        change = self._control.job(request.job_id).drop(request.state_name)
        adopt = partial(self._dropped, link, request, change)
        return Write(operations=change.operations(), adopt=adopt)

    def _dropped(
        self, link: Link, request: DropState, change: JobChange, now_ns: int
    ) -> list[ControlEffect]:
        del now_ns
        job = self._control.job(request.job_id)
        effects = extend_chain(self._control, job, change)
        done = StateDropDone(request_id=request.request_id)
        effects.append(AnswerWriter(link=link, message=done))
        return effects


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
