"""Batches on their way from staged to applied (W3, W4)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    StorageError,
)
from queryablestate import (
    CheckpointRewoundError,
    CommitTimeoutError,
    StagedDataMissingError,
    StaleWriterError,
    UnknownStateError,
)
from queryablestate.control.commit_verification import verify_id_of
from queryablestate.control.effects import (
    AnswerWriter,
    RefuseWriter,
    SendToNode,
    WriteStore,
)
from queryablestate.control.events import (
    LinkId,
    LinksClosed,
    NodeSpoke,
    RightsReplaced,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.stored_control import stored_control
from queryablestate.wire.batch_digest import digest_of
from queryablestate.wire.clients import BatchCommitted, CommitBatch
from queryablestate.wire.node_messages import ApplyEntries, RegisterNode, VerifyStages
from queryablestate.wire.records import BatchDecided, BatchState, StageRecord
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    EPOCH,
    LINK_A,
    LINK_B,
    LIST,
    SECOND,
    TIMEOUT_NS,
    VALUE,
    WALL_US,
    Plane,
    applied,
    bind,
    commit,
    draw,
    drop,
    heartbeat,
    node_register,
    refusal,
    sent,
    stage,
    verified,
)


AGAIN = LinkId(20)
STATE = BatchState(
    state_number=1, kind="value", has_ttl=False, generation=1, is_replaced=False
)


def verify_id(batch_id: int, *stages: StageRecord, epoch: int = 1) -> int:
    """Return what names the verification of a batch."""
    return verify_id_of(APP, epoch, batch_id, stages, assignment_version=1)


def verification(
    batch_id: int, *stages: StageRecord, node_id: str = "a"
) -> VerifyStages:
    """Return what a node is asked to verify: what it should have of each stage."""
    return VerifyStages(
        leader_epoch=EPOCH,
        verify_id=verify_id(batch_id, *stages),
        job_id=APP,
        writer_epoch=1,
        batch_id=batch_id,
        stages=tuple(
            replace(one, chunk_counts={node_id: one.chunk_counts[node_id]})
            for one in stages
            if one.chunk_counts.get(node_id)
        ),
        query_id="query",
        states=(STATE,),
    )


def decided(sequence: int, batch_id: int, *stages: StageRecord) -> ApplyEntries:
    """Return what the nodes are told of a decision."""
    entry = BatchDecided(
        sequence=sequence,
        query_id="query",
        writer_epoch=1,
        batch_id=batch_id,
        assignment_version=1,
        decided_at_us=WALL_US,
        states=(STATE,),
        stages=stages,
    )
    return ApplyEntries(leader_epoch=EPOCH, job_id=APP, entries=(entry,))


def committed(
    batch_id: int, *, link: LinkId = DRIVER, is_repeated: bool = False
) -> AnswerWriter:
    """Return the answer that every owner has applied a batch."""
    message = BatchCommitted(request_id=3, batch_id=batch_id, is_repeated=is_repeated)
    return AnswerWriter(link=link, message=message)


def asked(request: CommitBatch, link: LinkId = DRIVER) -> WriterAsked:
    """Return that a writer asked."""
    return WriterAsked(link=link, request=request, wall_clock_us=WALL_US)


@pytest.mark.proves("C1")
class TestRights:
    """A writer may lose the right to write while its commit waits."""

    def test_what_waits_for_nodes_is_asked_for_again(self) -> None:
        """C1: it was decided when they had answered, for one that had lost it."""
        plane = Plane()
        plane.start_job()
        request = commit(1, 0, stage(1, a=1))
        plane.step(asked(request))
        (effect,) = plane.step(RightsReplaced())
        assert isinstance(effect, RefuseWriter)
        assert isinstance(effect.error, DidNotHappenError)
        said = verified("a", verify_id(0, stage(1, a=1)))
        assert plane.step(_spoke(LINK_A, said)) == ()
        assert plane.step(asked(request)) != ()

    def test_what_waits_to_be_written_is_asked_for_again(self) -> None:
        """C1: as where the leader store is slow; what is being written is written."""
        plane = Plane()
        plane.start_job()
        first, second = (commit(1, n, stage(n + 1, a=1)) for n in (0, 1))
        plane.step(asked(first))
        (write,) = plane.step(
            _spoke(LINK_A, verified("a", verify_id(0, stage(1, a=1))))
        )
        assert isinstance(write, WriteStore)
        plane.step(asked(second, AGAIN))
        plane.step(_spoke(LINK_A, verified("a", verify_id(1, stage(2, a=1)))))
        assert plane.step(RightsReplaced()) == ()
        refused, *told = plane.step(StoreWritten())[::-1]
        assert isinstance(refused, RefuseWriter)
        assert isinstance(refused.error, DidNotHappenError)
        assert refused.link == AGAIN
        assert told


class TestPhases:
    """A batch is verified, decided and applied."""

    @pytest.mark.proves("W3")
    def test_nothing_is_decided_before_every_node_has_what_it_needs(self) -> None:
        """W3: verify, write, tell, and answer when the last owner has applied."""
        plane = Plane()
        plane.start_job()
        both = stage(1, a=2, b=1)
        only_b = stage(2, a=0, b=1)
        assert plane.step(asked(commit(1, 0, both, only_b))) == (
            SendToNode(link=LINK_A, message=verification(0, both, only_b)),
            SendToNode(link=LINK_B, message=verification(0, both, only_b, node_id="b")),
        )
        number = verify_id(0, both, only_b)
        said = verified("a", number)
        assert plane.step(_spoke(LINK_A, said)) == ()
        assert plane.step(_spoke(LINK_A, said)) == ()  # once more says nothing more
        (write,) = plane.step(_spoke(LINK_B, verified("b", number)))
        assert isinstance(write, WriteStore)
        message = decided(1, 0, both, only_b)
        assert plane.step(StoreWritten()) == (
            SendToNode(link=LINK_A, message=message),
            SendToNode(link=LINK_B, message=message),
        )
        assert plane.step(_spoke(LINK_B, applied("b", 1))) == ()
        assert plane.step(_spoke(LINK_A, applied("a", 1))) == (committed(0),)

    def test_a_batch_without_rows_needs_no_verification(self) -> None:
        """An empty batch is decided like any other: batch ids go on."""
        plane = Plane()
        plane.start_job()
        (write,) = plane.step(asked(commit(1, 0)))
        assert isinstance(write, WriteStore)

    @pytest.mark.proves("W4")
    def test_a_repeated_batch_is_acknowledged(self) -> None:
        """W4: at once if it is applied; nothing is verified or written again."""
        plane = Plane()
        plane.start_job()
        plane.decide(commit(1, 0))
        assert plane.step(asked(commit(1, 0))) == (committed(0, is_repeated=True),)

    @pytest.mark.proves("W3")
    def test_a_repeated_batch_waits_until_it_is_applied(self) -> None:
        """W3: Spark's commit returns when the owners have applied."""
        plane = Plane()
        plane.start_job()
        plane.ask(commit(1, 0))
        plane.next_leader()
        assert plane.ask(commit(1, 0)) == []
        plane.hear(LINK_A, node_register("a", positions={APP: 1}))
        effects = plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        assert effects[-1:] == [committed(0, is_repeated=True)]

    def test_a_later_commit_does_not_wait_for_an_earlier_one(self) -> None:
        """Queries of one job are decided as they come, and applied in that order."""
        plane = Plane()
        plane.start_job()
        states = {"log": LIST}
        plane.bind(plane.draw(), query_id="other", run_id="run-9", states=states)
        plane.ask(commit(1, 0))
        other = commit(2, 0, query_id="other", run_id="run-9", state_numbers=(2,))
        plane.ask(other)
        effects = plane.hear(LINK_A, applied("a", 2))
        assert effects == []
        assert plane.hear(LINK_B, applied("b", 1)) == [committed(0)]
        assert plane.hear(LINK_B, applied("b", 2)) == [committed(0)]

    def test_a_report_of_another_job_changes_nothing(self) -> None:
        """Jobs have chains of their own."""
        plane = Plane()
        plane.start_job()
        other = plane.draw(job_id="other")
        plane.bind(other, job_id="other", query_id="else")
        request = commit(other, 0, job_id="other", query_id="else", state_numbers=(2,))
        plane.ask(request)
        plane.ask(commit(1, 0))
        assert plane.hear(LINK_A, applied("a", 1)) == []
        assert plane.hear(LINK_B, applied("b", 1)) == [committed(0)]


def asked_again(both: StageRecord, other: RegisterNode) -> tuple[Plane, VerifyStages]:
    """Have *other* come in place of a node that has verified; return its question."""
    plane = Plane()
    plane.start_job()
    plane.ask(commit(1, 0, both))
    plane.hear(LINK_A, verified("a", verify_id(0, both)))
    plane.settle(LinksClosed(links=(LINK_A,)))
    plane.hear(AGAIN, other)
    (asked,) = sent(plane.hear(LINK_B, verified("b", verify_id(0, both))), AGAIN)
    assert isinstance(asked, VerifyStages)
    return plane, asked


class TestRefused:
    """Nothing happens, and the writer learns why."""

    @pytest.mark.proves("W4")
    def test_missing_rows_end_a_commit(self) -> None:
        """W4: `StagedDataMissingError` says on which node."""
        plane = Plane()
        plane.start_job()
        both = stage(1, a=1, b=1)
        plane.ask(commit(1, 0, both))
        error = refusal(plane.hear(LINK_B, verified("b", verify_id(0, both), both)))
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("b",))
        assert plane.hear(LINK_A, verified("a", verify_id(0, both))) == []
        # Nothing is left of it: the next attempt begins from the start.
        assert sent(plane.ask(commit(1, 0, both)), LINK_A) == [verification(0, both)]

    @pytest.mark.proves("W3")
    def test_a_node_without_room_ends_a_commit(self) -> None:
        """W3: nothing is decided; the error names the node and says what it said."""
        plane = Plane()
        plane.start_job()
        both = stage(1, a=1, b=1)
        plane.ask(commit(1, 0, both))
        full = replace(verified("b", verify_id(0, both)), failure="/data is full")
        error = refusal(plane.hear(LINK_B, full))
        assert isinstance(error, StorageError)
        assert "batch 0 is not decided" in str(error)
        assert "node b could not apply it: /data is full" in str(error)
        assert plane.hear(LINK_A, verified("a", verify_id(0, both))) == []
        # There is room again: the next attempt begins from the start.
        plane.ask(commit(1, 0, both))
        plane.hear(LINK_A, verified("a", verify_id(0, both)))
        effects = plane.hear(LINK_B, verified("b", verify_id(0, both)))
        assert sent(effects, LINK_A) == [decided(1, 0, both)]

    def test_an_answer_to_something_else_verifies_nothing(self) -> None:
        """An answer that comes late, even from before, names what it was to."""
        plane = Plane()
        plane.start_job()
        plane.ask(commit(1, 0, stage(1, a=1)))
        assert plane.hear(LINK_A, verified("a", verify_id(0, stage(2, a=1)))) == []
        assert plane.hear(LINK_B, verified("b", verify_id(0, stage(1, a=1)))) == []

    @pytest.mark.proves("W7")
    def test_another_disk_has_verified_nothing(self) -> None:
        """W7: rows that were verified are gone with the directory they were in."""
        both = stage(1, a=1, b=1)
        plane, asked = asked_again(both, node_register("a", store_id="another"))
        error = refusal(plane.hear(AGAIN, verified("a", asked.verify_id, both)))
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("a",))

    @pytest.mark.proves("W7")
    def test_another_process_is_asked_again(self) -> None:
        """W7: its data directory may have been put back to an older state."""
        both = stage(1, a=1, b=1)
        other = node_register("a", registration_id="process-a-2")
        plane, asked = asked_again(both, other)
        said = replace(verified("a", asked.verify_id), registration_id="process-a-2")
        assert sent(plane.hear(AGAIN, said), AGAIN) == [decided(1, 0, both)]

    @pytest.mark.proves("W3")
    def test_a_batch_of_another_assignment_is_run_again(self) -> None:
        """W3: a batch is pinned to one assignment; its rows may be elsewhere."""
        plane = Plane()
        plane.start_job()
        error = refusal(plane.ask(commit(1, 0, assignment_version=2)))
        assert isinstance(error, StagedDataMissingError)
        assert error.args == (0, ("a", "b"))

    def test_nodes_without_a_part_are_refused(self) -> None:
        """A decision names no node that would never be asked to apply it."""
        plane = Plane()
        plane.start_job()
        with pytest.raises(LocalProtocolError, match="nodes c hold no state"):
            raise refusal(plane.ask(commit(1, 0, stage(1, c=1))))

    @pytest.mark.proves("W1")
    def test_a_run_that_is_superseded_meanwhile_decides_nothing(self) -> None:
        """W1: what counts is what is true when the decision is written."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        plane.new_run("run-2")
        with pytest.raises(StaleWriterError):
            raise refusal(plane.hear(LINK_A, verified("a", verify_id(0, one))))

    @pytest.mark.proves("W1", "S2")
    @pytest.mark.parametrize("is_bound", [True, False])
    def test_rows_that_a_newer_run_has_superseded_are_not_missing(
        self, *, is_bound: bool
    ) -> None:
        """W1, S2: nodes drop them when they apply its batch; the older run is over."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        if is_bound:
            plane.new_run("run-2")
            plane.decide(commit(2, 0, run_id="run-2"))
        else:  # its tasks bind for now: its commit is the first that is known of it
            plane.ask(draw())
            plane.decide(commit(2, 0, run_id="run-2", born_epoch=2))
        late = verified("a", verify_id(0, one), one)
        with pytest.raises(StaleWriterError) as caught:
            raise refusal(plane.hear(LINK_A, late))
        assert caught.value.args == ("query", 1, 2)

    def test_a_state_that_is_dropped_meanwhile_is_not_written(self) -> None:
        """A decision names no state that is gone."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        plane.ask(drop())
        with pytest.raises(UnknownStateError):
            raise refusal(plane.hear(LINK_A, verified("a", verify_id(0, one))))

    @pytest.mark.proves("W4")
    def test_an_older_checkpoint_is_refused_at_once(self) -> None:
        """W4: nothing need be verified for it."""
        plane = Plane()
        plane.start_job()
        plane.decide(commit(1, 4))
        plane.new_run("run-2")
        with pytest.raises(CheckpointRewoundError):
            raise refusal(plane.ask(commit(2, 3, run_id="run-2")))

    @pytest.mark.proves("W4")
    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_a_checkpoint_that_is_one_batch_old_is_refused(
        self, *, is_restarted: bool
    ) -> None:
        """W4: its next batch has a number that is decided, and other rows."""
        plane = Plane()
        plane.start_job()
        one, other = (digest_of("schema", total) for total in (1, 2))
        plane.decide(commit(1, 4, digests=(one,)))
        if is_restarted:
            plane.next_leader()
            plane.hear(LINK_A, node_register("a", positions={APP: 1}))
            plane.hear(LINK_B, node_register("b", positions={APP: 1}))
        epoch = plane.new_run("run-2")
        request = commit(epoch, 4, run_id="run-2", digests=(other,))
        error = refusal(plane.ask(request))
        assert isinstance(error, CheckpointRewoundError)
        assert error.args == ("query", 4, 4)
        assert "decided with other rows" in str(error)
        # The very batch is a repetition, and so is what cannot be compared.
        for digests in ((one,), (), (digest_of("wider", 2),)):
            request = commit(epoch, 4, run_id="run-2", digests=digests)
            assert plane.decide(request)[-1] == committed(4, is_repeated=True)
        (answer,) = plane.decide(commit(epoch, 5, run_id="run-2", digests=(other,)))
        assert answer == committed(5, is_repeated=False)

    @pytest.mark.proves("W4", "B4")
    def test_a_query_that_returns_after_many_others_repeats_its_batch(self) -> None:
        """W4, B4: as many may go on with a state as can be told apart; no more."""
        plane = Plane()
        plane.start_job()
        plane.decide(commit(1, 0))
        for number in range(2, 33):
            query_id, run_id = f"q{number}", f"run-{number}"
            epoch = plane.new_run(run_id, query_id=query_id)
            request = commit(epoch, 0, query_id=query_id, run_id=run_id)
            plane.decide(replace(request, on_new_query="continue"))
        ticket = plane.draw()
        one_more = bind(ticket, query_id="q33", run_id="a", on_new_query="continue")
        error = refusal(plane.ask(one_more))
        assert isinstance(error, ConfigurationError)
        assert "32 queries" in str(error)
        epoch = plane.new_run("run-99")
        again = replace(commit(epoch, 0, run_id="run-99"), on_new_query="continue")
        assert plane.decide(again)[-1] == committed(0, is_repeated=True)
        # What is replaced is gone, and so is what there was to be repeated.
        for number in range(33, 36):
            query_id, run_id = f"q{number}", f"run-{number}"
            mode = "replace" if number == 33 else "continue"
            ticket = plane.draw()
            plane.bind(ticket, query_id=query_id, run_id=run_id, on_new_query=mode)
            request = commit(ticket, 0, query_id=query_id, run_id=run_id)
            request = replace(request, on_new_query=mode)
            assert plane.decide(request)[-1] == committed(0)
        (stored,) = stored_control(plane.store).jobs
        progress = stored.record.progress[0]
        assert len(progress.queries) == 32
        assert [one.query_id for one in progress.queries[-3:]] == ["q33", "q34", "q35"]

    def test_a_write_that_did_not_happen_fails_the_commit(self) -> None:
        """The writer may try again: nothing was decided."""
        plane = Plane()
        plane.start_job()
        plane.step(asked(commit(1, 0)))
        failed = StoreFailed(error=DidNotHappenError("no"), is_certain=True)
        (refused,) = plane.step(failed)
        assert isinstance(refused, RefuseWriter)
        assert isinstance(refused.error, DidNotHappenError)
        (write,) = plane.step(asked(commit(1, 0)))
        assert isinstance(write, WriteStore)


class TestAgain:
    """Writers ask again, and several may wait for one batch."""

    @pytest.mark.proves("W3")
    def test_who_asks_again_joins(self) -> None:
        """W3: repeating a commit is harmless; all who ask are answered."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        assert plane.step(asked(commit(1, 0, one), AGAIN)) == ()
        plane.hear(LINK_A, verified("a", verify_id(0, one)))
        assert plane.step(asked(commit(1, 0, one), LinkId(21))) == ()
        plane.hear(LINK_A, applied("a", 1))
        assert plane.hear(LINK_B, applied("b", 1)) == [
            committed(0),
            committed(0, link=AGAIN),
            committed(0, link=LinkId(21)),
        ]

    @pytest.mark.proves("W2")
    def test_other_stages_are_verified_instead(self) -> None:
        """W2: a batch that was run again has other stages; either are the batch."""
        plane = Plane()
        plane.start_job()
        first, second = stage(1, a=1), stage(2, a=1)
        plane.ask(commit(1, 0, first))
        effects = plane.ask(commit(1, 0, second))
        assert sent(effects, LINK_A) == [verification(0, second)]
        assert plane.hear(LINK_A, verified("a", verify_id(0, first))) == []
        effects = plane.hear(LINK_A, verified("a", verify_id(0, second)))
        assert sent(effects, LINK_A) == [decided(1, 0, second)]

    @pytest.mark.proves("W4")
    def test_a_commit_for_other_states_is_one_of_its_own(self) -> None:
        """W4: none is told that a batch is committed which is not."""
        plane = Plane()
        plane.start_job()
        plane.new_run("run-2")
        one = stage(1, a=1)
        plane.ask(commit(2, 0, one, run_id="run-2"))
        with pytest.raises(UnknownStateError):
            raise refusal(
                plane.ask(commit(2, 0, one, run_id="run-2", state_numbers=(1, 5)))
            )

    @pytest.mark.proves("W3")
    def test_a_decision_goes_on_though_its_writer_has_gone(self) -> None:
        """W3: what waits for its turn is decided, for the next that asks."""
        plane = Plane()
        plane.start_job()
        busy = WriterAsked(
            link=AGAIN, request=draw(job_id="other"), wall_clock_us=WALL_US
        )
        (write,) = plane.step(busy)
        assert isinstance(write, WriteStore)
        assert plane.step(asked(commit(1, 0))) == ()
        assert plane.step(LinksClosed(links=(DRIVER,))) == ()
        plane.write(write)
        effects = plane.settle(StoreWritten())
        assert sent(effects, LINK_A)[-1] == decided(1, 0)
        plane.hear(LINK_A, applied("a", 1))
        plane.hear(LINK_B, applied("b", 1))
        assert plane.ask(commit(1, 0)) == [committed(0, is_repeated=True)]

    @pytest.mark.proves("W4")
    def test_two_requests_for_one_batch_are_one_decision(self) -> None:
        """W4: whichever comes to its turn second finds the batch decided."""
        plane = Plane()
        plane.start_job(states={"aircraft": VALUE, "log": LIST})
        (write,) = plane.step(asked(commit(1, 0, state_numbers=(1, 2))))
        assert isinstance(write, WriteStore)
        assert plane.step(asked(commit(1, 0, state_numbers=(2, 1)), AGAIN)) == ()
        effects = plane.settle(StoreWritten())
        assert len(sent(effects, LINK_A)) == 1
        plane.hear(LINK_A, applied("a", 1))
        assert plane.hear(LINK_B, applied("b", 1)) == [
            committed(0),
            committed(0, link=AGAIN, is_repeated=True),
        ]

    @pytest.mark.proves("W4")
    def test_a_batch_that_was_decided_for_a_newer_run_meanwhile(self) -> None:
        """W4: the older run's decision comes to its turn too late, and is refused."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        plane.new_run("run-2")
        plane.decide(commit(2, 0, run_id="run-2"))
        with pytest.raises(StaleWriterError):
            raise refusal(plane.hear(LINK_A, verified("a", verify_id(0, one))))


class TestWaiting:
    """Nodes and writers come and go while a commit is on its way."""

    @pytest.mark.proves("W3")
    def test_a_node_that_is_away_verifies_when_it_is_back(self) -> None:
        """W3: nothing is lost; the commit goes on where it was."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_A,)))
        one = stage(1, a=1)
        assert plane.ask(commit(1, 0, one)) == []
        effects = plane.hear(AGAIN, node_register("a"))
        assert sent(effects, AGAIN)[-1] == verification(0, one)

    def test_a_node_that_has_nothing_to_verify_is_not_asked(self) -> None:
        """A node that is back hears of what concerns it."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.ask(commit(1, 0, stage(1, a=1)))
        effects = plane.hear(AGAIN, node_register("b"))
        assert len(sent(effects, AGAIN)) == 1

    @pytest.mark.proves("W3")
    def test_an_undecided_commit_times_out(self) -> None:
        """W3: the error says what was waited for, and that nothing was decided."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.ask(commit(1, 0, stage(1, a=1), timeout_ms=1_000))
        assert plane.core.next_deadline_ns() == SECOND
        plane.now_ns = SECOND - 1
        assert plane.step(TimePassed()) == ()
        plane.now_ns = SECOND
        error = refusal(plane.step(TimePassed()))
        assert isinstance(error, CommitTimeoutError)
        assert (error.batch_id, error.waited_seconds) == (0, 1.0)
        assert (error.node_ids, error.is_decided) == (("a",), False)
        assert sent(plane.hear(AGAIN, node_register("a")), AGAIN)[1:] == []

    @pytest.mark.proves("W3")
    def test_a_decided_commit_times_out(self) -> None:
        """W3: the batch is committed; one that asks again waits for the rest."""
        plane = Plane()
        plane.start_job()
        plane.settle(LinksClosed(links=(LINK_A,)))
        plane.ask(commit(1, 0, timeout_ms=1_000))
        plane.hear(LINK_B, applied("b", 1))
        plane.now_ns = SECOND
        error = refusal(plane.step(TimePassed()))
        assert isinstance(error, CommitTimeoutError)
        assert (error.node_ids, error.is_decided) == (("a",), True)
        assert plane.ask(commit(1, 0)) == []
        effects = plane.hear(AGAIN, node_register("a", positions={APP: 1}))
        assert effects[-1] == committed(0, is_repeated=True)

    @pytest.mark.proves("W3")
    def test_a_node_that_cannot_go_on_is_not_to_be_started(self) -> None:
        """W3: the error says what is in its way; the other one is away."""
        plane = Plane()
        plane.start_job()
        plane.ask(commit(1, 0, timeout_ms=1_000))
        plane.hear(LINK_A, applied("a", 0, failure="/data is full"))
        plane.settle(LinksClosed(links=(LINK_B,)))
        plane.now_ns = SECOND
        error = refusal(plane.step(TimePassed()))
        assert isinstance(error, CommitTimeoutError)
        assert (error.node_ids, error.is_decided) == (("a", "b"), True)
        assert error.failures == {"a": "/data is full"}
        assert "node a is there, but cannot go on: /data is full" in str(error)
        assert "start b; then run the batch again" in str(error)

    def test_one_of_two_times_out(self) -> None:
        """Each writer has a deadline of its own."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one, timeout_ms=1_000))
        plane.step(asked(commit(1, 0, one), AGAIN))
        plane.now_ns = SECOND
        (refused,) = plane.step(TimePassed())
        assert isinstance(refused, RefuseWriter)
        assert refused.link == DRIVER
        plane.hear(LINK_A, verified("a", verify_id(0, one)))
        plane.hear(LINK_A, applied("a", 1))
        assert plane.hear(LINK_B, applied("b", 1)) == [committed(0, link=AGAIN)]

    def test_a_decision_that_is_being_written_goes_on_without_its_writer(self) -> None:
        """A write cannot be called back; what it decides is told to the nodes."""
        plane = Plane()
        plane.start_job()
        plane.step(asked(commit(1, 0, timeout_ms=1_000)))
        plane.now_ns = SECOND
        error = refusal(plane.step(TimePassed()))
        assert isinstance(error, CommitTimeoutError)
        assert not error.is_decided
        effects = plane.step(StoreWritten())
        assert sent(effects, LINK_A) == [decided(1, 0)]

    def test_a_writer_that_is_gone_waits_for_nothing(self) -> None:
        """What is not waited for, and is not being written, is forgotten."""
        plane = Plane()
        plane.start_job()
        one = stage(1, a=1)
        plane.ask(commit(1, 0, one))
        plane.settle(LinksClosed(links=(DRIVER,)))
        assert plane.hear(LINK_A, verified("a", verify_id(0, one))) == []
        assert plane.core.next_deadline_ns() == TIMEOUT_NS  # of the nodes

    @pytest.mark.proves("W3")
    def test_silence_of_a_node_does_not_end_a_commit(self) -> None:
        """W3: it is decided, and is applied when the node is back."""
        plane = Plane()
        plane.start_job()
        plane.ask(commit(1, 0))
        plane.now_ns = TIMEOUT_NS - 1
        plane.hear(LINK_B, heartbeat("b", 1))
        plane.hear(LINK_B, applied("b", 1))
        plane.now_ns = TIMEOUT_NS
        plane.settle(TimePassed())
        effects = plane.hear(AGAIN, node_register("a", positions={APP: 0}))
        assert sent(effects, AGAIN)[1:] == [decided(1, 0)]
        assert plane.hear(AGAIN, applied("a", 1)) == [committed(0)]


def _spoke(link: LinkId, message: object) -> NodeSpoke:
    return NodeSpoke(link=link, message=message)  # type: ignore[arg-type]  # messages of nodes only
