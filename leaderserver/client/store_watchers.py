"""`StoreWatchers`: who watches which leader store through one client."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, final


if TYPE_CHECKING:
    from collections.abc import Callable

    from nameservice import ForkGuard


__all__ = ["StoreWatchers"]


@final
class StoreWatchers:
    """
    Those who want to hear when a leader store may have changed.  Thread-safe.

    There is no lock: a thread that adds or removes one may be interrupted by a signal,
    whose handler closes the client, and would wait for it.

    Args:
        fork_guard: Tells whether this process may use the client.
    """

    def __init__(self, fork_guard: ForkGuard) -> None:
        self._fork_guard = fork_guard
        self._ids = itertools.count(1)
        self._watchers: dict[int, tuple[str, Callable[[], None]]] = {}

    def add(self, component_id: str, changed: Callable[[], None]) -> int:
        """Call *changed*, on any thread, when that store may have changed."""
        self._fork_guard.check()
        watcher_id = next(self._ids)
        self._watchers[watcher_id] = (component_id, changed)
        return watcher_id

    def remove(self, watcher_id: int) -> bool:
        """Call it no more; return whether no other watches the same store."""
        removed = self._watchers.pop(watcher_id, None)
        left = {component_id for component_id, _ in list(self._watchers.values())}
        return removed is not None and removed[0] not in left

    def wake(self, component_id: str | None) -> None:
        """Have those who watch a store, or any if that is None, ask what changed."""
        for watched_id, changed in list(self._watchers.values()):
            if component_id in (None, watched_id):
                changed()
