"""`LoopDeadline`: how long a loop waits, and when it calls what is due."""

from __future__ import annotations

import pytest

from nameservice import ManualClock
from nameservice.clock import NS_PER_MS as MS
from zmqtransport.loop_deadline import LoopDeadline


def nothing() -> None:
    """Do what a deadline asks for in these tests."""


@pytest.mark.parametrize(
    ("wait_ns", "wait_ms"),
    [
        (1, 1),
        (MS - 1, 1),
        (MS, 1),
        (MS + 1, 2),
        (10 * MS, 10),
        (10**18, 3_600_000),
    ],
)
def test_milliseconds_are_rounded_up(wait_ns: int, wait_ms: int) -> None:
    """Waking early would spin until the deadline; a far one is asked for again."""
    deadline = LoopDeadline(ManualClock(5))
    deadline.set(lambda: 5 + wait_ns, nothing)
    assert deadline.wait_ms() == wait_ms


def test_without_a_deadline_it_waits_for_ever() -> None:
    """None means that nothing is due."""
    deadline = LoopDeadline(ManualClock())
    assert deadline.wait_ms() == -1
    deadline.set(lambda: None, nothing)
    assert deadline.wait_ms() == -1


def test_what_is_due_is_called_once_and_the_next_is_waited_for() -> None:
    """What it moves the deadline to counts."""
    due_ns = [5, 5 + 3 * MS]
    deadline = LoopDeadline(ManualClock(5))
    deadline.set(lambda: due_ns[0], lambda: due_ns.remove(5))
    assert deadline.wait_ms() == 3
    assert due_ns == [5 + 3 * MS]


def test_after_an_error_it_rests_for_100_ms() -> None:
    """It is raised to the loop, once; then neither callback is called for a while."""
    clock = ManualClock(5)
    call_count = 0

    def fail() -> None:
        nonlocal call_count
        call_count += 1
        raise OSError("disk full")

    deadline = LoopDeadline(clock)
    deadline.set(lambda: 5, fail)
    with pytest.raises(OSError, match="disk full"):
        deadline.wait_ms()
    assert deadline.rest() == 100
    clock.advance(99 * MS)
    assert deadline.wait_ms() == 1
    assert call_count == 1
    clock.advance(MS)
    with pytest.raises(OSError, match="disk full"):
        deadline.wait_ms()
    assert call_count == 2
