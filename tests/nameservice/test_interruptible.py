"""`InterruptibleEvent`; tests/haservices/test_signal_handlers.py interrupts it."""

from __future__ import annotations

import threading

from nameservice.interruptible import InterruptibleEvent
from tests.recording import WAIT_SECONDS, wait_until


def test_it_is_waited_for_until_it_is_set() -> None:
    """By all that wait, and by those that come later."""
    event = InterruptibleEvent()
    found: list[bool] = []
    waiting = [
        threading.Thread(target=lambda: found.append(event.wait())) for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(event._waiters) == len(waiting))
    assert not event.is_set()
    event.set()
    for thread in waiting:
        thread.join(WAIT_SECONDS)
    assert found == [True] * len(waiting)
    assert event.is_set()
    assert event.wait(0)


def test_it_is_waited_for_as_long_as_one_likes_and_leaves_nothing() -> None:
    """False means that it was not set in time."""
    event = InterruptibleEvent()
    assert not event.wait(0)
    assert not event.wait(0.001)
    event.set()
    event.clear()
    assert not event.wait(0)
    assert not event._waiters


def test_the_first_of_several_is_waited_for() -> None:
    """Whichever that is; the others are left as they were."""
    events = [InterruptibleEvent() for _ in range(3)]
    assert not InterruptibleEvent.wait_for_any(events, 0)
    found: list[bool] = []
    waiting = threading.Thread(
        target=lambda: found.append(InterruptibleEvent.wait_for_any(events))
    )
    waiting.start()
    wait_until(lambda: all(event._waiters for event in events))
    events[1].set()
    waiting.join(WAIT_SECONDS)
    assert found == [True]
    assert [event.is_set() for event in events] == [False, True, False]
    assert InterruptibleEvent.wait_for_any(events, 0)
    assert not any(event._waiters for event in events)
