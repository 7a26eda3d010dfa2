"""
`ReadSchedule`: which long read goes on next, without I/O (rules B1, B2).

Theory of operation.  A long read is done in slices of a few milliseconds, one at a
time.  Askers take turns by *virtual time*, as in start-time fair queueing (Goyal, Vin
and Cheng, 1996): that of an asker grows by what its slices took, and the one that is
furthest behind goes on.  An asker that comes anew begins where the others are: it has
saved nothing up.  The reads of one asker take turns, too.

A read that has begun keeps a snapshot of the store, and what it has of its answer.  So
only some are begun at a time, of one asker and in all, and memory is bounded by two
numbers.  While answers wait to be sent, beyond *unsent_size_bytes_max*, no read goes
on that may hold anything.  While those that are under way hold more than
*held_size_bytes_max*, only the one that holds most goes on: it is done soonest, and
another one cannot grow beside it.  So there is at most one answer beyond each bound.

A read ends in one of three ways: its last slice (`SliceEnded`), its deadline or its
asker (`DropRead`).  What it has read until then is the shell's to report.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from typing import Final, TypeAlias, assert_never, final

from attrs import Factory, define, frozen

from queryablestate.shares import Shares


__all__ = [
    "AllCancelled",
    "AnswerGone",
    "DropRead",
    "DropReason",
    "ReadAsked",
    "ReadEffect",
    "ReadEvent",
    "ReadId",
    "ReadLimits",
    "ReadSchedule",
    "ReadsCancelled",
    "RunSlice",
    "SliceEnded",
    "TimePassed",
]

_LAG_NS_MAX: Final = 20_000_000

ReadId: TypeAlias = tuple[int, int]
"""Names a read; chosen by who asks for it."""


# -- what happened ---------------------------------------------------------------------


@frozen(kw_only=True)
class ReadAsked:
    """
    A long read is wanted.

    Attributes:
        read_id: Its name, used once.
        asker: Whose turn it takes.
        deadline_ns: When it is worth nothing any more.
        holds_rows: Whether it may hold much of its answer: a count does not.
        size_bytes: Of its question, which is kept until it is over.
    """

    read_id: ReadId
    asker: str
    deadline_ns: int
    holds_rows: bool
    size_bytes: int = 0


@frozen(kw_only=True)
class SliceEnded:
    """
    A `RunSlice` is done.

    Attributes:
        read_id: Of which read.
        spent_ns: How long it took.
        size_bytes: What the read holds; if it is over, its answer, which is held until
            it is gone (`AnswerGone`).
        is_over: Whether it has its answer, or failed.
    """

    read_id: ReadId
    spent_ns: int
    size_bytes: int
    is_over: bool


@frozen(kw_only=True)
class AnswerGone:
    """The answer to a read that was over takes no memory any more."""

    read_id: ReadId


@frozen(kw_only=True)
class ReadsCancelled:
    """Some reads are wanted no more; names that are not known are passed over."""

    read_ids: tuple[ReadId, ...]


@frozen(kw_only=True)
class AllCancelled:
    """No read is wanted any more."""


@frozen(kw_only=True)
class TimePassed:
    """Nothing but time."""


ReadEvent: TypeAlias = (
    ReadAsked | SliceEnded | AnswerGone | ReadsCancelled | AllCancelled | TimePassed
)


# -- what is to be done ----------------------------------------------------------------


@final
class DropReason(Enum):
    """Why a read comes to no answer."""

    LATE = "late"
    """Its deadline has come."""

    CANCELLED = "cancelled"
    """Its asker is gone, or wants it no more."""

    NO_ROOM = "no-room"
    """Too many reads wait, and none has more of them than its asker."""


@frozen(kw_only=True)
class RunSlice:
    """Go on with a read, or begin it; `SliceEnded` follows.  One at a time."""

    read_id: ReadId


@frozen(kw_only=True)
class DropRead:
    """Drop a read; not while its slice runs."""

    read_id: ReadId
    reason: DropReason


ReadEffect: TypeAlias = RunSlice | DropRead


# -- the machine -----------------------------------------------------------------------


@final
@frozen(kw_only=True)
class ReadLimits:
    """
    How much may wait, and be under way.

    Attributes:
        waiting_count_max: Reads that are not over, of all askers.
        waiting_size_bytes_max: Their questions.
        begun_count_max: Reads that have begun.
        begun_per_asker_max: Of one asker.
        held_size_bytes_max: What they hold; one may grow beyond it.
        unsent_size_bytes_max: Answers that wait to be sent; one may go beyond it.
    """

    waiting_count_max: int = 10_000
    waiting_size_bytes_max: int = 16 << 20
    begun_count_max: int = 64
    begun_per_asker_max: int = 8
    held_size_bytes_max: int = 4 << 20
    unsent_size_bytes_max: int = 1 << 20


@final
@define
class _Read:
    """A read that is not over."""

    asker: str
    deadline_ns: int
    holds_rows: bool
    size_bytes: int = 0
    is_begun: bool = False
    dropped: DropReason | None = None


@final
@define
class _Asker:
    """
    Who has reads: those that have begun, the next one first, and those that wait.

    Attributes:
        virtual_ns: What its reads have taken.
        begun: Reads that have begun.
        waiting: Those that have not, in the order in which they came.
        waiting_rowless: Those of them that hold no rows: no memory keeps them back.
    """

    virtual_ns: int
    begun: deque[ReadId] = Factory(deque)
    waiting: dict[ReadId, None] = Factory(dict)
    waiting_rowless: dict[ReadId, None] = Factory(dict)

    def waits_no_more(self, read_id: ReadId) -> None:
        """Forget a read that has waited."""
        del self.waiting[read_id]
        self.waiting_rowless.pop(read_id, None)


@final
class ReadSchedule:
    """
    Decides which long read goes on; see the module docstring.

    Two schedules given the same sequence of ``(event, now_ns)`` return the same
    effects.  Not thread-safe.

    Args:
        limits: How much may wait, and be under way.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self._limits = limits
        self._reads: dict[ReadId, _Read] = {}
        self._askers: dict[str, _Asker] = {}
        self._shares: Shares[ReadId] = Shares(
            count_max=limits.waiting_count_max,
            size_bytes_max=limits.waiting_size_bytes_max,
        )
        self._unsent: dict[ReadId, int] = {}
        self._deadlines: list[tuple[int, ReadId]] = []
        self._running: ReadId | None = None
        self._virtual_ns = 0
        self._begun_count = 0
        self._held_size_bytes = 0
        self._unsent_size_bytes = 0

    def __len__(self) -> int:
        return len(self._reads)

    @property
    def held_size_bytes(self) -> int:
        """Return what is held of answers, whole or not."""
        return self._held_size_bytes + self._unsent_size_bytes

    def next_deadline_ns(self) -> int | None:
        """Return when `step` must be called again, or None if it need not be."""
        while self._deadlines and self._deadlines[0][1] not in self._reads:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def step(self, event: ReadEvent, *, now_ns: int) -> tuple[ReadEffect, ...]:
        """Have *event* happen, and return what is to be done, in that order."""
        effects: list[ReadEffect] = []
        match event:
            case ReadAsked():
                effects += self._asked(event)
            case SliceEnded():
                effects += self._ended(event)
            case AnswerGone(read_id=read_id):
                self._unsent_size_bytes -= self._unsent.pop(read_id, 0)
            case ReadsCancelled(read_ids=read_ids):
                effects += self._cancel(read_ids)
            case AllCancelled():
                effects += self._cancel(tuple(self._reads))
            case TimePassed():
                pass
            case _:
                assert_never(event)
        effects += self._drop_late(now_ns)
        if self._running is None:
            following = self._next()
            if following is not None:
                self._begin(following)
                effects.append(RunSlice(read_id=following))
        return tuple(effects)

    def _asked(self, event: ReadAsked) -> list[ReadEffect]:
        read_id, name = event.read_id, event.asker
        assert read_id not in self._reads
        turned_away = self._shares.take(name, read_id, event.size_bytes)
        asker = self._askers.get(name)
        if asker is None:
            asker = self._askers[name] = _Asker(self._virtual_ns)
        asker.waiting[read_id] = None
        if not event.holds_rows:
            asker.waiting_rowless[read_id] = None
        self._reads[read_id] = _Read(name, event.deadline_ns, event.holds_rows)
        self._push_deadline(event.deadline_ns, read_id)
        effects: list[ReadEffect] = []
        for no_room in turned_away:
            effects += self._drop(no_room, DropReason.NO_ROOM)
        return effects

    def _ended(self, event: SliceEnded) -> list[ReadEffect]:
        read_id = event.read_id
        assert read_id == self._running
        self._running = None
        read = self._reads[read_id]
        asker = self._askers[read.asker]
        asker.virtual_ns += event.spent_ns
        self._held_size_bytes += event.size_bytes - read.size_bytes
        read.size_bytes = event.size_bytes
        if event.is_over:
            self._forget(read_id)
            if event.size_bytes:
                self._unsent[read_id] = event.size_bytes
                self._unsent_size_bytes += event.size_bytes
        elif read.dropped is not None:
            return self._drop(read_id, read.dropped)
        return []

    def _cancel(self, read_ids: tuple[ReadId, ...]) -> list[ReadEffect]:
        effects: list[ReadEffect] = []
        for read_id in read_ids:
            if read_id in self._reads:
                effects += self._drop(read_id, DropReason.CANCELLED)
        return effects

    def _drop_late(self, now_ns: int) -> list[ReadEffect]:
        effects: list[ReadEffect] = []
        while (deadline_ns := self.next_deadline_ns()) is not None:
            if deadline_ns > now_ns:
                break
            _, read_id = heapq.heappop(self._deadlines)
            effects += self._drop(read_id, DropReason.LATE)
        return effects

    def _drop(self, read_id: ReadId, reason: DropReason) -> list[ReadEffect]:
        """Drop a read now, or when its slice is over: that is soon."""
        if read_id == self._running:
            self._reads[read_id].dropped = reason
            return []
        self._forget(read_id)
        return [DropRead(read_id=read_id, reason=reason)]

    def _forget(self, read_id: ReadId) -> None:
        read = self._reads.pop(read_id)
        asker = self._askers[read.asker]
        if read.is_begun:
            asker.begun.remove(read_id)
            self._begun_count -= 1
            self._held_size_bytes -= read.size_bytes
        else:
            asker.waits_no_more(read_id)
        if read_id in self._shares:  # what was turned away has no place any more
            self._shares.free(read_id)
        if not asker.begun and not asker.waiting:
            del self._askers[read.asker]

    def _begin(self, read_id: ReadId) -> None:
        """Have the slice of *read_id* run, and its asker's other reads before it."""
        read = self._reads[read_id]
        asker = self._askers[read.asker]
        if read.is_begun:
            asker.begun.remove(read_id)
        else:
            asker.waits_no_more(read_id)
            read.is_begun = True
            self._begun_count += 1
        asker.begun.append(read_id)
        # Who could not go on for long has not saved that up either.
        asker.virtual_ns = max(asker.virtual_ns, self._virtual_ns - _LAG_NS_MAX)
        self._virtual_ns = max(self._virtual_ns, asker.virtual_ns)
        self._running = read_id

    def _next(self) -> ReadId | None:
        """Return which read goes on, or None if none can."""
        may_hold = self._unsent_size_bytes <= self._limits.unsent_size_bytes_max
        greatest: ReadId | None = None
        if may_hold and self._held_size_bytes > self._limits.held_size_bytes_max:
            # Of those that hold as much, the one that was asked for first.
            greatest = max(
                (read_id for asker in self._askers.values() for read_id in asker.begun),
                key=lambda read_id: self._reads[read_id].size_bytes,
            )
        best: tuple[int, ReadId] | None = None
        for asker in self._askers.values():
            if best is not None and asker.virtual_ns >= best[0]:
                continue
            read_id = self._next_of(asker, greatest, may_hold=may_hold)
            if read_id is not None:
                best = (asker.virtual_ns, read_id)
        return None if best is None else best[1]

    def _next_of(
        self, asker: _Asker, greatest: ReadId | None, *, may_hold: bool
    ) -> ReadId | None:
        """Return which read of *asker* goes on, or None if none can."""
        limits = self._limits
        if (
            asker.waiting
            and self._begun_count < limits.begun_count_max
            and len(asker.begun) < limits.begun_per_asker_max
        ):
            # What is new comes first, once: it may be short.
            for waiting in (asker.waiting, asker.waiting_rowless):
                read_id = next(iter(waiting), None)
                if read_id is not None and self._may_run(
                    read_id, greatest, may_hold=may_hold
                ):
                    return read_id
        for read_id in asker.begun:
            if self._may_run(read_id, greatest, may_hold=may_hold):
                return read_id
        return None

    def _may_run(
        self, read_id: ReadId, greatest: ReadId | None, *, may_hold: bool
    ) -> bool:
        if not self._reads[read_id].holds_rows:
            return True
        return may_hold and greatest in {None, read_id}

    def _push_deadline(self, deadline_ns: int, read_id: ReadId) -> None:
        heapq.heappush(self._deadlines, (deadline_ns, read_id))
        if len(self._deadlines) > 2 * len(self._reads) + 1_000:
            self._deadlines = [
                (read.deadline_ns, number) for number, read in self._reads.items()
            ]
            heapq.heapify(self._deadlines)
