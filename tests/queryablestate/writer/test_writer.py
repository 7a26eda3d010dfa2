"""`StateWriter` over a real socket, against a proxy that answers as a test wants it."""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from haservices import open_ha_services
from nameservice import ConfigurationError, LocalProtocolError, RemoteProtocolError
from queryablestate import (
    CheckpointRewoundError,
    CommitTimeoutError,
    StaleWriterError,
    StateUnavailableError,
    UnknownStateError,
)
from queryablestate.client.calls import ProxyConnection
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.schema.schema_json import parse_schema
from queryablestate.wire.batch_digest import digest_of
from queryablestate.wire.clients import (
    BatchCommitted,
    BindRun,
    BoundRun,
    BoundState,
    CommitBatch,
    DrawTicket,
    JobsListed,
    NodeAddress,
    RunBound,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.records import StageRecord
from queryablestate.writer.batches import StageMessage, WriteOrigin, WriteRun
from queryablestate.writer.sending import NO_PART
from queryablestate.writer.writer import StateWriter
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy, error_frame


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 20.0
SCHEMA = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(Field("flights", AtomicType.BIGINT),),
)
AT = "tcp://127.0.0.1:1"


def drawn(request: DrawTicket, *addresses: str | None) -> TicketDrawn:
    """Return a ticket for nodes at *addresses*, which share the key groups."""
    count = len(addresses)
    return TicketDrawn(
        request_id=request.request_id,
        ticket=5,
        assignment_version=2,
        nodes=tuple(
            NodeAddress(node_id=f"n{index}", address=address)
            for index, address in enumerate(addresses)
        ),
        owners=tuple((group % count,) for group in range(request.max_parallelism)),
        run=None if request.run is None else bound_run(request.states),
    )


def bound_run(states: Sequence[StateDeclaration]) -> BoundRun:
    """Return a run that writes *states*."""
    return BoundRun(
        writer_epoch=5,
        states=tuple(
            BoundState(state_name=one.state_name, state_number=number)
            for number, one in enumerate(states, start=7)
        ),
        batch_id=3,
    )


def as_wanted(message: msgspec.Struct, _: bytes) -> Reply:
    """Answer as a proxy that has seen nothing."""
    match message:
        case DrawTicket():
            return drawn(message, AT, AT)
        case BindRun():
            return RunBound(
                request_id=message.request_id, run=bound_run(message.states)
            )
        case CommitBatch(batch_id=batch_id):
            return BatchCommitted(
                request_id=message.request_id,
                batch_id=4 if batch_id is None else batch_id,
                is_repeated=False,
            )
        case _:
            return None


@pytest.fixture
def proxy() -> Iterator[ScriptedProxy]:
    """Yield a proxy that answers `as_wanted`."""
    with ScriptedProxy(as_wanted) as held:
        yield held


@pytest.fixture
def writer(proxy: ScriptedProxy) -> Iterator[StateWriter]:
    """Yield a writer that finds that proxy."""
    with (
        open_ha_services("embedded:") as ha,
        Lead(ha, proxy.address),
        ProxyConnection(ha) as connection,
    ):
        yield StateWriter(connection)


def bound(writer: StateWriter, run_id: str | None = None) -> WriteRun:
    """Return a run that may write; this process has not had it, unless it is named."""
    return writer.begin(
        "flights",
        {"aircraft": SCHEMA, "delays": SCHEMA},
        query_id="query",
        run_id=str(uuid.uuid4()) if run_id is None else run_id,
        max_parallelism=4,
        on_new_query="continue",
        timeout_seconds=TIMEOUT_SECONDS,
    )


def bound_by_a_task(writer: StateWriter) -> WriteRun:
    """Return a run that may write, of a batch that was planned without it."""
    plan = writer.plan(
        "flights",
        {"aircraft": SCHEMA, "delays": SCHEMA},
        max_parallelism=4,
        on_new_query="continue",
        timeout_seconds=TIMEOUT_SECONDS,
    )
    return writer.bind(
        plan,
        query_id="query",
        run_id=str(uuid.uuid4()),
        is_for_now=True,
        timeout_seconds=TIMEOUT_SECONDS,
    )


def schema_count(request: msgspec.Struct) -> int:
    """Return how many schemas a request carries."""
    assert isinstance(request, DrawTicket | BindRun)
    return sum(state.schema is not None for state in request.states)


def message(origin: WriteOrigin, batch_id: int, number: int = 1) -> StageMessage:
    """Return what a task has staged."""
    stage = StageRecord(
        stage_id=bytes([number]) * 16, chunk_counts={"n0": 1}, row_count=3
    )
    return StageMessage(origin=origin, batch_id=batch_id, stage=stage)


def answering(
    proxy: ScriptedProxy, request_type: type[msgspec.Struct], *data: object
) -> None:
    """Have the proxy refuse requests of a type with a code and its data."""
    code, *rest = data

    def handle(request: msgspec.Struct, payload: bytes) -> Reply:
        if isinstance(request, request_type):
            return error_frame(str(code), request.request_id, *rest)  # type: ignore[attr-defined]  # every request has one
        return as_wanted(request, payload)

    proxy.handle = handle


class TestPlanAndBind:
    @pytest.mark.proves("W1")
    def test_a_batch_is_pinned_to_an_assignment(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """A task is told where rows go, under which epoch and number (W1)."""
        run_id = str(uuid.uuid4())
        run = bound(writer, run_id)
        assert run.plan.key_groups_of(1) == (1, 3)
        assert run.plan.proxy_address == proxy.address
        assert run.origin == WriteOrigin(
            job_id="flights",
            query_id="query",
            run_id=run_id,
            writer_epoch=5,
            assignment_version=2,
            state_numbers=(7, 8),
            on_new_query="continue",
        )
        assert pickle.loads(pickle.dumps(run)) == run
        _, birth, draw = proxy.requests.items
        assert isinstance(birth, DrawTicket)
        assert (birth.states, birth.run) == ((), None)
        assert isinstance(draw, DrawTicket)
        assert draw.run == WriterRun(
            query_id="query", run_id=run_id, on_new_query="continue", born_epoch=5
        )
        assert [one.state_name for one in draw.states] == ["aircraft", "delays"]
        assert draw.states[0].schema is not None
        assert parse_schema(draw.states[0].schema) == SCHEMA

    @pytest.mark.proves("B3")
    def test_tasks_that_no_commit_could_name_are_refused_beforehand(
        self, writer: StateWriter
    ) -> None:
        """B3: by their number and the limit; what is not refused does fit."""
        run = bound(writer, str(uuid.uuid4()))
        writer.check_task_count(run, 1_000)
        with pytest.raises(ConfigurationError, match="frame_size_bytes_max") as refused:
            writer.check_task_count(run, 1_000_000)
        text = str(refused.value)
        assert "1,000,000 tasks on 2 nodes" in text
        assert "takes 1,000,000:" in text  # as the scripted proxy says
        found = re.search(r"at most ([\d,]+) tasks", text)
        assert found is not None
        most = int(found[1].replace(",", ""))
        writer.check_task_count(run, most)
        with pytest.raises(ConfigurationError):
            writer.check_task_count(run, most + 1)
        stages = [
            StageMessage(
                origin=run.origin,
                batch_id=0,
                stage=StageRecord(
                    stage_id=number.to_bytes(16, "big"),
                    chunk_counts={node.node_id: 255 for node in run.plan.nodes},
                    row_count=1 << 31,
                ),
                digests=(bytes(32),) * 2,
            )
            for number in range(most)
        ]
        answered = writer.commit(
            run.origin, 0, stages, is_complete=False, timeout_seconds=TIMEOUT_SECONDS
        )
        assert answered.batch_id == 0

    def test_a_batch_costs_one_message_and_a_run_one_schema(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """Before its tasks start; the first batch also draws the epoch of the run."""
        run_id = str(uuid.uuid4())
        bound(writer, run_id)
        costs = []
        for _ in range(3):
            before = len(proxy.requests.items)
            bound(writer, run_id)
            costs.append([schema_count(one) for one in proxy.requests.items[before:]])
        assert costs == [[0], [0], [0]]
        _, birth, first, *_ = proxy.requests.items
        assert (schema_count(birth), schema_count(first)) == (0, 2)

    def test_what_a_leader_does_not_know_is_declared_anew(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """In the middle of a run: schemas, and an epoch that it has given out."""
        run_id = str(uuid.uuid4())
        bound(writer, run_id)

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket) and request.run is not None:
                is_known = request.run.born_epoch == 2
                if not (is_known and schema_count(request)):
                    return error_frame(
                        "declaration-wanted", request.request_id, "flights", "much"
                    )
            if isinstance(request, DrawTicket):
                return replace(drawn(request, AT), ticket=2)  # its tickets begin anew
            return as_wanted(request, payload)

        proxy.handle = handle
        before = len(proxy.requests.items)
        bound(writer, run_id)
        asked = proxy.requests.items[before:]
        assert [schema_count(one) for one in asked] == [0, 0, 2]
        proxy.handle = as_wanted
        before = len(proxy.requests.items)
        bound(writer, run_id)
        (request,) = proxy.requests.items[before:]
        assert isinstance(request, DrawTicket)
        assert request.run is not None
        assert (schema_count(request), request.run.born_epoch) == (0, 2)

    def test_other_columns_are_declared_at_once(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """A run that has declared something else knows that it is not known."""
        run_id = str(uuid.uuid4())
        bound(writer, run_id)
        writer.begin(
            "flights",
            {"aircraft": SCHEMA},
            query_id="query",
            run_id=run_id,
            max_parallelism=4,
            on_new_query="continue",
            timeout_seconds=TIMEOUT_SECONDS,
        )
        assert schema_count(proxy.requests.items[-1]) == 1

    @pytest.mark.proves("W1")
    def test_a_task_shows_a_ticket_that_was_drawn_without_it(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """W1: who plans does not know the run; schemas travel for a new state only."""
        run = bound_by_a_task(writer)
        assert (run.origin.writer_epoch, run.origin.state_numbers) == (5, (7, 8))
        _, draw, bind = proxy.requests.items
        assert [schema_count(draw), schema_count(bind)] == [0, 0]
        assert isinstance(bind, BindRun)
        assert (bind.ticket, bind.born_epoch) == (5, None)

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, BindRun) and not schema_count(request):
                return error_frame(
                    "declaration-wanted", request.request_id, "flights", "a schema"
                )
            return as_wanted(request, payload)

        proxy.handle = handle
        before = len(proxy.requests.items)
        bound_by_a_task(writer)
        asked = proxy.requests.items[before:]
        assert [schema_count(one) for one in asked] == [0, 0, 2]

    @pytest.mark.proves("W4")
    def test_what_is_decided_need_not_be_staged(self, writer: StateWriter) -> None:
        """Batch 3 is the last one: 4 is new, and what a batch job writes (W4)."""
        run = bound(writer)
        assert [run.is_decided(number) for number in (2, 3, 4)] == [True, True, False]
        assert run.batch_id_next == 4
        fresh = WriteRun(plan=run.plan, origin=run.origin, batch_id_last=None)
        assert not fresh.is_decided(0)
        assert fresh.batch_id_next == 0

    def test_a_node_that_is_away_is_waited_for(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """The batch is planned as soon as every owner can be reached."""
        draws: list[DrawTicket] = []

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket) and request.run is not None:
                draws.append(request)
                return drawn(request, AT, None if len(draws) < 3 else AT)
            return as_wanted(request, payload)

        proxy.handle = handle
        run = bound(writer)
        assert len(draws) == 3
        assert all(node.address is not None for node in run.plan.nodes)

    @pytest.mark.parametrize("waits_for_nodes", [True, False])
    def test_a_node_that_stays_away_is_told(
        self, writer: StateWriter, proxy: ScriptedProxy, waits_for_nodes: bool
    ) -> None:
        """With its key groups, in bounded time; or at once, to who does not wait."""

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket):
                return drawn(request, AT, None)
            return as_wanted(request, payload)

        proxy.handle = handle

        def plan() -> tuple[str | None, ...]:
            found = writer.plan(
                "flights",
                {"aircraft": SCHEMA},
                max_parallelism=4,
                on_new_query="refuse",
                waits_for_nodes=waits_for_nodes,
                timeout_seconds=1.0,
            )
            return tuple(node.address for node in found.nodes)

        if waits_for_nodes:
            with pytest.raises(StateUnavailableError) as caught:
                plan()
            assert caught.value.key_groups == (1, 3)
        else:
            assert plan() == (AT, None)

    def test_a_node_that_stays_away_is_told_by_a_proxy_that_falls_silent(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """Why the batch was not begun at first says more than that time is up."""

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket):
                proxy.is_silent = True
                return drawn(request, AT, None)
            return as_wanted(request, payload)

        proxy.handle = handle
        with pytest.raises(StateUnavailableError, match="start them again"):
            writer.plan(
                "flights",
                {"aircraft": SCHEMA},
                max_parallelism=4,
                on_new_query="refuse",
                timeout_seconds=4.0,
            )

    def test_a_node_whose_rows_others_get_is_not_waited_for(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """S4: who stages gives it up if it stays away; the batch goes on."""

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket):
                return replace(
                    drawn(request, AT, None), owners=((0, 1), (1, 0), (0,), (0, 1))
                )
            return as_wanted(request, payload)

        proxy.handle = handle
        assert bound(writer).plan.nodes[1].address is None

    @pytest.mark.proves("W1")
    def test_a_zombie_is_told(self, writer: StateWriter, proxy: ScriptedProxy) -> None:
        """A run that is not the newest cannot even bind (W1)."""
        answering(proxy, BindRun, "stale-writer", "query", 5, 9)
        with pytest.raises(StaleWriterError):
            bound_by_a_task(writer)
        answering(proxy, DrawTicket, "stale-writer", "query", 5, 9)
        with pytest.raises(StaleWriterError):
            bound(writer)

    def test_an_answer_of_another_kind_is_refused(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """A proxy of another version, or one that lies."""
        proxy.handle = lambda request, _: JobsListed(
            request_id=request.request_id,  # type: ignore[attr-defined]  # every request has one
            job_ids=(),
        )
        with pytest.raises(RemoteProtocolError, match="JobsListed, not TicketDrawn"):
            bound(writer)

    def test_a_run_that_is_not_bound_is_no_answer(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """Nothing is staged under an epoch that was never told."""

        def handle(request: msgspec.Struct, payload: bytes) -> Reply:
            if isinstance(request, DrawTicket):
                return replace(drawn(request, AT), run=None)
            return as_wanted(request, payload)

        proxy.handle = handle
        with pytest.raises(RemoteProtocolError, match="bound no run"):
            bound(writer)


class TestCommit:
    @pytest.mark.proves("W3")
    def test_it_names_the_stages_that_won(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """In the order of the partitions, with all that the decision needs (W3)."""
        origin = bound(writer).origin
        staged = [message(origin, 4, number) for number in (2, 1)]
        answer = writer.commit(
            origin, 4, staged, is_complete=True, timeout_seconds=TIMEOUT_SECONDS
        )
        assert (answer.batch_id, answer.is_repeated) == (4, False)
        request = proxy.requests.items[-1]
        assert isinstance(request, CommitBatch)
        assert [stage.stage_id[:1] for stage in request.stages] == [b"\2", b"\1"]
        assert (request.query_id, request.run_id) == ("query", origin.run_id)
        assert (request.writer_epoch, request.assignment_version) == (5, 2)
        assert (request.batch_id, request.state_numbers) == (4, (7, 8))
        assert request.is_complete
        assert 0 < request.timeout_ms <= TIMEOUT_SECONDS * 1_000

    @pytest.mark.proves("W4")
    def test_it_says_what_the_rows_add_up_to(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """Of tasks without rows, too; unless one does not tell, or none may differ."""
        origin = bound(writer).origin
        one, two = (
            msgspec.structs.replace(
                message(origin, 4, number),
                digests=(digest_of("a", number), digest_of("b", 10 * number)),
            )
            for number in (1, 2)
        )
        whole = (digest_of("a", 3), digest_of("b", 30))
        mute = message(origin, 4, 3)
        for messages, is_digested, digests in (
            ([one, two], True, whole),
            ([one, two], False, ()),
            ([one, mute], True, ()),
            ([], True, ()),
        ):
            writer.commit(
                origin,
                4,
                messages,
                is_complete=False,
                is_digested=is_digested,
                timeout_seconds=TIMEOUT_SECONDS,
            )
            request = proxy.requests.items[-1]
            assert isinstance(request, CommitBatch)
            assert request.digests == digests

    def test_a_batch_job_has_no_batch_id(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """The proxy numbers it; its stages are under the next number."""
        origin = bound(writer).origin
        answer = writer.commit(
            origin,
            None,
            [message(origin, 4)],
            is_complete=False,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        assert answer.batch_id == 4
        request = proxy.requests.items[-1]
        assert isinstance(request, CommitBatch)
        assert request.batch_id is None

    @pytest.mark.parametrize(
        "other",
        [
            lambda origin: message(origin, 5),
            lambda origin: message(
                msgspec.structs.replace(origin, run_id="another"), 4
            ),
            lambda origin: message(
                msgspec.structs.replace(origin, assignment_version=1), 4
            ),
        ],
    )
    def test_stages_of_others_are_not_committed(
        self, writer: StateWriter, other: Callable[[WriteOrigin], StageMessage]
    ) -> None:
        """A message of another run, batch or assignment is a mistake of ours."""
        origin = bound(writer).origin
        with pytest.raises(LocalProtocolError, match="cannot be committed"):
            writer.commit(
                origin,
                4,
                [message(origin, 4), other(origin)],
                is_complete=False,
                timeout_seconds=TIMEOUT_SECONDS,
            )

    @pytest.mark.proves("W1", "W5")
    @pytest.mark.parametrize(
        ("changed", "error"),
        [
            ({"state_numbers": (7, 9)}, UnknownStateError),
            ({"writer_epoch": 9}, StaleWriterError),
        ],
    )
    def test_what_changes_while_tasks_bind_is_told(
        self,
        writer: StateWriter,
        changed: dict[str, object],
        error: type[Exception],
    ) -> None:
        """A state is dropped (W5), or a newer run is bound (W1), between two tasks."""
        origin = bound_by_a_task(writer).origin
        other = message(msgspec.structs.replace(origin, **changed), 4)
        with pytest.raises(error):
            writer.commit(
                origin,
                4,
                [message(origin, 4), other],
                is_complete=False,
                timeout_seconds=TIMEOUT_SECONDS,
            )

    @pytest.mark.proves("W4")
    def test_a_refusal_is_the_error_that_it_is(
        self, writer: StateWriter, proxy: ScriptedProxy
    ) -> None:
        """A restored older checkpoint is told as such (W4)."""
        origin = bound(writer).origin
        answering(proxy, CommitBatch, "checkpoint-rewound", "query", 2, 3)
        with pytest.raises(CheckpointRewoundError):
            writer.commit(
                origin, 2, [], is_complete=False, timeout_seconds=TIMEOUT_SECONDS
            )

    @pytest.mark.proves("W3")
    def test_silence_ends(
        self,
        writer: StateWriter,
        proxy: ScriptedProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A proxy that does not answer is a commit timeout, not a hang (W3)."""
        origin = bound(writer).origin
        proxy.is_silent = True
        monkeypatch.setattr("queryablestate.writer.core._ANSWER_GRACE_NS", 100_000_000)
        with pytest.raises(CommitTimeoutError) as caught:
            writer.commit(origin, 4, [], is_complete=False, timeout_seconds=0.2)
        assert (caught.value.batch_id, caught.value.is_decided) == (4, False)


def test_a_node_is_found(writer: StateWriter, proxy: ScriptedProxy) -> None:
    """Where it is now; whether it is away, or has no key groups any more."""
    plan = bound(writer).plan

    def handle(request: msgspec.Struct, _: bytes) -> Reply:
        assert isinstance(request, DrawTicket)
        assert [one.state_name for one in request.states] == ["aircraft", "delays"]
        return drawn(request, "tcp://127.0.0.1:2", None)

    proxy.handle = handle
    found = [
        writer.find_node(plan, node_id, timeout_seconds=TIMEOUT_SECONDS)
        for node_id in ("n0", "n1", "n2")
    ]
    assert found == ["tcp://127.0.0.1:2", None, NO_PART]
