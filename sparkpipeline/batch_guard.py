"""
How functions of ours for ``foreachBatch`` come under the guard of a leadership.

`publish_state`, `publish_states` and `run_operator` pass what Spark calls for each
batch through `guarded`.  While `run_with_standby` runs its application, that puts the
guard of the leadership around it; else it returns it as it is.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame


__all__ = ["BatchFunction", "guarded", "guarding"]

BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"

_guard: Final[ContextVar[Callable[[BatchFunction], BatchFunction] | None]] = ContextVar(
    "lodestar-batch-guard", default=None
)


def guarded(function: BatchFunction) -> BatchFunction:
    """Return *function* under the guard that holds here, or as it is."""
    guard = _guard.get()
    return function if guard is None else guard(function)


@contextlib.contextmanager
def guarding(guard: Callable[[BatchFunction], BatchFunction]) -> Iterator[None]:
    """Put *guard* around what passes through `guarded` in this context."""
    token = _guard.set(guard)
    try:
        yield
    finally:
        _guard.reset(token)
