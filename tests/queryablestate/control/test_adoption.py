"""W7: a control plane takes over what nodes kept."""

from __future__ import annotations

import pytest
from attrs import define, field
from msgspec.structs import replace

from nameservice import ConfigurationError, DidNotHappenError, StorageError
from queryablestate.control.adopted_job import adopted_job
from queryablestate.control.effects import (
    ControlEffect,
    RefuseWriter,
    SendToNode,
    StartOver,
)
from queryablestate.control.events import LinkId, LinksClosed
from queryablestate.control.job.leader_paths import node_path
from queryablestate.control.job_plans import job_plan
from queryablestate.errors import (
    DeadlineExceededError,
    StateUnavailableError,
    UnknownJobError,
)
from queryablestate.wire.adoption_messages import (
    AdoptJob,
    ControlTaken,
    JobAdopted,
    TakeControl,
)
from queryablestate.wire.job_plan import JobOrigin, JobPlan, entry_digest
from queryablestate.wire.kept_rows import KeptRows
from queryablestate.wire.node_messages import JobPosition, PlanTold, TellPlan
from queryablestate.wire.records import BatchDecided
from tests.queryablestate.control.test_kept_jobs import kept
from tests.queryablestate.control_plane import (
    APP,
    CONTROL_ID,
    LINK_A,
    LINK_B,
    SECOND,
    SESSION,
    TIMEOUT_NS,
    Plane,
    commit,
    heartbeat,
    load,
    node_register,
    refusal,
    told,
)


LINKS = {"a": LINK_A, "b": LINK_B}


def adopt(*, is_preview: bool = False, is_forced: bool = False) -> AdoptJob:
    """Return what an operator asks."""
    return AdoptJob(
        request_id=9,
        session=SESSION,
        job_id=APP,
        is_preview=is_preview,
        is_forced=is_forced,
    )


@define
class Before:
    """
    A control plane that decides three batches, and an older copy of its store.

    Attributes:
        plane: As it is.
        copy: Its store after the first batch.
        epoch: Of the one run.
        positions: How far each node is.
    """

    plane: Plane = field(factory=Plane)
    copy: dict[str, bytes] = field(factory=dict)
    epoch: int = 0
    positions: dict[str, int] = field(factory=lambda: {"a": 3, "b": 3})

    def __attrs_post_init__(self) -> None:
        self.epoch = self.plane.start_job()
        for batch_id in range(3):
            if batch_id == 1:
                self.copy = dict(self.plane.store)
            self.plane.decide(commit(self.epoch, batch_id))

    def plan(self, node_id: str) -> JobPlan:
        """Return what a node keeps, which has followed the entries that it applied."""
        sequence = self.positions[node_id]
        job = self.plane.core._control.jobs[APP]
        plan = job_plan(job, ticket_limit=self.plane.core._control.ticket_next)
        states = tuple(
            replace(one, progress=replace(one.progress, batch_id=sequence - 1))
            for one in plan.states
        )
        return replace(plan, sequence=sequence, states=states)

    def tells(self, node_id: str, plan: JobPlan | None = None) -> PlanTold:
        """Return what a node tells of it."""
        sequence = self.positions[node_id]
        entries = self.plane.core._control.jobs[APP].entries
        return PlanTold(
            registration_id=f"process-{node_id}",
            job_id=APP,
            sequence=sequence,
            plan=plan or self.plan(node_id),
            entries=tuple(entries[one] for one in range(1, sequence + 1)),
        )

    def position(self, node_id: str) -> JobPosition:
        """Return how far a node says that it is."""
        sequence = self.positions[node_id]
        entry = self.plane.core._control.jobs[APP].entries[sequence]
        return JobPosition(
            job_id=APP,
            sequence=sequence,
            origin=JobOrigin(
                job_number=1, assignment_version=1, entry_digest=entry_digest(entry)
            ),
        )

    def come(self, plane: Plane, *node_ids: str) -> None:
        """Have nodes register with *plane*."""
        for node_id in node_ids:
            message = node_register(node_id)
            message = replace(message, positions=(self.position(node_id),))
            plane.hear(LINKS[node_id], message)

    def restored(self, *node_ids: str) -> Plane:
        """Return a control plane over the older copy, with these nodes."""
        plane = Plane(core=load(self.copy), store=dict(self.copy))
        plane.now_ns = TIMEOUT_NS
        self.come(plane, *(node_ids or ("a", "b")))
        return plane


def taken_over(before: Before, plane: Plane, **options: bool) -> list[ControlEffect]:
    """Ask, have both nodes tell, and return what came of it."""
    effects = plane.ask(adopt(**options))
    messages = [one for one in effects if isinstance(one, SendToNode)]
    assert all(isinstance(one.message, TellPlan) for one in messages)
    asked = [one.link for one in messages]
    found: list[ControlEffect] = []
    for node_id, link in LINKS.items():
        if link in asked:
            found += plane.hear(link, before.tells(node_id))
    return found


class TestOlderCopy:
    @pytest.mark.proves("W7")
    def test_a_job_goes_on_where_its_nodes_are(self) -> None:
        """W7: batches that were forgotten are known again, and none is lost."""
        before = Before()
        plane = before.restored()
        assert isinstance(
            refusal(plane.ask(commit(before.epoch, 1))), StateUnavailableError
        )
        done = taken_over(before, plane)
        answer = told(JobAdopted, done)
        assert (answer.known_sequence, answer.sequence) == (1, 3)
        assert [state.batch_id for state in answer.states] == [2]
        assert (answer.node_ids, answer.away_ids, answer.lost_ids) == (
            ("a", "b"),
            (),
            (),
        )
        assert isinstance(done[-1], StartOver)
        plane.next_leader()
        before.come(plane, "a", "b")
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None
        job = plane.core._control.jobs[APP]
        assert job.record.progress == (before.plan("a").states[0].progress,)
        assert job.entries == before.plane.core._control.jobs[APP].entries
        assert job.run_of("query") is not None
        plane.now_ns += TIMEOUT_NS
        before.come(plane, "a", "b")
        assert plane.draw() > before.epoch + 1_000_000

    @pytest.mark.proves("W7")
    def test_a_preview_changes_nothing(self) -> None:
        """An operator sees first what would be."""
        before = Before()
        plane = before.restored()
        store = dict(plane.store)
        (answer,) = taken_over(before, plane, is_preview=True)
        assert told(JobAdopted, [answer]).sequence == 3
        assert plane.store == store

    @pytest.mark.proves("W7")
    def test_who_is_behind_is_brought_what_it_missed(self) -> None:
        """Its fellows have kept the entries."""
        before = Before()
        before.positions["b"] = 2
        plane = before.restored()
        answer = told(JobAdopted, taken_over(before, plane))
        assert (answer.sequence, answer.lost_ids) == (3, ())
        plane.next_leader()
        before.come(plane, "a", "b")
        assert plane.core._control.nodes.present("b").sequences == {APP: 2}  # type: ignore[union-attr]  # it is there

    @pytest.mark.proves("W7")
    def test_nodes_that_are_away_may_know_better(self) -> None:
        """They are waited for, unless somebody knows that they do not."""
        before = Before()
        plane = before.restored("a")
        error = refusal(taken_over(before, plane))
        assert isinstance(error, DidNotHappenError)
        assert "b of job flights is away" in str(error)
        answer = told(JobAdopted, taken_over(before, plane, is_forced=True))
        assert answer.away_ids == ("b",)

    @pytest.mark.proves("O6", "W7")
    def test_one_that_is_away_and_was_never_known_can_be_drained(self) -> None:
        """An operator who took what is here has yet to get rid of who is not."""
        before = Before()
        del before.copy[node_path("b")]
        plane = before.restored("a")
        taken_over(before, plane, is_forced=True)
        plane.next_leader()
        nodes = plane.core._control.nodes
        assert nodes.known_ids == ("a", "b")
        assert nodes.store_id_of("b") == before.plane.core._control.nodes.store_id_of(
            "b"
        )

    def test_whoever_leaves_meanwhile_is_not_waited_for(self) -> None:
        """Nor is one that says nothing."""
        before = Before()
        plane = before.restored()
        plane.ask(adopt())
        error = refusal(plane.settle(LinksClosed(links=(LINK_B,))))
        assert "went away before it told" in str(error)
        plane = before.restored()
        plane.ask(adopt())
        while True:
            plane.now_ns += 5 * SECOND
            effects = plane.hear(LINK_A, heartbeat("a", 1))
            effects += plane.hear(LINK_B, heartbeat("b", 1))
            if errors := [one for one in effects if isinstance(one, RefuseWriter)]:
                break
        assert plane.now_ns == TIMEOUT_NS + 30 * SECOND
        assert isinstance(refusal(errors), DeadlineExceededError)

    def test_a_node_that_cannot_tell_says_why(self) -> None:
        """Its disk is damaged, for one."""
        before = Before()
        plane = before.restored()
        plane.ask(adopt())
        message = replace(before.tells("a"), failure="the disk is gone")
        assert "node a: the disk is gone" in str(refusal(plane.hear(LINK_A, message)))

    def test_what_nobody_is_ahead_with_is_not_to_be_taken_over(self) -> None:
        """There is nothing to mend."""
        plane = Plane()
        plane.start_job()
        assert isinstance(refusal(plane.ask(adopt())), UnknownJobError)

    def test_who_asked_and_has_gone_is_not_told(self) -> None:
        """Nothing is written either: those who are there look first."""
        before = Before()
        plane = before.restored()
        plane.ask(adopt())
        plane.settle(LinksClosed(links=(LinkId(10),)))
        assert plane.hear(LINK_A, before.tells("a")) == []
        assert plane.hear(LINK_B, before.tells("b")) == []


class TestTwoHistories:
    @pytest.mark.proves("W7")
    def test_they_are_not_made_one(self) -> None:
        """Only one of them can be right, and it is not known here which."""
        before = Before()
        b = before.tells("b")
        other = b.entries[-1]
        assert isinstance(other, BatchDecided)
        b = replace(b, entries=(*b.entries[:-1], replace(other, decided_at_us=99)))
        with pytest.raises(StorageError, match="gone different ways since entry 3"):
            adopted_job({"a": before.tells("a"), "b": b}, None)

    def test_two_jobs_of_one_name(self) -> None:
        """One was forgotten, and begun anew."""
        before = Before()
        plan = replace(before.plan("b"), job_number=2)
        with pytest.raises(StorageError, match="more than one job"):
            adopted_job({"a": before.tells("a"), "b": before.tells("b", plan)}, None)

    def test_rows_without_a_plan_say_nothing(self) -> None:
        """An earlier version has written them."""
        before = Before()
        one = replace(before.tells("a"), plan=None)
        with pytest.raises(StorageError, match="earlier version"):
            adopted_job({"a": one}, None)


class TestContent:
    def test_the_newest_assignment_holds(self) -> None:
        """S1: one that was taken out of the set since is in no one's way."""
        before = Before()
        plan = before.plan("b")
        newer = replace(
            plan.assignment,
            version=7,
            owners=((1,),) * 4,
            wanted=((0,),) * 4,
            sequence=2,
        )
        told_ = {
            "a": before.tells("a"),
            "b": before.tells("b", replace(plan, assignment=newer)),
        }
        assignment = adopted_job(told_, None).assignment
        assert assignment.node_ids == ("b",)
        assert assignment.owners == ((0,),) * 4
        assert (assignment.wanted, assignment.sequence) == ((), 3)
        assert assignment.version > 7

    def test_a_store_that_knows_as_many_entries_is_believed(self) -> None:
        """Only how the job was assigned since is not known there."""
        before = Before()
        job = before.plane.core._control.jobs[APP]
        adopted = adopted_job({"a": before.tells("a")}, job)
        assert adopted.record == job.record
        assert adopted.entries == tuple(job.entries.values())

    def test_who_lacks_entries_that_nobody_has_is_told(self) -> None:
        """What only it has will be unavailable, and not wrong."""
        before = Before()
        before.positions["b"] = 1
        a = replace(before.tells("a"), entries=before.tells("a").entries[-1:])
        b = replace(before.tells("b"), entries=())
        adopted = adopted_job({"a": a, "b": b}, None)
        assert adopted.lost_ids == ("b",)
        assert adopted.record.sequence_first == 3


class TestControl:
    def aside(self, *job_ids: str) -> Plane:
        """Return a control plane with a node that keeps rows of another one."""
        plane = Plane()
        plane.hear(LINK_A, node_register("a", kept=(kept(*job_ids),)))
        return plane

    def request(self, control_id: str = "before") -> TakeControl:
        """Return what an operator asks."""
        return TakeControl(request_id=9, session=SESSION, control_id=control_id)

    @pytest.mark.proves("W7")
    def test_it_is_the_one_that_rows_are_kept_of(self) -> None:
        """Nodes hear its name when they register, and open what they kept."""
        plane = self.aside(APP)
        effects = plane.ask(self.request())
        assert told(ControlTaken, effects).request_id == 9
        assert isinstance(effects[-1], StartOver)
        plane.next_leader()
        assert plane.view.control_id == "before"
        found = plane.view.problem_of(APP, now_ns=plane.now_ns)
        assert "of another history" in str(found)

    @pytest.mark.proves("W7", "Q3")
    def test_a_node_that_has_yet_to_open_them_keeps_them_all_the_same(self) -> None:
        """W7: it registers with rows of the control plane that was given up, first."""
        plane = self.aside(APP)
        plane.ask(self.request())
        plane.next_leader()
        plane.hear(LINK_A, node_register("a", kept=(kept(APP),)))
        found = plane.view.problem_of(APP, now_ns=plane.now_ns)
        assert "of another history" in str(found)
        # The next leader knows it, too, though no node is there.
        plane.next_leader()
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is not None
        # It has opened them now, and says how far they are.
        plane.hear(LINK_A, node_register("a", positions={APP: 3}, control_id="before"))
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is not None
        plane.hear(LINK_A, node_register("a", control_id="before"))
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None

    @pytest.mark.proves("W7")
    def test_what_is_set_aside_and_known_is_no_other_history(self) -> None:
        """W7: a store that was only away for a while knows all that nodes kept."""
        plane = Plane()
        epoch = plane.start_job()
        plane.decide(commit(epoch, 0))
        plane.decide(commit(epoch, 1))
        rows = kept(APP, control_id=CONTROL_ID, sequence=2)
        plane.hear(LINK_A, node_register("a", control_id="meanwhile", kept=(rows,)))
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None
        rows = kept(APP, control_id=CONTROL_ID, sequence=3)
        plane.hear(LINK_A, node_register("a", control_id="meanwhile", kept=(rows,)))
        assert plane.view.problem_of(APP, now_ns=plane.now_ns) is not None

    def test_what_it_is_already_it_stays(self) -> None:
        """An operator may repeat it."""
        plane = self.aside(APP)
        (answer,) = plane.ask(self.request(CONTROL_ID))
        assert told(ControlTaken, [answer]).request_id == 9

    def test_one_that_nobody_keeps_rows_of_is_refused(self) -> None:
        """Every name would be as good."""
        error = refusal(self.aside(APP).ask(self.request("nobody")))
        assert isinstance(error, ConfigurationError)

    def test_state_that_is_here_is_not_set_aside(self) -> None:
        """It is somebody's."""
        plane = Plane()
        plane.start_job()
        plane.hear(LINK_A, node_register("a", kept=(kept("trains"),)))
        error = refusal(plane.ask(self.request()))
        assert isinstance(error, ConfigurationError)
        assert APP in str(error)

    def test_jobs_that_were_only_begun_are_forgotten(self) -> None:
        """No node has rows of them, and their numbers may be others'."""
        plane = self.aside("trains")
        plane.draw()
        assert "jobs/1" in plane.store
        plane.ask(self.request())
        assert not [path for path in plane.store if path.startswith("jobs/")]


def test_rows_of_other_control_planes_stay_kept() -> None:
    """Taking one job over says nothing of what else a node keeps."""
    before = Before()
    plane = before.restored()
    rows: KeptRows = kept("trains")
    message = replace(
        node_register("a", kept=(rows,)), positions=(before.position("a"),)
    )
    plane.hear(LINK_A, message)
    taken_over(before, plane)
    plane.next_leader()
    assert plane.view.kept_job_ids() == ["trains"]
    assert plane.view.problem_of(APP, now_ns=plane.now_ns) is None
