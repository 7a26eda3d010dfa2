"""
What a process holds that closing must give back: its threads and file descriptors.

Other threads of the process change both for moments, and what was told to end takes a
while.  So figures are taken as "before" once they have settled, and whether they are
back is said by the very figures that were read to find out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import pytest
import zmq

from tests.recording import WAIT_SECONDS, wait_until
from zmqtransport.contexts import _Context
from zmqtransport.wake_pipe import WakePipe


__all__ = [
    "Figures",
    "assert_back_at",
    "assert_closed",
    "freed_without_collection",
    "no_collection",
    "own_threads",
    "process_figures",
    "settled",
]

Figures: TypeAlias = Mapping[str, object]

_EQUAL_COUNT: Final = 20
_MOMENT_SECONDS: Final = 1.0


def own_threads() -> set[threading.Thread]:
    """
    Return the threads that somebody must end.

    Those that run callbacks are shared by all of the process, and end by themselves a
    moment after the last callback.
    """
    return {thread for thread in threading.enumerate() if thread.name != "callbacks"}


def process_figures() -> dict[str, object]:
    """Return how many threads and file descriptors this process has."""
    return {
        "threads": len(own_threads()),
        "file descriptors": len(os.listdir("/dev/fd")),  # noqa: PTH208 - one entry may vanish while it is listed
    }


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Have nothing end because Python happens to look for what is unused."""
    gc.collect()
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@contextlib.contextmanager
def freed_without_collection() -> Iterator[None]:
    """
    Check where the ZeroMQ sockets and contexts go that are closed within.

    None is left behind, and none is freed on the main thread.
    """
    freed_on_main: list[str] = []

    def noting(finalize: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(one: Any) -> None:
            if threading.get_ident() == threading.main_thread().ident:
                freed_on_main.extend(traceback.format_stack())
            finalize(one)

        return note

    with pytest.MonkeyPatch.context() as patched, no_collection():
        for kind in (zmq.Socket, _Context):
            patched.setattr(kind, "__del__", noting(kind.__del__))
        before = _opened_by_us()
        yield
        wait_until(lambda: _opened_by_us() <= before)
    assert freed_on_main == []


def _opened_by_us() -> int:
    kinds: Any = zmq.Socket | zmq.Context | WakePipe
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def settled(figures: Callable[[], Figures]) -> Figures:
    """Return them once they have been the same for a while."""
    # What earlier tests have dropped goes now, not amid what is counted.
    gc.collect()
    known: list[Figures] = []

    def is_settled() -> bool:
        known.append(figures())
        return known[-_EQUAL_COUNT:] == known[-1:] * _EQUAL_COUNT

    wait_until(is_settled)
    return known[-1]


def assert_closed(before: Figures) -> None:
    """
    Check that what was closed has waited for its threads, and left nothing open.

    Threads are counted at once.  Descriptors may wait a moment: another thread of the
    process may just be trying to connect.
    """
    assert len(own_threads()) == before["threads"], threading.enumerate()
    assert_back_at(before, process_figures, timeout_seconds=_MOMENT_SECONDS)


def assert_back_at(
    before: Figures,
    figures: Callable[[], Figures],
    *,
    timeout_seconds: float = WAIT_SECONDS,
) -> None:
    """Wait until *figures* are what they were before; say what is left if never."""
    seen: Figures = {}

    def are_back() -> bool:
        nonlocal seen
        seen = figures()
        return seen == before

    try:
        wait_until(are_back, timeout_seconds=timeout_seconds)
    except AssertionError:
        assert seen == before, f"{threading.enumerate()}, {_descriptors()}"


def _descriptors() -> dict[str, str]:
    """Return what is open, by its number."""
    found = {}
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - one entry may vanish while it is listed
        try:
            found[name] = os.readlink(f"/dev/fd/{name}")  # noqa: PTH115
        except OSError:
            continue  # has been closed meanwhile, such as the one of the listing
    return found
