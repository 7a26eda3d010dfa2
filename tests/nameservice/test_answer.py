"""`Answer`; tests/haservices/test_signal_handlers.py interrupts who waits for it."""

from __future__ import annotations

import threading

import pytest

from nameservice.answer import Answer, wait_for_any
from tests.recording import WAIT_SECONDS


def test_what_is_given_first_counts() -> None:
    """For all that wait, and for those that come later."""
    answer: Answer[int] = Answer()
    with pytest.raises(TimeoutError):
        answer.result(0)
    assert not answer.done()
    giving = threading.Thread(target=answer.set_result, args=[7])
    giving.start()
    assert answer.result(WAIT_SECONDS) == 7
    giving.join()
    answer.set_exception(ValueError("too late"))
    assert answer.done()
    assert answer.result(0) == 7


def test_an_error_is_raised() -> None:
    """Each time that it is asked for; None is a result."""
    failed: Answer[None] = Answer()
    failed.set_exception(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            failed.result()
    empty: Answer[None] = Answer()
    empty.set_result(None)
    assert empty.done()
    empty.result(0)


def test_one_of_several_is_enough() -> None:
    """None of them is needed: the time may be over before."""
    answers: list[Answer[int]] = [Answer(), Answer()]
    wait_for_any(answers, 0)
    threading.Timer(0.01, answers[1].set_result, [1]).start()
    wait_for_any(answers, WAIT_SECONDS)
    assert [answer.done() for answer in answers] == [False, True]
