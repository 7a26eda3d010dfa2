"""`uninterrupted`: done to the end, whatever signal handlers raise."""

from __future__ import annotations

import _thread
import signal
import threading
from typing import Final

import pytest

from nameservice.uninterrupted import uninterrupted
from tests.interrupting import handling


WAIT_SECONDS: Final = 30
PAUSE_SECONDS: Final = 0.02


def tell_main_thread() -> None:
    """Have the main thread handle a signal, as soon as it can."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


def test_its_result_and_its_error() -> None:
    """What the action returns is returned, and what it raises is raised."""
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


def test_interrupted_again_and_again() -> None:
    """It happens once, to the end; what was raised is raised then."""
    handled = threading.Semaphore(0)
    over = threading.Event()
    done: list[int] = []

    def interrupt(*_: object) -> None:
        handled.release()
        raise KeyboardInterrupt

    def act() -> None:
        for _ in range(5):
            tell_main_thread()
            assert handled.acquire(timeout=WAIT_SECONDS)
            over.wait(PAUSE_SECONDS)  # the handler has yet to raise
        done.append(1)

    with handling(signal.SIGUSR1, interrupt), pytest.raises(KeyboardInterrupt):
        uninterrupted(act, undo=lambda _: done.append(2))
    assert done == [1, 2], "what has no owner is undone"


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
