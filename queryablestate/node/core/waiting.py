"""
Questions that cannot be answered yet; pure.

A question waits for one thing (`Wait`), and is looked at again when an entry is applied
that may have brought it.  At its deadline it is refused; what waits is bounded.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, assert_never, final

from queryablestate.node.core.events import Wait
from queryablestate.shares import Shares
from queryablestate.wire.questions import size_bytes_of
from queryablestate.wire.records import (
    BatchDecided,
    SnapshotMarked,
    SnapshotRestored,
    StateDropped,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from queryablestate.node.core.events import QuestionDeferred
    from queryablestate.wire.questions import Question
    from queryablestate.wire.records import Entry


__all__ = ["WaitingQuestions"]

_LEFTOVER_COUNT_MAX: Final = 1_000


@final
class WaitingQuestions:
    """
    The questions that wait, in the order in which they came.

    Room is shared fairly between askers (`Shares`, rule B2).

    Args:
        count_max: How many may wait.
        size_bytes_max: How much memory they may take, together.
    """

    def __init__(self, count_max: int, size_bytes_max: int) -> None:
        self._number = 0
        self._waiting: dict[int, QuestionDeferred] = {}
        self._shares: Shares[int] = Shares(
            count_max=count_max, size_bytes_max=size_bytes_max
        )
        # An entry of a question that waits no more is left until it comes up.
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deferred: QuestionDeferred) -> Sequence[QuestionDeferred]:
        """Have a question wait; return those that there is no room for."""
        asked = deferred.asked
        self._number += 1
        self._waiting[self._number] = deferred
        turned_away = self._shares.take(
            asked.question.asker,
            self._number,
            size_bytes_of(asked.question.operation, asked.keys),
        )
        refused = [self._waiting.pop(number) for number in turned_away]
        heapq.heappush(self._deadlines, (asked.deadline_ns, self._number))
        if len(self._deadlines) > 2 * len(self._waiting) + _LEFTOVER_COUNT_MAX:
            self._deadlines = [
                (waiting.asked.deadline_ns, number)
                for number, waiting in self._waiting.items()
            ]
            heapq.heapify(self._deadlines)
        return refused

    def next_deadline_ns(self) -> int | None:
        """Return the earliest deadline of those that wait, or None."""
        while self._deadlines and self._deadlines[0][1] not in self._waiting:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_due(self, *, now_ns: int) -> Sequence[QuestionDeferred]:
        """Take out those whose deadline has come, the earliest first."""
        due = []
        while (deadline_ns := self.next_deadline_ns()) is not None:
            if deadline_ns > now_ns:
                break
            _, number = heapq.heappop(self._deadlines)
            due.append(self._remove(number))
        return due

    def take_applied(
        self, job_id: str, entry: Entry, *, is_caught_up: bool
    ) -> Sequence[QuestionDeferred]:
        """
        Take out those that *entry*, just applied, concerns.

        Args:
            job_id: Whose chain.
            entry: What was applied.
            is_caught_up: Whether the job answers now.
        """
        batches: dict[int, tuple[int, int] | None] = {}
        match entry:
            case BatchDecided(states=states, batch_id=batch_id):
                batches = {
                    state.state_number: (state.generation, batch_id) for state in states
                }
            case StateDropped(state_number=state_number):
                batches = {state_number: None}
            case SnapshotRestored(state_numbers=state_numbers):
                batches = dict.fromkeys(state_numbers)
            case SnapshotMarked():
                pass
            case _:
                assert_never(entry)

        def is_concerned(waiting: QuestionDeferred) -> bool:
            question = waiting.asked.question
            match waiting.wait:
                case Wait.UNKNOWN_STATE:
                    return True  # it was not known whose it is
                case Wait.CATCHING_UP:
                    return waiting.job_id == job_id and is_caught_up
                case Wait.BATCH:
                    if question.state_number not in batches:
                        return False
                    applied = batches[question.state_number]
                    return applied is None or _is_reached(question, *applied)
                case _:
                    assert_never(waiting.wait)

        return self._take(is_concerned)

    def take_job(self, job_id: str) -> Sequence[QuestionDeferred]:
        """Take out those about *job_id*, and those that may be."""
        return self._take(lambda waiting: waiting.job_id in {job_id, None})

    def take_cancelled(
        self, question_ids: Collection[int]
    ) -> Sequence[QuestionDeferred]:
        """Take out these questions, those of them that wait."""
        wanted = frozenset(question_ids)
        return self._take(lambda waiting: waiting.asked.question.question_id in wanted)

    def take_all(self) -> Sequence[QuestionDeferred]:
        """Take out all of them."""
        return self._take(lambda _: True)

    def clear(self) -> None:
        """Forget all of them: there is no one to be answered."""
        self._waiting.clear()
        self._shares.clear()
        self._deadlines.clear()

    def _take(
        self, is_wanted: Callable[[QuestionDeferred], bool]
    ) -> Sequence[QuestionDeferred]:
        """Take out those that are wanted, in the order in which they came."""
        numbers = [n for n, waiting in self._waiting.items() if is_wanted(waiting)]
        return [self._remove(number) for number in numbers]

    def _remove(self, number: int) -> QuestionDeferred:
        self._shares.free(number)
        return self._waiting.pop(number)


def _is_reached(question: Question, generation: int, batch_id: int) -> bool:
    """Return whether that batch is the one that *question* waits for, or newer."""
    wanted = question.min_generation
    if wanted is not None and wanted != generation:
        return generation > wanted
    return batch_id >= (question.min_batch_id or 0)
