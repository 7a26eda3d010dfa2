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

A signal handler runs amid what its thread is doing.  Where that opens or closes
something, it holds locks and is what others wait for, and goes on only when the handler
has returned: the handler does not wait.
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
    def thread(self) -> threading.Thread | None:
        """Return which thread runs its turn now."""


class _Event(Protocol):
    """An `InterruptibleEvent`, or another where no signal handler interrupts."""

    def wait(self) -> object:
        """Return once it is set."""


_inside: ContextVar[tuple[_Lane, ...]] = ContextVar("_inside", default=())


@final
class _Amid(threading.local):
    """How many blocks of `CallbackWaits.amid` this thread is in."""

    depth = 0


_amid = _Amid()


@final
class CallbackWaits:
    """The graph of one process.  Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may wait while its own thread is just about to.
        self._lock = threading.RLock()
        self._awaited_by: dict[threading.Thread, tuple[_Lane, ...]] = {}

    @contextlib.contextmanager
    def inside(self, lane: _Lane) -> Iterator[None]:
        """Run the block, whose context may go elsewhere, as part of *lane*'s turn."""
        token = _inside.set((*_inside.get(), lane))
        try:
            yield
        finally:
            _inside.reset(token)

    @contextlib.contextmanager
    def amid(self) -> Iterator[None]:
        """
        Run the block so that a signal handler that interrupts it does not wait.

        For whatever holds a lock that turns of lanes need, too.
        """
        _amid.depth += 1
        try:
            yield
        finally:
            _amid.depth -= 1

    @property
    def is_amid(self) -> bool:
        """Return whether the caller is a signal handler that must not wait."""
        return _amid.depth > 0

    def is_inside(self, lanes: Iterable[_Lane]) -> bool:
        """Return whether the caller is part of a turn of one of *lanes*."""
        me = threading.current_thread()
        return any(lane.thread is me or lane in _inside.get() for lane in lanes)

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
            of them waits for, directly or through others; and in a signal handler that
            must not wait (`amid`).
        """
        if self.is_amid:
            return False
        me = threading.current_thread()
        with self.amid(), self._lock:
            # A signal handler may wait in a thread that waits already.
            before = self._awaited_by.get(me, ())
            awaited = (*before, *lanes)
            if self._lead_to(awaited, me, _inside.get()):
                return False
            self._awaited_by[me] = awaited
        try:
            if on_waiting is not None:
                on_waiting()
            event.wait()
        finally:
            with self.amid(), self._lock:
                if before:
                    self._awaited_by[me] = before
                else:
                    self._awaited_by.pop(me, None)
        return True

    def forget(self) -> None:
        """Begin anew in a forked child: the other threads are not there."""
        self._lock = threading.RLock()  # one of them may have held it
        self._awaited_by.clear()

    def _lead_to(
        self,
        lanes: tuple[_Lane, ...],
        thread: threading.Thread,
        around: tuple[_Lane, ...],
    ) -> bool:
        """
        Return whether *lanes* wait for *thread*, or for one of those *around* it.

        The lock is held.
        """
        seen: set[threading.Thread] = set()
        left = list(lanes)
        while left:
            lane = left.pop()
            running = lane.thread
            if running is thread or lane in around:
                return True
            if running is not None and running not in seen:
                seen.add(running)
                left += self._awaited_by.get(running, ())
        return False


callback_waits = CallbackWaits()

os.register_at_fork(after_in_child=callback_waits.forget)
