"""
Who waits for whom to close, in this process.

Theory of operation
-------------------
``close()`` of an election or a retriever waits until its lane is over: until its last
callback has returned.  Called inside a callback it may therefore wait for itself:
directly, or because two callbacks close each other.  Each wait is an edge of a graph:
from the thread that waits to the lanes that it waits for, and from a lane to the
thread that runs its turn now.  A wait that would complete a circle is not begun.  The
edge that completes one is always a wait, since no thread begins a turn while it waits.
So it is enough to look at the graph before each wait.

An action that runs on an event loop is part of a lane's turn, too.  The lane's thread
waits for the thread of the loop meanwhile, and the action's context says where it is,
wherever asyncio takes that context.

A signal handler runs amid what its thread is doing, and may close services.  So
nothing here takes a lock.  Waits are entered in a dictionary, in their order; each
looks at those that were entered before it, and does not begin if it completes a circle
with them.  One that is just being refused may have another refused that comes then.
"""

from __future__ import annotations

import contextlib
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, final


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


__all__ = ["CallbackWaits", "callback_waits"]


class _Lane(Protocol):
    """What is waited for: a `CallbackLane`."""

    @property
    def thread_id(self) -> int | None:
        """Return which thread runs its turn now."""


class _Event(Protocol):
    """An `InterruptibleEvent`, or another where no signal handler interrupts."""

    def wait(self) -> object:
        """Return once it is set."""


_inside: ContextVar[tuple[_Lane, ...]] = ContextVar("_inside", default=())


@final
class CallbackWaits:
    """The graph of one process.  Thread-safe."""

    def __init__(self) -> None:
        self._waits: dict[_Wait, None] = {}

    @contextlib.contextmanager
    def inside(self, lane: _Lane) -> Iterator[None]:
        """Run the block, whose context may go elsewhere, as part of *lane*'s turn."""
        token = _inside.set((*_inside.get(), lane))
        try:
            yield
        finally:
            _inside.reset(token)

    def is_inside(self, lanes: Iterable[_Lane]) -> bool:
        """Return whether the caller is part of a turn of one of *lanes*."""
        me = threading.get_ident()
        return any(lane.thread_id == me or lane in _inside.get() for lane in lanes)

    def wait(
        self,
        lanes: Iterable[_Lane],
        event: _Event,
        *,
        on_waiting: Callable[[], object] | None = None,
    ) -> bool:
        """
        Wait for *event*, which is set when all of *lanes* are over.

        Args:
            lanes: Whose end is waited for.
            event: When to go on.
            on_waiting: Called as soon as the graph knows of the wait.

        Returns:
            False, at once, if this thread runs a turn of one of them, or one that one
            of them waits for, directly or through others.
        """
        wait = _Wait(threading.get_ident(), tuple(lanes))
        self._waits[wait] = None
        try:
            if self._completes_circle(wait):
                return False
            if on_waiting is not None:
                on_waiting()
            event.wait()
        finally:
            self._waits.pop(wait, None)
        return True

    def forget(self) -> None:
        """Begin anew in a forked child: the other threads are not there."""
        self._waits.clear()

    def _completes_circle(self, wait: _Wait) -> bool:
        """Return whether what *wait* is for waits for its thread or context."""
        awaited_by: dict[int, list[_Lane]] = {}
        for other in list(self._waits):
            # A signal handler may wait in a thread that waits already.
            awaited_by.setdefault(other.thread_id, []).extend(other.lanes)
            if other is wait:
                break
        around = _inside.get()
        left = awaited_by.pop(wait.thread_id)
        while left:
            lane = left.pop()
            running = lane.thread_id
            if running == wait.thread_id or lane in around:
                return True
            if running is not None:
                left += awaited_by.pop(running, ())
        return False


@final
class _Wait:
    """A thread that waits until lanes are over."""

    def __init__(self, thread_id: int, lanes: tuple[_Lane, ...]) -> None:
        self.thread_id = thread_id
        self.lanes = lanes


callback_waits = CallbackWaits()

os.register_at_fork(after_in_child=callback_waits.forget)
