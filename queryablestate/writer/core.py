"""
`WriterCore`: what a writer asks the proxy leader for, in which order; pure.

Theory of operation.  `queryablestate.writer.writer` says which three steps a batch is
written in.  Here each step that asks the proxy is a conversation
(`queryablestate.writer.conversations`).

**Births.**  Before its first batch a run draws the epoch that it is born with.  That is
a message of its own: whatever is sent again, because no answer has come, shows the same
epoch, and is refused if a younger run was bound meanwhile.

**Schemas** travel with the first batch of a run, and as digests from then on.  A leader
that does not know a digest or an epoch says so, and is told anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from nameservice import (
    NS_PER_SECOND,
    LocalProtocolError,
    MayHaveHappenedError,
    RemoteProtocolError,
)
from nameservice.clock import NS_PER_MS
from queryablestate.errors import (
    CommitTimeoutError,
    DeadlineExceededError,
    StaleWriterError,
    UnknownStateError,
)
from queryablestate.wire.batch_digest import sum_of_digests
from queryablestate.wire.clients import (
    BatchCommitted,
    BindRun,
    CommitBatch,
    RunBound,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.schema_digest import DeclarationWantedError
from queryablestate.writer.batches import WriteOrigin, WritePlan, WriteRun
from queryablestate.writer.conversations import AskProxy
from queryablestate.writer.sending import NO_PART
from queryablestate.writer.tickets import (
    as_registered,
    asking_for_ticket,
    declare,
    draw_for_nodes,
    draw_ticket,
)


if TYPE_CHECKING:
    from collections.abc import Sequence

    from queryablestate.wire.clients import BoundRun, ClientRequest
    from queryablestate.writer.batches import StageMessage
    from queryablestate.writer.conversations import Conversation, Heard
    from queryablestate.writer.own_runs import OwnRuns, RunKey
    from queryablestate.writer.tickets import Declarations


__all__ = ["WriterCore"]

_ANSWER_GRACE_NS: Final = 5 * NS_PER_SECOND
"""How long the proxy's own answer that time is up may take to get here."""


@final
class WriterCore:
    """
    Begins and commits batches.

    Args:
        name_service: The name service that jobs are unique in.
        own_runs: What this process knows of its runs; kept up to date.
    """

    def __init__(self, name_service: str, own_runs: OwnRuns) -> None:
        self._name_service = name_service
        self._own_runs = own_runs

    def begins(self, job_id: str, *, query_id: str, run_id: str) -> None:
        """Take note that a run asks to begin: it is the newest of its query."""
        self._own_runs.begins((self._name_service, job_id, query_id, run_id))

    def begin(
        self,
        job_id: str,
        declarations: Declarations,
        *,
        query_id: str,
        run_id: str,
        max_parallelism: int,
        on_new_query: str,
        born_epoch: int | None = None,
        timeout_ns: int,
        now_ns: int,
    ) -> Conversation[WriteRun]:
        """Draw a ticket for a batch of a run and show it, in one message (rule W1)."""
        own_run = (self._name_service, job_id, query_id, run_id)
        self._own_runs.begins(own_run)
        if born_epoch is not None and self._own_runs.epoch_of(own_run) is None:
            self._own_runs.born_epoch(own_run, born_epoch)

        def draw(deadline_ns: int) -> Conversation[Heard]:
            return self._draw_bound(
                own_run,
                declarations,
                max_parallelism=max_parallelism,
                on_new_query=on_new_query,
                deadline_ns=deadline_ns,
            )

        drawn = yield from draw_for_nodes(
            job_id, draw, waits_for_nodes=True, timeout_ns=timeout_ns, now_ns=now_ns
        )
        if drawn.run is None:
            raise RemoteProtocolError("unexpected", "the proxy has bound no run")
        plan = _to_plan(
            job_id,
            declarations,
            drawn,
            max_parallelism=max_parallelism,
            on_new_query=on_new_query,
        )
        return _to_run(plan, query_id, run_id, drawn.run)

    def _draw_bound(
        self,
        own_run: RunKey,
        declarations: Declarations,
        *,
        max_parallelism: int,
        on_new_query: str,
        deadline_ns: int,
    ) -> Conversation[Heard]:
        """Draw a ticket, and show it for a run that is born by then."""
        _, job_id, query_id, run_id = own_run

        def ask(states: Declarations, born_epoch: int) -> AskProxy:
            run = WriterRun(
                query_id=query_id,
                run_id=run_id,
                on_new_query=on_new_query,
                born_epoch=born_epoch,
            )
            return asking_for_ticket(
                job_id,
                states,
                max_parallelism=max_parallelism,
                run=run,
                deadline_ns=deadline_ns,
            )

        is_declared = self._own_runs.has_declared(own_run, declarations)
        states = as_registered(declarations) if is_declared else declarations
        born_epoch = self._own_runs.epoch_of(own_run)
        if born_epoch is None:
            heard = yield from draw_ticket(job_id, (), deadline_ns=deadline_ns)
            if not isinstance(heard.answer, TicketDrawn):
                return heard
            born_epoch = self._own_runs.born_epoch(own_run, heard.answer.ticket)
        heard = yield ask(states, born_epoch)
        if isinstance(heard.answer, DeclarationWantedError):
            # A state was dropped, or the store is another one.
            heard = yield from draw_ticket(job_id, (), deadline_ns=deadline_ns)
            if not isinstance(heard.answer, TicketDrawn):
                return heard
            born_epoch = self._own_runs.born_epoch(own_run, heard.answer.ticket)
            heard = yield ask(declarations, born_epoch)
        if isinstance(heard.answer, TicketDrawn):
            self._own_runs.declared(own_run, declarations)
        return heard

    def plan(
        self,
        job_id: str,
        declarations: Declarations,
        *,
        max_parallelism: int,
        on_new_query: str,
        waits_for_nodes: bool,
        timeout_ns: int,
        now_ns: int,
    ) -> Conversation[WritePlan]:
        """Draw a ticket for a batch of *job_id* whose run is not known yet."""

        def draw(deadline_ns: int) -> Conversation[Heard]:
            return draw_ticket(
                job_id,
                declarations,
                max_parallelism=max_parallelism,
                deadline_ns=deadline_ns,
            )

        drawn = yield from draw_for_nodes(
            job_id,
            draw,
            waits_for_nodes=waits_for_nodes,
            timeout_ns=timeout_ns,
            now_ns=now_ns,
        )
        return _to_plan(
            job_id,
            declarations,
            drawn,
            max_parallelism=max_parallelism,
            on_new_query=on_new_query,
        )

    def bind(
        self,
        plan: WritePlan,
        *,
        query_id: str,
        run_id: str,
        is_for_now: bool,
        timeout_ns: int,
        now_ns: int,
    ) -> Conversation[WriteRun]:
        """Show the plan's ticket for a run of a query (rule W1)."""
        deadline_ns = now_ns + timeout_ns
        born_epoch = None
        if not is_for_now:
            own_run = (self._name_service, plan.job_id, query_id, run_id)
            born_epoch = self._own_runs.born_epoch(own_run, plan.ticket)

        def ask(states: Declarations) -> AskProxy:
            def build(request_id: int, session: bytes, _: int) -> ClientRequest:
                return BindRun(
                    request_id=request_id,
                    session=session,
                    job_id=plan.job_id,
                    ticket=plan.ticket,
                    query_id=query_id,
                    run_id=run_id,
                    states=states,
                    on_new_query=plan.on_new_query,
                    born_epoch=born_epoch,
                )

            return AskProxy(build, deadline_ns)

        heard = yield from declare(plan.states, ask)
        return _to_run(plan, query_id, run_id, heard.as_a(RunBound).run)

    def commit(
        self,
        origin: WriteOrigin,
        batch_id: int | None,
        messages: Sequence[StageMessage],
        *,
        is_complete: bool,
        born_epoch: int | None,
        is_digested: bool,
        timeout_ns: int,
        now_ns: int,
    ) -> Conversation[BatchCommitted]:
        """Have a batch decided, and wait until its owners have applied it (rule W3)."""
        for message in messages:
            _check_origin(message, origin, batch_id)
        deadline_ns = now_ns + timeout_ns
        stages = tuple(one.stage for one in messages if one.stage.row_count)

        def build(request_id: int, session: bytes, now_ns: int) -> ClientRequest:
            return CommitBatch(
                request_id=request_id,
                session=session,
                job_id=origin.job_id,
                query_id=origin.query_id,
                run_id=origin.run_id,
                writer_epoch=origin.writer_epoch,
                batch_id=batch_id,
                assignment_version=origin.assignment_version,
                state_numbers=origin.state_numbers,
                is_complete=is_complete,
                on_new_query=origin.on_new_query,
                stages=stages,
                digests=_digests(messages) if is_digested else (),
                timeout_ms=max(1, (deadline_ns - now_ns) // NS_PER_MS),
                # The run was born with its first batch, or before this ticket of it.
                born_epoch=(
                    None if born_epoch is None else min(born_epoch, origin.writer_epoch)
                ),
            )

        heard = yield AskProxy(build, deadline_ns + _ANSWER_GRACE_NS)
        if isinstance(heard.answer, DeadlineExceededError | MayHaveHappenedError):
            # Whether it is decided is not known.  Spark runs the batch again either
            # way, and a decided one is not applied twice.
            staged = messages[0].batch_id if messages else 0
            raise CommitTimeoutError(
                staged if batch_id is None else batch_id,
                timeout_ns / NS_PER_SECOND,
                (),
                is_decided=False,
            ) from heard.answer
        return heard.as_a(BatchCommitted)

    def find_node(
        self, plan: WritePlan, node_id: str, *, timeout_ns: int, now_ns: int
    ) -> Conversation[str | None]:
        """Return where a node is reached now, None if it is away, or `NO_PART`."""
        # A caller that may write may draw a ticket; only operators may list nodes.
        heard = yield from draw_ticket(
            plan.job_id,
            plan.states,
            max_parallelism=plan.max_parallelism,
            deadline_ns=now_ns + timeout_ns,
        )
        for node in heard.as_a(TicketDrawn).nodes:
            if node.node_id == node_id:
                return node.address
        return NO_PART

    def renew_grant(
        self, run: WriteRun, *, timeout_ns: int, now_ns: int
    ) -> Conversation[bytes]:
        """Return what nodes of the present proxy leader are to be shown for a run."""
        bound = yield from self.bind(
            run.plan,
            query_id=run.origin.query_id,
            run_id=run.origin.run_id,
            is_for_now=True,
            timeout_ns=timeout_ns,
            now_ns=now_ns,
        )
        return bound.grant

    def draw_epoch(
        self, job_id: str, *, timeout_ns: int, now_ns: int
    ) -> Conversation[int]:
        """Draw a ticket of no batch: an epoch for a run to be born with."""
        heard = yield from draw_ticket(job_id, (), deadline_ns=now_ns + timeout_ns)
        return heard.as_a(TicketDrawn).ticket

    def be_born(
        self,
        job_id: str,
        *,
        query_id: str,
        run_id: str,
        born_epoch: int | None,
        timeout_ns: int,
        now_ns: int,
    ) -> Conversation[int]:
        """Return the epoch that a run of this process is born with; now, if need be."""
        own_run = (self._name_service, job_id, query_id, run_id)
        self._own_runs.begins(own_run)
        known = self._own_runs.epoch_of(own_run)
        if known is not None:
            return known
        if born_epoch is None:
            born_epoch = yield from self.draw_epoch(
                job_id, timeout_ns=timeout_ns, now_ns=now_ns
            )
        return self._own_runs.born_epoch(own_run, born_epoch)


def _to_plan(
    job_id: str,
    declarations: Declarations,
    drawn: TicketDrawn,
    *,
    max_parallelism: int,
    on_new_query: str,
) -> WritePlan:
    return WritePlan(
        job_id=job_id,
        states=declarations,
        max_parallelism=max_parallelism,
        on_new_query=on_new_query,
        ticket=drawn.ticket,
        assignment_version=drawn.assignment_version,
        nodes=drawn.nodes,
        owners=drawn.owners,
        proxy_address=None,
    )


def _to_run(plan: WritePlan, query_id: str, run_id: str, bound: BoundRun) -> WriteRun:
    origin = WriteOrigin(
        job_id=plan.job_id,
        query_id=query_id,
        run_id=run_id,
        writer_epoch=bound.writer_epoch,
        assignment_version=plan.assignment_version,
        state_numbers=tuple(state.state_number for state in bound.states),
        on_new_query=plan.on_new_query,
    )
    return WriteRun(
        plan=plan, origin=origin, batch_id_last=bound.batch_id, grant=bound.grant
    )


def _digests(messages: Sequence[StageMessage]) -> tuple[bytes, ...]:
    """Return the digest of the batch for each state; none if a task does not tell."""
    if not messages or not all(message.digests for message in messages):
        return ()
    by_state = zip(*(message.digests for message in messages), strict=True)
    return tuple(map(sum_of_digests, by_state))


def _check_origin(
    message: StageMessage, origin: WriteOrigin, batch_id: int | None
) -> None:
    """
    Refuse a stage that was not written for this batch.

    Where tasks bind, each does so for itself, and what it is told may have changed
    after the first one had begun.

    Raises:
        UnknownStateError: If a state was dropped meanwhile.
        StaleWriterError: If a newer run of the query was bound meanwhile.
        LocalProtocolError: Says whose it is.
    """
    its = message.origin
    if its != origin and its == replace(origin, state_numbers=its.state_numbers):
        dropped = min({*its.state_numbers} ^ {*origin.state_numbers})
        raise UnknownStateError(origin.job_id, f"number {dropped}")
    if its != origin and its == replace(origin, writer_epoch=its.writer_epoch):
        epochs = sorted((its.writer_epoch, origin.writer_epoch))
        raise StaleWriterError(origin.query_id, *epochs)
    if its != origin or batch_id not in {None, message.batch_id}:
        raise LocalProtocolError(
            f"a stage of batch {message.batch_id} by run {its.run_id} "
            f"(writer epoch {its.writer_epoch}) cannot be committed with "
            f"batch {batch_id} of run {origin.run_id} (writer epoch "
            f"{origin.writer_epoch})"
        )
