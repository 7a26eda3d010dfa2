from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from election.epochs import (
    COUNTER_BITS,
    EpochSource,
    IncarnationEpochs,
    ProcessEpochs,
    incarnation_of,
)
from nameservice.errors import ConfigurationError


FIRST = 7
COUNTER_MAX = 2**COUNTER_BITS - 1
INCARNATION_MAX = 2**31 - 1
DAY_SECONDS = 24 * 60 * 60
SECOND_NS = 1_000_000_000


def epoch_of(incarnation: int, counter: int) -> int:
    """Return the epoch that is the *counter*-th of *incarnation*."""
    return incarnation * 2**32 + counter


@pytest.mark.proves("E2")
class TestIncarnationEpochs:
    def test_carry_incarnation_above_counter(self) -> None:
        """E2: the incarnation stands in the high bits, a counter from 1 in the low."""
        epochs = IncarnationEpochs(FIRST, started_ns=0)
        assert [epochs.draw(above=0) for _ in range(3)] == [
            epoch_of(FIRST, 1),
            epoch_of(FIRST, 2),
            epoch_of(FIRST, 3),
        ]
        assert incarnation_of(epoch_of(FIRST, 3)) == FIRST
        assert incarnation_of(epoch_of(FIRST, COUNTER_MAX)) == FIRST

    @pytest.mark.parametrize("incarnation", [1, INCARNATION_MAX])
    def test_any_incarnation_of_31_bits_will_do(self, incarnation: int) -> None:
        """E2: an epoch fits into 63 bits: every reader's signed integer holds it."""
        epochs = IncarnationEpochs(incarnation, started_ns=0)
        assert epochs.incarnation == incarnation
        assert epochs.draw(above=0) < 2**63

    @pytest.mark.parametrize("incarnation", [-1, 0, INCARNATION_MAX + 1])
    def test_other_incarnations_are_refused(self, incarnation: int) -> None:
        """E2: a wrong clock or data directory stops the server at its start."""
        with pytest.raises(ConfigurationError, match=f"incarnation {incarnation} is"):
            IncarnationEpochs(incarnation, started_ns=0)

    def test_what_is_below_changes_nothing(self) -> None:
        """E2: an epoch of an earlier incarnation, or the last drawn, skips nothing."""
        epochs = IncarnationEpochs(FIRST, started_ns=0)
        epochs.observe(epoch_of(FIRST - 1, COUNTER_MAX))
        drawn = epochs.draw(above=epoch_of(FIRST - 1, 1))
        epochs.observe(drawn)
        assert epochs.draw(above=drawn) == epoch_of(FIRST, 2)
        assert epochs.incarnation == FIRST

    @pytest.mark.parametrize(
        "above",
        [epoch_of(FIRST, 1), epoch_of(FIRST, COUNTER_MAX), epoch_of(FIRST + 1, 0)],
    )
    def test_what_is_above_begins_another_incarnation(self, above: int) -> None:
        """E2: who granted it may go on: the next incarnation is no other's."""
        epochs = IncarnationEpochs(FIRST, started_ns=0)
        assert epochs.draw(above=above) == epoch_of(incarnation_of(above) + 1, 1)
        assert epochs.incarnation == incarnation_of(above) + 1

    def test_counter_that_is_used_up_begins_another_incarnation(self) -> None:
        """E2: epochs rise even past the last one of an incarnation."""
        epochs = IncarnationEpochs(FIRST, started_ns=0)
        epochs._counter = COUNTER_MAX - 1
        assert epochs.draw(above=0) == epoch_of(FIRST, COUNTER_MAX)
        assert epochs.draw(above=0) == epoch_of(FIRST + 1, 1)
        assert epochs.draw(above=0) == epoch_of(FIRST + 1, 2)

    @pytest.mark.parametrize("elapsed_seconds", [0, 1, 5 * DAY_SECONDS])
    def test_a_day_ahead_is_admitted_and_no_more(self, elapsed_seconds: int) -> None:
        """E2: an incarnation is a time in seconds: a day ahead is a wrong clock."""
        started_ns = 17
        epochs = IncarnationEpochs(FIRST, started_ns=started_ns)
        now_ns = started_ns + elapsed_seconds * SECOND_NS
        last = FIRST + elapsed_seconds + DAY_SECONDS
        assert epochs.admits(0, now_ns=now_ns)
        assert epochs.admits(epoch_of(last, COUNTER_MAX), now_ns=now_ns)
        assert not epochs.admits(epoch_of(last + 1, 0), now_ns=now_ns)
        assert epochs.admits(epoch_of(last + 1, 0), now_ns=now_ns + SECOND_NS)
        assert not epochs.admits(epoch_of(last + 1, 0), now_ns=now_ns + SECOND_NS - 1)

    def test_own_incarnations_do_not_raise_what_is_admitted(self) -> None:
        """E2: reports cannot lift each other: the day counts from our own clock."""
        epochs = IncarnationEpochs(FIRST, started_ns=0)
        epochs.observe(epoch_of(FIRST + DAY_SECONDS, 0))
        assert not epochs.admits(epoch_of(FIRST + DAY_SECONDS + 1, 0), now_ns=0)

    def test_last_incarnation_is_never_admitted(self) -> None:
        """E2: a report must leave us an incarnation to draw from."""
        epochs = IncarnationEpochs(INCARNATION_MAX - 1, started_ns=0)
        assert epochs.admits(epoch_of(INCARNATION_MAX - 1, COUNTER_MAX), now_ns=0)
        assert not epochs.admits(epoch_of(INCARNATION_MAX, 0), now_ns=0)
        drawn = epochs.draw(above=epoch_of(INCARNATION_MAX - 1, COUNTER_MAX))
        assert drawn == epoch_of(INCARNATION_MAX, 1)


@pytest.mark.proves("E2")
class TestProcessEpochs:
    def test_count_from_one(self) -> None:
        """E2: one life, one counter."""
        epochs = ProcessEpochs()
        assert [epochs.draw(above=0) for _ in range(3)] == [1, 2, 3]
        assert epochs.incarnation == 0

    def test_go_on_above_what_they_are_told_of(self) -> None:
        """E2: above the epoch given, and never back below it."""
        epochs = ProcessEpochs()
        assert epochs.draw(above=5) == 6
        epochs.observe(3)
        assert epochs.draw(above=0) == 7
        epochs.observe(9)
        assert epochs.draw(above=0) == 10

    def test_nobody_else_draws_epochs(self) -> None:
        """E2: what this process has not drawn cannot have been granted."""
        epochs = ProcessEpochs()
        drawn = epochs.draw(above=0)
        assert epochs.admits(drawn, now_ns=0)
        assert not epochs.admits(drawn + 1, now_ns=0)


@pytest.mark.proves("E2")
@given(data=st.data(), lives_once=st.booleans())
def test_every_epoch_is_above_all_before(data: st.DataObject, lives_once: bool) -> None:
    """E2: above everything drawn and everything observed, whatever comes in between."""
    epochs: EpochSource = (
        ProcessEpochs() if lives_once else IncarnationEpochs(FIRST, started_ns=0)
    )
    highest = epochs.draw(above=0)
    for _ in range(data.draw(st.integers(1, 5), label="how many")):
        known = st.one_of(
            st.integers(0, epoch_of(FIRST + 9, 9)),
            st.integers(highest - 1, highest + 2),
        )
        observed = data.draw(known, label="observed")
        epochs.observe(observed)
        above = data.draw(known, label="above")
        drawn = epochs.draw(above=above)
        assert drawn > max(highest, observed, above)
        highest = drawn
