"""
Tickets and runs: how a writer gets to where it may write; pure (rules W1, W5).

Theory of operation.  A ticket is a number that is given out once.  Numbers are reserved
in the leader store by the block, so that drawing one seldom waits for a write, and the
next leader begins above whatever this one may have given out.

The first ticket for a job also gives the job its nodes: those that are present then.
They are chosen anew as long as the job has no state, for no node has rows of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import evolve
from msgspec.structs import replace

from election import Put
from nameservice import LocalProtocolError
from nameservice.clock import NS_PER_SECOND
from queryablestate.control.announcements import tell_assignment
from queryablestate.control.assignment.assignment import destinations, first_assignment
from queryablestate.control.changes import Write
from queryablestate.control.effects import AnswerWriter
from queryablestate.control.job.declarations import check_declarations
from queryablestate.control.job.leader_paths import COUNTERS, encode_record
from queryablestate.control.new_jobs import new_job
from queryablestate.control.room import check_room_for_key_groups
from queryablestate.control.run_binding import bind_run, granted_run, run_shown
from queryablestate.control.unused_jobs import removed
from queryablestate.errors import StateUnavailableError
from queryablestate.wire.clients import (
    BindRun,
    NodeAddress,
    RunBound,
    TicketDrawn,
)
from queryablestate.wire.schema_digest import DeclarationWantedError


if TYPE_CHECKING:
    from election import StoreOperation
    from queryablestate.control.changes import Outcome
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.control.job.job import Job
    from queryablestate.control.job.job_changes import JobChange
    from queryablestate.control.run_binding import RunBinding
    from queryablestate.control.state import ControlState
    from queryablestate.control.unused_jobs import Removal
    from queryablestate.wire.clients import DrawTicket, WriterRun
    from queryablestate.wire.records import CountersRecord


__all__ = ["TicketOffice"]

_TICKET_BLOCK: Final = 1_000


@final
class TicketOffice:
    """
    Prepares what writers ask for before they stage.

    Each method checks a request against what is true now and returns what to write.

    Args:
        control: What there is.
    """

    def __init__(self, control: ControlState) -> None:
        self._control = control

    # -- tickets -------------------------------------------------------------------

    def draw(
        self,
        link: LinkId,
        request: DrawTicket,
        writable: frozenset[str] | None,
        now_ns: int,
    ) -> Write:
        """
        Give out a ticket; make the job, or assign it anew, if need be.

        A run that the request names shows that ticket: all of it is one write.

        Args:
            link: Who asks.
            request: What for.
            writable: See `WriterAsked`.
            now_ns: The time.

        Raises:
            SchemaMismatchError: If a state is registered otherwise.
            ConfigurationError: If the request is malformed, or there are too many jobs.
            StateUnavailableError: If there is no node to have the job.
            QueryableStateError: As `bind` does, if the request names a run.
        """
        control = self._control
        counters = control.counters
        if control.ticket_next >= counters.ticket_limit:
            limit = control.ticket_next + _TICKET_BLOCK
            counters = replace(counters, ticket_limit=limit)
        if not request.states and request.run is None:
            return self._draw_epoch(link, request, counters)
        job = control.jobs.get(request.job_id)
        gone: Removal | None = None
        if job is None:
            new = new_job(
                control, request.job_id, max_parallelism=request.max_parallelism
            )
            job, gone = new.job, new.gone
            counters = replace(new.counters, ticket_limit=counters.ticket_limit)
        check_declarations(
            job.record,
            job.states,
            request.states,
            request.max_parallelism,
            is_registering=request.run is not None,
        )
        change = None
        if not job.states:
            self._check_may_assign(job, request.max_parallelism, now_ns)
            check_room_for_key_groups(control, request.job_id, request.max_parallelism)
            change = self._assignment(job, request.max_parallelism)
        binding = None
        if request.run is not None:
            shown = _shown(request, request.run, ticket=control.ticket_next)
            binding, counters = bind_run(control, job, shown, writable, counters)
            change = _together(change, binding.change)
        adopt = partial(
            self._drawn,
            link,
            request,
            job,
            counters=counters,
            change=change,
            binding=binding,
            gone=gone,
        )
        operations = self._operations(job, change, counters)
        if gone is not None:
            operations += gone.operations
        return Write(operations=operations, adopt=adopt)

    def _draw_epoch(
        self, link: LinkId, request: DrawTicket, counters: CountersRecord
    ) -> Write:
        """Give out a ticket that belongs to no batch."""
        control = self._control

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

        return Write(operations=self._operations(None, None, counters), adopt=drawn)

    def _operations(
        self, job: Job | None, change: JobChange | None, counters: CountersRecord
    ) -> list[StoreOperation]:
        """Return what is to be written, so far as it is not there already."""
        operations: list[StoreOperation] = []
        if (
            change is not None
            and job is not None
            and (
                change.record != job.record
                or change.states
                or change.assignment is not None
            )
        ):
            operations += job.operations(change)
        if counters != self._control.counters:
            operations.append(Put(COUNTERS, encode_record(counters)))
        return operations

    def _check_may_assign(self, job: Job, max_parallelism: int, now_ns: int) -> None:
        """Return if nodes may be chosen for a job now, or it has some (rule S2)."""
        job_id = job.record.job_id
        retry_after_seconds = self._control.session_timeout_ns / NS_PER_SECOND / 5
        if not self._control.is_settled(now_ns=now_ns):
            detail = "this proxy leads since a moment ago, and nodes are still coming"
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)
        nodes = self._control.nodes
        if not nodes.free_stores() and not self._is_kept(job, max_parallelism):
            detail = nodes.why_none_is_free
            raise StateUnavailableError(job_id, None, (), retry_after_seconds, detail)

    def _is_kept(self, job: Job, max_parallelism: int) -> bool:
        """
        Return whether a job without state stays where it is.

        Where all nodes are being drained, none gives a job away: it goes on like those
        that have state.
        """
        nodes, assignment = self._control.nodes, job.assignment
        return (
            assignment is not None
            and len(assignment.owners) == max_parallelism
            and not nodes.free_stores()
            and all(
                nodes.last_known(node_id) is not None for node_id in assignment.node_ids
            )
        )

    def _assignment(self, job: Job, max_parallelism: int) -> JobChange | None:
        """Return what assigns a job without state anew, or None if that stands."""
        if self._is_kept(job, max_parallelism):
            return None
        present = job.assignment
        # Copies that an operator has asked for are not taken away with the last state.
        copies = 1 if present is None else present.replica_count
        assignment = first_assignment(
            self._control.nodes.free_stores(),
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

    def _drawn(
        self,
        link: LinkId,
        request: DrawTicket,
        job: Job,
        now_ns: int,
        *,
        counters: CountersRecord,
        change: JobChange | None,
        binding: RunBinding | None,
        gone: Removal | None,
    ) -> list[Outcome]:
        control = self._control
        control.counters = counters
        ticket = control.ticket_next
        control.ticket_next += 1
        effects: list[Outcome] = []
        if gone is not None:
            effects += removed(control, gone)
        if change is not None:
            former = job.assignment
            control.jobs[request.job_id] = job
            job.adopt(change)
            control.routes.locate(job)
            if change.assignment is not None:
                effects += tell_assignment(control, job, former, now_ns=now_ns)
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
            nodes.append(
                NodeAddress(node_id=node_id, address=None)
                if node is None
                else NodeAddress(
                    node_id=node_id,
                    address=node.address,
                    chunk_size_bytes_max=node.chunk_size_bytes_max,
                )
            )
        run = None
        if binding is not None:
            effects += run_shown(control, job, binding, now_ns=now_ns)
            run = granted_run(control, job, binding)
        drawn = TicketDrawn(
            request_id=request.request_id,
            ticket=ticket,
            assignment_version=assignment.version,
            nodes=tuple(nodes),
            owners=destinations(assignment),
            run=run,
        )
        effects.append(AnswerWriter(link=link, message=drawn))
        return effects

    # -- runs ----------------------------------------------------------------------

    def bind(
        self,
        link: LinkId,
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
            LocalProtocolError: If that ticket was never given out.
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
        binding, counters = bind_run(control, job, request, writable, control.counters)
        operations = self._operations(job, binding.change, counters)
        adopt = partial(self._bound, link, request, binding, counters)
        return Write(operations=operations, adopt=adopt)

    def _bound(
        self,
        link: LinkId,
        request: BindRun,
        binding: RunBinding,
        counters: CountersRecord,
        now_ns: int,
    ) -> list[ControlEffect]:
        control = self._control
        job = control.job(request.job_id)
        control.counters = counters
        job.adopt(binding.change)
        control.routes.locate(job)
        effects = run_shown(control, job, binding, now_ns=now_ns)
        run = granted_run(control, job, binding)
        bound = RunBound(request_id=request.request_id, run=run)
        effects.append(AnswerWriter(link=link, message=bound))
        return effects


def _shown(request: DrawTicket, run: WriterRun, *, ticket: int) -> BindRun:
    """Return how *run* shows the ticket that is drawn for it."""
    if run.born_epoch >= ticket:
        # Tickets rise: that one is of a store that was lost.
        raise DeclarationWantedError(request.job_id, f"the epoch {run.born_epoch}")
    return BindRun(
        request_id=request.request_id,
        session=request.session,
        job_id=request.job_id,
        ticket=ticket,
        query_id=run.query_id,
        run_id=run.run_id,
        states=request.states,
        on_new_query=run.on_new_query,
        born_epoch=run.born_epoch,
    )


def _together(assigned: JobChange | None, bound: JobChange) -> JobChange:
    """Return both changes of one job as one."""
    if assigned is None:
        return bound
    max_parallelism = assigned.record.max_parallelism
    return evolve(
        bound,
        record=replace(bound.record, max_parallelism=max_parallelism),
        assignment=assigned.assignment,
        forgotten=assigned.forgotten,
    )
