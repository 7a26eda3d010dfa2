"""Who may write, and which batches are decided (W1, W3, W4, W5)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    NameServiceError,
    RemoteProtocolError,
)
from queryablestate import (
    CheckpointRewoundError,
    SchemaMismatchError,
    StaleWriterError,
    StateOwnedError,
    UnknownStateError,
)
from queryablestate.control.assignment.assignment import first_assignment
from queryablestate.control.job.batch_order import Repeated
from queryablestate.control.job.declarations import check_declarations
from queryablestate.control.job.job import Job
from queryablestate.control.job.job_changes import JobChange
from queryablestate.wire.clients import BindRun, CommitBatch, StateDeclaration
from queryablestate.wire.records import (
    BatchDecided,
    BatchState,
    JobRecord,
    QueryProgress,
    RunRecord,
    StateDropped,
    StateProgress,
    StateRecord,
)
from queryablestate.wire.schema_digest import DeclarationWantedError, schema_digest
from tests.queryablestate.control_plane import (
    APP,
    LIST,
    LIST_WIDER,
    VALUE,
    WALL_US,
    bind,
    commit,
    stage,
)


BOTH = {"aircraft": VALUE, "log": LIST}


def new_job() -> Job:
    """Return a job that was not written yet."""
    record = JobRecord(
        job_id=APP,
        job_number=3,
        max_parallelism=4,
        sequence=0,
        sequence_first=1,
        runs=(),
        progress=(),
    )
    assignment = first_assignment(
        {"a": "disk"}, max_parallelism=4, version=1, sequence=0
    )
    return Job(record=record, assignment=assignment)


def bound(job: Job, request: BindRun) -> None:
    """Bind a run, and take it for written."""
    number = max(job.states, default=0) + 1
    job.adopt(job.bind(request, state_number_next=number))


def decided(job: Job, request: CommitBatch) -> JobChange | Repeated:
    """Decide a batch, and take it for written."""
    change = job.decide(request, decided_at_us=WALL_US, pruned=())
    if isinstance(change, JobChange):
        job.adopt(change)
    return change


def entry_of(change: JobChange | Repeated) -> BatchDecided:
    """Return the entry of a batch that was decided just now."""
    assert isinstance(change, JobChange)
    assert isinstance(change.entry, BatchDecided)
    return change.entry


class TestRoute:
    """Which node is asked for which key group."""

    @pytest.mark.proves("B2")
    def test_it_is_made_once_for_each_assignment(self) -> None:
        """B2: all who ask are told the same one; another assignment has another."""
        job = new_job()
        route = job.primary_indexes()
        assert route == (0, 0, 0, 0)
        assert job.primary_indexes() is route
        job.assignment = first_assignment(
            {"a": "disk", "b": "disk"}, max_parallelism=4, version=2, sequence=0
        )
        assert job.primary_indexes() == (0, 0, 1, 1)


class TestBind:
    """A run shows its ticket."""

    @pytest.mark.proves("W1", "W5")
    def test_the_first_run_gets_states_and_owns_them(self) -> None:
        """W1, W5: its first ticket is its writer epoch; unwritten states are its."""
        job = new_job()
        change = job.bind(bind(5, states=BOTH), state_number_next=8)
        aircraft = StateRecord(state_name="aircraft", state_number=8, schema=VALUE)
        log = StateRecord(state_name="log", state_number=9, schema=LIST)
        run = RunRecord(
            query_id="query",
            run_id="run-1",
            writer_epoch=5,
            batch_id=None,
            state_numbers=(8, 9),
            born_epoch=5,
        )
        progress = tuple(
            StateProgress(
                state_number=number,
                query_id="query",
                owner_epoch=5,
                generation=1,
                batch_id=None,
                decided_at_us=0,
            )
            for number in (8, 9)
        )
        record = JobRecord(
            job_id=APP,
            job_number=3,
            max_parallelism=4,
            sequence=0,
            sequence_first=1,
            runs=(run,),
            progress=progress,
        )
        assert change == JobChange(record=record, states=(aircraft, log))

    @pytest.mark.proves("W1")
    def test_a_later_ticket_of_the_same_run_changes_nothing(self) -> None:
        """W1: the epoch of a run is its first ticket, however many batches it plans."""
        job = new_job()
        bound(job, bind(5))
        assert job.bind(bind(6), state_number_next=9) == JobChange(record=job.record)

    @pytest.mark.proves("W1")
    def test_a_newer_run_supersedes(self) -> None:
        """W1: the run with the higher first ticket is the one that may write."""
        job = new_job()
        bound(job, bind(5))
        bound(job, bind(6, run_id="run-2"))
        run = job.run_of("query")
        assert run == RunRecord(
            query_id="query",
            run_id="run-2",
            writer_epoch=6,
            batch_id=None,
            state_numbers=(1,),
            born_epoch=6,
        )

    @pytest.mark.proves("W1")
    @pytest.mark.parametrize("ticket", [4, 6, 7])
    def test_a_superseded_run_stays_over(self, ticket: int) -> None:
        """W1: a zombie that draws a fresh ticket does not become the newest run."""
        job = new_job()
        bound(job, bind(5))
        bound(job, bind(6, run_id="run-2"))
        with pytest.raises(StaleWriterError) as caught:
            job.bind(bind(ticket, born_epoch=5), state_number_next=9)
        assert caught.value.args == ("query", 5, 6)

    @pytest.mark.proves("W1")
    def test_a_run_that_never_showed_its_older_ticket_is_stale(self) -> None:
        """W1: what counts is when the ticket was drawn, not when it was shown."""
        job = new_job()
        bound(job, bind(6, run_id="run-2"))
        with pytest.raises(StaleWriterError) as caught:
            job.bind(bind(5), state_number_next=9)
        assert caught.value.args == ("query", 5, 6)

    def test_idle_queries_are_forgotten_beyond_a_bound(self) -> None:
        """The record of a job does not grow with every query that ever wrote to it."""
        job = new_job()
        for number in range(1, 251):
            bound(job, bind(number, query_id=f"query-{number}"))
        assert len(job.record.runs) == 200
        assert job.run_of("query-50") is None
        assert job.run_of("query-51") is not None

    def test_queries_that_own_state_are_not_forgotten(self) -> None:
        """A run that may still write is never taken for one that was not bound."""
        job = new_job()
        for number in range(1, 251):
            request = bind(
                number, query_id=f"query-{number}", states={f"s{number}": LIST}
            )
            bound(job, request)
        assert len(job.record.runs) == 250

    @pytest.mark.proves("W5")
    def test_added_columns_are_taken_over(self) -> None:
        """W5: nullable value columns may be added; those known are no change."""
        job = new_job()
        bound(job, bind(5, states={"log": LIST}))
        bound(job, bind(6, states={"log": LIST_WIDER}))
        assert job.states[1].schema == LIST_WIDER
        change = job.bind(bind(6, states={"log": LIST_WIDER}), state_number_next=9)
        assert change.states == ()

    @pytest.mark.proves("W5")
    def test_columns_that_are_left_out_stay_registered(self) -> None:
        """W5: a version of before goes on, by its digest too; readers lose nothing."""
        job = new_job()
        bound(job, bind(5, states={"log": LIST_WIDER}))
        request = bind(6, states={"log": LIST})
        known = replace(
            request, states=tuple(state.as_registered() for state in request.states)
        )
        for one in (request, known):
            change = job.bind(one, state_number_next=9)
            assert change.states == ()
            assert change.record.progress == job.record.progress
        other = StateDeclaration(state_name="log", digest=schema_digest(VALUE))
        with pytest.raises(DeclarationWantedError):
            job.bind(replace(request, states=(other,)), state_number_next=9)

    @pytest.mark.proves("W5")
    def test_another_schema_is_refused(self) -> None:
        """W5: a changed kind is a `SchemaMismatchError`, said for the state."""
        job = new_job()
        bound(job, bind(5, states={"log": LIST}))
        with pytest.raises(SchemaMismatchError, match="flights/log"):
            job.bind(bind(6, states={"log": VALUE}), state_number_next=9)

    @pytest.mark.proves("W5")
    def test_another_max_parallelism_is_refused_while_there_is_state(self) -> None:
        """W5: the number of key groups is fixed for the life of a job's state."""
        job = new_job()
        request = bind(5)
        check_declarations(job.record, job.states, request.states, 64)
        bound(job, request)
        check_declarations(job.record, job.states, request.states, 4)
        with pytest.raises(SchemaMismatchError, match="max_parallelism is 4"):
            check_declarations(job.record, job.states, request.states, 64)

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (bind(5, on_new_query="ask"), ConfigurationError),
            (bind(5, states={}), ConfigurationError),
            (bind(5, states={"log": "{}"}), RemoteProtocolError),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, request_: BindRun, error: type[NameServiceError]
    ) -> None:
        """A malformed request changes nothing."""
        with pytest.raises(error):
            new_job().bind(request_, state_number_next=1)

    def test_a_state_is_named_once(self) -> None:
        """Two declarations of one state could contradict each other."""
        declarations = bind(5).states * 2
        with pytest.raises(ConfigurationError, match="each once"):
            check_declarations(new_job().record, {}, declarations, 4)


class TestOwner:
    """A state is owned by one query (W5)."""

    def test_an_unwritten_state_is_whose_comes_last(self) -> None:
        """Before the first batch there is nothing that another query could spoil."""
        job = new_job()
        bound(job, bind(5))
        bound(job, bind(6, query_id="other"))
        assert job.progress_of(1).query_id == "other"
        with pytest.raises(StateOwnedError) as caught:
            decided(job, commit(5, 0))
        assert caught.value.args == (APP, "aircraft", "other", "query")

    def test_an_older_run_does_not_take_an_unwritten_state_back(self) -> None:
        """Tickets decide, not the order in which runs come to show them."""
        job = new_job()
        bound(job, bind(6, query_id="other"))
        with pytest.raises(StateOwnedError):
            job.bind(bind(5, on_new_query="replace"), state_number_next=9)

    @pytest.mark.proves("W5")
    def test_another_query_is_refused(self) -> None:
        """W5: unless it says what is to become of what is there."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 0))
        with pytest.raises(StateOwnedError):
            job.bind(bind(6, query_id="other"), state_number_next=9)
        bound(job, bind(6, query_id="other", on_new_query="continue"))
        with pytest.raises(StateOwnedError):
            decided(job, commit(6, 0, query_id="other"))

    @pytest.mark.proves("W5")
    @pytest.mark.parametrize(
        ("on_new_query", "is_replaced"), [("replace", True), ("continue", False)]
    )
    def test_the_first_batch_of_another_query_takes_over(
        self, on_new_query: str, is_replaced: bool
    ) -> None:
        """W5: a new generation; cleared by the same commit if it replaces."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 4))
        bound(job, bind(6, query_id="other", on_new_query=on_new_query))
        assert job.progress_of(1).query_id == "query"
        change = decided(job, commit(6, 0, query_id="other", on_new_query=on_new_query))
        assert entry_of(change).states == (
            BatchState(
                state_number=1,
                kind="value",
                has_ttl=False,
                generation=2,
                is_replaced=is_replaced,
            ),
        )
        assert job.progress_of(1) == StateProgress(
            state_number=1,
            query_id="other",
            owner_epoch=6,
            generation=2,
            batch_id=0,
            decided_at_us=WALL_US,
            replaced_sequence=2 if is_replaced else 0,
            queries=(
                QueryProgress(query_id="query", batch_id=4, writer_epoch=5, sequence=1),
                QueryProgress(query_id="other", batch_id=0, writer_epoch=6, sequence=2),
            ),
        )
        # Only the first batch replaces.
        change = decided(job, commit(6, 1, query_id="other", on_new_query=on_new_query))
        assert not entry_of(change).states[0].is_replaced

    def test_a_run_that_is_older_than_the_last_writer_takes_nothing(self) -> None:
        """A driver that slept through its replacement comes too late."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 0))
        bound(job, bind(6, query_id="other", on_new_query="replace"))
        bound(job, bind(7, run_id="run-2"))
        decided(job, commit(7, 1, run_id="run-2"))
        with pytest.raises(StateOwnedError):
            decided(job, commit(6, 0, query_id="other", on_new_query="replace"))

    @pytest.mark.proves("W4")
    def test_a_query_that_comes_back_is_held_to_what_it_wrote(self) -> None:
        """W4: what was decided for it stays decided, though another wrote meanwhile."""
        job = new_job()
        bound(job, bind(5, states={"log": LIST}))
        decided(job, commit(5, 4))
        bound(
            job,
            bind(6, query_id="other", states={"log": LIST}, on_new_query="continue"),
        )
        decided(job, commit(6, 0, query_id="other", on_new_query="continue"))
        bound(
            job, bind(7, run_id="run-2", states={"log": LIST}, on_new_query="continue")
        )
        again = commit(7, 4, run_id="run-2", on_new_query="continue")
        assert decided(job, again) == Repeated(batch_id=4, sequence=1)
        with pytest.raises(CheckpointRewoundError):
            decided(job, commit(7, 3, run_id="run-2", on_new_query="continue"))
        change = decided(job, commit(7, 5, run_id="run-2", on_new_query="continue"))
        assert entry_of(change).states[0].generation == 3


class TestDecide:
    """Batches are decided once, and in order (W3, W4)."""

    @pytest.mark.proves("W3")
    def test_a_batch_is_an_entry_of_the_chain(self) -> None:
        """W3: the decision says which executions won, for what, by which run."""
        job = new_job()
        bound(job, bind(5, states=BOTH))
        first, second = stage(1, a=2), stage(2)
        request = commit(5, 7, first, second, state_numbers=(1, 2))
        change = job.decide(request, decided_at_us=WALL_US, pruned=())
        states = tuple(
            BatchState(
                state_number=number,
                kind=kind,
                has_ttl=False,
                generation=1,
                is_replaced=False,
            )
            for number, kind in ((1, "value"), (2, "list"))
        )
        mine = QueryProgress(query_id="query", batch_id=7, writer_epoch=5, sequence=1)
        assert change == JobChange(
            record=JobRecord(
                job_id=APP,
                job_number=3,
                max_parallelism=4,
                sequence=1,
                sequence_first=1,
                runs=(
                    RunRecord(
                        query_id="query",
                        run_id="run-1",
                        writer_epoch=5,
                        batch_id=7,
                        state_numbers=(1, 2),
                        born_epoch=5,
                    ),
                ),
                progress=tuple(
                    StateProgress(
                        state_number=number,
                        query_id="query",
                        owner_epoch=5,
                        generation=1,
                        batch_id=7,
                        decided_at_us=WALL_US,
                        queries=(mine,),
                    )
                    for number in (1, 2)
                ),
            ),
            entry=BatchDecided(
                sequence=1,
                query_id="query",
                writer_epoch=5,
                batch_id=7,
                assignment_version=1,
                decided_at_us=WALL_US,
                states=states,
                stages=(first, second),
            ),
        )

    @pytest.mark.proves("W4")
    def test_a_decided_batch_is_repeated(self) -> None:
        """W4: acknowledged and not applied again, by the same run or a later one."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 0, stage(1, a=1)))
        assert decided(job, commit(5, 0)) == Repeated(batch_id=0, sequence=1)
        bound(job, bind(6, run_id="run-2"))
        again = commit(6, 0, stage(2, a=9), run_id="run-2")
        assert decided(job, again) == Repeated(batch_id=0, sequence=1)

    @pytest.mark.proves("W4")
    def test_batches_may_be_skipped_but_not_go_back(self) -> None:
        """W4: an offline repartition skips one; a lower one is an older checkpoint."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 0))
        decided(job, commit(5, 2))
        bound(job, bind(6, run_id="run-2"))
        with pytest.raises(CheckpointRewoundError) as caught:
            decided(job, commit(6, 1, run_id="run-2"))
        assert caught.value.args == ("query", 1, 2)

    @pytest.mark.proves("W6")
    def test_complete_mode_replaces(self) -> None:
        """W6: the rows of such a batch are all there is."""
        job = new_job()
        bound(job, bind(5))
        change = decided(job, commit(5, 0, is_complete=True))
        assert entry_of(change).states[0].is_replaced

    @pytest.mark.proves("W4")
    def test_a_state_that_was_added_gets_the_batch_that_comes_again(self) -> None:
        """W4: what one state has, and another lacks, is decided for the latter."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 3))
        bound(job, bind(6, run_id="run-2", states=BOTH))
        assert job.batch_id_of("query", (1, 2)) is None
        again = commit(6, 3, stage(2, a=1), run_id="run-2", state_numbers=(1, 2))
        change = decided(job, again)
        assert [s.state_number for s in entry_of(change).states] == [2]
        assert job.batch_id_of("query", (1, 2)) == 3
        assert decided(job, again) == Repeated(batch_id=3, sequence=2)
        entry = entry_of(
            decided(job, commit(6, 4, run_id="run-2", state_numbers=(1, 2)))
        )
        assert [s.state_number for s in entry.states] == [1, 2]

    @pytest.mark.proves("W2")
    @pytest.mark.parametrize("batch_id", [2, 3])
    def test_a_run_writes_all_states_of_a_batch_in_one_commit(
        self, batch_id: int
    ) -> None:
        """W2: a node drops what a run staged for a batch once that is applied."""
        job = new_job()
        bound(job, bind(5, states=BOTH))
        decided(job, commit(5, 3, state_numbers=(1,)))
        with pytest.raises(LocalProtocolError, match="one commit"):
            decided(job, commit(5, batch_id, state_numbers=(2,)))

    @pytest.mark.proves("W1")
    def test_a_superseded_run_decides_nothing(self) -> None:
        """W1: also if it had staged everything, and if it lies about its epoch."""
        job = new_job()
        bound(job, bind(5))
        bound(job, bind(6, run_id="run-2"))
        for request in (commit(5, 0), commit(6, 0), commit(5, 0, run_id="run-2")):
            with pytest.raises(StaleWriterError):
                decided(job, request)

    @pytest.mark.proves("W1")
    @pytest.mark.parametrize(
        "request_",
        [commit(6, 0, query_id="other"), commit(6, 0, run_id="run-2")],
    )
    def test_a_run_binds_first(self, request_: CommitBatch) -> None:
        """W1: without a binding it is not known which run is the newer one."""
        job = new_job()
        bound(job, bind(5))
        with pytest.raises(LocalProtocolError, match="is not bound"):
            decided(job, request_)

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (commit(5, 0, state_numbers=(2,)), UnknownStateError),
            (commit(5, 0, state_numbers=()), ConfigurationError),
            (commit(5, 0, state_numbers=(1, 1)), ConfigurationError),
            (commit(5, -1), ConfigurationError),
            (commit(5, 0, stage(1, a=1), stage(1, a=1)), ConfigurationError),
            (commit(5, 0, on_new_query="ask"), ConfigurationError),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, request_: CommitBatch, error: type[NameServiceError]
    ) -> None:
        """Nothing is decided that would stop a chain, or apply a row twice."""
        job = new_job()
        bound(job, bind(5))
        with pytest.raises(error):
            decided(job, request_)

    def test_writers_of_a_state_are_remembered_up_to_a_bound(self) -> None:
        """The record of a job does not grow with every query that ever wrote to it."""
        job = new_job()
        for number in range(1, 41):
            query_id = f"query-{number}"
            mode = "replace" if number == 20 else "continue"
            bound(job, bind(number, query_id=query_id, on_new_query=mode))
            decided(job, commit(number, 0, query_id=query_id, on_new_query=mode))
        queries = job.progress_of(1).queries
        assert [one.query_id for one in queries] == [f"query-{n}" for n in range(9, 41)]


@pytest.mark.proves("W4")
class TestBatchJob:
    """A batch job has no batch ids of its own."""

    def test_each_run_writes_one_batch_after_the_last(self) -> None:
        """W4: asked again, a run is told which one it wrote."""
        job = new_job()
        bound(job, bind(5))
        assert job.staged_batch_id(commit(5, None)) == 0
        assert entry_of(decided(job, commit(5, None))).batch_id == 0
        assert decided(job, commit(5, None)) == Repeated(batch_id=0, sequence=1)
        bound(job, bind(6, run_id="run-2"))
        request = commit(6, None, run_id="run-2")
        assert job.staged_batch_id(request) == 1
        assert entry_of(decided(job, request)).batch_id == 1

    @pytest.mark.parametrize("run_id", ["run-1", "run-2"])
    def test_states_that_are_not_equally_far_are_refused(self, run_id: str) -> None:
        """W4: no number would be a new one for each, and none is passed over."""
        job = new_job()
        bound(job, bind(5, states=BOTH))
        decided(job, commit(5, None, state_numbers=(1,)))
        epoch = 5
        if run_id == "run-2":
            bound(job, bind(6, run_id=run_id, states=BOTH))
            epoch = 6
        with pytest.raises(LocalProtocolError):
            decided(job, commit(epoch, None, run_id=run_id, state_numbers=(1, 2)))


class TestDrop:
    """A state can be forgotten."""

    def test_dropping_is_an_entry_of_the_chain(self) -> None:
        """Every node drops it at the same place in the order of things."""
        job = new_job()
        bound(job, bind(5, states=BOTH))
        decided(job, commit(5, 0, state_numbers=(1, 2)))
        change = job.drop("log")
        assert change.entry == StateDropped(sequence=2, state_number=2)
        assert change.dropped == (2,)
        job.adopt(change)
        assert sorted(job.states) == [1]
        assert job.state_numbers_with_rows() == (1,)

    @pytest.mark.proves("W5")
    def test_a_query_begins_a_dropped_state_anew_from_any_checkpoint(self) -> None:
        """W5: what was written to the state that is gone binds none."""
        job = new_job()
        bound(job, bind(5))
        decided(job, commit(5, 7))
        job.adopt(job.drop("aircraft"))
        with pytest.raises(UnknownStateError):
            decided(job, commit(5, 8))
        change = job.bind(bind(6, run_id="run-2"), state_number_next=2)
        job.adopt(change)
        change_again = decided(job, commit(6, 7, run_id="run-2", state_numbers=(2,)))
        assert entry_of(change_again).states[0].generation == 1

    @pytest.mark.proves("W4")
    def test_dropping_one_state_forgets_nothing_of_another(self) -> None:
        """W4: no row comes twice into a list because another state was dropped."""
        job = new_job()
        bound(job, bind(5, states={"log": LIST}))
        decided(job, commit(5, 4))
        bound(
            job,
            bind(6, query_id="other", on_new_query="continue", states={"log": LIST}),
        )
        decided(job, commit(6, 0, query_id="other", on_new_query="continue"))
        bound(job, bind(7, query_id="third", states={"aircraft": VALUE}))
        job.adopt(job.drop("aircraft"))
        bound(
            job, bind(8, run_id="run-2", on_new_query="continue", states={"log": LIST})
        )
        again = commit(8, 4, run_id="run-2", on_new_query="continue")
        assert decided(job, again) == Repeated(batch_id=4, sequence=1)

    def test_an_unknown_state_is_said_to_be(self) -> None:
        """An operator learns of a slip of the keyboard."""
        with pytest.raises(UnknownStateError):
            new_job().drop("aircraft")


class TestAdopt:
    """What has been written is true."""

    def test_another_assignment_may_have_another_number_of_key_groups(self) -> None:
        """The number belongs to the assignment as long as there is no state."""
        job = new_job()
        assignment = first_assignment(
            {"a": "x"}, max_parallelism=8, version=2, sequence=0
        )
        job.adopt(job.assign(assignment, 8))
        assert job.assignment == assignment
        assert job.record.max_parallelism == 8

    @pytest.mark.proves("W3")
    def test_pruned_entries_are_gone(self) -> None:
        """W3: what is not kept is not handed out as if it were all."""
        job = new_job()
        bound(job, bind(5))
        for batch_id in range(3):
            decided(job, commit(5, batch_id))
        change = job.decide(commit(5, 3), decided_at_us=WALL_US, pruned=(1, 2))
        assert isinstance(change, JobChange)
        job.adopt(change)
        assert sorted(job.entries) == [3, 4]
        assert job.entries_after(1) is None
        assert job.entries_after(2) == [job.entries[3], job.entries[4]]
        assert job.entries_after(4) == []
