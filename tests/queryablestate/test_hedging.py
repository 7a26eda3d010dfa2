"""When a read is asked of another copy; no I/O, no clock (D4)."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice.clock import NS_PER_MS
from queryablestate.control.events import LinkId
from queryablestate.hedging import HedgeLimits, HedgePolicy, Verdict


A: Final = LinkId(1)
B: Final = LinkId(2)
C: Final = LinkId(3)
MS: Final = NS_PER_MS
LIMITS: Final = HedgeLimits(
    delay_ns_min=20 * MS,
    delay_ns_max=200 * MS,
    saved_count_max=2,
    late_count=3,
    silent_delay_count=3,
    silent_delay_count_alone=10,
    probe_delay_count=10,
)


def policy() -> HedgePolicy:
    """Return a policy that knows all three nodes."""
    made = HedgePolicy(LIMITS)
    for node in (A, B, C):
        made.took(node, 1 * MS)
    return made


def late(
    hedging: HedgePolicy, now_ms: int, *, node: LinkId = A, asked_ms: int = 0
) -> Verdict:
    """Return what becomes of a read that was not late before."""
    return hedging.late(
        node, asked_at_ns=asked_ms * MS, now_ns=now_ms * MS, is_first=True
    )


@pytest.mark.proves("D4")
class TestBudget:
    """Hedges are a tenth of all reads at most."""

    def test_a_hedge_takes_ten_reads(self) -> None:
        """D4: what is saved up is spent; from then on ten reads earn a hedge."""
        hedging = policy()
        for _ in range(LIMITS.saved_count_max):
            assert late(hedging, 20) is Verdict.HEDGE
            hedging.spend(1)
            hedging.heard(A, now_ns=20 * MS)
        for _ in range(9):
            hedging.earn()
        assert late(hedging, 20) is Verdict.WAIT
        hedging.earn()
        assert late(hedging, 20) is Verdict.HEDGE

    def test_no_more_is_saved_up_than_the_limit(self) -> None:
        """D4: a quiet day is no reason for a storm."""
        hedging = policy()
        for _ in range(10_000):
            hedging.earn()
        for _ in range(LIMITS.saved_count_max):
            hedging.spend(1)
        assert late(hedging, 20) is Verdict.WAIT

    def test_what_takes_several_questions_is_paid_for(self) -> None:
        """D4: a hedge of two parts costs two, be it on credit."""
        hedging = policy()
        hedging.spend(LIMITS.saved_count_max + 1)
        for _ in range(19):
            hedging.earn()
        assert late(hedging, 20) is Verdict.WAIT
        hedging.earn()
        assert late(hedging, 20) is Verdict.HEDGE

    @given(st.lists(st.sampled_from(["read", "late"]), max_size=300))
    def test_hedges_stay_below_a_tenth(self, events: list[str]) -> None:
        """D4: in any order of events, but for what was saved up."""
        hedging = policy()
        reads = hedges = 0
        for event in events:
            if event == "read":
                hedging.earn()
                reads += 1
                continue
            hedging.heard(A, now_ns=0)  # it is slow, not silent
            if late(hedging, 20) is Verdict.HEDGE:
                hedging.spend(1)
                hedges += 1
            assert hedges <= LIMITS.saved_count_max + reads / 10


@pytest.mark.proves("D4")
class TestUnresponsive:
    """A node that says nothing is asked second."""

    def test_some_late_reads_and_some_delays_make_it_so(self) -> None:
        """D4: neither three late reads alone do, nor three delays of silence."""
        hedging = policy()
        hedging.spend(2)
        for _ in range(10):
            assert late(hedging, 59) is Verdict.WAIT
        assert not hedging.is_unresponsive(A)
        assert late(hedging, 60) is Verdict.MOVE
        assert hedging.is_unresponsive(A)
        assert not hedging.is_unresponsive(B)
        assert hedging.unresponsive_count == 1

        alone = policy()
        assert late(alone, 60) is Verdict.HEDGE
        assert late(alone, 60) is Verdict.HEDGE
        assert late(alone, 60) is Verdict.MOVE

    def test_one_read_that_waits_for_long_suffices(self) -> None:
        """D4: without a budget, too, a lone reader does not wait for its deadline."""
        hedging = policy()
        hedging.spend(2)
        verdicts = [late(hedging, 20)]
        verdicts += [
            hedging.late(A, asked_at_ns=0, now_ns=at_ms * MS, is_first=False)
            for at_ms in (40, 199, 200)
        ]
        assert verdicts == [Verdict.WAIT, Verdict.WAIT, Verdict.WAIT, Verdict.MOVE]

    def test_silence_begins_with_what_it_said_last(self) -> None:
        """A node that answers others meanwhile is slow, and not silent."""
        hedging = policy()
        hedging.spend(2)
        hedging.heard(A, now_ns=50 * MS)
        for _ in range(5):
            assert late(hedging, 109) is Verdict.WAIT
        assert late(hedging, 110) is Verdict.MOVE

    def test_silence_begins_with_a_question(self) -> None:
        """A node that is asked nothing says nothing, and is well."""
        hedging = policy()
        for _ in range(5):
            assert late(hedging, 10_020, asked_ms=10_000) is Verdict.HEDGE

    def test_a_word_ends_it(self) -> None:
        """D4: of whatever kind; from then on it is asked first again."""
        hedging = policy()
        for _ in range(3):
            late(hedging, 60)
        hedging.heard(B, now_ns=61 * MS)
        assert hedging.is_unresponsive(A)
        hedging.heard(A, now_ns=62 * MS)
        assert not hedging.is_unresponsive(A)
        assert late(hedging, 100, asked_ms=80) is Verdict.HEDGE

    def test_it_is_probed_now_and_then(self) -> None:
        """D4: what runs again is found out, and what does not is left alone."""
        hedging = policy()
        for _ in range(3):
            late(hedging, 60)
        probes = [
            at_ms
            for at_ms in range(60, 600)
            if hedging.take_probe(A, now_ns=at_ms * MS)
        ]
        assert probes == [60, 260, 460]

    def test_a_connection_that_is_over_is_forgotten(self) -> None:
        """The next one of that node begins anew."""
        hedging = policy()
        for _ in range(3):
            late(hedging, 60)
        hedging.forget(A)
        assert not hedging.is_unresponsive(A)
        hedging.forget(A)
        for _ in range(3):
            late(hedging, 60, node=B)
        hedging.clear()
        assert hedging.unresponsive_count == 0

    def test_what_strangers_say_is_not_kept(self) -> None:
        """Anybody may send what looks like an answer: it takes no memory."""
        hedging = HedgePolicy(LIMITS)
        for number in range(100):
            hedging.heard(LinkId(number), now_ns=0)
        assert hedging._nodes == {}


@pytest.mark.proves("D4")
class TestDelay:
    """How late is late."""

    def test_it_begins_with_the_least(self) -> None:
        """D4: 20 ms at least, whatever nodes do."""
        hedging = policy()
        for _ in range(5_000):
            hedging.took(A, 100)
        assert hedging.delay_ns == LIMITS.delay_ns_min

    @pytest.mark.parametrize("tail_ms", [50, 120])
    def test_it_is_about_the_99th_percentile(self, tail_ms: int) -> None:
        """D4: one answer in fifty takes that long, the rest a millisecond."""
        hedging = HedgePolicy(LIMITS)
        for number in range(20_000):
            hedging.took(A, tail_ms * MS if number % 50 == 0 else MS)
        assert abs(hedging.delay_ns - tail_ms * MS) < tail_ms * MS // 10

    def test_it_stays_within_bounds(self) -> None:
        """D4: if all answers take seconds, it is the greatest."""
        hedging = HedgePolicy(LIMITS)
        for _ in range(1_000):
            hedging.took(A, 10_000 * MS)
        assert hedging.delay_ns == LIMITS.delay_ns_max

    def test_one_slow_node_does_not_put_it_off(self) -> None:
        """D4: the others are fast, so asking them is worth it as soon as ever."""
        hedging = policy()
        for _ in range(1_000):
            hedging.took(A, 1_000 * MS)
        assert hedging.delay_ns == LIMITS.delay_ns_min
        for _ in range(1_000):
            hedging.took(B, 1_000 * MS)
        assert hedging.delay_ns == LIMITS.delay_ns_max

    def test_it_comes_down_again(self) -> None:
        """What was slow an hour ago does not count."""
        hedging = HedgePolicy(LIMITS)
        for _ in range(1_000):
            hedging.took(A, 1_000 * MS)
        for _ in range(10_000):
            hedging.took(A, MS)
        assert hedging.delay_ns == LIMITS.delay_ns_min
