"""Futures that are completed on the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar


if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


__all__ = ["hand_on", "when_done"]

T = TypeVar("T")


def when_done(future: Future[T], callback: Callable[[Future[T]], None]) -> None:
    """Call *callback* when *future*, which is completed on the loop, is done."""
    future.add_done_callback(callback)


def hand_on(asked: Future[T], answer: Future[T]) -> None:
    """Complete *answer* with the result or the error of *asked*, which is done."""
    error = asked.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(asked.result())
