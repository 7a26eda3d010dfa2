"""`SpareEngine`: the engine of the next job, made ahead of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.sql.engine import Engine


__all__ = ["SpareEngine"]


@final
class SpareEngine:
    """
    One engine, which is made in a thread, and taken once.

    Args:
        make: Makes one; takes some milliseconds.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._task: asyncio.Task[Engine] | None = None

    def prepare(self) -> asyncio.Task[Engine]:
        """Begin to make one, if there is none; return what ends when it is there."""
        if self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._make))
        return self._task

    async def take(self) -> Engine:
        """
        Return the engine.  Who is cancelled meanwhile leaves it to the next.

        Raises:
            Exception: Why it could not be made, once: the next is made anew.
        """
        task = self.prepare()
        try:
            engine = await asyncio.shield(task)
        except Exception:
            self._task = None
            raise
        self._task = None
        return engine
