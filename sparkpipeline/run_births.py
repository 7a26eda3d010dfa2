"""
The epoch that a run of a query is born with: drawn when the query is started (W1).

Theory of operation.  Of two drivers of one query the one that was started later goes
on.  A run that drew its epoch with its first batch would be as old as that batch: a
driver that was asleep since Spark had read the checkpoint would be taken for younger
than the one that has replaced it, and fence it.  So an epoch is drawn with each start,
and the drawing begins before Spark reads anything.  The start does not wait for it, for
the proxy may be away.  The first batch does: it needs the proxy anyway.

A writer may be started again and again, and each start is a run of its own.  Which
start a batch comes of is told by a local property of Spark, for the thread of a query
inherits those of the thread that starts it.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, final

from nameservice import NameServiceError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext


__all__ = ["DrawnEpoch", "RunBirths"]

DrawnEpoch: TypeAlias = "Future[int | None]"
"""The epoch of one start; None if it could not be drawn."""

_START_PROPERTY: Final = "lodestar.start"
_START_COUNT_MAX: Final = 100
"""Starts of one writer that are remembered; an older one is born with its batch."""


@final
class RunBirths:
    """
    The births of the runs of one writer.  Thread-safe.

    Args:
        draw: Draws an epoch; may take its time, and fail.
    """

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._drawn: dict[str, DrawnEpoch] = {}

    @contextmanager
    def starting(self, context: SparkContext) -> Iterator[None]:
        """Draw an epoch for the query that is started in the block."""
        start = str(next(self._numbers))
        drawn: DrawnEpoch = Future()
        with self._lock:
            self._drawn[start] = drawn
            for oldest in list(self._drawn)[:-_START_COUNT_MAX]:
                del self._drawn[oldest]
        threading.Thread(
            target=self._fulfil, args=(drawn,), name="run-birth", daemon=True
        ).start()
        before = context.getLocalProperty(_START_PROPERTY)
        context.setLocalProperty(_START_PROPERTY, start)
        try:
            yield
        finally:
            context.setLocalProperty(_START_PROPERTY, before)  # type: ignore[arg-type]  # None removes it

    def of_batch(self, context: SparkContext) -> DrawnEpoch | None:
        """Return what was drawn for the run whose batch this thread runs, or None."""
        start = context.getLocalProperty(_START_PROPERTY)
        with self._lock:
            return None if start is None else self._drawn.get(start)

    def _fulfil(self, drawn: DrawnEpoch) -> None:
        epoch = None
        try:
            epoch = self._draw()
        except NameServiceError as error:
            # The first batch draws one, and fails if it cannot.
            get_logger(component="sink").debug("epoch.not_drawn", error=str(error))
        finally:
            drawn.set_result(epoch)
