"""What a process knows of its own runs (W1)."""

from __future__ import annotations

import pytest

from queryablestate import StaleWriterError
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


@pytest.mark.proves("W1")
class TestOrder:
    """Which run of a query asked to begin last."""

    ENDED = (HERE, "job", "q", "run-1")
    NEWER = (HERE, "job", "q", "run-2")

    def test_a_run_is_not_born_after_a_newer_one(self) -> None:
        """W1: it asked before, and its ticket comes after."""
        runs = OwnRuns()
        for run in (self.ENDED, self.NEWER, self.ENDED):
            runs.begins(run)
        assert runs.born_epoch(self.NEWER, 5) == 5
        with pytest.raises(StaleWriterError) as raised:
            runs.born_epoch(self.ENDED, 6)
        assert raised.value.writer_epoch_max == 5

    def test_nor_again(self) -> None:
        """W1: under a control plane that began anew, which knows neither."""
        runs = OwnRuns()
        runs.begins(self.ENDED)
        assert runs.born_epoch(self.ENDED, 5) == 5
        runs.begins(self.NEWER)
        assert runs.born_epoch(self.ENDED, 6) == 5  # the leader knows which is newer
        with pytest.raises(StaleWriterError):
            runs.born_epoch(self.ENDED, 2)
        assert runs.born_epoch(self.NEWER, 3) == 3

    def test_another_query_is_another_matter(self) -> None:
        """W1: and so is another job."""
        runs = OwnRuns()
        runs.begins(self.ENDED)
        runs.begins((HERE, "job", "r", "run-2"))
        runs.begins((HERE, "other", "q", "run-2"))
        assert runs.born_epoch(self.ENDED, 5) == 5

    def test_what_is_forgotten_stands_in_no_way(self) -> None:
        """A process that runs for years begins many runs."""
        runs = OwnRuns(count_max=1)
        runs.begins(self.NEWER)
        runs.begins((HERE, "job", "r", "run-1"))
        runs.begins(self.ENDED)
        assert runs.born_epoch(self.ENDED, 5) == 5
