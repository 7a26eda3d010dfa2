"""A proxy process: the shipped `ControlCore` and `ReadRouter` in a virtual shell."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, final

from msgspec.structs import replace

from nameservice import DidNotHappenError, MayHaveHappenedError, NameServiceError
from nameservice.clock import earliest
from queryablestate.control.core import ControlCore
from queryablestate.control.direct_readers import direct_lease_ns
from queryablestate.control.effects import (
    AnswerWriter,
    ControlEffect,
    ForgetNode,
    NoteAssignment,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    ControlEvent,
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.hedging import HedgeLimits
from queryablestate.proxy.access import ANONYMOUS_CALLER, open_access
from queryablestate.proxy.cache import CacheRule, ResultCache
from queryablestate.proxy.rate_limit import RateLimiter
from queryablestate.proxy.read_answers import Outgoing
from queryablestate.proxy.requests import RequestHandler
from queryablestate.proxy.router import ReadLimits, ReadRouter
from queryablestate.proxy.sessions import (
    SESSION_SIZE_BYTES,
    ProxySession,
    SessionTable,
)
from queryablestate.wire.clients import (
    BatchCommitted,
    BindRun,
    BoundRun,
    CommitBatch,
    DescribeState,
    DrawTicket,
    DropState,
    Hello,
    RunBound,
    StateDescribed,
    StateDropDone,
    TicketDrawn,
    Welcome,
    WriterRun,
)
from queryablestate.wire.node_messages import (
    EntriesApplied,
    HeartbeatAcknowledged,
    KeyGroupsCopied,
    LeaveNode,
    NodeHeartbeat,
    NodeRefused,
    RegisterNode,
    StagesCollected,
    StagesVerified,
)
from queryablestate.wire.operation_messages import DrainNode, RescaleJob
from queryablestate.wire.questions import (
    Answer,
    Ask,
    CancelQuestions,
    Question,
    Refusal,
)
from queryablestate.wire.records import CountersRecord
from queryablestate.wire.refusals import NOT_LEADER, UNKNOWN_SESSION, refusal_of
from tests.simulation.timeline import MS
from tests.state_simulation.checkers import RunBooks
from tests.state_simulation.scenario import SESSION_TIMEOUT_NS


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from msgspec import Struct

    from queryablestate.wire.clients import ClientRequest
    from tests.state_simulation.network import Connection
    from tests.state_simulation.world import World


__all__ = ["NodeMessage", "Proxy", "WriterRequest"]

WriterRequest: TypeAlias = (
    DrawTicket | BindRun | CommitBatch | DropState | RescaleJob | DrainNode
)
NodeMessage: TypeAlias = (
    RegisterNode
    | NodeHeartbeat
    | StagesVerified
    | EntriesApplied
    | StagesCollected
    | KeyGroupsCopied
    | LeaveNode
    | Answer
    | Refusal
)

_SECOND_NS: Final = 1_000 * MS
_LOAD_NS: Final = 20 * MS
_TICKET_NS: Final = 1_500 * MS
_DOUBT_NS: Final = 700 * MS
# Soon, and often: answers of copies are what is to be tried.
_HEDGING: Final = HedgeLimits(
    delay_ns_min=4 * MS, delay_ns_max=40 * MS, saved_count_max=1_000
)
_CACHE_TTL_SECONDS: Final = 5.0
_KEYS_PER_REQUEST_MAX: Final = 100
_FRAME_SIZE_BYTES_MAX: Final = 1 << 20


@final
class Proxy:
    """
    One process that contends for the lead of the proxies.

    Attributes:
        name: What the name service knows it by, and its address.
        is_alive: Whether it runs.
        is_suspended: Whether it is out of contact with the name service (E5).
        core: The control plane, while this proxy leads and has loaded it.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.is_alive = True
        self.is_suspended = False
        self.epoch = 0
        self.core: ControlCore | None = None
        self._connections: dict[LinkId, Connection] = {}
        self._replies: dict[tuple[LinkId, int], Callable[[Struct], None]] = {}
        self._asked: dict[tuple[LinkId, int], WriterRequest] = {}
        self._asked_at: dict[tuple[LinkId, int], int] = {}  # drops, by the last entry
        self._rng = Random(f"{world.seed}/{name}")
        self._sessions = SessionTable(world.scenario.session_count_max)
        self._requests = RequestHandler(open_access())
        self._timer_ns: int | None = None
        self._began_ns = 0
        self._loaded_at_ns = 0
        self._registered: set[str] = set()
        self._reach: object = None
        rules = [CacheRule(ttl_seconds=_CACHE_TTL_SECONDS)]
        self._reads = ReadRouter(
            access=open_access(),
            limiter=RateLimiter(),
            cache=ResultCache(
                rules if world.scenario.caches else [], size_bytes_max=1 << 20
            ),
            limits=ReadLimits(
                deadline_ns_default=_SECOND_NS,
                deadline_ns_max=5 * _SECOND_NS,
                pending_count_max=1_000,
                keys_per_request_max=_KEYS_PER_REQUEST_MAX,
            ),
            hedging=_HEDGING,
        )

    @property
    def leads(self) -> bool:
        """Return whether it may answer as the leader, at this moment (E4)."""
        return (
            self.is_alive
            and self.core is not None
            and not self.is_suspended
            and self._world.names.leads(self.name, self.epoch)
        )

    def is_settled(self, known: Mapping[str, str]) -> bool:
        """Return whether all nodes that are known have come, or had time to (S2)."""
        waited_ns = self._world.timeline.now_ns - self._loaded_at_ns
        missing = {node_id for node_id, store_id in known.items() if store_id}
        return waited_ns >= SESSION_TIMEOUT_NS or missing <= self._registered

    # -- leadership ------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Load what the last leader left, and go on from there."""
        self.epoch = epoch
        self._world.timeline.after(
            self._world.rng.randrange(_LOAD_NS), partial(self._load, epoch)
        )

    def stop_leading(self) -> None:
        """Answer nothing more as the leader."""
        if self.core is not None:
            self.core = None
            self._send_reads(self._reads.stop_leading(NOT_LEADER))

    def kill(self) -> None:
        """End the process."""
        self.is_alive = False
        self.core = None
        for connection in list(self._connections.values()):
            self._world.sever(connection)

    def _load(self, epoch: int) -> None:
        world = self._world
        if not self.is_alive or not world.names.leads(self.name, epoch):
            return
        stored = world.names.load()
        counters = stored.counters
        if counters is None:
            counters = CountersRecord(
                control_id="control", ticket_limit=1, state_number=0, job_number=0
            )
        self.core = ControlCore(
            counters=counters,
            jobs=stored.jobs,
            nodes=stored.nodes,
            leader_epoch=epoch,
            session_timeout_ns=SESSION_TIMEOUT_NS,
            now_ns=world.timeline.now_ns,
            copy_secret=world.rng.randbytes(16),
            limits=ControlLimits(
                replica_count=world.scenario.replica_count,
                joining_key_groups_max=world.scenario.joining_count_max,
            ),
            unfinished=stored.unfinished,
            commit_limits=world.scenario.commit_limits,
            direct_lease_ns=direct_lease_ns(SESSION_TIMEOUT_NS)
            if world.scenario.is_direct
            else 0,
        )
        world.counts["large writes taken over"] += bool(stored.unfinished.commits)
        self._reach = self.core.reach(now_ns=world.timeline.now_ns)
        self._loaded_at_ns = world.timeline.now_ns
        self._registered.clear()
        self._reads.lead(
            self.core.locations,
            leader_epoch=epoch,
            takes_for_away=self.core.takes_for_away,
        )
        world.trace(self.name, f"leads, epoch {epoch}")
        world.counts["control planes loaded"] += 1
        self._arm()

    # -- in --------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """Take note of a connection."""
        self._connections[connection.link] = connection

    def link_closed(self, link: LinkId) -> None:
        """Take note that a connection is over."""
        for key in [key for key in self._replies if key[0] == link]:
            del self._replies[key]
        if self.is_alive:
            self._send_reads(self._reads.client_left(link))
            if self.core is not None:
                self._step(LinksClosed(links=(link,)))

    def node_said(self, link: LinkId, message: NodeMessage, payload: bytes) -> None:
        """Hear a node."""
        if not self.is_alive:
            return
        world = self._world
        world.trace(self.name, "<", link, message)
        match message:
            case Answer():
                now_ns = world.timeline.now_ns
                if self.leads:
                    outgoing = self._reads.nodes.answered(
                        link, message, payload, now_ns=now_ns
                    )
                else:
                    refusal = Refusal(request_id=message.question_id, code=NOT_LEADER)
                    outgoing = self._reads.nodes.refused(link, refusal, now_ns=now_ns)
                self._send_reads(outgoing)
            case Refusal():
                now_ns = world.timeline.now_ns
                self._send_reads(
                    self._reads.nodes.refused(link, message, now_ns=now_ns)
                )
            case _:
                # As `queryablestate.proxy.loop`: nodes are heard, and none is taken in.
                is_joining = isinstance(message, RegisterNode)
                if not self.leads and (is_joining or self.core is None):
                    refused = NodeRefused(reason="not-leader", detail="look for it")
                    self._tell_node(link, refused, b"")
                    return
                if isinstance(message, RegisterNode):
                    self._registered.add(message.node_id)
                event = NodeSpoke(link=link, message=message)
                self._step(event)

    def writer_asked(
        self, link: LinkId, request: WriterRequest, reply: Callable[[Struct], None]
    ) -> None:
        """Hear a writer, or an operator."""
        if not self.is_alive:
            return
        if not self.leads:
            reply(Refusal(request_id=request.request_id, code=NOT_LEADER))
            return
        self._world.trace(self.name, "<", link, request)
        self._replies[link, request.request_id] = reply
        self._asked[link, request.request_id] = request
        if isinstance(request, DropState):
            books = self._world.checker.jobs.get(request.job_id)
            sequence = 0 if books is None else books.sequence
            self._asked_at[link, request.request_id] = sequence
        event = WriterAsked(
            link=link, request=request, wall_clock_us=self._world.wall_clock_us
        )
        self._step(event)

    def client_said(self, link: LinkId, message: ClientRequest, payload: bytes) -> None:
        """Hear a client, as `queryablestate.proxy.loop` does."""
        if not self.is_alive:
            return
        self._world.trace(self.name, "<", link, message)
        if not self.leads:
            self._tell_client(link, message)  # which says that it does not
            return
        if isinstance(message, Hello):
            self._greet(link, message)
            return
        if self._sessions.find(message.session, public_key=None) is None:
            code = UNKNOWN_SESSION
            self._tell_client(link, Refusal(request_id=message.request_id, code=code))
            return
        core, now_ns = self.core, self._world.timeline.now_ns
        assert core is not None
        if isinstance(message, Ask):
            outgoing = self._reads.ask(
                link,
                ANONYMOUS_CALLER,
                message,
                payload,
                now_ns=now_ns,
            )
            self._send_reads(outgoing)
            self._arm()
            return
        assert isinstance(message, DescribeState)
        answer: StateDescribed | Refusal
        try:
            found = self._requests.answer(
                core,
                ANONYMOUS_CALLER,
                message,
                now_ns=now_ns,
                wall_clock_us=self._world.wall_clock_us,
            )
            assert isinstance(found, StateDescribed)
            answer = found
        except NameServiceError as error:
            answer = refusal_of(error, message.request_id)
        if isinstance(answer, StateDescribed):
            self._world.checker.described(
                answer.description, now_us=self._world.wall_clock_us
            )
            if message.wants_direct and not self._world.scenario.caches:
                direct = core.view.direct_access(
                    answer.description.state_number,
                    caller=ANONYMOUS_CALLER.name,
                    public_key=None,
                    life_ns=_TICKET_NS,
                    now_ns=now_ns,
                )
                self._world.counts["tickets for direct reads"] += direct is not None
                answer = replace(answer, direct=direct)
        self._tell_client(link, answer)

    def _greet(self, link: LinkId, hello: Hello) -> None:
        """Open a session."""
        session = ProxySession(
            caller=ANONYMOUS_CALLER, public_key=None, greeting=(link, hello.request_id)
        )
        secret = self._sessions.open(self._rng.randbytes(SESSION_SIZE_BYTES), session)
        welcome = Welcome(
            request_id=hello.request_id,
            session=secret,
            leader_epoch=self.epoch,
            keys_per_request_max=_KEYS_PER_REQUEST_MAX,
            frame_size_bytes_max=_FRAME_SIZE_BYTES_MAX,
        )
        self._tell_client(link, welcome)

    # -- time ------------------------------------------------------------------------

    def _arm(self) -> None:
        times = [self._reads.next_deadline_ns()]
        if self.core is not None:
            times.append(self.core.next_deadline_ns())
        due_ns = earliest(times)
        if due_ns is None or (self._timer_ns is not None and self._timer_ns <= due_ns):
            return
        due_ns = max(due_ns, self._world.timeline.now_ns)
        self._timer_ns = due_ns
        self._world.timeline.at(due_ns, partial(self._fire, due_ns))

    def _fire(self, due_ns: int) -> None:
        if self._timer_ns != due_ns or not self.is_alive:
            return
        self._timer_ns = None
        now_ns = self._world.timeline.now_ns
        self._send_reads(self._reads.expire(now_ns=now_ns))
        if self.core is not None:
            # As `queryablestate.proxy.leadership`: a late read is nothing to the core.
            core_ns = self.core.next_deadline_ns()
            if core_ns is not None and core_ns <= now_ns:
                self._step(TimePassed())
            else:
                self._look(self.core)
        self._arm()

    # -- out -------------------------------------------------------------------------

    def _step(self, event: ControlEvent) -> None:
        core = self.core
        assert core is not None
        now_ns = self._world.timeline.now_ns
        effects = core.step(event, now_ns=now_ns)
        core.check_invariants()
        for effect in effects:
            self._perform(effect)
        self._world.look_at_nodes()
        self._look(core)
        self._arm()

    def _look(self, core: ControlCore) -> None:
        """Look at questions that wait, if what they wait for may be another."""
        if self.core is not core:
            return
        now_ns = self._world.timeline.now_ns
        reach = core.reach(now_ns=now_ns)
        if reach != self._reach:
            self._reach = reach
            self._send_reads(self._reads.look_again(now_ns=now_ns))

    def _perform(self, effect: ControlEffect) -> None:
        match effect:
            case WriteStore():
                self._write(effect)
            case AnswerWriter(link=link, message=message):
                if self.leads:
                    self._check_answer(link, message)
                self._reply(link, message.request_id, message)
            case RefuseWriter(link=link, request_id=request_id, error=error):
                self._reply(link, request_id, self._world.refusal(error, request_id))
            case SendToNode(message=HeartbeatAcknowledged()) if not self.leads:
                pass
            case SendToNode(link=link, message=message):
                if not self._tell_node(link, message, b""):
                    # What cannot be sent ends the connection: see `SendToNode`.
                    self._world.timeline.after(1, partial(self.link_closed, link))
            case ForgetNode(link=link):
                now_ns = self._world.timeline.now_ns
                self._send_reads(self._reads.nodes.node_left(link, now_ns=now_ns))
            case NoteAssignment():
                pass
            case StartOver():
                self._world.counts["control planes started over"] += 1
                self.core = None
                self._send_reads(self._reads.stop_leading(NOT_LEADER))
                self.lead(self.epoch)
            case _:
                assert_never(effect)

    def _check_answer(self, link: LinkId, message: Struct) -> None:
        """Tell the books what a writer is told, at the moment that it is said."""
        world = self._world
        match message:
            case RunBound(run=run):
                request = self._asked[link, message.request_id]
                assert isinstance(request, BindRun)
                self._check_run(request.job_id, request, run)
            case TicketDrawn(run=BoundRun() as run):
                request = self._asked[link, message.request_id]
                assert isinstance(request, DrawTicket)
                assert request.run is not None
                self._check_run(request.job_id, request.run, run)
            case BatchCommitted():
                request = self._asked[link, message.request_id]
                assert isinstance(request, CommitBatch)
                world.checker.batch_acknowledged(
                    request.job_id,
                    request.query_id,
                    message.batch_id,
                    request.state_numbers,
                    # One that is expected counts, with what it had, until it is back.
                    world.owners_of(request.job_id, world.names.store_id_heard_of),
                )
            case StateDropDone():
                request = self._asked[link, message.request_id]
                assert isinstance(request, DropState)
                world.checker.drop_acknowledged(
                    request.job_id,
                    request.state_name,
                    self._asked_at[link, message.request_id],
                )
            case _:
                pass

    def _check_run(
        self, job_id: str, asked: BindRun | WriterRun, bound: BoundRun
    ) -> None:
        books = RunBooks(
            run_id=asked.run_id,
            on_new_query=asked.on_new_query,
            is_complete=self._world.plan_of(asked.query_id).is_complete,
            is_for_now=isinstance(asked, BindRun) and asked.born_epoch is None,
        )
        self._world.checker.run_bound(job_id, asked.query_id, bound.writer_epoch, books)

    def _write(self, effect: WriteStore) -> None:
        """Have the leader store take operations, and hear of it, or not."""
        world, core, epoch = self._world, self.core, self.epoch
        if not world.names.is_within_large_write:
            self._began_ns = world.timeline.now_ns
        began_ns = self._began_ns
        rng, timeline = world.rng, world.timeline
        is_doubtful = world.fails(max(world.scenario.store_doubt, world.store_doubt))
        is_lost = is_doubtful and rng.random() < 0.5

        def finish(event: StoreWritten | StoreFailed) -> None:
            if self.is_alive and self.core is core:
                if isinstance(event, StoreWritten):
                    world.names.heard()
                self._step(event)

        def arrive() -> None:
            event: StoreWritten | StoreFailed = StoreWritten()
            if is_lost:
                event = StoreFailed(
                    error=MayHaveHappenedError("no answer"), is_certain=False
                )
            else:
                world.write_began_ns = began_ns
                try:
                    world.names.commit(effect.operations, name=self.name, epoch=epoch)
                except NameServiceError as error:
                    event = StoreFailed(error=error, is_certain=True)
                else:
                    world.store_written(self)
            if is_doubtful:
                world.counts["fault: store answers lost"] += 1
                event = StoreFailed(
                    error=MayHaveHappenedError("no answer"), is_certain=False
                )
                timeline.after(rng.randrange(_DOUBT_NS), partial(finish, event))
            else:
                timeline.after(world.leader_store_delay_ns(), partial(finish, event))

        timeline.after(world.leader_store_delay_ns(), arrive)

    def _reply(self, link: LinkId, request_id: int, message: Struct) -> None:
        if not self.leads:
            message = Refusal(request_id=request_id, code=NOT_LEADER)
        self._world.trace(self.name, ">", link, message)
        reply = self._replies.pop((link, request_id), None)
        if reply is not None:
            reply(message)

    def _tell_node(self, link: LinkId, message: Struct, payload: bytes) -> bool:
        """Send something; return whether there was room for it in the queue."""
        connection = self._connections.get(link)
        if connection is None:
            return True
        if connection.is_full:
            return False
        self._world.trace(self.name, ">", link, message)
        self._world.carry_to_node(connection, message, payload)
        return True

    def _tell_client(self, link: LinkId, message: Struct, payload: bytes = b"") -> None:
        """Answer a client; what is known while it does not lead may be of the past."""
        if not self.leads:
            message = Refusal(request_id=message.request_id, code=NOT_LEADER)  # type: ignore[attr-defined]  # all have one
            payload = b""
        self._tell_node(link, message, payload)

    def _send_reads(self, outgoing: list[Outgoing]) -> None:
        for item in outgoing:
            payload = bytes(item.payload or b"")
            if not isinstance(item.message, Question | CancelQuestions):
                self._tell_client(item.link, item.message, payload)
            elif not self._tell_node(item.link, item.message, payload):
                self._not_asked(item)

    def _not_asked(self, item: Outgoing) -> None:
        """Answer the asker of what a node could not be asked."""
        if isinstance(item.message, Question):
            error = DidNotHappenError("its node takes no more questions: ask again")
            refusal = refusal_of(error, item.message.question_id)
            now_ns = self._world.timeline.now_ns
            self._send_reads(
                self._reads.nodes.refused(item.link, refusal, now_ns=now_ns)
            )
