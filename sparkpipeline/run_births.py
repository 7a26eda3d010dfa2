"""
The epoch that a run of a query is born with: drawn when the query is started (W1).

Theory of operation.  Of two drivers of one query the one that was started later goes
on.  A run that drew its epoch with its first batch would be as old as that batch: a
driver that was asleep since Spark had read the checkpoint would be taken for younger
than the one that has replaced it, and fence it.  So an epoch is drawn with each start,
and the drawing begins before Spark reads anything.  The start does not wait for it, for
the proxy may be away.  The first batch does: it needs the proxy anyway.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeAlias

from nameservice import NameServiceError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["DrawnEpoch", "draw_at_start"]

DrawnEpoch: TypeAlias = "Future[int | None]"
"""The epoch of one start; None if it could not be drawn."""


def draw_at_start(draw: Callable[[], int]) -> DrawnEpoch:
    """
    Return what *draw* returns, once it has.

    Args:
        draw: Draws an epoch; may take its time, and fail.
    """
    drawn: DrawnEpoch = Future()

    def fulfil() -> None:
        epoch = None
        try:
            epoch = draw()
        except NameServiceError as error:
            # The first batch draws one, and fails if it cannot.
            get_logger(component="sink").debug("epoch.not_drawn", error=str(error))
        finally:
            drawn.set_result(epoch)

    threading.Thread(target=fulfil, name="run-birth", daemon=True).start()
    return drawn
