"""
`StateWriter`: how a batch comes into queryable state, for any program that writes.

Theory of operation.  A batch is written in three steps, by up to three processes:

1.  *Begin* (rule W1), where the batch is planned: draw a ticket for a run and show it,
    in one message.  With the ticket comes the assignment that the batch is pinned to,
    with the run its writer epoch, the numbers of the states, and which batch was
    decided last.  A `WriteRun` is picklable and travels to the tasks that stage.
2.  *Stage* (rule W2), once in every task: `queryablestate.writer.stager.Stager` sends
    rows straight to their nodes; its `finish` returns a `StageMessage`.
3.  *Commit* (rule W3), where all stage messages come together.

Where a batch is planned that knows neither query nor run, the first step is two:
`StateWriter.plan` draws the ticket, and who knows the run shows it with
`StateWriter.bind`.

Every step may be repeated, and nothing is visible before the last one is decided.  A
batch that is decided already need not be staged again: `WriteRun.is_decided` tells.

**Births.**  Before its first batch a run draws the epoch that it is born with.  That is
a message of its own: whatever is sent again, because no answer has come, shows the same
epoch, and is refused if a younger run was bound meanwhile.

**Schemas** travel with the first batch of a run, and as digests from then on.  A leader
that does not know a digest or an epoch says so, and is told anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    MayHaveHappenedError,
    RemoteProtocolError,
    SystemClock,
    seconds_to_ns,
)
from nameservice.clock import NS_PER_MS
from queryablestate.errors import (
    CommitTimeoutError,
    DeadlineExceededError,
)
from queryablestate.wire.batch_digest import sum_of_digests
from queryablestate.wire.clients import (
    BatchCommitted,
    BindRun,
    CommitBatch,
    RunBound,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.codec import encode
from queryablestate.wire.records import StageRecord
from queryablestate.wire.schema_digest import DeclarationWantedError
from queryablestate.writer.batches import WriteOrigin, WritePlan, WriteRun
from queryablestate.writer.own_runs import OWN_RUNS
from queryablestate.writer.tickets import (
    TicketDrawer,
    as_registered,
    declarations_of,
    declared,
    expect,
)


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.client.calls import ProxyConnection
    from queryablestate.schema.schema import StateSchema
    from queryablestate.wire.clients import BoundRun
    from queryablestate.writer.batches import StageMessage


__all__ = ["StateWriter"]

_ANSWER_GRACE_SECONDS: Final = 5.0
"""How long the proxy's own answer that time is up may take to get here."""

# Of what a request for a commit is reckoned to hold: not less than it does.
_STAGE_ID_SIZE_BYTES: Final = 16
_SESSION_SIZE_BYTES: Final = 64
_DIGEST_SIZE_BYTES: Final = 64
_CHUNK_COUNT_RECKONED: Final = 255


@final
class StateWriter:
    """
    Begins and commits batches.  Thread-safe; owns nothing that must be closed.

    Args:
        proxy: The way to the proxy leader; stays its owner's.
    """

    def __init__(self, proxy: ProxyConnection) -> None:
        self._proxy = proxy
        self._clock = SystemClock()
        self._tickets = TicketDrawer(proxy)

    def begin(
        self,
        job_id: str,
        states: Mapping[str, StateSchema],
        *,
        query_id: str,
        run_id: str,
        max_parallelism: int,
        on_new_query: str,
        timeout_seconds: float,
    ) -> WriteRun:
        """
        Draw a ticket for a batch of a run and show it, in one message (rule W1).

        Args:
            job_id: The job.
            states: The states that the batch writes, by name.
            query_id: The query.
            run_id: The run.  The first ticket that this process shows for it is the
                epoch that it is born with.
            max_parallelism: The number of key groups.
            on_new_query: ``refuse``, ``replace`` or ``continue`` (rule W5).
            timeout_seconds: How long to try, and to wait for nodes that are away.

        Raises:
            StaleWriterError: If a newer run of the query is known.
            StateOwnedError: If another query owns a state, and that is refused.
            StateUnavailableError: If nodes that own key groups stayed away.
            SchemaMismatchError: If a state is registered otherwise (rule W5).
            QueryableStateError: What else the proxy refuses it with.
            NameServiceError: If the proxy could not be asked.
        """
        declarations = declarations_of(states)
        own_run = (self._proxy.name_service, job_id, query_id, run_id)

        def be_born(timeout_seconds: float) -> int:
            ticket = self.draw_epoch(job_id, timeout_seconds=timeout_seconds)
            return OWN_RUNS.born_epoch(own_run, ticket)

        def ask(states: tuple[StateDeclaration, ...], left: float) -> TicketDrawn:
            born_epoch = OWN_RUNS.epoch_of(own_run) or be_born(left)
            return self._tickets.ask(
                job_id,
                states,
                max_parallelism=max_parallelism,
                run=WriterRun(
                    query_id=query_id,
                    run_id=run_id,
                    on_new_query=on_new_query,
                    born_epoch=born_epoch,
                ),
                timeout_seconds=left,
            )

        def draw(timeout_seconds: float) -> TicketDrawn:
            is_declared = OWN_RUNS.has_declared(own_run, declarations)
            states = as_registered(declarations) if is_declared else declarations
            try:
                drawn = ask(states, timeout_seconds)
            except DeclarationWantedError:
                # A state was dropped, or the store is another one.
                be_born(timeout_seconds)
                drawn = ask(declarations, timeout_seconds)
            OWN_RUNS.declared(own_run, declarations)
            return drawn

        drawn = self._tickets.draw_for_nodes(
            job_id, draw, waits_for_nodes=True, timeout_seconds=timeout_seconds
        )
        plan = self._to_plan(
            job_id,
            declarations,
            drawn,
            max_parallelism=max_parallelism,
            on_new_query=on_new_query,
        )
        return _to_run(plan, query_id, run_id, _bound(drawn))

    def plan(
        self,
        job_id: str,
        states: Mapping[str, StateSchema],
        *,
        max_parallelism: int,
        on_new_query: str,
        waits_for_nodes: bool = True,
        timeout_seconds: float,
    ) -> WritePlan:
        """
        Draw a ticket for a batch of *job_id* whose run is not known yet.

        Args:
            job_id: The job.
            states: The states that the batch writes, by name.
            max_parallelism: The number of key groups.
            on_new_query: For `bind`.
            waits_for_nodes: A node that is away may come back, or lose its key groups
                to others: whether to wait for either here.
            timeout_seconds: How long to try.

        Raises:
            StateUnavailableError: If nodes that own key groups stayed away.
            SchemaMismatchError: If a state is registered otherwise (rule W5).
            QueryableStateError: What else the proxy refuses it with.
            NameServiceError: If the proxy could not be asked.
        """
        declarations = declarations_of(states)

        def draw(timeout_seconds: float) -> TicketDrawn:
            return self._tickets.draw(
                job_id,
                declarations,
                max_parallelism=max_parallelism,
                timeout_seconds=timeout_seconds,
            )

        drawn = self._tickets.draw_for_nodes(
            job_id,
            draw,
            waits_for_nodes=waits_for_nodes,
            timeout_seconds=timeout_seconds,
        )
        return self._to_plan(
            job_id,
            declarations,
            drawn,
            max_parallelism=max_parallelism,
            on_new_query=on_new_query,
        )

    def _to_plan(
        self,
        job_id: str,
        declarations: tuple[StateDeclaration, ...],
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
            proxy_address=self._proxy.leader_address,
        )

    def bind(
        self,
        plan: WritePlan,
        *,
        query_id: str,
        run_id: str,
        is_for_now: bool = False,
        timeout_seconds: float,
    ) -> WriteRun:
        """
        Show the plan's ticket for a run of a query (rule W1).

        Args:
            plan: The plan.
            query_id: The query.
            run_id: The run.  The first ticket that this process shows for it is the
                epoch that it is born with.
            is_for_now: Whether the run began elsewhere, and this process cannot know
                when: it may stage, and `commit` says when it was born.
            timeout_seconds: How long to try.

        Raises:
            StaleWriterError: If a newer run of the query is known.
            StateOwnedError: If another query owns a state, and the plan refuses that.
            SchemaMismatchError: If a state is registered otherwise.
            NameServiceError: If the proxy could not be asked.
        """
        born_epoch = None
        if not is_for_now:
            born_epoch = OWN_RUNS.born_epoch(
                (self._proxy.name_service, plan.job_id, query_id, run_id), plan.ticket
            )

        def ask(states: tuple[StateDeclaration, ...]) -> RunBound:
            return expect(
                RunBound,
                self._proxy.call(
                    lambda request_id, session: BindRun(
                        request_id=request_id,
                        session=session,
                        job_id=plan.job_id,
                        ticket=plan.ticket,
                        query_id=query_id,
                        run_id=run_id,
                        states=states,
                        on_new_query=plan.on_new_query,
                        born_epoch=born_epoch,
                    ),
                    timeout_seconds=timeout_seconds,
                ),
            )

        bound = declared(plan.states, ask)
        return _to_run(plan, query_id, run_id, bound.run)

    def check_task_count(self, run: WriteRun, task_count: int) -> None:
        """
        Return if what that many tasks stage can be committed in one request (rule B3).

        Each of them is reckoned to bring rows to every node: then nothing is staged in
        vain.  A batch whose tasks do not may be larger, and is refused all the same.

        Args:
            run: As it was begun.
            task_count: How many tasks there will be.

        Raises:
            ConfigurationError: If not; says what to change.
        """
        size_bytes_max = self._proxy.frame_size_bytes_max
        if size_bytes_max is None or task_count < 1:
            return
        one, two = (_commit_size_bytes(run, count) for count in (1, 2))
        size_bytes = one + (task_count - 1) * (two - one)
        if size_bytes > size_bytes_max:
            node_count = len(run.plan.nodes)
            raise ConfigurationError(
                f"a batch of {task_count:,} tasks on {node_count:,} nodes takes a "
                f"'commit' request of up to {size_bytes:,} bytes, and the proxy takes "
                f"{size_bytes_max:,}: write with at most "
                f"{1 + (size_bytes_max - one) // (two - one):,} tasks "
                "(DataFrame.coalesce), or raise its frame_size_bytes_max"
            )

    def commit(
        self,
        origin: WriteOrigin,
        batch_id: int | None,
        messages: Sequence[StageMessage],
        *,
        is_complete: bool,
        born_epoch: int | None = None,
        is_digested: bool = True,
        timeout_seconds: float,
    ) -> BatchCommitted:
        """
        Have a batch decided, and wait until its owners have applied it (rule W3).

        Args:
            origin: Whose batch it is.
            batch_id: The batch; None for a batch job, which writes one.
            messages: Of the tasks that won, in the order of their partitions, those
                without rows among them: their digests tell whether a batch that is
                decided comes with the same rows.
            is_complete: Whether its rows are all there is (rule W6).
            is_digested: Whether a batch that is run again has to come with the same
                rows; False where it may be read in another way then.
            born_epoch: Of a run that was bound for now: a ticket that was drawn when it
                was younger than it is now.
            timeout_seconds: How long to wait.

        Raises:
            CommitTimeoutError: If time was up; nothing is lost.
            StaleWriterError: If a newer run of the query is known.
            CheckpointRewoundError: If a later batch is decided already, or this one
                with other rows.
            StagedDataMissingError: If a node does not have what was staged.
            QueryableStateError: What else the proxy refuses it with.
            LocalProtocolError: If a message is of another run, or of another batch.
            NameServiceError: If the proxy could not be asked.
        """
        for message in messages:
            _check_origin(message, origin, batch_id)
        deadline_ns = self._clock.now_ns() + seconds_to_ns(timeout_seconds)

        def build(request_id: int, session: bytes) -> CommitBatch:
            left_ns = deadline_ns - self._clock.now_ns()
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
                stages=tuple(
                    message.stage for message in messages if message.stage.row_count
                ),
                digests=_digests(messages) if is_digested else (),
                timeout_ms=max(1, left_ns // NS_PER_MS),
                # The run was born with its first batch, or before this ticket of it.
                born_epoch=(
                    None if born_epoch is None else min(born_epoch, origin.writer_epoch)
                ),
            )

        try:
            answer = self._proxy.call(
                build, timeout_seconds=timeout_seconds + _ANSWER_GRACE_SECONDS
            )
        except (DeadlineExceededError, MayHaveHappenedError) as error:
            # Whether it is decided is not known.  Spark runs the batch again either
            # way, and a decided one is not applied twice.
            staged = messages[0].batch_id if messages else 0
            raise CommitTimeoutError(
                staged if batch_id is None else batch_id,
                timeout_seconds,
                (),
                is_decided=False,
            ) from error
        return expect(BatchCommitted, answer)

    def find_node(
        self, plan: WritePlan, node_id: str, *, timeout_seconds: float
    ) -> str | None:
        """
        Return where a node is reached now, or None if it is away or has no key groups.

        Raises:
            NameServiceError: If the proxy could not be asked.
        """
        # A caller that may write may draw a ticket; only operators may list nodes.
        drawn = self._tickets.draw(
            plan.job_id,
            plan.states,
            max_parallelism=plan.max_parallelism,
            timeout_seconds=timeout_seconds,
        )
        for node in drawn.nodes:
            if node.node_id == node_id:
                return node.address
        return None

    def renew_grant(self, run: WriteRun, *, timeout_seconds: float) -> bytes:
        """
        Return what the nodes of the present proxy leader are to be shown for a run.

        Raises:
            AccessDeniedError: If the caller may not write as that query (any more).
            StaleWriterError: If a newer run of the query is known.
            NameServiceError: If the proxy could not be asked.
        """
        bound = self.bind(
            run.plan,
            query_id=run.origin.query_id,
            run_id=run.origin.run_id,
            is_for_now=True,
            timeout_seconds=timeout_seconds,
        )
        return bound.grant

    def draw_epoch(self, job_id: str, *, timeout_seconds: float) -> int:
        """
        Draw a ticket that belongs to no batch: an epoch for a run to be born with.

        Raises:
            AccessDeniedError: If the caller may write no state at all.
            NameServiceError: If the proxy could not be asked.
        """
        drawn = self._tickets.draw(
            job_id, (), max_parallelism=1, timeout_seconds=timeout_seconds
        )
        return drawn.ticket


def _commit_size_bytes(run: WriteRun, task_count: int) -> int:
    """Return how large the request for a commit is, if each node gets from each."""
    counts = {node.node_id: _CHUNK_COUNT_RECKONED for node in run.plan.nodes}
    stage = StageRecord(
        stage_id=bytes(_STAGE_ID_SIZE_BYTES), chunk_counts=counts, row_count=1 << 40
    )
    origin = run.origin
    request = CommitBatch(
        request_id=1 << 40,
        session=bytes(_SESSION_SIZE_BYTES),
        job_id=origin.job_id,
        query_id=origin.query_id,
        run_id=origin.run_id,
        writer_epoch=origin.writer_epoch,
        batch_id=1 << 40,
        assignment_version=origin.assignment_version,
        state_numbers=origin.state_numbers,
        is_complete=True,
        on_new_query=origin.on_new_query,
        stages=(stage,) * task_count,
        digests=(bytes(_DIGEST_SIZE_BYTES),) * len(origin.state_numbers),
        timeout_ms=1 << 40,
        born_epoch=origin.writer_epoch,
    )
    return len(encode(request))


def _bound(drawn: TicketDrawn) -> BoundRun:
    if drawn.run is None:
        raise RemoteProtocolError("unexpected", "the proxy has bound no run")
    return drawn.run


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

    Raises:
        LocalProtocolError: Says whose it is.
    """
    if message.origin != origin or batch_id not in {None, message.batch_id}:
        raise LocalProtocolError(
            f"a stage of batch {message.batch_id} by run {message.origin.run_id} "
            f"(writer epoch {message.origin.writer_epoch}) cannot be committed with "
            f"batch {batch_id} of run {origin.run_id} (writer epoch "
            f"{origin.writer_epoch})"
        )
