from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import final

from nameservice import CallbackWaits
from tests.forking import run_in_child
from tests.recording import WAIT_SECONDS, wait_until


@final
class Lane:
    """A lane whose turn is a block."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block as its turn."""
        self.thread = threading.current_thread()
        try:
            yield
        finally:
            self.thread = None


def set_event() -> threading.Event:
    """Return an event that is set."""
    event = threading.Event()
    event.set()
    return event


class TestCallbackWaits:
    def test_waits_for_a_turn_elsewhere(self) -> None:
        """The wait ends with the event."""
        waits, event, lane = CallbackWaits(), threading.Event(), Lane()
        waited: list[bool] = []
        waiter = threading.Thread(
            target=lambda: waited.append(waits.wait([lane], event))
        )
        with lane.turn():
            waiter.start()
            event.set()
            waiter.join(WAIT_SECONDS)
        assert waited == [True]

    def test_does_not_wait_for_its_own_turn(self) -> None:
        """A turn that waits for its own end would wait for ever."""
        waits, lane, other = CallbackWaits(), Lane(), Lane()
        with lane.turn():
            assert not waits.wait([other, lane], threading.Event())
        assert waits.wait([other, lane], set_event())

    def test_the_last_of_a_circle_does_not_wait(self) -> None:
        """Three turns that close each other: the first two wait for the third."""
        waits, event = CallbackWaits(), threading.Event()
        first, second, third, other = Lane(), Lane(), Lane(), Lane()

        def run(lane: Lane, awaited: Lane) -> None:
            with lane.turn():
                assert waits.wait([awaited], event)

        threads = [
            threading.Thread(target=run, args=pair)
            for pair in ((first, second), (second, third))
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(waits._awaited_by) == 2)
        with third.turn():
            assert not waits.wait([other, first], event)
            assert waits.wait([other], set_event())
        event.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert waits._awaited_by == {}

    def test_a_wait_within_a_wait_counts_both(self) -> None:
        """A signal handler waits in a thread that waits: its circle is seen, too."""
        waits, outer = CallbackWaits(), threading.Event()
        own, awaited, other = Lane(), Lane(), Lane()

        class Interrupted(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert waits.wait([other], set_event())
                return outer.wait(timeout)

        def run() -> None:
            with own.turn():
                assert waits.wait([awaited], Interrupted())

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: list(waits._awaited_by.values()) == [(awaited,)])
        with awaited.turn():
            assert not waits.wait([own], outer)
        outer.set()
        thread.join(WAIT_SECONDS)
        assert waits._awaited_by == {}

    def test_what_began_amid_something_is_not_amid_it(self) -> None:
        """
        A thread or a coroutine that begins amid something may take its context along.

        Where it closed something later, it did not wait.
        """
        waits, lane = CallbackWaits(), Lane()
        with waits.amid():
            context = copy_context()
            assert waits.is_amid
            assert not waits.wait([lane], set_event())
        assert not waits.is_amid
        assert context.run(waits.wait, [lane], set_event())

    def test_child_begins_anew(self) -> None:
        """E10: the parent's threads are not there, and none of them holds the lock."""
        waits, lane = CallbackWaits(), Lane()

        def child() -> bool:
            waits.forget()
            return waits.wait([lane], set_event())

        is_held, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            with waits._lock:
                is_held.set()
                assert may_end.wait(WAIT_SECONDS)

        holder = threading.Thread(target=hold)
        holder.start()
        assert is_held.wait(WAIT_SECONDS)
        assert run_in_child(child) == "True"
        may_end.set()
        holder.join(WAIT_SECONDS)
