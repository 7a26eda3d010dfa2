"""How long a client waits before it connects again."""

from __future__ import annotations

import random

import pytest

from leaderserver.client.retry_pause import PAUSE_NS_MAX, PAUSE_NS_MIN, RetryPause
from nameservice import NS_PER_SECOND


def pauses(pause: RetryPause, count: int) -> list[int]:
    """Return the next pauses after connections that came to nothing."""
    return [pause.ended(now_ns=0) for _ in range(count)]


def whole() -> RetryPause:
    """Return pauses of which no part is left out."""
    return RetryPause(draw=lambda: 0.0)


class TestRetryPause:
    def test_each_is_twice_the_last_up_to_the_longest(self) -> None:
        """N3: a server that takes no more connections is asked less and less often."""
        assert pauses(whole(), 7) == [
            *(PAUSE_NS_MIN * 2**n for n in range(5)),
            PAUSE_NS_MAX,
            PAUSE_NS_MAX,
        ]

    def test_half_of_each_at_most_is_left_out(self) -> None:
        """Clients that were refused together do not come back together."""
        shortest = RetryPause(draw=lambda: 1.0)
        assert [2 * one for one in pauses(shortest, 7)] == pauses(whole(), 7)
        assert len(set(pauses(RetryPause(), 100)[10:])) > 1

    def test_a_connection_that_stood_is_followed_by_a_short_one(self) -> None:
        """A server that was restarted is found again at once."""
        pause = whole()
        pauses(pause, 5)
        pause.opened(now_ns=0)
        assert pause.ended(now_ns=NS_PER_SECOND) == PAUSE_NS_MIN

    @pytest.mark.proves("E9")
    def test_one_that_was_welcomed_is_followed_by_a_short_one(self) -> None:
        """E9: a server that dies again and again is found before it decides."""
        pause = whole()
        pauses(pause, 5)
        pause.opened(now_ns=0)
        pause.welcomed()
        assert pause.ended(now_ns=NS_PER_SECOND - 1) == PAUSE_NS_MIN

    @pytest.mark.proves("E9")
    def test_a_client_with_a_claim_waits_for_the_shortest(self) -> None:
        """E9: a leader is back before the server decides, whatever refuses it."""
        pause = whole()
        pauses(pause, 5)
        assert [pause.ended(now_ns=0, has_claim=True) for _ in range(3)] == [
            PAUSE_NS_MIN
        ] * 3

    def test_one_that_ends_soon_is_as_good_as_none(self) -> None:
        """A server may let a client in, and have no room for it after all."""
        pause = whole()
        pauses(pause, 5)
        pause.opened(now_ns=0)
        assert pause.ended(now_ns=NS_PER_SECOND - 1) == PAUSE_NS_MAX
        assert pause.ended(now_ns=9 * NS_PER_SECOND) == PAUSE_NS_MAX


def test_the_random_numbers_of_the_program_are_left_alone() -> None:
    """E9: a program that has seeded Python's gets what it expects of them."""
    random.seed(1)
    expected = random.random()
    random.seed(1)
    pause = RetryPause()
    for number in range(10):
        assert PAUSE_NS_MIN // 2 <= pause.ended(now_ns=number) <= PAUSE_NS_MAX
    assert random.random() == expected
