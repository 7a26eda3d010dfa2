from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from leaderserver.server.clock_witness import ClockWitness


if TYPE_CHECKING:
    from pathlib import Path


class TestClockWitness:
    @pytest.mark.proves("E2")
    def test_incarnations_rise_whatever_the_clock_says(self, tmp_path: Path) -> None:
        """E2: in one second, forward, and back; each start asks anew."""
        drawn = [
            ClockWitness(tmp_path / "own").next_incarnation(at_least=wall_seconds)
            for wall_seconds in (500, 500, 700, 100, 702, 9)
        ]
        assert drawn == [500, 501, 700, 701, 702, 703]

    @pytest.mark.proves("E2")
    def test_clock_that_is_behind_is_logged(self, tmp_path: Path) -> None:
        """E2: an operator learns of it, and by how much."""
        ClockWitness(tmp_path / "own").next_incarnation(at_least=500)
        with capture_logs() as logs:
            ClockWitness(tmp_path / "own").next_incarnation(at_least=100)
        (line,) = logs
        assert (line["event"], line["behind_seconds"]) == ("clock.behind", 400)

    @pytest.mark.proves("E2")
    def test_full_disk_takes_no_number_back(self, tmp_path: Path) -> None:
        """E2: what was used is known, and stays known, though no more can be left."""
        ClockWitness(tmp_path / "own").next_incarnation(at_least=500)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with capture_logs() as logs:
                drawn = ClockWitness(tmp_path / "own").next_incarnation(at_least=100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert drawn == 501
        assert [line["event"] for line in logs] == ["clock.behind", "clock.unwitnessed"]
        assert ClockWitness(tmp_path / "own").next_incarnation(at_least=100) > 500

    @pytest.mark.proves("E2")
    @pytest.mark.parametrize("text", ["x", "-", "1.5", "\0\0\0\0\0\0\0\0\0\0"])
    def test_what_cannot_be_read_is_logged(self, tmp_path: Path, text: str) -> None:
        """E2: then the clock is all there is, that once: a loss of power may do it."""
        (tmp_path / "incarnation").write_text(text)
        with capture_logs() as logs:
            assert ClockWitness(tmp_path).next_incarnation(at_least=7) == 7
        assert [line["event"] for line in logs] == ["clock.unwitnessed"]
        assert ClockWitness(tmp_path).next_incarnation(at_least=3) == 8

    def test_only_its_own_directory_will_do(self, tmp_path: Path) -> None:
        """Where somebody else has put a link, nothing is read or written."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / "own").symlink_to(elsewhere)
        with capture_logs() as logs:
            assert ClockWitness(tmp_path / "own").next_incarnation(at_least=7) == 7
        assert [line["event"] for line in logs] == ["clock.unwitnessed"]
        assert list(elsewhere.iterdir()) == []
