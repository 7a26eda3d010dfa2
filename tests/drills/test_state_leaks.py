"""Two hundred rounds of opening and closing everything of queryable state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from nameservice import NS_PER_SECOND
from tests.drills.processes import now_ns
from tests.drills.state_rounds import ROUNDS, Stage, growth_by_rounds


if TYPE_CHECKING:
    from pathlib import Path

    from tests.drills.reporting import Report


ROUND_COUNT: Final = 200
WARM_UP_COUNT: Final = 200

# A page for each round would be 800 KiB; a thread's or a socket's buffers are more.
GROWTH_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024

# A heap grows by ten megabytes for a while, and shrinks again; a leak grows each time.
ATTEMPT_COUNT: Final = 3


@pytest.mark.drill
def test_two_hundred_rounds_leave_nothing_behind(
    tmp_path: Path, report: Report
) -> None:
    """No thread, descriptor, connection or object is left, and memory stays flat."""
    with Stage(tmp_path) as stage:
        for name, one_round in ROUNDS.items():
            for attempt in range(ATTEMPT_COUNT):
                began_ns = now_ns()
                growth_size_bytes = growth_by_rounds(
                    stage,
                    one_round,
                    ROUND_COUNT,
                    warm_up_count=0 if attempt else WARM_UP_COUNT,
                )
                seconds = (now_ns() - began_ns) / NS_PER_SECOND
                report.say(
                    f"{name}: {ROUND_COUNT} rounds, memory grew by "
                    f"{growth_size_bytes / 1024:.0f} KiB; {seconds:.1f} s",
                    **{f"growth_size_bytes {name}": growth_size_bytes},
                )
                if growth_size_bytes < GROWTH_SIZE_BYTES_MAX:
                    break
            else:
                raise AssertionError(f"{name}: memory grew each time")
