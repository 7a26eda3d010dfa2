"""Golden traces: each story in this folder is told as it was told before."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.traces.election_story import ElectionStage
from tests.traces.leaderserver_story import LeaderServerStage
from tests.traces.story import Stage, play


STORIES = sorted(Path(__file__).parent.glob("*.txt"))
STAGES: dict[str, Callable[[], Stage]] = {
    "election": ElectionStage,
    "leaderserver": LeaderServerStage,
}


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in STORIES])
def test_story_is_told_as_before(path: Path, is_rewriting: bool) -> None:
    """Commands have the effects that the file tells, in that order, at those times."""
    expected = path.read_text(encoding="utf-8")
    told = play(expected, STAGES[path.stem.partition("-")[0]])
    if is_rewriting:
        path.write_text(told, encoding="utf-8")
        return
    difference = difflib.unified_diff(
        expected.splitlines(),
        told.splitlines(),
        fromfile=f"{path.name}, as it was told",
        tofile=f"{path.name}, as it comes out now",
        lineterm="",
    )
    message = "\n".join(difference)
    if message:
        pytest.fail(f"the story has changed (make traces writes it)\n{message}", False)


def test_every_story_says_what_it_shows() -> None:
    """A trace without a word about its purpose cannot be judged when it changes."""
    assert STORIES
    for path in STORIES:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name
