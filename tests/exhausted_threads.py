"""A process that may have no more threads, as under a limit of its container."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["no_more_threads"]


@contextmanager
def no_more_threads(name: str) -> Iterator[None]:
    """Have each thread of that name fail to start, as long as the block."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield
