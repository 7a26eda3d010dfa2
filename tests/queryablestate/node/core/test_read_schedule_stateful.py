"""
`ReadSchedule` against a model: askers that come and go, and want all they can have.

Whatever happens: one slice at a time, only of reads that are wanted; every read ends
exactly once; memory keeps to its bounds but for one answer; nothing that can go on
waits while nothing runs; and two askers that both could go on all the while get the
same time, to within two slices.
"""

from __future__ import annotations

from typing import Final

from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from queryablestate.node.core.read_schedule import (
    AllCancelled,
    AnswerGone,
    DropReason,
    ReadAsked,
    ReadEvent,
    ReadId,
    ReadLimits,
    ReadsCancelled,
    ReadSchedule,
    RunSlice,
    SliceEnded,
    TimePassed,
)
from tests.tiers import machine_settings


MS: Final = 1_000_000
ASKERS: Final = ("a", "b", "c")
SLICE_NS_MAX: Final = 4 * MS
GROWTH_MAX: Final = 40
LIMITS: Final = ReadLimits(
    waiting_count_max=12,
    begun_count_max=6,
    begun_per_asker_max=3,
    held_size_bytes_max=60,
    unsent_size_bytes_max=60,
)
ANSWER_SIZE_MAX: Final = 200


@define
class Wanted:
    """A read that is not over, as the model knows it."""

    asker: str
    deadline_ns: int
    holds_rows: bool
    size_bytes: int = 0
    is_begun: bool = False
    is_cancelled: bool = False


class ReadScheduleMachine(RuleBasedStateMachine):
    """A schedule, and what must hold of it."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = ReadSchedule(LIMITS)
        self.now_ns = 0
        self.number = 0
        self.running: ReadId | None = None
        self.wanted: dict[ReadId, Wanted] = {}
        self.unsent: dict[ReadId, int] = {}
        # What each has got since it could go on without a break.
        self.shares: dict[str, int] = {}

    def step(self, event: ReadEvent) -> None:
        """Have something happen, and hold the effects against the model."""
        turned_away = 0
        for effect in self.schedule.step(event, now_ns=self.now_ns):
            read = self.wanted[effect.read_id]
            if isinstance(effect, RunSlice):
                assert self.running is None
                assert not read.is_cancelled
                self.running = effect.read_id
                read.is_begun = True
                continue
            assert effect.read_id != self.running
            match effect.reason:
                case DropReason.LATE:
                    assert read.deadline_ns <= self.now_ns
                case DropReason.CANCELLED:
                    assert read.is_cancelled
                case DropReason.NO_ROOM:
                    turned_away += 1
                    # What ran then is told of later, when much may have changed.
                    if isinstance(event, ReadAsked):
                        most = max(self.count_of(name) for name in ASKERS)
                        assert self.count_of(read.asker) >= most
            del self.wanted[effect.read_id]
        assert turned_away <= 1
        self.shares = {
            name: spent for name, spent in self.shares.items() if self.can_go_on(name)
        }

    def count_of(self, asker: str) -> int:
        """Return how many reads an asker has."""
        return sum(read.asker == asker for read in self.wanted.values())

    def is_full_of(self, asker: str) -> bool:
        """Return whether nothing more of an asker may begin."""
        begun = [read.asker for read in self.wanted.values() if read.is_begun]
        return (
            len(begun) >= LIMITS.begun_count_max
            or begun.count(asker) >= LIMITS.begun_per_asker_max
        )

    def can_go_on(self, asker: str) -> bool:
        """Return whether an asker has a count that has begun: nothing holds it back."""
        return any(
            read.asker == asker and read.is_begun and not read.holds_rows
            for read in self.wanted.values()
        )

    @rule(
        asker=st.sampled_from(ASKERS),
        life_ms=st.sampled_from([1, 20, 10_000]),
        holds_rows=st.booleans(),
    )
    def ask(self, asker: str, life_ms: int, *, holds_rows: bool) -> None:
        """Somebody wants something."""
        self.number += 1
        read_id = (0, self.number)
        deadline_ns = self.now_ns + life_ms * MS
        self.wanted[read_id] = Wanted(asker, deadline_ns, holds_rows)
        self.step(
            ReadAsked(
                read_id=read_id,
                asker=asker,
                deadline_ns=deadline_ns,
                holds_rows=holds_rows,
            )
        )

    @precondition(lambda self: self.running is not None)
    @rule(
        spent_ns=st.integers(1, SLICE_NS_MAX),
        growth=st.integers(0, GROWTH_MAX),
        is_over=st.sampled_from([False, False, False, True]),
    )
    def end_slice(self, spent_ns: int, growth: int, *, is_over: bool) -> None:
        """A slice ends."""
        assert self.running is not None
        read_id, self.running = self.running, None
        read = self.wanted[read_id]
        if read.holds_rows:
            read.size_bytes = min(ANSWER_SIZE_MAX, read.size_bytes + growth)
        size_bytes = read.size_bytes
        self.now_ns += spent_ns
        if read.asker in self.shares:
            self.shares[read.asker] += spent_ns
        if is_over:
            del self.wanted[read_id]
            if size_bytes:
                self.unsent[read_id] = size_bytes
        self.step(
            SliceEnded(
                read_id=read_id,
                spent_ns=spent_ns,
                size_bytes=size_bytes,
                is_over=is_over,
            )
        )

    @precondition(lambda self: self.unsent)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """An answer has gone."""
        read_id = data.draw(st.sampled_from(sorted(self.unsent)))
        del self.unsent[read_id]
        self.step(AnswerGone(read_id=read_id))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Somebody wants something no more."""
        read_id = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted[read_id].is_cancelled = True
        self.step(ReadsCancelled(read_ids=(read_id, (9, 9))))

    @rule()
    def cancel_all(self) -> None:
        """The proxy is gone."""
        for read in self.wanted.values():
            read.is_cancelled = True
        self.step(AllCancelled())

    @rule(elapsed_ms=st.integers(0, 30))
    def wait(self, elapsed_ms: int) -> None:
        """Time passes while a slice takes longer than it should, or none runs."""
        self.now_ns += elapsed_ms * MS
        self.step(TimePassed())

    @rule()
    def watch(self) -> None:
        """From now on, those who can go on get the same."""
        self.shares = {name: 0 for name in ASKERS if self.can_go_on(name)}

    @invariant()
    def it_counts_right(self) -> None:
        """What waits and what is held is known."""
        assert len(self.schedule) == len(self.wanted) <= LIMITS.waiting_count_max + 1
        held = sum(read.size_bytes for read in self.wanted.values())
        assert self.schedule.held_size_bytes == held + sum(self.unsent.values())

    @invariant()
    def memory_is_bounded(self) -> None:
        """B1: one answer beyond each bound, and no more."""
        held = [read.size_bytes for read in self.wanted.values()]
        assert sum(held) <= LIMITS.held_size_bytes_max + ANSWER_SIZE_MAX
        assert (
            sum(self.unsent.values()) <= LIMITS.unsent_size_bytes_max + ANSWER_SIZE_MAX
        )
        begun = [read.asker for read in self.wanted.values() if read.is_begun]
        assert len(begun) <= LIMITS.begun_count_max
        assert all(begun.count(name) <= LIMITS.begun_per_asker_max for name in ASKERS)

    @invariant()
    def nothing_late_is_left(self) -> None:
        """B2: but for what runs just now; and the schedule knows its next moment."""
        for read_id, read in self.wanted.items():
            assert read_id == self.running or read.deadline_ns > self.now_ns
        moments = [read.deadline_ns for read in self.wanted.values()]
        if self.running is None:
            assert self.schedule.next_deadline_ns() == min(moments, default=None)

    @invariant()
    def it_is_never_idle(self) -> None:
        """What can go on does: all that keeps a read back is memory, or its like."""
        if self.running is None and self.wanted:
            for read in self.wanted.values():
                is_kept_back = not read.is_begun and self.is_full_of(read.asker)
                assert read.holds_rows or is_kept_back
            assert sum(self.unsent.values()) > LIMITS.unsent_size_bytes_max

    @invariant()
    def time_is_shared(self) -> None:
        """B2: of two who could go on all the while none got much more."""
        if len(self.shares) >= 2:
            spent = self.shares.values()
            assert max(spent) - min(spent) <= 2 * SLICE_NS_MAX + LAG_NS_MAX


LAG_NS_MAX: Final = 20 * MS
"""What an asker that was held back before may make up for."""

TestReadSchedule = ReadScheduleMachine.TestCase
TestReadSchedule.settings = machine_settings(examples=200, steps=80)
