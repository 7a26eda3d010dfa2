"""Futures that are completed on the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


__all__ = ["when_done"]

T = TypeVar("T")


def when_done(future: Future[T], callback: Callable[[Future[T]], None]) -> None:
    """Call *callback* when *future*, which is completed on the loop, is done."""
    future.add_done_callback(callback)
