"""Which batches are new, which repeat, and which come too late (W4)."""

from __future__ import annotations

import pytest

from nameservice import ConfigurationError, LocalProtocolError
from queryablestate import CheckpointRewoundError
from queryablestate.control.job.batch_order import (
    Repeated,
    check_commit,
    check_rising,
    query_progress,
    repetition_of,
)
from queryablestate.wire.clients import CommitBatch
from queryablestate.wire.records import QueryProgress, RunRecord, StateProgress
from tests.queryablestate.control_plane import commit, stage


def done(batch_id: int, *, epoch: int = 5, sequence: int = 1) -> QueryProgress:
    """Return what a query has written."""
    return QueryProgress(
        query_id="query", batch_id=batch_id, writer_epoch=epoch, sequence=sequence
    )


def run(batch_id: int | None = None) -> RunRecord:
    """Return a run that has written so far."""
    return RunRecord(
        query_id="query",
        run_id="run-1",
        writer_epoch=5,
        batch_id=batch_id,
    )


def test_a_query_is_known_by_the_states_that_it_wrote() -> None:
    """Also if another one owns them now."""
    progress = StateProgress(
        state_number=1,
        query_id="owner",
        owner_epoch=9,
        generation=2,
        batch_id=0,
        decided_at_us=0,
        queries=(done(4),),
    )
    assert query_progress(progress, "query") == done(4)
    assert query_progress(progress, "owner") is None


class TestRepetition:
    """A batch that every state has."""

    def test_it_is_told_with_its_last_entry(self) -> None:
        """One that waits for it waits for all of it."""
        had = {1: done(4, sequence=7), 2: done(4, sequence=9)}
        again = Repeated(batch_id=4, sequence=9)
        assert repetition_of(run(), commit(5, 4), had) == again

    @pytest.mark.parametrize(
        "had",
        [{1: None}, {1: done(4), 2: None}, {1: done(3)}, {1: done(4), 2: done(3)}],
    )
    def test_what_one_state_lacks_is_none(
        self, had: dict[int, QueryProgress | None]
    ) -> None:
        """No state goes without a batch because another has it."""
        assert repetition_of(run(), commit(5, 4), had) is None

    def test_a_batch_job_repeats_what_its_run_wrote(self) -> None:
        """It has no batch ids of its own."""
        job = commit(5, None)
        assert repetition_of(run(), job, {1: done(4, epoch=4)}) is None
        assert repetition_of(run(), job, {1: done(4)}) == Repeated(
            batch_id=4, sequence=1
        )


class TestRising:
    """A batch that may be decided."""

    def test_ids_rise_by_state(self) -> None:
        """One above what any state has, or the one that some lack."""
        check_rising(run(), 5, {1: done(4), 2: None}, is_batch_job=False)
        check_rising(run(), 4, {1: done(4), 2: None}, is_batch_job=False)
        with pytest.raises(CheckpointRewoundError) as caught:
            check_rising(run(), 3, {1: done(4), 2: None}, is_batch_job=False)
        assert caught.value.args == ("query", 3, 4)

    @pytest.mark.proves("W2")
    def test_ids_rise_within_a_run(self) -> None:
        """W2: all states of a batch in one commit."""
        check_rising(run(3), 4, {1: None}, is_batch_job=False)
        for batch_id in (2, 3):
            with pytest.raises(LocalProtocolError):
                check_rising(run(3), batch_id, {1: None}, is_batch_job=False)

    def test_a_batch_job_needs_states_that_are_equally_far(self) -> None:
        """Otherwise one number would be a repetition for one of them."""
        check_rising(run(), 5, {1: done(4), 2: done(4)}, is_batch_job=True)
        with pytest.raises(LocalProtocolError):
            check_rising(run(), 4, {1: done(4), 2: done(3)}, is_batch_job=True)


@pytest.mark.parametrize(
    "request_",
    [
        commit(5, 0, state_numbers=()),
        commit(5, 0, state_numbers=(1, 1)),
        commit(5, -1),
        commit(5, 0, stage(1), stage(1)),
    ],
)
def test_what_no_writer_sends_is_refused(request_: CommitBatch) -> None:
    """Nothing is decided that would apply something twice."""
    check_commit(commit(5, 0, stage(1), stage(2), state_numbers=(1, 2)))
    check_commit(commit(5, None))
    with pytest.raises(ConfigurationError):
        check_commit(request_)
