"""
`ReadingThread`: the thread that reads at length, in slices.

What goes on when is `ReadSchedule`'s business; here are the thread, the clock and the
reads themselves.  A slice takes a few milliseconds: after each step of a read (some
hundred rows) the clock is looked at.

What came of a read is said on this thread; the one that is told takes it to the loop.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from attrs import define, field, frozen

from nameservice import NS_PER_SECOND, NameServiceError, get_logger
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
    SliceEnded,
    TimePassed,
)
from queryablestate.store.steps import ReadWork, Steps


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock
    from queryablestate.store.reader import StoreReader


__all__ = ["LongRead", "ReadStore", "ReadingThread"]

_SLICE_NS: Final = 3_000_000


class ReadStore(Protocol):
    """What is read at length."""

    def reader(self) -> StoreReader:
        """Return a reader; one for each thread that reads."""


@final
@frozen(kw_only=True)
class LongRead:
    """
    What is to be read.

    Attributes:
        asked: Who wants it, until when.
        begin: Returns its steps.
        size_of: Returns how many bytes are held of what they returned, until
            `ReadingThread.gone`.
        done: Is told what they returned.
        failed: Is told why they failed, and what they did.
        dropped: Is told why they are not wanted any more, and what they did.
    """

    asked: ReadAsked
    begin: Callable[[StoreReader, ReadWork], Steps[Any]]
    size_of: Callable[[Any], int]
    done: Callable[[Any], None]
    failed: Callable[[NameServiceError, ReadWork], None]
    dropped: Callable[[DropReason, ReadWork], None]


@final
@define
class _Begun:
    """A read, what it has done, and its steps once it has begun."""

    read: LongRead
    work: ReadWork = field(factory=ReadWork)
    steps: Steps[Any] | None = None


@final
class ReadingThread:
    """
    Reads at length, fairly.

    All methods may be called from any thread.

    Args:
        store: What it reads.
        clock: What deadlines and slices are measured by.
        limits: How much may wait, and be under way.
    """

    def __init__(self, store: ReadStore, *, clock: Clock, limits: ReadLimits) -> None:
        self._reader = store.reader()
        self._clock = clock
        self._log = get_logger(component="state-node", thread="reading")
        self._changed = threading.Condition()  # guards the four that follow
        self._schedule = ReadSchedule(limits)
        self._reads: dict[ReadId, _Begun] = {}
        self._effects: deque[ReadEffect] = deque()
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name="state-node-reading", daemon=True
        )
        self._thread.start()

    def __len__(self) -> int:
        return len(self._schedule)

    @property
    def held_size_bytes(self) -> int:
        """Return how many bytes of answers are held, whole or not."""
        return self._schedule.held_size_bytes

    def read(self, read: LongRead) -> None:
        """Have something read; it is dropped if there is no room for it."""
        with self._changed:
            self._reads[read.asked.read_id] = _Begun(read)
            self._step(read.asked)

    def cancel(self, read_ids: Sequence[ReadId]) -> None:
        """Drop these reads, those of them that are not over."""
        with self._changed:
            self._step(ReadsCancelled(read_ids=tuple(read_ids)))

    def cancel_all(self) -> None:
        """Drop all reads that are not over."""
        with self._changed:
            self._step(AllCancelled())

    def gone(self, read_id: ReadId) -> None:
        """Take note that what a read has returned takes no memory any more."""
        with self._changed:
            self._step(AnswerGone(read_id=read_id))

    def close(self) -> None:
        """End after the slice that runs; nothing more is told.  Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _step(self, event: ReadEvent) -> None:
        """Have something happen; under the lock."""
        self._effects += self._schedule.step(event, now_ns=self._clock.now_ns())
        self._changed.notify()

    def _run(self) -> None:
        try:
            while (effect := self._next_effect()) is not None:
                if isinstance(effect, DropRead):
                    self._drop(effect)
                    continue
                ended, tell = self._run_slice(effect.read_id)
                with self._changed:
                    if ended.is_over:
                        del self._reads[effect.read_id]
                    self._step(ended)
                # Not before: an answer may be gone as soon as it is told.
                if tell is not None:
                    tell()
                del tell  # and the answer with it: the next read may be long in coming
        finally:
            for one in self._reads.values():
                if one.steps is not None:
                    one.steps.close()

    def _next_effect(self) -> ReadEffect | None:
        """Wait for something to do; return None at the end."""
        with self._changed:
            while not self._effects and not self._is_closing:
                deadline_ns = self._schedule.next_deadline_ns()
                if deadline_ns is None:
                    self._changed.wait()
                    continue
                left_ns = deadline_ns - self._clock.now_ns()
                if left_ns > 0:
                    self._changed.wait(left_ns / NS_PER_SECOND)
                else:
                    self._step(TimePassed())
            return None if self._is_closing else self._effects.popleft()

    def _run_slice(
        self, read_id: ReadId
    ) -> tuple[SliceEnded, Callable[[], None] | None]:
        """Go on with a read until its slice is over; return whom to tell of its end."""
        one = self._reads[read_id]
        began_ns = now_ns = self._clock.now_ns()
        is_over = True
        size_bytes = 0
        tell: Callable[[], None] | None
        try:
            if one.steps is None:
                one.steps = one.read.begin(self._reader, one.work)
            while now_ns - began_ns < _SLICE_NS:
                next(one.steps)
                now_ns = self._clock.now_ns()
            is_over = False
            size_bytes = one.work.size_bytes
            tell = None
        except StopIteration as done:
            size_bytes = one.read.size_of(done.value)
            tell = partial(one.read.done, done.value)
        except NameServiceError as error:
            # Its frames hold what was read, and this one holds it: a circle.
            error.__traceback__ = None
            tell = partial(one.read.failed, error, one.work)
        except Exception as error:  # noqa: BLE001 (one read, not the thread)
            self._log.error("loop.failed", where="reading", exc_info=error)
            failure = NameServiceError(f"{type(error).__name__}: {error}")
            tell = partial(one.read.failed, failure, one.work)
        ended = SliceEnded(
            read_id=read_id,
            spent_ns=self._clock.now_ns() - began_ns,
            size_bytes=size_bytes,
            is_over=is_over,
        )
        return ended, tell

    def _drop(self, effect: DropRead) -> None:
        with self._changed:
            one = self._reads.pop(effect.read_id)
        if one.steps is not None:
            one.steps.close()
        one.read.dropped(effect.reason, one.work)
