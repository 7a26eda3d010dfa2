"""
Rounds of queryable state leave nothing behind; two hundred of each are a drill.

No thread, no file descriptor (and so no socket and no store), no object of ours, and no
memory; neither in the one that opens and closes, nor in the proxy, the nodes and the
name service that they talk to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.drills.state_rounds import ROUNDS, Stage, growth_by_rounds
from tests.tiers import nightly_after


if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.shells

ROUND_COUNT: Final = 8
BY_DAY: Final = ("client", "cluster", "writer")
WARM_UP_COUNT: Final = 3
MEASURED_COUNT_MAX: Final = 4

# A heap that finds its size takes some of it; see the drill for less.
GROWTH_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield one for all tests: what one of them leaves there, the next would see."""
    with Stage(tmp_path_factory.mktemp("stage")) as opened:
        yield opened


@pytest.mark.parametrize(
    "name",
    nightly_after(len(BY_DAY), sorted(ROUNDS, key=lambda name: name not in BY_DAY)),
)
def test_rounds_leave_nothing_behind(stage: Stage, name: str) -> None:
    """What was there before is all that is there afterwards."""
    # What a heap takes to find its size it takes once, and what leaks each time.
    assert any(
        growth_by_rounds(stage, ROUNDS[name], ROUND_COUNT, warm_up_count=WARM_UP_COUNT)
        < GROWTH_SIZE_BYTES_MAX
        for _ in range(MEASURED_COUNT_MAX)
    )
