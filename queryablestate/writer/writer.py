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

`queryablestate.writer.core` decides what is asked for, and in which order.  Here is
only what it is asked by: the way to the proxy, and the clock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, final

from attrs import evolve

from nameservice import (
    NS_PER_SECOND,
    NameServiceError,
    SystemClock,
    get_logger,
    seconds_to_ns,
)
from nameservice.interruptible import InterruptibleEvent
from queryablestate.schema.schema_json import schema_json
from queryablestate.wire.clients import StateDeclaration
from queryablestate.writer.commit_size import check_task_count
from queryablestate.writer.conversations import AskProxy, Heard, Pause
from queryablestate.writer.core import WriterCore
from queryablestate.writer.own_runs import OWN_RUNS


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from queryablestate.client.calls import ProxyConnection
    from queryablestate.schema.schema import StateSchema
    from queryablestate.wire.clients import BatchCommitted, ClientRequest, ToClient
    from queryablestate.writer.batches import (
        StageMessage,
        WriteOrigin,
        WritePlan,
        WriteRun,
    )
    from queryablestate.writer.conversations import Conversation


__all__ = ["StateWriter", "declarations_of"]

T = TypeVar("T")


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
        self._core = WriterCore(proxy.name_service, OWN_RUNS)

    def begins(self, job_id: str, *, query_id: str, run_id: str) -> None:
        """
        Take note that a run of this process asks to begin: it is its query's newest.

        `begin` and `be_born` do so themselves.  Who waits for something before that
        says it here, so that a run that ends meanwhile is not taken for newer than the
        one that has come after it.
        """
        self._core.begins(job_id, query_id=query_id, run_id=run_id)

    def begin(
        self,
        job_id: str,
        states: Mapping[str, StateSchema],
        *,
        query_id: str,
        run_id: str,
        max_parallelism: int,
        on_new_query: str,
        born_epoch: int | None = None,
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
            born_epoch: What the run is born with, if it has no epoch yet: that which it
                has under another query id, or that was drawn when it was started.
            timeout_seconds: How long to try, and to wait for nodes that are away.

        Raises:
            StaleWriterError: If a newer run of the query is known.
            StateOwnedError: If another query owns a state, and that is refused.
            StateUnavailableError: If nodes that own key groups stayed away.
            SchemaMismatchError: If a state is registered otherwise (rule W5).
            QueryableStateError: What else the proxy refuses it with.
            NameServiceError: If the proxy could not be asked.
        """
        run = self._converse(
            self._core.begin(
                job_id,
                declarations_of(states),
                query_id=query_id,
                run_id=run_id,
                max_parallelism=max_parallelism,
                on_new_query=on_new_query,
                born_epoch=born_epoch,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )
        return evolve(run, plan=self._located(run.plan))

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
        plan = self._converse(
            self._core.plan(
                job_id,
                declarations_of(states),
                max_parallelism=max_parallelism,
                on_new_query=on_new_query,
                waits_for_nodes=waits_for_nodes,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )
        return self._located(plan)

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
        return self._converse(
            self._core.bind(
                plan,
                query_id=query_id,
                run_id=run_id,
                is_for_now=is_for_now,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

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
        check_task_count(run, task_count, self._proxy.frame_size_bytes_max)

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
            UnknownStateError: If a state was dropped since the batch was begun.
            QueryableStateError: What else the proxy refuses it with.
            LocalProtocolError: If a message is of another run, or of another batch.
            NameServiceError: If the proxy could not be asked.
        """
        return self._converse(
            self._core.commit(
                origin,
                batch_id,
                messages,
                is_complete=is_complete,
                born_epoch=born_epoch,
                is_digested=is_digested,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

    def find_node(
        self, plan: WritePlan, node_id: str, *, timeout_seconds: float
    ) -> str | None:
        """
        Return where a node is reached now, None if it is away, or `NO_PART`.

        Raises:
            NameServiceError: If the proxy could not be asked.
        """
        return self._converse(
            self._core.find_node(
                plan,
                node_id,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

    def renew_grant(self, run: WriteRun, *, timeout_seconds: float) -> bytes:
        """
        Return what the nodes of the present proxy leader are to be shown for a run.

        Raises:
            AccessDeniedError: If the caller may not write as that query (any more).
            StaleWriterError: If a newer run of the query is known.
            NameServiceError: If the proxy could not be asked.
        """
        return self._converse(
            self._core.renew_grant(
                run,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

    def draw_epoch(self, job_id: str, *, timeout_seconds: float) -> int:
        """
        Draw a ticket that belongs to no batch: an epoch for a run to be born with.

        Raises:
            AccessDeniedError: If the caller may write no state at all.
            NameServiceError: If the proxy could not be asked.
        """
        return self._converse(
            self._core.draw_epoch(
                job_id,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

    def be_born(
        self,
        job_id: str,
        *,
        query_id: str,
        run_id: str,
        born_epoch: int | None = None,
        timeout_seconds: float,
    ) -> int:
        """
        Return the epoch that a run of this process is born with; now, if need be (W1).

        `begin` and `bind` do so themselves.  A run that may write its first batch late
        is born before: until then a run that has replaced it counts as the older one.

        Args:
            job_id: The job.
            query_id: The query.
            run_id: The run.
            born_epoch: What it is born with, if it has no epoch yet and one was drawn.
            timeout_seconds: How long to try to draw one.

        Raises:
            StaleWriterError: If a newer run of the query has begun in this process.
            AccessDeniedError: If the caller may write no state at all.
            NameServiceError: If the proxy could not be asked.
        """
        return self._converse(
            self._core.be_born(
                job_id,
                query_id=query_id,
                run_id=run_id,
                born_epoch=born_epoch,
                timeout_ns=seconds_to_ns(timeout_seconds),
                now_ns=self._clock.now_ns(),
            )
        )

    # -- parts -----------------------------------------------------------------------

    def _located(self, plan: WritePlan) -> WritePlan:
        """Return *plan* with where to ask first."""
        return evolve(plan, proxy_address=self._proxy.leader_address)

    def _converse(self, conversation: Conversation[T]) -> T:
        """Do what *conversation* says, turn by turn; return what it returns."""
        try:
            turn = next(conversation)
            while True:
                answer = self._perform(turn)
                turn = conversation.send(Heard(self._clock.now_ns(), answer))
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, turn: AskProxy | Pause) -> ToClient | NameServiceError | None:
        """Do one turn; return what was answered, if anything was asked."""
        left_seconds = self._left_seconds(turn)
        if isinstance(turn, Pause):
            InterruptibleEvent().wait(left_seconds)
            return None

        def build(request_id: int, session: bytes) -> ClientRequest:
            return turn.build(request_id, session, self._clock.now_ns())

        try:
            answer = self._proxy.call(build, timeout_seconds=left_seconds)
        except NameServiceError as error:
            return error
        if self._proxy.is_volatile:
            _warn_of_volatile(self._proxy.name_service)
        return answer

    def _left_seconds(self, turn: AskProxy | Pause) -> float:
        until_ns = turn.until_ns if isinstance(turn, Pause) else turn.deadline_ns
        return max(0, until_ns - self._clock.now_ns()) / NS_PER_SECOND


def declarations_of(states: Mapping[str, StateSchema]) -> tuple[StateDeclaration, ...]:
    """Return what a writer says of its states, schemas included."""
    return tuple(
        StateDeclaration(state_name=name, schema=schema_json(schema))
        for name, schema in states.items()
    )


@lru_cache(maxsize=16)
def _warn_of_volatile(name_service: str) -> None:
    """Tell the log, once in a process, that state may have to be taken over again."""
    get_logger(component="state-writer").warning(
        "name_service.volatile",
        name_service=name_service,
        reason="state that is published is unavailable after a restart of the name "
        "service, until 'lodestar adopt': give the LeaderServer a data directory",
    )
