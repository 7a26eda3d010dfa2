"""B4: a job is forgotten with all that nodes have of it; so is a node's name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nameservice import ConfigurationError, DidNotHappenError
from queryablestate.control.effects import StartOver
from queryablestate.control.events import LinkId, LinksClosed, TimePassed
from queryablestate.control.job.leader_paths import decode_node, node_path
from queryablestate.control.limits import ControlLimits
from queryablestate.errors import UnknownJobError
from queryablestate.wire.job_plan import JobOrigin, entry_digest
from queryablestate.wire.node_messages import NodeRegistered, RegisterNode
from queryablestate.wire.operation_messages import (
    AwayNodeForgotten,
    DrainNode,
    ForgetAwayNode,
    ForgetJob,
    JobForgotten,
)
from queryablestate.wire.records import ForgottenJob
from tests.queryablestate.control.test_kept_jobs import kept
from tests.queryablestate.control_plane import (
    APP,
    GRACE_NS,
    LINK_A,
    LINK_B,
    SESSION,
    TIMEOUT_NS,
    Plane,
    commit,
    node_register,
    refusal,
    sent,
    told,
)


def forget(job_id: str = APP) -> ForgetJob:
    """Return what an operator asks."""
    return ForgetJob(request_id=9, session=SESSION, job_id=job_id)


def coming(node_id: str, sequence: int, job_number: int = 1) -> RegisterNode:
    """Return the registration of a node that has rows of the job of that number."""
    message = node_register(node_id, positions={APP: sequence})
    origin = JobOrigin(job_number=job_number)
    positions = tuple(replace(one, origin=origin) for one in message.positions)
    return replace(message, positions=positions)


def registered(plane: Plane, node_id: str, message: RegisterNode) -> NodeRegistered:
    """Have a node register, and return what it is told first."""
    link = {"a": LINK_A, "b": LINK_B}[node_id]
    first = sent(plane.hear(link, message), link)[0]
    assert isinstance(first, NodeRegistered)
    return first


def forgotten(plane: Plane, node_id: str) -> tuple[ForgottenJob, ...]:
    """Return what is noted with a node."""
    return decode_node(plane.store[node_path(node_id)]).forgotten


@pytest.fixture
def plane() -> Plane:
    """Return a control plane that has just forgotten a job with a batch."""
    plane = Plane()
    epoch = plane.start_job()
    plane.decide(commit(epoch, 0))
    plane.settle(LinksClosed(links=(LINK_B,)))
    effects = plane.ask(forget())
    assert told(JobForgotten, effects).node_ids == ("a", "b")
    assert isinstance(effects[-1], StartOver)
    plane.next_leader()
    return plane


class TestForgetting:
    @pytest.mark.proves("B4")
    def test_nothing_of_it_is_left(self, plane: Plane) -> None:
        """B4: neither records, nor a job that cannot be used."""
        assert not [path for path in plane.store if path.startswith("jobs/")]
        assert plane.view.job_ids() == []
        note = ForgottenJob(job_id=APP, job_number=1)
        assert forgotten(plane, "a") == forgotten(plane, "b") == (note,)

    @pytest.mark.proves("B4")
    def test_nodes_forget_it_whenever_they_come(self, plane: Plane) -> None:
        """B4: they are not ahead of anybody; and the note goes when they have."""
        for _ in range(2):
            first = registered(plane, "b", coming("b", 1))
            assert (first.forgotten, first.untouched) == ((APP,), ())
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None
        assert registered(plane, "b", node_register("b")).forgotten == ()
        assert forgotten(plane, "b") == ()

    @pytest.mark.proves("B4", "W7")
    def test_who_has_yet_to_forget_makes_room_last(self, plane: Plane) -> None:
        """W7: without the note its rows would be those of a job to adopt."""
        plane.core.limit(ControlLimits(node_count_max=2))
        registered(plane, "b", node_register("b"))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns += GRACE_NS
        plane.settle(TimePassed())
        plane.hear(LinkId(30), node_register("c"))
        assert node_path("b") not in plane.store
        assert forgotten(plane, "a")

    @pytest.mark.proves("B4")
    def test_it_may_be_begun_anew_at_once(self, plane: Plane) -> None:
        """Rows of before are not taken for rows of the new one."""
        registered(plane, "a", coming("a", 1))
        registered(plane, "b", node_register("b"))
        plane.draw()
        first = registered(plane, "a", coming("a", 1))
        assert first.forgotten == (APP,)
        assert [job.job_id for job in first.jobs] == [APP]
        assert plane.core._control.nodes.present("a").sequences == {APP: 0}  # type: ignore[union-attr]  # it is there
        first = registered(plane, "a", coming("a", 0, job_number=2))
        assert first.forgotten == ()

    @pytest.mark.proves("W7")
    def test_what_it_has_of_the_new_one_is_not_forgotten(self, plane: Plane) -> None:
        """W7: a restored job is shown before its number is kept, and it ends then."""
        registered(plane, "a", coming("a", 1))
        registered(plane, "b", node_register("b"))
        epoch = plane.bind(plane.draw())
        plane.decide(commit(epoch, 0, state_numbers=(2,)))
        entry = plane.core._control.job(APP).entries[1]
        message = coming("a", 1)
        origin = JobOrigin(job_number=0, entry_digest=entry_digest(entry))
        positions = tuple(replace(one, origin=origin) for one in message.positions)
        first = registered(plane, "a", replace(message, positions=positions))
        assert (first.forgotten, first.untouched) == ((), ())

    def test_what_is_kept_aside_goes_too(self) -> None:
        """An operator wants neither to take it over nor to hear of it."""
        plane = Plane()
        message = node_register("a", kept=(kept(APP, "trains"),))
        plane.hear(LINK_A, message)
        assert told(JobForgotten, plane.ask(forget())).node_ids == ("a",)
        plane.next_leader()
        first = registered(plane, "a", message)
        assert first.forgotten == (APP,)
        assert plane.view.kept_job_ids() == ["trains"]

    def test_what_nobody_knows_is_not_forgotten(self, plane: Plane) -> None:
        """A slip of the keyboard is told."""
        assert isinstance(refusal(plane.ask(forget("trains"))), UnknownJobError)

    def test_others_stay(self) -> None:
        """Their records, and their numbers."""
        plane = Plane()
        plane.start_job()
        plane.draw(job_id="trains")
        plane.ask(forget("trains"))
        plane.next_leader()
        assert plane.view.job_ids() == [APP]
        assert "jobs/1" in plane.store
        assert "jobs/2" not in plane.store


def forget_node(node_id: str = "b") -> ForgetAwayNode:
    """Return what an operator asks."""
    return ForgetAwayNode(request_id=8, session=SESSION, node_id=node_id)


class TestForgettingNodes:
    @pytest.mark.proves("B4")
    def test_one_that_is_away_and_has_nothing_is_forgotten(self) -> None:
        """B4: it is listed no more, and the next leader does not wait for it."""
        plane = Plane()
        plane.start_nodes()
        plane.settle(LinksClosed(links=(LINK_B,)))
        answer = told(AwayNodeForgotten, plane.ask(forget_node()))
        assert (answer.request_id, answer.node_id) == (8, "b")
        assert node_path("b") not in plane.store
        summaries = plane.view.node_summaries(now_ns=plane.now_ns)
        assert [node.node_id for node in summaries] == ["a"]
        plane.next_leader()
        assert not plane.core.takes_for_away("a", plane.now_ns)
        plane.hear(LINK_A, node_register("a"))
        assert plane.core.takes_for_away("a", plane.now_ns)

    def test_one_that_comes_all_the_same_is_a_new_one(self) -> None:
        """A slip of an operator costs nothing."""
        plane = Plane()
        plane.start_nodes()
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.ask(forget_node())
        registered(plane, "b", node_register("b"))
        assert node_path("b") in plane.store

    @pytest.mark.proves("B4")
    def test_one_that_is_there_is_not(self) -> None:
        """It would come again at once; the refusal says how to end it."""
        plane = Plane()
        plane.start_nodes()
        error = refusal(plane.ask(forget_node()))
        assert isinstance(error, ConfigurationError)
        assert "'b' is registered" in str(error)
        assert "SIGTERM" in str(error)
        assert node_path("b") in plane.store

    @pytest.mark.proves("B4")
    def test_one_with_key_groups_is_not(self) -> None:
        """Its rows may be the only ones; the refusal says what becomes of them."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_B,)))
        error = refusal(plane.ask(forget_node()))
        assert isinstance(error, DidNotHappenError)  # it may be back
        plane.now_ns = GRACE_NS
        plane.settle(TimePassed())
        error = refusal(plane.ask(forget_node()))
        assert isinstance(error, ConfigurationError)
        for word in (APP, "'lodestar drain b'", "drop-state", "data directory"):
            assert word in str(error)
        assert node_path("b") in plane.store

    def test_one_that_may_still_come_is_not(self) -> None:
        """A new leader has not heard of anybody yet; a session timeout later it may."""
        plane = Plane()
        plane.start_nodes()
        plane.next_leader()
        error = refusal(plane.ask(forget_node()))
        assert isinstance(error, DidNotHappenError)
        assert "may still be coming" in str(error)
        plane.now_ns += TIMEOUT_NS
        plane.settle(TimePassed())
        assert told(AwayNodeForgotten, plane.ask(forget_node())).node_id == "b"

    def test_one_that_keeps_rows_aside_is_not(self) -> None:
        """They would be lost without a word; the refusal names both ways out."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP, "trains"),)))
        plane.lose(LINK_A)
        error = refusal(plane.ask(forget_node("a")))
        assert isinstance(error, ConfigurationError)
        for word in (APP, "trains", "lodestar adopt", "lodestar forget-job"):
            assert word in str(error)

    def test_a_name_that_nobody_has_is_told(self) -> None:
        """A slip of the keyboard: which names there are."""
        plane = Plane()
        plane.start_nodes()
        error = refusal(plane.ask(forget_node("c")))
        assert isinstance(error, ConfigurationError)
        assert str(error) == "no node is called 'c'; known are: a, b"

    def test_one_that_was_drained_is_forgotten(self) -> None:
        """What was noted for it goes with it."""
        plane = Plane()
        plane.start_nodes()
        plane.ask(DrainNode(request_id=1, session=SESSION, node_id="b"))
        plane.settle(LinksClosed(links=(LINK_B,)))
        assert told(AwayNodeForgotten, plane.ask(forget_node())).node_id == "b"
