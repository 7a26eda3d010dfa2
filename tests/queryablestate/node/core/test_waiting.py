from __future__ import annotations

from typing import Final

import pytest

from queryablestate.node.core.events import QuestionDeferred, Wait
from queryablestate.node.core.waiting import WaitingQuestions
from queryablestate.wire.questions import ScanRows
from tests.queryablestate.node_entries import (
    asked,
    batch,
    drop,
    question,
    restored,
    snapshot,
)


MS: Final = 1_000_000


def deferred(
    question_id: int = 1,
    *,
    wait: Wait = Wait.BATCH,
    job_id: str | None = "job",
    state_number: int = 1,
    min_batch_id: int | None = 5,
    min_generation: int | None = None,
    deadline_ms: int = 5_000,
    asker: str = "",
) -> QuestionDeferred:
    """Return a question that waits."""
    one = question(
        question_id,
        state_number=state_number,
        min_batch_id=min_batch_id,
        min_generation=min_generation,
        deadline_ms=deadline_ms,
        asker=asker,
    )
    return QuestionDeferred(asked=asked(one), job_id=job_id, wait=wait)


@pytest.fixture
def waiting() -> WaitingQuestions:
    """Return room for three questions."""
    return WaitingQuestions(3, 1_000)


class TestRoom:
    """What waits is bounded."""

    def test_it_is_full_at_its_limit(self, waiting: WaitingQuestions) -> None:
        """The third question fits, a fourth does not."""
        for number in range(3):
            assert waiting.add(deferred(number)) == []
        fourth = deferred(4)
        assert waiting.add(fourth) == [fourth]
        assert len(waiting) == 3

    @pytest.mark.proves("B2", "Q2")
    def test_one_asker_does_not_keep_others_from_waiting(
        self, waiting: WaitingQuestions
    ) -> None:
        """B2, Q2: it gives up the newest of what it has, until all have as much."""
        greedy = [deferred(number, asker="greedy") for number in range(3)]
        for one in greedy:
            assert waiting.add(one) == []
        assert waiting.add(deferred(8, asker="modest")) == [greedy[2]]
        another = deferred(9, asker="modest")
        assert waiting.add(another) == [another]
        assert waiting.add(deferred(10, asker="third")) == [greedy[1]]
        assert [one.asked.question.question_id for one in waiting.take_all()] == [
            0,
            8,
            10,
        ]

    @pytest.mark.proves("B1")
    def test_what_waits_has_a_size(self) -> None:
        """B1: its keys take memory; each has four bytes here."""
        waiting = WaitingQuestions(100, 8)
        assert waiting.add(deferred(1, asker="a")) == []
        assert waiting.add(deferred(2, asker="a")) == []
        (refused,) = waiting.add(deferred(3, asker="b"))
        assert refused.asked.question.question_id == 2

    @pytest.mark.proves("B1", "B4")
    def test_the_first_frame_has_a_size_too(self) -> None:
        """B1, B4: the bounds of a page take memory, and may have any length."""
        waiting = WaitingQuestions(100, 1_000)
        page = ScanRows(start=bytes(400), stop=bytes(400), limit=1)
        for number in range(2):
            one = asked(question(number, min_batch_id=5, operation=page))
            wait = QuestionDeferred(asked=one, job_id="job", wait=Wait.BATCH)
            assert bool(waiting.add(wait)) == bool(number)

    @pytest.mark.proves("B2")
    def test_what_is_cancelled_waits_no_more(self, waiting: WaitingQuestions) -> None:
        """B2: its place is free; what does not wait is passed over."""
        for number in range(3):
            waiting.add(deferred(number))
        taken = waiting.take_cancelled((2, 0, 7))
        assert [one.asked.question.question_id for one in taken] == [0, 2]
        assert len(waiting) == 1
        assert waiting.add(deferred(8)) == []

    def test_forgetting_all_makes_room(self, waiting: WaitingQuestions) -> None:
        """None is left, and no deadline."""
        waiting.add(deferred())
        waiting.clear()
        assert len(waiting) == 0
        assert waiting.next_deadline_ns() is None

    def test_taking_all_gives_them_in_order(self, waiting: WaitingQuestions) -> None:
        """Who came first is looked at first."""
        waiting.add(deferred(1, deadline_ms=9))
        waiting.add(deferred(2, deadline_ms=3))
        taken = waiting.take_all()
        assert [one.asked.question.question_id for one in taken] == [1, 2]
        assert len(waiting) == 0


class TestDeadlines:
    """Q2: none waits beyond the deadline."""

    def test_the_earliest_comes_first(self, waiting: WaitingQuestions) -> None:
        """At the very deadline a question is due, one before it is not."""
        waiting.add(deferred(1, deadline_ms=9))
        waiting.add(deferred(2, deadline_ms=3))
        assert waiting.next_deadline_ns() == 3 * MS
        assert waiting.take_due(now_ns=3 * MS - 1) == []
        assert waiting.take_due(now_ns=3 * MS) == [deferred(2, deadline_ms=3)]
        assert waiting.next_deadline_ns() == 9 * MS

    def test_several_may_be_due(self, waiting: WaitingQuestions) -> None:
        """All whose deadline has come, the earliest first."""
        waiting.add(deferred(1, deadline_ms=9))
        waiting.add(deferred(2, deadline_ms=3))
        taken = waiting.take_due(now_ns=9 * MS)
        assert [one.asked.question.question_id for one in taken] == [2, 1]
        assert waiting.take_due(now_ns=9 * MS) == []

    def test_who_waits_no_more_has_no_deadline(self, waiting: WaitingQuestions) -> None:
        """A question that was taken out does not wake anybody."""
        waiting.add(deferred(1, deadline_ms=3))
        waiting.take_all()
        assert waiting.next_deadline_ns() is None

    def test_old_deadlines_do_not_pile_up(self, waiting: WaitingQuestions) -> None:
        """However many come and go, what is remembered stays small."""
        waiting.add(deferred(0, deadline_ms=1))  # keeps the others from coming up
        for number in range(5_000):
            waiting.add(deferred(number, job_id="other"))
            waiting.take_job("other")
        assert len(waiting._deadlines) < 1_100
        assert waiting.next_deadline_ns() == MS
        assert waiting.take_due(now_ns=MS) == [deferred(0, deadline_ms=1)]


class TestApplied:
    """Q2: a question waits for the batch that it names."""

    def take(
        self, waiting: WaitingQuestions, batch_id: int = 9
    ) -> list[QuestionDeferred]:
        """Apply a batch, and return who is concerned."""
        entry = batch(9, batch_id=batch_id)
        return list(waiting.take_applied("job", entry, is_caught_up=True))

    @pytest.mark.parametrize(("batch_id", "count"), [(4, 0), (5, 1), (6, 1)])
    def test_the_batch_or_a_later_one_is_enough(
        self, waiting: WaitingQuestions, batch_id: int, count: int
    ) -> None:
        """Batch ids may skip; an earlier one is not it."""
        waiting.add(deferred(min_batch_id=5))
        assert len(self.take(waiting, batch_id)) == count

    @pytest.mark.proves("Q2")
    @pytest.mark.parametrize(
        ("generation", "batch_id", "count"),
        [(1, 29, 0), (2, 4, 0), (2, 5, 1), (3, 0, 1)],
    )
    def test_a_generation_is_newer_than_any_batch_before_it(
        self, waiting: WaitingQuestions, generation: int, batch_id: int, count: int
    ) -> None:
        """Q2: batch 29 of the query before is not batch 5, batch 0 of the next is."""
        waiting.add(deferred(min_batch_id=5, min_generation=2))
        entry = batch(9, batch_id=batch_id, generation=generation)
        taken = waiting.take_applied("job", entry, is_caught_up=True)
        assert len(taken) == count

    def test_a_batch_of_another_state_is_not_it(
        self, waiting: WaitingQuestions
    ) -> None:
        """Batches are numbered within a state."""
        waiting.add(deferred(state_number=2))
        assert self.take(waiting) == []

    def test_a_restored_state_is_looked_at(self, waiting: WaitingQuestions) -> None:
        """Which batch its rows are of, the store knows."""
        waiting.add(deferred(1, state_number=1))
        waiting.add(deferred(2, state_number=2))
        taken = waiting.take_applied("job", restored(9, 2), is_caught_up=True)
        assert [one.asked.question.question_id for one in taken] == [2]

    def test_a_snapshot_brings_no_batch(self, waiting: WaitingQuestions) -> None:
        """Only those that wait for the job to catch up are concerned."""
        waiting.add(deferred(1))
        waiting.add(deferred(2, wait=Wait.CATCHING_UP))
        taken = waiting.take_applied("job", snapshot(9), is_caught_up=True)
        assert [one.asked.question.question_id for one in taken] == [2]

    def test_a_dropped_state_is_not_waited_for(self, waiting: WaitingQuestions) -> None:
        """There will be no such batch: the question is looked at again."""
        waiting.add(deferred(1))
        waiting.add(deferred(2, state_number=2))
        taken = waiting.take_applied("job", drop(9), is_caught_up=True)
        assert taken == [deferred(1)]

    def test_who_waits_for_the_node_waits_until_it_has_caught_up(
        self, waiting: WaitingQuestions
    ) -> None:
        """One entry of several that were missed is not enough."""
        waiting.add(deferred(wait=Wait.CATCHING_UP))
        assert waiting.take_applied("job", batch(8), is_caught_up=False) == []
        assert waiting.take_applied("other", batch(8), is_caught_up=True) == []
        assert len(waiting.take_applied("job", batch(9), is_caught_up=True)) == 1

    def test_an_unknown_state_may_be_in_any_entry(
        self, waiting: WaitingQuestions
    ) -> None:
        """Whose state it is was not known: whatever is applied may bring it."""
        waiting.add(deferred(wait=Wait.UNKNOWN_STATE, job_id=None))
        assert len(waiting.take_applied("any", batch(8), is_caught_up=False)) == 1

    def test_a_job_takes_its_own_and_the_unknown(
        self, waiting: WaitingQuestions
    ) -> None:
        """A change of one job leaves those alone that wait for another."""
        waiting.add(deferred(1))
        waiting.add(deferred(2, job_id=None, wait=Wait.UNKNOWN_STATE))
        waiting.add(deferred(3, job_id="other"))
        taken = waiting.take_job("job")
        assert [one.asked.question.question_id for one in taken] == [1, 2]
