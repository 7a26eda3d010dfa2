from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from nameservice import (
    NS_PER_SECOND,
    LocalProtocolError,
    ManualClock,
    NameServiceError,
    NoLeaderError,
)
from nameservice.interruptible import InterruptibleEvent
from queryablestate import AccessDeniedError, DeadlineExceededError
from queryablestate.operations.polling import wait_for


class Asked:
    """Answers as told, each answer some seconds later; the last one again and again."""

    def __init__(
        self, answers: Sequence[str | NameServiceError | None], seconds: float = 1.0
    ) -> None:
        self.clock = ManualClock(7)
        self.closed = InterruptibleEvent()
        self.count = 0
        self._answers = answers
        self._seconds = seconds

    def ask(self) -> str | None:
        """Move time on, and answer."""
        self.clock.advance(round(self._seconds * NS_PER_SECOND))
        answer = self._answers[min(self.count, len(self._answers) - 1)]
        self.count += 1
        if isinstance(answer, NameServiceError):
            raise answer
        return answer

    def wait(self, timeout_seconds: float | None = None) -> str:
        """Wait for an answer."""
        return wait_for(
            self.ask,
            clock=self.clock,
            closed=self.closed,
            timeout_seconds=timeout_seconds,
            missing=lambda: "everything",
        )


NOBODY = NoLeaderError("QUERY_PROXY", 5.0)


class TestWaiting:
    """Asking until there is an answer."""

    def test_it_asks_until_there_is_an_answer(self) -> None:
        """And not once more."""
        asked = Asked([None, None, "done"])
        assert asked.wait() == "done"
        assert asked.count == 3

    def test_it_gives_up_in_time(self) -> None:
        """The error says what was missing; one answer is waited for at least."""
        asked = Asked([None])
        with pytest.raises(DeadlineExceededError) as caught:
            asked.wait(3.0)
        assert caught.value.detail == "everything"
        assert caught.value.waited_seconds == 3.0
        assert asked.count == 3
        assert Asked(["done"], seconds=9.0).wait(3.0) == "done"

    def test_a_proxy_that_is_replaced_is_waited_for(self) -> None:
        """S2: the next one goes on with the move, and so do we."""
        asked = Asked([None, NOBODY, DeadlineExceededError(5.0), "done"], seconds=10.0)
        assert asked.wait() == "done"

    def test_a_proxy_that_stays_away_is_not(self) -> None:
        """Q3: after a minute without an answer, or at the end of our time."""
        asked = Asked([None, NOBODY], seconds=10.0)
        with pytest.raises(NoLeaderError):
            asked.wait()
        assert asked.count == 7
        with pytest.raises(NoLeaderError):
            Asked([None, NOBODY], seconds=10.0).wait(30.0)

    def test_what_one_question_waited_is_not_told_as_ours(self) -> None:
        """A minute had passed, and "not done within 5 s" was said."""
        late = DeadlineExceededError(5.0, "the proxy gave no answer")
        with pytest.raises(DeadlineExceededError) as caught:
            Asked([None, late], seconds=10.0).wait(30.0)
        assert caught.value.waited_seconds == 30.0
        assert caught.value.detail == "everything"
        assert caught.value.__cause__ is late

    def test_any_other_error_is_told_at_once(self) -> None:
        """C1: who is not allowed to ask will not be in a moment."""
        asked = Asked([None, AccessDeniedError("list the moves"), "done"])
        with pytest.raises(AccessDeniedError):
            asked.wait()
        assert asked.count == 2

    def test_to_close_ends_it(self) -> None:
        """A thread that waits does not outlive what it waits with."""
        asked = Asked([None])
        threading.Timer(0.1, asked.closed.set).start()
        with pytest.raises(LocalProtocolError):
            asked.wait()
