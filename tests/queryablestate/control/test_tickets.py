"""How writers get to where they may write (W1, W5, S2)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from election import Put
from nameservice import ConfigurationError, LocalProtocolError
from queryablestate import (
    AccessDeniedError,
    SchemaMismatchError,
    StaleWriterError,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.control.effects import (
    AnswerWriter,
    NoteAssignment,
    SendToNode,
    WriteStore,
)
from queryablestate.control.events import (
    LinksClosed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.job.leader_paths import (
    COUNTERS,
    assignment_path,
    job_path,
    progress_path,
    query_path,
    state_path,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.node.proxy_client import NODE_TO_PROXY_SOCKET_LIMITS
from queryablestate.wire.clients import (
    BoundRun,
    BoundState,
    DrawTicket,
    NodeAddress,
    RunBound,
    StateDeclaration,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.codec import encode
from queryablestate.wire.job_assignment import (
    CopySource,
    JobAssignment,
    JoiningGroup,
    WriterFence,
)
from queryablestate.wire.node_messages import (
    AssignJob,
    FenceWriters,
    NodeRegistered,
    ResetJob,
)
from queryablestate.wire.operation_messages import DrainNode
from queryablestate.wire.schema_digest import DeclarationWantedError, schema_digest
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    EPOCH,
    GRACE_NS,
    LINK_A,
    LINK_B,
    LIST,
    SESSION,
    TIMEOUT_NS,
    VALUE,
    WALL_US,
    Plane,
    bind,
    commit,
    draw,
    drop,
    heartbeat,
    node_register,
    refusal,
    sent,
    told,
)
from tests.queryablestate.moving_plane import MovingPlane, assignment


OWNERS = ((0,), (0,), (1,), (1,))
NODES = (
    NodeAddress(node_id="a", address="tcp://a:1"),
    NodeAddress(node_id="b", address="tcp://b:1"),
)


def assigned(*key_groups: int, version: int = 1, epoch: int = EPOCH) -> AssignJob:
    """Return what a node is told of its part of the job."""
    job = JobAssignment(
        job_id=APP,
        assignment_version=version,
        max_parallelism=4,
        key_groups=key_groups,
        fences=(),
    )
    return AssignJob(leader_epoch=epoch, job=job)


def drawn(ticket: int, version: int = 1) -> AnswerWriter:
    """Return the answer with a ticket."""
    message = TicketDrawn(
        request_id=1,
        ticket=ticket,
        assignment_version=version,
        nodes=NODES,
        owners=OWNERS,
    )
    return AnswerWriter(link=DRIVER, message=message)


def bound_run(writer_epoch: int = 1, *, batch_id: int | None = None) -> BoundRun:
    """Return what a run is told that writes one state."""
    return BoundRun(
        writer_epoch=writer_epoch,
        states=(BoundState(state_name="aircraft", state_number=1),),
        batch_id=batch_id,
    )


@pytest.mark.proves("B3")
def test_writers_are_told_how_large_chunks_may_be() -> None:
    """B3: by each node for itself, as it says when it registers."""
    plane = Plane()
    plane.start_nodes()
    plane.hear(LINK_A, replace(node_register("a"), chunk_size_bytes_max=65_536))
    answer = told(TicketDrawn, plane.ask(draw()))
    assert answer.nodes == (
        NodeAddress(node_id="a", address="tcp://a:1", chunk_size_bytes_max=65_536),
        NODES[1],
    )


@pytest.mark.proves("S2")
def test_who_makes_copies_is_brought_rows() -> None:
    """S2: a writer sends rows to all who have, or make, a copy."""
    moving = MovingPlane()
    moving.come("c")
    moving.assign(assignment(2, "abc", "a ab b b", joining="c - c -"))
    answer = told(TicketDrawn, moving.plane.ask(draw()))
    assert answer.assignment_version == 2
    assert [node.node_id for node in answer.nodes] == ["a", "b", "c"]
    assert answer.owners == ((0, 2), (0, 1), (1, 2), (1,))


class TestLimits:
    """What is kept for ever has a limit."""

    def test_jobs(self) -> None:
        """One more is refused, and one that is known goes on."""
        plane = Plane()
        plane.start_nodes()
        plane.core.limit(ControlLimits(job_count_max=2))
        plane.bind(plane.draw(job_id="one"), job_id="one")
        plane.bind(plane.draw(job_id="two"), job_id="two")
        error = refusal(plane.ask(draw(job_id="three")))
        assert isinstance(error, ConfigurationError)
        assert "job_count_max" in str(error)
        plane.draw(job_id="one")
        plane.core.limit(ControlLimits(job_count_max=3))
        plane.draw(job_id="three")

    def test_states(self) -> None:
        """Of all jobs together; what was dropped makes room."""
        plane = Plane()
        plane.start_nodes()
        plane.core.limit(ControlLimits(state_count_max=2))
        plane.bind(plane.draw(), states={"aircraft": VALUE})
        two = {"delays": VALUE, "speeds": VALUE}
        ticket = plane.draw(job_id="other", states=two)
        error = refusal(plane.ask(bind(ticket, job_id="other", states=two)))
        assert isinstance(error, ConfigurationError)
        assert "state_count_max" in str(error)
        plane.ask(drop())
        plane.bind(ticket, job_id="other", states=two)
        # A run of states that are known adds none.
        plane.bind(plane.draw(job_id="other"), job_id="other", states=two, run_id="2")

    @pytest.mark.proves("B3")
    def test_schemas(self) -> None:
        """B3: nodes are told all of a job's in one message; of one job, not of all."""
        plane = Plane()
        plane.start_nodes()
        size_bytes = len(VALUE)
        plane.core.limit(ControlLimits(schema_size_bytes_max=2 * size_bytes))
        plane.bind(plane.draw(), states={"one": VALUE})
        plane.bind(plane.draw(job_id="other"), job_id="other", states={"one": VALUE})
        three = {"one": VALUE, "two": VALUE, "three": VALUE}
        error = refusal(plane.ask(bind(plane.draw(states=three), states=three)))
        assert isinstance(error, ConfigurationError)
        assert f"would take {3 * size_bytes:,} bytes" in str(error)
        assert f"at most {2 * size_bytes:,}" in str(error)
        two = {"one": VALUE, "two": VALUE}
        plane.bind(plane.draw(states=two), states=two)

    @pytest.mark.proves("B3")
    def test_key_groups(self) -> None:
        """B3: a node is told those of all its jobs in one message."""
        plane = Plane()
        plane.start_nodes()
        # Four of each job, and those that may be copied at once three times more.
        plane.core.limit(ControlLimits(key_group_count_max=2 * 16))
        plane.bind(plane.draw())
        plane.bind(plane.draw(job_id="other"), job_id="other")
        error = refusal(plane.ask(draw(job_id="third")))
        assert isinstance(error, ConfigurationError)
        assert "'third'" in str(error)
        assert "would take 48" in str(error)
        assert "at most 32" in str(error)
        assert plane.view.job_ids() == [APP, "other"]
        plane.ask(drop(job_id="other"))
        # A job without state counts with what it is about to have.
        plane.bind(plane.draw(job_id="other"), job_id="other", run_id="2")
        # A job that is there goes on, whatever the limit is by now.
        plane.core.limit(ControlLimits(key_group_count_max=1))
        plane.bind(plane.draw(), run_id="2")

    @pytest.mark.proves("B3")
    def test_what_is_admitted_fits_one_message(self) -> None:
        """B3: as many key groups as there may be, to one node that holds them all."""
        limits = ControlLimits()
        groups = tuple(range(32_768))
        joining_count = limits.joining_count_max(len(groups))
        job_count = limits.key_group_count_max // limits.told_count(len(groups))
        assert job_count < limits.job_count_max
        job = JobAssignment(
            job_id="j" * 255,
            assignment_version=1 << 62,
            max_parallelism=len(groups),
            key_groups=groups[joining_count:],
            fences=tuple(
                WriterFence(job_id="j" * 255, query_id="q" * 36, writer_epoch=1 << 62)
                for _ in range(10)
            ),
            joining=tuple(
                JoiningGroup(key_group=32_767, since=1 << 62)
                for _ in range(joining_count)
            ),
            sources=(
                CopySource(
                    node_id="n" * 255, address="a" * 255, key_groups=groups[-512:]
                ),
            ),
        )
        registered = NodeRegistered(
            leader_epoch=1, control_id="c", session_timeout_ms=1, jobs=(job,)
        )
        size_bytes = job_count * len(encode(registered))
        assert size_bytes < NODE_TO_PROXY_SOCKET_LIMITS.frame_size_bytes_max


class TestTicket:
    """Drawing one."""

    def test_the_first_one_makes_the_job_and_assigns_it(self) -> None:
        """The job, its nodes and a block of tickets are written before the answer."""
        plane = Plane()
        plane.start_nodes()
        asked = WriterAsked(link=DRIVER, request=draw(), wall_clock_us=WALL_US)
        (write,) = plane.step(asked)
        assert isinstance(write, WriteStore)
        assert [operation.path for operation in write.operations] == [
            job_path(1),
            assignment_path(1, 1),
            COUNTERS,
        ]
        assert plane.step(StoreWritten()) == (
            NoteAssignment(
                job_id=APP,
                version=1,
                replica_count=1,
                key_group_counts={"a": 2, "b": 2},
                joined=("a", "b"),
                left=(),
                joining_count=0,
                left_count=0,
            ),
            SendToNode(link=LINK_A, message=assigned(0, 1)),
            SendToNode(link=LINK_B, message=assigned(2, 3)),
            drawn(1),
        )

    def test_the_next_ones_come_without_a_write(self) -> None:
        """Tickets are reserved by the block: a batch waits for one write less."""
        plane = Plane()
        plane.start_job()
        asked = WriterAsked(link=DRIVER, request=draw(), wall_clock_us=WALL_US)
        assert plane.step(asked) == (drawn(2),)
        for ticket in range(3, 1001):
            assert plane.step(asked) == (drawn(ticket),)
        (write,) = plane.step(asked)
        assert isinstance(write, WriteStore)
        assert plane.step(StoreWritten()) == (drawn(1001),)

    @pytest.mark.proves("W1")
    def test_the_next_leader_gives_out_higher_ones(self) -> None:
        """W1: a ticket is never given out twice, nor a lower one later."""
        plane = Plane()
        plane.start_job()
        plane.next_leader()
        plane.start_nodes()
        assert plane.draw() == 1001

    @pytest.mark.proves("W5")
    def test_states_are_checked_before_anything_is_staged(self) -> None:
        """W5: a mismatch is told when the batch is planned, not when it commits."""
        plane = Plane()
        plane.start_job()
        with pytest.raises(SchemaMismatchError):
            raise refusal(plane.ask(draw(states={"aircraft": LIST})))

    def test_without_nodes_there_is_no_assignment(self) -> None:
        """The writer is told to start one, and when to ask again."""
        error = refusal(Plane().ask(draw()))
        assert isinstance(error, StateUnavailableError)
        assert "lodestar node" in str(error)
        assert error.retry_after_seconds == 2.0

    @pytest.mark.proves("O6", "S2")
    def test_a_job_without_state_goes_on_while_all_nodes_are_drained(self) -> None:
        """S2: no batch fails because of a move; another job is told what to do."""
        plane = Plane()
        plane.start_nodes()
        plane.draw()
        for node_id in ("a", "b"):
            plane.ask(DrainNode(request_id=1, session=SESSION, node_id=node_id))
        present = plane.core._control.jobs[APP].assignment
        assert present is not None
        drawn = told(TicketDrawn, plane.ask(draw()))
        assert drawn.assignment_version == present.version
        assert drawn.owners == OWNERS
        error = refusal(plane.ask(draw(job_id="another")))
        assert isinstance(error, StateUnavailableError)
        assert "being drained" in str(error)
        error = refusal(plane.ask(draw(max_parallelism=8)))
        assert isinstance(error, StateUnavailableError)
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.hear(LINK_A, heartbeat("a", 1))
        assert told(TicketDrawn, plane.ask(draw())).owners == OWNERS
        plane.now_ns += GRACE_NS
        plane.settle(TimePassed())
        assert isinstance(refusal(plane.ask(draw())), StateUnavailableError)

    @pytest.mark.proves("S2")
    def test_a_new_leader_waits_for_the_nodes_it_knows(self) -> None:
        """S2: nodes that are only late are not passed over."""
        plane = Plane()
        plane.start_nodes()
        plane.next_leader()
        plane.hear(LINK_A, node_register("a"))
        plane.now_ns = TIMEOUT_NS - 1
        error = refusal(plane.ask(draw()))
        assert isinstance(error, StateUnavailableError)
        assert "still coming" in str(error)
        plane.hear(LINK_A, node_register("a"))  # it is heard from
        plane.now_ns = TIMEOUT_NS
        effects = plane.ask(draw())
        assert sent(effects, LINK_A) == [assigned(0, 1, 2, 3, epoch=EPOCH + 1)]

    def test_a_job_without_state_is_assigned_anew(self) -> None:
        """No node has rows of it: those that are there now may have it."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a"))
        plane.draw()
        plane.hear(LINK_B, node_register("b"))
        note, *others = plane.ask(draw())
        assert isinstance(note, NoteAssignment)
        assert (note.version, note.joined, note.left) == (2, ("b",), ())
        assert others == [
            SendToNode(link=LINK_A, message=assigned(0, 1, version=2)),
            SendToNode(link=LINK_B, message=assigned(2, 3, version=2)),
            drawn(2, version=2),
        ]
        assert plane.ask(draw()) == [drawn(3, version=2)]

    def test_former_nodes_of_a_job_are_told(self) -> None:
        """Who has no part of a job any more answers for nothing of it."""
        plane = Plane()
        plane.start_nodes()
        plane.draw()
        effects = plane.ask(draw(max_parallelism=1))
        (told_a,), (told_b,) = sent(effects, LINK_A), sent(effects, LINK_B)
        assert isinstance(told_a, AssignJob)
        assert isinstance(told_b, AssignJob)
        assert (told_a.job.key_groups, told_b.job.key_groups) == ((0,), ())

    def test_who_has_no_part_is_told_nothing(self) -> None:
        """A job with one key group is one node's business."""
        plane = Plane()
        plane.start_nodes()
        effects = plane.ask(draw(max_parallelism=1))
        assert sent(effects, LINK_B) == []

    @pytest.mark.proves("W7")
    def test_who_joins_later_begins_there(self) -> None:
        """W7: a node has no part in what was decided before it joined."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        plane.ask(drop())
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_A, heartbeat("a", 1))
        plane.hear(LINK_B, node_register("c"))  # the same connection: b is gone
        plane.now_ns = TIMEOUT_NS
        effects = plane.ask(draw())
        (told_b, reset) = sent(effects, LINK_B)
        assert isinstance(told_b, AssignJob)
        assert told_b.job.key_groups == (2, 3)
        assert reset == ResetJob(
            leader_epoch=EPOCH, job_id=APP, sequence=2, state_numbers=()
        )

    def test_nodes_that_are_away_have_no_address(self) -> None:
        """A writer sees which rows it could not bring anywhere."""
        plane = Plane()
        plane.start_job()
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_A, node_register("a"))
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        (answer,) = plane.ask(draw())
        assert isinstance(answer, AnswerWriter)
        assert isinstance(answer.message, TicketDrawn)
        assert answer.message.nodes == (
            NODES[0],
            NodeAddress(node_id="b", address=None),
        )


class TestRun:
    """Binding one."""

    @pytest.mark.proves("W1")
    def test_nodes_are_told_to_refuse_older_runs(self) -> None:
        """W1: written down first, then told to the nodes, then to the writer."""
        plane = Plane()
        plane.start_nodes()
        ticket = plane.draw()
        asked = WriterAsked(link=DRIVER, request=bind(ticket), wall_clock_us=WALL_US)
        (write,) = plane.step(asked)
        assert isinstance(write, WriteStore)
        assert [operation.path for operation in write.operations] == [
            job_path(1),
            progress_path(1, 1),
            query_path(1, "query"),
            state_path(1, 1),
            COUNTERS,
        ]
        fence = WriterFence(job_id=APP, query_id="query", writer_epoch=1)
        message = FenceWriters(leader_epoch=EPOCH, fences=(fence,))
        bound = RunBound(request_id=2, run=bound_run())
        assert plane.step(StoreWritten()) == (
            SendToNode(link=LINK_A, message=message),
            SendToNode(link=LINK_B, message=message),
            AnswerWriter(link=DRIVER, message=bound),
        )

    def test_binding_again_writes_nothing(self) -> None:
        """Every task binds: only the first of a run costs a write."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 4))
        bound = RunBound(request_id=2, run=bound_run(batch_id=4))
        plane.draw()
        asked = WriterAsked(link=DRIVER, request=bind(2), wall_clock_us=WALL_US)
        assert plane.step(asked) == (AnswerWriter(link=DRIVER, message=bound),)

    def test_a_state_that_is_added_keeps_the_run(self) -> None:
        """Numbers of states go on rising; older runs were refused before."""
        plane = Plane()
        plane.start_job()
        states = {"aircraft": VALUE, "log": LIST}
        (answer,) = plane.ask(bind(1, states=states))
        assert isinstance(answer, AnswerWriter)
        assert isinstance(answer.message, RunBound)
        assert [one.state_number for one in answer.message.run.states] == [1, 2]
        assert isinstance(plane.store[COUNTERS], bytes)

    @pytest.mark.proves("W1")
    @pytest.mark.parametrize("ticket", [-1, 0, 2])
    def test_a_ticket_that_was_never_drawn_is_refused(self, ticket: int) -> None:
        """W1: none becomes the newest run by making up a number."""
        plane = Plane()
        plane.start_nodes()
        plane.draw()
        with pytest.raises(LocalProtocolError, match="never given out"):
            raise refusal(plane.ask(bind(ticket)))

    def test_a_job_is_made_by_a_ticket(self) -> None:
        """Without one it was never assigned."""
        with pytest.raises(UnknownJobError):
            raise refusal(Plane().ask(bind(1)))

    @pytest.mark.proves("W1", "C1")
    def test_a_run_of_another_job_fences_nobody(self) -> None:
        """C1, W1: epochs are kept by job and query; every reader knows a query's id."""
        plane = Plane()
        epoch = plane.start_job()
        states = {"else": LIST}
        ticket = plane.draw(job_id="other", states=states)
        request = bind(ticket, job_id="other", run_id="run-9", states=states)
        told_nodes = [
            effect.message
            for effect in plane.ask(request)
            if isinstance(effect, SendToNode)
        ]
        fence = WriterFence(job_id="other", query_id="query", writer_epoch=ticket)
        assert told_nodes == 2 * [FenceWriters(leader_epoch=EPOCH, fences=(fence,))]
        assert plane.bind(plane.draw()) == epoch
        plane.decide(commit(epoch, 0))

    @pytest.mark.proves("W1", "B4")
    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_a_zombie_stays_fenced_after_many_restarts(
        self, *, is_restarted: bool
    ) -> None:
        """W1, B4: an epoch fences all runs below it, and no list of runs is kept."""
        plane = Plane()
        zombie = plane.start_job()
        epoch = [plane.new_run(f"run-{number}") for number in range(2, 42)][-1]
        size_bytes = len(plane.store[job_path(1)])
        epoch = plane.new_run("run-42")
        assert len(plane.store[job_path(1)]) == size_bytes
        if is_restarted:
            plane.next_leader()
            plane.start_nodes()
        fresh = plane.draw()
        request = bind(fresh, run_id="run-1", born_epoch=zombie)
        assert refusal(plane.ask(request)).args == ("query", zombie, epoch)
        # Nor by hiding when it was born: who does not say decides nothing.
        plane.bind(fresh, run_id="run-1", born_epoch=None)
        error = refusal(plane.ask(commit(fresh, 0, run_id="run-1")))
        assert isinstance(error, LocalProtocolError)
        asked = commit(fresh, 0, run_id="run-1", born_epoch=zombie)
        assert refusal(plane.ask(asked)).args == ("query", zombie, epoch)
        assert plane.bind(plane.draw(), run_id="run-42", born_epoch=epoch) == epoch
        (answer,) = plane.decide(commit(epoch, 0, run_id="run-42"))
        assert isinstance(answer, AnswerWriter)

    @pytest.mark.proves("W1")
    def test_a_run_that_was_bound_for_now_is_the_newest_with_its_commit(self) -> None:
        """W1: a task does not know when its run began; the committer does."""
        plane = Plane()
        former = plane.start_job()
        ticket = plane.draw()
        assert plane.bind(ticket, run_id="run-2", born_epoch=None) == ticket
        assert plane.bind(plane.draw(), born_epoch=former) == former  # none is fenced
        epoch = told(TicketDrawn, plane.ask(draw(states={}))).ticket
        assert epoch > ticket
        born_epoch = min(
            epoch, ticket
        )  # it was born with its first batch at the latest
        asked = commit(ticket, 0, run_id="run-2", born_epoch=born_epoch)
        (answer,) = plane.decide(asked)
        assert isinstance(answer, AnswerWriter)
        request = bind(plane.draw(), born_epoch=former)
        assert refusal(plane.ask(request)).args == ("query", former, ticket)
        later = plane.draw()
        assert plane.bind(later, run_id="run-2", born_epoch=None) == ticket

    @pytest.mark.parametrize("born_epoch", [-1, 0, 3])
    def test_an_epoch_that_was_not_given_out_is_refused(self, born_epoch: int) -> None:
        """W1: none is born later than the ticket that is shown."""
        plane = Plane()
        plane.start_job()
        ticket = plane.draw()
        asked = commit(ticket, 0, run_id="run-2", born_epoch=born_epoch)
        with pytest.raises(LocalProtocolError, match="was not born at"):
            raise refusal(plane.ask(asked))
        request = replace(bind(ticket), run_id="run-2", born_epoch=born_epoch)
        with pytest.raises(LocalProtocolError, match="was not born at"):
            raise refusal(plane.ask(request))

    def test_an_epoch_alone_makes_no_job(self) -> None:
        """It needs no node, and is above what was given out before."""
        plane = Plane()
        first = told(TicketDrawn, plane.ask(draw(states={})))
        assert (first.ticket, first.nodes, first.owners) == (1, (), ())
        assert list(plane.store) == [COUNTERS]
        plane.next_leader()
        assert told(TicketDrawn, plane.ask(draw(states={}))).ticket > first.ticket


def begin(
    born_epoch: int,
    *,
    run_id: str = "run-1",
    states: dict[str, str] | None = None,
    digests: dict[str, bytes] | None = None,
) -> DrawTicket:
    """Return the request for a ticket that a run shows at once."""
    run = WriterRun(
        query_id="query", run_id=run_id, on_new_query="refuse", born_epoch=born_epoch
    )
    request = replace(draw(states=states), run=run)
    if digests is None:
        return request
    declared = tuple(
        StateDeclaration(state_name=name, digest=digest)
        for name, digest in digests.items()
    )
    return replace(request, states=declared)


def born(plane: Plane) -> int:
    """Return an epoch that a run is born with."""
    return told(TicketDrawn, plane.ask(draw(states={}))).ticket


KNOWN = {"aircraft": schema_digest(VALUE)}


class TestBeginning:
    """A ticket that is drawn and shown by one message."""

    @pytest.mark.proves("W1")
    def test_it_is_one_write(self) -> None:
        """W1: job, assignment, run and state; then nodes are told, then the writer."""
        plane = Plane()
        plane.start_nodes()
        epoch = born(plane)
        asked = WriterAsked(link=DRIVER, request=begin(epoch), wall_clock_us=WALL_US)
        (write,) = plane.step(asked)
        assert isinstance(write, WriteStore)
        assert [operation.path for operation in write.operations] == [
            job_path(1),
            progress_path(1, 1),
            query_path(1, "query"),
            state_path(1, 1),
            assignment_path(1, 1),
            COUNTERS,
        ]
        effects = plane.step(StoreWritten())
        fence = WriterFence(job_id=APP, query_id="query", writer_epoch=epoch)
        for link in (LINK_A, LINK_B):
            assigned_, fenced = sent(effects, link)
            assert isinstance(assigned_, AssignJob)
            assert assigned_.job.fences == (fence,)
            assert fenced == FenceWriters(leader_epoch=EPOCH, fences=(fence,))
        answer = told(TicketDrawn, effects)
        assert (answer.ticket, answer.nodes, answer.owners) == (2, NODES, OWNERS)
        assert answer.run == bound_run(epoch)
        assert answer == effects[-1].message  # type: ignore[union-attr]  # told last

    def test_the_next_batch_writes_nothing_and_needs_no_schema(self) -> None:
        """The run is the newest, and the leader has the schema in its store."""
        plane = Plane()
        plane.start_nodes()
        epoch = born(plane)
        plane.ask(begin(epoch))
        plane.decide(commit(epoch, 0))
        (answer,) = plane.ask(begin(epoch, digests=KNOWN))
        assert isinstance(answer, AnswerWriter)
        assert isinstance(answer.message, TicketDrawn)
        assert answer.message.run == bound_run(epoch, batch_id=0)

    def test_the_next_leader_knows_schema_and_epoch(self) -> None:
        """Both are in the store: a run goes on after a failover as before it."""
        plane = Plane()
        plane.start_nodes()
        epoch = born(plane)
        plane.ask(begin(epoch))
        plane.next_leader()
        plane.start_nodes()
        answer = told(TicketDrawn, plane.ask(begin(epoch, digests=KNOWN)))
        assert answer.ticket > 1_000
        assert answer.run == bound_run(epoch)

    @pytest.mark.parametrize(
        "digests",
        [
            {"aircraft": schema_digest(LIST)},
            {"delays": schema_digest(VALUE)},
            {"aircraft": schema_digest(VALUE), "delays": schema_digest(VALUE)},
        ],
        ids=["another schema", "another state", "one more state"],
    )
    def test_a_digest_that_is_not_known_is_told(
        self, digests: dict[str, bytes]
    ) -> None:
        """The writer declares it anew; nothing has changed."""
        plane = Plane()
        plane.start_nodes()
        epoch = born(plane)
        plane.ask(begin(epoch))
        stored = dict(plane.store)
        with pytest.raises(DeclarationWantedError):
            raise refusal(plane.ask(begin(epoch, digests=digests)))
        assert dict(plane.store) == stored

    def test_of_another_store_no_epoch_is_known(self) -> None:
        """Tickets rise: a later one than any here was given out elsewhere."""
        plane = Plane()
        plane.start_nodes()
        with pytest.raises(DeclarationWantedError, match="epoch 7"):
            raise refusal(plane.ask(begin(7)))

    def test_a_ticket_alone_needs_no_schema(self) -> None:
        """Nothing becomes known by it; what is known otherwise is still refused."""
        plane = Plane()
        plane.start_nodes()
        request = replace(begin(1, digests=KNOWN), run=None)
        assert told(TicketDrawn, plane.ask(request)).run is None
        plane.bind(1)
        other = replace(begin(1, digests={"aircraft": b"x" * 16}), run=None)
        with pytest.raises(DeclarationWantedError):
            raise refusal(plane.ask(other))

    @pytest.mark.proves("W1")
    def test_a_run_that_was_superseded_stays_so(self) -> None:
        """W1: a request that is sent again shows the epoch of the first time."""
        plane = Plane()
        plane.start_nodes()
        former, later = born(plane), born(plane)
        plane.ask(begin(former))
        plane.ask(begin(later, run_id="run-2"))
        with pytest.raises(StaleWriterError):
            raise refusal(plane.ask(begin(former)))

    @pytest.mark.proves("C1")
    def test_a_query_that_writes_more_is_not_theirs(self) -> None:
        """C1: who may not write all that a query writes cannot end its runs."""
        plane = Plane()
        plane.start_nodes()
        states = {"aircraft": VALUE, "secret": VALUE}
        plane.ask(begin(born(plane), states=states))
        later = begin(born(plane), run_id="run-2")
        asked = WriterAsked(
            link=DRIVER,
            request=later,
            wall_clock_us=WALL_US,
            writable=frozenset({"aircraft"}),
        )
        with pytest.raises(AccessDeniedError):
            raise refusal(plane.settle(asked))

    def test_it_names_a_state(self) -> None:
        """A run that writes nothing is a mistake."""
        plane = Plane()
        plane.start_nodes()
        epoch = born(plane)
        with pytest.raises(ConfigurationError, match="at least one state"):
            raise refusal(plane.ask(begin(epoch, states={})))


def test_counters_are_one_record() -> None:
    """What is given out once is written in one place."""
    plane = Plane()
    plane.start_job()
    assert set(plane.store) >= {COUNTERS, job_path(1)}
    assert Put(COUNTERS, plane.store[COUNTERS]).version is None
