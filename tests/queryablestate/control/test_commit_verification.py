"""Commits while key groups move, and while nodes come and go (S2, S4, W3)."""

from __future__ import annotations

import pytest

from queryablestate import CommitTimeoutError, StagedDataMissingError
from queryablestate.control.commit_verification import verify_id_of
from queryablestate.control.effects import AnswerWriter
from queryablestate.control.events import LinkId
from queryablestate.control.job.job_changes import JobChange
from queryablestate.wire.clients import BatchCommitted
from queryablestate.wire.job_assignment import CopySource
from queryablestate.wire.node_messages import ApplyEntries, CollectStages, VerifyStages
from queryablestate.wire.records import StageRecord, collected_stage_id
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    EPOCH,
    SECOND,
    WALL_US,
    commit,
    refusal,
    stage,
    verified,
)
from tests.queryablestate.moving_plane import MovingPlane, assignment


BOTH = stage(1, a=1, b=2)
ONLY_A = stage(1, a=1)


def source(node_id: str, *key_groups: int) -> CopySource:
    """Return where rows are."""
    return CopySource(
        node_id=node_id, address=f"tcp://{node_id}:1", key_groups=key_groups
    )


class TestMoved:
    """The assignment changes before a batch is decided."""

    @pytest.mark.proves("S2")
    def test_a_new_copy_collects_before_the_decision(self) -> None:
        """S2: no batch fails because of a move, and none lacks rows."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="- c c -", sequence=0))
        effects = plane.ask(BOTH)
        command = plane.told(CollectStages, effects, "c")
        assert command == CollectStages(
            leader_epoch=EPOCH,
            verify_id=command.verify_id,
            job_id=APP,
            query_id="query",
            writer_epoch=1,
            batch_id=0,
            assignment_version=2,
            stages=(BOTH,),
            sources=(source("a", 1), source("b", 2)),
            timeout_ms=60_000,
        )
        assert plane.verified(plane.told(VerifyStages, effects, "a"), "a") == []
        assert plane.verified(plane.told(VerifyStages, effects, "b"), "b") == []
        effects = plane.collected(command, "c", 3)
        (entry,) = plane.decided
        assert entry.assignment_version == 2
        assert entry.stages == (
            BOTH,
            StageRecord(
                stage_id=collected_stage_id(BOTH.stage_id, 2, (1, 2)),
                chunk_counts={"c": 3},
                row_count=0,
            ),
        )
        for node_id in "abc":
            assert plane.told(ApplyEntries, effects, node_id).entries == (entry,)

    @pytest.mark.proves("S1")
    def test_copies_that_are_being_made_are_not_waited_for(self) -> None:
        """S1: a commit is acknowledged when the in-sync copies have it."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c c c c"))
        plane.ask()
        plane.applied("a", 1)
        (answer,) = plane.applied("b", 1)
        assert isinstance(answer, AnswerWriter)

    @pytest.mark.proves("S2")
    def test_a_change_on_the_way_is_gone_by(self) -> None:
        """S2: one that has answered need not answer again, and a new copy collects."""
        plane = MovingPlane()
        plane.come("c")
        effects = plane.ask(BOTH)
        first = plane.told(VerifyStages, effects, "b")
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        effects = plane.assign(assignment(2, "abc", "c c b b"))
        again = plane.told(VerifyStages, effects, "b")
        assert again.verify_id != first.verify_id
        assert plane.sent(effects, "a") == []
        command = plane.told(CollectStages, effects, "c")
        assert command.sources == (source("a", 0, 1),)
        assert plane.verified(first, "b") == []  # to another question
        plane.verified(again, "b")
        assert plane.decided == []
        plane.collected(command, "c", 1)
        (entry,) = plane.decided
        assert [one.chunk_counts for one in entry.stages] == [{"b": 2}, {"c": 1}]

    @pytest.mark.proves("S2")
    def test_a_change_while_the_decision_waits_for_its_turn(self) -> None:
        """S2: what counts is the assignment when the decision is written."""
        plane = MovingPlane()
        plane.come("c")
        effects = plane.ask(ONLY_A)
        question = plane.told(VerifyStages, effects, "a")
        node = plane.control.nodes.present("a")
        assert node is not None
        waiting = plane.commits.verified(node, verified("a", question.verify_id))
        assert plane.assign(assignment(2, "abc", "a a b b", joining="c - - -")) == []
        command = plane.told(CollectStages, plane.perform(waiting), "c")
        assert plane.decided == []
        plane.collected(command, "c", 1)
        assert len(plane.decided) == 1

    @pytest.mark.proves("S1")
    def test_the_last_one_that_was_waited_for_has_nothing_any_more(self) -> None:
        """S1: an evicted node holds up neither a decision nor an acknowledgement."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        effects = plane.ask(stage(1, a=1, b=1), version=2)
        plane.leave("b")
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        assert plane.decided == []
        plane.assign(assignment(3, "a", "a a a a"))
        (entry,) = plane.decided
        assert [one.chunk_counts for one in entry.stages] == [{"a": 1}]
        assert len(plane.applied("a", 1)) == 1

    @pytest.mark.proves("S1")
    def test_an_acknowledgement_waits_for_nobody_who_was_evicted(self) -> None:
        """S1: a copy is taken out before a commit that it missed is acknowledged."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        plane.ask(version=2)
        plane.leave("b")
        assert plane.applied("a", 1) == []
        (answer,) = plane.assign(assignment(3, "a", "a a a a"))
        message = BatchCommitted(request_id=3, batch_id=0, is_repeated=False)
        assert answer == AnswerWriter(link=DRIVER, message=message)

    @pytest.mark.proves("S2")
    def test_what_was_collected_is_kept_when_more_moves(self) -> None:
        """S2: the next change makes a node fetch only what is new."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c - - -"))
        effects = plane.ask(ONLY_A, link=DRIVER)
        command = plane.told(CollectStages, effects, "c")
        question = plane.told(VerifyStages, effects, "a")
        plane.collected(command, "c", 1)
        effects = plane.assign(assignment(3, "abc", "c a b b", joining="- c - -"))
        command = plane.told(CollectStages, effects, "c")
        assert command.sources == (source("a", 1),)
        assert command.assignment_version == 3
        plane.collected(command, "c", 4)
        assert plane.verified(question, "a") == []
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        (entry,) = plane.decided
        stage_id = ONLY_A.stage_id
        assert [(one.stage_id, one.chunk_counts) for one in entry.stages] == [
            (stage_id, {"a": 1}),
            (collected_stage_id(stage_id, 2, (0,)), {"c": 1}),
            (collected_stage_id(stage_id, 3, (1,)), {"c": 4}),
        ]

    @pytest.mark.proves("S2")
    def test_what_is_being_collected_goes_on_when_more_moves(self) -> None:
        """S2: else a commit might wait for as long as key groups go on moving."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c - - -"))
        effects = plane.ask(ONLY_A)
        command = plane.told(CollectStages, effects, "c")
        effects = plane.assign(assignment(3, "abc", "a a b b", joining="c c - -"))
        assert plane.sent(effects, "c") == []
        more = plane.told(CollectStages, plane.collected(command, "c", 1), "c")
        assert (more.assignment_version, more.sources) == (3, (source("a", 1),))

    @pytest.mark.proves("W4")
    def test_a_batch_that_was_decided_meanwhile(self) -> None:
        """W4: a repetition is acknowledged; nothing is collected for it."""
        plane = MovingPlane()
        plane.come("c")
        effects = plane.ask(ONLY_A)
        node = plane.control.nodes.present("a")
        assert node is not None
        said = verified("a", plane.told(VerifyStages, effects, "a").verify_id)
        waiting = plane.commits.verified(node, said)
        job = plane.control.job(APP)
        request = commit(1, 0, ONLY_A)
        change = job.decide(request, decided_at_us=WALL_US, pruned=())
        assert isinstance(change, JobChange)
        job.adopt(change)
        plane.assign(assignment(2, "abc", "a a b b", joining="c - - -"))
        assert plane.perform(waiting) == []
        plane.applied("b", 1)
        (answer,) = plane.applied("a", 1)
        message = BatchCommitted(request_id=3, batch_id=0, is_repeated=True)
        assert answer == AnswerWriter(link=DRIVER, message=message)

    def test_another_job_moves(self) -> None:
        """Jobs have assignments of their own."""
        plane = MovingPlane()
        plane.ask(ONLY_A)
        plane.plane.draw(job_id="other")
        other = plane.control.job("other")
        assert plane.commits.assignment_changed(other) == []

    @pytest.mark.proves("S2")
    def test_an_answer_to_another_command_is_none(self) -> None:
        """S2: what was collected for other key groups does not make up for these."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c - - -"))
        first = plane.told(CollectStages, plane.ask(ONLY_A), "c")
        plane.assign(assignment(3, "abc", "a a b b", joining="- c - -"))
        assert plane.collected(first, "c", 1) == []
        assert plane.decided == []

    @pytest.mark.proves("W4")
    def test_a_version_that_is_not_kept_any_more(self) -> None:
        """W4: where its rows were sent is not known; the batch is run again."""
        plane = MovingPlane()
        effects = plane.ask(BOTH)
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        plane.assign(assignment(2, "ab", "b b a a"))
        del plane.control.job(APP).assignments[1]
        error = refusal(plane.assign(assignment(3, "ab", "a b a b")))
        assert isinstance(error, StagedDataMissingError)
        assert isinstance(refusal(plane.ask(BOTH)), StagedDataMissingError)

    @pytest.mark.proves("W4")
    def test_another_number_of_key_groups_is_another_job(self) -> None:
        """W4: rows that were dealt to four groups cannot be found among two."""
        plane = MovingPlane()
        plane.ask(BOTH)
        error = refusal(plane.assign(assignment(2, "ab", "a b")))
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("a", "b"))


class TestAway:
    """Nodes that are to collect, or that have the rows, come and go."""

    def start(self) -> tuple[MovingPlane, CollectStages]:
        """Have ``c`` collect what ``a`` and ``b`` have both."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "ab", "ab ab ab ab"))
        plane.assign(assignment(3, "c", "c c c c"))
        effects = plane.ask(stage(1, a=1, b=1), version=2)
        return plane, plane.told(CollectStages, effects, "c")

    @pytest.mark.proves("W3")
    def test_who_collects_is_told_again_when_it_is_back(self) -> None:
        """W3: nothing is lost; what it had begun it begins anew."""
        plane, command = self.start()
        plane.leave("c")
        assert plane.told(CollectStages, plane.come("c"), "c") == command

    @pytest.mark.proves("S4")
    def test_another_source_takes_the_place_of_one_that_is_gone(self) -> None:
        """S4: as long as somebody has the rows, none waits for another."""
        plane, command = self.start()
        assert command.sources == (source("a", 0, 1, 2, 3),)
        other = plane.told(CollectStages, plane.leave("a"), "c")
        assert other.sources == (source("b", 0, 1, 2, 3),)
        # The same rows by whatever source: it takes the place of the first command.
        assert (other.verify_id, other.stages) == (command.verify_id, command.stages)
        plane.collected(command, "c", 1)
        assert len(plane.decided) == 1

    @pytest.mark.proves("W3")
    def test_the_only_source_is_waited_for(self) -> None:
        """W3: like a node that is to verify; the error says who is waited for."""
        plane, _ = self.start()
        plane.leave("a")
        assert plane.leave("b") == []
        plane.now_ns = 60 * SECOND
        error = refusal(plane.perform([]))
        assert isinstance(error, CommitTimeoutError)
        assert error.node_ids == ("a", "c")

    @pytest.mark.proves("W3")
    def test_it_goes_on_when_the_only_source_is_back(self) -> None:
        """W3: the commit goes on where it was."""
        plane, command = self.start()
        plane.leave("a")
        plane.leave("b")
        plane.now_ns = 10 * SECOND
        plane.perform([])
        again = plane.told(CollectStages, plane.come("a"), "c")
        assert again.sources == command.sources
        assert again.timeout_ms == 50_000

    def test_who_asks_later_is_waited_for_longer(self) -> None:
        """The node is told again when the time that it was given is over."""
        plane, command = self.start()
        plane.now_ns = 20 * SECOND
        plane.ask(stage(1, a=1, b=1), version=2, link=LinkId(20))
        plane.now_ns = 60 * SECOND
        again = plane.told(CollectStages, plane.perform([]), "c")
        assert again.verify_id == command.verify_id
        assert again.timeout_ms == 20_000

    @pytest.mark.proves("S4")
    def test_a_source_that_lacks_rows_is_passed_over(self) -> None:
        """S4: others have them."""
        plane, command = self.start()
        effects = plane.collected(command, "c", 0, missing=command.stages[0])
        other = plane.told(CollectStages, effects, "c")
        assert other.sources == (source("b", 0, 1, 2, 3),)
        effects = plane.collected(other, "c", 0, missing=command.stages[0])
        error = refusal(effects)
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("a", "b"))

    def test_an_answer_of_another_length_is_none(self) -> None:
        """A node that counts other stages than it was told has collected nothing."""
        plane, command = self.start()
        effects = plane.collected(command, "c", 1, 1)
        assert plane.told(CollectStages, effects, "c").sources == (
            source("b", 0, 1, 2, 3),
        )
        assert plane.decided == []

    @pytest.mark.proves("W7")
    def test_what_was_collected_on_another_disk_is_gone(self) -> None:
        """W7: what a node has said holds for the data directory that it had."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c - c -"))
        effects = plane.ask(BOTH)
        command = plane.told(CollectStages, effects, "c")
        plane.collected(command, "c", 1)
        plane.leave("c")
        plane.come("c", store_id="another")
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        effects = plane.verified(plane.told(VerifyStages, effects, "b"), "b")
        assert plane.decided == []
        plane.collected(plane.told(CollectStages, effects, "c"), "c", 1)
        assert len(plane.decided) == 1

    @pytest.mark.proves("W7")
    def test_more_of_another_disk_does_not_make_up_for_what_is_gone(self) -> None:
        """W7: nor if the disk was exchanged between two collections."""
        plane = MovingPlane()
        plane.come("c")
        plane.assign(assignment(2, "abc", "a a b b", joining="c - - -"))
        plane.collected(plane.told(CollectStages, plane.ask(ONLY_A), "c"), "c", 1)
        plane.assign(assignment(3, "abc", "a a b b", joining="c c - -"))
        plane.leave("c")
        effects = plane.come("c", store_id="another")
        effects = plane.collected(plane.told(CollectStages, effects, "c"), "c", 1)
        again = plane.told(CollectStages, effects, "c")
        assert again.sources == (source("a", 0),)


class TestGivenUp:
    """S4: a writer went on without a node that was away."""

    def test_it_collects_when_it_is_back(self) -> None:
        """What it was sent of the batch counts for nothing."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        one = StageRecord(
            stage_id=BOTH.stage_id,
            chunk_counts={"a": 1},
            row_count=1,
            given_up=("b",),
        )
        two = stage(2, a=1, b=1)
        plane.leave("b")
        effects = plane.ask(one, two, version=2)
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        command = plane.told(CollectStages, plane.come("b"), "b")
        assert command.sources == (source("a", 0, 1, 2, 3),)
        plane.collected(command, "b", 1, 2)
        (entry,) = plane.decided
        assert [(each.chunk_counts, each.given_up) for each in entry.stages] == [
            ({"a": 1}, ()),
            ({"b": 1}, ()),
            ({"a": 1}, ()),
            ({"b": 2}, ()),
        ]

    @pytest.mark.proves("S1")
    def test_it_is_not_waited_for_when_it_was_evicted(self) -> None:
        """S1: its copies are made anew when it is back."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        one = StageRecord(
            stage_id=BOTH.stage_id,
            chunk_counts={"a": 1},
            row_count=1,
            given_up=("b",),
        )
        plane.leave("b")
        plane.assign(assignment(3, "a", "a a a a"))
        effects = plane.ask(one, version=2)
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        assert len(plane.decided) == 1

    @pytest.mark.proves("S4")
    def test_who_lacks_what_it_was_sent_collects_it(self) -> None:
        """S4: rows that are gone on one node are had from another."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        one = stage(1, a=1, b=1)
        effects = plane.ask(one, version=2)
        plane.verified(plane.told(VerifyStages, effects, "a"), "a")
        effects = plane.verified(plane.told(VerifyStages, effects, "b"), "b", one)
        assert plane.told(CollectStages, effects, "b").sources == (
            source("a", 0, 1, 2, 3),
        )

    @pytest.mark.proves("W4")
    def test_two_that_were_given_up_leave_nobody(self) -> None:
        """W4: in one batch, both copies of a key group lack rows: it is run again."""
        plane = MovingPlane()
        plane.assign(assignment(2, "ab", "ab ab ba ba"))
        one, two = (
            StageRecord(
                stage_id=bytes(15) + bytes([number]),
                chunk_counts={there: 1},
                row_count=1,
                given_up=(gone,),
            )
            for number, (there, gone) in enumerate((("a", "b"), ("b", "a")))
        )
        error = refusal(plane.ask(one, two, version=2))
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("a", "b"))


def test_names_of_answers_differ_between_assignments_and_key_groups() -> None:
    """A late answer is never taken for one to something else."""
    names = [
        verify_id_of(APP, 1, 0, (BOTH,)),
        verify_id_of(APP, 1, 0, (BOTH,), assignment_version=1),
        verify_id_of(APP, 1, 0, (BOTH,), assignment_version=2),
        verify_id_of(APP, 1, 0, (BOTH,), key_groups=(0,)),
        verify_id_of(APP, 1, 0, (BOTH,), key_groups=(0, 1)),
    ]
    assert len(set(names)) == len(names)
