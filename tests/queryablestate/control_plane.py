"""A control plane over a leader store in a dict, and what a small cluster asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

from attrs import define, field

from election import Delete, Put
from queryablestate.control.core import ControlCore
from queryablestate.control.effects import (
    AnswerWriter,
    ControlEffect,
    RefuseWriter,
    SendToNode,
    WriteStore,
)
from queryablestate.control.events import (
    ControlEvent,
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.large_writes import COMMIT_LIMITS, CommitLimits
from queryablestate.control.membership import return_grace_ns
from queryablestate.control.stored_control import stored_control
from queryablestate.control.tally import Tally
from queryablestate.control.view import ControlView
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.schema_json import schema_json
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DrawTicket,
    DropState,
    RunBound,
    StateDeclaration,
    TicketDrawn,
)
from queryablestate.wire.job_plan import JobHolding
from queryablestate.wire.node_messages import (
    EntriesApplied,
    JobPosition,
    KeepPlan,
    NodeHeartbeat,
    RegisterNode,
    StagesVerified,
)
from queryablestate.wire.records import CountersRecord, StageRecord


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from msgspec import Struct

    from nameservice import NameServiceError
    from queryablestate.wire.adoption_messages import AdoptionRequest
    from queryablestate.wire.job_plan import JobPlan
    from queryablestate.wire.kept_rows import KeptRows
    from queryablestate.wire.node_messages import FromNode, ToNode
    from queryablestate.wire.operation_messages import (
        DrainNode,
        ForgetAwayNode,
        ForgetJob,
        RescaleJob,
    )


__all__ = [
    "APP",
    "CONTROL_ID",
    "DRIVER",
    "EPOCH",
    "GRACE_NS",
    "LINK_A",
    "LINK_B",
    "LIST",
    "LIST_WIDER",
    "OPERATOR",
    "SECOND",
    "SESSION",
    "TIMEOUT_NS",
    "VALUE",
    "WALL_US",
    "Plane",
    "applied",
    "bind",
    "commit",
    "draw",
    "drop",
    "heartbeat",
    "load",
    "node_register",
    "refusal",
    "sent",
    "stage",
    "verified",
]

T = TypeVar("T")

LINK_A: Final = LinkId(1)
LINK_B: Final = LinkId(2)
DRIVER: Final = LinkId(10)
OPERATOR: Final = LinkId(11)
EPOCH: Final = 7
CONTROL_ID: Final = "control"
SECOND: Final = 1_000_000_000
TIMEOUT_NS: Final = 10 * SECOND
GRACE_NS: Final = return_grace_ns(TIMEOUT_NS)
WALL_US: Final = 1_700_000_000_000_000
SESSION: Final = b"session"
APP: Final = "flights"

_KEY: Final = (Field("tailnum", AtomicType.STRING),)
_DELAY: Final = Field("delay", AtomicType.BIGINT)
VALUE: Final = schema_json(StateSchema(kind=StateKind.VALUE, key=_KEY, value=(_DELAY,)))
LIST: Final = schema_json(StateSchema(kind=StateKind.LIST, key=_KEY, value=(_DELAY,)))
LIST_WIDER: Final = schema_json(
    StateSchema(
        kind=StateKind.LIST, key=_KEY, value=(_DELAY, Field("s", AtomicType.STRING))
    )
)


def draw(
    *,
    states: dict[str, str] | None = None,
    job_id: str = APP,
    request_id: int = 1,
    max_parallelism: int = 4,
) -> DrawTicket:
    """Return a request for a ticket."""
    return DrawTicket(
        request_id=request_id,
        session=SESSION,
        job_id=job_id,
        max_parallelism=max_parallelism,
        states=_declarations(states),
    )


def bind(
    ticket: int,
    *,
    query_id: str = "query",
    run_id: str = "run-1",
    states: dict[str, str] | None = None,
    on_new_query: str = "refuse",
    job_id: str = APP,
    born_epoch: int | None = 0,
) -> BindRun:
    """Return a run's showing of a ticket; the first one, unless it was born before."""
    return BindRun(
        request_id=2,
        session=SESSION,
        job_id=job_id,
        ticket=ticket,
        query_id=query_id,
        run_id=run_id,
        states=_declarations(states),
        on_new_query=on_new_query,
        born_epoch=ticket if born_epoch == 0 else born_epoch,
    )


def _declarations(states: dict[str, str] | None) -> tuple[StateDeclaration, ...]:
    states = {"aircraft": VALUE} if states is None else states
    return tuple(
        StateDeclaration(state_name=name, schema=schema)
        for name, schema in states.items()
    )


def stage(number: int, **chunk_counts: int) -> StageRecord:
    """Return what an execution of a task has staged, by node."""
    return StageRecord(
        stage_id=number.to_bytes(16, "big"),
        chunk_counts=chunk_counts,
        row_count=sum(chunk_counts.values()),
    )


def commit(
    writer_epoch: int,
    batch_id: int | None,
    *stages: StageRecord,
    query_id: str = "query",
    run_id: str = "run-1",
    state_numbers: tuple[int, ...] = (1,),
    assignment_version: int = 1,
    is_complete: bool = False,
    on_new_query: str = "refuse",
    request_id: int = 3,
    timeout_ms: int = 60_000,
    job_id: str = APP,
    born_epoch: int | None = None,
    digests: tuple[bytes, ...] = (),
) -> CommitBatch:
    """Return a request to decide a batch."""
    return CommitBatch(
        request_id=request_id,
        session=SESSION,
        job_id=job_id,
        query_id=query_id,
        run_id=run_id,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        assignment_version=assignment_version,
        state_numbers=state_numbers,
        is_complete=is_complete,
        on_new_query=on_new_query,
        stages=stages,
        timeout_ms=timeout_ms,
        born_epoch=born_epoch,
        digests=digests,
    )


def drop(state_name: str = "aircraft", job_id: str = APP) -> DropState:
    """Return an operator's request to forget a state."""
    return DropState(
        request_id=4, session=SESSION, job_id=job_id, state_name=state_name
    )


KNOWS_ALL: Final = JobHolding(job_id=APP, version=1_000_000)
"""What a node holds that has completed all its copies."""


def node_register(
    node_id: str,
    *,
    store_id: str | None = None,
    registration_id: str | None = None,
    positions: dict[str, int] | None = None,
    control_id: str | None = CONTROL_ID,
    kept: tuple[KeptRows, ...] = (),
    holding: JobHolding | None = None,
) -> RegisterNode:
    """Return a node's registration."""
    return RegisterNode(
        token=None,
        node_id=node_id,
        store_id=f"disk-of-{node_id}" if store_id is None else store_id,
        registration_id=f"process-{node_id}"
        if registration_id is None
        else registration_id,
        address=f"tcp://{node_id}:1",
        positions=tuple(
            JobPosition(job_id=job_id, sequence=sequence)
            for job_id, sequence in (positions or {}).items()
        ),
        control_id=control_id,
        kept=kept,
        holdings=() if holding is None else (holding,),
    )


def heartbeat(node_id: str, number: int) -> NodeHeartbeat:
    """Return a heartbeat of a node."""
    return NodeHeartbeat(registration_id=f"process-{node_id}", number=number)


def verified(node_id: str, verify_id: int, *missing: StageRecord) -> StagesVerified:
    """Return what a node says of stages."""
    return StagesVerified(
        registration_id=f"process-{node_id}",
        verify_id=verify_id,
        missing=tuple(one.stage_id for one in missing),
    )


def applied(
    node_id: str,
    sequence: int,
    *,
    failure: str | None = None,
    lacks_rows: bool = False,
    job_id: str = APP,
) -> EntriesApplied:
    """Return how far a node is."""
    return EntriesApplied(
        registration_id=f"process-{node_id}",
        job_id=job_id,
        sequence=sequence,
        failure=failure,
        lacks_rows=lacks_rows,
    )


def load(
    store: dict[str, bytes],
    *,
    epoch: int = EPOCH,
    now_ns: int = 0,
    limits: CommitLimits = COMMIT_LIMITS,
    tally: Tally | None = None,
) -> ControlCore:
    """Return the core that a new leader makes of what is stored."""
    stored = stored_control(store, limits)
    fresh = CountersRecord(
        control_id=CONTROL_ID, ticket_limit=1, state_number=0, job_number=0
    )
    return ControlCore(
        counters=stored.counters or fresh,
        jobs=stored.jobs,
        nodes=stored.nodes,
        leader_epoch=epoch,
        session_timeout_ns=TIMEOUT_NS,
        now_ns=now_ns,
        unfinished=stored.unfinished,
        commit_limits=limits,
        tally=tally,
    )


@final
@define
class Plane:
    """
    A core, the time, and a leader store that takes every write at once.

    Attributes:
        core: The core.
        now_ns: The time.
        store: What was written.
        limits: How much one commit of the store takes; for later leaders.
        plans: What each node was told to keep last, by job; it is no effect of `step`.
        tally: What was decided.
    """

    tally: Tally = field(factory=Tally)
    core: ControlCore = field()
    now_ns: int = 0
    store: dict[str, bytes] = field(factory=dict)
    limits: CommitLimits = COMMIT_LIMITS
    plans: dict[tuple[LinkId, str], JobPlan] = field(factory=dict)

    @core.default
    def _new_core(self) -> ControlCore:
        return load({}, tally=self.tally)

    @property
    def view(self) -> ControlView:
        """Return what the present core knows."""
        return self.core.view

    def step(self, event: ControlEvent) -> tuple[ControlEffect, ...]:
        """Have *event* happen, and nothing else."""
        effects = self.core.step(event, now_ns=self.now_ns)
        self.core.check_invariants()
        others = []
        for effect in effects:
            if isinstance(effect, SendToNode) and isinstance(effect.message, KeepPlan):
                plan = effect.message.plan
                self.plans[effect.link, plan.job_id] = plan
            else:
                others.append(effect)
        return tuple(others)

    def settle(self, event: ControlEvent) -> list[ControlEffect]:
        """Have *event* happen, and what is to be written be written."""
        return self.settle_rest(self.step(event))

    def settle_rest(self, begun: Iterable[ControlEffect]) -> list[ControlEffect]:
        """Write what these effects want to be written; return what else there is."""
        effects: list[ControlEffect] = []
        waiting = [*begun]
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, WriteStore):
                self.write(effect)
                waiting += self.step(StoreWritten())
            else:
                effects.append(effect)
        return effects

    def write(self, effect: WriteStore) -> None:
        """Do what the leader store is asked to."""
        for operation in effect.operations:
            match operation:
                case Put(path=path, value=value):
                    self.store[path] = value
                case Delete(path=path):
                    self.store.pop(path, None)

    def next_leader(self) -> None:
        """Go on with a core made from the store, under the next epoch."""
        self.core = load(
            self.store, epoch=EPOCH + 1, now_ns=self.now_ns, limits=self.limits
        )
        self.core.check_invariants()

    def ask(
        self,
        request: (
            DrawTicket
            | BindRun
            | CommitBatch
            | DropState
            | RescaleJob
            | DrainNode
            | ForgetJob
            | ForgetAwayNode
            | AdoptionRequest
        ),
    ) -> list[ControlEffect]:
        """Have a writer, or an operator, ask."""
        return self.settle(
            WriterAsked(link=DRIVER, request=request, wall_clock_us=WALL_US)
        )

    def hear(self, link: LinkId, message: FromNode) -> list[ControlEffect]:
        """Have a node speak."""
        return self.settle(NodeSpoke(link=link, message=message))

    def lose(self, link: LinkId) -> list[ControlEffect]:
        """Close the connection of a node that is not back in time."""
        effects = self.settle(LinksClosed(links=(link,)))
        self.now_ns += GRACE_NS
        return [*effects, *self.settle(TimePassed())]

    def start_nodes(self) -> None:
        """Register the nodes ``a`` and ``b``."""
        self.hear(LINK_A, node_register("a"))
        self.hear(LINK_B, node_register("b"))

    def start_job(self, states: dict[str, str] | None = None) -> int:
        """Start both nodes, draw a ticket and bind the first run; return its epoch."""
        self.start_nodes()
        ticket = self.draw(states=states)
        return self.bind(ticket, states=states)

    def draw(self, *, states: dict[str, str] | None = None, job_id: str = APP) -> int:
        """Draw a ticket."""
        return told(TicketDrawn, self.ask(draw(states=states, job_id=job_id))).ticket

    def bind(
        self,
        ticket: int,
        *,
        query_id: str = "query",
        run_id: str = "run-1",
        states: dict[str, str] | None = None,
        on_new_query: str = "refuse",
        job_id: str = APP,
        born_epoch: int | None = 0,
    ) -> int:
        """Bind a run; return its writer epoch."""
        request = bind(
            ticket,
            query_id=query_id,
            run_id=run_id,
            states=states,
            on_new_query=on_new_query,
            job_id=job_id,
            born_epoch=born_epoch,
        )
        return told(RunBound, self.ask(request)).run.writer_epoch

    def new_run(self, run_id: str, *, query_id: str = "query") -> int:
        """Draw a ticket for a run and bind it; return its writer epoch."""
        return self.bind(
            self.draw(), run_id=run_id, query_id=query_id, on_new_query="continue"
        )

    def decide(self, request: CommitBatch) -> list[ControlEffect]:
        """Commit a batch without chunks, and have both nodes apply it."""
        effects = self.ask(request)
        for effect in tuple(effects):
            if isinstance(effect, SendToNode):
                name = {LINK_A: "a", LINK_B: "b"}[effect.link]
                entries = effect.message.entries  # type: ignore[union-attr]  # it is one
                effects += self.hear(effect.link, applied(name, entries[-1].sequence))
        return [e for e in effects if not isinstance(e, SendToNode)]


def told(expected: type[T], effects: Iterable[ControlEffect]) -> T:
    """Return the one answer to a writer, which is of that type."""
    (message,) = [e.message for e in effects if isinstance(e, AnswerWriter)]
    assert isinstance(message, expected)
    return message


def refusal(effects: Iterable[ControlEffect]) -> NameServiceError:
    """Return the one error that a writer is refused with."""
    (error,) = [e.error for e in effects if isinstance(e, RefuseWriter)]
    return error


def sent(effects: Iterable[ControlEffect], link: LinkId) -> Sequence[ToNode | Struct]:
    """Return what a node is told."""
    return [e.message for e in effects if isinstance(e, SendToNode) and e.link == link]
