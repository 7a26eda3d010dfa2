"""Waits that signals interrupt; see tests/haservices/test_signal_handlers.py, too."""

from __future__ import annotations

import ast
import queue
import signal
import threading
from typing import Final

import pytest

from nameservice.interruptible import InterruptibleEvent, InterruptibleQueue
from tests.interrupting import bounded, handling
from tests.recording import WAIT_SECONDS, wait_until
from tests.test_layering import ROOT, source_files


SECONDS: Final = 0.03


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


def test_a_wait_ends_in_time_though_a_handler_took_longer() -> None:
    """A wait of `queue.SimpleQueue` goes on for ever then, before Python 3.13."""
    event: InterruptibleEvent = InterruptibleEvent()
    items: InterruptibleQueue[int] = InterruptibleQueue()

    def handle(*_: object) -> None:
        threading.Event().wait(2 * SECONDS)  # is never set: it takes its time

    with handling(signal.SIGALRM, handle), bounded():
        signal.setitimer(signal.ITIMER_REAL, SECONDS / 2)
        assert not event.wait(SECONDS)
        signal.setitimer(signal.ITIMER_REAL, SECONDS / 2)
        with pytest.raises(queue.Empty):
            items.get(timeout=SECONDS)


def test_a_queue_gives_what_was_put_in_order() -> None:
    """At once, or as soon as it comes, to as many threads as wait."""
    items: InterruptibleQueue[int] = InterruptibleQueue()
    items.put(1)
    items.put(2)
    assert items.qsize() == 2
    assert [items.get(), items.get_nowait()] == [1, 2]
    for timeout in (0.0, -1.0, 0.001):
        with pytest.raises(queue.Empty):
            items.get(timeout=timeout)
    with pytest.raises(queue.Empty):
        items.get_nowait()
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    waiting = [
        threading.Thread(target=lambda: found.put(items.get())) for _ in range(5)
    ]
    for thread in waiting:
        thread.start()
    for item in range(5):
        items.put(item)
    for thread in waiting:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert sorted(found.get() for _ in waiting) == list(range(5))


def _events_made(source: str) -> list[int]:
    """Return the lines of *source* that make an ordinary event."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"Event", "threading.Event"}
    ]


def test_the_product_makes_no_ordinary_event() -> None:
    """
    Whatever sets one may be called by a signal handler, or waited for by one.

    Closing services tells contenders, be they users' or of the product.
    """
    assert _events_made("def f():\n    return threading.Event()") == [2]
    assert _events_made("event = Event()") == [1]
    assert _events_made("threading.Lock(), InterruptibleEvent()") == []
    made = {
        path.as_posix(): lines
        for path in source_files()
        if (lines := _events_made((ROOT / path).read_text(encoding="utf-8")))
    }
    assert made == {}
