from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice.clock import NS_PER_SECOND
from queryablestate.operations.move_progress import (
    MoveFigures,
    MoveProgress,
)


class Watching:
    """A `MoveProgress` for one job, ``j``, that one node, ``n``, fetches."""

    def __init__(self, planned_count: int, *, window_seconds: float = 30.0) -> None:
        self.progress = MoveProgress(window_seconds=window_seconds)
        self.planned_count = planned_count

    def at(self, seconds: float, left_count: int, size_bytes: int = 0) -> MoveFigures:
        """Return the figures after *seconds*."""
        return self.progress.observe(
            planned_counts={"j": self.planned_count},
            left_counts={"j": left_count},
            fetched_sizes={("j", "n"): size_bytes},
            seconds_left=12.5,
            now_ns=round(seconds * NS_PER_SECOND),
        )


class TestCounts:
    """How much is done of how much."""

    def test_what_was_done_before_counts(self) -> None:
        """One that begins to look in the middle sees that it is the middle."""
        watching = Watching(64)
        figures = watching.at(0, 48)
        assert (figures.planned_count, figures.done_count) == (64, 16)
        figures = watching.at(1, 0)
        assert (figures.planned_count, figures.done_count) == (64, 64)
        assert figures.left_count == 0

    def test_a_job_with_nothing_to_do_has_no_part(self) -> None:
        """That its last plan had 64 copies is not what is waited for now."""
        figures = MoveProgress().observe(
            planned_counts={"old": 64, "new": 10},
            left_counts={"old": 0, "new": 8},
            fetched_sizes={},
            seconds_left=None,
            now_ns=0,
        )
        assert (figures.planned_count, figures.done_count) == (10, 2)

    def test_what_is_planned_no_more_is_not_done(self) -> None:
        """
        The node that was to have the copies went away.

        "128 of 128" was shown, and not one had been made.
        """
        watching = Watching(128)
        assert watching.at(0, 128).done_count == 0
        watching.planned_count = 0
        figures = watching.at(1, 0)
        assert (figures.planned_count, figures.done_count) == (0, 0)

    def test_a_new_plan_amid_a_move_keeps_what_is_done(self) -> None:
        """Further copies are counted from the new plan on."""
        watching = Watching(64)
        watching.at(0, 64)
        assert watching.at(1, 40).done_count == 24
        watching.planned_count = 20
        assert watching.at(2, 20).done_count == 24
        figures = watching.at(3, 0)
        assert (figures.planned_count, figures.done_count) == (44, 44)

    def test_more_to_do_is_planned_in_addition(self) -> None:
        """A copy that was lost must be made again: what was done stays done."""
        watching = Watching(10)
        watching.at(0, 10)
        watching.at(1, 4)
        figures = watching.at(2, 7)
        assert (figures.planned_count, figures.done_count) == (13, 6)

    def test_a_job_that_is_gone_is_done(self) -> None:
        """A drained node tells of a job no more when it has nothing of it."""
        progress = MoveProgress()
        progress.observe(
            planned_counts={"j": 5, "k": 5},
            left_counts={"j": 5, "k": 5},
            fetched_sizes={},
            seconds_left=None,
            now_ns=0,
        )
        figures = progress.observe(
            planned_counts={"j": 5},
            left_counts={"j": 5},
            fetched_sizes={},
            seconds_left=None,
            now_ns=1,
        )
        assert (figures.planned_count, figures.done_count) == (10, 5)

    @given(st.lists(st.integers(0, 128), min_size=1, max_size=20))
    def test_done_and_left_are_all_there_is(self, left_counts: list[int]) -> None:
        """Whatever is told: done never falls, and what is left is what was told."""
        watching = Watching(128)
        done_count = 0
        for second, left_count in enumerate(left_counts):
            figures = watching.at(second, left_count)
            assert figures.left_count == left_count
            assert figures.done_count >= done_count
            done_count = figures.done_count


class TestPace:
    """How fast it goes, and how long it may take."""

    def test_nothing_is_known_at_first(self) -> None:
        """None is no guess."""
        assert Watching(10).at(0, 10).size_bytes_per_second is None

    def test_how_fast_it_goes(self) -> None:
        """Ten thousand bytes in five seconds; how long it takes yet, others say."""
        watching = Watching(40)
        watching.at(0, 40, 1_000)
        figures = watching.at(5, 30, 11_000)
        assert figures.size_bytes == 10_000
        assert figures.size_bytes_per_second == pytest.approx(2_000.0)
        assert figures.elapsed_seconds == pytest.approx(5.0)
        assert figures.seconds_left == 12.5

    def test_only_the_window_counts(self) -> None:
        """A fast beginning half a minute ago promises nothing."""
        watching = Watching(1_000, window_seconds=30.0)
        watching.at(0, 1_000)
        watching.at(1, 500, 50_000)
        for second in range(2, 62):
            watching.at(second, 500 - second, 50_000 + second)
        assert watching.at(62, 438, 50_062).size_bytes_per_second == pytest.approx(1.0)

    def test_a_node_that_starts_anew_counts_from_nothing(self) -> None:
        """What it had fetched before stays counted; it is never counted twice."""
        watching = Watching(10)
        watching.at(0, 10, 500)
        watching.at(1, 9, 800)
        assert watching.at(2, 8, 100).size_bytes == 400
        assert watching.at(3, 7, 150).size_bytes == 450

    def test_what_was_fetched_for_earlier_moves_does_not_count(self) -> None:
        """Nodes count for as long as they run; we count from when they are seen."""
        progress = MoveProgress()
        sizes: list[dict[tuple[str, str], int]] = [
            {("j", "a"): 100},
            {("j", "a"): 120, ("j", "b"): 5_000},
            {("j", "a"): 120, ("j", "b"): 5_050},
        ]
        counted = [
            progress.observe(
                planned_counts={},
                left_counts={},
                fetched_sizes=each,
                seconds_left=None,
                now_ns=now_ns,
            ).size_bytes
            for now_ns, each in enumerate(sizes)
        ]
        assert counted == [0, 20, 70]
