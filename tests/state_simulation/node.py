"""A state node: the shipped `NodeCore` and `StateStore` in a virtual shell."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, assert_never, cast, final

import zmq
from attrs import evolve

from nameservice import NameServiceError, StorageError
from queryablestate.node.core.chunks import chunk_refused
from queryablestate.node.core.core import NodeCore, NodeLimits, check_command
from queryablestate.node.core.effects import (
    ApplyEntry,
    AskAgain,
    BindStore,
    CancelFetch,
    CancelReads,
    CheckStages,
    CollectRows,
    ConnectProxy,
    DropFences,
    DropOldStages,
    EndProcess,
    FetchKeyGroups,
    FinishCopy,
    ForgetJobRows,
    ForgetLeftJobs,
    HandleSnapshot,
    HoldKeyGroups,
    KeepCopySecret,
    KeepJobPlan,
    NodeEffect,
    RaiseFences,
    ReportBehind,
    ReportRefused,
    ReportRegistered,
    ReportStale,
    ResetJobRows,
    SendToProxy,
    SendToWriter,
    StageRows,
    SwitchStore,
    TellJobPlan,
)
from queryablestate.node.core.events import (
    AskedQuestion,
    ChunkFinished,
    ChunkReceived,
    CommandReceived,
    CopyFinished,
    EntryFinished,
    KeyGroupsHeld,
    LeaveAsked,
    LeftJobsForgotten,
    NodeEvent,
    ProxyConnected,
    ProxyDisconnected,
    ProxyFound,
    QuestionDeferred,
    ResetFinished,
    StoreOpened,
    TimePassed,
    Wait,
)
from queryablestate.node.core.job import found_by
from queryablestate.node.core.jobs import ServedJob
from queryablestate.node.core.registration import NodeIdentity
from queryablestate.node.reads import (
    Found,
    answer_of,
    is_long,
    is_too_early,
    problem_of,
    read,
)
from queryablestate.node.snapshots import NodeSnapshots
from queryablestate.node.store_tasks import reason_of
from queryablestate.schema.key_groups import group_start
from queryablestate.store.groups import groups_in
from queryablestate.store.rows import check_chunk
from queryablestate.store.steps import ReadWork
from queryablestate.wire.codec import decode_rows
from queryablestate.wire.job_plan import entry_digest
from queryablestate.wire.node_messages import PlanTold, StagesCollected, StagesVerified
from queryablestate.wire.questions import CountKeys, Question, Refusal
from queryablestate.wire.records import SnapshotMarked, SnapshotRestored
from queryablestate.wire.staging_messages import ChunkStaged
from tests.queryablestate.whole_reads import finish
from tests.simulation.timeline import MS
from tests.state_simulation.copying import NodeCopying, ThreadQueue
from tests.state_simulation.direct import DirectPort
from tests.state_simulation.interruptions import KilledError
from tests.state_simulation.network import Connection
from tests.state_simulation.scenario import MAX_PARALLELISM, RETENTION_NS, Profile


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Struct

    from queryablestate.control.events import LinkId
    from queryablestate.store.threads import StoreWriter
    from queryablestate.wire.node_messages import CollectStages, ToNode, VerifyStages
    from queryablestate.wire.staging_messages import StageChunk
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.scenario import Scenario
    from tests.state_simulation.world import World


__all__ = ["Node"]

_NS_PER_US: Final = 1_000
_ANSWER_SIZE_BYTES_MAX: Final = 1 << 20
_COMMANDED: Final = (ResetJobRows, HoldKeyGroups, CollectRows, EndProcess, ApplyEntry)
_PREFIXES: Final = tuple(map(group_start, range(MAX_PARALLELISM)))
_SWEEP_COUNT: Final = 3
_HALF_OPEN_NS: Final = 1_500 * MS
_SLOW_ANSWER_NS: Final = 3_000 * MS
_LIMITS: Final = NodeLimits(
    pause_ns=50 * MS,
    pause_ns_max=400 * MS,
    answer_timeout_ns=600 * MS,
    retry_ns=800 * MS,
    copy_retry_ns=100 * MS,
    copy_retry_ns_max=600 * MS,
    copy_report_ns=100 * MS,
    drop_stages_ns=150 * MS,
)


def _limits_of(scenario: Scenario) -> NodeLimits:
    """Return how long a node waits; for a whole change, where no read may fail."""
    if scenario.profile is not Profile.STORM and scenario.has_slow_changes:
        # It asks to be taken in once more, and gives the connection up otherwise: it
        # is away for a moment then, and no read may fail.
        return evolve(_LIMITS, answer_timeout_ns=_SLOW_ANSWER_NS)
    return _LIMITS


@final
class _Clock:
    """The time line as a clock."""

    def __init__(self, world: World) -> None:
        self._timeline = world.timeline

    def now_ns(self) -> int:
        """Return the time."""
        return self._timeline.now_ns


@final
class _Writer:
    """`StoreWriter.run` for those who copy."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, task: Callable[[], None], *, job_id: str | None = None) -> None:
        """Have *task* done by the thread that writes; the disk knows no turns."""
        del job_id

        def do() -> Callable[[], None]:
            task()
            return _do_nothing

        self._node.write(do)


def _do_nothing() -> None:
    """Tell nothing."""


@final
class Node:
    """
    One process of a state node, from its start to its end.

    Attributes:
        node_id: Its name; the same in the next process.
        address: Where writers reach it; another one in the next process.
        disk: Its data directory.
        is_alive: Whether it runs.
        slowness: By what its writes take longer, for a while.
        is_leaving: Whether it has asked to be emptied, and ends then.
    """

    def __init__(self, world: World, node_id: str, address: str, disk: Disk) -> None:
        self._world = world
        self.node_id = node_id
        self.address = address
        self.disk = disk
        self.is_alive = True
        self.slowness = 1
        self._connection: Connection | None = None
        self._connect_count = 0
        self._proxy_address = ""
        self._replies: dict[bytes, Callable[[Struct], None]] = {}
        self._writer_count = 0
        self._tasks: deque[tuple[Callable[[], Callable[[], None]], bool]] = deque()
        self._is_writing = False
        self._pending: deque[NodeEvent] = deque()
        self._is_stepping = False
        self._timer_ns: int | None = None
        self._epoch_max = 0
        self.is_leaving = False
        world.checker.require(
            "W3 a store that is opened again is where it was", disk.reopen(), disk
        )
        self._loop = ThreadQueue(world, lambda: self.is_alive)
        self.copying = NodeCopying(
            world,
            node_id,
            disk,
            writer=cast("StoreWriter", _Writer(self)),
            loop=self._loop,
            is_alive=lambda: self.is_alive,
        )
        self.snapshots = NodeSnapshots(self._loop.post, clock=_Clock(world))
        self._core = NodeCore(
            NodeIdentity(
                node_id=node_id,
                registration_id=f"{address}#{world.next_number()}",
                address=address,
            ),
            _limits_of(world.scenario),
            now_ns=world.timeline.now_ns,
        )
        self._sweep_later()
        self._registration_id = self._core._identity.registration_id
        self._stalled_until_ns = 0
        self._is_cut_off = False
        self._half_open_rng = Random(f"{world.seed}/half open/{address}")
        self._direct = DirectPort(
            world,
            node_id,
            address,
            disk,
            is_current=lambda ticket: self._core.is_current(
                ticket, now_ns=self._now_ns
            ),
            admit=lambda question, job_id: self._core.admit(
                question, job_id, now_ns=self._now_ns
            ),
            is_alive=lambda: self.is_alive,
        )
        store = disk.store
        self._step(
            StoreOpened(
                store_id=store.store_id,
                control_id=store.control_id,
                positions=store.positions(),
                fences=store.fences(),
                lost=store.lost_states(),
                origins=store.origins(),
                holdings=store.holdings(),
            )
        )

    def kill(self) -> None:
        """End the process; the disk keeps what it has."""
        self.is_alive = False
        self._tasks.clear()
        self.snapshots.forget()
        self.copying.end()
        self._leave()

    def leave(self) -> None:
        """Ask to be emptied, and end when that is done."""
        self.is_leaving = True
        self._step(LeaveAsked())

    @property
    def is_connected(self) -> bool:
        """Return whether messages flow between it and a proxy, both ways."""
        return self._connection is not None and not self._connection.is_broken

    def answers_for(
        self, job_id: str, leader_epoch: int, version: int
    ) -> Sequence[int]:
        """Return the key groups of which it would answer for keys, if asked now."""
        question = Question(
            leader_epoch=leader_epoch,
            question_id=0,
            state_number=0,
            assignment_version=version,
            operation=CountKeys(),
            deadline_ms=1,
            asker="",
        )
        admitted = self._core.admit(question, job_id, now_ns=self._now_ns)
        if not isinstance(admitted, ServedJob):
            return ()
        return [
            group
            for group, prefix in enumerate(_PREFIXES)
            if prefix in admitted.prefixes
        ]

    # -- the proxy -------------------------------------------------------------------

    def proxy_found(self, address: str, epoch: int) -> None:
        """Hear from the name service who leads."""
        if self.is_alive:
            self._step(ProxyFound(address=address, epoch=epoch))

    def _leave(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._world.sever(connection)

    def fill_queue(self, duration_ns: int) -> bool:
        """Fill a queue between this node and the proxy for a while."""
        connection = self._connection
        if connection is None:
            return False
        is_up = self._world.rng.random() < 0.5
        connection.is_full, connection.is_full_up = not is_up, is_up

        def end() -> None:
            connection.is_full = connection.is_full_up = False

        self._world.timeline.after(duration_ns, end)
        return True

    def stall(self, duration_ns: int) -> bool:
        """Answer nothing for a while, as a process that is stopped and runs again."""
        if self._connection is None:
            return False
        self._connection.stall(duration_ns)
        self._stalled_until_ns = self._now_ns + duration_ns
        return True

    def deafen(self, duration_ns: int) -> bool:
        """Hear nothing of the proxy for a while, and answer clients meanwhile."""
        if self._connection is None:
            return False
        self._connection.hold_down(duration_ns)
        return True

    def isolate(self) -> None:
        """Lose the connection, whatever is under way in it."""
        if self._connection is not None:
            self._world.sever(self._connection)

    def cut_off(self) -> bool:
        """Lose the connection, and take it for open as long as ever."""
        if self._connection is None:
            return False
        self._is_cut_off = True
        self.isolate()
        return True

    def lost(self, connection: Connection) -> None:
        """Take note, a moment later, that the connection is over."""
        if connection is self._connection:
            self._connection = None
            delay_ns = self._notice_ns() + self._half_open_ns()
            self._world.timeline.after(delay_ns, self._disconnected)

    def _disconnected(self) -> None:
        if self.is_alive and self._connection is None:
            self._step(ProxyDisconnected())
            self._connect_soon()

    def _connect_soon(self) -> None:
        """Connect again, as libzmq does by itself."""
        self._connect_count += 1
        number = self._connect_count
        delay_ns = self._world.rng.randrange(60 * MS) + 2 * MS
        self._world.timeline.after(delay_ns, partial(self._connect, number))

    def _connect(self, number: int) -> None:
        if not self.is_alive or number != self._connect_count:
            return
        proxy = self._world.proxy_at(self._proxy_address)
        if proxy is None or self.node_id in self._world.isolated:
            self._connect_soon()
            return
        connection = Connection(
            self._world.network, self._world.timeline, self._world.connection_rng
        )
        self._connection = connection
        self._world.connections[connection.link] = (self, proxy)
        proxy.connected(connection)
        self._step(ProxyConnected())

    def _half_open_ns(self) -> int:
        """Return how long it takes a connection for open that is over."""
        world = self._world
        if not world.scenario.is_direct or world.network.is_calm:
            return 0
        if self._is_cut_off:
            self._is_cut_off = False
            return _HALF_OPEN_NS
        if self._half_open_rng.random() < 0.5:
            return 0
        world.counts["fault: connections half open"] += 1
        return self._half_open_rng.randrange(_HALF_OPEN_NS)

    def _notice_ns(self) -> int:
        """Return after how long an end notices that a connection is over."""
        return self._world.notice_ns()

    def proxy_said(self, message: Struct, payload: bytes) -> None:
        """Hear the proxy, over this connection or late over an earlier one."""
        if not self.is_alive:
            return
        self._world.trace(self.node_id, "<", message)
        if isinstance(message, Question):
            self._ask(
                AskedQuestion(
                    question=message,
                    keys=payload,
                    asked_at_ns=self._world.timeline.now_ns,
                ),
                self._connection,
            )
            return
        command: ToNode = message  # type: ignore[assignment]  # what else a proxy says
        check_command(command)
        self._step(CommandReceived(command=command))

    def _send(
        self, message: Struct, payload: bytes, connection: Connection | None
    ) -> None:
        is_open = connection is not None and not connection.is_full_up
        if is_open and connection is self._connection:
            assert connection is not None
            self._world.carry_to_proxy(connection, message, payload)

    # -- clients ---------------------------------------------------------------------

    def client_said(
        self,
        link: LinkId,
        message: Struct,
        payload: bytes,
        reply: Callable[[Struct, bytes], None],
    ) -> None:
        """Hear a client that asks without the proxy."""
        if not self.is_alive:
            return
        if self._now_ns < self._stalled_until_ns:
            again = partial(self.client_said, link, message, payload, reply)
            self._world.timeline.at(self._stalled_until_ns, again)
            return
        self._world.trace(self.node_id, "<", link, message)
        self._direct.said(link, message, payload, reply)

    def client_left(self, link: LinkId) -> None:
        """Take note that a client is gone."""
        self._direct.left(link)

    # -- questions -------------------------------------------------------------------

    def _ask(self, asked: AskedQuestion, connection: Connection | None) -> None:
        """Answer a question as `queryablestate.node.answering` does."""
        if not is_long(asked.question, asked.keys):
            self._finish(asked, self._read(asked, ()), connection)
            return
        view = self.disk.store.state(asked.question.state_number)
        job_id = None if view is None else view.job_id
        admitted = self._core.admit(asked.question, job_id, now_ns=self._now_ns)
        if not isinstance(admitted, ServedJob):
            self._not_now(asked, admitted, job_id, connection)
            return
        key_groups = admitted.key_groups

        def scan() -> None:
            if not self.is_alive:
                return
            found = self._read(asked, key_groups)
            delay_ns = self._world.rng.randrange(5 * MS)
            self._world.timeline.after(
                delay_ns, partial(self._finish, asked, found, connection)
            )

        self._world.timeline.after(self._world.rng.randrange(10 * MS), scan)

    def _read(self, asked: AskedQuestion, key_groups: Sequence[int]) -> Found:
        return finish(
            read(
                self.disk.reader.reader,
                asked.question,
                asked.keys,
                key_groups,
                self._world.wall_clock_us,
                _ANSWER_SIZE_BYTES_MAX,
                ReadWork(),
            )
        )

    def _finish(
        self, asked: AskedQuestion, found: Found, connection: Connection | None
    ) -> None:
        if not self.is_alive:
            return
        question = asked.question
        job_id = None if found.view is None else found.view.job_id
        admitted = self._core.admit(question, job_id, now_ns=self._now_ns)
        why: Refusal | Wait | None
        if not isinstance(admitted, ServedJob):
            why = admitted
        else:
            why = problem_of(question, found, admitted)
            if why is None and is_too_early(question, found):
                why = Wait.BATCH
        if isinstance(why, Wait) and (
            self.disk.store.state(question.state_number) != found.view
        ):
            self._ask(asked, connection)
        elif why is not None:
            self._not_now(asked, why, job_id, connection)
        else:
            assert isinstance(admitted, ServedJob)
            self._check_answer(question, found, admitted)
            now_us = self._world.wall_clock_us
            answer = answer_of(question, found, now_us)
            self._world.checker.read(
                admitted.job_id, question.state_number, answer.reading, now_us=now_us
            )
            self._send(answer, bytes(found.payload), connection)

    def _check_answer(
        self, question: Question, found: Found, admitted: ServedJob
    ) -> None:
        """Tell the books that an answer is given, at that moment."""
        key_groups = tuple(admitted.key_groups)
        if found.keys:
            key_groups = tuple(
                sorted({int.from_bytes(key[:2], "big") for key in found.keys})
            )
        assert found.view is not None
        is_copy = question.copies is not None
        self._world.counts["copies asked instead of primaries"] += is_copy
        self._world.moves.answered(
            admitted.job_id,
            self.node_id,
            self.disk,
            version=question.assignment_version,
            key_groups=key_groups,
            lost=groups_in(found.view.lost, key_groups),
            is_copy=is_copy,
        )

    def _not_now(
        self,
        asked: AskedQuestion,
        why: Refusal | Wait,
        job_id: str | None,
        connection: Connection | None,
    ) -> None:
        if isinstance(why, Refusal):
            self._send(why, b"", connection)
        else:
            self._step(QuestionDeferred(asked=asked, job_id=job_id, wait=why))

    # -- writers ---------------------------------------------------------------------

    def chunk_arrived(
        self, chunk: StageChunk, payload: bytes, reply: Callable[[Struct], None]
    ) -> None:
        """Take a chunk of a writer."""
        if not self.is_alive:
            return
        self._writer_count += 1
        writer = b"%d" % self._writer_count
        self._replies[writer] = reply
        rows = zmq.Frame(payload)
        self._step(ChunkReceived(writer=writer, chunk=chunk, rows=rows))

    # -- the machine -----------------------------------------------------------------

    @property
    def _now_ns(self) -> int:
        return self._world.timeline.now_ns

    def _step(self, event: NodeEvent) -> None:
        """Have *event* happen; what happens meanwhile, after it."""
        self._pending.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._pending:
            event = self._pending.popleft()
            effects = self._core.step(event, now_ns=self._now_ns)
            self._check_epoch(event, effects)
            for effect in effects:
                self._perform(effect)
        self._is_stepping = False
        self._world.look_at_nodes(self)
        self._arm()

    def _check_epoch(self, event: NodeEvent, effects: Sequence[NodeEffect]) -> None:
        """See to it that nothing is done that an earlier leader says (rule S2)."""
        if not isinstance(event, CommandReceived):
            return
        epoch = getattr(event.command, "leader_epoch", self._epoch_max)
        if epoch < self._epoch_max:
            self._world.checker.require(
                "S2 nodes refuse commands of earlier epochs",
                not any(isinstance(effect, _COMMANDED) for effect in effects),
                self.node_id,
                event,
                effects,
            )
        self._epoch_max = max(self._epoch_max, epoch)

    def _arm(self) -> None:
        due_ns = max(self._core.next_deadline_ns(), self._now_ns)
        if self._timer_ns is not None and self._timer_ns <= due_ns:
            return
        self._timer_ns = due_ns
        self._world.timeline.at(due_ns, partial(self._fire, due_ns))

    def _fire(self, due_ns: int) -> None:
        if self._timer_ns == due_ns and self.is_alive:
            self._timer_ns = None
            self._step(TimePassed())

    def _perform(self, effect: NodeEffect) -> None:
        match effect:
            case ConnectProxy(address=address):
                self._leave()
                self._proxy_address = address
                self._connect_soon()
            case SendToProxy(message=message):
                if self._connection is not None and self._connection.is_full_up:
                    self._step(ProxyDisconnected())  # as `queryablestate.node.loop`
                else:
                    self._send(message, b"", self._connection)
            case SendToWriter(writer=writer, message=message):
                self._replies.pop(writer)(message)
            case StageRows():
                self.write(partial(self._stage, effect))
            case ApplyEntry():
                self.write(partial(self._apply, effect))
            case ResetJobRows():
                self.write(partial(self._reset, effect))
            case HoldKeyGroups():
                self.write(partial(self._hold, effect))
            case FetchKeyGroups():
                self.copying.fetch(effect, self._step)
            case CancelFetch(job_id=job_id):
                self.copying.cancel(job_id)
            case FinishCopy():
                self.write(partial(self._finish_copy, effect))
            case CollectRows(command=command):
                self._collect(command)
            case KeepCopySecret(secret=secret):
                self.copying.secret = secret
                self._direct.keep_secret(secret)
            case EndProcess(reason=reason):
                self._world.emptied(self, reason)
            case HandleSnapshot(command=command):
                self.snapshots.handle(
                    command,
                    registration_id=self._registration_id,
                    store=self.disk.store,
                    writer=cast("StoreWriter", _Writer(self)),
                    on_report=lambda report: self._send(report, b"", self._connection),
                )
            case RaiseFences(fences=fences):
                self.write(partial(self._quietly, partial(self.disk.fence, fences)))
            case KeepJobPlan(plan=plan):
                keep_plan = partial(self.disk.store.keep_plan, plan)
                self.write(partial(self._quietly, keep_plan))
            case ForgetLeftJobs(kept=kept):
                self.write(partial(self._forget_left, kept))
            case DropFences(job_id=job_id, query_ids=query_ids):
                drop_fences = self.disk.store.drop_fences
                forget = partial(drop_fences, job_id, query_ids)
                self.write(partial(self._quietly, forget))
            case ForgetJobRows():
                raise AssertionError  # it is not asked for here
            case TellJobPlan(job_id=job_id):
                self._tell_plan(job_id)
            case BindStore(control_id=control_id):
                bind = partial(self.disk.store.bind_control, control_id)
                self.write(partial(self._quietly, bind))
            case DropOldStages(spared=spared):
                before_us = self._world.wall_clock_us - RETENTION_NS // _NS_PER_US
                drop = partial(self._drop_old, before_us, spared)
                self.write(partial(self._quietly, drop), is_routine=True)
            case CheckStages(command=command):
                self._check(command)
            case AskAgain(asked=asked):
                self._ask(asked, self._connection)
            case SwitchStore():
                raise AssertionError("there is one control plane")
            case ReportBehind(failure=failure):
                self._world.counts["nodes that could not go on"] += 1
                self._world.trace(self.node_id, "cannot go on:", failure)
            case CancelReads() | ReportRegistered() | ReportRefused() | ReportStale():
                pass  # what is read here is read in a moment
            case _:
                assert_never(effect)

    # -- the store -------------------------------------------------------------------

    def _drop_old(self, before_us: int, spared: Sequence[str]) -> None:
        self.snapshots.drop_old(self.disk.store, spared)
        self.disk.store.drop_stages_older_than(before_us, spared)

    def _forget_left(self, kept: Sequence[str]) -> Callable[[], None]:
        job_ids = self.disk.forget_left(kept)
        return partial(self._step, LeftJobsForgotten(job_ids=job_ids))

    @property
    def is_writing(self) -> bool:
        """Return whether the store has something to do, but for what is routine."""
        return any(not is_routine for _, is_routine in self._tasks)

    def write(
        self, task: Callable[[], Callable[[], None]], *, is_routine: bool = False
    ) -> None:
        """
        Have the writer's thread do *task*, and tell what it returns in the loop.

        What is routine comes again and again: of five nodes one is at it as a rule.
        """
        self._tasks.append((task, is_routine))
        if not self._is_writing:
            self._write_next()

    def _write_next(self) -> None:
        self._is_writing = bool(self._tasks)
        if self._tasks:
            delay_ns = self._world.store_delay_ns(self.slowness)
            self._world.timeline.after(delay_ns, self._written)

    def _written(self) -> None:
        if not self.is_alive:
            return
        interruption = self.disk.interruption
        if self._world.kills_within_write():
            interruption.kill_at(self._world.interruption_step())
        try:
            task, _ = self._tasks.popleft()
            tell = task()
        except KilledError:
            interruption.disarm()
            self._world.killed_within_write(self)
            return
        struck = interruption.disarm()
        self._world.counts["fault: disk failed within a write"] += struck
        # The loop hears of it a moment later; a process may die in between.
        self._loop.post(tell)
        self._write_next()

    def _sweep_later(self) -> None:
        """Remove rows that have expired, some at a time, as long as it runs."""
        self._world.timeline.after(self._world.sweep_delay_ns(), self._sweep)

    def _sweep(self) -> None:
        if self.is_alive and not self._world.is_over:
            sweep = partial(
                self.disk.store.sweep_expired, self._world.wall_clock_us, _SWEEP_COUNT
            )
            self.write(partial(self._quietly, sweep), is_routine=True)
            self._sweep_later()

    def _may_fail(self) -> None:
        """Have the disk fail in the middle of what follows, now and then."""
        if self._world.fails_within_write():
            self.disk.interruption.fail_at(self._world.interruption_step())

    def _may_fail_to_begin(self) -> None:
        """Likewise where a node begins with something else, in some runs."""
        if self._world.scenario.puts_back:
            self._may_fail()

    def _stage(self, effect: StageRows) -> Callable[[], None]:
        chunk, payload = effect.chunk, effect.rows.buffer
        message: Struct = ChunkStaged(request_id=chunk.request_id)
        try:
            check_chunk(chunk, decode_rows(payload))
            self._may_fail()
            self.disk.stage(chunk, payload, now_us=self._world.wall_clock_us)
        except NameServiceError as error:
            message = chunk_refused(error, chunk.request_id)

        def tell() -> None:
            self._replies.pop(effect.writer)(message)
            self._step(ChunkFinished(writer=effect.writer, size_bytes=len(payload)))

        return tell

    def _apply(self, effect: ApplyEntry) -> Callable[[], None]:
        job_id, entry = effect.job_id, effect.entry
        failure, reason, holding = None, "", None
        try:
            self._may_fail()
            self.disk.apply(job_id, entry)
            if found_by(entry):
                holding = self.disk.store.holding(job_id)
        except NameServiceError as error:
            failure, reason = str(error), reason_of(error)
        if failure is None and isinstance(entry, SnapshotMarked):
            self.snapshots.marked(self.disk.store, job_id, entry)
        if failure is None and isinstance(entry, SnapshotRestored):
            self._world.snapshots.applied(self.disk, job_id, entry)
        event = EntryFinished(
            job_id=job_id,
            entry=entry,
            failure=failure,
            digest=entry_digest(entry) if failure is None else b"",
            reason=reason,
            holding=holding,
        )
        self.copying.advance()
        return partial(self._step, event)

    def _hold(self, effect: HoldKeyGroups) -> Callable[[], None]:
        if effect.joining:
            self._world.back_up_now(self.disk)
        try:
            self._may_fail_to_begin()
            held = self.disk.hold(effect)
        except NameServiceError as error:
            failed = KeyGroupsHeld(
                job_id=effect.job_id,
                assignment_version=effect.assignment_version,
                copied=(),
                missing=(),
                sequence_min=0,
                failure=str(error),
            )
            return partial(self._step, failed)
        if effect.joining:
            self._world.back_up_now(self.disk)
        event = KeyGroupsHeld(
            job_id=effect.job_id,
            assignment_version=effect.assignment_version,
            copied=held.copied,
            missing=held.missing,
            sequence_min=held.sequence_min,
        )
        self._world.trace(self.node_id, "holds", effect, held)
        return self._remove_unheld(event)

    def _remove_unheld(self, event: KeyGroupsHeld) -> Callable[[], None]:
        try:
            is_done = self.disk.store.remove_unheld(event.job_id)
        except NameServiceError as error:
            return partial(self._step, evolve(event, failure=str(error)))
        if not is_done:
            self._world.counts["removals of rows"] += 1
            self.write(partial(self._remove_unheld, event))
            return _do_nothing
        holding = self.disk.store.holding(event.job_id)
        return partial(self._step, evolve(event, holding=holding))

    def _finish_copy(self, effect: FinishCopy) -> Callable[[], None]:
        key_groups: tuple[int, ...] | None = None
        failure = None
        try:
            self._may_fail()
            key_groups = self.disk.store.finish_copy(
                effect.job_id, effect.key_groups, effect.sequence
            )
        except NameServiceError as error:
            failure = str(error)
        if failure is None and key_groups is None:
            self._world.counts["kept entries replayed"] += 1
            self.write(partial(self._finish_copy, effect))
            return _do_nothing
        self._world.counts["copies finished"] += failure is None
        self._world.trace(self.node_id, "finished", effect, key_groups, failure)
        event = CopyFinished(
            job_id=effect.job_id,
            fetch_id=effect.fetch_id,
            key_groups=key_groups or (),
            failure=failure,
            holding=self.disk.store.holding(effect.job_id),
        )
        return partial(self._step, event)

    def _collect(self, command: CollectStages) -> None:
        """Fetch staged rows from others, and tell the proxy."""

        def tell(counts: tuple[int, ...], missing: tuple[bytes, ...]) -> None:
            self._world.counts["collections"] += 1
            message = StagesCollected(
                registration_id=self._registration_id,
                verify_id=command.verify_id,
                chunk_counts=counts,
                missing=missing,
            )
            self._send(message, b"", self._connection)

        self._world.moves.collects(command)
        self.copying.collect(command, tell)

    def _reset(self, effect: ResetJobRows) -> Callable[[], None]:
        self._world.counts["jobs begun anew"] += 1
        self._world.moves.begun_anew(self.node_id, self.disk, effect)
        holding, failure = None, None
        try:
            self._may_fail_to_begin()
            holding = self.disk.reset(effect, self._world.checker.job(effect.job_id))
        except NameServiceError as error:
            failure = str(error)
        event = ResetFinished(job_id=effect.job_id, failure=failure, holding=holding)
        return partial(self._step, event)

    def _tell_plan(self, job_id: str) -> None:
        """Tell what is kept of a job, when all is written that was to be."""

        def tell() -> Callable[[], None]:
            told = self.disk.store.told_plan(job_id)
            message = PlanTold(
                registration_id=self._registration_id,
                job_id=job_id,
                sequence=0 if told is None else told.sequence,
                plan=None if told is None else told.plan,
                entries=() if told is None else told.entries,
            )
            return partial(self._send, message, b"", self._connection)

        self.write(tell)

    def _quietly(self, action: Callable[[], object]) -> Callable[[], None]:
        """Do what the writing thread of a node tells only its log of, if it fails."""
        try:
            action()
        except StorageError:
            self._world.counts["fault: nothing but the log hears of it"] += 1
        return lambda: None

    def _check(self, command: VerifyStages) -> None:
        """Tell which stages are not complete: now, or when the scanner has time."""

        def check() -> None:
            if not self.is_alive:
                return
            since_us = self._world.wall_clock_us - RETENTION_NS // 2_000
            try:
                missing = self.disk.store.missing_stages(
                    command.job_id,
                    command.writer_epoch,
                    command.batch_id,
                    command.stages,
                    received_since_us=since_us,
                )
            except StorageError:
                return
            message = StagesVerified(
                registration_id=self._registration_id,
                verify_id=command.verify_id,
                missing=tuple(missing),
            )
            self._send(message, b"", self._connection)

        if self._world.rng.random() < 0.5:
            check()
        else:
            self._world.timeline.after(self._world.store_delay_ns(), check)
