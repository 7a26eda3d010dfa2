"""
A run of a streaming query as Spark's driver goes about it.

It writes down what a batch holds (``offsets``), has tasks stage it, has it decided, and
writes down that it is (``commits``); a batch without its commit is run again, under the
same number, by the next run.  A run that is over for its operator may go on for a while
all the same: then it is a zombie.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import Factory, define

from nameservice import LocalProtocolError, NameServiceError
from queryablestate import (
    CheckpointRewoundError,
    SchemaMismatchError,
    StagedDataMissingError,
    StaleWriterError,
    StateOwnedError,
)
from queryablestate.schema.schema import schema_json
from queryablestate.wire.clients import (
    BatchCommitted,
    BindRun,
    CommitBatch,
    DrawTicket,
    RunBound,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.records import StageRecord
from queryablestate.wire.schema_digest import DeclarationWantedError
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Call
from tests.state_simulation.content import rows_of, schema_of
from tests.state_simulation.scenario import (
    COMMIT_TIMEOUT_NS,
    MAX_PARALLELISM,
    RETENTION_NS,
    Profile,
)
from tests.state_simulation.tasks import Batch, Execution


if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from queryablestate.wire.clients import BoundRun
    from tests.state_simulation.scenario import QueryPlan, StatePlan
    from tests.state_simulation.world import World


__all__ = ["Checkpoint", "Query", "Run"]

_SESSION: Final = b"session"
_ATTEMPT_COUNT_MAX: Final = 4
_ON_NEW_QUERY: Final = ("refuse", "replace", "continue")


def _declaration(state: StatePlan) -> StateDeclaration:
    return StateDeclaration(
        state_name=state.state_name, schema=schema_json(schema_of(state))
    )


@define
class Checkpoint:
    """
    What a query remembers from run to run.

    Attributes:
        offsets: Batches that were planned.
        commits: Batches that were committed, as far as Spark knows.
    """

    offsets: set[int] = Factory(set)
    commits: set[int] = Factory(set)

    def copy(self) -> Checkpoint:
        """Return a copy of the directory."""
        return Checkpoint(set(self.offsets), set(self.commits))

    def next_batch(self) -> int:
        """Return the batch that the next run begins with."""
        last = max(self.offsets, default=-1)
        return last if last >= 0 and last not in self.commits else last + 1


@final
class Query:
    """
    A query and who operates it.

    Attributes:
        plan: What it writes.
        query_id: Spark's id; another one with another checkpoint.
        checkpoint: What it remembers.
        backups: Copies of that, the oldest first.
        on_new_query: What its runs say about state of others.
        run: Its newest run, or None while there is none.
        committed_count: Batches that a driver was told are committed.
        is_over: Whether it is not started any more.
    """

    def __init__(self, world: World, plan: QueryPlan) -> None:
        self._world = world
        self.plan = plan
        self._number = 0
        self._former: list[tuple[str, Checkpoint]] = []
        self.query_id = ""
        self.checkpoint = Checkpoint()
        self.backups: list[Checkpoint] = []
        self.on_new_query = "refuse"
        self.run: Run | None = None
        self.committed_count = 0
        self.is_over = False
        self._begin_anew("refuse")

    def _begin_anew(self, on_new_query: str) -> None:
        if self.query_id:
            self._former.append((self.query_id, self.checkpoint))
        self._number += 1
        self.query_id = f"{self.plan.label}{self._number}"
        self._world.plans[self.query_id] = self.plan
        self.checkpoint = Checkpoint()
        self.backups = []
        self.on_new_query = on_new_query

    # -- what an operator does -------------------------------------------------------

    def start(self) -> None:
        """Start a run after a while, unless one runs."""
        delay_ns = self._world.rng.randrange(250 * MS) + 5 * MS
        self._world.timeline.after(delay_ns, self._start)

    def _start(self) -> None:
        if not self.is_over and (self.run is None or not self.run.is_alive):
            self.run = Run(self._world, self)

    def restart_beside(self) -> None:
        """Start another run though the present one goes on: that is a zombie then."""
        self._world.zombies.append(self.run)
        self.run = Run(self._world, self)

    def replace(self, on_new_query: str) -> None:
        """Begin with another checkpoint: another query."""
        if self.run is not None:
            self._world.zombies.append(self.run)
        self._begin_anew(on_new_query)
        self.run = Run(self._world, self)

    def come_back(self, on_new_query: str) -> bool:
        """Go on with a checkpoint of before; return whether there is one."""
        if not self._former:
            return False
        if self.run is not None:
            self._world.zombies.append(self.run)
        self._former.append((self.query_id, self.checkpoint))
        index = self._world.rng.randrange(len(self._former) - 1)
        self.query_id, self.checkpoint = self._former.pop(index)
        self.backups = []
        self.on_new_query = on_new_query
        self.run = Run(self._world, self)
        return True

    def restore(self) -> bool:
        """Go on from an older copy of the checkpoint; return whether there is one."""
        if not self.backups:
            return False
        if self.run is not None:
            self.run.kill()
        self.checkpoint = self._world.rng.choice(self.backups).copy()
        self.start()
        return True

    def skip_batch(self) -> None:
        """Repartition the checkpoint offline, which takes up a batch id."""
        checkpoint = self.checkpoint
        last = max(checkpoint.offsets, default=-1)
        if last in checkpoint.commits:
            checkpoint.offsets.add(last + 1)
            checkpoint.commits.add(last + 1)

    # -- what becomes of runs --------------------------------------------------------

    def ended(self, run: Run, error: NameServiceError | None) -> None:
        """Take note that a run ended, and see what is to be done."""
        if run is not self.run:
            return
        world = self._world
        match error:
            case CheckpointRewoundError():
                world.counts["checkpoints found to be rewound"] += 1
                if world.rng.random() < 0.5 and self.backups:
                    self.checkpoint = self.backups[-1].copy()
                else:
                    self._begin_anew("replace")
            case StateOwnedError():
                world.counts["queries refused by an owner"] += 1
                self.on_new_query = world.rng.choice(("replace", "continue"))
                if not world.rng.randrange(3):
                    self._begin_anew(self.on_new_query)
            case LocalProtocolError() | SchemaMismatchError():
                world.checker.require("W1 no legal writer is refused", False, error)
            case _:
                pass
        self.start()


@final
class Run:
    """
    One run of a query.

    Attributes:
        is_alive: Whether its driver goes on.
    """

    def __init__(self, world: World, query: Query) -> None:
        self._world = world
        self._query = query
        self._query_id = query.query_id
        self._checkpoint = query.checkpoint
        self._on_new_query = query.on_new_query
        self._run_id = f"{query.query_id}-run-{world.next_number()}"
        self._link = world.network.new_link()
        self.is_alive = True
        self._paused: list[Callable[[], None]] | None = None
        self._born_epoch: int | None = None
        self._partition_count = world.rng.choice((1, 2, 3))
        self._given_up: set[str] = set()
        self._began_ns = world.timeline.now_ns
        world.counts["runs"] += 1
        self._plan_batch()

    def kill(self) -> None:
        """End the driver; its tasks may go on for a moment."""
        if self.is_alive:
            self.is_alive = False
            world, link = self._world, self._link
            world.timeline.after(world.notice_ns(), partial(world.link_closed, link))

    def pause(self, duration_ns: int) -> None:
        """Stop the driver for a while; what reaches it meanwhile waits."""
        if self._paused is None:
            self._paused = []
            self._world.timeline.after(duration_ns, self._resume)

    def _resume(self) -> None:
        waiting, self._paused = self._paused or [], None
        for action in waiting:
            action()

    def _then(self, action: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self._paused is not None:
            self._paused.append(action)
        else:
            action()

    def _ended(self, error: NameServiceError | None) -> None:
        self._world.trace(self._run_id, "ends:", error)
        if error is not None:
            self._world.counts[f"runs ended by {type(error).__name__}"] += 1
            self._check_failure(error)
        self.kill()
        self._query.ended(self, error)

    def _check_failure(self, error: NameServiceError) -> None:
        """See to it that no batch fails because of a move (rule S2)."""
        world = self._world
        age_ns = world.timeline.now_ns - self._began_ns
        is_old = age_ns >= RETENTION_NS // 2
        # What an older run has staged of a batch is gone when a newer one commits it.
        is_superseded = world.checker.is_superseded(
            self._query.plan.job_id, self._query_id, self._run_id
        )
        if isinstance(error, StagedDataMissingError) and not is_superseded:
            # Two nodes that were away for different tasks leave none that has it all.
            world.checker.require(
                "S2 rows of a batch are missing only if a disk was lost, or too old",
                world.has_lost_disks or is_old or len(self._given_up) > 1,
                self._run_id,
                error,
            )
        world.checker.require(
            "S2 no batch fails because of a move",
            world.scenario.profile is not Profile.MOVES
            or self._query.plan.job_id not in world.moves.present,
            self._run_id,
            error,
        )

    def _call(
        self,
        build: Callable[[int, int], DrawTicket | BindRun | CommitBatch],
        on_done: Callable[[Struct | NameServiceError], None],
    ) -> None:
        Call(
            self._world,
            self._link,
            build,
            lambda result: self._then(partial(on_done, result)),
            timeout_ns=COMMIT_TIMEOUT_NS,
            is_alive=lambda: self.is_alive,
        )

    # -- a batch, step by step -------------------------------------------------------

    def _plan_batch(self) -> None:
        """Write down what the next batch holds, and draw a ticket for it."""
        self._began_ns = self._world.timeline.now_ns
        batch_id = self._checkpoint.next_batch()
        self._checkpoint.offsets.add(batch_id)
        if self._query.plan.tasks_bind or self._born_epoch is not None:
            self._draw(batch_id)
        else:
            self._call(partial(self._ticket, (), None), partial(self._born, batch_id))

    def _born(self, batch_id: int, drawn: Struct | NameServiceError) -> None:
        """Begin with the epoch that this run has for life."""
        if isinstance(drawn, NameServiceError):
            self._ended(drawn)
            return
        assert isinstance(drawn, TicketDrawn)
        self._born_epoch = drawn.ticket
        self._draw(batch_id)

    def _draw(self, batch_id: int) -> None:
        """Draw a ticket; show it by the same message, unless tasks are to."""
        run = None
        if not self._query.plan.tasks_bind:
            assert self._born_epoch is not None
            run = WriterRun(
                query_id=self._query_id,
                run_id=self._run_id,
                on_new_query=self._on_new_query,
                born_epoch=self._born_epoch,
            )
        self._declare(
            lambda states: partial(self._ticket, states, run),
            partial(self._drawn, batch_id),
        )

    def _ticket(
        self,
        states: tuple[StateDeclaration, ...],
        run: WriterRun | None,
        request_id: int,
        left_ns: int,
    ) -> DrawTicket:
        del left_ns
        return DrawTicket(
            request_id=request_id,
            session=_SESSION,
            job_id=self._query.plan.job_id,
            max_parallelism=MAX_PARALLELISM,
            states=states,
            run=run,
        )

    def _declare(
        self,
        build_with: Callable[
            [tuple[StateDeclaration, ...]], Callable[[int, int], DrawTicket | BindRun]
        ],
        on_done: Callable[[Struct | NameServiceError], None],
    ) -> None:
        """Ask without the schemas, which were declared, and with them if need be."""
        states = tuple(map(_declaration, self._query.plan.states))

        def done(result: Struct | NameServiceError) -> None:
            if isinstance(result, DeclarationWantedError):
                self._world.counts["schemas that a leader asked for"] += 1
                self._call(build_with(states), on_done)
            else:
                on_done(result)

        known = tuple(state.as_registered() for state in states)
        self._call(build_with(known), done)

    def _drawn(self, batch_id: int, drawn: Struct | NameServiceError) -> None:
        if isinstance(drawn, NameServiceError):
            self._ended(drawn)
            return
        assert isinstance(drawn, TicketDrawn)
        away = {i for i, node in enumerate(drawn.nodes) if node.address is None}
        if any(away.issuperset(holders) for holders in drawn.owners):
            # `StateWriter.plan` draws again while some rows can be brought to none.
            self._world.timeline.after(150 * MS, partial(self._then, self._plan_batch))
            return
        if drawn.run is None:
            self._bind(drawn, partial(self._bound, batch_id, drawn))
        else:
            self._go_on(batch_id, drawn, drawn.run)

    def _bind(
        self,
        drawn: TicketDrawn,
        on_done: Callable[[Struct | NameServiceError], None],
    ) -> None:
        if self._born_epoch is None:
            self._born_epoch = drawn.ticket

        def build(
            states: tuple[StateDeclaration, ...], request_id: int, left_ns: int
        ) -> BindRun:
            del left_ns
            return BindRun(
                request_id=request_id,
                session=_SESSION,
                job_id=self._query.plan.job_id,
                ticket=drawn.ticket,
                query_id=self._query_id,
                run_id=self._run_id,
                states=states,
                on_new_query=self._on_new_query,
                born_epoch=self._born_epoch,
            )

        self._declare(lambda states: partial(build, states), on_done)

    def _bound(
        self, batch_id: int, drawn: TicketDrawn, bound: Struct | NameServiceError
    ) -> None:
        if isinstance(bound, NameServiceError):
            self._ended(bound)
            return
        assert isinstance(bound, RunBound)
        self._go_on(batch_id, drawn, bound.run)

    def _go_on(self, batch_id: int, drawn: TicketDrawn, bound: BoundRun) -> None:
        """Have tasks stage the batch."""
        plan = self._query.plan
        staged_id = batch_id
        if plan.is_batch_job:
            staged_id = 0 if bound.batch_id is None else bound.batch_id + 1
        batch = Batch(
            job_id=plan.job_id,
            query_id=self._query_id,
            batch_id=staged_id,
            plan=drawn,
            bound=bound,
            states=plan.states,
            rows=tuple(
                tuple(rows_of(self._world.seed, self._query_id, staged_id, state))
                for state in plan.states
            ),
            partition_count=self._partition_count,
        )
        is_decided = bound.batch_id is not None and staged_id <= bound.batch_id
        partitions = () if is_decided else range(self._partition_count)
        _Tasks(
            self._world,
            batch,
            partitions,
            on_done=lambda result: self._then(partial(self._staged, batch, result)),
            is_alive=lambda: self.is_alive,
            bind=partial(self._bind, drawn) if plan.tasks_bind else None,
        )

    def _staged(
        self, batch: Batch, stages: tuple[StageRecord, ...] | NameServiceError
    ) -> None:
        if isinstance(stages, NameServiceError):
            self._ended(stages)
            return
        plan = self._query.plan
        winners = tuple(stage for stage in stages if stage.row_count)
        self._given_up = {one for stage in winners for one in stage.given_up}
        self._call(
            lambda request_id, left_ns: CommitBatch(
                request_id=request_id,
                session=_SESSION,
                job_id=self._query.plan.job_id,
                query_id=self._query_id,
                run_id=self._run_id,
                writer_epoch=batch.bound.writer_epoch,
                batch_id=None if plan.is_batch_job else batch.batch_id,
                assignment_version=batch.plan.assignment_version,
                state_numbers=tuple(s.state_number for s in batch.bound.states),
                is_complete=plan.is_complete,
                on_new_query=self._on_new_query,
                stages=winners,
                timeout_ms=max(1, left_ns // MS),
            ),
            partial(self._committed, batch),
        )

    def _committed(self, batch: Batch, answer: Struct | NameServiceError) -> None:
        if isinstance(answer, NameServiceError):
            self._ended(answer)
            return
        assert isinstance(answer, BatchCommitted)
        world, query = self._world, self._query
        world.checker.require(
            "W4 a batch keeps its number", answer.batch_id == batch.batch_id, answer
        )
        world.counts["batches committed"] += 1
        query.committed_count += 1
        if world.fails(0.03):
            self._ended(None)  # before Spark has written it down
            return
        checkpoint = self._checkpoint
        checkpoint.commits.add(max(checkpoint.offsets))
        if query.query_id == self._query_id:
            query.backups = [*query.backups, checkpoint.copy()][-8:]
        if query.plan.is_batch_job:
            self._ended(None)
            return
        delay_ns = world.rng.choice((MS, 30 * MS, 120 * MS))
        world.timeline.after(delay_ns, partial(self._then, self._plan_batch))


@final
class _Tasks:
    """The tasks of a batch: each is tried until one execution of it has ended well."""

    def __init__(
        self,
        world: World,
        batch: Batch,
        partitions: range | tuple[()],
        *,
        on_done: Callable[[tuple[StageRecord, ...] | NameServiceError], None],
        is_alive: Callable[[], bool],
        bind: Callable[[Callable[[Struct | NameServiceError], None]], None] | None,
    ) -> None:
        self._world = world
        self._batch = batch
        self._on_done = on_done
        self._is_driver_alive = is_alive
        self._bind = bind
        self._stages: dict[int, StageRecord] = {}
        self._count = len(partitions)
        self._attempts = dict.fromkeys(partitions, 0)
        self._is_over = False
        # Executors outlive their driver by a moment, and late tasks their batch.
        self._orphans_until_ns: int | None = None
        if not self._count:
            on_done(())
        for partition in partitions:
            self._run(partition)

    def _may_run(self) -> bool:
        if self._is_driver_alive():
            return True
        now_ns = self._world.timeline.now_ns
        if self._orphans_until_ns is None:
            self._orphans_until_ns = now_ns + self._world.rng.randrange(900 * MS)
        return now_ns < self._orphans_until_ns

    def _run(self, partition: int) -> None:
        if self._bind is None:
            self._execute(partition)
        else:
            self._bind(partial(self._bound, partition))

    def _bound(self, partition: int, result: Struct | NameServiceError) -> None:
        if isinstance(result, NameServiceError):
            self._fail(result)
        else:
            assert isinstance(result, RunBound)
            self._world.checker.require(
                "W1 a run has one epoch",
                result.run.writer_epoch == self._batch.bound.writer_epoch,
                result,
            )
            self._execute(partition)

    def _execute(self, partition: int) -> None:
        self._attempts[partition] += 1
        world = self._world
        fails_after = None
        if world.fails(world.scenario.task_failure):
            world.counts["fault: tasks failed"] += 1
            fails_after = world.rng.randrange(3)
        Execution(
            world,
            self._batch,
            partition,
            fails_after=fails_after,
            on_done=partial(self._executed, partition),
            is_alive=self._may_run,
        )
        if world.fails(world.scenario.task_failure):
            # Taken for lost, and run again beside itself: both may end well.
            world.counts["fault: tasks run twice"] += 1
            world.timeline.after(
                world.rng.randrange(20 * MS), partial(self._beside, partition)
            )

    def _beside(self, partition: int) -> None:
        if partition not in self._stages and not self._is_over and self._may_run():
            Execution(
                self._world,
                self._batch,
                partition,
                fails_after=None,
                on_done=partial(self._executed, partition),
                is_alive=self._may_run,
            )

    def _executed(self, partition: int, result: StageRecord | NameServiceError) -> None:
        if self._is_over or partition in self._stages:
            return
        if isinstance(result, StageRecord):
            self._stages[partition] = result
            if len(self._stages) == self._count:
                self._is_over = True
                self._on_done(
                    tuple(self._stages[number] for number in sorted(self._stages))
                )
        elif (
            isinstance(result, StaleWriterError)
            or self._attempts[partition] >= _ATTEMPT_COUNT_MAX
        ):
            self._fail(result)
        else:
            self._run(partition)

    def _fail(self, error: NameServiceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_done(error)
