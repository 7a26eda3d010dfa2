from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from election.patience import Moment, PatientClock


TICK_NS = 20


@pytest.mark.proves("E9")
class TestPatientClock:
    def test_runs_with_real_time(self) -> None:
        """E9: while the core is run in time, both clocks show the same."""
        clock = PatientClock(100, tick_ns=TICK_NS)
        clock.advance(120, due_ns=120)
        assert clock.now == Moment(120)
        assert (clock.stall_count, clock.excused_ns) == (0, 0)

    @pytest.mark.parametrize(
        ("now_ns", "moment"),
        [
            (150, Moment(150)),
            (150 + TICK_NS, Moment(150 + TICK_NS)),
            (151 + TICK_NS, Moment(150, 1 + TICK_NS)),
            (10**12, Moment(150, 10**12 - 150)),
        ],
    )
    def test_stands_still_during_a_stall(self, now_ns: int, moment: Moment) -> None:
        """E9: what is late by more than a tick does not count; real time is kept."""
        clock = PatientClock(100, tick_ns=TICK_NS)
        clock.advance(now_ns, due_ns=150)
        assert clock.now == moment
        assert clock.now.real_ns == now_ns
        assert clock.stall_count == (1 if moment.excused_ns else 0)

    def test_nobody_waited(self) -> None:
        """E9: without anybody to step for, no time is a stall."""
        clock = PatientClock(100, tick_ns=TICK_NS)
        clock.advance(10**12, due_ns=None)
        assert clock.now == Moment(10**12)

    @pytest.mark.proves("E5")
    @given(
        gaps=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 500))),
        wait_ns=st.integers(0, 400),
        grace_ns=st.integers(0, 200),
    )
    def test_a_wait_is_bounded_whatever_recurs(
        self, gaps: list[tuple[int, int]], wait_ns: int, grace_ns: int
    ) -> None:
        """E5, E9: never longer than wait + stalls + grace, never shorter than asked."""
        clock = PatientClock(0, tick_ns=TICK_NS)
        began, now_ns, stalled_ns = clock.now, 0, 0
        for due_in_ns, late_ns in gaps:
            due_ns = now_ns + due_in_ns
            now_ns = due_ns + late_ns
            clock.advance(now_ns, due_ns=due_ns)
            stalled_ns += late_ns
            assert clock.excused_ns <= stalled_ns
            now = clock.now
            due = began.due_ns(wait_ns, grace_ns=grace_ns, now=now)
            is_over = now.patient_ns >= due
            if is_over:
                assert now_ns >= wait_ns + clock.excused_ns
            if now_ns >= wait_ns + stalled_ns + min(stalled_ns, grace_ns):
                assert is_over
