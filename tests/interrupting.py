"""Real signals, before any line that a thread is about to run."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Final

import pytest
from attrs import frozen

from nameservice import NameServiceError
from tests.leaks import no_collection
from tests.recording import wait_until


HANGS_SECONDS: Final = 5.0


class HangsError(BaseException):
    """Raised amid what waits for ever."""


def hang(*_: object) -> None:
    """Break off what waits for ever."""
    raise HangsError


@contextlib.contextmanager
def handling(number: signal.Signals, handler: Callable[..., object]) -> Iterator[None]:
    """Have *handler* called when *number* comes."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def bounded(seconds: float = HANGS_SECONDS) -> Iterator[None]:
    """Break the block off, with `HangsError`, if it takes longer."""
    thread_id = threading.get_ident()
    watchdog = threading.Timer(
        seconds, lambda: signal.pthread_kill(thread_id, signal.SIGUSR2)
    )
    with handling(signal.SIGUSR2, hang):
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()


def interrupted(
    action: Callable[[], object],
    *,
    places: Sequence[str],
    line_index: int,
    after_calls: bool = False,
) -> str | None:
    """
    Do *action*; raise SIGUSR1 before one of the lines that it runs.

    Args:
        action: Its `NameServiceError` says that what it needs was closed amid it.
        places: What the names of files contain whose lines count.
        line_index: Before which of these lines.
        after_calls: Raise it when a function written in C has returned there, which is
            where CPython handles signals, too; `line_index` counts these calls then.

    Returns:
        Which line that was; None if there are not as many.
    """
    where: str | None = None
    left = line_index

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, where
        if not any(place in frame.f_code.co_filename for place in places):
            return None
        if event == "line" and _may_be_interrupted(frame):
            if left == 0:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
            left -= 1
        return trace

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left, where
        if event == "c_return" and any(
            place in frame.f_code.co_filename for place in places
        ):
            if left == 0:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
            left -= 1

    before = sys.gettrace()
    if after_calls:
        sys.setprofile(profile)
    else:
        sys.settrace(trace)
    try:
        action()
    except NameServiceError:
        pass  # it was closed amid it
    except HangsError:
        sys.settrace(before)
        pytest.fail(f"it hangs when line {line_index} is interrupted, at {where}")
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return where


def _may_be_interrupted(frame: FrameType) -> bool:
    """
    Return whether CPython could handle a signal before the line that is next.

    It handles none before a ``try`` or behind the body of a ``with``, which are told as
    lines, too.  What is raised there passes by the end of the ``with``.
    """
    return frame.f_lasti not in _uninterrupted(frame.f_code)


@functools.cache
def _uninterrupted(code: CodeType) -> frozenset[int]:
    """Return where there is a ``try``, or ``__exit__(None, None, None)`` begins."""
    steps = list(dis.get_instructions(code))
    nothings = [step.opname == "LOAD_CONST" and step.argval is None for step in steps]
    return frozenset(
        step.offset
        for index, step in enumerate(steps)
        if step.opname == "NOP" or nothings[index : index + 3] == [True] * 3
    )


@frozen(kw_only=True)
class Closed:
    """
    What is closed amid something, or after that.

    Attributes:
        action: What is interrupted.
        close: Closes what the action needs.
        check: Called when both are over.
    """

    action: Callable[[], object]
    close: Callable[[], object]
    check: Callable[[], object] = lambda: None


def close_amid(
    begin: Callable[[], Closed], *, places: Sequence[str], first: int, step: int
) -> None:
    """
    Have a signal handler close what *begin* returns, before one line after the other.

    Args:
        begin: Makes it, anew each time.
        places: As `interrupted` takes them.
        first: The first line.
        step: How many lines further the next one is.
    """
    _sweep(begin, lambda one: one.close, places=places, first=first, step=step)


def break_off(
    begin: Callable[[], Closed],
    *,
    places: Sequence[str],
    first: int,
    step: int,
    after_calls: bool = False,
) -> None:
    """
    Have a signal handler raise, before one line after the other, and close after that.

    The arguments are those of `close_amid`, and the last of `interrupted`.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    _sweep(
        begin,
        lambda _: interrupt,
        places=places,
        first=first,
        step=step,
        after_calls=after_calls,
    )


def break_off_at_any_moment(begin: Callable[[], Closed], *, count: int) -> None:
    """
    Have a timer's handler raise between any two steps of the interpreter.

    Nothing may be left then: no thread, no file, nothing that waits, and no exception
    that no one caught.

    Args:
        begin: Makes, anew each time, what is interrupted; its `close` is, too.
        count: How many times.
    """
    draw = random.Random(count)
    raised: list[None] = []
    caught: list[None] = []

    def interrupt(*_: object) -> None:
        raised.append(None)
        raise KeyboardInterrupt

    def attempt(interrupted_after_seconds: float) -> None:
        # Python loses what is raised amid a collection, also of garbage of others.
        with no_collection():
            attempt_now(interrupted_after_seconds)

    def attempt_now(interrupted_after_seconds: float) -> None:
        one = begin()
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, interrupted_after_seconds)
                one.action()
            finally:
                one.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            caught.append(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            one.close()
        one.check()

    with handling(signal.SIGALRM, interrupt), bounded(2 * HANGS_SECONDS + count):
        attempt(0)
        threads_before, files_before = threading.active_count(), open_file_count()
        began = time.monotonic()
        attempt(0)
        span_seconds = time.monotonic() - began
        for _ in range(count):
            attempt(max(1e-6, draw.uniform(0, span_seconds)))
        attempt(0)
        wait_until(lambda: threading.active_count() == threads_before)
        wait_until(lambda: open_file_count() == files_before)
    assert len(caught) == len(raised) > 0


def open_file_count() -> int:
    """Return how many files and sockets this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - entries vanish


def _sweep(
    begin: Callable[[], Closed],
    handler_of: Callable[[Closed], Callable[[], object]],
    *,
    places: Sequence[str],
    first: int,
    step: int,
    after_calls: bool = False,
) -> None:
    line_index = first
    is_interrupted = True
    while is_interrupted:
        one = begin()
        handler = handler_of(one)
        with handling(signal.SIGUSR1, lambda *_, handler=handler: handler()):
            try:
                with bounded():
                    try:
                        where = interrupted(
                            one.action,
                            places=places,
                            line_index=line_index,
                            after_calls=after_calls,
                        )
                        is_interrupted = where is not None
                    except KeyboardInterrupt:
                        is_interrupted = True
                    one.close()
                    one.check()
            except HangsError:
                pytest.fail(f"it hangs when line {line_index} is interrupted")
        line_index += step
    assert line_index > step
