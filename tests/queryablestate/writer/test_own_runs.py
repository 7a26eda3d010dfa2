"""What a process knows of its own runs (W1)."""

from __future__ import annotations

import pytest

from queryablestate.writer.own_runs import OwnRuns


HERE = "embedded:here default"


@pytest.mark.proves("W1")
class TestBirths:
    def test_the_first_ticket_counts(self) -> None:
        """W1: a run shows it for life, whatever it draws later."""
        runs = OwnRuns()
        assert runs.born_epoch((HERE, "job", "q", "run-1"), 5) == 5
        assert runs.born_epoch((HERE, "job", "q", "run-1"), 9) == 5

    def test_each_run_of_each_query_of_each_job_has_its_own(self) -> None:
        """W1: none is fenced by another's."""
        runs = OwnRuns()
        runs.born_epoch((HERE, "job", "q", "run-1"), 5)
        assert runs.born_epoch((HERE, "job", "q", "run-2"), 6) == 6
        assert runs.born_epoch((HERE, "job", "r", "run-1"), 7) == 7
        assert runs.born_epoch((HERE, "other", "q", "run-1"), 8) == 8
        assert runs.born_epoch(("embedded:there", "job", "q", "run-1"), 9) == 9

    def test_under_a_control_plane_that_began_anew_it_is_born_again(self) -> None:
        """Tickets rise: a lower one is of a store that knows nothing of the run."""
        runs = OwnRuns()
        runs.born_epoch((HERE, "job", "q", "run-1"), 5)
        assert runs.born_epoch((HERE, "job", "q", "run-1"), 2) == 2
        assert runs.born_epoch((HERE, "job", "q", "run-1"), 6) == 2

    def test_a_process_remembers_so_many(self) -> None:
        """The run that began first is forgotten first."""
        runs = OwnRuns(count_max=2)
        for number in range(3):
            runs.born_epoch((HERE, "job", "q", f"run-{number}"), number + 1)
        assert runs.born_epoch((HERE, "job", "q", "run-1"), 9) == 2
        assert runs.born_epoch((HERE, "job", "q", "run-2"), 9) == 3
        assert runs.born_epoch((HERE, "job", "q", "run-0"), 9) == 9
