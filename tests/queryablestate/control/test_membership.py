"""How nodes become part of it, and go (W7, S2, Q4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from election import Delete, Put
from nameservice import DidNotHappenError
from nameservice.clock import NS_PER_MS
from queryablestate.control import moves
from queryablestate.control.assignment.node_standing import NodeStanding
from queryablestate.control.assignment.reassignment import next_assignment
from queryablestate.control.commit_verification import verify_id_of
from queryablestate.control.effects import (
    ControlEffect,
    ForgetNode,
    SendToNode,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.job.job import Job
from queryablestate.control.job.leader_paths import encode_record, node_path
from queryablestate.control.limits import ControlLimits
from queryablestate.control.membership import return_grace_ns
from queryablestate.control.routes import RouteTable
from queryablestate.wire.job_assignment import JobAssignment, WriterFence
from queryablestate.wire.node_messages import (
    ApplyEntries,
    AssignJob,
    FromNode,
    HeartbeatAcknowledged,
    NodeRefused,
    NodeRegistered,
    ResetJob,
    VerifyStages,
)
from queryablestate.wire.operation_messages import DrainNode
from queryablestate.wire.records import NodeRecord
from tests.queryablestate.control_plane import (
    APP,
    CONTROL_ID,
    DRIVER,
    EPOCH,
    LINK_A,
    LINK_B,
    OPERATOR,
    SESSION,
    TIMEOUT_NS,
    WALL_US,
    Plane,
    applied,
    commit,
    draw,
    drop,
    heartbeat,
    node_register,
    sent,
    stage,
    verified,
)


AGAIN = LinkId(20)
UNKNOWN = NodeRefused(reason="unknown", detail="register first")


def spoke(link: LinkId, message: FromNode) -> NodeSpoke:
    """Return that a node spoke."""
    return NodeSpoke(link=link, message=message)


def registered(*jobs: JobAssignment, epoch: int = EPOCH) -> NodeRegistered:
    """Return what a node is told that is taken."""
    return NodeRegistered(
        leader_epoch=epoch,
        control_id=CONTROL_ID,
        session_timeout_ms=10_000,
        jobs=jobs,
    )


def part(*key_groups: int, epoch: int) -> JobAssignment:
    """Return what a node answers for."""
    return JobAssignment(
        job_id=APP,
        assignment_version=1,
        max_parallelism=4,
        key_groups=key_groups,
        fences=(WriterFence(job_id=APP, query_id="query", writer_epoch=epoch),),
    )


def is_refused_for_limit(effects: Iterable[ControlEffect]) -> bool:
    """Return whether a node is told that there are too many, and no other is."""
    (effect,) = effects
    assert isinstance(effect, SendToNode)
    message = effect.message
    return isinstance(message, NodeRefused) and message.reason == "limit"


class TestRegister:
    """A node asks to be part of it."""

    @pytest.mark.proves("S2")
    def test_a_new_name_is_written_down_first(self) -> None:
        """S2: the next leader knows for whom to wait."""
        plane = Plane()
        (write,) = plane.step(spoke(LINK_A, node_register("a")))
        record = NodeRecord(node_id="a", store_id="disk-of-a")
        put = Put(node_path("a"), encode_record(record))
        assert write == WriteStore(operations=(put,))
        assert plane.step(StoreWritten()) == (
            SendToNode(link=LINK_A, message=registered()),
        )
        assert plane.view.node_at(LINK_A) == "a"

    def test_a_known_name_costs_no_write(self) -> None:
        """A node that comes back is told at once what it answers for."""
        plane = Plane()
        epoch = plane.start_job()
        plane.next_leader()
        assert plane.step(spoke(AGAIN, node_register("b"))) == (
            SendToNode(
                link=AGAIN, message=registered(part(2, 3, epoch=epoch), epoch=EPOCH + 1)
            ),
        )

    @pytest.mark.proves("S4")
    def test_it_waits_for_no_change_that_has_not_begun(self) -> None:
        """S4: nothing that clients want keeps a node's rows from being read."""
        plane = Plane()
        plane.start_job()
        plane.step(LinksClosed(links=(LINK_B,)))
        drains = [
            WriterAsked(
                link=OPERATOR,
                request=DrainNode(request_id=1, session=SESSION, node_id=node_id),
                wall_clock_us=WALL_US,
            )
            for node_id in ("a", "b")
        ]
        (under_way,) = plane.step(drains[0])
        assert isinstance(under_way, WriteStore)
        assert plane.step(drains[1]) == ()
        assert plane.step(spoke(AGAIN, node_register("b", positions={APP: 0}))) == ()
        effects = plane.step(StoreWritten())
        assert isinstance(sent(effects, AGAIN)[0], NodeRegistered)
        (location,) = plane.core.locations.values()
        assert location.links == (LINK_A, AGAIN)
        # What has waited for longer is written after that.
        assert isinstance(effects[-1], WriteStore)

    def test_the_same_node_over_another_connection(self) -> None:
        """The earlier connection is over, whether or not anybody noticed."""
        plane = Plane()
        plane.start_nodes()
        assert plane.step(spoke(AGAIN, node_register("a"))) == (
            ForgetNode(link=LINK_A, node_id="a"),
            SendToNode(link=AGAIN, message=registered()),
        )
        assert plane.view.node_at(LINK_A) is None

    def test_the_same_node_over_the_same_connection(self) -> None:
        """A node that asks to be sent what it lacks loses no question over it."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        message = node_register("a", positions={APP: 0})
        first, second = plane.step(spoke(LINK_A, message))
        assert first == SendToNode(
            link=LINK_A, message=registered(part(0, 1, epoch=epoch))
        )
        assert isinstance(second, SendToNode)
        assert isinstance(second.message, ApplyEntries)

    def test_another_node_over_the_same_connection(self) -> None:
        """One connection is one node."""
        plane = Plane()
        plane.start_nodes()
        effects = plane.hear(LINK_A, node_register("c"))
        assert effects == [
            ForgetNode(link=LINK_A, node_id="a"),
            SendToNode(link=LINK_A, message=registered()),
        ]
        # And one node one connection, if both change at once.
        assert plane.hear(LINK_B, node_register("c")) == [
            ForgetNode(link=LINK_A, node_id="c"),
            ForgetNode(link=LINK_B, node_id="b"),
            SendToNode(link=LINK_B, message=registered()),
        ]

    def test_a_name_is_taken_while_its_node_is_present(self) -> None:
        """Two directories of one name: the second is told, until the first is gone."""
        plane = Plane()
        plane.start_nodes()
        message = node_register("a", store_id="another")
        (refused,) = sent(plane.hear(AGAIN, message), AGAIN)
        assert isinstance(refused, NodeRefused)
        assert refused.reason == "name-taken"
        plane.settle(LinksClosed(links=(LINK_A,)))
        assert sent(plane.hear(AGAIN, message), AGAIN) == [registered()]

    def test_who_has_gone_meanwhile_is_not_taken_for_present(self) -> None:
        """A registration that waits for the store ends with its connection."""
        plane = Plane()
        (write,) = plane.step(spoke(LINK_A, node_register("a")))
        assert isinstance(write, WriteStore)
        assert plane.step(spoke(LINK_B, node_register("b"))) == ()
        assert plane.step(LinksClosed(links=(LINK_A,))) == ()
        assert plane.step(LinksClosed(links=(LINK_B,))) == ()
        assert plane.step(StoreWritten()) == ()
        assert plane.view.node_at(LINK_A) is None
        assert plane.view.node_at(LINK_B) is None

    def test_only_the_last_of_several_questions_counts(self) -> None:
        """One question, one answer: by the positions that it was asked with last."""
        plane = Plane()
        (write,) = plane.step(spoke(LINK_A, node_register("a")))
        assert isinstance(write, WriteStore)
        assert plane.step(spoke(LINK_A, node_register("a"))) == ()
        assert plane.step(StoreWritten()) == (
            SendToNode(link=LINK_A, message=registered()),
        )

    def test_a_write_that_did_not_happen_is_told(self) -> None:
        """The node asks again in a moment, rather than wait for an answer."""
        plane = Plane()
        plane.step(spoke(LINK_A, node_register("a")))
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        (effect,) = plane.step(failed)
        assert isinstance(effect, SendToNode)
        assert isinstance(effect.message, NodeRefused)
        assert effect.message.reason == "not-now"
        assert plane.step(spoke(LINK_A, heartbeat("a", 1))) == (
            SendToNode(link=LINK_A, message=UNKNOWN),
        )

    def test_there_are_so_many_nodes(self) -> None:
        """A new name is refused; one that is known comes back, with any disk."""
        plane = Plane()
        plane.core.limit(ControlLimits(node_count_max=2))
        plane.start_job()
        assert is_refused_for_limit(plane.hear(AGAIN, node_register("c")))
        plane.settle(LinksClosed(links=(LINK_A,)))
        assert is_refused_for_limit(plane.hear(AGAIN, node_register("c")))
        message = node_register("a", store_id="another")
        (answer, *_) = sent(plane.hear(LINK_A, message), LINK_A)
        assert isinstance(answer, NodeRegistered)

    def test_who_is_away_and_has_nothing_makes_room(self) -> None:
        """One name goes for the one that comes, here and in the leader store."""
        plane = Plane()
        plane.core.limit(ControlLimits(node_count_max=2))
        plane.start_nodes()
        assert is_refused_for_limit(plane.hear(AGAIN, node_register("c")))
        plane.settle(LinksClosed(links=(LINK_A,)))
        (write,) = plane.step(spoke(AGAIN, node_register("c")))
        assert isinstance(write, WriteStore)
        record = NodeRecord(node_id="c", store_id="disk-of-c")
        assert write.operations == (
            Delete(node_path("a")),
            Put(node_path("c"), encode_record(record)),
        )
        assert sent(plane.settle_rest([write]), AGAIN) == [registered()]
        # One that has had to go is a new node when it is back, and waits for a place.
        assert is_refused_for_limit(plane.hear(LINK_A, node_register("a")))
        plane.next_leader()
        assert [node.node_id for node in plane.view.node_summaries(now_ns=0)] == [
            "b",
            "c",
        ]

    def test_nobody_is_told_over_a_connection_that_is_over(self) -> None:
        """Whichever it was comes back over another."""
        plane = Plane()
        plane.step(spoke(LINK_A, node_register("a")))
        plane.step(LinksClosed(links=(LINK_A,)))
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        assert plane.step(failed) == ()


class TestPresence:
    """A node is present while it is heard from (Q4)."""

    def test_heartbeats_are_acknowledged(self) -> None:
        """The node may answer as long as it is told so."""
        plane = Plane()
        plane.start_nodes()
        message = HeartbeatAcknowledged(leader_epoch=EPOCH, number=5)
        assert plane.step(spoke(LINK_A, heartbeat("a", 5))) == (
            SendToNode(link=LINK_A, message=message),
        )

    @pytest.mark.parametrize("link", [LINK_A, AGAIN])
    def test_who_is_not_registered_is_told(self, link: LinkId) -> None:
        """After a new connection, or in another process of the same name."""
        plane = Plane()
        plane.start_nodes()
        assert plane.core.next_deadline_ns() == TIMEOUT_NS
        assert plane.step(spoke(link, heartbeat("c", 1))) == (
            SendToNode(link=link, message=UNKNOWN),
        )

    def test_who_is_being_registered_waits(self) -> None:
        """What it says before it has its answer needs none."""
        plane = Plane()
        plane.step(spoke(LINK_A, node_register("a")))
        assert plane.step(spoke(LINK_A, heartbeat("a", 1))) == ()

    def test_silence_ends_it_at_the_timeout(self) -> None:
        """One session timeout after the last word, not before."""
        plane = Plane()
        plane.start_nodes()
        plane.now_ns = 5
        plane.step(spoke(LINK_B, heartbeat("b", 1)))
        assert plane.core.next_deadline_ns() == TIMEOUT_NS
        plane.now_ns = TIMEOUT_NS - 1
        assert plane.step(TimePassed()) == ()
        plane.now_ns = TIMEOUT_NS
        assert plane.step(TimePassed()) == (ForgetNode(link=LINK_A, node_id="a"),)
        assert plane.core.next_deadline_ns() == TIMEOUT_NS + 5

    def test_a_closed_connection_ends_it_at_once(self) -> None:
        """Its questions will not be answered; its routes are no more."""
        plane = Plane()
        plane.start_job()
        before = plane.core.locations[1]
        assert before.links == (LINK_A, LINK_B)
        assert plane.step(LinksClosed(links=(LINK_A,))) == (
            ForgetNode(link=LINK_A, node_id="a"),
        )
        assert plane.core.locations[1].links == (None, LINK_B)
        assert plane.step(LinksClosed(links=(LINK_A,))) == ()

    @pytest.mark.proves("S1")
    @pytest.mark.parametrize("late_ns", [TIMEOUT_NS // 5 + 1, 100 * TIMEOUT_NS])
    def test_a_leader_that_was_paused_hears_what_waits_first(
        self, late_ns: int
    ) -> None:
        """S1: its own pause takes no copy from anybody; who is gone goes after it."""
        plane = Plane()
        plane.start_job()
        plane.now_ns = TIMEOUT_NS + late_ns
        effects = plane.hear(LINK_A, heartbeat("a", 1))
        assert not any(isinstance(one, ForgetNode) for one in effects)
        due_ns = plane.now_ns + TIMEOUT_NS // 5
        assert plane.core.next_deadline_ns() == due_ns
        plane.now_ns = due_ns - 1
        assert plane.settle(TimePassed()) == []
        plane.now_ns = due_ns
        assert plane.settle(TimePassed()) == [ForgetNode(link=LINK_B, node_id="b")]

    @pytest.mark.proves("S1")
    def test_a_leader_that_was_paused_expects_nodes_for_longer(self) -> None:
        """S1: a node that is back meanwhile has not been heard yet."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_B,)))
        due_ns = return_grace_ns(TIMEOUT_NS)
        assert plane.core.next_deadline_ns() == due_ns
        late_ns = TIMEOUT_NS // 2
        plane.now_ns = due_ns + late_ns
        plane.hear(LINK_A, heartbeat("a", 1))
        nodes = plane.core._control.nodes
        assert "b" in nodes.expected
        plane.now_ns = plane.core.next_deadline_ns() or 0
        assert plane.now_ns == due_ns + late_ns + TIMEOUT_NS // 5
        plane.settle(TimePassed())
        assert "b" not in nodes.expected

    @pytest.mark.parametrize(
        ("timeout_ms", "grace_ms"),
        [(100, 100), (1_000, 500), (10_000, 2_000), (60_000, 12_000)],
    )
    def test_how_long_a_node_is_expected(self, timeout_ms: int, grace_ms: int) -> None:
        """A fifth of the session timeout; long enough to connect again."""
        assert return_grace_ns(timeout_ms * NS_PER_MS) == grace_ms * NS_PER_MS

    @pytest.mark.proves("Q4")
    def test_a_leader_that_is_a_little_late_was_not_paused(self) -> None:
        """Q4: silence for the timeout is silence."""
        plane = Plane()
        plane.start_job()
        plane.now_ns = TIMEOUT_NS + TIMEOUT_NS // 5
        effects = plane.hear(LINK_A, heartbeat("a", 1))
        assert ForgetNode(link=LINK_B, node_id="b") in effects


class TestLost:
    """A node that lacks rows of a decided batch (W7)."""

    def start(self) -> Plane:
        """Decide a batch that both nodes have verified; it is entry 2."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        one, two = stage(1, a=1), stage(2, b=1)
        plane.ask(commit(epoch, 1, one, two))
        number = verify_id_of(APP, epoch, 1, (one, two), assignment_version=1)
        plane.hear(LINK_A, verified("a", number))
        plane.hear(LINK_B, verified("b", number))
        return plane

    def test_it_says_so_and_begins_anew(self) -> None:
        """Waiting would not help: its rows are lost, and the job goes on."""
        plane = self.start()
        plane.hear(LINK_B, applied("b", 2))
        lacking = applied("a", 1, failure="no such chunk", lacks_rows=True)
        reset = ResetJob(
            leader_epoch=EPOCH,
            job_id=APP,
            sequence=2,
            state_numbers=(1,),
            restore_id="",
        )
        assert plane.hear(LINK_A, lacking) == [SendToNode(link=LINK_A, message=reset)]
        assert len(plane.hear(LINK_A, applied("a", 2))) == 1  # the commit is answered

    @pytest.mark.proves("W7")
    def test_it_begins_anew_once(self) -> None:
        """W7: what it says before it has heard that does not count."""
        plane = self.start()
        lacking = applied("a", 1, failure="no such chunk", lacks_rows=True)
        plane.hear(LINK_A, lacking)
        assert plane.hear(LINK_A, lacking) == []
        assert plane.view.node_summaries(now_ns=0)[0].behind_counts == {APP: 2}
        plane.hear(LINK_A, applied("a", 2))
        assert plane.view.node_summaries(now_ns=0)[0].behind_counts == {APP: 0}

    @pytest.mark.proves("W7")
    def test_one_that_could_not_begin_anew_has_not(self) -> None:
        """W7: it was as far as where it is to begin, and may be told again."""
        plane = self.start()
        plane.hear(LINK_A, applied("a", 1, failure="no such chunk", lacks_rows=True))
        assert plane.hear(LINK_A, applied("a", 2, failure="the disk is full")) == []
        assert plane.view.node_summaries(now_ns=0)[0].behind_counts == {APP: 2}

    def test_a_node_that_has_the_rows_tries_again(self) -> None:
        """A disk that is full may not be any more: nothing is thrown away."""
        plane = self.start()
        assert plane.hear(LINK_A, applied("a", 1, failure="the disk is full")) == []

    @pytest.mark.proves("S1")
    def test_a_node_that_has_no_part_any_more_has_lost_nothing(self) -> None:
        """S1: it was taken out when it said that it cannot go on."""
        plane = Plane()
        plane.core.limit(ControlLimits(replica_count=2))
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        one = stage(1, a=1, b=1)
        (asked,) = sent(plane.ask(commit(epoch, 1, one)), LINK_A)
        assert isinstance(asked, VerifyStages)
        plane.hear(LINK_A, verified("a", asked.verify_id))
        plane.hear(LINK_B, verified("b", asked.verify_id))
        told = sent(plane.hear(LINK_A, applied("a", 1, failure="full")), LINK_A)
        (assigned,) = [each for each in told if isinstance(each, AssignJob)]
        assert assigned.job.key_groups == assigned.job.copies == ()
        lacking = applied("a", 1, failure="gone", lacks_rows=True)
        told = sent(plane.hear(LINK_A, lacking), LINK_A)
        assert not any(isinstance(each, ResetJob) for each in told)

    def test_an_entry_that_fails_is_the_matter_of_the_node(self) -> None:
        """Nothing is thrown away, and it tries again by itself."""
        plane = Plane()
        plane.start_job()
        plane.ask(drop())
        assert plane.hear(LINK_A, applied("a", 0, failure="disk")) == []
        plane.hear(LINK_A, applied("a", 1))
        assert plane.hear(LINK_A, applied("a", 1, failure="disk")) == []

    def test_reports_of_what_nobody_knows_are_passed_over(self) -> None:
        """A job that is not there, and entries that are not in the chain."""
        plane = Plane()
        plane.start_job()
        assert plane.hear(LINK_A, applied("a", 1, job_id="other")) == []
        assert plane.hear(LINK_A, applied("a", 1)) == []
        asked = WriterAsked(link=DRIVER, request=draw(), wall_clock_us=WALL_US)
        assert len(plane.step(asked)) == 1
        assert plane.view.node_summaries(now_ns=0)[0].behind_counts == {APP: 0}


@pytest.mark.proves("B2")
class TestManyAtOnce:
    """B2: nodes that die together cost as much as their number, and not its square."""

    COUNT = 100

    @pytest.fixture
    def plane(self) -> Plane:
        """A job on two nodes, and a hundred others without a part."""
        plane = Plane()
        plane.start_job()
        for link in self.links:
            plane.hear(link, node_register(f"spare-{link}"))
        return plane

    @property
    def links(self) -> tuple[LinkId, ...]:
        """Return the connections of those others."""
        return tuple(LinkId(1_000 + number) for number in range(self.COUNT))

    def test_moves_are_planned_once(
        self, plane: Plane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each node is looked at once, and not once for each that has gone."""
        made = 0

        def standing(**known: Any) -> NodeStanding:
            nonlocal made
            made += 1
            return NodeStanding(**known)

        monkeypatch.setattr(moves, "NodeStanding", standing)
        effects = plane.settle(LinksClosed(links=self.links))
        assert [e.link for e in effects if isinstance(e, ForgetNode)] == [*self.links]
        assert 0 < made <= 2 * (self.COUNT + 2)

    def test_silent_ones_are_taken_for_away_together(
        self, plane: Plane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same holds when no connection has closed."""
        plane.now_ns += TIMEOUT_NS // 2
        for name, link in (("a", LINK_A), ("b", LINK_B)):
            plane.hear(link, heartbeat(name, 1))
        planned = 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal planned
            planned += 1
            return next_assignment(*args, **kwargs)

        monkeypatch.setattr(moves, "next_assignment", counted)
        plane.now_ns += TIMEOUT_NS // 2
        effects = plane.settle(TimePassed())
        assert sum(isinstance(e, ForgetNode) for e in effects) == self.COUNT
        assert planned == 1

    def test_routes_are_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a job that loses all of its nodes."""
        plane = Plane()
        plane.start_job()
        located = 0
        locate = RouteTable.locate

        def counted(table: RouteTable, job: Job) -> None:
            nonlocal located
            located += 1
            locate(table, job)

        monkeypatch.setattr(RouteTable, "locate", counted)
        plane.settle(LinksClosed(links=(LINK_A, LINK_B)))
        assert located == 1
        (route,) = plane.core.locations.values()
        assert route.links == (None, None)
