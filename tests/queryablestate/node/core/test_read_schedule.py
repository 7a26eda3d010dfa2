from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from queryablestate.node.core.read_schedule import (
    AllCancelled,
    AnswerGone,
    DropRead,
    DropReason,
    ReadAsked,
    ReadEffect,
    ReadEvent,
    ReadId,
    ReadLimits,
    ReadsCancelled,
    ReadSchedule,
    RunSlice,
    SliceEnded,
    TimePassed,
)


MS: Final = 1_000_000
SLICE: Final = 3 * MS
MIB: Final = 1 << 20


class Stage:
    """A schedule, and a clock that a slice moves on."""

    def __init__(self, **limits: int) -> None:
        self.schedule = ReadSchedule(ReadLimits(**limits))
        self.now_ns = 0
        self.number = 0
        self.running: ReadId | None = None
        self.dropped: list[tuple[int, DropReason]] = []

    def step(self, event: ReadEvent) -> Sequence[ReadEffect]:
        """Have something happen."""
        effects = self.schedule.step(event, now_ns=self.now_ns)
        for effect in effects:
            if isinstance(effect, RunSlice):
                assert self.running is None
                self.running = effect.read_id
            else:
                assert effect.read_id != self.running
                self.dropped.append((effect.read_id[1], effect.reason))
        return effects

    def ask(
        self, asker: str, *, deadline_ns: int = 10**12, holds_rows: bool = True
    ) -> int:
        """Have a read wanted; return its number."""
        self.number += 1
        self.step(
            ReadAsked(
                read_id=(0, self.number),
                asker=asker,
                deadline_ns=deadline_ns,
                holds_rows=holds_rows,
            )
        )
        return self.number

    def cancel(self, *numbers: int) -> None:
        """Have reads cancelled."""
        self.step(ReadsCancelled(read_ids=tuple((0, number) for number in numbers)))

    def end(
        self, *, spent_ns: int = SLICE, size_bytes: int = 0, is_over: bool = False
    ) -> int | None:
        """End the slice that runs; return which one comes next."""
        assert self.running is not None
        read_id, self.running = self.running, None
        self.now_ns += spent_ns
        self.step(
            SliceEnded(
                read_id=read_id,
                spent_ns=spent_ns,
                size_bytes=size_bytes,
                is_over=is_over,
            )
        )
        return self.runs

    @property
    def runs(self) -> int | None:
        """Return which read's slice runs."""
        return None if self.running is None else self.running[1]


@pytest.mark.proves("B2")
class TestTurns:
    """Who goes on."""

    def test_one_slice_at_a_time(self) -> None:
        """A read goes on until it is over."""
        stage = Stage()
        one = stage.ask("a")
        assert stage.runs == one
        assert stage.end() == one
        assert stage.end(is_over=True) is None
        assert len(stage.schedule) == 0

    def test_a_newcomer_waits_for_one_slice(self) -> None:
        """B2: however many reads another one has, and however long they take."""
        stage = Stage()
        counts = [stage.ask("greedy") for _ in range(10)]
        for _ in range(1_000):
            stage.end()
        assert stage.runs in counts
        page = stage.ask("modest")
        assert stage.end() == page
        assert stage.end(is_over=True) in counts

    def test_askers_have_as_much_time_each(self) -> None:
        """B2: whatever they ask, and in how many reads."""
        stage = Stage()
        mine = {stage.ask("many") for _ in range(5)}
        other = stage.ask("one")
        spent = {"many": 0, "one": 0}
        for number in range(600):
            name = "one" if stage.runs == other else "many"
            assert stage.runs in mine | {other}
            # A slice of one of them takes four times as long.
            spent_ns = 4 * MS if name == "one" else MS
            spent[name] += spent_ns
            stage.end(spent_ns=spent_ns)
            assert number >= 0
        assert abs(spent["many"] - spent["one"]) <= 5 * MS

    def test_reads_of_one_asker_take_turns(self) -> None:
        """A short one is not behind all the long ones of the same asker."""
        stage = Stage()
        numbers = [stage.ask("a") for _ in range(3)]
        seen = [stage.runs]
        seen += [stage.end() for _ in range(5)]
        assert seen == numbers * 2

    def test_time_that_was_not_used_is_not_saved_up(self) -> None:
        """B2: who comes back gets its share, and no more."""
        stage = Stage()
        first, second = stage.ask("a"), stage.ask("b")
        stage.end(is_over=True)
        for _ in range(100):
            assert stage.end() == second
        again = stage.ask("a")
        turns = [stage.end() for _ in range(6)]
        assert turns == [again, second] * 3
        assert first not in turns

    def test_waiting_for_room_is_not_saved_up_either(self) -> None:
        """B2: an asker that was held back does not keep others back afterwards."""
        stage = Stage()
        large, count = stage.ask("a"), stage.ask("b", holds_rows=False)
        blocked = stage.ask("c")
        assert stage.end(size_bytes=5 * MIB, is_over=True) == count
        assert large != blocked
        for _ in range(1_000):
            assert stage.end() == count
        stage.step(AnswerGone(read_id=(0, large)))
        turns = [stage.end() for _ in range(100)]
        assert 40 <= turns.count(count) <= 60

    def test_only_some_are_begun(self) -> None:
        """Each that has begun keeps a snapshot: of one asker, and of all, a few."""
        stage = Stage(begun_count_max=3, begun_per_asker_max=2)
        numbers = [stage.ask("a") for _ in range(4)]
        assert {stage.end() for _ in range(60)} == set(numbers[:2])
        others = [stage.ask(name) for name in "bc"]
        assert {stage.end() for _ in range(60)} == {*numbers[:2], others[0]}
        while stage.runs != numbers[0]:
            stage.end()
        stage.end(is_over=True)
        assert {stage.end() for _ in range(60)} == {numbers[1], *others}


@pytest.mark.proves("B2")
class TestEnds:
    """How a read comes to nothing."""

    def test_it_is_dropped_at_its_deadline(self) -> None:
        """B2: at that very moment, begun or not; not one earlier."""
        stage = Stage()
        stage.ask("a")
        stage.ask("a", deadline_ns=SLICE + 1)
        assert stage.schedule.next_deadline_ns() == SLICE + 1
        stage.end()
        assert stage.dropped == []
        stage.end(spent_ns=1)
        assert stage.dropped == [(2, DropReason.LATE)]
        assert stage.runs == 1
        assert stage.schedule.next_deadline_ns() == 10**12

    def test_it_is_not_dropped_while_its_slice_runs(self) -> None:
        """B2: that is over in a moment."""
        stage = Stage()
        one = stage.ask("a", deadline_ns=5)
        stage.now_ns = 5
        stage.step(TimePassed())
        assert stage.dropped == []
        assert stage.runs == one
        assert stage.end() is None
        assert stage.dropped == [(one, DropReason.LATE)]

    def test_an_answer_that_is_there_is_not_dropped(self) -> None:
        """The last slice has brought it."""
        stage = Stage()
        one = stage.ask("a")
        stage.cancel(one)
        stage.end(is_over=True, size_bytes=7)
        assert stage.dropped == []
        assert stage.schedule.held_size_bytes == 7
        stage.step(AnswerGone(read_id=(0, one)))
        assert stage.schedule.held_size_bytes == 0

    def test_what_is_cancelled_is_dropped(self) -> None:
        """B2: begun, waiting, or running; a name that is not known is nothing."""
        stage = Stage(begun_per_asker_max=1)
        running, waiting = stage.ask("a"), stage.ask("a")
        stage.cancel(waiting, 99)
        assert stage.dropped == [(waiting, DropReason.CANCELLED)]
        stage.cancel(running)
        assert stage.end() is None
        assert stage.dropped[1:] == [(running, DropReason.CANCELLED)]
        assert len(stage.schedule) == 0

    def test_all_can_be_cancelled(self) -> None:
        """The proxy that asked is gone."""
        stage = Stage()
        numbers = [stage.ask(name) for name in "abc"]
        stage.step(AllCancelled())
        stage.end()
        assert sorted(number for number, _ in stage.dropped) == numbers
        assert stage.runs is None

    def test_what_waits_is_bounded_and_shared(self) -> None:
        """B2: the one that has most gives up its newest, running or not."""
        stage = Stage(waiting_count_max=2)
        first, second = stage.ask("a"), stage.ask("a")
        third = stage.ask("a")
        assert stage.dropped == [(third, DropReason.NO_ROOM)]
        other = stage.ask("b")
        assert stage.dropped[1:] == [(second, DropReason.NO_ROOM)]
        assert stage.end() == other
        assert stage.end() == first
        assert len(stage.schedule) == 2

    def test_the_one_that_runs_gives_up_its_place_when_its_slice_is_over(self) -> None:
        """B2: it is the newest of the one that has most."""
        stage = Stage(waiting_count_max=2)
        first, second = stage.ask("a"), stage.ask("a")
        assert stage.end() == second
        other = stage.ask("b")
        assert stage.dropped == []
        assert stage.end() == other
        assert stage.dropped == [(second, DropReason.NO_ROOM)]
        assert stage.end() == first

    def test_deadlines_of_the_past_are_forgotten(self) -> None:
        """Many short reads with long deadlines leave nothing."""
        stage = Stage()
        for _ in range(5_000):
            stage.ask("a")
            stage.end(is_over=True)
        assert len(stage.schedule._deadlines) <= 1_001
        assert stage.schedule.next_deadline_ns() is None


@pytest.mark.proves("B1")
class TestMemory:
    """What is held of answers."""

    def test_nothing_is_read_while_answers_wait(self) -> None:
        """B1: but what holds nothing, a count."""
        stage = Stage(unsent_size_bytes_max=MIB)
        large = stage.ask("a")
        page = stage.ask("b")
        count = stage.ask("c", holds_rows=False)
        assert stage.end(size_bytes=MIB + 1, is_over=True) == count
        assert stage.end() == count
        stage.step(AnswerGone(read_id=(0, large)))
        assert stage.end() == page

    def test_a_count_does_not_wait_behind_a_page_of_its_asker(self) -> None:
        """B2: what memory keeps back keeps back nothing that holds no rows."""
        stage = Stage(unsent_size_bytes_max=MIB)
        stage.ask("a")
        stage.ask("a")
        count = stage.ask("a", holds_rows=False)
        assert stage.end(size_bytes=MIB + 1, is_over=True) == count

    def test_up_to_the_bound_it_goes_on(self) -> None:
        """B1: at that very size."""
        stage = Stage(unsent_size_bytes_max=MIB)
        stage.ask("a")
        page = stage.ask("b")
        assert stage.end(size_bytes=MIB, is_over=True) == page

    def test_beyond_the_bound_the_largest_goes_on_alone(self) -> None:
        """B1: two answers do not grow side by side; a count holds nothing."""
        stage = Stage(held_size_bytes_max=MIB)
        first, second = stage.ask("a"), stage.ask("b")
        count = stage.ask("c", holds_rows=False)
        assert stage.end(size_bytes=MIB // 2 + 2) == second
        assert stage.end(size_bytes=MIB // 2) == count
        seen = {
            stage.end(size_bytes=0 if stage.runs == count else MIB) for _ in range(6)
        }
        assert seen == {first, count}
        while stage.runs == count:
            stage.end()
        stage.end(is_over=True, size_bytes=MIB)
        assert stage.schedule.held_size_bytes == MIB + MIB // 2
        assert second in {stage.runs, stage.end()}

    def test_what_is_dropped_holds_nothing(self) -> None:
        """B1: its part of an answer is gone with it."""
        stage = Stage()
        one = stage.ask("a")
        stage.end(size_bytes=MIB)
        stage.cancel(one)
        stage.end(size_bytes=2 * MIB)
        assert stage.dropped == [(one, DropReason.CANCELLED)]
        assert stage.schedule.held_size_bytes == 0

    def test_an_answer_that_is_not_known_is_gone_already(self) -> None:
        """An error has none, and may be told of all the same."""
        stage = Stage()
        stage.step(AnswerGone(read_id=(3, 4)))
        assert stage.schedule.held_size_bytes == 0
        assert isinstance(DropRead(read_id=(1, 2), reason=DropReason.LATE), DropRead)
