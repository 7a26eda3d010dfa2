"""
How functions of ours for ``foreachBatch`` come under the guard of a leadership.

What `publish_state`, `publish_states` and `run_operator` return asks `guarded`, when it
is started, for what Spark is to call for each batch.  While `run_with_standby` leads
that is under the guard of the leadership; else it is what it was.

It is the moment of the start that counts, not where a sink was made, nor the thread: a
program may have made its sinks before it led, and an application may use threads.  A
process has one driver of `run_with_standby`, whose end is that of its JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias


if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


__all__ = ["BatchFunction", "BatchGuard", "guard_starts", "guarded"]

BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"
BatchGuard: TypeAlias = "Callable[[BatchFunction], BatchFunction]"

_guard: BatchGuard | None = None


def guarded(function: BatchFunction) -> BatchFunction:
    """Return *function* under the guard that holds now, or as it is."""
    guard = _guard
    return function if guard is None else guard(function)


def guard_starts(guard: BatchGuard | None) -> None:
    """Put *guard* around what passes through `guarded` from now on; None: nothing."""
    global _guard  # noqa: PLW0603 - of the process, see above
    _guard = guard
