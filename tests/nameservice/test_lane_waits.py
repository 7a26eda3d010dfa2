from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from nameservice import CallbackWaits
from tests.forking import run_in_child
from tests.recording import WAIT_SECONDS, wait_until


@final
class Lane:
    """A lane whose turn is a block."""

    def __init__(self) -> None:
        self.thread_id: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block as its turn."""
        self.thread_id = threading.get_ident()
        try:
            yield
        finally:
            self.thread_id = None


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
        wait_until(lambda: len(waits._waits) == 2)
        with third.turn():
            assert not waits.wait([other, first], event)
            assert waits.wait([other], set_event())
        event.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        assert waits._waits == {}

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
        wait_until(lambda: [wait.lanes for wait in waits._waits] == [(awaited,)])
        with awaited.turn():
            assert not waits.wait([own], outer)
        outer.set()
        thread.join(WAIT_SECONDS)
        assert waits._waits == {}

    def test_child_begins_anew(self) -> None:
        """E10: the parent's threads are not there, and wait for nothing."""
        waits, event, lane, other = CallbackWaits(), threading.Event(), Lane(), Lane()

        def child() -> bool:
            waits.forget()
            with other.turn():
                return waits.wait([lane], set_event())

        def wait() -> None:
            with lane.turn():
                waits.wait([other], event)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: len(waits._waits) == 1)
        with other.turn():
            assert not waits.wait([lane], event), "it is a circle in this process"
        assert run_in_child(child) == "True"
        event.set()
        waiter.join(WAIT_SECONDS)
