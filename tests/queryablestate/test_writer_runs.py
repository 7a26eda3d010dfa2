"""Which run of a query may write (W1)."""

from __future__ import annotations

import pytest

from nameservice import LocalProtocolError, StaleWriterError
from queryablestate.records import RunRecord, StateProgress
from queryablestate.writer_runs import current_run, run_with_ticket, runs_with
from tests.queryablestate.control_plane import commit


def run(
    run_id: str,
    writer_epoch: int,
    *superseded: tuple[str, int],
    query_id: str = "query",
    batch_id: int | None = None,
) -> RunRecord:
    """Return the newest run of a query."""
    return RunRecord(
        query_id=query_id,
        run_id=run_id,
        writer_epoch=writer_epoch,
        batch_id=batch_id,
        superseded=superseded,
    )


def shown(known: RunRecord | None, run_id: str, ticket: int) -> RunRecord:
    """Return the newest run once *run_id* has shown *ticket*."""
    return run_with_ticket(known, query_id="query", run_id=run_id, ticket=ticket)


class TestTicket:
    """A run shows a ticket."""

    def test_the_first_run_of_a_query_is_its_newest(self) -> None:
        """W1: its writer epoch is the ticket."""
        assert shown(None, "a", 5) == run("a", 5)

    def test_the_same_run_keeps_its_epoch_and_its_batch(self) -> None:
        """W1: the first ticket counts, whatever it shows later."""
        known = run("a", 5, batch_id=3)
        assert shown(known, "a", 9) is known

    def test_a_younger_run_begins_without_a_batch(self) -> None:
        """W1: the one before it is over."""
        known = run("b", 5, ("a", 2), batch_id=3)
        assert shown(known, "c", 6) == run("c", 6, ("b", 5), ("a", 2))

    @pytest.mark.parametrize(("run_id", "ticket", "epoch"), [("c", 5, 5), ("a", 9, 2)])
    def test_an_older_run_is_stale(self, run_id: str, ticket: int, epoch: int) -> None:
        """W1: by its ticket, or because it was superseded before."""
        with pytest.raises(StaleWriterError) as caught:
            shown(run("b", 5, ("a", 2)), run_id, ticket)
        assert caught.value.args == ("query", epoch, 5)


class TestCommit:
    """A run wants a batch decided."""

    def test_the_newest_run_may(self) -> None:
        """W1: under its own epoch."""
        known = run("run-1", 5)
        assert current_run(known, commit(5, 0)) is known

    def test_older_runs_may_not(self) -> None:
        """W1: whatever epoch they name."""
        for epoch in (4, 5):
            with pytest.raises(StaleWriterError):
                current_run(run("run-2", 5), commit(epoch, 0))
        with pytest.raises(StaleWriterError):
            current_run(run("run-1", 5), commit(4, 0))

    @pytest.mark.parametrize("known", [None, run("run-2", 4)])
    def test_one_that_nobody_knows_binds_first(self, known: RunRecord | None) -> None:
        """W1: it may be the newest, or not."""
        with pytest.raises(LocalProtocolError):
            current_run(known, commit(5, 0))


class TestBound:
    """Runs are remembered up to a bound."""

    def test_the_most_recently_active_one_is_the_last(self) -> None:
        """And there is one for each query."""
        a, b = run("a", 1, query_id="q"), run("b", 2, query_id="r")
        newer = run("c", 3, query_id="q")
        assert runs_with((a, b), newer, ()) == (b, newer)

    def test_idle_queries_are_forgotten_first_and_owners_never(self) -> None:
        """Beyond 200 queries, those without a state go in the order of their age."""
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
        kept = runs_with(runs, newest, (owned,))
        assert kept == (runs[0], *runs[2:], newest)
