"""
A run of a streaming query as Spark's driver goes about it.

It writes down what a batch holds (``offsets``), has tasks stage it, has it decided, and
writes down that it is (``commits``); a batch without its commit is run again, under the
same number, by the next run.  A run that is over for its operator may go on for a while
all the same: then it is a zombie.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

from attrs import Factory, define, frozen

from nameservice import LocalProtocolError, NameServiceError
from queryablestate import (
    CheckpointRewoundError,
    CommitTimeoutError,
    DeadlineExceededError,
    SchemaMismatchError,
    StagedDataMissingError,
    StaleWriterError,
    StateOwnedError,
)
from queryablestate.schema.schema_json import schema_json
from queryablestate.wire.clients import BatchCommitted, StateDeclaration
from queryablestate.writer.batches import StageMessage, WriteOrigin, WritePlan, WriteRun
from queryablestate.writer.core import WriterCore
from queryablestate.writer.own_runs import OwnRuns
from tests.simulation.timeline import MS
from tests.state_simulation.calls import Talk
from tests.state_simulation.content import schema_of
from tests.state_simulation.scenario import (
    COMMIT_TIMEOUT_NS,
    MAX_PARALLELISM,
    RETENTION_NS,
    Profile,
)
from tests.state_simulation.tasks import Execution, Part


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.writer.conversations import Conversation
    from tests.state_simulation.scenario import QueryPlan, StatePlan
    from tests.state_simulation.world import World


__all__ = ["Checkpoint", "Query", "Run"]

_ATTEMPT_COUNT_MAX: Final = 4
_OTHER_ROWS: Final = 0.2


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

    def __init__(
        self, world: World, plan: QueryPlan, on_new_query: str = "refuse"
    ) -> None:
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
        self._begin_anew(on_new_query)

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
@frozen(kw_only=True)
class _Batch:
    """
    A batch that is being written.

    Attributes:
        batch_id: Its number as Spark has it; a batch job has none of its own.
        plan: By which its tasks bind, where they do.
        run: By which they need not.
        is_another: Whether the source gives other rows, if it gave them before.
    """

    batch_id: int
    plan: WritePlan
    run: WriteRun | None
    is_another: bool


@final
class Run:
    """
    One run of a query.

    Attributes:
        is_alive: Whether its driver goes on.
        plan: What its query writes.
        core: The shipped core of its process.
        rng: What its tasks draw from.
    """

    def __init__(self, world: World, query: Query) -> None:
        self._world = world
        self._query = query
        self.plan = query.plan
        self.query_id = query.query_id
        self._checkpoint = query.checkpoint
        self._on_new_query = query.on_new_query
        self.run_id = f"{query.query_id}-run-{world.next_number()}"
        self._link = world.network.new_link()
        self.is_alive = True
        self._paused: list[Callable[[], None]] | None = None
        self.core = WriterCore("simulated", OwnRuns())
        self.rng = Random(f"{world.seed}/tasks of {self.run_id}")
        self._declarations = tuple(map(_declaration, query.plan.states))
        self._born_epoch: int | None = None
        self._partition_count = world.rng.choice((1, 2, 3))
        self._given_up: set[str] = set()
        self._began_ns = world.timeline.now_ns
        self._was_there = False
        self._batch_id = 0
        self._is_another = False
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
        self._world.trace(self.run_id, "ends:", error)
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
        if isinstance(error, StagedDataMissingError):
            # Two nodes that were away for different tasks leave none that has it all.
            # A run whose rows a newer one has superseded is told so instead (rule W1).
            world.checker.require(
                "S2 rows of a batch are missing only if a disk was lost, or too old",
                world.has_lost_disks or is_old or len(self._given_up) > 1,
                self.run_id,
                error,
            )
        if isinstance(error, CheckpointRewoundError):
            world.checker.require(
                "W4 a batch that comes again with the same rows is no other batch",
                self._is_another
                or world.checker.has_decided_after(
                    self.plan.job_id, self.query_id, self._batch_id
                ),
                self.run_id,
                error,
            )
        # A snapshot or a restore takes many commits then, and others wait for it.
        is_held_up = world.scenario.has_slow_changes and isinstance(
            error, DeadlineExceededError | CommitTimeoutError
        )
        world.checker.require(
            "S2 no batch fails because of a move",
            world.scenario.profile is not Profile.MOVES
            or is_held_up
            or not self._was_there,
            self.run_id,
            error,
        )

    def _talk(
        self, conversation: Conversation[Any], on_done: Callable[[Any], None]
    ) -> None:
        """Have a conversation; end the run if it fails."""

        def done(result: object) -> None:
            if isinstance(result, NameServiceError):
                self._ended(result)
            else:
                on_done(result)

        Talk(
            self._world,
            self._link,
            conversation,
            done,
            is_alive=lambda: self.is_alive,
            then=self._then,
        )

    # -- a batch, step by step -------------------------------------------------------

    def _plan_batch(self) -> None:
        """Write down what the next batch holds, and begin it as the sinks do."""
        world = self._world
        self._began_ns = world.timeline.now_ns
        # A job without a node is refused, and may be there before its driver hears it.
        self._was_there = self.plan.job_id in world.moves.present
        batch_id = self._batch_id = self._checkpoint.next_batch()
        self._checkpoint.offsets.add(batch_id)
        self._is_another = (
            world.scenario.profile is Profile.STORM
            and not world.network.is_calm
            and not self.plan.is_batch_job
            and self.rng.random() < _OTHER_ROWS
        )
        if not self.plan.tasks_bind:  # as `sparkpipeline.state.sink`
            self._talk(
                self.core.begin(
                    self.plan.job_id,
                    self._declarations,
                    query_id=self.query_id,
                    run_id=self.run_id,
                    max_parallelism=MAX_PARALLELISM,
                    on_new_query=self._on_new_query,
                    timeout_ns=COMMIT_TIMEOUT_NS,
                    now_ns=world.timeline.now_ns,
                ),
                partial(self._begun, batch_id),
            )
        elif self._born_epoch is None:  # as `sparkpipeline.state.data_source`
            self._talk(
                self.core.draw_epoch(
                    self.plan.job_id,
                    timeout_ns=COMMIT_TIMEOUT_NS,
                    now_ns=world.timeline.now_ns,
                ),
                partial(self._born, batch_id),
            )
        else:
            self._plan_unbound(batch_id)

    def _born(self, batch_id: int, epoch: int) -> None:
        """Begin with the epoch that this run has for life."""
        self._born_epoch = epoch
        self._plan_unbound(batch_id)

    def _plan_unbound(self, batch_id: int) -> None:
        self._talk(
            self.core.plan(
                self.plan.job_id,
                self._declarations,
                max_parallelism=MAX_PARALLELISM,
                on_new_query=self._on_new_query,
                waits_for_nodes=False,
                timeout_ns=COMMIT_TIMEOUT_NS,
                now_ns=self._world.timeline.now_ns,
            ),
            lambda plan: self._stage(batch_id, plan, None),
        )

    def _begun(self, batch_id: int, run: WriteRun) -> None:
        self._stage(batch_id, run.plan, run)

    def _stage(self, batch_id: int, plan: WritePlan, run: WriteRun | None) -> None:
        """Have tasks stage the batch."""
        batch = _Batch(
            batch_id=batch_id, plan=plan, run=run, is_another=self._is_another
        )
        _Tasks(
            self._world,
            self,
            batch,
            self._partition_count,
            on_done=lambda result: self._then(partial(self._staged, batch, result)),
        )

    def _staged(
        self, batch: _Batch, messages: tuple[StageMessage, ...] | NameServiceError
    ) -> None:
        if isinstance(messages, NameServiceError):
            self._ended(messages)
            return
        plan = self.plan
        origin: WriteOrigin = messages[0].origin
        self._given_up = {one for each in messages for one in each.stage.given_up}
        # A batch job of Spark's writers binds under an id of its own, and never again.
        born_epoch = None if plan.is_batch_job else self._born_epoch
        self._talk(
            self.core.commit(
                origin,
                None if plan.is_batch_job else batch.batch_id,
                messages,
                is_complete=plan.is_complete,
                born_epoch=born_epoch,
                is_digested=True,
                timeout_ns=COMMIT_TIMEOUT_NS,
                now_ns=self._world.timeline.now_ns,
            ),
            partial(self._committed, messages),
        )

    def _committed(
        self, messages: tuple[StageMessage, ...], answer: BatchCommitted
    ) -> None:
        world, query = self._world, self._query
        world.checker.require(
            "W4 a batch keeps its number",
            answer.batch_id == messages[0].batch_id,
            answer,
        )
        world.checker.require(
            "W4 a batch with other rows is not taken for the one that was decided",
            not self._is_another
            or not world.checker.is_newest(
                self.plan.job_id, messages[0].origin, answer.batch_id
            ),
            self.run_id,
            answer,
        )
        world.counts["batches with other rows taken"] += self._is_another
        world.counts["batches committed"] += 1
        query.committed_count += 1
        if world.fails(0.03):
            self._ended(None)  # before Spark has written it down
            return
        checkpoint = self._checkpoint
        checkpoint.commits.add(max(checkpoint.offsets))
        if query.query_id == self.query_id:
            query.backups = [*query.backups, checkpoint.copy()][-8:]
        if query.plan.is_batch_job:
            self._ended(None)
            return
        delay_ns = world.rng.choice((MS, 30 * MS, 120 * MS))
        world.timeline.after(delay_ns, partial(self._then, self._plan_batch))

    def has_other_rows(self, run: WriteRun, batch_id: int) -> bool:
        """Return whether the source gives other rows of a batch than the first time."""
        # What was never decided is nothing to compare with.
        self._is_another &= run.is_decided(batch_id)
        return self._is_another


@final
class _Tasks:
    """The tasks of a batch: each is tried until one execution of it has ended well."""

    def __init__(
        self,
        world: World,
        driver: Run,
        batch: _Batch,
        partition_count: int,
        *,
        on_done: Callable[[tuple[StageMessage, ...] | NameServiceError], None],
    ) -> None:
        self._world = world
        self._driver = driver
        self._batch = batch
        self._on_done = on_done
        self._messages: dict[int, StageMessage] = {}
        self._count = partition_count
        self._attempts = dict.fromkeys(range(partition_count), 0)
        self._is_over = False
        # Executors outlive their driver by a moment, and late tasks their batch.
        self._orphans_until_ns: int | None = None
        for partition in range(partition_count):
            self._run(partition)

    def _may_run(self) -> bool:
        if self._driver.is_alive:
            return True
        now_ns = self._world.timeline.now_ns
        if self._orphans_until_ns is None:
            self._orphans_until_ns = now_ns + self._driver.rng.randrange(900 * MS)
        return now_ns < self._orphans_until_ns

    def _run(self, partition: int) -> None:
        """Run a task: it binds first, unless the driver has done so."""
        world, driver = self._world, self._driver
        if self._batch.run is not None:
            self._execute(partition, self._batch.run)
            return
        link = world.network.new_link()
        Talk(
            world,
            link,
            driver.core.bind(
                self._batch.plan,
                query_id=driver.query_id,
                run_id=driver.run_id,
                is_for_now=not driver.plan.is_batch_job,
                timeout_ns=COMMIT_TIMEOUT_NS,
                now_ns=world.timeline.now_ns,
            ),
            partial(self._bound, partition),
            is_alive=self._may_run,
        )

    def _bound(self, partition: int, result: WriteRun | NameServiceError) -> None:
        if isinstance(result, NameServiceError):
            self._fail(result)
        else:
            self._execute(partition, result)

    def _execute(self, partition: int, run: WriteRun) -> None:
        self._attempts[partition] += 1
        world = self._world
        fails_after = None
        if world.fails(world.scenario.task_failure):
            world.counts["fault: tasks failed"] += 1
            fails_after = world.rng.randrange(3)
        self._begin(partition, run, fails_after)
        if world.fails(world.scenario.task_failure):
            # Taken for lost, and run again beside itself: both may end well.
            world.counts["fault: tasks run twice"] += 1
            delay_ns = world.rng.randrange(20 * MS)
            world.timeline.after(delay_ns, partial(self._beside, partition, run))

    def _beside(self, partition: int, run: WriteRun) -> None:
        if partition not in self._messages and not self._is_over and self._may_run():
            self._begin(partition, run, None)

    def _begin(self, partition: int, run: WriteRun, fails_after: int | None) -> None:
        driver = self._driver
        batch_id = self._batch.batch_id
        if driver.plan.is_batch_job:
            batch_id = run.batch_id_next
        part = Part(
            run=run,
            batch_id=batch_id,
            states=driver.plan.states,
            partition=partition,
            partition_count=self._count,
            is_another=driver.has_other_rows(run, batch_id),
        )
        Execution(
            self._world,
            driver.rng,
            driver.core,
            part,
            fails_after=fails_after,
            on_done=partial(self._executed, partition, run),
            is_alive=self._may_run,
        )

    def _executed(
        self, partition: int, run: WriteRun, result: StageMessage | NameServiceError
    ) -> None:
        if self._is_over or partition in self._messages:
            return
        if isinstance(result, StageMessage):
            self._messages[partition] = result
            if len(self._messages) == self._count:
                self._is_over = True
                self._on_done(
                    tuple(self._messages[number] for number in sorted(self._messages))
                )
        elif (
            isinstance(result, StaleWriterError)
            or self._attempts[partition] >= _ATTEMPT_COUNT_MAX
        ):
            self._fail(result)
        elif self._batch.run is None:
            self._run(partition)
        else:
            self._execute(partition, run)

    def _fail(self, error: NameServiceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_done(error)
