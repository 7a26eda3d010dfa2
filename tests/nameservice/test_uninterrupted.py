"""`uninterrupted`, `detached`: done to the end, whatever signal handlers raise."""

from __future__ import annotations

import _thread
import linecache
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from nameservice.uninterrupted import Errand, detached, uninterrupted
from tests.interrupting import handling
from tests.recording import wait_until


WAIT_SECONDS: Final = 30
RESEND_SECONDS: Final = 0.05


def tell_main_thread_until(
    is_told: Callable[[], bool], *numbers: signal.Signals
) -> None:
    """
    Have the main thread handle signals, however often they must be sent for that.

    Python does not notice one that comes just before it begins to wait.
    """
    main = threading.main_thread().ident
    assert main is not None
    pause = threading.Event()  # is never set: `wait` is a pause
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_told():
        assert time.monotonic() < deadline
        for number in numbers:
            signal.pthread_kill(main, number)
        pause.wait(RESEND_SECONDS)


def main_thread_waits() -> bool:
    """Return whether it waits, and no handler runs that has yet to raise."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.strip() == "errand.over.acquire()"


def test_its_result_and_its_error() -> None:
    """What the action returns is returned, and what it raises is raised."""
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


def test_interrupted_again_and_again() -> None:
    """It happens once, to the end; what was raised is raised then."""
    handled: list[int] = []
    done: list[int] = []

    def interrupt(number: int, _: object) -> None:
        handled.append(number)
        raise KeyboardInterrupt

    def act() -> None:
        for count in range(1, 6):
            tell_main_thread_until(lambda n=count: len(handled) >= n, signal.SIGUSR1)  # type: ignore[misc]  # a default binds
            wait_until(main_thread_waits)
        done.append(1)

    with handling(signal.SIGUSR1, interrupt), pytest.raises(KeyboardInterrupt):
        uninterrupted(act)
    assert done == [1]


def test_interrupted_by_two_at_once() -> None:
    """Python handles the second where the first was caught: it left what it began."""
    handled: list[int] = []
    left = threading.Event()
    was_left: list[bool] = []

    def interrupt(number: int, _: object) -> None:
        handled.append(number)
        raise KeyboardInterrupt

    def act() -> None:
        tell_main_thread_until(
            lambda: len(handled) >= 2, signal.SIGUSR1, signal.SIGUSR2
        )
        wait_until(lambda: left.is_set() or main_thread_waits())
        was_left.append(left.is_set())

    with handling(signal.SIGUSR1, interrupt), handling(signal.SIGUSR2, interrupt):
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(act)
        left.set()
        wait_until(lambda: bool(was_left))
    assert was_left == [False]


def test_on_another_thread_it_is_a_call() -> None:
    """No signal handler runs there."""
    threads: list[int] = []
    other = threading.Thread(
        target=lambda: uninterrupted(lambda: threads.append(threading.get_ident()))
    )
    other.start()
    other.join()
    assert threads == [other.ident]


def test_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may have no more threads does it on this one."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert uninterrupted(threading.get_ident) == threading.get_ident()


def test_a_thread_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps threads from beginning, it is done, once, and that is raised."""
    done: list[int] = []

    def refuse(*_: object) -> None:
        raise RuntimeError("some other reason")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="some other reason"):
        uninterrupted(lambda: done.append(1))
    assert done == [1]


@pytest.mark.parametrize("when", ["atexit", "finalizer", "generator"])
def test_while_the_interpreter_ends(when: str) -> None:
    """A thread that begins then never runs: what was waited for did not come."""
    program = f"""
import atexit
from nameservice.uninterrupted import Errand, detached, uninterrupted

def close(print=print, uninterrupted=uninterrupted, detached=detached, Errand=Errand):
    errand = Errand(lambda: None)
    errand.begin()
    errand.over.acquire()
    uninterrupted(lambda: detached(lambda: print("closed", flush=True)))

class AtLast:
    def __del__(self, close=close):
        close()

def suspended():
    try:
        yield
    finally:
        close()

if {when!r} == "atexit":
    atexit.register(close)
elif {when!r} == "generator":
    held = suspended()
    next(held)
else:
    held = AtLast()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert ended.stdout == "closed\n"


def test_it_is_forgotten_by_its_callers_threads() -> None:
    """What `threading` makes of its thread does not stay among those that live."""
    before = threading.enumerate()
    assert uninterrupted(threading.current_thread) not in threading.enumerate()
    assert threading.enumerate() == before


def test_detached_is_left_at_once_and_undone() -> None:
    """A handler that raises ends the wait; what comes later is undone, elsewhere."""
    may_end, undone = threading.Event(), threading.Event()
    undone_with: list[int] = []
    handled: list[int] = []

    def interrupt(number: int, _: object) -> None:
        handled.append(number)
        if len(handled) == 1:
            raise KeyboardInterrupt

    def act() -> int:
        tell_main_thread_until(lambda: bool(handled), signal.SIGUSR1)
        assert may_end.wait(WAIT_SECONDS)
        return 7

    def undo(result: int) -> None:
        undone_with.append(result)
        undone.set()

    with handling(signal.SIGUSR1, interrupt):
        with pytest.raises(KeyboardInterrupt):
            detached(act, undo=undo)
        assert not undone_with
        may_end.set()
        assert undone.wait(WAIT_SECONDS)
    assert undone_with == [7]


def test_detached_returns_or_raises() -> None:
    """Nothing is undone where the result was returned, or there is none."""
    undone: list[int] = []
    assert detached(lambda: 7, undo=undone.append) == 7
    with pytest.raises(ZeroDivisionError):
        detached(lambda: 1 // 0, undo=undone.append)
    assert not undone


def test_an_errand_is_done_once() -> None:
    """It may be begun again by who cannot know whether it was."""
    done: list[int] = []
    errand = Errand(lambda: done.append(1), lambda: done.append(2))
    errand.begin()
    errand.begin()
    assert errand.over.acquire(timeout=WAIT_SECONDS)
    assert done == [1, 2]
