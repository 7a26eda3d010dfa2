"""
`CopyServer`: sends rows to other nodes that ask for them (rule S2).

A thread of its own reads, so that no other question to the node waits for
it.  What it reads, and how far, is the business of
`queryablestate.node.copying.reading`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from nameservice import get_logger
from queryablestate.node.copying.reading import CopySource


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nameservice import Clock
    from queryablestate.node.copying.limits import CopyLimits
    from queryablestate.store.store import StateStore
    from queryablestate.wire.copy_messages import ToCopySource


__all__ = ["CopyServer"]

_TICK_SECONDS: Final = 0.25


@frozen(kw_only=True)
class _Lost:
    """A peer cannot be reached any more."""


@final
class CopyServer:
    """
    Reads what other nodes copy.  `receive`, `lose` and `advance` are for any thread.

    Args:
        store: What is read.
        clock: What silence is measured by.
        send: Has a message sent, from any thread; `lose` says that it could not be.
        limits: How much of it there may be.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        clock: Clock,
        send: Callable[[bytes, Sequence[bytes]], None],
        limits: CopyLimits,
    ) -> None:
        self._limits = limits
        self._log = get_logger(component="state-node", thread="copier")
        self._changed = threading.Condition()  # guards the three that follow
        self._inbox: deque[tuple[bytes, ToCopySource | _Lost]] = deque()
        self._has_advanced = False
        self._is_closing = False
        # Belongs to the thread.
        self._source = CopySource(store, clock=clock, send=send, limits=limits)
        self._thread = threading.Thread(
            target=self._run, name="state-node-copier", daemon=True
        )
        self._thread.start()

    def __len__(self) -> int:
        return len(self._source)

    def receive(self, peer: bytes, message: ToCopySource) -> bool:
        """Take what a node said; return whether there is room for it."""
        with self._changed:
            if len(self._inbox) >= self._limits.requests_waiting_max:
                return False
            self._inbox.append((peer, message))
            self._changed.notify()
        return True

    def lose(self, peer: bytes) -> None:
        """Send no more to *peer*: it is not there."""
        with self._changed:
            self._inbox.append((peer, _Lost()))
            self._changed.notify()

    def advance(self) -> None:
        """Take note that an entry was applied: a copy may wait for it."""
        if self._source.is_waiting:
            with self._changed:
                self._has_advanced = True
                self._changed.notify()

    def close(self) -> None:
        """End after the page that is being read now, and release what is open."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    # -- on the thread -------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001 (one turn, not the thread)
                    self._log.error("loop.failed", where="copier", exc_info=error)
        finally:
            self._source.close()

    def _wait(self) -> bool:
        """Wait until there is something to do; return whether to go on."""
        can_send = self._source.can_send
        with self._changed:
            if not (can_send or self._inbox or self._is_closing or self._has_advanced):
                self._changed.wait(_TICK_SECONDS if len(self._source) else None)
            self._has_advanced = False
            return not self._is_closing

    def _turn(self) -> None:
        """Hear what was said, send everybody a page, take note of the time."""
        for _ in range(len(self._inbox)):
            peer, message = self._inbox.popleft()
            if isinstance(message, _Lost):
                self._source.lose(peer)
            else:
                self._source.hear(peer, message)
        self._source.turn()
