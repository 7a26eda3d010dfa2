from __future__ import annotations

import pytest

from nameservice.callback_schedule import CallbackSchedule, LaneState


STALL_NS = 10
WAIT_NS = 100


def schedule(*names: str, quick_count: int = 2) -> CallbackSchedule[str]:
    """Return a schedule of idle lanes with short times."""
    made: CallbackSchedule[str] = CallbackSchedule(
        quick_count=quick_count, stall_ns=STALL_NS, wait_ns=WAIT_NS
    )
    for name in names:
        made.add(name)
    return made


def woken(*names: str, quick_count: int = 2) -> CallbackSchedule[str]:
    """Return a schedule of lanes that were woken in this order at 0."""
    made = schedule(*names, quick_count=quick_count)
    for name in names:
        made.wake(name, now_ns=0)
    return made


def taken(made: CallbackSchedule[str], *, now_ns: int) -> str:
    """Return all lanes that may run now, in their order."""
    names = ""
    while (name := made.take(now_ns=now_ns)) is not None:
        names += name
        made.check_invariants()
    return names


class TestLanes:
    @pytest.mark.proves("E6")
    def test_run_in_the_order_in_which_they_were_woken(self) -> None:
        """E6: first come, first served."""
        made = schedule("a", "b", "c", quick_count=3)
        for name in ("c", "a", "b"):
            made.wake(name, now_ns=0)
        assert taken(made, now_ns=0) == "cab"

    @pytest.mark.proves("E6")
    def test_one_turn_of_a_lane_at_a_time(self) -> None:
        """E6: a lane that is woken while it runs does not run beside itself."""
        made = woken("a")
        assert made.take(now_ns=0) == "a"
        made.wake("a", now_ns=1)
        assert made.take(now_ns=1) is None
        assert made.state("a") is LaneState.RUNNING_WOKEN
        made.done("a", is_over=False, now_ns=2)
        assert made.take(now_ns=2) == "a"

    @pytest.mark.proves("E6")
    def test_woken_twice_before_its_turn_has_one(self) -> None:
        """E6: a turn that begins after both serves both."""
        made = woken("a", "a2")
        made.wake("a", now_ns=1)
        assert taken(made, now_ns=1) == "aa2"
        made.done("a", is_over=False, now_ns=2)
        assert made.state("a") is LaneState.IDLE
        assert made.take(now_ns=2) is None

    @pytest.mark.proves("R2")
    def test_comes_last_when_it_has_more_to_do(self) -> None:
        """R2: a lane with much to do does not keep the others waiting."""
        made = woken("a", "b", quick_count=1)
        assert taken(made, now_ns=0) == "a"
        made.wake("a", now_ns=1)
        made.done("a", is_over=False, now_ns=2)
        assert taken(made, now_ns=2) == "b"

    @pytest.mark.proves("E6")
    def test_over_is_forgotten_and_woken_no_more(self) -> None:
        """E6: nothing is delivered after the end."""
        made = woken("a")
        assert made.take(now_ns=0) == "a"
        made.wake("a", now_ns=0)
        made.done("a", is_over=True, now_ns=1)
        made.wake("a", now_ns=2)
        assert (len(made), made.has_ready, made.state("a")) == (0, False, None)
        made.check_invariants()


@pytest.mark.proves("R2")
class TestThreads:
    def test_some_run_at_once_and_the_next_waits_for_one_of_them(self) -> None:
        """R2: short callbacks share a few threads."""
        made = woken("a", "b", "c")
        assert taken(made, now_ns=0) == "ab"
        made.done("a", is_over=False, now_ns=STALL_NS - 1)
        assert taken(made, now_ns=STALL_NS - 1) == "c"

    def test_blocked_ones_delay_nobody_for_long(self) -> None:
        """R2: if none of those that run returns, twice as many may."""
        made = woken(*"abcdefgh")
        assert taken(made, now_ns=0) == "ab"
        assert made.patience_ns(now_ns=1) == STALL_NS - 1
        assert taken(made, now_ns=STALL_NS - 1) == ""
        assert taken(made, now_ns=STALL_NS) == "cd"
        assert taken(made, now_ns=2 * STALL_NS - 1) == ""
        assert taken(made, now_ns=2 * STALL_NS) == "efgh"

    def test_who_was_just_woken_waits_for_a_moment(self) -> None:
        """R2: callbacks that have run for long are not blocked because of that."""
        made = woken("a", "b")
        made.add("c")
        assert taken(made, now_ns=0) == "ab"
        made.wake("c", now_ns=1_000)
        assert taken(made, now_ns=1_000) == ""
        assert made.patience_ns(now_ns=1_000) == STALL_NS

    def test_one_that_returns_does_not_hide_others_that_are_blocked(self) -> None:
        """R2: who has waited for long runs beside them."""
        made = woken(*"abcdefghijklmnopqrst")
        assert taken(made, now_ns=0) == "ab"
        busy = "b"
        for now_ns in range(STALL_NS - 1, WAIT_NS, STALL_NS - 1):
            made.done(busy, is_over=False, now_ns=now_ns)
            busy = taken(made, now_ns=now_ns)
            assert len(busy) == 1  # beside "a", which never returns
        assert len(taken(made, now_ns=WAIT_NS)) == 2
        made.check_invariants()

    def test_those_that_stay_blocked_take_nothing_from_the_others(self) -> None:
        """R2: after the rush, as many run at once beside them as before."""
        made = woken("a", "b", "c")
        assert taken(made, now_ns=0) + taken(made, now_ns=STALL_NS) == "abc"
        made.done("c", is_over=False, now_ns=STALL_NS)  # the others never return
        made.wake("c", now_ns=STALL_NS + 1)
        assert taken(made, now_ns=STALL_NS + 1) == "c"
