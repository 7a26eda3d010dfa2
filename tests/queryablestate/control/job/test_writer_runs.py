"""Which run of a query may write (W1)."""

from __future__ import annotations

import msgspec
import pytest

from nameservice import LocalProtocolError
from queryablestate import StaleWriterError
from queryablestate.control.job.leader_paths import decode_job, encode_record
from queryablestate.control.job.writer_runs import (
    bound_run,
    committing_run,
    runs_with,
)
from queryablestate.wire.records import JobRecord, RunRecord, StateProgress
from tests.queryablestate.control_plane import bind, commit


def run(
    run_id: str,
    writer_epoch: int,
    *,
    query_id: str = "query",
    batch_id: int | None = None,
    born_epoch: int | None = None,
) -> RunRecord:
    """Return the newest run of a query."""
    return RunRecord(
        query_id=query_id,
        run_id=run_id,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        born_epoch=writer_epoch if born_epoch is None else born_epoch,
    )


def shown(
    known: RunRecord | None,
    run_id: str,
    ticket: int,
    born_epoch: int | None = 0,
    *,
    fence: int = 0,
) -> RunRecord:
    """Return the run once *run_id* has shown *ticket*."""
    request = bind(ticket, run_id=run_id, born_epoch=born_epoch)
    return bound_run(known, request, fence=fence)


@pytest.mark.proves("W1")
class TestTicket:
    """A run shows a ticket."""

    def test_the_first_run_of_a_query_is_its_newest(self) -> None:
        """W1: its writer epoch is the ticket."""
        assert shown(None, "a", 5) == run("a", 5)

    def test_the_same_run_keeps_its_epoch_and_its_batch(self) -> None:
        """W1: the first ticket counts, whatever it shows later."""
        known = run("a", 5, batch_id=3)
        assert shown(known, "a", 9, 5) is known
        assert shown(known, "a", 9, None) is known

    def test_a_younger_run_begins_without_a_batch(self) -> None:
        """W1: the one before it is over."""
        assert shown(run("b", 5, batch_id=3), "c", 6) == run("c", 6)
        assert shown(run("b", 5, batch_id=3), "c", 8, 6) == run("c", 6)

    @pytest.mark.parametrize("born_epoch", [1, 4, 5])
    def test_an_older_run_is_stale(self, born_epoch: int) -> None:
        """W1: by its birth, whatever ticket it shows."""
        for ticket in (5, 9, 1_000):
            with pytest.raises(StaleWriterError) as caught:
                shown(run("b", 5), "c", ticket, born_epoch)
            assert caught.value.args == ("query", born_epoch, 5)

    def test_who_cannot_know_it_stages_under_the_ticket(self) -> None:
        """W1: of a batch that was planned after the newest run began."""
        assert shown(run("b", 5), "c", 6, None).writer_epoch == 6
        assert shown(None, "c", 6, None).writer_epoch == 6
        with pytest.raises(StaleWriterError):
            shown(run("b", 5), "c", 5, None)

    def test_a_record_of_before_has_one_epoch(self) -> None:
        """W1: the one that the run was bound with."""
        known = run("b", 5, born_epoch=0)
        with pytest.raises(StaleWriterError):
            shown(known, "c", 9, 5)
        assert shown(known, "c", 9, 6).born_epoch == 6


@pytest.mark.proves("W1")
class TestCommit:
    """A run wants a batch decided."""

    def test_the_newest_run_may(self) -> None:
        """W1: under its own epoch."""
        known = run("run-1", 5)
        assert committing_run(known, commit(5, 0), fence=0) is known
        again = commit(5, 1, born_epoch=4)
        assert committing_run(known, again, fence=0) is known

    def test_older_runs_may_not(self) -> None:
        """W1: whatever epoch they name."""
        for epoch in (4, 5):
            with pytest.raises(StaleWriterError):
                committing_run(run("run-2", 5), commit(epoch, 0), fence=0)
        with pytest.raises(StaleWriterError):
            committing_run(run("run-1", 5), commit(4, 0), fence=0)

    @pytest.mark.parametrize("known", [None, run("run-2", 4)])
    def test_one_that_nobody_knows_binds_first(self, known: RunRecord | None) -> None:
        """W1: it may be the newest, or not."""
        with pytest.raises(LocalProtocolError, match="is not bound"):
            committing_run(known, commit(5, 0), fence=0)

    def test_one_that_was_bound_for_now_says_when_it_was_born(self) -> None:
        """W1: younger than the newest, it is that from now on."""
        known = run("run-2", 8, born_epoch=4)
        younger = committing_run(known, commit(9, 0, born_epoch=5), fence=0)
        assert younger == run("run-1", 9, born_epoch=5)
        for epoch, born_epoch in ((9, 4), (9, 1), (8, 5)):
            with pytest.raises(StaleWriterError):
                committing_run(known, commit(epoch, 0, born_epoch=born_epoch), fence=0)


class TestBound:
    """Runs are remembered up to a bound."""

    def test_the_most_recently_active_one_is_the_last(self) -> None:
        """And there is one for each query."""
        a, b = run("a", 1, query_id="q"), run("b", 2, query_id="r")
        newer = run("c", 3, query_id="q")
        assert runs_with((a, b), newer, (), fence=0) == ((b, newer), 0)

    @pytest.mark.proves("B4", "W1")
    def test_idle_queries_are_forgotten_first_and_owners_never(self) -> None:
        """B4, W1: beyond 200 those without a state go, and one number fences them."""
        runs = tuple(run("x", n, query_id=f"q{n}") for n in range(1, 201))
        owned = StateProgress(
            state_number=1,
            query_id="q1",
            owner_epoch=1,
            generation=1,
            batch_id=None,
            decided_at_us=0,
        )
        newest = run("x", 201, query_id="q201")
        kept, fence = runs_with(runs, newest, (owned,), fence=0)
        assert kept == (runs[0], *runs[2:], newest)
        assert fence == 2
        for born_epoch in (1, 2):
            with pytest.raises(StaleWriterError):
                shown(None, "x", 300, born_epoch, fence=fence)
        assert shown(None, "y", 300, fence=fence) == run("y", 300)


def test_a_record_of_before_is_read() -> None:
    """What an earlier version wrote, with its list of runs that were superseded."""
    former = {
        "job_id": "flights",
        "job_number": 1,
        "max_parallelism": 4,
        "sequence": 0,
        "sequence_first": 1,
        "runs": [
            {
                "query_id": "query",
                "run_id": "a",
                "writer_epoch": 5,
                "batch_id": None,
                "superseded": [["z", 3]],
            }
        ],
        "progress": [],
    }
    record = decode_job(msgspec.msgpack.encode(former))
    (known,) = record.runs
    assert (known.run_id, known.born_epoch, record.fence) == ("a", 0, 0)
    assert decode_job(encode_record(record)) == record
    assert isinstance(record, JobRecord)
